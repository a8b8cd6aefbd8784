"""Prism, a proxy that lets nothing through that GitHub's published description does not allow."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket

from tests.fakes.patience import HANG_S

_BEGINS_S = HANG_S
_LOOK_S = 0.1
# Prism cannot find a free port, and one that was free may be taken by the time that it listens.
_ATTEMPTS = 3
_PRISM = ("node", "node_modules/@stoplight/prism-cli/dist/index.js", "proxy")


@contextmanager
def proxying(folder: Path, description: str, upstream: str, log: Path) -> Iterator[str]:
    """The proxy's address, in front of `upstream`: a violation is answered with 4xx or 5xx and reported in the log."""
    process, port = _begun(folder, [*_PRISM, description, upstream, "--errors"], log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(HANG_S)


def _begun(folder: Path, command: list[str], log: Path) -> tuple["subprocess.Popen[bytes]", int]:
    for _ in range(_ATTEMPTS):
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--port", str(port)], cwd=folder, stdout=out, stderr=subprocess.STDOUT
            )
        if _listens(process, log):
            return process, port
    raise AssertionError(f"prism did not begin to listen: {log.read_text(encoding='utf-8')[-2000:]}")


def _listens(process: "subprocess.Popen[bytes]", log: Path) -> bool:
    until = time.monotonic() + _BEGINS_S
    while process.poll() is None and time.monotonic() < until:
        if b"is listening" in log.read_bytes():
            return True
        time.sleep(_LOOK_S)
    process.kill()
    process.wait()
    return False
