"""Ask what may hang, and get an answer or an error within a bounded time."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """Asks a question in a thread of its own, one at a time; while one hangs, no other is begun.

    Calling it gives the answer, the question's own error, or TimeoutError after `limit_s`. Who calls it while a
    question is under way gets that answer.
    """

    def __init__(self, ask: Callable[[], T], limit_s: float) -> None:
        self._ask, self._limit_s = ask, limit_s
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ask")
        self._running: Future[T] | None = None

    def __call__(self) -> T:
        """The answer; see the class."""
        with self._lock:
            if self._running is None or self._running.done():
                self._running = self._thread.submit(self._ask)
            running = self._running
        return running.result(self._limit_s)
