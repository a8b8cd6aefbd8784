"""A smart-HTTP git server over loopback: git's own `http-backend` behind a small CGI bridge, filters allowed.

It counts what it is asked, can ask for a token, and can fail on demand.
"""

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

_ALLOWED = {"uploadpack.allowFilter": "true", "safe.directory": "*"}
_CHUNK = 1 << 16


@dataclass
class GitServer:
    """Serves the repositories below `root` as `<url>/OWNER/REPO.git`; set the fields to make it misbehave.

    `authorization` is the header that it insists on; `statuses` are answers given instead, one for each request;
    `pause_s` is waited before each part of an answer. With `tips_only` it speaks the old protocol, and gives a commit
    only where a ref points at it.
    """

    root: Path
    url: str = ""
    authorization: str | None = None
    statuses: list[int] = field(default_factory=list)
    pause_s: float = 0.0
    tips_only: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    sent: int = 0

    @property
    def fetches(self) -> int:
        """How often objects were sent: one for each `git fetch` that brought something."""
        return sum(method == "POST" for method, _ in self.asked)


@contextmanager
def serving(root: Path) -> Iterator[GitServer]:
    """A server on a free port of this machine until the block ends."""
    state = GitServer(root)
    handler = type("Bridge", (_Bridge,), {"state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


class _Bridge(BaseHTTPRequestHandler):
    state: GitServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Silent: a test says what it saw."""

    def _answer(self) -> None:
        body = self._body()
        self.state.asked.append((self.command, self.path))
        self.state.headers.append(dict(self.headers.items()))
        if self.state.statuses:
            return self._refuse(self.state.statuses.pop(0))
        if self.state.authorization is not None and self.headers.get("Authorization") != self.state.authorization:
            return self._refuse(401)
        return self._relay(body)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _relay(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        process = subprocess.Popen(
            ["git", "http-backend"],
            env=_environment(self.state, self.command, parts.path, parts.query, dict(self.headers.items())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        feeder = threading.Thread(target=_feed, args=(process, body))
        feeder.start()
        self._send(process)
        process.stdout.close()
        feeder.join()
        process.wait()

    def _send(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        status, headers = 200, []
        while line := process.stdout.readline().strip():
            name, _, value = line.decode("latin-1").partition(": ")
            if name.lower() == "status":
                status = int(value.split()[0])
            else:
                headers.append((name, value))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            while chunk := process.stdout.read(_CHUNK):
                time.sleep(self.state.pause_s)
                self.state.sent += len(chunk)
                self.wfile.write(chunk)
        except (BrokenPipeError, ConnectionResetError):
            process.kill()


def _feed(process: "subprocess.Popen[bytes]", body: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(body)
        process.stdin.close()
    except BrokenPipeError:
        pass


def _environment(server: GitServer, method: str, path: str, query: str, headers: Mapping[str, str]) -> dict[str, str]:
    settings = _ALLOWED | {f"uploadpack.allow{'Tip' if server.tips_only else 'Any'}SHA1InWant": "true"}
    allowed = {f"GIT_CONFIG_KEY_{at}": key for at, key in enumerate(settings)}
    allowed |= {f"GIT_CONFIG_VALUE_{at}": value for at, value in enumerate(settings.values())}
    return {
        **allowed,
        "GIT_CONFIG_COUNT": str(len(settings)),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": str(server.root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_PROTOCOL": "" if server.tips_only else headers.get("Git-Protocol", ""),
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_TYPE": headers.get("Content-Type", ""),
        "HTTP_CONTENT_ENCODING": headers.get("Content-Encoding", ""),
        "REMOTE_ADDR": "127.0.0.1",
    }
