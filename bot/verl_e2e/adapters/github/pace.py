"""How often we write to GitHub, when we send nothing, how many requests were sent, and what GitHub still grants."""

import bisect
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum, StrEnum
from fractions import Fraction
from itertools import takewhile

from verl_e2e.adapters.github.retry import server_time
from verl_e2e.core.pulls.figures import API_RESOURCES, OTHER, ApiBudget
from verl_e2e.ports import ForgeError

# Below GitHub's 80 a minute and 500 an hour for requests that create content: (number, seconds).
LIMITER = ((78, 60.0), (480, 3600.0))
# A write that was sent away may come back so much later than its time: the work before it takes a while.
_LATE_S = 30.0
# Of a number in a header.
_DIGITS = 12
# Statuses from here on refuse.
_REFUSALS = 400


class Lane(Enum):
    """How important a write is; each may use up this part of what we may write, so that the more important gets by."""

    URGENT = Fraction(1)
    NORMAL = Fraction(5, 6)
    COURTESY = Fraction(1, 2)

    def of(self, number: int) -> int:
        """How many of `number` writes this lane may fill, one at least."""
        return max(1, math.ceil(number * self.value))


class Answer(StrEnum):
    """How a request was answered."""

    OK = "ok"
    MOVED = "moved"
    NOT_MODIFIED = "not_modified"
    REFUSED = "refused"
    LIMITED = "limited"
    FAILED = "failed"
    NONE = "none"


class Calls:
    """The requests that were sent, by verb, and their answers; shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_verb: Counter[str] = Counter()
        self._by_answer: Counter[tuple[str, str]] = Counter()
        self._budgets: dict[tuple[str, str], ApiBudget] = {}
        self._last_answer_s = -math.inf
        self.booted_s: float | None = None
        """When our monotonic clock began by GitHub's own, in seconds since 1970; None before it said a time."""

    def count(self, verb: str) -> None:
        """One more is sent."""
        with self._lock:
            self._by_verb[verb] += 1

    def answered(
        self, owner: str, verb: str, status: int, headers: Mapping[str, str], *, limited: bool = False
    ) -> None:
        """One was answered; `owner` is the account whose installation sent it, empty for the App itself.

        `limited` says whether a rate limit refused it.
        """
        budget, theirs = _budget(headers), server_time(headers)
        with self._lock:
            if theirs is not None:
                self.booted_s = theirs.timestamp() - time.monotonic()
            if status < _REFUSALS:
                self._last_answer_s = time.monotonic()
            self._by_answer[verb, Answer.LIMITED if limited else _answer(status)] += 1
            if budget is not None:
                self._budgets[owner, budget.resource] = budget

    def by_verb(self) -> dict[str, int]:
        """The numbers so far."""
        with self._lock:
            return dict(self._by_verb)

    def silent_s(self) -> float:
        """For how long GitHub has not given what it was asked for."""
        with self._lock:
            return time.monotonic() - self._last_answer_s

    def unanswered(self, verb: str) -> None:
        """One was sent, and no answer came."""
        with self._lock:
            self._by_answer[verb, Answer.NONE] += 1

    def by_answer(self) -> dict[tuple[str, str], int]:
        """The numbers so far of those that ended, by verb and answer."""
        with self._lock:
            return dict(self._by_answer)

    def budgets(self, now_s: float) -> tuple[ApiBudget, ...]:
        """What GitHub last said that it grants, for windows that have not ended by now."""
        with self._lock:
            return tuple(budget for budget in self._budgets.values() if budget.resets_s > now_s)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_verb().values())


def _answer(status: int) -> Answer:
    if status == 304:
        return Answer.NOT_MODIFIED
    ends = ((300, Answer.OK), (400, Answer.MOVED), (500, Answer.REFUSED))
    return next((answer for end, answer in ends if status < end), Answer.FAILED)


def _budget(headers: Mapping[str, str]) -> ApiBudget | None:
    """What the headers of an answer say of the rate limit; None where they do not, or not in numbers."""
    texts = [headers.get(f"x-ratelimit-{name}", "") for name in ("limit", "remaining", "used", "reset")]
    if not all(text.isascii() and text.isdigit() and len(text) <= _DIGITS for text in texts):
        return None
    limit, remaining, used, resets_s = map(int, texts)
    resource = headers.get("x-ratelimit-resource", "")
    return ApiBudget(resource if resource in API_RESOURCES else OTHER, limit, remaining, used, float(resets_s))


class RateLimiter:
    """Holds back what creates content, so that GitHub's secondary limits are not reached; shared by threads.

    Once one is reached all the same, it holds back every request.
    """

    def __init__(self, limits: tuple[tuple[int, float], ...], sleep: Callable[[float], None] = time.sleep) -> None:
        self._limits = limits
        self._sleep = sleep
        self._lock = threading.Lock()
        self._kept = max((number for number, _ in limits), default=0)
        self._longest_span = max((span for _, span in limits), default=0.0)
        self._sent: list[float] = []
        self._held_until = 0.0
        # When those of each lane come back that were sent away, in the order in which they came.
        self._away: dict[Lane, dict[Hashable, float]] = {}

    def hold(self, seconds: float) -> None:
        """GitHub's rate limit refused a request: no thread sends one for so long."""
        with self._lock:
            self._held_until = max(self._held_until, time.monotonic() + seconds)

    def wait_while_held(self, longest_s: float) -> None:
        """Return when requests may be sent again; ForgeError when that is further off than `longest_s`."""
        held_until = self._held_until
        left_s = held_until - time.monotonic()
        if left_s > longest_s:
            raise ForgeError(f"GitHub's rate limit is reached: wait {left_s:.0f} s", passing=True, wait_s=left_s)
        if left_s > 0:
            self._sleep(left_s)
            with self._lock:
                self._held_until = 0.0 if self._held_until == held_until else self._held_until

    def wait(self, longest_s: float, lane: Lane = Lane.NORMAL, *, what: Hashable) -> None:
        """Return when one more of a lane may be sent; ForgeError when that is further off than `longest_s`.

        The error says when to come back: each that is sent away has a time of its own, in the order in which they came,
        for all at once would do their work again where one may write. `what` names the write: by it a write that comes
        back is known, and keeps its place before those that came later. A write that never comes back delays the others
        by one place.
        """
        with self._lock:
            now = time.monotonic()
            away = {held: back for held, back in self._away.get(lane, {}).items() if back > now - _LATE_S}
            self._away[lane] = away
            ahead = [max(back, now) for _, back in takewhile(lambda item: item[0] != what, away.items())]
            due = self._due(sorted((*self._sent, *ahead)), lane, now)
            if due - now > longest_s:
                away[what] = min(due, self._due(self._sent, lane, now) + self._longest_span)
                raise ForgeError("We write to GitHub too often", passing=True, wait_s=away[what] - now)
            away.pop(what, None)
            # A more important one may come before those that wait already.
            bisect.insort(self._sent, due)
            del self._sent[: max(0, len(self._sent) - self._kept)]
        if due > now:
            self._sleep(due - now)

    def _due(self, sent: Sequence[float], lane: Lane, now: float) -> float:
        """When one more of a lane may be sent after those that were sent at these times, which ascend."""
        shares = [(lane.of(number), span) for number, span in self._limits]
        return max([now, *(sent[-number] + span for number, span in shares if len(sent) >= number)])
