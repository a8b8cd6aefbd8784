"""A page on this machine that sends the App's manifest to GitHub, and takes the code with which GitHub answers."""

import html
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

_DONE = "/done"


def code_of_app(new_app: str, manifest_for: Callable[[str], str], port: int, tell: Callable[[str], None]) -> str:
    """The code that GitHub gives once someone has pressed the page's button.

    `new_app` is GitHub's page for new Apps, `manifest_for` the manifest for a redirect address. `tell` gets the address
    of the page. OSError when nothing can listen on the port.
    """
    state, codes = secrets.token_urlsafe(32), list[str]()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """The page with the button, or what GitHub sends the browser back to."""
            asked, own = urlsplit(self.path), f"127.0.0.1:{self.connection.getsockname()[1]}"
            given = parse_qs(asked.query)
            # Another name for this address is a page of somebody else's that wants to read ours.
            if self.headers.get("Host") != own:
                self._answer(403, f"Open http://{own}/ itself.")
            elif asked.path == "/":
                manifest = html.escape(manifest_for(f"http://{own}{_DONE}"))
                self._answer(
                    200,
                    f'<form action="{html.escape(new_app)}?state={state}" method="post">'
                    f'<input type="hidden" name="manifest" value="{manifest}"><button>Register the App</button></form>',
                )
            elif asked.path == _DONE and given.get("state") == [state] and given.get("code"):
                codes.append(given["code"][0])
                self._answer(200, "GitHub has made the App. Go back to the terminal.")
            else:
                self._answer(404, f"Nothing is here. The button is at http://{own}/.")

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"<!doctype html><title>verl-e2e</title><p>{text}</p>".encode())

        def log_message(self, *_: object) -> None:
            """Nothing: an address holds the code."""

    with HTTPServer(("127.0.0.1", port), Page) as server:
        tell(f"http://127.0.0.1:{server.server_port}/")
        while not codes:
            server.handle_request()
    return codes[0]
