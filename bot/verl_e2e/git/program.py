"""Starts git. No other module does: which settings, which environment and which limits apply is decided here.

The author of a change decides what a repository holds, and sometimes how it is configured. So git runs no hook, file
system monitor, pager or credential helper, reads no configuration of the user or the machine, fetches nothing that a
partial clone does not have, and reaches the network only where it is given a `Remote`.
"""

import base64
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from tempfile import TemporaryFile
from urllib.parse import urlsplit

from verl_e2e.core.model.errors import ForgeError

SUBMODULE_MODE = "160000"
# The command that asks for the unpacked bytes of objects; its input is `id_lines`.
OBJECT_SIZES = ("cat-file", "--batch-check=%(objectname) %(objectsize)")


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One entry of a commit's tree."""

    mode: str
    """As git prints it: `100644` and `100755` are files, `120000` a symbolic link, `160000` a submodule."""
    kind: str
    """`blob`, `tree` or `commit`."""
    id: str
    """The object's id."""
    path: str
    """From the top of the repository."""


@dataclass(frozen=True, slots=True)
class DiffEntry:
    """One path that differs between two trees; a side that does not exist has a mode and an id of zeros."""

    old_mode: str
    new_mode: str
    old_id: str
    new_id: str
    status: str
    """One letter: A, M, D, R, C or T."""
    path: str
    """The path after the change, the path before it for a removal."""
    old_path: str | None = None
    """Of a rename or copy the path that it came from."""


def id_lines(ids: Iterable[str]) -> bytes:
    """Object ids as `cat-file` and `fetch --stdin` read them."""
    return "".join(f"{object_id}\n" for object_id in ids).encode("ascii")


def tree_entries(output: bytes) -> Iterator[TreeEntry]:
    """Parse `ls-tree -z`: mode, type and object, a tab, the name."""
    for row in filter(None, output.split(b"\0")):
        meta, _, name = row.partition(b"\t")
        mode, kind, object_id = meta.decode("ascii").split(" ")
        yield TreeEntry(mode, kind, object_id, _name(name))


def diff_entries(output: bytes) -> Iterator[DiffEntry]:
    """Parse `diff-tree -r -z --raw --no-abbrev`: modes, objects and status, the name, of a rename one more name."""
    fields = iter(output.split(b"\0"))
    for head in filter(None, fields):
        old_mode, new_mode, old_id, new_id, status = head.decode("ascii").removeprefix(":").split(" ")
        first = _name(next(fields))
        renamed = status[0] in "RC"
        path, old_path = (_name(next(fields)), first) if renamed else (first, None)
        yield DiffEntry(old_mode, new_mode, old_id, new_id, status[0], path, old_path)


def object_sizes(output: bytes) -> dict[str, int]:
    """Parse what `SIZES` prints, without the objects that are missing."""
    rows = (line.split(" ") for line in output.decode("ascii", "replace").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def blob_contents(output: bytes) -> Iterator[tuple[str, bytes]]:
    """Parse `cat-file --batch`: `id type size`, the content, a newline; or `id missing`. Gives ids and contents."""
    start = 0
    while (end := output.find(b"\n", start)) >= 0:
        head = output[start:end].split(b" ")
        start = end + 1
        if len(head) == 3 and head[2].isdigit():
            size = int(head[2])
            content = output[start : start + size]
            if head[1] == b"blob" and len(content) == size:
                yield head[0].decode("ascii"), content
            start += size + 1


def status_paths(output: bytes) -> Iterator[str]:
    """Parse `status --porcelain=v1 -z --no-renames`: two letters, a blank, the name."""
    return (_name(row[3:]) for row in output.split(b"\0") if row)


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


_POLL_S = 0.2
_PIPE_BYTES = 1 << 20
_STDERR_BYTES = 64 << 10
_OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory|mmap failed|Cannot allocate memory|exceeded maximum allowed tree depth")
_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_PAGER": "cat",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",
}
_NO_NETWORK = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
# How this machine reaches the network is its owner's decision, and git learns it from the environment only.
_NETWORK_VARIABLES = (
    *("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "all_proxy", "no_proxy"),
    *("GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "core.untrackedCache": "false",
    "credential.helper": "",
    "protocol.allow": "never",
    "protocol.ext.allow": "never",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    # The caller named the folder, so its owner does not matter; and nothing that a commit holds is executed.
    "safe.directory": "*",
    # So that git fits into the memory that it may take, on a host of any size.
    "pack.threads": "2",
    "core.packedGitWindowSize": "32m",
    "core.packedGitLimit": "256m",
    "core.deltaBaseCacheLimit": "64m",
    "core.bigFileThreshold": "8m",
}
_REMOTE_SETTINGS = {"protocol.version": "2", "http.lowSpeedLimit": "1000", "http.lowSpeedTime": "60"}


@dataclass(frozen=True, slots=True)
class GitLimits:
    """What one git command may take, and what is read: the author of a change decides what a few bytes unpack to."""

    time_s: float = 120.0
    """Seconds from its start to its end."""
    output_bytes: int = 64 << 20
    """What it may print."""
    memory_bytes: int | None = None
    """Address space of each of its processes; None for no limit of ours."""
    content_bytes: int = 4 << 20
    """The largest file that is read; only lock files are this large, and the planner looks at them too."""
    read_bytes: int = 256 << 20
    """The files that are read at once, together."""


@dataclass(frozen=True, slots=True)
class Remote:
    """The one repository on the network that a command may reach."""

    url: str
    """Where it is fetched from."""
    token: str | None = field(default=None, repr=False)
    """The access token for the URL's host, None for no token."""


class Stop(Enum):
    """Why a command has no exit code."""

    MISSING = auto()
    """git is not installed."""
    TIME = auto()
    """It took longer than `GitLimits.time_s`."""
    OUTPUT = auto()
    """It printed more than `GitLimits.output_bytes`."""
    EXCESS = auto()
    """The caller's `excess` ended it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a git command ended."""

    command: tuple[str, ...]
    """As it was started."""
    code: int | None
    """The exit code, negative for a signal; None when it was stopped."""
    output: bytes = b""
    """Its standard output, empty when it was stopped."""
    stderr: str = ""
    """The first 64 KiB of its standard error."""
    stop: Stop | None = None
    """Why it was stopped, None when it ended by itself."""
    ending: str = ""
    """How it ended, for a sentence: `ended with 128`, `took more than 120 s`."""

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.code == 0

    @property
    def exhausted(self) -> bool:
        """Whether it ended because it needed more than a process may take."""
        return self.code is not None and (self.code < 0 or _OUT_OF_MEMORY.search(self.stderr) is not None)

    @property
    def error(self) -> str:
        """The first line in which git names an error, at most 300 characters."""
        lines = self.stderr.strip().splitlines()
        named = [line for line in lines if line.startswith(("fatal: ", "error: "))]
        first = next(iter(named or lines), "no message")
        return first.removeprefix("fatal: ").removeprefix("error: ")[:300]


@dataclass(frozen=True, slots=True)
class Git:
    """git on one repository."""

    git_dir: Path
    """The repository's git directory, or the file `.git` that points to it. git looks for no other one."""
    work_tree: Path | None = None
    """The checkout, None for a bare repository."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of these variables PATH is used, and with a `Remote` those of proxies and certificates."""
    limits: GitLimits = GitLimits()
    """What each command may take."""
    own_session: bool = False
    """Whether each command gets a session of its own, so that stopping it ends the programs that it started too.

    Not in a child process with limits, whose own end must end git as well.
    """
    objects: Path | None = None
    """A further folder of objects to read from."""

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        settings: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        remote: Remote | None = None,
        output_bytes: int | None = None,
        excess: Callable[[], str] | None = None,
        keep_open: Iterable[int] = (),
    ) -> Finished:
        """Run one command to its end or to a limit.

        `settings` and `variables` come on top of those of each command. `excess` is asked again and again and ends the
        command by giving a reason, as `brought more than 1 MiB`. `keep_open` are files that git holds open as we do.
        """
        place = [] if self.work_tree is None else [f"--work-tree={self.work_tree.absolute()}"]
        command = ("git", f"--git-dir={self.git_dir.absolute()}", *place, *arguments)
        program = shutil.which("git", path=self.environ.get("PATH"))
        if program is None:
            stderr = "git is not installed on this machine; install it and see that it is on PATH"
            return Finished(command, None, b"", stderr, Stop.MISSING, "could not be started")
        limits = self.limits if output_bytes is None else replace(self.limits, output_bytes=output_bytes)
        with TemporaryFile() as given, TemporaryFile() as errors:
            given.write(stdin)
            given.seek(0)
            process = subprocess.Popen(
                [os.fsencode(part) for part in (program, *command[1:])],
                env=self._environment(remote, settings or {}, variables or {}),
                cwd="/",
                stdin=given,
                stdout=subprocess.PIPE,
                pipesize=_PIPE_BYTES,
                stderr=errors,
                start_new_session=self.own_session,
                pass_fds=tuple(keep_open),
            )
            try:
                ours, _ = resource.getrlimit(resource.RLIMIT_AS)
                most = limits.memory_bytes
                # One that may take less keeps that limit.
                if (
                    most is not None
                    and hasattr(resource, "prlimit")
                    and (ours == resource.RLIM_INFINITY or ours > most)
                ):
                    with suppress(OSError, ValueError):
                        resource.prlimit(process.pid, resource.RLIMIT_AS, (most, most))
                output, stop, ending = _watch(process, limits, excess)
            finally:
                if process.returncode is None:
                    # Not waited for yet, so its number belongs to no other process.
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL) if self.own_session else process.kill()
                    process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            errors.seek(0)
            stderr = errors.read(_STDERR_BYTES).decode("utf-8", "backslashreplace")
        if stop is not None:
            return Finished(command, None, b"", stderr, stop, ending)
        return Finished(command, process.returncode, output, stderr, ending=f"ended with {process.returncode}")

    def borrow(self, objects: Path, *options: str) -> Finished:
        """Make an empty repository here that reads the objects of another one where they are."""
        bare = () if self.work_tree is not None else ("--bare",)
        finished = self.run("init", "--quiet", *bare, "--template=", *options)
        if finished.ok:
            info = self.git_dir / "objects" / "info"
            info.mkdir(exist_ok=True)
            (info / "alternates").write_bytes(os.fsencode(f"{_quoted(objects)}\n"))
        return finished

    def _environment(
        self, remote: Remote | None, settings: Mapping[str, str], variables: Mapping[str, str]
    ) -> dict[str, str]:
        environment = {**_ENVIRONMENT, "PATH": self.environ.get("PATH", os.defpath), **variables}
        if self.objects is not None:
            environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(self.objects)
        merged = {**_SETTINGS, **settings}
        if remote is None:
            environment |= _NO_NETWORK
        else:
            environment |= {name: self.environ[name] for name in _NETWORK_VARIABLES if name in self.environ}
            environment["GIT_ALLOW_PROTOCOL"] = urlsplit(remote.url).scheme
            merged |= {**_REMOTE_SETTINGS, "remote.origin.url": remote.url}
            if remote.token:
                parts = urlsplit(remote.url)
                text = base64.b64encode(f"x-access-token:{remote.token}".encode()).decode()
                merged[f"http.{parts.scheme}://{parts.netloc}/.extraHeader"] = f"Authorization: Basic {text}"
                # A token goes to the host that it was meant for, and nowhere that this one may point to.
                merged["http.followRedirects"] = "false"
        # On no command line, where other users of the machine could read a token.
        environment["GIT_CONFIG_COUNT"] = str(len(merged))
        for position, (key, value) in enumerate(merged.items()):
            environment |= {f"GIT_CONFIG_KEY_{position}": key, f"GIT_CONFIG_VALUE_{position}": value}
        return environment


def _quoted(folder: Path) -> str:
    """A folder of objects as git lists them; one with a colon or a line's end in its name is quoted as in C."""
    text = str(folder)
    if not any(mark in text for mark in ':\n"\\'):
        return text
    return '"' + text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'


def _watch(
    process: "subprocess.Popen[bytes]", limits: GitLimits, excess: Callable[[], str] | None
) -> tuple[bytes, Stop | None, str]:
    """What a command prints, read as it comes, until it ends; or why it may not go on, and that in words."""
    assert process.stdout is not None
    source = process.stdout.fileno()
    readable = select.poll()
    readable.register(source, select.POLLIN)
    ends, output = time.monotonic() + limits.time_s, bytearray()
    while (left_s := ends - time.monotonic()) > 0:
        if excess is not None and (reason := excess()):
            return b"", Stop.EXCESS, reason
        if not readable.poll(1000 * min(_POLL_S, left_s)):
            continue
        if chunk := os.read(source, _PIPE_BYTES):
            output += chunk
            if len(output) > limits.output_bytes:
                return b"", Stop.OUTPUT, f"printed more than {limits.output_bytes >> 20} MiB"
            continue
        _wait(process, left_s)
        if time.monotonic() < ends:
            return bytes(output), None, ""
    return b"", Stop.TIME, f"took more than {limits.time_s:g} s"


def _wait(process: "subprocess.Popen[bytes]", limit_s: float) -> None:
    """Wait for the end of a git that printed all, or kill it; `Popen.wait` with a limit sleeps longer than it runs."""
    timer = threading.Timer(limit_s, process.kill)
    # An interruption may come while it starts, and no exit of ours waits for it.
    timer.daemon = True
    try:
        timer.start()
        process.wait()
    finally:
        timer.cancel()


class TooMuchError(ForgeError):
    """A fetch was stopped, because it took too long or brought too much."""


class FetchFailure(Enum):
    """Why a fetch failed: how git says so, and the sentence of the error."""

    def __init__(self, pattern: str, sentence: str) -> None:
        self.pattern, self.sentence = pattern, sentence

    UNKNOWN_OBJECT = (
        r"not our ref|couldn't find remote ref|no such remote ref|unadvertised object",
        "{host} no longer has what was asked for of {repository}: {error}",
    )
    DISK = (
        r"No space left on device|Disk quota exceeded|Read-only file system|Permission denied",
        "The clone of {repository} could not be written: {error}; free space, or name another cache",
    )
    DENIED = (
        r"returned error: 40[13]|Authentication failed|could not read (Username|Password)|Access denied",
        "{host} does not let us read {repository}: give a token that may, in {credential}",
    )
    ABSENT = (
        r"returned error: 404|repository '.*' not found|Repository not found|unable to update url base",
        "{host} has no repository {repository}, or it is private: check it, or set {credential}",
    )
    NETWORK = (
        r"unable to access|Could not resolve|Failed to connect|timed out|RPC failed|early EOF|unexpected disconnect"
        r"|remote end hung up|curl \d+|HTTP [45]\d\d|returned error: \d+|SSL|expected flush|bad line length",
        "{repository} could not be fetched from {host}: {error}; try again later",
    )
    # Of what nothing else explains.
    DAMAGE = ("", "git could not fetch {repository} from {host}: {error}")
    # Of one that we ended ourselves, so that no pattern is looked for.
    STOPPED = ("", "Fetching {repository} from {host} {ending}, and was stopped")


_OBJECT = re.compile(r"not our ref ([0-9a-f]{40,64})")


def cause_of(finished: Finished) -> FetchFailure:
    """Why a fetch failed; what nothing else explains is damage of the clone."""
    if finished.stop is not None:
        return FetchFailure.STOPPED
    return next(cause for cause in FetchFailure if re.search(cause.pattern, finished.stderr))


def unknown_object(finished: Finished) -> str | None:
    """The object that the other side does not have, where it says so."""
    found = _OBJECT.search(finished.stderr)
    return found[1] if found else None


def fetch_error(finished: Finished, url: str, credential: str) -> ForgeError:
    """The failure in one sentence with what to do; `credential` is the variable that gives a token."""
    parts, cause = urlsplit(url), cause_of(finished)
    if finished.stop is Stop.MISSING:
        return ForgeError(finished.error)
    names = {"repository": parts.path.strip("/").removesuffix(".git"), "host": parts.hostname, "error": finished.error}
    kind = TooMuchError if cause is FetchFailure.STOPPED else ForgeError
    text = cause.sentence.format(**names, ending=finished.ending, credential=credential)
    return kind(text, passing=cause in {FetchFailure.STOPPED, FetchFailure.NETWORK, FetchFailure.DAMAGE})
