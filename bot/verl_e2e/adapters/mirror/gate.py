"""Runs git on one clone: an argument list, closed surroundings, a time limit and a limit on what it may bring."""

import base64
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from urllib.parse import urlsplit

from verl_e2e.ports import ForgeError

_PULSE_S = 0.2
_TOLD_BYTES = 64 << 10
_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_PAGER": "cat",
}
# How this machine reaches the network at all is its owner's business, and git learns it from the environment only.
PASSED_ON = (
    "PATH",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "https_proxy",
    "http_proxy",
    "all_proxy",
    "no_proxy",
    "GIT_SSL_CAINFO",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_SETTINGS = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "credential.helper=",
    "safe.directory=*",
    "gc.auto=0",
    # So that git fits into the memory that it may take, on a host of any size.
    "pack.threads=2",
    "core.packedGitWindowSize=32m",
    "core.packedGitLimit=256m",
    "core.bigFileThreshold=8m",
    "maintenance.auto=false",
    "fetch.recurseSubmodules=false",
    "protocol.version=2",
    "protocol.ext.allow=never",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)
# Told on the command line and never kept: without them a clone is one that no git would try to complete.
_PARTIAL = ("remote.origin.promisor=true", "remote.origin.partialCloneFilter=blob:none")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a clone may take: seconds for one command and for waiting on another process, bytes, packs.

    `content_bytes` is the largest content that is read at all, and `read_bytes` what is read at once: whoever writes a
    change decides how much a small pack unpacks to. `output_bytes` and `memory_bytes` are for one git.
    """

    command_s: float = 600.0
    lock_s: float = 900.0
    fetch_bytes: int = 1 << 30
    disk_bytes: int = 4 << 30
    packs: int = 40
    content_bytes: int = 4 << 20
    read_bytes: int = 256 << 20
    output_bytes: int = 64 << 20
    memory_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a repository is fetched from; `token` is asked for before each fetch and gives None for nobody."""

    url: str
    token: Callable[[], str | None] = field(default=lambda: None, repr=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a git command ended; `code` is None when it was stopped, and `stopped` says why."""

    code: int | None
    out: bytes
    stderr: str
    stopped: str = ""


class Gate:
    """Git on one bare clone."""

    def __init__(self, place: Path, bounds: Bounds, surroundings: Mapping[str, str]) -> None:
        self.place = place
        self._bounds = bounds
        self._surroundings = {name: surroundings[name] for name in PASSED_ON if name in surroundings}
        self._surroundings.setdefault("PATH", os.defpath)
        found = shutil.which("git", path=self._surroundings["PATH"])
        if found is None:
            raise ForgeError("git is not installed on this machine; install it and see that it is on PATH")
        self._program = found

    def local(self, *arguments: str, given: bytes = b"") -> Ended:
        """Run a command that reaches no network."""
        return self._run(_SETTINGS, {"GIT_ALLOW_PROTOCOL": "none"}, arguments, given)

    def tidy(self, *arguments: str) -> Ended:
        """Run a local command that has to know that contents may be absent."""
        return self._run((*_SETTINGS, *_PARTIAL), {"GIT_ALLOW_PROTOCOL": "none"}, arguments, b"")

    def fetch(
        self,
        origin: Origin,
        *arguments: str,
        given: bytes = b"",
        settings: tuple[str, ...] = (),
        holding: int = -1,
    ) -> Ended:
        """Run `git fetch` from the origin; it keeps the file `holding` open for as long as it runs."""
        token = origin.token()
        more = (*_PARTIAL, f"remote.origin.url={origin.url}", *settings)
        scheme = urlsplit(origin.url).scheme
        allowed = {"GIT_ALLOW_PROTOCOL": scheme, **_authorization(origin.url, token)}
        options = ("--no-tags", "--no-write-fetch-head", "--quiet", "--filter=blob:none")
        return self._run((*_SETTINGS, *more), allowed, ("fetch", *options, *arguments), given, holding)

    def _run(
        self,
        settings: tuple[str, ...],
        allowed: Mapping[str, str],
        arguments: tuple[str, ...],
        given: bytes,
        holding: int = -1,
    ) -> Ended:
        chosen = [part for setting in settings for part in ("-c", setting)]
        command = [self._program, f"--git-dir={self.place.absolute()}", "--no-pager", *chosen, *arguments]
        with TemporaryFile() as asked, TemporaryFile() as out, TemporaryFile() as told:
            asked.write(given)
            asked.seek(0)
            process = subprocess.Popen(
                command,
                env={**_ENVIRONMENT, **self._surroundings, **allowed},
                stdin=asked,
                stdout=out,
                stderr=told,
                # Of its own session, so that stopping it stops the helpers that it started.
                start_new_session=True,
                pass_fds=(holding,) if holding >= 0 else (),
            )
            _limit(process, self._bounds.memory_bytes)
            try:
                stopped = self._watched(process, out.fileno())
            finally:
                _stop(process)
            out.seek(0)
            told.seek(0)
            if stopped:
                return Ended(None, b"", "", stopped)
            return Ended(process.returncode, out.read(), told.read(_TOLD_BYTES).decode("utf-8", "backslashreplace"))

    def _watched(self, process: "subprocess.Popen[bytes]", out: int) -> str:
        """Wait for the end; gives why it may not go on, empty when it ended by itself."""
        ends = time.monotonic() + self._bounds.command_s
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PULSE_S)
            if why := self._excess(ends, out):
                return why
            if process.returncode is not None:
                return ""

    def _excess(self, ends: float, out: int) -> str:
        if time.monotonic() > ends:
            return f"took more than {self._bounds.command_s:g} s"
        if os.fstat(out).st_size > self._bounds.output_bytes:
            return f"told more than {self._bounds.output_bytes >> 20} MiB"
        if incoming(self.place) > self._bounds.fetch_bytes:
            return f"brought more than {self._bounds.fetch_bytes >> 20} MiB"
        return ""


def _limit(process: "subprocess.Popen[bytes]", memory_bytes: int) -> None:
    """Limit the memory of a git that was just started; one that is limited already keeps its limit."""
    with suppress(OSError, ValueError):
        resource.prlimit(process.pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def incoming(place: Path) -> int:
    """The bytes of packs that are not complete yet."""
    return sum(_size(path) for path in (place / "objects" / "pack").glob("tmp_*"))


def size_of(place: Path) -> int:
    """The bytes of all packs."""
    return sum(_size(path) for path in (place / "objects" / "pack").glob("*"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a git, if it has not ended, and what it started."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _authorization(url: str, token: str | None) -> dict[str, str]:
    """The token as a setting in the environment of one process: on no command line, in no file."""
    if not token:
        return {}
    parts = urlsplit(url)
    text = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    pairs = {
        f"http.{parts.scheme}://{parts.netloc}/.extraHeader": f"Authorization: Basic {text}",
        # A token goes to the host that it was meant for, and nowhere that this one may point to.
        "http.followRedirects": "false",
    }
    keys = {f"GIT_CONFIG_KEY_{at}": key for at, key in enumerate(pairs)}
    values = {f"GIT_CONFIG_VALUE_{at}": value for at, value in enumerate(pairs.values())}
    return {"GIT_CONFIG_COUNT": str(len(pairs)), **keys, **values}
