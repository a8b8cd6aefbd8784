"""How often we write to GitHub, and how many requests were sent."""

import bisect
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from fractions import Fraction

from verl_e2e.ports import ForgeError

# Below GitHub's 80 a minute and 500 an hour for requests that create content: (number, seconds).
LIMITER = ((78, 60.0), (480, 3600.0))


class Lane(Enum):
    """How important a write is; each may use up this part of what we may write, so that the more important gets by."""

    URGENT = Fraction(1)
    NORMAL = Fraction(5, 6)
    COURTESY = Fraction(1, 2)

    def of(self, number: int) -> int:
        """How many of `number` writes this lane may fill, one at least."""
        return max(1, math.ceil(number * self.value))


class Calls:
    """How many requests were sent, by verb; shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_verb: Counter[str] = Counter()

    def count(self, verb: str) -> None:
        """One more."""
        with self._lock:
            self._by_verb[verb] += 1

    def by_verb(self) -> dict[str, int]:
        """The numbers so far."""
        with self._lock:
            return dict(self._by_verb)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_verb().values())


class RateLimiter:
    """Holds back what creates content, so that GitHub's secondary limits are not reached; shared by threads."""

    def __init__(self, limits: tuple[tuple[int, float], ...], sleep: Callable[[float], None] = time.sleep) -> None:
        self._limits = limits
        self._sleep = sleep
        self._lock = threading.Lock()
        self._kept = max((number for number, _ in limits), default=0)
        self._sent: list[float] = []

    def wait(self, longest_s: float, lane: Lane = Lane.NORMAL) -> None:
        """Return when one more of a lane may be sent; ForgeError when that is further off than `longest_s`."""
        with self._lock:
            now = time.monotonic()
            shares = [(lane.of(number), span) for number, span in self._limits]
            free = [self._sent[-number] + span for number, span in shares if len(self._sent) >= number]
            due = max([now, *free])
            if due - now > longest_s:
                raise ForgeError("We write to GitHub too often", passing=True, wait_s=due - now)
            # A more important one may come before those that wait already.
            bisect.insort(self._sent, due)
            del self._sent[: max(0, len(self._sent) - self._kept)]
        if due > now:
            self._sleep(due - now)
