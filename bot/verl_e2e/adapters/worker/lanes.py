"""Work in lanes: a lane that waits for a slow GitHub does not delay another. Also how failures are logged."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta

from verl_e2e.core.model.errors import UserError
from verl_e2e.ports import BackendError, ForgeError

_FIRST_RETRY_S, _LAST_RETRY_S = 5.0, 900.0

log = logging.getLogger(__name__)

# Makes a pool of so many threads with this prefix of their names; a test may give one that uses the caller's thread.
MakePool = Callable[[int, str], Executor]


def thread_pool(threads: int, name: str) -> Executor:
    """Threads of the standard library."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


class Lanes:
    """Threads that work off items by key: of one lane in the order of `put`, at most so many at once.

    `done` is called, in the thread, after each item.
    """

    def __init__(
        self, threads: int, in_lane: Callable[[str], int], name: str, done: Callable[[], None], make_pool: MakePool
    ) -> None:
        self._pool = make_pool(threads, name)
        self._threads, self._in_lane, self._done = threads, in_lane, done
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[str, Callable[[], None]]]] = {}
        self._running: Counter[str] = Counter()
        self._keys: set[str] = set()

    def put(self, key: str, lane: str, work: Callable[[], None]) -> bool:
        """Take one item; false while one with its key waits or runs."""
        with self._lock:
            if key in self._keys:
                return False
            self._keys.add(key)
            self._waiting.setdefault(lane, deque()).append((key, work))
        self._begin()
        return True

    @property
    def keys(self) -> Collection[str]:
        """The keys of the items that wait or run."""
        with self._lock:
            return tuple(self._keys)

    def filled(self, most: int) -> Collection[str]:
        """The lanes in which so many items wait."""
        with self._lock:
            return tuple(lane for lane, items in self._waiting.items() if len(items) >= most)

    def stop(self) -> None:
        """Begin nothing more, and wait for nothing."""
        with self._lock:
            self._keys -= {key for items in self._waiting.values() for key, _ in items}
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        begun = []
        with self._lock:
            for lane in list(self._waiting):
                items = self._waiting[lane]
                while items and self._running[lane] < self._in_lane(lane) and self._running.total() < self._threads:
                    key, work = items.popleft()
                    self._running[lane] += 1
                    begun.append((key, lane, work))
                if items:
                    # The next lane that waits comes first the next time.
                    self._waiting[lane] = self._waiting.pop(lane)
                else:
                    del self._waiting[lane]
        # Not under the lock: a pool may work in this thread.
        for item in begun:
            with suppress(RuntimeError):  # the pool was stopped meanwhile
                self._pool.submit(self._work, *item)

    def _work(self, key: str, lane: str, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._keys.discard(key)
                self._running[lane] -= 1
                if not self._running[lane]:
                    del self._running[lane]
            self._begin()
            self._done()


def retry_at(now: datetime, attempts: int, error: Exception) -> datetime:
    """When to try again: later with each failure, or at the time that an answer named."""
    named_s = float(getattr(error, "wait_s", 0.0))
    return now + timedelta(seconds=named_s or min(_FIRST_RETRY_S * 2 ** min(attempts, 20), _LAST_RETRY_S))


def log_failure(what: str, error: Exception, about: dict[str, str]) -> None:
    """Log a failure: an expected error in one line, an internal error with its traceback."""
    expected = isinstance(error, UserError | ForgeError | BackendError)
    log.warning("%s: %s", what, error, exc_info=None if expected else error, extra=about)


def problem(error: Exception) -> str:
    """A failure as text for the tables."""
    return f"{type(error).__name__}: {error}"
