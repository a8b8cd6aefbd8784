"""GitHub's web flow of an App, as its documentation describes it: who is at the browser agrees at once.

docs.github.com: Generating a user access token for a GitHub App. GitHub's description of its API does not have it.
"""

import hashlib
import hmac
import json
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from tests.fakes.github_standin.routing import Reply, Request
from tests.fakes.github_standin.state import App, State, User

CLIENT_SECRET = "s" * 40


@dataclass
class WebLogin:
    """Who is at the browser, where the App wants people sent back to, and the codes that were given."""

    state: State
    person: str = ""
    callback: str = ""
    codes: dict[str, tuple[App, User, str]] = field(default_factory=dict)

    def answer(self, request: Request) -> Reply | None:
        """The answer of one of the two addresses, None for others."""
        if (request.method, request.path) == ("GET", "/login/oauth/authorize"):
            return self._authorize(request)
        if (request.method, request.path) == ("POST", "/login/oauth/access_token"):
            return self._exchange(request)
        return None

    def _authorize(self, request: Request) -> Reply:
        query = request.query
        app = self._app(query.get("client_id", ""))
        back = query.get("redirect_uri") or self.callback
        if app is None or back != self.callback:
            return Reply(404, {"message": "Not Found"})
        state = {"state": query["state"]} if "state" in query else {}
        if not self.person:
            denied = {"error": "access_denied", "error_description": "The user has denied your application access."}
            return Reply(302, None, {"Location": f"{back}?{urlencode({**denied, **state})}"})
        code = secrets.token_hex(10)
        assert query.get("code_challenge_method", "S256") == "S256"
        self.codes[code] = (app, self.state.user(self.person), query.get("code_challenge", ""))
        return Reply(302, None, {"Location": f"{back}?{urlencode({'code': code, **state})}"})

    def _exchange(self, request: Request) -> Reply:
        kind = request.headers.get("content-type", "")
        sent = request.json() if "json" in kind else dict(parse_qsl(request.body.decode()))
        app = self._app(str(sent.get("client_id", "")))
        if app is None or sent.get("client_secret") != CLIENT_SECRET:
            return _said(request, {"error": "incorrect_client_credentials"})
        _, user, challenge = self.codes.pop(str(sent.get("code", "")), (None, None, ""))
        digest = hashlib.sha256(str(sent.get("code_verifier", "")).encode()).digest()
        if user is None or (
            challenge and not hmac.compare_digest(challenge, urlsafe_b64encode(digest).decode().rstrip("="))
        ):
            return _said(request, {"error": "bad_verification_code"})
        text = f"ghu_{secrets.token_urlsafe(27)}"
        self.state.add_token(text, user, app, app.permissions)
        return _said(request, {"access_token": text, "token_type": "bearer", "scope": ""})

    def _app(self, client_id: str) -> App | None:
        return next((app for app in self.state.apps.values() if app.client_id == client_id), None)


def _said(request: Request, found: dict[str, str]) -> Reply:
    """As a form, unless JSON is asked for by that name."""
    if request.headers.get("accept") == "application/json":
        return Reply(200, json.loads(json.dumps(found)))
    return Reply(200, urlencode(found).encode(), {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"})
