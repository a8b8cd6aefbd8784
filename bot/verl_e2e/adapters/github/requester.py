"""One request to GitHub: counted, rate limited, never redirected, and repeated only when that is safe.

No other module repeats a request.
"""

import bisect
import errno
import json
import math
import os
import re
import socket
import ssl
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum
from fractions import Fraction
from itertools import takewhile
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import requests
from pydantic import BaseModel, ConfigDict, ValidationError
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import ConnectTimeout, ProxyError, RequestException
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, stop_before_delay
from tenacity.wait import wait_random_exponential

from verl_e2e.core.pulls.figures import API_RESOURCES, OTHER, ApiBudget
from verl_e2e.git.repository import SizedCache
from verl_e2e.ports import CREDENTIAL_FIX, NETWORK_FIX, ForgeError, UncertainError

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)


class Answer(BaseModel):
    """A part of what GitHub answers: only the keys that we use, each with its type. Others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Named(Answer):
    """Something with a name."""

    name: str


class User(Answer):
    """A person, or an App's own account (`type` is then Bot); the login is empty where GitHub knows no account."""

    login: str = ""
    type: str = "User"


class IdAnswer(Answer):
    """Something that has an id: an App, or what was made."""

    id: int


def read(model: type[_M], data: object, what: str) -> _M:
    """The model of what answers a request; ForgeError when GitHub answered something else."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ForgeError(
            f"GitHub's answer to {what} has another form than documented: {place}: {first['msg']}"
        ) from error


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


class StatusError(Exception):
    """GitHub's answer to one request was a refusal."""

    def __init__(self, status: int, headers: Mapping[str, str], message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status, self.headers, self.message = status, headers, message


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
    if not isinstance(error, StatusError):
        return None
    if is_limit(error.status, error.headers, error.message):
        return Trouble.LIMITED
    return Trouble.UNCERTAIN if error.status >= 500 else Trouble.FINAL


def named_wait_s(error: BaseException) -> float | None:
    """The wait that GitHub names in a refusal, in seconds by GitHub's own clock; None where it names none."""
    if not isinstance(error, StatusError):
        return None
    headers = error.headers
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


def persist(attempt: Callable[[], _T], *, again: frozenset[Trouble], retry_policy: RetryPolicy) -> _T:
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


def once(create: Callable[[], _T], find: Callable[[], _T | None], *, retry_policy: RetryPolicy) -> _T:
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
    if isinstance(error, StatusError) and trouble is Trouble.FINAL:
        text = f"{error.status} {error.message}".rstrip()
        missing = _permission(error, what)
        fix = f"; our App does not have the permission {missing}: {_FIX}" if missing else ""
        fix = f"; {CREDENTIAL_FIX}" if error.status == _UNAUTHORIZED else fix
        return RefusedError(
            f"GitHub refused: {what}: {text}{fix}", status=error.status, permission=missing, answer=text
        )
    if why := _no_connection(error):
        message = f"GitHub cannot be reached from this machine: {what}: {why}; {NETWORK_FIX}"
        return ForgeError(message, passing=True, unreached=why)
    kind = f"status {error.status}" if isinstance(error, StatusError) else type(error).__name__
    return ForgeError(f"GitHub did not answer: {what}: {kind}", passing=True)


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


def _permission(error: StatusError, what: str) -> str:
    """The permission that our App does not have, `NAME: ACCESS`; empty when GitHub refused for another reason."""
    if error.status != 403 or "not accessible by" not in error.message.lower():
        return ""
    # GitHub names those that would do, several with a semicolon between.
    named = str(error.headers.get("x-accepted-github-permissions", "")).partition(";")[0]
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
    if not isinstance(error, StatusError) or trouble_of(error) is not Trouble.LIMITED:
        return 0.0
    headers = error.headers
    used_up = headers.get("x-ratelimit-remaining") == "0"
    of_one = used_up and headers.get("x-ratelimit-resource", _CORE) != _CORE
    return 0.0 if of_one or "retry-after" in headers else named_wait_s(error) or 0.0


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


class AnswerKind(StrEnum):
    """How a request was answered."""

    OK = "ok"
    MOVED = "moved"
    NOT_MODIFIED = "not_modified"
    REFUSED = "refused"
    LIMITED = "limited"
    FAILED = "failed"
    NONE = "none"


class Calls:
    """The requests that ended, by verb and answer; shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_answer: Counter[tuple[str, str]] = Counter()
        self._budgets: dict[tuple[str, str], ApiBudget] = {}
        self._last_answer_s = -math.inf
        self.booted_s: float | None = None
        """When our monotonic clock began by GitHub's own, in seconds since 1970; None before it said a time."""

    def answered(
        self, owner: str, verb: str, status: int, headers: Mapping[str, str], *, limited: bool = False
    ) -> None:
        """One was answered; `owner` is the account whose installation sent it, empty for the App itself.

        `limited` says whether a rate limit refused it.
        """
        kind = AnswerKind.LIMITED if limited else AnswerKind.FAILED
        if status < 500 and not limited:
            kind = AnswerKind.REFUSED if status >= 400 else AnswerKind.MOVED if status >= 300 else AnswerKind.OK
            kind = AnswerKind.NOT_MODIFIED if status == 304 else kind
        # What the headers say of the rate limit, where they do and in numbers.
        texts = [headers.get(f"x-ratelimit-{name}", "") for name in ("limit", "remaining", "used", "reset")]
        named = all(text.isascii() and text.isdigit() and len(text) <= _DIGITS for text in texts)
        resource = headers.get("x-ratelimit-resource", "")
        resource = resource if resource in API_RESOURCES else OTHER
        theirs = server_time(headers)
        with self._lock:
            if theirs is not None:
                self.booted_s = theirs.timestamp() - time.monotonic()
            if status < _REFUSALS:
                self._last_answer_s = time.monotonic()
            self._by_answer[verb, kind] += 1
            if named:
                limit, remaining, used, resets_s = map(int, texts)
                self._budgets[owner, resource] = ApiBudget(resource, limit, remaining, used, float(resets_s))

    def silent_s(self) -> float:
        """For how long GitHub has not given what it was asked for."""
        with self._lock:
            return time.monotonic() - self._last_answer_s

    def unanswered(self, verb: str) -> None:
        """One was sent, and no answer came."""
        with self._lock:
            self._by_answer[verb, AnswerKind.NONE] += 1

    def by_answer(self) -> dict[tuple[str, str], int]:
        """The numbers so far of those that ended, by verb and answer."""
        with self._lock:
            return dict(self._by_answer)

    def budgets(self, now_s: float) -> tuple[ApiBudget, ...]:
        """What GitHub last said that it grants, for windows that have not ended by now."""
        with self._lock:
            return tuple(budget for budget in self._budgets.values() if budget.resets_s > now_s)


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


USER_AGENT = "verl-e2e"
PAGE = 100
# Cancelling a run and creating a check run go first.
_URGENT = re.compile(r"/actions/runs/\d+/(force-)?cancel$|/check-runs$")
# Of what a refusal says.
_MOST_SAID = 64 * 1024
# At 1,000 open pull requests about 5,000 answers of up to 30 KB, which shrink to a tenth.
MOST_KNOWN_BYTES, LARGEST_PART = 32 * 1024 * 1024, 16
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


class GithubIdentity(Protocol):
    """Who asks; `place` is a repository, an organisation with a slash, or empty for the App itself."""

    def token(self, place: str) -> str:
        """A token that stays valid for some minutes, empty for no one."""

    def authorization(self, place: str) -> str:
        """The header of a request, empty for no one."""

    def renew(self, place: str) -> bool:
        """GitHub refused the last one: take another the next time; whether that may help."""


@dataclass(frozen=True, slots=True)
class Connection:
    """What every request of one identity shares."""

    api_url: str
    identity: GithubIdentity
    calls: Calls
    # What GitHub may confirm, by the address that was asked.
    known: SizedCache[str, KnownAnswer]
    http: requests.Session
    retry_policy: RetryPolicy
    timeout_s: int
    lane: Lane = Lane.NORMAL


class ApiRequester:
    """Requests as one identity about one place. Threads may share it."""

    def __init__(self, connection: Connection, place: str, pace: RateLimiter) -> None:
        self.connection, self.place, self.pace = connection, place, pace

    def exchange(
        self, verb: str, url: str, headers: Mapping[str, str], *, body: Any = None, stream: bool = False
    ) -> requests.Response:
        """Send one request once. StatusError for a refusal, and for an answer that is not ready yet.

        A redirect is not followed: the query would be lost, and a redirected write is not done.
        """
        connection, calls = self.connection, self.connection.calls
        given = {"User-Agent": USER_AGENT, "Accept": "application/vnd.github+json", **headers}
        try:
            answer = connection.http.request(
                verb, url, json=body, headers=given, timeout=connection.timeout_s, allow_redirects=False, stream=stream
            )
        except RequestException:
            calls.unanswered(verb)
            raise
        status, said = answer.status_code, ""
        if status >= _REFUSALS:
            with suppress(ValueError):
                # Empty where it is not what GitHub sends.
                document = json.loads(next(answer.iter_content(_MOST_SAID), b""))
                message = document.get("message") if isinstance(document, dict) else None
                said = message[:500] if isinstance(message, str) else ""
            answer.close()
        limited = is_limit(status, answer.headers, said)
        calls.answered(self.place.partition("/")[0], verb, status, answer.headers, limited=limited)
        if status >= _REFUSALS:
            raise StatusError(status, answer.headers, said)
        if status == 202 and verb == "GET":
            raise StatusError(503, answer.headers, "not ready yet")
        return answer

    def send(
        self, verb: str, path: str, *, parameters: Mapping[str, Any] | None = None, body: Any = None
    ) -> tuple[Mapping[str, str], Any]:
        """Send a request until it is answered or the retry policy gives up; the answer's headers and its JSON.

        Raises ForgeError; UncertainError when it may have succeeded and must not be repeated; RefusedError on a final
        status.
        """
        retry_policy, may_repeat = self.connection.retry_policy, repeatable(verb, path, body)

        def attempt() -> tuple[Mapping[str, str], Any]:
            self.pace.wait_while_held(retry_policy.total_s)
            if verb != "GET" and not path.endswith("/access_tokens"):
                urgent = verb == "POST" and bool(_URGENT.search(path))
                lane = Lane.URGENT if urgent else self.connection.lane
                # By this a write is known when it is attempted again later: its text may be another by then.
                fields = body if isinstance(body, dict) else {}
                known_by = verb, path, *(str(fields.get(name, "")) for name in ("head_sha", "name", "inputs"))
                self.pace.wait(retry_policy.total_s, lane, what=known_by)
            try:
                try:
                    return self._ask_once(verb, path, parameters, body)
                except StatusError as error:
                    # What GitHub says of a JWT that it refuses is a sentence of its own for each reason.
                    if error.status != _UNAUTHORIZED or not self.connection.identity.renew(self.place):
                        raise
                    return self._ask_once(verb, path, parameters, body)
            except StatusError as error:
                # The others stop as well: who goes on after a refusal is blocked for longer.
                self.pace.hold(holds_all_s(error))
                raise

        again = frozenset({Trouble.LIMITED, Trouble.UNCERTAIN} if may_repeat else {Trouble.LIMITED})
        try:
            return persist(attempt, again=again, retry_policy=retry_policy)
        except (StatusError, RequestException, ValueError) as error:
            if trouble_of(error) is Trouble.UNCERTAIN and not may_repeat:
                raise UncertainError(
                    f"GitHub did not confirm the request, which may have succeeded: {verb} {path}"
                ) from error
            raise as_forge_error(error, f"{verb} {path}") from error

    def ask(self, verb: str, path: str, *, parameters: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """The JSON that answers a request, None for an empty answer."""
        return self.send(verb, path, parameters=parameters, body=body)[1]

    def authorization(self) -> dict[str, str]:
        """The header that says who asks; empty for no one."""
        who = self.connection.identity.authorization(self.place)
        return {"Authorization": who} if who else {}

    def entries(self, path: str, item: str = "", **parameters: Any) -> Iterator[Any]:
        """All entries of a list, page by page; `item` names the key that holds them. ForgeError for what is no list."""
        following = {"per_page": PAGE, **parameters}
        while path:
            headers, data = self.send("GET", path, parameters=following)
            page = data.get(item, []) if item and isinstance(data, dict) else data or []
            if not isinstance(page, list):
                raise ForgeError(f"GitHub's answer to {path} has another form than documented: it is not a list")
            yield from page
            path, following = self.next_page(headers), {}

    def read(self, model: type[_M], path: str, *, parameters: Mapping[str, Any] | None = None) -> _M:
        """What lies at a path, as its model; RefusedError where there is nothing."""
        return read(model, self.ask("GET", path, parameters=parameters), path)

    def find(self, model: type[_M], path: str, *, parameters: Mapping[str, Any] | None = None) -> _M | None:
        """What lies at a path, as its model; None where there is nothing, or nothing that we may see."""
        try:
            return self.read(model, path, parameters=parameters)
        except RefusedError as error:
            if error.absent:
                return None
            raise

    def read_all(self, model: type[_M], path: str, item: str = "", **parameters: Any) -> list[_M]:
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

    def next_page(self, headers: Mapping[str, str]) -> str:
        """The path of a list's next page, empty at its end: whatever a list says, our token goes nowhere else."""
        links = requests.utils.parse_header_links(headers.get("link", ""))
        url = next((link["url"] for link in links if link.get("rel") == "next"), "")
        parts = urlsplit(url)
        prefix = urlsplit(self.connection.api_url).path
        path = parts.path.removeprefix(prefix) if parts.path.startswith(f"{prefix}/") else parts.path
        return f"{path}?{parts.query}" if parts.query else path

    def _ask_once(
        self, verb: str, path: str, parameters: Mapping[str, Any] | None, body: Any
    ) -> tuple[Mapping[str, str], Any]:
        """What GitHub answers; what it confirms by 304 is the answer that it gave before."""
        url, kept = f"{self.connection.api_url}{path}", self.connection.known
        address = str(requests.Request(verb, url, params=parameters).prepare().url)
        known = kept.get(address) if verb == "GET" else None
        asked = self.authorization() | ({"If-None-Match": known.etag} if known else {})
        answer = self.exchange(verb, address, asked, body=body)
        if answer.status_code == 304 and known:
            return {"link": known.link}, _document(zlib.decompress(known.packed))
        if answer.status_code >= 300:
            place = answer.headers.get("location", "another place")
            raise StatusError(answer.status_code, answer.headers, f"moved to {place}")
        found, etag = _document(answer.content), answer.headers.get("etag")
        if verb == "GET" and answer.status_code == 200 and etag:
            link, packed = answer.headers.get("link", ""), zlib.compress(answer.content, 1)
            size = _OBJECTS + len(address) + len(etag) + len(link) + len(packed)
            kept.put(address, KnownAnswer(etag, link, packed), size)
        return answer.headers, found


def _document(content: bytes) -> Any:
    """The JSON of an answer; ValueError for one that was cut short. Whatever else it is has no form of ours."""
    try:
        return json.loads(content) if content else None
    except ValueError:
        if content.lstrip()[:1] in (b"{", b"["):
            raise
        return content.decode("utf-8", "replace")
