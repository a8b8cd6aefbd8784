"""When a request is repeated and how long we wait; no other module retries.

PyGithub's own retries are off, because they also repeat requests that create something: when the answer is lost, a
comment would be written twice.
"""

import errno
import math
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TypeVar

from github.GithubException import GithubException
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import ConnectTimeout, ProxyError, RequestException
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, stop_before_delay
from tenacity.wait import wait_random_exponential

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
