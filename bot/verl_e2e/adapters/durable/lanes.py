"""Work in lanes: what waits in one lane, on a slow or limited GitHub, holds up nothing of another."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor


class Lanes:
    """Threads that work off items by key: of one lane in the order of `put`, at most so many at once.

    `done` is called, in the thread, after each item.
    """

    def __init__(self, threads: int, in_lane: Callable[[str], int], name: str, done: Callable[[], None]) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
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

    def filled(self, most: int) -> Collection[str]:
        """The lanes in which so many items wait."""
        with self._lock:
            return tuple(lane for lane, items in self._waiting.items() if len(items) >= most)

    def stop(self) -> None:
        """Begin nothing more, and wait for nothing."""
        with self._lock:
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        for lane in list(self._waiting):
            items = self._waiting[lane]
            while items and self._running[lane] < self._in_lane(lane) and self._running.total() < self._threads:
                key, work = items.popleft()
                self._running[lane] += 1
                self._pool.submit(self._work, key, lane, work)
            if items:
                # The next lane that waits comes first the next time.
                self._waiting[lane] = self._waiting.pop(lane)
            else:
                del self._waiting[lane]

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
