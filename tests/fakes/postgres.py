"""A private PostgreSQL server in a folder of its own, for tests that must hold on both databases."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.patience import HANG_S

# The machine does not lose its power. A server that is stopped as by a crash still has all that it confirmed.
_DURABILITY_OFF = "-c fsync=off -c full_page_writes=off"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that can be stopped and started again."""

    url: str
    control: Callable[..., None]

    def stop(self) -> None:
        """End it as a crash does."""
        self.control("-m", "immediate", "-w", "stop")

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self.control("-w", "start")

    def restart(self) -> None:
        """End it as a crash does, and start it again at once."""
        self.control("-m", "immediate", "-w", "restart")


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a running server's empty database."""
    with controlled_server() as server:
        yield server.url


@contextmanager
def controlled_server() -> Iterator[Server]:
    """A running server; it refuses root, so another user runs it where need be."""
    user = _user()
    # Not below pytest's folder, which only its owner may enter; and short, for the socket's name.
    folder = Path(tempfile.mkdtemp(prefix="verl-e2e-pg-"))
    try:
        if user:
            shutil.chown(folder, user)
        port = _free_port()
        data = folder / "data"
        _call(user, _binary("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 {_DURABILITY_OFF}"

        def control(*words: str) -> None:
            _call(user, _binary("pg_ctl"), "-D", data, "-l", folder / "log", "-o", options, *words)

        server = Server(f"postgresql://postgres@127.0.0.1:{port}/postgres", control)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binary(name: str) -> str:
    packaged = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(packaged[-1]) if packaged else str(shutil.which(name))


def _user() -> str:
    """Whom to run it as: oneself, or someone harmless instead of root."""
    if os.getuid():
        return ""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _call(user: str, *argv: object) -> None:
    words = [str(word) for word in argv]
    subprocess.run(words, check=True, user=user or None, capture_output=True, cwd="/", timeout=HANG_S, env=_plain())


def _plain() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LC_ALL": "C"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
