"""Prism, a proxy that lets nothing through that GitHub's published description does not allow."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket

_BEGINS_S = 60.0
_LOOK_S = 0.1


@contextmanager
def proxying(folder: Path, description: str, upstream: str, log: Path) -> Iterator[str]:
    """The proxy's address, in front of `upstream`: a violation is answered with 4xx or 5xx and told in the log."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["node", "node_modules/@stoplight/prism-cli/dist/index.js", "proxy", description, upstream]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--errors"], cwd=folder, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            _wait(process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def _wait(process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + _BEGINS_S
    while b"is listening" not in log.read_bytes():
        assert process.poll() is None, f"prism ended: {log.read_text(encoding='utf-8')[-2000:]}"
        assert time.monotonic() < until, "prism did not begin to listen"
        time.sleep(_LOOK_S)
