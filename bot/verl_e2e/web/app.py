"""The service's HTTP surface: POST /webhook, the pages of `verl_e2e.web.probes`, and nothing else.

A delivery is answered as soon as it is in the deliveries table; nothing of it is parsed here. What its head alone
shows to be no delivery is refused before its body, the rest by the signature over the bytes as they came.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.web.bodies import BODY_BYTES, Bodies, BodyError
from verl_e2e.web.probes import ProbePages, Probes

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


def create_app(door: Door) -> Starlette:
    """The ASGI application."""
    routes = [
        Route("/webhook", _Webhook(door).receive, methods=["POST"]),
        *ProbePages(door.probes).routes(),
    ]
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
                    continue  # the sender has disconnected; the delivery is stored all the same
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
