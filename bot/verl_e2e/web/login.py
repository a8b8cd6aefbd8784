"""The login of pages: GitHub's web flow of the App. Nothing of it is kept here; the session lies in a sealed cookie."""

import asyncio
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from hmac import compare_digest
from html import escape
from typing import Literal
from urllib.parse import quote, urlencode

from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from verl_e2e.ports import ForgeError

# GitHub's token of a person is good for 8 h, and a login is to end sooner than its code.
_SESSION_S, _BEGUN_S = 8 * 3600, 600
# Logins that wait for GitHub, which no one needs an account for; more are turned away.
_MOST_ENDING = 32
_SESSION, _BEGUN = "verl-e2e-session", "verl-e2e-login"
_PLACE = re.compile(r"/(?!/)[\w./-]{0,300}", re.ASCII)
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
_AGAIN = "This login was not begun in this browser, or too long ago. Begin again at /login\n"


@dataclass(frozen=True, slots=True)
class PageLogin:
    """How people log in, and what they may read then."""

    client_id: str
    # The App's client secret; what seals cookies is made from it.
    secret: str = field(repr=False)
    # The address of GitHub's own pages.
    web_url: str
    # The public address of the service, empty where it is not told.
    public_url: str
    # The token for a code and the word that the login began with; empty where GitHub refuses. ForgeError.
    token: Callable[[str, str], str]
    # Whether the bearer of a token may read a repository.
    reads: Callable[[str, str], bool]
    now: Callable[[], datetime]
    # Apart from what answers probes: a login waits as long as GitHub does.
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "login"), repr=False)
    _ending: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_ENDING), repr=False)

    def visitor(self, request: Request) -> str:
        """The token of who asks; empty for one who has not logged in."""
        return self._opened(request, _SESSION, _SESSION_S)

    def link(self, request: Request) -> str:
        """What the navigation offers."""
        if self.visitor(request):
            return '<form method="post" action="/logout"><button>Log out</button></form>'
        return f'<a href="/login?next={escape(quote(request.url.path))}">Log in with GitHub</a>'

    def routes(self) -> tuple[Route, ...]:
        """The addresses of the login."""
        return (
            Route("/login", self._begin, methods=["GET"]),
            Route("/login/callback", self._end, methods=["GET"]),
            Route("/logout", self._log_out, methods=["POST"]),
        )

    async def _begin(self, request: Request) -> Response:
        """Send the browser to GitHub, with a word that only this browser knows."""
        place = request.query_params.get("next", "")
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
        challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
        asked = {"client_id": self.client_id, "state": state}
        asked |= {"code_challenge": challenge, "code_challenge_method": "S256"}
        if self.public_url:
            asked["redirect_uri"] = f"{self.public_url.rstrip('/')}/login/callback"
        answer = RedirectResponse(f"{self.web_url}/login/oauth/authorize?{urlencode(asked)}", 303, _HEADERS)
        kept = " ".join((state, verifier, place if _PLACE.fullmatch(place) else "/"))
        self._put(request, answer, _BEGUN, kept, _BEGUN_S)
        return answer

    async def _end(self, request: Request) -> Response:
        """Take the code with which GitHub sends the browser back."""
        state, _, kept = self._opened(request, _BEGUN, _BEGUN_S).partition(" ")
        verifier, _, place = kept.partition(" ")
        given, code = request.query_params.get("state", ""), request.query_params.get("code", "")
        if not state or not compare_digest(state.encode(), given.encode()):
            return PlainTextResponse(_AGAIN, 400, _HEADERS)
        try:
            if self._ending.locked():
                return PlainTextResponse("busy\n", 503, {**_HEADERS, "Retry-After": "5"})
            async with self._ending:
                loop = asyncio.get_running_loop()
                token = await loop.run_in_executor(self._threads, self.token, code, verifier) if code else ""
        except ForgeError:
            return PlainTextResponse("GitHub does not answer. Try again later.\n", 502, _HEADERS)
        if not token:
            return PlainTextResponse("GitHub did not log you in. Begin again at /login\n", 403, _HEADERS)
        answer = RedirectResponse(place, 303, _HEADERS)
        answer.delete_cookie(_BEGUN)
        self._put(request, answer, _SESSION, token, _SESSION_S)
        return answer

    async def _log_out(self, request: Request) -> Response:
        answer = RedirectResponse("/", 303, _HEADERS)
        # From another site it comes without.
        if _SESSION in request.cookies:
            answer.delete_cookie(_SESSION)
        return answer

    def _put(self, request: Request, answer: Response, name: str, text: str, lasts_s: int) -> None:
        sealed = self._seal(name).encrypt_at_time(text.encode(), int(self.now().timestamp())).decode()
        secure = self.public_url.startswith("https:") or request.url.scheme == "https"
        # Strict would keep it back when GitHub sends the browser here; only GET answers with anything.
        same: Literal["lax"] = "lax"
        answer.set_cookie(name, sealed, max_age=lasts_s, httponly=True, samesite=same, secure=secure)

    def _opened(self, request: Request, name: str, lasts_s: int) -> str:
        try:
            sealed = request.cookies.get(name, "").encode()
            return self._seal(name).decrypt_at_time(sealed, lasts_s, int(self.now().timestamp())).decode()
        except InvalidToken:
            return ""

    def _seal(self, name: str) -> Fernet:
        return Fernet(urlsafe_b64encode(sha256(f"{name}\0{self.secret}".encode()).digest()))
