"""A real browser that tests drive by its own protocol over a pipe: one for all pages, each in a profile of its own."""

import base64
import fcntl
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import IO, Any

from tests.fakes.patience import HANG_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A container has no sandbox of its own to give; the pages are ours.
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
# Numbers that are not those under which the browser expects its two ends.
_HIGH = 10


class Page:
    """A page that is open in a browser."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session

    def ask(self, method: str, **parameters: object) -> Any:
        return self._browser.ask(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, that of a promise when it is settled."""
        found = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])


class Browser:
    """A browser without a window, at the other end of two pipes."""

    def __init__(self, out: IO[bytes], back: IO[bytes]) -> None:
        self._out, self._back, self._count = out, back, 0

    def ask(self, method: str, session: str = "", **parameters: object) -> Any:
        self._count += 1
        whose = {"sessionId": session} if session else {}
        order = {"id": self._count, "method": method, "params": parameters, **whose}
        self._out.write(json.dumps(order).encode() + b"\0")
        self._out.flush()
        while True:
            text = bytearray()
            while (byte := self._back.read(1)) != b"\0":
                assert byte, "the browser has ended"
                text += byte
            if (said := json.loads(text)).get("id") == self._count:
                assert "result" in said, said
                return said["result"]

    @contextmanager
    def visiting(self, address: str, *, size: tuple[int, int] = (800, 600), scheme: str = "light") -> Iterator[Page]:
        """Open a page in a profile of its own, in a window of a size, where the user prefers a scheme of colours."""
        profile = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=profile)["targetId"]
        page = Page(self, self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        window = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        page.ask("Emulation.setDeviceMetricsOverride", **window)
        page.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        # Else nothing in a browser without a window ever loses the focus.
        page.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        found = page.ask("Page.navigate", url=address)
        assert "errorText" not in found, found
        began = time.monotonic()
        while page.evaluate("document.readyState") != "complete":
            assert time.monotonic() - began < HANG_S, address
            time.sleep(0.01)
        yield page
        self.ask("Target.disposeBrowserContext", browserContextId=profile)

    @contextmanager
    def showing(self, html: str, *, size: tuple[int, int] = (800, 600), scheme: str = "light") -> Iterator[Page]:
        """Open a text as a page."""
        with tempfile.TemporaryDirectory(prefix="verl-e2e-page-") as folder:
            path = Path(folder) / "page.html"
            path.write_text(html, encoding="utf-8")
            with self.visiting(path.as_uri(), size=size, scheme=scheme) as page:
                yield page

    def measure(self, html: str, width: int, script: str) -> Any:
        """What a script returns of a text in a window of a width in pixels; `page` is its document."""
        with self.showing(html, size=(width, 800)) as shown:
            return shown.evaluate(f"((page) => {{{script}}})(document)")


@contextmanager
def started() -> Iterator[Browser]:
    """A browser that has begun, until the end of the block."""
    program = next(found for name in BROWSERS if (found := which(name)))
    orders, answers = os.pipe(), os.pipe()
    ends = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _HIGH) for end in (orders[0], answers[1]))
    for end in (orders[0], answers[1]):
        os.close(end)
    with tempfile.TemporaryDirectory(prefix="verl-e2e-browser-", ignore_cleanup_errors=True) as folder:
        call = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", *call]
        process = subprocess.Popen(shell, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in ends:
            os.close(end)
        with os.fdopen(orders[1], "wb") as out, os.fdopen(answers[0], "rb") as back:
            try:
                yield Browser(out, back)
            finally:
                process.kill()
                process.wait(HANG_S)
