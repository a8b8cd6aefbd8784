"""One request to GitHub: counted, rate limited, never redirected, and repeated only when that is safe.

No other module repeats a request.
"""

import bisect
import errno
import math
import os
import re
import socket
import ssl
import threading
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum
from fractions import Fraction
from itertools import takewhile
from typing import Any, TypeVar
from urllib.parse import urlsplit

from github.Auth import Auth
from github.GithubException import GithubException
from github.Requester import (
    HTTPRequestsConnectionClass,
    HTTPSRequestsConnectionClass,
    Requester,
    RequestsResponse,
)
from pydantic import BaseModel
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import ConnectTimeout, ProxyError, RequestException
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, stop_before_delay
from tenacity.wait import wait_random_exponential

from verl_e2e.adapters.github.answers import read
from verl_e2e.core.pulls.figures import API_RESOURCES, OTHER, ApiBudget
from verl_e2e.ports import CREDENTIAL_FIX, NETWORK_FIX, ForgeError, UncertainError

T = TypeVar("T")

# What belongs to which permission, where GitHub does not say so itself.
_PERMISSIONS = (
    ("/check-runs", "checks"),
    ("/check-suites", "checks"),
    ("/actions/runners", "administration"),
    ("/attestations/", "attestations"),
    ("/actions/", "actions"),
    ("/issues/", "issues"),
    ("/contents/", "contents"),
    ("/pulls", "pull_requests"),
    ("/commits/", "contents"),
)
_FIX = (
    "set it on the App's page under Permissions & events, then accept the change where the App is installed "
    "(Settings > GitHub Apps > Configure > Review request)"
)

# What GitHub calls most of its API in its rate limits.
_CORE = "core"
# As GitHub and GitHub Enterprise Server say it.
_LIMIT_WORDS = ("rate limit", "abuse detection")
_UNAUTHORIZED = 401
# GitHub asks for a minute where it names no time itself.
UNNAMED_WAIT_S = 60.0
_LONGEST_NAMED_WAIT_S = 24 * 3600.0
_ATTEMPTS = 8
# With these the system says that no connection came about; a connection that broke off later has others.
_NOT_CONNECTED = frozenset(
    {errno.ECONNREFUSED, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL}
)
_REPEATABLE_VERBS = frozenset({"GET", "HEAD", "PUT", "DELETE", "PATCH"})
# Asking for these twice is the same as asking once.
_REPEATABLE_POSTS = re.compile(
    r"/access_tokens$|/issues/comments/\d+/reactions$|/actions/runs/\d+/(force-)?cancel$"
    r"|/app/hook/deliveries/\d+/attempts$|/graphql$"
)


class RefusedError(ForgeError):
    """GitHub answered with a `status` that asking again does not change.

    It is absent where GitHub says that there is no such thing, or none that we may see.
    """

    def __init__(self, message: str, *, status: int, permission: str = "", answer: str = "") -> None:
        absent, unknown = status in (404, 410), status == _UNAUTHORIZED
        super().__init__(message, absent=absent, permission=permission, answer=answer, unknown_to_it=unknown)
        self.status = status


class Trouble(StrEnum):
    """What a failed request means."""

    LIMITED = "refused by a rate limit; nothing was done"
    UNCERTAIN = "may have been done"
    FINAL = "refused for good"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one request may take, and the waits between its attempts when GitHub does not name one."""

    # The time for all attempts together.
    total_s: float = 120.0
    # How long GitHub's lists may miss something new; only after this time it may be created again.
    lag_s: float = 30.0
    # The waits grow from this one to the longest one.
    first_wait_s: float = 1.0
    longest_wait_s: float = 20.0
    # How to wait some seconds.
    sleep: Callable[[float], None] = time.sleep


def repeatable(verb: str, path: str, body: object) -> bool:
    """Whether sending a request twice leaves GitHub as sending it once does."""
    if verb == "PATCH" and isinstance(body, dict) and (body.get("output") or {}).get("annotations"):
        return False  # annotations are appended
    return verb in _REPEATABLE_VERBS or bool(_REPEATABLE_POSTS.search(path))


def trouble_of(error: BaseException) -> Trouble | None:
    """The kind of failure; None for an error that is not a failed request."""
    if isinstance(error, RequestException):
        return Trouble.UNCERTAIN
    if isinstance(error, ValueError):
        return Trouble.UNCERTAIN  # an answer cut short
    if not isinstance(error, GithubException):
        return None
    if is_limit(error.status, error.headers or {}, _message(error)):
        return Trouble.LIMITED
    return Trouble.UNCERTAIN if error.status >= 500 else Trouble.FINAL


def named_wait_s(error: BaseException) -> float | None:
    """The wait that GitHub names in a refusal, in seconds by GitHub's own clock; None where it names none."""
    if not isinstance(error, GithubException):
        return None
    headers = error.headers or {}
    if (seconds := _number(headers.get("retry-after"))) is not None:
        return min(max(seconds, 0.0), _LONGEST_NAMED_WAIT_S)
    if headers.get("x-ratelimit-remaining") == "0" and (reset := _number(headers.get("x-ratelimit-reset"))) is not None:
        now = server_time(headers)
        return min(max(reset - now.timestamp(), 1.0), _LONGEST_NAMED_WAIT_S) if now else UNNAMED_WAIT_S
    return UNNAMED_WAIT_S if trouble_of(error) is Trouble.LIMITED else None


def server_time(headers: Mapping[str, str]) -> datetime | None:
    """GitHub's clock when it answered, so that ours need not be right."""
    try:
        return parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError):
        return None


def persist(attempt: Callable[[], T], *, again: frozenset[Trouble], retry_policy: RetryPolicy) -> T:
    """Attempt until it succeeds, fails with a trouble outside `again`, or its time ends; the last error is raised."""
    pause = wait_random_exponential(multiplier=retry_policy.first_wait_s, max=retry_policy.longest_wait_s)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        named = named_wait_s(error) if error else None
        return pause(state) if named is None else named

    retrying = Retrying(
        retry=retry_if_exception(lambda error: trouble_of(error) in again),
        wait=wait,
        stop=stop_before_delay(retry_policy.total_s) | stop_after_attempt(_ATTEMPTS),
        sleep=retry_policy.sleep,
        reraise=True,
    )
    return retrying(attempt)


def once(create: Callable[[], T], find: Callable[[], T | None], *, retry_policy: RetryPolicy) -> T:
    """Create something once: after an attempt that may have succeeded, look for it before trying again.

    It is tried again when a list that lags must show it by now; UncertainError when its time ends before that.
    """
    for number in range(_ATTEMPTS):
        try:
            return create()
        except UncertainError:
            waited_s, pause_s = 0.0, retry_policy.first_wait_s / 2
            while waited_s < retry_policy.lag_s:
                pause_s = min(2 * pause_s, retry_policy.longest_wait_s)
                if number == _ATTEMPTS - 1 or waited_s + pause_s > retry_policy.total_s:
                    raise
                retry_policy.sleep(pause_s)
                waited_s += pause_s
                if (found := find()) is not None:
                    return found
    raise AssertionError


def as_forge_error(error: Exception, what: str) -> ForgeError:
    """The port's error for a failed request; `what` names the request."""
    trouble = trouble_of(error)
    if trouble is Trouble.LIMITED:
        wait_s = named_wait_s(error) or UNNAMED_WAIT_S
        return ForgeError(f"GitHub's rate limit is reached: {what}: wait {wait_s:.0f} s", passing=True, wait_s=wait_s)
    if isinstance(error, GithubException) and trouble is Trouble.FINAL:
        text = f"{error.status} {_message(error)}".rstrip()
        missing = _permission(error, what)
        fix = f"; our App does not have the permission {missing}: {_FIX}" if missing else ""
        fix = f"; {CREDENTIAL_FIX}" if error.status == _UNAUTHORIZED else fix
        return RefusedError(
            f"GitHub refused: {what}: {text}{fix}", status=error.status, permission=missing, answer=text
        )
    if why := _no_connection(error):
        message = f"GitHub cannot be reached from this machine: {what}: {why}; {NETWORK_FIX}"
        return ForgeError(message, passing=True, unreached=why)
    return ForgeError(f"GitHub did not answer: {what}: {_kind_of(error)}", passing=True)


def _no_connection(error: Exception) -> str:
    """Why there was no connection, in the words of the system; empty for any other error."""
    if isinstance(error, ConnectTimeout):
        return os.strerror(errno.ETIMEDOUT)
    cause: BaseException | None = error if isinstance(error, RequestsConnectionError) else None
    while cause is not None:
        refused = isinstance(cause, (socket.gaierror, ssl.SSLError)) or getattr(cause, "errno", None) in _NOT_CONNECTED
        if refused and isinstance(cause, OSError):
            return cause.strerror or type(cause).__name__
        cause = cause.__cause__ or cause.__context__
    return "no answer of the proxy" if isinstance(error, ProxyError) else ""


def _permission(error: GithubException, what: str) -> str:
    """The permission that our App does not have, `NAME: ACCESS`; empty when GitHub refused for another reason."""
    if error.status != 403 or "not accessible by" not in _message(error).lower():
        return ""
    # GitHub names those that would do, several with a semicolon between.
    named = str((error.headers or {}).get("x-accepted-github-permissions", "")).partition(";")[0]
    if found := re.fullmatch(r"\s*([a-z_]+)=(read|write|admin)\s*", named.partition(",")[0]):
        return f"{found[1]}: {found[2]}"
    access = "read" if what.startswith("GET ") else "write"
    return next((f"{name}: {access}" for part, name in _PERMISSIONS if part in what), "")


def is_limit(status: int, headers: Mapping[str, str], message: str) -> bool:
    """Whether an answer is a refusal by a rate limit; a secondary one may say so in its message alone."""
    if status != 403:
        return status == 429
    named = "retry-after" in headers or headers.get("x-ratelimit-remaining") == "0"
    return named or any(words in message.lower() for words in _LIMIT_WORDS)


def holds_all_s(error: BaseException) -> float:
    """For how long a failure asks us to send nothing at all, 0 where it does not.

    Retry-After is about one request, and the limit of one resource, as that of searches, is not that of the others.
    """
    if not isinstance(error, GithubException) or trouble_of(error) is not Trouble.LIMITED:
        return 0.0
    headers = error.headers or {}
    used_up = headers.get("x-ratelimit-remaining") == "0"
    of_one = used_up and headers.get("x-ratelimit-resource", _CORE) != _CORE
    return 0.0 if of_one or "retry-after" in headers else named_wait_s(error) or 0.0


def _message(error: GithubException) -> str:
    data = error.data
    text = data.get("message") if isinstance(data, dict) else error.message
    return str(text or "")[:500]


def _kind_of(error: Exception) -> str:
    return f"status {error.status}" if isinstance(error, GithubException) else type(error).__name__


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


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


# At 1,000 open pull requests about 5,000 answers of up to 30 KB, which shrink to a tenth.
_MOST_BYTES = 32 * 1024 * 1024
# One answer may take this part, so that none drives all others out.
_LARGEST_PART = 16
# What Python's objects around one answer take.
_OBJECTS = 600


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """An answer that GitHub may confirm."""

    # GitHub's tag of it.
    etag: str
    # The `link` header, which names the next page; empty where there is none.
    link: str
    # The body, compressed.
    packed: bytes

    @property
    def body(self) -> str:
        """The body as it came."""
        return zlib.decompress(self.packed).decode("utf-8", "surrogatepass")


class KnownAnswers:
    """The latest answers by the address that was asked, at most `most_bytes` of them together; shared by threads."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, KnownAnswer] = OrderedDict()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """How much memory they take, about."""
        return self._bytes

    def find(self, address: str) -> KnownAnswer | None:
        """The answer that was kept for an address."""
        with self._lock:
            found = self._answers.get(address)
            if found is not None:
                self._answers.move_to_end(address)
            return found

    def keep(self, address: str, *, etag: str, link: str, body: str) -> None:
        """Keep an answer in the place of the one before; the longest unused ones make way."""
        packed = zlib.compress(body.encode("utf-8", "surrogatepass"), 1)
        answer = KnownAnswer(etag, link, packed)
        with self._lock:
            self._remove(address)
            if _size(address, answer) * _LARGEST_PART > self._most:
                return
            self._answers[address] = answer
            self._bytes += _size(address, answer)
            while self._bytes > self._most:
                self._remove(next(iter(self._answers)))

    def _remove(self, address: str) -> None:
        found = self._answers.pop(address, None)
        if found is not None:
            self._bytes -= _size(address, found)


def _size(address: str, answer: KnownAnswer) -> int:
    return _OBJECTS + len(address) + len(answer.etag) + len(answer.link) + len(answer.packed)


M = TypeVar("M", bound=BaseModel)
USER_AGENT = "verl-e2e"
PAGE = 100
# Cancelling a run and creating a check run go first.
_URGENT = re.compile(r"/actions/runs/\d+/(force-)?cancel$|/check-runs$")


class CountedConnection:
    """A PyGithub connection that counts requests and rejects redirects.

    PyGithub itself follows a redirect without the query, so it could read the content of another revision. For a
    redirected write it takes the redirect page for a success.
    """

    def __init__(
        self, inner: HTTPRequestsConnectionClass | HTTPSRequestsConnectionClass, calls: Calls, owner: str
    ) -> None:
        self._inner = inner
        self._calls, self._owner = calls, owner

    def request(self, verb: str, url: str, body: Any, headers: dict[str, str], stream: object = None) -> None:
        """Prepare the request that `getresponse` sends."""
        del stream
        self._inner.request(verb, url, body, headers)

    def getresponse(self) -> RequestsResponse:
        """Send it once."""
        self._calls.count(self._inner.verb)
        try:
            response = self._inner.getresponse()
        except RequestException:
            self._calls.unanswered(self._inner.verb)
            raise
        limited = is_limit(response.status, response.headers, response.read() if response.status == 403 else "")
        self._calls.answered(self._owner, self._inner.verb, response.status, response.headers, limited=limited)
        if 300 <= response.status < 400 and response.status != 304:
            place = response.headers.get("location", "another place")
            raise GithubException(response.status, None, dict(response.headers), f"moved to {place}")
        if response.status == 202 and self._inner.verb == "GET":
            # PyGithub would wait without an end.
            raise GithubException(503, None, dict(response.headers), "not ready yet")
        return response

    def close(self) -> None:
        """Close it."""
        self._inner.close()


class ApiRequester(Requester):
    """PyGithub's requester with our rules. Use one for each thread: PyGithub's connections cannot be shared."""

    def __init__(
        self,
        auth: Auth | None,
        api_url: str,
        *,
        calls: Calls,
        limiter: RateLimiter,
        retry_policy: RetryPolicy,
        timeout_s: int,
        lane: Lane = Lane.NORMAL,
        known: KnownAnswers | None = None,
        owner: str = "",
    ) -> None:
        super().__init__(
            auth=auth,
            base_url=api_url,
            timeout=timeout_s,
            user_agent=USER_AGENT,
            per_page=PAGE,
            verify=True,
            retry=None,
            pool_size=None,
            seconds_between_requests=None,
            seconds_between_writes=None,
            lazy=True,
        )
        parts = urlsplit(api_url)
        kind = HTTPSRequestsConnectionClass if parts.scheme == "https" else HTTPRequestsConnectionClass
        self._connection = CountedConnection(kind(str(parts.hostname), parts.port, timeout=timeout_s), calls, owner)
        self.pace = limiter
        self._lane = lane
        self._calls = calls
        self._known = known if known is not None else KnownAnswers()
        self.retry_policy = retry_policy

    def close(self) -> None:
        """Close the connections."""
        super().close()
        self._connection.close()

    def requestJson(  # noqa: N802 - PyGithub's name
        self,
        verb: str,
        url: str,
        parameters: dict[str, Any] | None = None,
        headers: dict[str, Any] | None = None,
        input: Any | None = None,  # noqa: A002 - PyGithub's name
        cnx: Any = None,  # noqa: ARG002
        follow_302_redirect: bool = False,
    ) -> tuple[int, dict[str, Any], str]:
        """Send one request once, over our connection; what GitHub confirms by 304 is the answer that it gave before."""
        address = self.add_parameters_to_url(url, dict(parameters or {}))
        known = self._known.find(address) if verb == "GET" else None
        asked = dict(headers or {}) | ({"If-None-Match": known.etag} if known is not None else {})
        status, answered, body = super().requestJson(
            verb,
            url,
            parameters,
            asked,
            input,
            self._connection,  # type: ignore[arg-type]
            follow_302_redirect,
        )
        if status == 304 and known is not None:
            return 200, {**answered, "link": known.link}, known.body
        if verb == "GET" and status == 200 and answered.get("etag"):
            self._known.keep(address, etag=answered["etag"], link=answered.get("link", ""), body=body)
        return status, answered, body

    def requestJsonAndCheck(  # noqa: N802 - PyGithub's name
        self,
        verb: str,
        url: str,
        parameters: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        input: Any | None = None,  # noqa: A002 - PyGithub's name
        follow_302_redirect: bool = False,
    ) -> tuple[dict[str, Any], Any]:
        """Send a request until it is answered or the retry policy gives up.

        Raises ForgeError; UncertainError when it may have succeeded and must not be repeated; RefusedError on a final
        status.
        """
        path = self.path_of(url)
        may_repeat = repeatable(verb, path, input)

        def attempt() -> tuple[dict[str, Any], Any]:
            self.pace.wait_while_held(self.retry_policy.total_s)
            if verb != "GET" and not path.endswith("/access_tokens"):
                urgent = verb == "POST" and bool(_URGENT.search(path))
                lane = Lane.URGENT if urgent else self._lane
                self.pace.wait(self.retry_policy.total_s, lane, what=_identity(verb, path, input))
            ask = super(ApiRequester, self).requestJsonAndCheck
            given = verb, path, dict(parameters or {}), dict(headers or {}), input, follow_302_redirect
            try:
                try:
                    return ask(*given)
                except GithubException as error:
                    # What GitHub says of a JWT that it refuses is a sentence of its own for each reason.
                    if error.status != _UNAUTHORIZED or not self._renew():
                        raise
                    return ask(*given)
            except GithubException as error:
                # The others stop as well: who goes on after a refusal is blocked for longer.
                self.pace.hold(holds_all_s(error))
                raise

        again = frozenset({Trouble.LIMITED, Trouble.UNCERTAIN} if may_repeat else {Trouble.LIMITED})
        try:
            return persist(attempt, again=again, retry_policy=self.retry_policy)
        except (GithubException, RequestException, ValueError) as error:
            if trouble_of(error) is Trouble.UNCERTAIN and not may_repeat:
                raise UncertainError(
                    f"GitHub did not confirm the request, which may have succeeded: {verb} {path}"
                ) from error
            raise as_forge_error(error, f"{verb} {path}") from error

    @classmethod
    def createException(  # noqa: N802 - PyGithub's name
        cls, status: int, headers: dict[str, Any], output: Any
    ) -> GithubException:
        """The error for a status, also when what came with it is not what GitHub sends."""
        message = output.get("message") if isinstance(output, dict) else None
        return super().createException(status, headers, {"message": message if isinstance(message, str) else ""})

    def ask(self, verb: str, path: str, *, parameters: dict[str, Any] | None = None, body: Any | None = None) -> Any:
        """The JSON that answers a request.

        PyGithub's own objects are not used for it: they send further requests for keys that an answer does not have.
        """
        return self.requestJsonAndCheck(verb, path, parameters, None, body)[1]

    def entries(self, path: str, item: str = "", **parameters: Any) -> Iterator[Any]:
        """All entries of a list, page by page; `item` names the key that holds them."""
        following = {"per_page": PAGE, **parameters}
        while True:
            headers, data = self.requestJsonAndCheck("GET", path, following)
            yield from (data or {}).get(item, []) if item else data or []
            url = next_page(headers)
            if not url:
                return
            path, following = self.path_of(url), {}

    def read(self, model: type[M], path: str, *, parameters: dict[str, Any] | None = None) -> M:
        """What lies at a path, as its model; RefusedError where there is nothing."""
        return read(model, self.ask("GET", path, parameters=parameters), path)

    def find(self, model: type[M], path: str, *, parameters: dict[str, Any] | None = None) -> M | None:
        """What lies at a path, as its model; None where there is nothing, or nothing that we may see."""
        try:
            return self.read(model, path, parameters=parameters)
        except RefusedError as error:
            if error.absent:
                return None
            raise

    def read_all(self, model: type[M], path: str, item: str = "", **parameters: Any) -> list[M]:
        """All entries of a list, over all its pages, as their model; `item` names the key that holds them.

        A page of pull requests has several MB, so one is turned into models before the next is asked for.
        """
        return [read(model, entry, path) for entry in self.entries(path, item, **parameters)]

    def act(self, verb: str, path: str, body: Any | None = None) -> bool:
        """Change what may be gone by now; false when it is."""
        try:
            self.ask(verb, path, body=body)
        except RefusedError as error:
            if error.absent:
                return False
            raise
        return True

    def path_of(self, url: str) -> str:
        """An address of GitHub's API as a path below ours: whatever a list says, our token goes nowhere else."""
        if url.startswith("/"):
            return url
        parts = urlsplit(url)
        prefix = urlsplit(self.base_url).path.rstrip("/")
        path = parts.path.removeprefix(prefix) if parts.path.startswith(prefix + "/") else parts.path
        return f"{path}?{parts.query}" if parts.query else path

    def _renew(self) -> bool:
        renew = getattr(self.auth, "renew", None)
        return bool(renew and renew())


def _identity(verb: str, path: str, body: Any) -> tuple[str, ...]:
    """By what a write is known when it is attempted again later: its text may be another by then."""
    fields = body if isinstance(body, dict) else {}
    return verb, path, *(str(fields.get(name, "")) for name in ("head_sha", "name", "inputs"))


def next_page(headers: dict[str, Any]) -> str:
    """The address of a list's next page, empty at its end."""
    for link in str(headers.get("link", "")).split(","):
        url, _, kind = link.partition(";")
        if 'rel="next"' in kind:
            return url.strip().strip("<>")
    return ""
