"""Clocks that tests move by hand."""

import time
from datetime import UTC, datetime, timedelta

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class HandClock:
    """`verl_e2e.ports.Clock` that does not move until it is moved."""

    def __init__(self, began: datetime = BEGAN) -> None:
        self.time = began
        self._passed_s = 0.0

    def now(self) -> datetime:
        """Where its hands are."""
        return self.time

    def monotonic(self) -> float:
        """Seconds that were let go by."""
        return self._passed_s

    def pass_s(self, seconds: float) -> None:
        """Let time go by."""
        self.time += timedelta(seconds=seconds)
        self._passed_s += max(seconds, 0.0)


class StoryClock:
    """The true time, moved on by hand."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)
        self._passed_s = 0.0

    def now(self) -> datetime:
        """Now, with its zone."""
        return datetime.now(UTC) + self.ahead

    def monotonic(self) -> float:
        """Seconds; setting the clock back takes none away."""
        return time.monotonic() + self._passed_s

    def pass_s(self, seconds: float) -> None:
        """Let time go by, or set the clock back."""
        self.ahead += timedelta(seconds=seconds)
        self._passed_s += max(seconds, 0.0)
