"""Decides which of many readings become events, so that a long run leaves a bounded number."""

from dataclasses import dataclass

KEPT_BEFORE_THINNING = 120


@dataclass(slots=True)
class Thinning:
    """After `KEPT_BEFORE_THINNING` events only every second reading becomes one, after as many again every fourth.

    A run of a day that reads every 5 s leaves about a thousand.
    """

    # How many readings there were.
    readings: int = 0
    _every: int = 1
    _left: int = KEPT_BEFORE_THINNING

    def keeps_next(self) -> bool:
        """Count a reading; whether it becomes an event."""
        self.readings += 1
        if (self.readings - 1) % self._every:
            return False
        self._left -= 1
        if self._left == 0:
            self._every, self._left = self._every * 2, KEPT_BEFORE_THINNING
        return True
