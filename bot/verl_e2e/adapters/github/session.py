"""Our identity at GitHub, and the requesters: one for each thread and repository."""

import copy
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit
from weakref import WeakSet

from github.Auth import AppAuth, Auth, Token

from verl_e2e.adapters.github.known_answers import KnownAnswers
from verl_e2e.adapters.github.pace import LIMITER, Calls, Lane, RateLimiter
from verl_e2e.adapters.github.requester import ApiRequester
from verl_e2e.adapters.github.retry import RetryPolicy
from verl_e2e.adapters.github.tokens import InstallationAuth, Tokens, checked_place
from verl_e2e.ports import ForgeError

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
