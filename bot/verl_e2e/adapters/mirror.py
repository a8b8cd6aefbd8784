"""Repositories of a forge as bare partial clones below a cache folder, and what planning reads from them.

Commits and trees are there whole, contents on demand. Nothing about the forge is written into a clone, neither its
address nor a token: both are handed to the one git that fetches. So whatever else reads the clone can never reach the
network. Errors: `verl_e2e.ports.ForgeError`; `passing` where the network or another process is to blame.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from verl_e2e.core.model.change import Change, HistoryCommit, Merge
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.pulls.forge import MergeGroup, Pull, Target, repository_of
from verl_e2e.git.clone import Bounds, Brings, Clone, DamagedError, WantedCommit
from verl_e2e.git.program import Stop, TooMuchError
from verl_e2e.git.repository import GitError, GitFailedError, GitRepository, RepositoryError
from verl_e2e.ports import ForgeError

_MAX_CONTENTS = 100_000
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

Ask = Callable[[object], Any]


class AskingClone(Clone):
    """A `Clone` that asks for what it does not have; `ask` reaches `answer_for` in the parent."""

    def __init__(self, place: Path, bounds: Bounds, ask: Ask) -> None:
        super().__init__(place, bounds)
        self._ask = ask

    def bring_commits(self, wanted: Collection[WantedCommit]) -> None:
        """See that commits are here; ForgeError."""
        if self._missing([commit.sha for commit in wanted]):
            self._ask(("commits", tuple((commit.name, commit.sha, commit.spare) for commit in wanted)))

    def bring_contents(self, ids: Collection[str]) -> frozenset[str]:
        """See that contents are here; gives the ids that the origin does not have. ForgeError, DamagedError."""
        if len(ids) > _MAX_CONTENTS:
            raise LimitError("the number of files that it has to read", f"{_MAX_CONTENTS:,}")
        return frozenset(self._ask(("contents", tuple(ids))))

    def renew(self, generation: int) -> None:
        """Have a damaged clone removed."""
        self._ask(("renew", generation))


def answer_for(clone: Clone, is_allowed: Callable[[WantedCommit], bool]) -> Callable[[Any], object]:
    """What answers the questions of an `AskingClone`: it may have allowed commits, and contents by their ids."""

    def answer(question: Any) -> object:
        match question:
            case ("commits", tuple(rows)) if all(map(is_allowed, wanted := [WantedCommit(*row) for row in rows])):
                clone.bring_commits(wanted)
                return None
            case ("contents", tuple(ids)) if len(ids) <= _MAX_CONTENTS and all(
                isinstance(object_id, str) and _ID.fullmatch(object_id) for object_id in ids
            ):
                return tuple(clone.bring_contents(ids))
            case ("renew", int(generation)):
                clone.renew(generation)
                return None
            case _:
                raise ValueError("a child process asked for what it may not have")

    return answer


_T = TypeVar("_T")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")
# git pairs no more than this many files by their contents either.
_MAX_COMPARED = 4000


class Mirrors:
    """The clones of a forge's repositories. Threads and processes may share the folder.

    `web_url` is where the forge's repositories are cloned from (`https://github.com`); `token` gives the token for a
    repository, None for no token; of `environ` PATH, proxies and certificates are passed on to git. With `ask` nothing
    is fetched here: another process is asked to, by its `answers`.
    """

    def __init__(
        self,
        folder: Path,
        web_url: str,
        *,
        token: Callable[[str], str | None] = lambda _: None,
        bounds: Bounds | None = None,
        environ: Mapping[str, str] | None = None,
        ask: Ask | None = None,
    ) -> None:
        self._folder = folder
        self._web_url = web_url.rstrip("/")
        self._token = token
        self._bounds = bounds or Bounds()
        self._environ = environ
        self._ask = ask
        self._lock = threading.Lock()
        self._clones: dict[tuple[str, str], Clone] = {}

    def changes(self, target: Target) -> "MirrorTrees":
        """The trees of a pull request or merge group, base and head fetched; ForgeError."""
        clone = self._clone(repository_of(target))
        as_it_stands = isinstance(target, MergeGroup)
        return MirrorTrees(clone, _wanted(target), self._bounds, as_it_stands=as_it_stands)

    def commits(self, repository: str, address: str, shas: Collection[str]) -> "MirrorTrees":
        """The trees of commits, by their full SHAs, of the Megatron-LM at an address, without history; ForgeError.

        A token is that for the repository under test, and goes to no other site than that one's.
        """
        wanted = [WantedCommit(sha, sha, sha) for sha in shas]
        return MirrorTrees(self._clone(repository, address), wanted, self._bounds, as_it_stands=True)

    def answers(self, targets: Collection[Target], megatron_lm: str) -> Callable[[Any], object]:
        """Answers what the mirrors of another process ask: about these targets of one repository, and about commits of
        Megatron-LM at an address."""
        repository = repository_of(next(iter(targets)))
        allowed = {commit for target in targets for commit in _wanted(target)}
        own = answer_for(self._clone(repository), allowed.__contains__)
        of_bump = answer_for(
            self._clone(repository, megatron_lm),
            lambda commit: bool(_ID.fullmatch(commit.sha)) and commit.name == commit.spare == commit.sha,
        )

        def answer(question: Any) -> object:
            match question:
                case (address, inner) if megatron_lm and address == megatron_lm:
                    return of_bump(inner)
                case _:
                    return own(question)

        return answer

    def _clone(self, repository: str, address: str = "") -> Clone:
        """The clone of a repository, or the one of the address that its changes pin commits of."""
        if not address and (not _NAME.fullmatch(repository) or repository.endswith(("/.", "/.."))):
            raise ForgeError(f"{repository!r} is not a repository: write owner/name")
        with self._lock:
            if (repository, address) in self._clones:
                return self._clones[repository, address]
            url = address or f"{self._web_url}/{repository}.git"
            parts, brings = urlsplit(url), Brings.TREES if address else Brings.HISTORY
            host = f"{parts.hostname}{f'_{parts.port}' if parts.port else ''}"
            # GitHub takes names in any case for the same repository.
            name = parts.path.strip("/").removesuffix(".git").lower()
            place = self._folder / "mirrors" / host / f"{name}{'.trees' if address else '.git'}"
            if self._ask is not None:
                # About the repository under test, or about the one at an address.
                ask = self._ask
                asking = (lambda question: ask((address, question))) if address else ask
                clone: Clone = AskingClone(place, self._bounds, asking)
            else:
                is_own_site = parts[:2] == urlsplit(self._web_url)[:2]
                token = partial(self._token, repository) if is_own_site else lambda: None
                clone = Clone(place, self._bounds, url=url, token=token, environ=self._environ, brings=brings)
            self._clones[repository, address] = clone
            return clone


class MirrorTrees:
    """A `SourceTrees` over a clone, for one change: contents are fetched in a batch, then read.

    `wanted` are the commits to have. With `as_it_stands` base and head are compared themselves, as a merge group asks
    for, where a pull request is compared from the merge base. A content beyond the bounds counts as absent.
    """

    def __init__(self, clone: Clone, wanted: Collection[WantedCommit], bounds: Bounds, *, as_it_stands: bool) -> None:
        self._clone = clone
        self._wanted = tuple(wanted)
        self._bounds = bounds
        self._as_it_stands = as_it_stands
        self._opened: tuple[int, GitRepository] | None = None
        self._absent: frozenset[str] = frozenset()
        self._clone.bring_commits(self._wanted)

    def change(self, base: str, head: str) -> Change:
        """What the head changes, renames found where the contents are of a size to be looked into."""
        # git holds every difference in memory before it prints the first; a tree is printed as it is read.
        self.tree(head)
        found = base if self._as_it_stands else self._reading(lambda repository: repository.merge_base(base, head))
        old = found or base
        contents = self._reading(lambda repository: repository.changed_contents(old, head))
        renames = self._comparable(contents)
        paths = self._reading(lambda repository: repository.changed_paths(old, head, renames=renames))
        return Change(base, head, found, paths)

    def merged(self, base: str, head: str) -> Merge:
        """What merging the head into the base gives; the contents that a merge looks into are fetched."""
        left = self._reading(lambda repository: repository.merge_base(base, head))
        if left is not None:
            try:
                self.read_objects(_merging(*(self.tree(commit) for commit in (left, base, head))))
            except TooMuchError as error:
                return Merge(problem=str(error))
        return self._reading(lambda repository: repository.merged(base, head))

    def read_blob(self, revision: str, path: str) -> bytes | None:
        found = self.tree(revision, path).get(path.rstrip("/"))
        return None if found is None else self.read_objects([found])[found]

    def tree(self, revision: str, under: str = "") -> Mapping[str, str]:
        return self._reading(lambda repository: repository.tree(revision, under))

    def first_parents(self, head: str, count: int) -> tuple[HistoryCommit, ...]:
        return self._reading(lambda repository: repository.first_parents(head, count))

    def links(self, revision: str) -> Mapping[str, str]:
        return self._reading(lambda repository: repository.links(revision))

    def read_objects(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        """Contents by id, fetched in one go where they are not here; None for what cannot be had."""
        sizes = self._reading(lambda repository: self._sizes(repository, ids))

        def whole(repository: GitRepository) -> Mapping[str, bytes | None]:
            found = repository.read_sized(sizes)
            if None in found.values():
                raise DamagedError("a content that is here cannot be read")
            return found

        found = self._reading(whole)
        return {object_id: found.get(object_id) for object_id in ids}

    def _sizes(self, repository: GitRepository, ids: Collection[str]) -> Mapping[str, int]:
        """The sizes of contents, all of them fetched that can be."""
        kept = repository.kept_sizes(ids)
        # The repository has in addition what merges made.
        known = kept | repository.sizes([object_id for object_id in ids if object_id not in kept])
        missing = set(ids) - known.keys() - self._absent
        if missing:
            self._absent |= self._clone.bring_contents(missing)
            known |= self._clone.sizes(missing)
        return {object_id: known[object_id] for object_id in ids if object_id in known}

    def _comparable(self, ids: Collection[str]) -> bool:
        """Whether all these contents may be read, so that renames can be found by them."""
        if len(ids) > _MAX_COMPARED:
            return False
        try:
            sizes = self._reading(lambda repository: self._sizes(repository, ids))
        except TooMuchError:
            return False
        return len(self._reading(lambda repository: repository.readable(sizes))) == len(ids)

    def _reading(self, read: Callable[[GitRepository], _T]) -> _T:
        """Read; where the clone turns out damaged, once more from one that was made again."""
        try:
            return read(self._repository())
        except GitError as error:
            if isinstance(error, GitFailedError) and error.finished.stop is Stop.TIME:
                # The clone is whole, and what it holds is too much.
                raise LimitError("the time that git takes for this change", f"{self._bounds.git.time_s:g} s") from None
            same = self._opened is not None and self._opened[0] == self._clone.generation()
            if same and isinstance(error, RepositoryError):
                raise
        if self._opened is not None:
            self._clone.renew(self._opened[0])
        self._opened = None
        return read(self._repository())

    def _repository(self) -> GitRepository:
        if self._opened is None or self._opened[0] != self._clone.generation():
            self._clone.bring_commits(self._wanted)
            self._opened = (self._clone.generation(), self._clone.open())
        return self._opened[1]


def _merging(left: Mapping[str, str], base: Mapping[str, str], head: Mapping[str, str]) -> frozenset[str]:
    """The ids of the contents that a merge looks into: what both sides change, and where files may have moved."""
    found: set[str] = set()
    for side, other in ((base, head), (head, base)):
        both = [path for path in left if side.get(path) != left[path] and other.get(path) != left[path]]
        found.update(tree[path] for tree in (left, side, other) for path in both if path in tree)
        if any(path not in side for path in both):
            found.update(side[path] for path in side if path not in left)
    new = [path for path in base if path not in left and head.get(path, base[path]) != base[path]]
    return frozenset(found.union(tree[path] for tree in (base, head) for path in new))


def _wanted(target: Target) -> tuple[WantedCommit, ...]:
    # A branch may be called anything, and the name of a ref may not.
    branch = hashlib.sha256(target.base_branch.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    base = WantedCommit(f"base/{branch}", target.base_sha, f"refs/heads/{target.base_branch}")
    match target:
        case Pull(ref=ref, head_sha=sha):
            return base, WantedCommit(f"pull/{ref.number}", sha, f"refs/pull/{ref.number}/head")
        case MergeGroup(head_sha=sha):
            return base, WantedCommit("group", sha, sha)
