"""The service's HTTP surface: POST /webhook, /healthz, /readyz, /metrics, and the pages of `verl_e2e.web.pages`.

A delivery is answered as soon as it is in the deliveries table; nothing of it is parsed here. What its head alone
shows to be no delivery is refused before its body, the rest by the signature over the bytes as they came.
"""

import asyncio
import hashlib
import hmac
import logging
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address
from tempfile import SpooledTemporaryFile
from typing import ClassVar, Generic, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from verl_e2e.core.pulls.deliveries import MAX_BODY, Received

BODY_BYTES = MAX_BODY
# GitHub gives up after 10 s.
_BODY_S = 8.0
# A longer body lies on disk until its signature is checked.
_IN_MEMORY = 256 * 1024


class BodyError(Exception):
    """A body was not received to its end; `status` and `why` are for the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(eq=False, slots=True)
class _Arriving:
    source: str
    scope: asyncio.Timeout
    size: int = 0
    given_up: bool = False


class Bodies:
    """The bodies that are being received: `most` at a time, and `total_bytes` of memory and disk together.

    Over a limit, the oldest body of the source with the most bytes is given up. Behind a proxy all bodies have one
    source; then it is the oldest of all. The signature can only be checked at the end of a body. Until then, only its
    age shows that it may not come from GitHub.
    """

    def __init__(self, secret: bytes, *, most: int = 128, total_bytes: int = 512 * 1024 * 1024) -> None:
        self._secret = secret
        self._most = most
        self._total_bytes = total_bytes
        self._arriving: dict[_Arriving, None] = {}

    async def receive(self, parts: AsyncIterator[bytes], signature: str, source: str) -> bytes | None:
        """Receive a body; None when its signature is another one. Raises BodyError."""
        digest = hmac.new(self._secret, digestmod=hashlib.sha256)
        with SpooledTemporaryFile(_IN_MEMORY) as file:
            try:
                async with asyncio.timeout(_BODY_S) as scope:
                    body = _Arriving(source, scope)
                    self._arriving[body] = None
                    try:
                        if len(self._arriving) > self._most:
                            self._give_up(besides=body)
                        async for part in parts:
                            body.size += len(part)
                            if body.size > BODY_BYTES:
                                raise BodyError(413, "the body is larger than 25 MB")
                            if sum(item.size for item in self._arriving if not item.given_up) > self._total_bytes:
                                self._give_up()
                            digest.update(part)
                            file.write(part)
                    finally:
                        del self._arriving[body]
            except TimeoutError:
                if body.given_up:
                    raise BodyError(503, "busy") from None
                raise BodyError(408, "the body did not arrive in time") from None
            if not hmac.compare_digest(f"sha256={digest.hexdigest()}", signature):
                return None
            file.seek(0)
            return file.read()

    def _give_up(self, besides: _Arriving | None = None) -> None:
        """Give up the oldest body of the source that holds the most, in bytes and then in number."""
        bodies = [item for item in self._arriving if item is not besides and not item.given_up]
        if not bodies:
            return
        held: Counter[str] = Counter()
        for body in bodies:
            held[body.source] += body.size + 1
        source = max(held, key=held.__getitem__)
        oldest = next(item for item in bodies if item.source == source)
        oldest.given_up = True
        oldest.scope.reschedule(asyncio.get_running_loop().time())


HEAD_S = 5.0
# Connections without a request in progress. With one more, the longest silent one is closed.
MOST_WAITING = 400


class PatientProtocol(H11Protocol):
    """uvicorn's protocol with a time limit for each request head and a limit of connections that wait."""

    _waiting: ClassVar[dict["PatientProtocol", None]] = {}
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection waits for a request head."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """A complete head ends the wait; a part of one does not."""
        super().data_received(data)
        if self._at_work():
            self._end_wait()
        else:
            self._wait()

    def on_response_complete(self) -> None:
        """After an answer the connection waits for the next head, or is closed."""
        super().on_response_complete()
        if not self.transport.is_closing() and not self._at_work():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """A lost connection does not wait."""
        self._end_wait()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The service ends: what is sent for as long as someone reads ends too, so that nothing waits for it."""
        super().shutdown()
        if self._at_work() and self.cycle.response_started:
            self.transport.close()

    def _at_work(self) -> bool:
        """Whether a request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wait(self) -> None:
        if self._head_timer is not None:
            return
        self._head_timer = self.loop.call_later(HEAD_S, self._close)
        self._waiting[self] = None
        if len(self._waiting) > MOST_WAITING:
            next(iter(self._waiting))._close()

    def _end_wait(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._waiting.pop(self, None)

    def _close(self) -> None:
        self._end_wait()
        # Abort without flushing the buffers: the client has sent no request, so nothing in them is for it.
        self.transport.abort()


# Many clients that ask at once cost no more than one client that asks this often.
_FRESH_S = 0.5
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Headers by which a proxy says that it passes on what someone else asks.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Probes:
    """What the three pages answer from; each call comes back in a bounded time."""

    # Why the process should be started again, empty while it need not.
    stalled: Callable[[], str]
    # Each check of readiness by name, with what is wrong; empty for nothing.
    readiness: Callable[[], Mapping[str, str]]
    # The metrics in Prometheus' text format.
    metrics: Callable[[], bytes]
    # The port where /metrics is served; None for the one of webhooks.
    metrics_port: int | None = None
    # What `Authorization: Bearer` must hold for /metrics; empty for no such header.
    token: str = field(default="", repr=False)


def probe_routes(probes: Probes) -> tuple[Route, ...]:
    """The three pages."""
    stalled, readiness = _Recent(probes.stalled), _Recent(probes.readiness)

    async def healthz(_: Request) -> Response:
        """200 while the process works; 503 when only a new start helps."""
        why = await stalled.answer()
        return JSONResponse({"ok": False, "why": why} if why else {"ok": True}, status_code=503 if why else 200)

    async def readyz(_: Request) -> Response:
        """200 while everything that the work needs is there; else 503, and what is not."""
        checks = await readiness.answer()
        ready = not any(checks.values())
        shown = {name: what or "ok" for name, what in checks.items()}
        return JSONResponse({"ready": ready, "checks": shown}, status_code=200 if ready else 503)

    async def metrics(request: Request) -> Response:
        """The metrics, for who may read them."""
        server = request.scope.get("server")
        if probes.metrics_port is not None and (server is None or server[1] != probes.metrics_port):
            return PlainTextResponse("Not Found", status_code=404)
        if probes.token:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {probes.token}".encode()):
                return PlainTextResponse("a token is needed\n", status_code=401, headers={"WWW-Authenticate": "Bearer"})
        elif probes.metrics_port is None and not _is_local(request):
            return PlainTextResponse("metrics are shown on this host only\n", status_code=403)
        return Response(await asyncio.to_thread(probes.metrics), media_type=_METRICS_TYPE)

    pages = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}
    return tuple(Route(path, page, methods=["GET"]) for path, page in pages.items())


def _is_local(request: Request) -> bool:
    """Whether a program of this host asks, and not a proxy here for someone else."""
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ip_address(request.client.host).is_loopback
    except ValueError:
        return False


class _Recent(Generic[_T]):
    """The answer to a question that is asked in a thread: one question at a time, and none older than `_FRESH_S`."""

    def __init__(self, ask: Callable[[], _T]) -> None:
        self._ask = ask
        self._asked: asyncio.Future[_T] | None = None
        self._asked_at = 0.0

    async def answer(self) -> _T:
        """The answer of the question that is under way, or that began just now, or of a new one."""
        now = asyncio.get_running_loop().time()
        if self._asked is None or (self._asked.done() and now - self._asked_at >= _FRESH_S):
            self._asked = asyncio.ensure_future(asyncio.to_thread(self._ask))
            self._asked_at = now
        # One client that leaves must not end what others wait for.
        return await asyncio.shield(self._asked)


_SIGNATURE = re.compile(r"sha256=[0-9a-f]{64}")
_DELIVERY_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
# Names of events that we do not know are kept as well: GitHub adds some, as `projects_v2_item`.
_EVENT = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_LENGTH_DIGITS = 12
_BATCH = 64
# The database has so long to take a delivery; GitHub waits 10 s for the answer.
_PATIENCE_S = 8.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Door:
    """What the web application needs from the rest of the service."""

    # The secret of the App's webhook.
    secret: str = field(repr=False)
    # Stores deliveries, all or none, and says for each whether it is new.
    keep: Callable[[Sequence[Received]], Sequence[bool]]
    # Wakes the worker after a delivery.
    arrived: Callable[[], None]
    # The time now, with its zone.
    now: Callable[[], datetime]
    # Takes notice of an answer: the event, empty where no signature proves it, and the kind of the answer.
    answered: Callable[[str, str], None]
    # What operators may ask.
    probes: Probes


def create_app(door: Door, pages: Iterable[Route] = ()) -> Starlette:
    """The ASGI application; `pages` are those that people read."""
    routes = [Route("/webhook", _Webhook(door).receive, methods=["POST"]), *probe_routes(door.probes), *pages]
    return Starlette(routes=routes, exception_handlers={Exception: _fault})


class _Webhook:
    """The page of webhooks. The state is the bodies that are being received."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._bodies = Bodies(door.secret.encode())
        self._keeper = _Keeper(door.keep)

    async def receive(self, request: Request) -> Response:
        """Store one delivery. Answers 202 new, 200 known, 401 wrong signature, other 4xx malformed, 503 try again."""
        refusal = _refusal(request)
        if refusal is not None:
            return self._refuse(*refusal)
        signature = request.headers["x-hub-signature-256"]
        source = request.client.host if request.client else ""
        try:
            body = await self._bodies.receive(request.stream(), signature, source)
        except BodyError as error:
            return self._refuse(error.status, "refused", error.why)
        except ClientDisconnect:
            return self._refuse(408, "refused", "the body did not arrive in time")
        if body is None:
            return self._refuse(*_UNSIGNED)
        delivery_id, event = request.headers["x-github-delivery"], request.headers["x-github-event"]
        return await self._keep(Received(delivery_id, event, body, self._door.now()))

    async def _keep(self, delivery: Received) -> Response:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                new = await self._keeper.keep(delivery)
        except Exception as error:
            # GitHub shows the delivery as failed, and the service asks for it again.
            about = {"delivery": delivery.id, "event": delivery.event}
            log.warning("delivery not stored in the database: %s", type(error).__name__, extra=about)
            return self._refuse(503, "failed", "the database did not take the delivery", delivery.event)
        self._door.answered(delivery.event, "kept" if new else "repeated")
        if not new:
            return PlainTextResponse("known\n")
        log.debug("delivery stored", extra={"delivery": delivery.id, "event": delivery.event})
        self._door.arrived()
        return PlainTextResponse("kept\n", status_code=202)

    def _refuse(self, status: int, kind: str, why: str, event: str = "") -> Response:
        self._door.answered(event, kind)
        # The rest of a body that was not read to its end is never read.
        headers = {"Connection": "close"}
        return PlainTextResponse(f"{why}\n", status_code=status, headers=headers)


class _Keeper:
    """Stores deliveries in the order of arrival. Deliveries that arrive during a write share the next write.

    So a slow disk delays an answer by two writes at most, and not by one write for each earlier delivery.
    """

    def __init__(self, keep: Callable[[Sequence[Received]], Sequence[bool]]) -> None:
        self._keep = keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="keep")
        self._waiting: deque[tuple[Received, asyncio.Future[bool]]] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def keep(self, delivery: Received) -> bool:
        """Store a delivery and say whether it is new; raises the error of the write."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((delivery, answer))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await answer

    async def _write(self) -> None:
        while self._waiting:
            batch, size = [self._waiting.popleft()], 0
            while self._waiting and len(batch) < _BATCH and size < BODY_BYTES:
                batch.append(self._waiting.popleft())
                size += len(batch[-1][0].body)
            received = [delivery for delivery, _ in batch]
            try:
                new = await asyncio.get_running_loop().run_in_executor(self._thread, self._keep, received)
            except Exception as error:
                outcomes: Sequence[bool | Exception] = [error] * len(batch)
            else:
                outcomes = new
            for (_, answer), outcome in zip(batch, outcomes, strict=True):
                if answer.done():
                    continue  # the sender has disconnected; the delivery is stored all the same
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)


_UNSIGNED = (401, "unsigned", "the signature is missing or wrong")


def _refusal(request: Request) -> tuple[int, str, str] | None:
    """The answer to a request whose headers are wrong: status, kind and reason; None when they are right."""
    headers = request.headers
    if not _SIGNATURE.fullmatch(headers.get("x-hub-signature-256", "")):
        return _UNSIGNED
    if not _DELIVERY_ID.fullmatch(headers.get("x-github-delivery", "")) or not _EVENT.fullmatch(
        headers.get("x-github-event", "")
    ):
        return 400, "refused", "X-GitHub-Delivery or X-GitHub-Event is missing or malformed"
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415, "refused", "set the webhook's content type to application/json"
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > _LENGTH_DIGITS or int(length) > BODY_BYTES:
        return 413, "refused", "the body is larger than 25 MB"
    return None


async def _fault(request: Request, error: Exception) -> Response:
    log.error("internal error", exc_info=error, extra={"path": request.url.path})
    return PlainTextResponse("internal error\n", status_code=500)
