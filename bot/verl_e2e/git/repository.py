"""A git repository, read by its objects alone: no work tree, no hooks, no configuration but its own, no network.

Errors:

    GitError                 everything that this module raises
    +- RepositoryError       the user's mistake; the message is one sentence that says what to do
    |  +- NotARepositoryError
    |  +- UnknownRevisionError
    +- GitFailedError        git itself failed or took too long; has the finished command

Besides, `LimitError` for what would take more than is read.
"""

import os
import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Generic, TypeVar
from weakref import finalize

from verl_e2e.core.model.change import Change, ChangedPath, HistoryCommit, Merge, PathStatus, SubmoduleBump
from verl_e2e.core.model.errors import LimitError, UserError
from verl_e2e.git.program import (
    OBJECT_SIZES,
    SUBMODULE_MODE,
    DiffEntry,
    Finished,
    Git,
    GitLimits,
    Stop,
    TreeEntry,
    blob_contents,
    diff_entries,
    id_lines,
    object_sizes,
    status_paths,
    tree_entries,
)

# What is read of a commit at all.
MAX_ENTRIES = 200_000
MAX_PATH_BYTES = 4096
# What is remembered of contents.
_MOST_CONTENT_BYTES = 64 << 20


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class SizedCache(Generic[_Key, _Value]):
    """At most `most` of any unit; a value of more than its `largest_part`th is not kept. Safe to use from threads."""

    def __init__(self, most: int, *, largest_part: int = 1) -> None:
        self._most, self._largest = most, most // largest_part
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self.size = 0
        """What the kept values take together."""

    def get(self, key: _Key) -> _Value | None:
        """The value that is kept under a key."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: _Key, value: _Value, size: int) -> None:
        """Keep a value in the place of the one before; those that were not asked for longest make way."""
        with self._lock:
            if key in self._kept:
                self.size -= self._kept.pop(key)[1]
            if size > self._largest:
                return
            self._kept[key] = (value, size)
            self.size += size
            while self.size > self._most:
                self.size -= self._kept.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True)
class Listing:
    """All that is in one commit."""

    files: Mapping[str, str]
    """The plain files, each with the id of its content."""
    links: Mapping[str, str]
    """The symbolic links, each with the id of its content, and the submodules with `commit SHA`."""

    @classmethod
    def of(cls, entries: Iterable[TreeEntry]) -> "Listing":
        """The listing of a commit's entries; LimitError for a path that is longer than is read."""
        files: dict[str, str] = {}
        links: dict[str, str] = {}
        for entry in entries:
            # No name has more bytes for a character than four.
            if 4 * len(entry.path) > MAX_PATH_BYTES and len(os.fsencode(entry.path)) > MAX_PATH_BYTES:
                raise LimitError("the length of a path", f"{MAX_PATH_BYTES:,} bytes")
            if entry.mode.startswith("100"):
                files[entry.path] = entry.id
            else:
                links[entry.path] = f"commit {entry.id}" if entry.kind == "commit" else entry.id
        return cls(files, links)

    def link_target(self, path: str) -> str | None:
        """The id of the content of a symbolic link, None where there is none of this name."""
        found = self.links.get(path)
        return None if found is None or found.startswith("commit ") else found

    def below(self, folder: str) -> dict[str, str]:
        """The plain files below a folder, or the one file of that name."""
        inside = f"{folder.rstrip('/')}/"
        return {path: blob for path, blob in self.files.items() if path.startswith(inside) or path == folder}


# What is read of a repository at all, see `GitLimits` for the sizes of contents.
_MAX_PATHS = 20_000
_STATUSES = {
    "A": PathStatus.ADDED,
    "M": PathStatus.MODIFIED,
    "D": PathStatus.REMOVED,
    "R": PathStatus.RENAMED,
    "C": PathStatus.COPIED,
    "T": PathStatus.CHANGED,
}
_DIFF = (
    *("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-commit-id"),
    *("--no-ext-diff", "--no-textconv", "--ignore-submodules=none"),
)
# A file that the head adds stays where it is, also where the base has moved the folder.
_MERGING = {"merge.directoryRenames": "false"}
# Whose the commits of merges are: always the same, so that a merge has one id.
_NOBODY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "verl-e2e"), ("EMAIL", "verl-e2e"), ("DATE", "@0 +0000"))
}
_TREE = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NAME_ANOTHER = "name the top folder of a checkout, or a bare git directory"


class GitError(Exception):
    """Reading a repository failed."""


class RepositoryError(UserError, GitError):
    """The user's mistake, in one sentence that says what to do."""


class NotARepositoryError(RepositoryError):
    """The folder is neither a checkout nor a git directory."""


class UnknownRevisionError(RepositoryError):
    """The repository has no such commit."""


class GitFailedError(GitError):
    """A git command failed, or took more time than it may: `finished` is how it ended."""

    def __init__(self, finished: Finished) -> None:
        super().__init__(f"{' '.join(finished.command)} {finished.ending}: {finished.stderr.strip() or 'no message'}")
        self.finished = finished


class GitRepository:
    """A checkout or a bare git directory, by its path. Reads only; remembers some of what it has read.

    Of `environ` PATH is used; `limits` and `own_session` are those of `Git`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        environ: Mapping[str, str] | None = None,
        limits: GitLimits = GitLimits(),
        own_session: bool = False,
    ) -> None:
        self.path = Path(path)
        git_dir = git_dir_of(self.path)
        work_tree = None if git_dir == self.path else self.path
        self.git = Git(git_dir, work_tree, environ or {}, limits, own_session)
        self._commits: set[str] = set()
        self._listings: SizedCache[str, Listing] = SizedCache(MAX_ENTRIES)
        self._contents: SizedCache[str, bytes] = SizedCache(_MOST_CONTENT_BYTES, largest_part=16)
        self._merges: Path | None = None
        finished = self._try("rev-parse", "--git-dir")
        if not finished.ok:
            raise NotARepositoryError(f"{self.path} is not a usable git repository ({finished.error}); {_NAME_ANOTHER}")

    def resolve(self, revision: str) -> str:
        """The full SHA of the commit that a revision names; raises UnknownRevisionError."""
        sha = self.find(revision)
        if sha is not None:
            return sha
        subject = f"commit {revision!r} is not in {self.path}"
        if self._run("rev-parse", "--is-shallow-repository").strip() == b"true":
            raise UnknownRevisionError(f"{subject}, a shallow clone; run `git fetch --unshallow` there")
        raise UnknownRevisionError(f"{subject}; fetch it there, or check the spelling")

    def find(self, revision: str) -> str | None:
        """The full SHA of the commit that a revision names, None when there is none here."""
        if "\0" in revision:
            return None
        if revision in self._commits:
            return revision
        finished = self._try("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        sha = finished.output.decode("ascii", "replace").strip()
        if not finished.ok or not sha:
            return None
        self._commits.add(sha)
        return sha

    def merge_base(self, text: str, other: str) -> str | None:
        """The one best common ancestor of two commits, None when they have none here, or several.

        With several, what differs from one of them is not all that merging changes: the head may take back what
        came with another one.
        """
        finished = self._try("merge-base", "--all", text, other)
        if finished.code == 1 and not finished.stderr.strip():
            return None
        if not finished.ok:
            raise GitFailedError(finished)
        found = finished.output.decode("ascii").split()
        return found[0] if len(found) == 1 else None

    def change(self, base: str, head: str) -> Change:
        """What the head changed since it left the base: merge base to head, or base to head without a single one."""
        base_sha, head_sha = self.resolve(base), self.resolve(head)
        # git holds every difference in memory before it prints the first; a tree is printed as it is read.
        self.tree(head_sha)
        merge_base = self.merge_base(base_sha, head_sha)
        return Change(base_sha, head_sha, merge_base, self.changed_paths(merge_base or base_sha, head_sha))

    def merged(self, base: str, head: str) -> Merge:
        """Merge two commits as a forge does, without a byte in this repository; what comes of it can be read here.

        It is made in a repository of its own that borrows the objects, so no attribute or setting of this one, which
        could name a program, has a say in it.
        """
        if self._merges is None:
            folder = Path(mkdtemp(prefix="verl-e2e-merge-")).absolute()
            finalize(self, shutil.rmtree, folder, ignore_errors=True)
            form = self._run("rev-parse", "--show-object-format").decode("ascii").strip()
            place = replace(self.git, git_dir=folder, work_tree=None)
            finished = place.borrow(self.objects_folder().absolute(), f"--object-format={form}")
            if not finished.ok:
                return Merge(problem=f"git init {finished.ending}: {finished.error}")
            self._merges, self.git = folder, replace(self.git, objects=folder / "objects")
        place = replace(self.git, git_dir=self._merges, work_tree=None, objects=None)
        made = place.run("merge-tree", "--write-tree", "--no-messages", base, head, settings=_MERGING)
        tree = made.output.decode("ascii", "replace").partition("\n")[0].strip()
        # It ends with 1 for what it cannot merge at all, too, and then names no tree.
        if made.code not in {0, 1} or not _TREE.fullmatch(tree):
            return Merge(problem=f"git merge-tree {made.ending}: {made.error}")
        if made.code == 1:
            return Merge()
        kept = place.run("commit-tree", tree, "-p", base, "-p", head, variables=_NOBODY)
        if not kept.ok:
            return Merge(problem=f"git commit-tree {kept.ending}: {kept.error}")
        return Merge(kept.output.decode("ascii").strip())

    def changed_paths(self, old: str, new: str, *, renames: bool = True) -> tuple[ChangedPath, ...]:
        """The paths that differ between two commits, submodules with both commits.

        A rename is one path with both names, or with `renames` false two paths: contents are then not looked into.
        """
        paths = []
        for entry in self._differences(old, new, renames=renames):
            bump = None
            if SUBMODULE_MODE in {entry.old_mode, entry.new_mode}:
                before = entry.old_id if entry.old_mode == SUBMODULE_MODE else None
                bump = SubmoduleBump(before, entry.new_id if entry.new_mode == SUBMODULE_MODE else None)
            status = _STATUSES.get(entry.status, PathStatus.CHANGED)
            paths.append(ChangedPath(entry.path, status, old_path=entry.old_path, submodule=bump))
        return tuple(paths)

    def changed_contents(self, old: str, new: str) -> frozenset[str]:
        """The ids of the contents on both sides of all files that differ between two commits."""
        entries = self._differences(old, new, renames=False)
        sides = ((mode, id_) for e in entries for mode, id_ in ((e.old_mode, e.old_id), (e.new_mode, e.new_id)))
        return frozenset(object_id for mode, object_id in sides if mode.startswith(("100", "120")))

    def read_blob(self, revision: str, path: str) -> bytes | None:
        """The content of a file at a commit; None when there is no file of that name, or it is larger than is read."""
        listing = self._listings.get(self.resolve(revision))
        if listing is not None and path and not path.endswith("/"):
            blob = listing.files.get(path) or listing.link_target(path)
        else:
            found = self._entry(revision, path)
            blob = None if found is None or found.kind != "blob" else found.id
        return None if blob is None else self.read_objects([blob])[blob]

    def submodule_commit(self, revision: str, path: str) -> str | None:
        """The commit that a submodule path points at, None when the path is not a submodule at that commit."""
        found = self._entry(revision, path)
        return found.id if found is not None and found.mode == SUBMODULE_MODE else None

    def first_parents(self, head: str, count: int) -> tuple[HistoryCommit, ...]:
        """The last commits on the first-parent line up to `head`, newest first; not one that has no parent."""
        form = "--format=tformat:%H%x00%P%x00%an%x00%s"
        listed = self._run("log", "-z", "--first-parent", form, f"--max-count={count}", self.resolve(head), "--")
        fields = listed.decode("utf-8", "replace").split("\0")
        rows = zip(*(fields[start::4] for start in range(4)), strict=False)
        return tuple(HistoryCommit(sha, of[:40], author, subject) for sha, of, author, subject in rows if of)

    def tree(self, revision: str, under: str = "") -> Mapping[str, str]:
        """The plain files at a commit below a folder, each with the id of its content; `links` has the others."""
        listing = self._listing(revision)
        return listing.below(under) if under.strip("/") else listing.files

    def links(self, revision: str) -> Mapping[str, str]:
        """The symbolic links of a commit, each with the id of its content, and the submodules with `commit SHA`."""
        return self._listing(revision).links

    def entries(self, revision: str) -> Iterator[TreeEntry]:
        """The files, symbolic links and submodules at a commit."""
        output = self._run("ls-tree", "-r", "-z", "--full-tree", self.resolve(revision))
        if output.count(b"\0") > MAX_ENTRIES:
            raise LimitError("the number of files", f"{MAX_ENTRIES:,}")
        return tree_entries(output)

    def read_objects(self, ids: Collection[str]) -> dict[str, bytes | None]:
        """Contents by id, in one go; None for what is not here, as in a partial clone, or larger than is read."""
        kept = self.kept_sizes(ids)
        missing = [object_id for object_id in ids if object_id not in kept]
        sizes = {**kept, **self.sizes(missing)}
        found = self.read_sized({object_id: sizes[object_id] for object_id in ids if object_id in sizes})
        return {object_id: found.get(object_id) for object_id in ids}

    def read_sized(self, sizes: Mapping[str, int]) -> dict[str, bytes | None]:
        """Of contents with these sizes those that may be read, in one go; None for one that cannot be read."""
        wanted = self.readable(sizes)
        found = self._kept_contents(wanted)
        if stdin := id_lines(object_id for object_id in wanted if object_id not in found):
            finished = self._try("cat-file", "--batch", stdin=stdin, output_bytes=2 * self.git.limits.read_bytes)
            for object_id, content in blob_contents(finished.output):
                found[object_id] = content
                self._contents.put(object_id, content, len(content))
        return {object_id: found.get(object_id) for object_id in wanted}

    def kept_sizes(self, ids: Collection[str]) -> dict[str, int]:
        """The bytes of those contents that were read before and are remembered."""
        return {object_id: len(content) for object_id, content in self._kept_contents(ids).items()}

    def sizes(self, ids: Collection[str]) -> dict[str, int]:
        """The unpacked bytes of those objects that are here."""
        return object_sizes(self._try(*OBJECT_SIZES, stdin=id_lines(dict.fromkeys(ids))).output) if ids else {}

    def readable(self, sizes: Mapping[str, int]) -> list[str]:
        """Of contents with these sizes those that may be read: no large one, and not too much in all."""
        left, found = self.git.limits.read_bytes, []
        for object_id, size in sizes.items():
            if size <= min(self.git.limits.content_bytes, left):
                left -= size
                found.append(object_id)
        return found

    def dirty_files(self) -> tuple[str, ...]:
        """What of the work tree differs from its commit: files, and folders of which nothing is in the commit.

        Empty for a bare directory.
        """
        if self.git.work_tree is None:
            return ()
        options = ("--porcelain=v1", "-z", "--untracked-files=normal", "--ignore-submodules=none", "--no-renames")
        return tuple(sorted(status_paths(self._run("status", *options))))

    def origin(self) -> str:
        """Where the repository was cloned from, as host and path without a user or password; empty when unknown."""
        finished = self._try("config", "--local", "--get", "remote.origin.url")
        url = finished.output.decode("utf-8", "backslashreplace").strip()
        return re.sub(r"^(?:[a-z+]+://)?(?:[^/@]*@)?", "", url.splitlines()[0]) if finished.ok and url else ""

    def objects_folder(self) -> Path:
        """Where the repository keeps its objects; a linked worktree has them in the repository that it belongs to."""
        output = self._run("rev-parse", "--path-format=absolute", "--git-path", "objects")
        return Path(output.decode("utf-8", "surrogateescape").removesuffix("\n"))

    def _listing(self, revision: str) -> Listing:
        sha = self.resolve(revision)
        listing = self._listings.get(sha)
        if listing is None:
            listing = Listing.of(self.entries(sha))
            self._listings.put(sha, listing, len(listing.files) + len(listing.links))
        return listing

    def _kept_contents(self, ids: Iterable[str]) -> dict[str, bytes]:
        kept = ((object_id, self._contents.get(object_id)) for object_id in ids)
        return {object_id: content for object_id, content in kept if content is not None}

    def _entry(self, revision: str, path: str) -> TreeEntry | None:
        """What is at exactly this path at a commit."""
        sha = self.resolve(revision)
        if not path.strip("/") or "\0" in path:
            return None
        entries = tree_entries(self._run("ls-tree", "-z", "--full-tree", sha, "--", f":(top,literal){path}"))
        return next((entry for entry in entries if entry.path == path.rstrip("/")), None)

    def _differences(self, old: str, new: str, *, renames: bool) -> tuple[DiffEntry, ...]:
        finished = self._try(*_DIFF, "--find-renames", "-l2000", old, new) if renames else None
        # A partial clone does not have the contents that renames are found by; both names are there without them.
        output = finished.output if finished and finished.ok else self._run(*_DIFF, "--no-renames", old, new)
        # At most three fields for a path; so that what is far too much is not parsed.
        entries = tuple(diff_entries(output)) if output.count(b"\0") <= 3 * _MAX_PATHS else None
        if entries is None or len(entries) > _MAX_PATHS:
            raise LimitError("the number of changed paths", f"{_MAX_PATHS:,}")
        return entries

    def _run(self, *arguments: str) -> bytes:
        finished = self._try(*arguments)
        if not finished.ok:
            raise GitFailedError(finished)
        return finished.output

    def _try(self, *arguments: str, stdin: bytes = b"", output_bytes: int | None = None) -> Finished:
        """Run a command that may end with an error of its own."""
        finished = self.git.run(*arguments, stdin=stdin, output_bytes=output_bytes)
        if finished.stop is Stop.MISSING:
            raise RepositoryError(finished.stderr)
        if finished.stop is Stop.OUTPUT:
            limit = self.git.limits.output_bytes if output_bytes is None else output_bytes
            raise LimitError(f"what git {arguments[0]} says of this repository", f"{limit >> 20} MiB")
        if finished.stop is not None:
            raise GitFailedError(finished)
        if finished.exhausted:
            raise LimitError(f"what git {arguments[0]} needs for this repository", "what a process may take")
        return finished


def git_dir_of(path: Path) -> Path:
    """Where git's own files are: `.git` below a checkout, or the folder itself. Never a folder above it."""
    if not path.is_dir():
        raise NotARepositoryError(f"{path} is not a folder; {_NAME_ANOTHER}")
    if (path / ".git").exists():
        return path / ".git"
    if (path / "HEAD").exists() and (path / "objects").is_dir():
        return path
    raise NotARepositoryError(f"{path} is not a git repository; {_NAME_ANOTHER}")
