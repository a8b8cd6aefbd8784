"""A git repository, read by its objects alone: no work tree, no hooks, no configuration but its own, no network.

Errors:

    GitError                 everything that this module raises
    +- RepositoryError       the user's mistake; the message is one sentence that names the mend
    |  +- NotARepositoryError
    |  +- UnknownRevisionError
    +- GitFailedError        git itself failed or ran out of time; holds command, code and stderr

Beside them `verl_e2e.ports.LimitError`, for what would take more than is read.
"""

import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump
from verl_e2e.core.model.errors import UserError
from verl_e2e.ports import LimitError

TIMEOUT_S = 120.0
# What is read of a repository at all: whoever wrote the change decides how much a few small objects unpack to.
MOST_ENTRIES = 200_000
MOST_PATHS = 20_000
MOST_PATH_BYTES = 4096
# Of one file; only lock files are this large, and the planner looks at them too.
CONTENT_BYTES = 4 << 20
_LISTED_BYTES = 64 << 20
_READ_BYTES = 256 << 20
_TOLD_BYTES = 64 << 10
_OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory|mmap failed|Cannot allocate memory|exceeded maximum allowed tree depth")
_STATUSES = {
    "A": PathStatus.ADDED,
    "M": PathStatus.MODIFIED,
    "D": PathStatus.REMOVED,
    "R": PathStatus.RENAMED,
    "C": PathStatus.COPIED,
    "T": PathStatus.CHANGED,
}
_SUBMODULE_MODE = "160000"

# Nothing of the caller's environment or configuration reaches git, and git reaches no network: a repository
# under test may have been prepared by whoever wrote the change.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_PAGER": "cat",
}
_SETTINGS = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "core.quotePath=false",
    "core.untrackedCache=false",
    "protocol.allow=never",
    "protocol.ext.allow=never",
    # A window onto a pack must fit into the memory that a limited process has.
    "core.packedGitWindowSize=32m",
    "core.packedGitLimit=256m",
    "core.deltaBaseCacheLimit=64m",
    "core.bigFileThreshold=8m",
    # The caller named this folder, so whose it is does not matter; and nothing that a commit holds is executed.
    "safe.directory=*",
)

_DIFF = (
    "diff-tree",
    "-r",
    "-z",
    "--raw",
    "--no-abbrev",
    "--no-commit-id",
    "--no-ext-diff",
    "--no-textconv",
    "--ignore-submodules=none",
)


class GitError(Exception):
    """Reading a repository failed."""


class RepositoryError(UserError, GitError):
    """The user's mistake, told in one sentence with its mend."""


class NotARepositoryError(RepositoryError):
    """The folder is neither a checkout nor a git directory."""


class UnknownRevisionError(RepositoryError):
    """The repository has no such commit."""


class GitFailedError(GitError):
    """A git command failed: `command` as typed, its exit `code` (None after a timeout) and `stderr`."""

    def __init__(self, command: Sequence[str], code: int | None, stderr: str) -> None:
        self.command = tuple(command)
        self.code = code
        self.stderr = stderr
        ended = "ran out of time" if code is None else f"exited with {code}"
        super().__init__(f"{' '.join(self.command)} {ended}: {stderr.strip() or 'no message'}")


class GitRepository:
    """A checkout or a bare git directory, by its path. Reads only; holds the paths, and which full SHAs it has seen."""

    def __init__(self, path: str | Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self.path = Path(path)
        self._timeout_s = timeout_s
        self._git_dir = _git_dir(self.path)
        self._commits: set[str] = set()
        self._program = shutil.which("git")
        if self._program is None:
            raise RepositoryError("git is not installed on this machine; install it and see that it is on PATH")
        code, _, stderr = self._try("rev-parse", "--git-dir")
        if code:
            raise NotARepositoryError(
                f"{self.path} is no usable git repository ({_first_line(stderr)}); {_NAME_ANOTHER}"
            )

    def resolve(self, revision: str) -> str:
        """The full SHA of the commit that a revision names; raises UnknownRevisionError."""
        if "\0" in revision:
            raise UnknownRevisionError(self._unknown(revision))
        if revision in self._commits:
            return revision
        code, out, _ = self._try("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        sha = out.decode("ascii", "replace").strip()
        if code or not sha:
            raise UnknownRevisionError(self._unknown(revision))
        self._commits.add(sha)
        return sha

    def merge_base(self, one: str, other: str) -> str | None:
        """The best common ancestor of two commits, None when they have none here."""
        arguments = ("merge-base", one, other)
        code, out, stderr = self._try(*arguments)
        if code == 1 and not stderr.strip():
            return None
        if code:
            raise GitFailedError(self._command(arguments), code, stderr)
        return out.decode("ascii").strip()

    def change(self, base: str, head: str) -> Change:
        """What the head changed since it left the base: merge base to head, or base to head without a merge base."""
        base_sha, head_sha = self.resolve(base), self.resolve(head)
        # Git holds every difference in memory before it tells the first; a tree is told as it is read.
        self.tree(head_sha)
        merge_base = self.merge_base(base_sha, head_sha)
        return Change(base_sha, head_sha, merge_base, self.changed_paths(merge_base or base_sha, head_sha))

    def changed_paths(self, old: str, new: str, *, renames: bool = True) -> tuple[ChangedPath, ...]:
        """The paths that differ between two commits, submodules with both commits.

        A rename is one path with both names, or with `renames` false two paths: contents are then not looked into.
        """
        code, out, _ = self._try(*_DIFF, "--find-renames", "-l2000", old, new) if renames else (1, b"", "")
        if code:
            # A partial clone lacks the contents that renames are found by; unfound, both names are there all the same.
            out = self._run(*_DIFF, "--no-renames", old, new)
        if out.count(b"\0") > 3 * MOST_PATHS:
            raise LimitError("the number of changed paths", f"{MOST_PATHS:,}")
        found = tuple(_changed_paths(out))
        if len(found) > MOST_PATHS:
            raise LimitError("the number of changed paths", f"{MOST_PATHS:,}")
        return found

    def read_blob(self, revision: str, path: str) -> bytes | None:
        """The content of a file at a commit; None when there is no file of that name, or it is a folder.

        LimitError for one larger than `CONTENT_BYTES`.
        """
        found = self._entry(self.resolve(revision), path)
        if found is None or found[1] != "blob":
            return None
        return self.read_objects([found[2]])[found[2]]

    def digest(self, revision: str, path: str) -> str | None:
        """The SHA-256 of a file's content at a commit, None when it is not there."""
        content = self.read_blob(revision, path)
        return None if content is None else hashlib.sha256(content).hexdigest()

    def submodule_commit(self, revision: str, path: str) -> str | None:
        """The commit that a submodule path points at, None when the path is no submodule at that commit."""
        found = self._entry(self.resolve(revision), path)
        return found[2] if found is not None and found[0] == _SUBMODULE_MODE else None

    def first_parents(self, head: str, count: int) -> tuple[tuple[str, str], ...]:
        """The last commits on the first-parent line up to `head`, newest first, each with its first parent."""
        out = self._run("rev-list", "--first-parent", "--parents", f"--max-count={count}", self.resolve(head))
        rows = (line.split() for line in out.decode("ascii").splitlines())
        return tuple((row[0], row[1]) for row in rows if len(row) > 1)

    def tree(self, revision: str, under: str = "") -> dict[str, str]:
        """The plain files at a commit below a folder, each with the id of its content; `links` has the others."""
        return {name: sha for mode, _, sha, name in self._entries(revision, under) if mode.startswith("100")}

    def links(self, revision: str) -> dict[str, str]:
        """The symbolic links of a commit, each with the id of its content, and the submodules with `commit SHA`."""
        entries = self._entries(revision, "")
        odd = ((kind, sha, name) for mode, kind, sha, name in entries if not mode.startswith("100"))
        return {name: f"commit {sha}" if kind == "commit" else sha for kind, sha, name in odd}

    def _entries(self, revision: str, under: str) -> Iterator[tuple[str, str, str, str]]:
        arguments = ["ls-tree", "-r", "-z", "--full-tree", self.resolve(revision)]
        out = self._run(*arguments, *(["--", _literal(under)] if under.strip("/") else []))
        if out.count(b"\0") > MOST_ENTRIES:
            raise LimitError("the number of files", f"{MOST_ENTRIES:,}")
        return _tree_entries(out)

    def read_objects(self, ids: Collection[str]) -> dict[str, bytes | None]:
        """Contents by id, in one go; None for what is not here, as in a partial clone, or larger than is read."""
        if not ids:
            return {}
        wanted = list(dict.fromkeys(ids))
        _, told, _ = self._try("cat-file", "--batch-check=%(objectname) %(objectsize)", given=_rows(wanted))
        _, out, _ = self._try("cat-file", "--batch", given=_rows(_readable(told)), most_bytes=2 * _READ_BYTES)
        found = dict(_batch(out))
        return {one: found.get(one) for one in wanted}

    def dirty_files(self) -> tuple[str, ...]:
        """Files of the work tree that differ from its commit, untracked ones included; empty for a bare directory."""
        if self._git_dir == self.path:
            return ()
        out = self._run("status", "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=none")
        return tuple(sorted(_dirty_names(out)))

    def origin(self) -> str:
        """Where the repository was cloned from, as host and path without a user or password; empty when unknown."""
        code, out, _ = self._try("config", "--local", "--get", "remote.origin.url")
        url = out.decode("utf-8", "backslashreplace").strip() if not code else ""
        return re.sub(r"^(?:[a-z+]+://)?(?:[^/@]*@)?", "", url.splitlines()[0]) if url else ""

    def is_shallow(self) -> bool:
        """Whether history was cut when the repository was cloned."""
        return self._run("rev-parse", "--is-shallow-repository").strip() == b"true"

    def _entry(self, sha: str, path: str) -> tuple[str, str, str] | None:
        """Mode, type and object of exactly this path at a commit."""
        if not path.strip("/") or "\0" in path:
            return None
        out = self._run("ls-tree", "-z", "--full-tree", sha, "--", _literal(path))
        return next((entry[:3] for entry in _tree_entries(out) if entry[3] == path.rstrip("/")), None)

    def _unknown(self, revision: str) -> str:
        subject = f"commit {revision!r} is not in {self.path}"
        if self.is_shallow():
            return f"{subject}, a shallow clone; run `git fetch --unshallow` there"
        return f"{subject}; fetch it there, or check the spelling"

    def _run(self, *arguments: str) -> bytes:
        code, out, stderr = self._try(*arguments)
        if code:
            raise GitFailedError(self._command(arguments), code, stderr)
        return out

    def _try(self, *arguments: str, given: bytes = b"", most_bytes: int = _LISTED_BYTES) -> tuple[int, bytes, str]:
        """The one gate to git: an argument list, no shell, a closed environment, limits of time and output."""
        command = self._command(arguments)
        raw = [os.fsencode(part) for part in command]
        with TemporaryFile() as asked, TemporaryFile() as told:
            asked.write(given)
            asked.seek(0)
            process = subprocess.Popen(raw, env=_ENVIRONMENT, stdin=asked, stdout=subprocess.PIPE, stderr=told)
            ends = time.monotonic() + self._timeout_s
            timer = threading.Timer(self._timeout_s, process.kill)
            timer.start()
            try:
                out = self._output(process, arguments[0], most_bytes)
            finally:
                timer.cancel()
                process.kill()
                process.wait()
            told.seek(0)
            stderr = told.read(_TOLD_BYTES).decode("utf-8", "backslashreplace")
        if time.monotonic() >= ends:
            raise GitFailedError(command, None, f"no answer in {self._timeout_s:g} s")
        if process.returncode < 0 or _OUT_OF_MEMORY.search(stderr):
            raise LimitError(f"what git {arguments[0]} needs for this repository", "what a process may take")
        return process.returncode, out, stderr

    def _output(self, process: "subprocess.Popen[bytes]", verb: str, most_bytes: int) -> bytes:
        """What git prints, read as it comes; LimitError as soon as it is too much."""
        assert process.stdout is not None
        with process.stdout as stdout:
            out = stdout.read(most_bytes + 1)
            if len(out) > most_bytes:
                raise LimitError(f"what git {verb} says of this repository", f"{most_bytes >> 20} MiB")
        process.wait()
        return out

    def _command(self, arguments: Sequence[str]) -> list[str]:
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        place = [f"--git-dir={self._git_dir.absolute()}"]
        if self._git_dir != self.path:
            place.append(f"--work-tree={self.path.absolute()}")
        return [self._program or "git", *place, "--no-pager", "--no-optional-locks", *settings, *arguments]


_NAME_ANOTHER = "name the top folder of a checkout, or a bare git directory"


def _git_dir(path: Path) -> Path:
    """Where git's own files are: `.git` below a checkout, or the folder itself. Never a folder above it."""
    if not path.is_dir():
        raise NotARepositoryError(f"{path} is no folder; {_NAME_ANOTHER}")
    if (path / ".git").exists():
        return path / ".git"
    if (path / "HEAD").exists() and (path / "objects").is_dir():
        return path
    raise NotARepositoryError(f"{path} is no git repository; {_NAME_ANOTHER}")


def _rows(ids: Iterable[str]) -> bytes:
    return "".join(f"{one}\n" for one in ids).encode("ascii")


def _readable(told: bytes) -> Iterator[str]:
    """Of `id size` lines the ids that may be read: no large content, and not too much in all."""
    left = _READ_BYTES
    for line in told.decode("ascii", "replace").splitlines():
        name, _, size = line.partition(" ")
        if size.isdigit() and int(size) <= min(CONTENT_BYTES, left):
            left -= int(size)
            yield name


def _literal(path: str) -> str:
    return f":(top,literal){path}"


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "no message").removeprefix("fatal: ")


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _changed_paths(out: bytes) -> Iterator[ChangedPath]:
    """Parse `diff-tree --raw -z`: `:modes and objects, status` NUL name NUL, and one more name for a rename."""
    fields = iter(out.split(b"\0"))
    for head in fields:
        if not head:
            return
        old_mode, new_mode, old_sha, new_sha, status = head.decode("ascii").removeprefix(":").split(" ")
        first = _name(next(fields))
        bump = _bump(old_mode, new_mode, old_sha, new_sha)
        kind = _STATUSES.get(status[0], PathStatus.CHANGED)
        if kind in {PathStatus.RENAMED, PathStatus.COPIED}:
            yield ChangedPath(_name(next(fields)), kind, old_path=first, submodule=bump)
        else:
            yield ChangedPath(first, kind, submodule=bump)


def _bump(old_mode: str, new_mode: str, old_sha: str, new_sha: str) -> SubmoduleBump | None:
    if _SUBMODULE_MODE not in {old_mode, new_mode}:
        return None
    old = old_sha if old_mode == _SUBMODULE_MODE else None
    return SubmoduleBump(old, new_sha if new_mode == _SUBMODULE_MODE else None)


def _tree_entries(out: bytes) -> Iterator[tuple[str, str, str, str]]:
    """Parse `ls-tree -z`: mode, type, object and name of each entry."""
    for entry in filter(None, out.split(b"\0")):
        meta, _, raw = entry.partition(b"\t")
        mode, kind, sha = meta.decode("ascii").split(" ")
        if len(raw) > MOST_PATH_BYTES:
            raise LimitError("the length of a path", f"{MOST_PATH_BYTES:,} bytes")
        yield mode, kind, sha, _name(raw)


def _batch(out: bytes) -> Iterator[tuple[str, bytes]]:
    """Parse `cat-file --batch`: `id type size`, the content, a newline; or `id missing`."""
    start = 0
    while (end := out.find(b"\n", start)) >= 0:
        head = out[start:end].split(b" ")
        start = end + 1
        if len(head) == 3 and head[2].isdigit():
            size = int(head[2])
            content = out[start : start + size]
            if head[1] == b"blob" and len(content) == size:
                yield head[0].decode("ascii"), content
            start += size + 1


def _dirty_names(out: bytes) -> Iterator[str]:
    """Parse `status --porcelain -z`: two letters, a space and a name; the old name of a rename follows it."""
    fields = iter(out.split(b"\0"))
    for field in fields:
        if not field:
            return
        yield _name(field[3:])
        if field[:1] in {b"R", b"C"}:
            yield _name(next(fields))
