"""A change: what a pull request does to the tree, as names and commits, with no file contents."""

from dataclasses import dataclass
from enum import StrEnum


class PathStatus(StrEnum):
    """What happened to a path; the words are GitHub's. `changed` is a new file type or mode."""

    ADDED = "added"
    MODIFIED = "modified"
    REMOVED = "removed"
    RENAMED = "renamed"
    COPIED = "copied"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class SubmoduleBump:
    """The commits that a submodule path points at, before and after; None where it does not exist."""

    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class ChangedPath:
    """One path of the change. `old_path` is set for a rename or copy, `submodule` for a submodule's path.

    Bytes of a name that are not UTF-8 are kept as lone surrogates; `readable` makes such a name printable.
    """

    path: str
    status: PathStatus
    old_path: str | None = None
    submodule: SubmoduleBump | None = None

    def names(self) -> tuple[str, ...]:
        """The names that count in planning: a rename counts twice, by its old and its new name."""
        if self.status is PathStatus.RENAMED and self.old_path is not None:
            return (self.old_path, self.path)
        return (self.path,)


@dataclass(frozen=True, slots=True)
class Change:
    """What lies between two commits: full SHAs, and the paths that differ from the merge base to the head.

    `merge_base` is None when the two have no common ancestor in this repository, or more than one merge base; then
    the paths are those that differ between base and head themselves: whatever merging changes is among them.
    """

    base: str
    head: str
    merge_base: str | None
    paths: tuple[ChangedPath, ...]

    def names(self) -> tuple[str, ...]:
        """Every name that counts in planning, once, in order of name."""
        return tuple(sorted({name for path in self.paths for name in path.names()}))


@dataclass(frozen=True, slots=True)
class Merge:
    """What merging a head into its base gives: a commit with both as parents, None where it conflicts or has none.

    `problem` says why it could not be tried; a merge that conflicts has none.
    """

    commit: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HistoryCommit:
    """A commit on the first-parent line of a branch. Author and subject are whatever someone wrote there."""

    # Its full SHA.
    sha: str
    # The commit before it on the line.
    parent: str
    # The name of its author, as git has it.
    author: str
    # The first line of its message.
    subject: str


def readable(name: str) -> str:
    """The name with lone surrogates written as `\\xNN`: safe to encode as UTF-8, unchanged when it already is."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def on_one_line(name: str) -> str:
    """`readable`, with control characters escaped as well: safe to print."""
    shown = readable(name)
    return shown if shown.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
