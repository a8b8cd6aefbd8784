"""Time as an argument: what the supervision needs of a clock, and the real one."""

import select
import time
from datetime import UTC, datetime
from typing import Protocol


def utc_now() -> datetime:
    """The machine's wall clock, which anyone who may set it can set; for the record only."""
    return datetime.fromtimestamp(time.clock_gettime(time.CLOCK_REALTIME), UTC)


class Clock(Protocol):
    """A monotonic clock that can also wait."""

    def monotonic(self) -> float:
        """Seconds since an unknown start, never going back."""
        ...

    def wait(self, fd: int | None, timeout_s: float) -> bool:
        """Wait until `fd` can be read (true) or `timeout_s` has passed (false); with no `fd` just wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.monotonic()

    def wait(self, fd: int | None, timeout_s: float) -> bool:
        """Sleep in `poll`, at no cost of processor time."""
        timeout_s = max(0.0, timeout_s)
        if fd is None:
            time.sleep(timeout_s)
            return False
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
