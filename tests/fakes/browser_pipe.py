"""A real browser that a test drives while its page lives, by the browser's own protocol over a pipe."""

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

from tests.fakes.github_page import BROWSERS
from tests.fakes.patience import HANG_S

# Numbers that are not those under which the browser expects its two ends.
_HIGH = 10


@contextmanager
def visiting(address: str, folder: Path) -> Iterator[Callable[[str], Any]]:
    """Open a page; gives a function that evaluates an expression in it, a promise until it is settled."""
    browser = next(found for name in BROWSERS if (found := which(name)))
    orders, answers = os.pipe(), os.pipe()
    ends = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _HIGH) for end in (orders[0], answers[1]))
    for end in (orders[0], answers[1]):
        os.close(end)
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}/browser",
    ]
    shell = ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", browser, *flags, "about:blank"]
    process = subprocess.Popen(shell, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for end in ends:
        os.close(end)
    session: dict[str, str] = {}
    count = 0
    with os.fdopen(orders[1], "wb") as out, os.fdopen(answers[0], "rb") as back:

        def ask(method: str, **parameters: object) -> Any:
            nonlocal count
            count += 1
            out.write(json.dumps({"id": count, "method": method, "params": parameters, **session}).encode() + b"\0")
            out.flush()
            while True:
                text = b""
                while (byte := back.read(1)) != b"\0":
                    assert byte, "the browser has ended"
                    text += byte
                if (said := json.loads(text)).get("id") == count:
                    return said["result"]

        def evaluate(expression: str) -> Any:
            found = ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
            return found["result"].get("value")

        try:
            target = next(one for one in ask("Target.getTargets")["targetInfos"] if one["type"] == "page")
            session["sessionId"] = ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
            # Else nothing in a browser without a window ever loses the focus.
            ask("Emulation.setFocusEmulationEnabled", enabled=True)
            ask("Page.navigate", url=address)
            yield evaluate
        finally:
            process.kill()
            process.wait(HANG_S)
