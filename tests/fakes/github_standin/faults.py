"""What goes wrong between the program and GitHub: chosen for each request."""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class When(Enum):
    """Whether the request has had its effect by the time that it goes wrong."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: an answer with `status`, or a connection cut (status 0), after `delay_s`."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "Server Error"
    delay_s: float = 0.0
    when: When = When.BEFORE


def server_error(status: int = 502, when: When = When.BEFORE) -> Fault:
    """500, 502 or 503; with `When.AFTER` what was asked has happened all the same."""
    return Fault(status, when=when)


def slow_down(status: int = 403, retry_after_s: int = 1) -> Fault:
    """GitHub's secondary limit: 403 or 429 with Retry-After."""
    message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
    return Fault(status, {"Retry-After": str(retry_after_s)}, message)


def used_up(reset: int) -> Fault:
    """GitHub's primary limit: 403 with nothing remaining until `reset`, in seconds since 1970."""
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(reset)}
    return Fault(403, headers, "API rate limit exceeded for installation.")


def cut(when: When = When.BEFORE) -> Fault:
    """A connection that ends without an answer."""
    return Fault(when=when)


def silence(delay_s: float, when: When = When.BEFORE) -> Fault:
    """No answer for a while, then a cut connection: what a caller's time limit is for."""
    return Fault(delay_s=delay_s, when=when)


@dataclass(slots=True)
class _Planned:
    fault: Fault
    method: str
    path: re.Pattern[str]
    times: int
    skip: int


def _all_well(_method: str, _path: str) -> Fault | None:
    return None


class Faults:
    """The faults that wait for their request; `choose` may be set to decide for each request again."""

    def __init__(self) -> None:
        self.choose: Callable[[str, str], Fault | None] = _all_well
        self.met = 0
        self._planned: list[_Planned] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault, method: str = "", path: str = ".*", *, times: int = 1, skip: int = 0) -> None:
        """Let the next `times` requests of a method (empty: any) and path go wrong, after `skip` that go well."""
        with self._lock:
            self._planned.append(_Planned(fault, method, re.compile(path), times, skip))

    def clear(self) -> None:
        """Let everything go well again."""
        with self._lock:
            self._planned.clear()
            self.choose = _all_well

    def of(self, method: str, path: str) -> Fault | None:
        """What goes wrong with this request; it is used up by asking."""
        with self._lock:
            for item in self._planned:
                if item.times > 0 and item.method in ("", method) and item.path.search(path):
                    if item.skip > 0:
                        item.skip -= 1
                        continue
                    item.times -= 1
                    self.met += 1
                    return item.fault
            found = self.choose(method, path)
            self.met += found is not None
            return found
