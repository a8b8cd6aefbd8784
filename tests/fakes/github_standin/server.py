"""The HTTP side: one port for the API and for git, with the count and the record of what was asked."""

import hashlib
import http.client
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import jwt

from tests.fakes.github_standin import api_actions, api_apps, api_checks, api_issues, api_pulls
from tests.fakes.github_standin.deliveries import Deliveries
from tests.fakes.github_standin.faults import Fault, Faults, When
from tests.fakes.github_standin.routing import Api, ApiError, Caller, Reply, Request, Route, check_access
from tests.fakes.github_standin.shapes import Shapes
from tests.fakes.github_standin.state import State
from tests.fakes.github_standin.web_login import WebLogin
from tests.fakes.patience import HANG_S
from tests.fakes.smart_http import GitServer
from tests.fakes.smart_http import serving as serving_git

ROUTES: tuple[Route, ...] = (
    *api_pulls.ROUTES,
    *api_issues.ROUTES,
    *api_checks.ROUTES,
    *api_actions.ROUTES,
    *api_apps.ROUTES,
)
# GitHub takes the address of a repository with and without `.git`.
_GIT = ("/info/refs", "/git-upload-pack", "/git-receive-pack")
_ENTERPRISE = "/api/v3"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request with its answer; `route` is the template, empty when none fits, `fault` what was made to fail."""

    method: str
    path: str
    query: str
    route: str
    sent: bytes
    status: int
    content_type: str
    answered: bytes
    fault: Fault | None
    caller: str


class Standin:
    """GitHub on a port of this machine: its state, its webhooks, its faults, and the record of what was asked."""

    def __init__(self, state: State, secret: str) -> None:
        self.state = state
        self.url = ""
        self.git = GitServer(state.folder / "git")
        self.faults = Faults()
        self.traffic: list[Exchange] = []
        self.broken: list[Exception] = []
        self.shapes = Shapes(state, "")
        self.deliveries = Deliveries(state, self.shapes, secret)
        self.api = Api(state, self.shapes, self.deliveries)
        self.login = WebLogin(state)
        # What a browser is shown at an address that is no part of the API; None for an address that is not there.
        self.web: Callable[[Request], Reply | None] = lambda _: None

    def calls(self, since: int = 0) -> Counter[str]:
        """How often each endpoint was called, as `METHOD /template`, from one place in the record on."""
        return Counter(f"{item.method} {item.route or item.path}" for item in self.traffic[since:])

    @contextmanager
    def serving(self) -> Iterator["Standin"]:
        """Serve until the block ends."""
        (self.state.folder / "git").mkdir(parents=True, exist_ok=True)
        handler = type("Handler", (_Handler,), {"standin": self})
        with serving_git(self.state.folder / "git") as git, _Server(("127.0.0.1", 0), handler) as server:
            self.git = git
            self.url = self.shapes.base = self.shapes.home = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            self.deliveries.start()
            try:
                yield self
            finally:
                self.deliveries.stop()
                server.shutdown()
                thread.join()

    def answer(self, request: Request) -> tuple[str, Reply]:
        """The route's template and the answer to a request."""
        route = ""
        try:
            caller = self._caller(request)
            for item in ROUTES:
                variables = item.match(request.method, request.path)
                if variables is None:
                    continue
                route = item.template
                found = {key: unquote(value) for key, value in variables.items()}
                whole = replace(request, caller=caller, variables=found)
                with self.state.lock:
                    check_access(self.api, item, whole)
                    return route, item.endpoint(self.api, whole)
            raise ApiError(404, "Not Found")
        except ApiError as error:
            return route, error.reply()
        except Exception as error:
            self.broken.append(error)
            return route, Reply(500, {"message": f"the stand-in is broken: {error!r}"})

    def _caller(self, request: Request) -> Caller:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if not secret or request.path.startswith("/_storage"):
            return Caller()
        if secret in self.state.tokens:
            token = self.state.tokens[secret]
            if token.expires <= self.state.now():
                raise ApiError(401, "Bad credentials")
            return Caller(token.actor, token.app, token=token)
        if scheme.lower() == "bearer" and secret.count(".") == 2:
            return self._app_of(secret)
        raise ApiError(401, "Bad credentials")

    def _app_of(self, text: str) -> Caller:
        try:
            issuer = str(jwt.decode(text, options={"verify_signature": False}).get("iss"))
            app = next(item for item in self.state.apps.values() if issuer in (str(item.id), item.client_id))
            claims = jwt.decode(text, app.key, ["RS256"], options={"verify_exp": False, "verify_iat": False})
        except (jwt.PyJWTError, StopIteration):
            raise ApiError(401, "A JSON web token could not be decoded") from None
        now = self.state.clock().timestamp()
        if claims["iat"] > now:
            issued = "must be an Integer representing the time that the assertion was issued"
            raise ApiError(401, f"'Issued at' claim ('iat') {issued}")
        if claims["exp"] <= now:
            expires = "must be a numeric value representing the future time at which the assertion expires"
            raise ApiError(401, f"'Expiration time' claim ('exp') {expires}")
        if claims["exp"] > now + 600:
            raise ApiError(401, "'Expiration time' claim ('exp') is too far in the future")
        return Caller(app.bot, app, as_app=True)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is not news; an error of the stand-in itself is, for its caller sees a lost line."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    standin: Standin
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Head and body go out in one packet.
    wbufsize = -1

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The header `Date`, by the clock of the stand-in."""
        return super().date_time_string(timestamp or self.standin.state.clock().timestamp())

    def log_message(self, *_: object) -> None:
        """Silent: the record says what was asked."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self._body()
        path = parts.path.removeprefix(_ENTERPRISE)
        if path.endswith(_GIT):
            return self._relay_to_git(body)
        fault = self.standin.faults.of(self.command, path)
        if fault is not None and fault.delay_s:
            time.sleep(fault.delay_s)
        headers = {key.lower(): value for key, value in self.headers.items()}
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        request = Request(self.command, path, query, headers, body)
        shown = self.standin.login.answer(request) or self.standin.web(request)
        if shown is not None:
            content, kind = _encoded(shown.body)
            return self._write(shown.status, {"Content-Type": kind, **shown.headers}, content)
        route, reply = self._reply(request, fault)
        return self._send(request, parts.query, route, reply, fault)

    def _reply(self, request: Request, fault: Fault | None) -> tuple[str, Reply | None]:
        if fault is None:
            return self.standin.answer(request)
        route = next((item.template for item in ROUTES if item.match(request.method, request.path) is not None), "")
        if fault.when is When.AFTER:
            self.standin.answer(request)
        if not fault.status:
            return route, None
        return route, Reply(fault.status, {"message": fault.message}, fault.headers)

    def _send(self, request: Request, query: str, route: str, reply: Reply | None, fault: Fault | None) -> None:
        if reply is None:
            self._note(request, query, route, (0, "", b""), fault)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        content, kind = _encoded(reply.body)
        headers = {"Content-Type": kind, **self._limits(), **reply.headers}
        status = reply.status
        if request.method == "GET" and status == 200:
            # As on GitHub, the tag of an answer is another one for another token.
            token = request.headers.get("authorization", "").encode()
            headers["ETag"] = f'W/"{hashlib.sha256(token + content).hexdigest()}"'
            if request.headers.get("if-none-match") == headers["ETag"]:
                status, content = 304, b""
        self._note(request, query, route, (status, headers["Content-Type"], content), fault)
        self._write(status, headers, content)

    def _write(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for key, value in headers.items():
            if content or key != "Content-Type":
                self.send_header(key, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _limits(self) -> Mapping[str, str]:
        reset = str(int(self.standin.state.now().timestamp()) + 3600)
        used = len(self.standin.traffic)
        return {
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": str(max(1, 5000 - used)),
            "X-RateLimit-Reset": reset,
            "X-RateLimit-Used": str(used),
            "X-RateLimit-Resource": "core",
            "X-GitHub-Media-Type": "github.v3; format=json",
        }

    def _note(
        self, request: Request, query: str, route: str, answered: tuple[int, str, bytes], fault: Fault | None
    ) -> None:
        secret = request.headers.get("authorization", "").partition(" ")[2]
        token = self.standin.state.tokens.get(secret)
        caller = token.actor.login if token else ("app" if secret else "")
        self.standin.traffic.append(
            Exchange(request.method, request.path, query, route, request.body, *answered, fault, caller)
        )

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        gathered = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            gathered += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return gathered

    def _relay_to_git(self, body: bytes) -> None:
        git = urlsplit(self.standin.git.url)
        assert git.hostname is not None
        connection = http.client.HTTPConnection(git.hostname, git.port, timeout=HANG_S)
        kept = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "transfer-encoding")}
        owner, _, rest = self.path.lstrip("/").partition("/")
        name, _, tail = rest.partition("/")
        connection.request(self.command, f"/{owner.lower()}/{name.lower().removesuffix('.git')}.git/{tail}", body, kept)
        answer = connection.getresponse()
        content = answer.read()
        headers = {
            key: value for key, value in answer.getheaders() if key.lower() not in ("connection", "server", "date")
        }
        self._write(answer.status, headers, content)
        connection.close()


def _encoded(body: object) -> tuple[bytes, str]:
    if isinstance(body, bytes):
        return body, "application/octet-stream"
    if body is None:
        return b"", "application/json; charset=utf-8"
    return json.dumps(body).encode("utf-8", "surrogatepass"), "application/json; charset=utf-8"
