"""Our identity at GitHub, and the requesters: one for each repository."""

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import quote, urlsplit

import jwt
import requests
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import AwareDatetime, Field, PositiveInt
from requests.adapters import HTTPAdapter

from verl_e2e.adapters.github.requester import (
    LARGEST_PART,
    LIMITER,
    MOST_KNOWN_BYTES,
    Answer,
    ApiRequester,
    Calls,
    Connection,
    GithubIdentity,
    KnownAnswer,
    Lane,
    RateLimiter,
    RefusedError,
    RetryPolicy,
    read,
    server_time,
)
from verl_e2e.git.repository import SizedCache
from verl_e2e.ports import ForgeError


class InstallationAnswer(Answer):
    """An installation of an App, as far as we read it."""

    id: PositiveInt
    app_id: PositiveInt
    app_slug: str = ""
    permissions: dict[str, str] = Field(default_factory=dict)
    events: tuple[str, ...] = ()
    suspended_at: AwareDatetime | None = None


class _TokenAnswer(Answer):
    token: str
    expires_at: AwareDatetime


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
PUBLIC_API_URL = "https://api.github.com"
# GitHub ends a request after 10 s, so when ours times out, the request cannot take effect later.
TIMEOUT_S = 15
# GitHub's answers say for so long that it is there.
_ANSWERED_S = 60.0
# How long a JWT is valid, and how much earlier than now it says that it was made; GitHub takes ten minutes at most.
_VALID_S, _MADE_BEFORE_S = 300, 60
# An answer takes its time, and GitHub says the time in whole seconds.
_SAME_S = 5.0
# More than threads ask at once.
_MOST_CONNECTIONS = 64

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FixedToken:
    """The identity of a token, the same everywhere; with an empty one that of anyone."""

    text: str

    def token(self, place: str) -> str:  # noqa: ARG002  (an identity's signature)
        """The token."""
        return self.text

    def authorization(self, place: str) -> str:  # noqa: ARG002
        """The header of a request."""
        return f"token {self.text}" if self.text else ""

    def renew(self, place: str) -> bool:  # noqa: ARG002
        """False: there is no other."""
        return False


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    renewed_at: float


class AppIdentity:
    """Our App: itself at the empty place, and its installation at any other. Threads may share it.

    `app` gives the requester as the App itself. `booted_s` says when our monotonic clock began by GitHub's clock, None
    while that is not known: GitHub refuses what is signed minutes off.
    """

    def __init__(
        self,
        app_id: int,
        private_key: RSAPrivateKey,
        app: Callable[[], ApiRequester],
        booted_s: Callable[[], float | None],
    ) -> None:
        self._app_id, self._private_key, self._app, self._booted_s = app_id, private_key, app, booted_s
        self._signed_by_s: float | None = None
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

    def authorization(self, place: str) -> str:
        """The header of a request: the App itself signs it."""
        if place:
            return f"token {self.token(place)}"
        self._signed_by_s = began = self._booted_s()
        wall_s = time.time() if began is None else began + time.monotonic()  # noqa: TID251  (GitHub's is not known yet)
        made = int(wall_s) - _MADE_BEFORE_S
        claims = {"iat": made, "exp": made + _MADE_BEFORE_S + _VALID_S, "iss": str(self._app_id)}
        return f"Bearer {jwt.encode(claims, self._private_key, 'RS256')}"

    def renew(self, place: str) -> bool:
        """Take a new token; the App itself has another only where GitHub's clock is not the one that it signed by."""
        if place:
            with self._lock_of(place):
                self._tokens.pop(place, None)
                self._installations.pop(place, None)
            return True
        used, known = self._signed_by_s, self._booted_s()
        if known is None or (used is not None and abs(known - used) < _SAME_S):
            return False
        log.warning("GitHub refused a token: it is made again by GitHub's clock; set this machine's clock by NTP")
        return True

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
        name = place.partition("/")[2]
        needed = PERMISSIONS if name else ORGANISATION
        permissions = narrowed(found.permissions, needed)
        if not permissions:
            # GitHub takes an empty list for all that there is.
            what = f"The App has none of the permissions that it needs in {place}: give it {', '.join(needed)}"
            raise ForgeError(what)
        path, narrow = f"/app/installations/{found.id}/access_tokens", {"repositories": [name]} if name else {}
        try:
            headers, data = self._app().send("POST", path, body={"permissions": permissions, **narrow})
        except RefusedError:
            self._installations.pop(place, None)
            raise
        answer, now = read(_TokenAnswer, data, path), server_time(headers)
        lifetime_s = min((answer.expires_at - now).total_seconds(), _LONGEST_S) if now else _LONGEST_S
        return _Token(answer.token, time.monotonic() + lifetime_s - _RENEWED_BEFORE_S)

    def _lock_of(self, place: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(place, threading.Lock())


def narrowed(granted: Mapping[str, str], needed: Mapping[str, str] = PERMISSIONS) -> dict[str, str]:
    """Of the permissions granted, those that we need and no more of each."""
    return {
        name: "read" if "read" in (access, granted[name]) else access
        for name, access in needed.items()
        if name in granted
    }


def checked_place(place: str) -> str:
    """The place, when nothing in it could lead elsewhere as part of a path; else ForgeError."""
    owner, slash, name = place.partition("/")
    plain = quote(owner + name, safe="") == owner + name
    if not slash or not owner or not plain or {owner, name} & {".", ".."}:
        raise ForgeError(f"{place!r} is not a repository: write owner/name")
    return place


class GitHub:
    """Access to GitHub's API, created by `as_app`, `with_token` or `anonymously`. Threads may share it.

    `app_id` is that of the App whose comments and check runs are ours, None where it is unknown. `identity` is given
    this GitHub, as the App itself asks for its tokens.
    """

    def __init__(
        self,
        identity: "Callable[[GitHub], GithubIdentity]",
        *,
        api_url: str,
        app_id: int | None = None,
        retry_policy: RetryPolicy | None = None,
        limiter: tuple[tuple[int, float], ...] = LIMITER,
        timeout_s: int = TIMEOUT_S,
    ) -> None:
        self.app_id = app_id
        self.calls = Calls()
        self.known_answers: SizedCache[str, KnownAnswer] = SizedCache(MOST_KNOWN_BYTES, largest_part=LARGEST_PART)
        self.identity = identity(self)
        self._http = requests.Session()
        # Else a .netrc file would add what we do not send.
        self._http.auth = lambda request: request
        self._http.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        for scheme in ("https://", "http://"):
            self._http.mount(scheme, HTTPAdapter(pool_maxsize=_MOST_CONNECTIONS))
        self.connection = Connection(
            api_url=checked_api_url(api_url),
            identity=self.identity,
            calls=self.calls,
            known=self.known_answers,
            http=self._http,
            retry_policy=retry_policy or RetryPolicy(),
            timeout_s=timeout_s,
        )
        self._pace_limits = limiter
        self._paces: dict[str, RateLimiter] = {}
        self._lock = threading.Lock()

    @property
    def api_url(self) -> str:
        """The address of the API, without a slash at the end."""
        return self.connection.api_url

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long a request may take."""
        return self.connection.retry_policy

    def requester(self, place: str) -> ApiRequester:
        """Requests about a repository, `owner/name`, or an organisation, `owner/`."""
        return self._requester(checked_place(place))

    def app(self) -> ApiRequester:
        """Requests as the App itself."""
        return self._requester("")

    def token(self, repository: str) -> str:
        """A token for the repository, as git wants it for a password; empty for no one."""
        return self.identity.token(checked_place(repository))

    def trouble(self) -> str:
        """Why the App cannot work with GitHub; empty when GitHub answered it lately, or does, asked once."""
        if self.calls.silent_s() > _ANSWERED_S:
            try:
                self._with(retry_policy=replace(self.retry_policy, total_s=0.0)).app().ask("GET", "/app")
            except ForgeError as error:
                return str(error)
        return ""

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def in_lane(self, lane: Lane) -> "GitHub":
        """The same GitHub with another importance of writes; it is closed together with this one."""
        return self._with(lane=lane)

    def _with(self, **changes: Any) -> "GitHub":
        other = copy.copy(self)
        other.connection = replace(self.connection, **changes)
        return other

    def _requester(self, place: str) -> ApiRequester:
        # GitHub counts what an installation writes, and an owner has one installation.
        owner = place.partition("/")[0]
        with self._lock:
            pace = self._paces.setdefault(owner, RateLimiter(self._pace_limits, self.retry_policy.sleep))
        return ApiRequester(self.connection, place, pace)


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
        key = load_pem_private_key(private_key.encode(), password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise ForgeError("The App's private key is not an RSA key in PEM: paste the whole file")
    rsa_key = key
    return GitHub(
        lambda github: AppIdentity(app_id, rsa_key, github.app, lambda: github.calls.booted_s),
        api_url=api_url,
        app_id=app_id,
        retry_policy=retry_policy,
        limiter=limiter,
        timeout_s=timeout_s,
    )


def with_token(
    token: str, *, app_id: int | None = None, api_url: str = PUBLIC_API_URL, retry_policy: RetryPolicy | None = None
) -> GitHub:
    """GitHub with a fixed token, as a workflow has one; `app_id` is that of the App that the token belongs to."""
    identity = FixedToken(token)
    return GitHub(lambda _: identity, api_url=api_url, app_id=app_id, retry_policy=retry_policy)


def anonymously(*, api_url: str = PUBLIC_API_URL, retry_policy: RetryPolicy | None = None) -> GitHub:
    """GitHub as anyone sees it: public repositories only, 60 requests an hour."""
    return with_token("", api_url=api_url, retry_policy=retry_policy)


def checked_api_url(url: str) -> str:
    """The address of an API without its last slash; ForgeError for anything else."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ForgeError(f"{url!r} is not an address of a GitHub API: write https://HOST or https://HOST/api/v3")
    return url.rstrip("/")
