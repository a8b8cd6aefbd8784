"""The service's HTTP surface: POST /webhook, GET /healthz, GET /metrics, and nothing else.

A delivery is answered as soon as it is in the deliveries table; nothing of it is parsed here. Its signature is
compared before anything else is looked at, over the bytes as they came.
"""

import asyncio
import hashlib
import hmac
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from bot.core.pulls.deliveries import Received

# GitHub's own cap for a payload.
BODY_BYTES = 25 * 1024 * 1024
# Strangers may send bodies too; together they hold no more than this at any moment.
_HELD_BYTES = 4 * BODY_BYTES
# GitHub gives up after 10 s.
_BODY_S = 8.0
_SIGNATURE = re.compile(r"sha256=[0-9a-f]{64}")
_DELIVERY_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_EVENT = re.compile(r"[a-z_]{1,64}")
_BATCH = 64

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Door:
    """What the web application needs of the rest.

    `keep` stores deliveries, all or none, and says which are new; `arrived` wakes the worker; `health` gives the
    figures of /metrics by name, and raises when the service is not well.
    """

    secret: str = field(repr=False)
    keep: Callable[[Sequence[Received]], Sequence[bool]]
    arrived: Callable[[], None]
    health: Callable[[], Mapping[str, float]]
    now: Callable[[], datetime]


def create_app(door: Door) -> Starlette:
    """The application, to be run by an ASGI server."""
    webhook = _Webhook(door)
    routes = [
        Route("/webhook", webhook.receive, methods=["POST"]),
        Route("/healthz", webhook.healthz, methods=["GET"]),
        Route("/metrics", webhook.metrics, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={Exception: _fault})


class _Webhook:
    """The three pages; the state is the number of answers of each kind and the bytes that are being read."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._secret = door.secret.encode()
        self._keeper = _Keeper(door.keep)
        self._answers: dict[str, int] = dict.fromkeys(("kept", "repeated", "unsigned", "refused", "failed"), 0)
        self._held = 0

    async def receive(self, request: Request) -> Response:
        """Keep one delivery: 202 new, 200 known, 401 not GitHub's, 4xx not understood, 503 try again."""
        body, refusal = await self._body(request)
        if refusal:
            return self._refuse(*refusal)
        if not _signed(self._secret, body, request.headers.get("x-hub-signature-256", "")):
            return self._refuse(401, "unsigned", "the signature is missing or wrong")
        delivery_id = request.headers.get("x-github-delivery", "")
        event = request.headers.get("x-github-event", "")
        if not _DELIVERY_ID.fullmatch(delivery_id) or not _EVENT.fullmatch(event):
            return self._refuse(400, "refused", "X-GitHub-Delivery or X-GitHub-Event is missing or malformed")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return self._refuse(415, "refused", "set the webhook's content type to application/json")
        return await self._keep(Received(delivery_id, event, body, self._door.now()))

    async def _body(self, request: Request) -> tuple[bytes, tuple[int, str, str] | None]:
        """The raw body, or why it was not read to its end."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in request.stream():
                    size += len(part)
                    self._held += len(part)
                    if size > BODY_BYTES:
                        return b"", (413, "refused", "the body is larger than 25 MiB")
                    if self._held > _HELD_BYTES:
                        return b"", (503, "refused", "busy")
                    parts.append(part)
        except (TimeoutError, ClientDisconnect):
            return b"", (408, "refused", "the body did not arrive in time")
        finally:
            self._held -= size
        return b"".join(parts), None

    async def _keep(self, delivery: Received) -> Response:
        try:
            new = await self._keeper.keep(delivery)
        except Exception:
            # GitHub shows the delivery as failed, and `doctor` asks for it again.
            log.exception("delivery not kept", extra={"delivery": delivery.id, "event": delivery.event})
            return self._refuse(503, "failed", "the delivery could not be kept")
        self._answers["kept" if new else "repeated"] += 1
        if not new:
            return PlainTextResponse("known\n")
        log.debug("delivery kept", extra={"delivery": delivery.id, "event": delivery.event})
        self._door.arrived()
        return PlainTextResponse("kept\n", status_code=202)

    def _refuse(self, status: int, kind: str, why: str) -> Response:
        self._answers[kind] += 1
        # What is left of a body that was not read to its end is not read at all.
        headers = {"Connection": "close"} if status in (408, 413, 503) else None
        return PlainTextResponse(f"{why}\n", status_code=status, headers=headers)

    async def healthz(self, _: Request) -> Response:
        """200 while the database answers and the worker lives."""
        try:
            await self._figures()
        except Exception:
            log.exception("not healthy")
            return JSONResponse({"ok": False}, status_code=503)
        return JSONResponse({"ok": True})

    async def metrics(self, _: Request) -> Response:
        """A few numbers in the text form that Prometheus reads."""
        figures = await self._figures()
        lines = [f'verl_e2e_webhook_answers_total{{kind="{kind}"}} {count}' for kind, count in self._answers.items()]
        lines += [f"verl_e2e_{name} {value:g}" for name, value in figures.items()]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def _figures(self) -> Mapping[str, float]:
        return await asyncio.to_thread(self._door.health)


class _Keeper:
    """Stores deliveries in the order in which they came: those that arrive while the disk is busy share the next write.

    So a slow disk delays each answer by two writes at most, and not by one for each delivery before it.
    """

    def __init__(self, keep: Callable[[Sequence[Received]], Sequence[bool]]) -> None:
        self._keep = keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="keep")
        self._waiting: deque[tuple[Received, asyncio.Future[bool]]] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def keep(self, delivery: Received) -> bool:
        """Whether the delivery is new; raises what keeping it raised."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((delivery, answer))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await answer

    async def _write(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            received = [delivery for delivery, _ in batch]
            try:
                new = await asyncio.get_running_loop().run_in_executor(self._thread, self._keep, received)
            except Exception as error:
                outcomes: Sequence[bool | Exception] = [error] * len(batch)
            else:
                outcomes = new
            for (_, answer), outcome in zip(batch, outcomes, strict=True):
                if answer.done():
                    continue  # whoever sent it went away; it is kept all the same
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)

    def _next_batch(self) -> list[tuple[Received, asyncio.Future[bool]]]:
        batch, size = [self._waiting.popleft()], 0
        while self._waiting and len(batch) < _BATCH and size < BODY_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1][0].body)
        return batch


def _signed(secret: bytes, body: bytes, signature: str) -> bool:
    """Whether the signature is that of the body, in the same time whatever it is."""
    expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    given = signature if _SIGNATURE.fullmatch(signature) else "sha256=" + "0" * 64
    return hmac.compare_digest(expected, given)


async def _fault(request: Request, error: Exception) -> Response:
    log.error("fault of ours", exc_info=error, extra={"path": request.url.path})
    return PlainTextResponse("a fault of ours\n", status_code=500)
