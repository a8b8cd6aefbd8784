"""A bare git repository of the stand-in: commits are written by `git fast-import`, everything else is plain git."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.patience import HANG_S

_CLEAN = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "GIT_AUTHOR_NAME": "Octo",
    "GIT_AUTHOR_EMAIL": "octo@example.invalid",
    "GIT_COMMITTER_NAME": "Octo",
    "GIT_COMMITTER_EMAIL": "octo@example.invalid",
}
_STATUS = {"A": "added", "M": "modified", "D": "removed", "R": "renamed", "C": "copied", "T": "changed"}
_NOTHING = "0" * 40
_FIRST_DATE = 1_767_225_600
_OBJECT = re.compile(r"[0-9a-f]{40}").fullmatch
_SETTINGS = """[uploadpack]
	allowFilter = true
	allowAnySHA1InWant = true
[http]
	receivepack = false
[gc]
	auto = 0
"""


@dataclass(frozen=True, slots=True)
class Moved:
    """A file's new name, given in place of its content."""

    to: str


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule's commit, given in place of a content."""

    commit: str


# What a commit does to a path: new content, a submodule's commit, a new name, or None to remove it.
Edit = str | bytes | Submodule | Moved | None


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One file of a diff as the API lists it."""

    path: str
    status: str
    previous: str | None
    blob: str | None
    additions: int
    deletions: int


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What the API shows of a commit."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    message: str
    date: str


class BareRepository:
    """A bare repository in a folder that need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._commits = 0
        self._diffs: dict[tuple[str, str], tuple[ChangedFile, ...]] = {}
        # Answers of git about objects that are named by their ids: they never change, and a process takes long.
        self._known: dict[tuple[str, ...], bytes] = {}
        if not path.exists():
            command = ["git", "init", "--quiet", "--bare", "--template=", "-b", "main", str(path)]
            subprocess.run(command, env=_CLEAN, check=True)
        config = path / "config"
        if _SETTINGS not in (settings := config.read_text()):
            config.write_text(settings + _SETTINGS)

    def git(self, *arguments: str, data: bytes | None = None) -> bytes:
        """The output of one git command in this repository; CalledProcessError."""
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, env=_CLEAN, input=data, capture_output=True, check=True, timeout=HANG_S).stdout

    def text(self, *arguments: str) -> str:
        """`git`, as stripped text."""
        return self.git(*arguments).decode("utf-8", "surrogateescape").strip()

    def about(self, objects: tuple[str, ...], *arguments: str) -> bytes:
        """`git`, asked once for an answer that depends on the named objects alone."""
        if not all(map(_OBJECT, objects)):
            return self.git(*arguments)
        if arguments not in self._known:
            self._known[arguments] = self.git(*arguments)
        return self._known[arguments]

    def text_about(self, objects: tuple[str, ...], *arguments: str) -> str:
        """`about`, as stripped text."""
        return self.about(objects, *arguments).decode("utf-8", "surrogateescape").strip()

    def commit(self, ref: str, edits: Mapping[str, Edit], message: str, parents: tuple[str, ...] | None = None) -> str:
        """Commit edits onto a ref (`refs/heads/...`), or onto other parents with `parents`; gives the commit."""
        self._commits += 1
        if parents is None:
            found = self.find(ref)
            parents = (found,) if found else ()
        lines = [
            f"commit {ref}",
            "mark :1",
            f"committer Octo <octo@example.invalid> {_FIRST_DATE + self._commits} +0000",
        ]
        lines += [f"data {len(message.encode())}", message]
        lines += [f"{'merge' if at else 'from'} {parent}" for at, parent in enumerate(parents)]
        stream = b"".join(line.encode() + b"\n" for line in lines)
        stream += b"".join(_edit(path, edit) for path, edit in edits.items())
        if not parents:
            stream = f"reset {ref}\n".encode() + stream
        # It is told the commit's id by its mark.
        return self.git("fast-import", "--quiet", "--force", data=stream + b"get-mark :1\n").decode().strip()

    def find(self, revision: str) -> str | None:
        """The commit that a revision names, None when there is none."""
        # A ref as git itself writes it first; it is read without a process.
        for below in ("", "refs/tags", "refs/heads"):
            loose = self.path / below / revision
            if (below or revision.startswith("refs/")) and loose.is_file():
                revision = loose.read_text().strip()
                break
        try:
            return self.text_about((revision,), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        except subprocess.CalledProcessError:
            return None

    def update_ref(self, ref: str, commit: str) -> None:
        """Point a ref at a commit."""
        self.git("update-ref", ref, commit)

    def delete_ref(self, ref: str) -> None:
        """Remove a ref."""
        self.git("update-ref", "-d", ref)

    def take(self, other: "BareRepository", commit: str, ref: str) -> None:
        """Fetch a commit with its history from another repository."""
        self.git("fetch", "--quiet", "--no-tags", str(other.path), f"+{commit}:{ref}")

    def merge_base(self, item: str, other: str) -> str | None:
        """Where two commits part."""
        try:
            return self.text_about((item, other), "merge-base", item, other)
        except subprocess.CalledProcessError:
            return None

    def merge_tree(self, item: str, other: str) -> str | None:
        """The tree of a merge, None when it conflicts."""
        try:
            return self.text_about((item, other), "merge-tree", "--write-tree", item, other).splitlines()[0]
        except subprocess.CalledProcessError:
            return None

    def commit_tree(self, tree: str, parents: tuple[str, ...], message: str) -> str:
        """A commit of a tree, on no branch."""
        named = [word for parent in parents for word in ("-p", parent)]
        return self.text("commit-tree", tree, *named, "-m", message)

    def changed(self, base: str, head: str) -> tuple[ChangedFile, ...]:
        """The files that differ, renames found."""
        key = (base, head)
        if key not in self._diffs:
            self._diffs[key] = self._changed(base, head)
        return self._diffs[key]

    def show_as(self, base: str, head: str, changed: tuple[ChangedFile, ...]) -> None:
        """Give these for what differs between two commits, and do not look."""
        self._diffs[(base, head)] = changed

    def _changed(self, base: str, head: str) -> tuple[ChangedFile, ...]:
        options = ("-r", "-M", "-l0", "-z", "--abbrev=40", "--no-commit-id")
        raw = self.git("diff-tree", *options, "--raw", base, head).decode("utf-8", "surrogateescape").split("\0")
        counted = self.git("diff-tree", *options, "--numstat", base, head).decode("utf-8", "surrogateescape")
        counts = _counts(counted.split("\0"))
        found = []
        at = 0
        while at < len(raw) - 1:
            _, _, old, new, status = raw[at].split(" ")
            two = status[0] in "RC"
            previous, path = (raw[at + 1], raw[at + 2]) if two else (None, raw[at + 1])
            at += 3 if two else 2
            added, deleted = counts.get(path, (0, 0))
            blob = old if new == _NOTHING else new
            found.append(ChangedFile(path, _STATUS[status[0]], previous, blob, added, deleted))
        return tuple(found)

    def tree(self, revision: str, *, recursive: bool) -> tuple[tuple[str, str, str, str], ...]:
        """(mode, type, id, path) of a tree's entries."""
        options = ("-r", "-t") if recursive else ()
        lines = (
            self.about((revision,), "ls-tree", "-z", *options, revision).decode("utf-8", "surrogateescape").split("\0")
        )
        parted = [line.partition("\t") for line in lines if line]
        return tuple((*_three(head), path) for head, _, path in parted)

    def entry(self, revision: str, path: str) -> tuple[str, str] | None:
        """The type and id of what lies at a path."""
        line = self.text_about((revision,), "ls-tree", revision, "--", path)
        if not line:
            return None
        _, kind, name = _three(line.partition("\t")[0])
        return kind, name

    def blob(self, name: str) -> bytes | None:
        """A content by id."""
        try:
            return self.about((name,), "cat-file", "blob", name)
        except subprocess.CalledProcessError:
            return None

    def facts(self, revision: str) -> CommitFacts:
        """What a commit is."""
        form, date = "--format=%H%n%T%n%P%n%cd%n%B", "--date=format:%Y-%m-%dT%H:%M:%SZ"
        shown = self.text_about((revision,), "log", "--no-walk", form, date, revision)
        sha, tree, parents, date, *message = shown.split("\n")
        return CommitFacts(sha, tree, tuple(parents.split()), "\n".join(message).strip(), date)

    def between(self, base: str, head: str) -> tuple[str, ...]:
        """The commits of head that base has not, oldest first."""
        return tuple(self.text_about((base, head), "rev-list", "--reverse", f"{base}..{head}").split())

    def branches(self) -> tuple[str, ...]:
        """The names of the branches."""
        return tuple(self.text("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").split())


def _three(text: str) -> tuple[str, str, str]:
    one, two, three = text.split()
    return one, two, three


def _edit(path: str, edit: Edit) -> bytes:
    name = path.encode("utf-8", "surrogateescape")
    if edit is None:
        return b"D " + name + b"\n"
    if isinstance(edit, Moved):
        return b'R "' + name + b'" ' + edit.to.encode() + b"\n"
    if isinstance(edit, Submodule):
        return f"M 160000 {edit.commit} ".encode() + name + b"\n"
    content = edit.encode() if isinstance(edit, str) else edit
    return b"M 100644 inline " + name + f"\ndata {len(content)}\n".encode() + content + b"\n"


def _counts(fields: list[str]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    at = 0
    while at < len(fields) - 1:
        added, deleted, path = fields[at].split("\t")
        if not path:
            path = fields[at + 2]
            at += 2
        at += 1
        found[path] = (0 if added == "-" else int(added), 0 if deleted == "-" else int(deleted))
    return found
