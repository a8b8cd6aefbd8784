"""Installation tokens of the App, each narrowed to one place and to what we need there of what was granted.

A place is a repository, `owner/name`, or an organisation, `owner/`, whose teams are read.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from github.Auth import Auth

from verl_e2e.adapters.github.answers import InstallationAnswer, TokenAnswer, read
from verl_e2e.adapters.github.requester import ApiRequester
from verl_e2e.adapters.github.retry import RefusedError, server_time
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
