"""What operators ask: /healthz, /readyz and /metrics. Anyone may ask the first two, which give no figures."""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

# Many clients that ask at once cost no more than one client that asks this often.
_FRESH_S = 0.5
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Headers by which a proxy says that it passes on what someone else asks.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

T = TypeVar("T")


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


class ProbePages:
    """The three pages."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self._stalled = _Recent(probes.stalled)
        self._readiness = _Recent(probes.readiness)

    def routes(self) -> tuple[Route, ...]:
        """Their addresses."""
        return (
            Route("/healthz", self.healthz, methods=["GET"]),
            Route("/readyz", self.readyz, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
        )

    async def healthz(self, _: Request) -> Response:
        """200 while the process works; 503 when only a new start helps."""
        why = await self._stalled.answer()
        return JSONResponse({"ok": False, "why": why} if why else {"ok": True}, status_code=503 if why else 200)

    async def readyz(self, _: Request) -> Response:
        """200 while everything that the work needs is there; else 503, and what is not."""
        checks = await self._readiness.answer()
        ready = not any(checks.values())
        shown = {name: what or "ok" for name, what in checks.items()}
        return JSONResponse({"ready": ready, "checks": shown}, status_code=200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """The metrics, for who may read them."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        return Response(await asyncio.to_thread(self._probes.metrics), media_type=_METRICS_TYPE)

    def _refusal(self, request: Request) -> Response | None:
        server = request.scope.get("server")
        if self._probes.metrics_port is not None and (server is None or server[1] != self._probes.metrics_port):
            return PlainTextResponse("Not Found", status_code=404)
        if self._probes.token:
            given = request.headers.get("authorization", "").encode()
            if hmac.compare_digest(given, f"Bearer {self._probes.token}".encode()):
                return None
            return PlainTextResponse("a token is needed\n", status_code=401, headers={"WWW-Authenticate": "Bearer"})
        if self._probes.metrics_port is None and not _is_local(request):
            return PlainTextResponse("metrics are shown on this host only\n", status_code=403)
        return None


def _is_local(request: Request) -> bool:
    """Whether a program of this host asks, and not a proxy here for someone else."""
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ip_address(request.client.host).is_loopback
    except ValueError:
        return False


class _Recent(Generic[T]):
    """The answer to a question that is asked in a thread: one question at a time, and none older than `_FRESH_S`."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._asked: asyncio.Future[T] | None = None
        self._asked_at = 0.0

    async def answer(self) -> T:
        """The answer of the question that is under way, or that began just now, or of a new one."""
        now = asyncio.get_running_loop().time()
        if self._asked is None or (self._asked.done() and now - self._asked_at >= _FRESH_S):
            self._asked = asyncio.ensure_future(asyncio.to_thread(self._ask))
            self._asked_at = now
        # One client that leaves must not end what others wait for.
        return await asyncio.shield(self._asked)
