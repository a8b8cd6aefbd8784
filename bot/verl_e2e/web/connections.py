"""The protocol of the server: it closes connections that do not send a complete request head in time.

uvicorn itself waits for a head without limit, and refuses everyone once it has its maximum of connections.
"""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

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
