"""What planning reads, from a clone that has only commits and trees: contents are fetched in a batch, then read."""

from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Protocol, TypeVar

from verl_e2e.adapters.mirror.clone import Clone, DamagedError, Wanted
from verl_e2e.adapters.mirror.gate import Bounds
from verl_e2e.adapters.mirror.refusals import TooMuchError
from verl_e2e.core.model.change import Change, ChangedPath
from verl_e2e.core.model.errors import UserError
from verl_e2e.ports import SourceTrees

T = TypeVar("T")
# Git pairs no more than this many files by their contents either.
_COMPARED_AT_MOST = 4000


class Repository(SourceTrees, Protocol):
    """A git directory that is read without a network."""

    def changed_paths(self, old: str, new: str, *, renames: bool) -> tuple[ChangedPath, ...]:
        """The paths that differ between two commits; without `renames` contents are not looked into."""
        ...


# How a git directory is opened, and what reading it raises when it is not whole.
Opener = tuple[Callable[[Path], Repository], type[Exception]]


class MirrorTrees:
    """A `SourceTrees` over a clone, for one change.

    `wanted` are the commits to have. With `as_it_stands` base and head are compared themselves, as a merge group asks
    for, where a pull request is compared from the merge base. A content beyond the bounds counts as absent.
    """

    def __init__(
        self, clone: Clone, opener: Opener, wanted: Collection[Wanted], bounds: Bounds, *, as_it_stands: bool
    ) -> None:
        self._clone = clone
        self._open, self._fault = opener
        self._wanted = tuple(wanted)
        self._bounds = bounds
        self._as_it_stands = as_it_stands
        self._opened: tuple[int, Repository] | None = None
        self._absent: frozenset[str] = frozenset()
        self._clone.bring_commits(self._wanted)

    def change(self, base: str, head: str) -> Change:
        """What the head changes, renames found where the contents are of a size to be looked into."""
        # Git holds every difference in memory before it tells the first; a tree is told as it is read.
        self.tree(head)
        found = base if self._as_it_stands else self._reading(lambda _: self._clone.merge_base(base, head))
        old = found or base
        renames = self._comparable(self._reading(lambda _: self._clone.changed_contents(old, head)))
        return Change(base, head, found, self._reading(lambda it: it.changed_paths(old, head, renames=renames)))

    def read_blob(self, revision: str, path: str) -> bytes | None:
        """A file's content at a commit, None when it is not there or no plain file."""
        found = self.tree(revision, path).get(path.rstrip("/"))
        return None if found is None else self.read_objects([found])[found]

    def tree(self, revision: str, under: str = "") -> Mapping[str, str]:
        """The files at a commit below a folder, each with the id of its content."""
        return self._reading(lambda repository: repository.tree(revision, under))

    def links(self, revision: str) -> Mapping[str, str]:
        """The symbolic links at a commit, each with the id of its content, and the submodules with `commit SHA`."""
        return self._reading(lambda repository: repository.links(revision))

    def read_objects(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        """Contents by id, fetched in one go where they are not here; None for what cannot be had."""
        readable = self._readable(self._reading(lambda _: self._sizes(ids)))
        found = self._reading(lambda repository: _whole(repository.read_objects(readable)))
        return {one: found.get(one) for one in ids}

    def _sizes(self, ids: Collection[str]) -> Mapping[str, int]:
        """The sizes of contents, all of them fetched that can be."""
        known = self._clone.sizes(ids)
        lacking = set(ids) - known.keys() - self._absent
        if not lacking:
            return known
        self._absent |= self._clone.bring_contents(lacking)
        return known | self._clone.sizes(lacking)

    def _readable(self, sizes: Mapping[str, int]) -> list[str]:
        """The contents to read, within what may be read at once."""
        small = [one for one, size in sizes.items() if size <= self._bounds.content_bytes]
        reached = accumulate(sizes[one] for one in small)
        return [one for one, total in zip(small, reached, strict=True) if total <= self._bounds.read_bytes]

    def _comparable(self, ids: Collection[str]) -> bool:
        """Whether all these contents may be read, so that renames can be found by them."""
        if len(ids) > _COMPARED_AT_MOST:
            return False
        try:
            sizes = self._reading(lambda _: self._sizes(ids))
        except TooMuchError:
            return False
        return len(self._readable(sizes)) == len(ids)

    def _reading(self, read: Callable[[Repository], T]) -> T:
        """Read; where the clone turns out damaged, once more from one that was made anew."""
        try:
            return read(self._repository())
        except (self._fault, DamagedError) as error:
            same = self._opened is not None and self._opened[0] == self._clone.generation()
            if same and isinstance(error, UserError):
                raise
        self._mend()
        return read(self._repository())

    def _mend(self) -> None:
        if self._opened is not None:
            self._clone.renew(self._opened[0])
        self._opened = None

    def _repository(self) -> Repository:
        if self._opened is None or self._opened[0] != self._clone.generation():
            self._clone.bring_commits(self._wanted)
            self._opened = (self._clone.generation(), self._open(self._clone.place))
        return self._opened[1]


def _whole(found: Mapping[str, bytes | None]) -> Mapping[str, bytes | None]:
    """What was read of contents that are here; DamagedError when one of them is not."""
    if None in found.values():
        raise DamagedError("a content that is here cannot be read")
    return found
