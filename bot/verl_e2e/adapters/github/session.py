"""Our identity at GitHub, and the requesters: one for each thread and repository."""

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlsplit
from weakref import WeakSet

from github.Auth import AppAuth, Auth, Token

from verl_e2e.adapters.github.answers import InstallationAnswer, TokenAnswer, read
from verl_e2e.adapters.github.requester import (
    LIMITER,
    ApiRequester,
    Calls,
    KnownAnswers,
    Lane,
    RateLimiter,
    RefusedError,
    RetryPolicy,
    server_time,
)
from verl_e2e.ports import ForgeError

# docs/install.md says what the App does with each of them.
PERMISSIONS: Mapping[str, str] = {
    "actions": "write",
    "administration": "read",
    "attestations": "read",
    "checks": "write",
    "contents": "read",
    "issues": "write",
    "members": "read",
    "metadata": "read",
    "pull_requests": "write",
}
# What a token for an organisation may: look up teams, and see runners.
ORGANISATION: Mapping[str, str] = {"members": "read", "organization_self_hosted_runners": "read"}
_RENEWED_BEFORE_S = 300.0
_LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    renewed_at: float


class Tokens:
    """The current tokens, shared by threads."""

    def __init__(self, app: Callable[[], ApiRequester]) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._tokens: dict[str, _Token] = {}
        self._installations: dict[str, InstallationAnswer] = {}

    def token(self, place: str) -> str:
        """A token for the place that stays valid for some minutes; ForgeError where the App is not installed."""
        with self._lock_of(place):
            known = self._tokens.get(place)
            if known is None or time.monotonic() >= known.renewed_at:
                known = self._tokens[place] = self._ask(place)
            return known.text

    def forget(self, place: str) -> None:
        """Take a new token next time: this one was refused."""
        with self._lock_of(place):
            self._tokens.pop(place, None)
            self._installations.pop(place, None)

    def installation(self, place: str) -> InstallationAnswer | None:
        """The installation as GitHub has it now, None where there is none."""
        organisation, _, name = place.partition("/")
        path = f"/repos/{place}/installation" if name else f"/orgs/{organisation}/installation"
        return self._app().find(InstallationAnswer, path)

    def _ask(self, place: str) -> _Token:
        found = self._installations.get(place) or self.installation(place)
        if found is None:
            raise ForgeError(f"The App is not installed in {place}: install it there, then try again")
        self._installations[place] = found
        try:
            path = f"/app/installations/{found.id}/access_tokens"
            headers, data = self._app().requestJsonAndCheck("POST", path, input=_narrow(place, found))
        except RefusedError:
            self._installations.pop(place, None)
            raise
        answer = read(TokenAnswer, data, path)
        return _Token(answer.token, time.monotonic() + _lifetime_s(answer, headers) - _RENEWED_BEFORE_S)

    def _lock_of(self, place: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(place, threading.Lock())


class InstallationAuth(Auth):
    """Lets PyGithub act as our App in one place."""

    def __init__(self, tokens: Tokens, place: str) -> None:
        self._tokens = tokens
        self._place = place

    @property
    def token_type(self) -> str:
        """The word before the token."""
        return "token"

    @property
    def token(self) -> str:
        """A token that stays valid for some minutes."""
        return self._tokens.token(self._place)

    def authentication(self, headers: dict[str, Any]) -> None:
        """Write the token into a request's headers."""
        headers["Authorization"] = f"token {self.token}"

    def mask_authentication(self, headers: dict[str, Any]) -> None:
        """Take it out again, for a log."""
        headers["Authorization"] = "token (removed)"

    def renew(self) -> bool:
        """Take a new token next time; whether that may help."""
        self._tokens.forget(self._place)
        return True


def narrowed(granted: Mapping[str, str], needed: Mapping[str, str] = PERMISSIONS) -> dict[str, str]:
    """Of the permissions granted, those that we need and no more of each."""
    return {
        name: "read" if "read" in (access, granted[name]) else access
        for name, access in needed.items()
        if name in granted
    }


def _narrow(place: str, found: InstallationAnswer) -> dict[str, Any]:
    name = place.partition("/")[2]
    needed = PERMISSIONS if name else ORGANISATION
    permissions = narrowed(found.permissions, needed)
    if not permissions:
        # GitHub takes an empty list for all that there is.
        raise ForgeError(f"The App has none of the permissions that it needs in {place}: give it {', '.join(needed)}")
    return {"permissions": permissions} | ({"repositories": [name]} if name else {})


def checked_place(place: str) -> str:
    """The place, when nothing in it could lead elsewhere as part of a path; else ForgeError."""
    owner, slash, name = place.partition("/")
    plain = quote(owner + name, safe="") == owner + name
    if not slash or not owner or not plain or {owner, name} & {".", ".."}:
        raise ForgeError(f"{place!r} is not a repository: write owner/name")
    return place


def _lifetime_s(answer: TokenAnswer, headers: dict[str, str]) -> float:
    now = server_time(headers)
    return min((answer.expires_at - now).total_seconds(), _LONGEST_S) if now else _LONGEST_S


PUBLIC_API_URL = "https://api.github.com"
# GitHub ends a request after 10 s, so when ours times out, the request cannot take effect later.
TIMEOUT_S = 15
# GitHub's answers say for so long that it is there.
_ANSWERED_S = 60.0
# How long a JWT is valid, and how much earlier than now it says that it was made; GitHub takes ten minutes at most.
_VALID_S, _MADE_BEFORE_S = 300, 60
# An answer takes its time, and GitHub says the time in whole seconds.
_SAME_S = 5.0
# The place that stands for the App itself.
_APP = ""

log = logging.getLogger(__name__)


class GitHub:
    """Access to GitHub's API, created by `as_app`, `with_token` or `anonymously`. Threads may share it.

    `app_id` is that of the App whose comments and check runs are ours, None where it is unknown.
    """

    def __init__(
        self,
        auth_for: Callable[[str], Auth | None],
        *,
        api_url: str,
        app_id: int | None = None,
        retry_policy: RetryPolicy | None = None,
        limiter: tuple[tuple[int, float], ...] = LIMITER,
        timeout_s: int = TIMEOUT_S,
        tokens: Tokens | None = None,
    ) -> None:
        self.app_id = app_id
        self.api_url = checked_api_url(api_url)
        self.calls = Calls()
        self.known_answers = KnownAnswers()
        self.retry_policy = retry_policy or RetryPolicy()
        self.timeout_s = timeout_s
        self.tokens = tokens
        self._auth_for = auth_for
        self._lane = Lane.NORMAL
        self._pace_limits = limiter
        self._paces: dict[str, RateLimiter] = {}
        self._lock = threading.Lock()
        self._here = threading.local()
        self._requesters: WeakSet[ApiRequester] = WeakSet()

    def requester(self, place: str) -> ApiRequester:
        """This thread's requester for a repository, `owner/name`, or an organisation, `owner/`."""
        return self._requester(checked_place(place))

    def app(self) -> ApiRequester:
        """This thread's requester for the App itself."""
        return self._requester(_APP)

    def token(self, repository: str) -> str:
        """A token for the repository, as git wants it for a password; empty for no one."""
        auth = self.requester(repository).auth
        return auth.token if auth else ""

    def trouble(self) -> str:
        """Why the App cannot work with GitHub; empty when GitHub answered it lately, or does, asked once."""
        if self.calls.silent_s() > _ANSWERED_S:
            asking = self.in_lane(self._lane)
            asking.retry_policy = replace(self.retry_policy, total_s=0.0)
            try:
                asking.app().ask("GET", "/app")
            except ForgeError as error:
                return str(error)
        return ""

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            requesters = list(self._requesters)
        for requester in requesters:
            requester.close()

    def _requester(self, place: str) -> ApiRequester:
        here: dict[str, ApiRequester] = self._here.__dict__.setdefault("requesters", {})
        if place not in here:
            here[place] = self._new(place)
        return here[place]

    def _new(self, place: str) -> ApiRequester:
        with self._lock:
            # GitHub counts what an installation writes, and an owner has one installation.
            owner = place.partition("/")[0]
            limiter = self._paces.setdefault(owner, RateLimiter(self._pace_limits, self.retry_policy.sleep))
            requester = ApiRequester(
                self._auth_for(place),
                self.api_url,
                calls=self.calls,
                limiter=limiter,
                retry_policy=self.retry_policy,
                timeout_s=self.timeout_s,
                lane=self._lane,
                known=self.known_answers,
                owner=owner,
            )
            self._requesters.add(requester)
            return requester

    def in_lane(self, lane: Lane) -> "GitHub":
        """The same GitHub with another importance of writes; it is closed together with this one."""
        other = copy.copy(self)
        other._lane = lane
        other._here = threading.local()
        return other


class AppKey(AppAuth):
    """Signs as our App, by GitHub's clock as soon as it is known: GitHub refuses what is signed minutes off.

    `booted_s` says when our monotonic clock began by GitHub's clock; None while that is not known.
    """

    def __init__(self, app_id: int, private_key: str, booted_s: Callable[[], float | None]) -> None:
        self._signer, self._booted_s = AppAuth.create_jwt_sign(private_key, "RS256"), booted_s
        self._used_s: float | None = None
        super().__init__(app_id, sign_func=self._signer)

    def create_jwt(self, expiration: int | None = None) -> str:
        """A JWT that is valid now."""
        self._used_s = began = self._booted_s()
        if began is None:
            return super().create_jwt(expiration)
        now = int(began + time.monotonic())
        claims = {"iat": now - _MADE_BEFORE_S, "exp": now + (expiration or _VALID_S), "iss": str(self.app_id)}
        signed = self._signer(claims)
        return signed.decode() if isinstance(signed, bytes) else signed

    def renew(self) -> bool:
        """Whether GitHub's clock is known to be another one than the last JWT was made by."""
        used, known = self._used_s, self._booted_s()
        if known is None or (used is not None and abs(known - used) < _SAME_S):
            return False
        log.warning("GitHub refused a token: it is made again by GitHub's clock; set this machine's clock by NTP")
        return True


def as_app(
    app_id: int,
    private_key: str,
    *,
    api_url: str = PUBLIC_API_URL,
    retry_policy: RetryPolicy | None = None,
    limiter: tuple[tuple[int, float], ...] = LIMITER,
    timeout_s: int = TIMEOUT_S,
) -> GitHub:
    """GitHub as our App sees it, in every repository where it is installed; ForgeError for an invalid key."""
    try:
        AppAuth(app_id, private_key).create_jwt()
    except Exception as error:
        raise ForgeError("The App's private key is not an RSA key in PEM: paste the whole file") from error

    def jwt_requester() -> ApiRequester:
        return github.app()

    app, tokens = AppKey(app_id, private_key, lambda: github.calls.booted_s), Tokens(jwt_requester)
    github = GitHub(
        lambda place: InstallationAuth(tokens, place) if place else app,
        api_url=api_url,
        app_id=app_id,
        retry_policy=retry_policy,
        limiter=limiter,
        timeout_s=timeout_s,
        tokens=tokens,
    )
    return github


def with_token(
    token: str,
    *,
    app_id: int | None = None,
    api_url: str = PUBLIC_API_URL,
    retry_policy: RetryPolicy | None = None,
    limiter: tuple[tuple[int, float], ...] = LIMITER,
) -> GitHub:
    """GitHub with a fixed token, as a workflow has one; `app_id` is that of the App that the token belongs to."""
    auth = Token(token)
    return GitHub(lambda _: auth, api_url=api_url, app_id=app_id, retry_policy=retry_policy, limiter=limiter)


def anonymously(*, api_url: str = PUBLIC_API_URL, retry_policy: RetryPolicy | None = None) -> GitHub:
    """GitHub as anyone sees it: public repositories only, 60 requests an hour."""
    return GitHub(lambda _: None, api_url=api_url, retry_policy=retry_policy)


def checked_api_url(url: str) -> str:
    """The address of an API without its last slash; ForgeError for anything else."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ForgeError(f"{url!r} is not an address of a GitHub API: write https://HOST or https://HOST/api/v3")
    return url.rstrip("/")
