"""A `SourceTrees` that shows an edit of one commit as another commit, without writing anything."""

import hashlib
from collections.abc import Collection, Mapping

from tests.fakes.trees import LinkTo
from verl_e2e.core.model.change import Change, ChangedPath, Merge, PathStatus
from verl_e2e.ports import SourceTrees

# What an edit makes of each path: a content, a link, or nothing.
Edit = Mapping[str, bytes | LinkTo | None]


class Overlay:
    """A repository whose commit `base` is real and whose other commit is `edit` on top of it."""

    def __init__(self, repository: SourceTrees, base: str) -> None:
        self._repository = repository
        self._base = base
        self._files = dict(repository.tree(base))
        self._links = dict(repository.links(base))
        self.edit: Edit = {}

    @property
    def head(self) -> str:
        """The name of the edited commit, another one for each edit."""
        return hashlib.sha1(repr(sorted(self.edit.items())).encode(), usedforsecurity=False).hexdigest()

    def text(self, path: str) -> bytes:
        """The content of a file at the base."""
        found = self._repository.read_objects([self._files[path]])[self._files[path]]
        assert found is not None
        return found

    def change(self, base: str, head: str) -> Change:
        """The paths of the edit."""
        kinds = {True: PathStatus.ADDED, False: PathStatus.MODIFIED}
        paths = [
            ChangedPath(path, PathStatus.REMOVED if content is None else kinds[path not in self._files])
            for path, content in sorted(self.edit.items())
        ]
        return Change(base, head, base, tuple(paths))

    def merged(self, base: str, head: str) -> Merge:
        """There is no history, so no base has moved on."""
        return Merge(problem=f"{base} and {head} have no history")

    def read_blob(self, revision: str, path: str) -> bytes | None:
        """The content of a file on either side."""
        blob = self.tree(revision).get(path)
        return None if blob is None else self.read_objects([blob])[blob]

    def tree(self, revision: str, under: str = "") -> Mapping[str, str]:
        """The plain files on either side."""
        files = self._files
        if revision != "base":
            kept = {path: blob for path, blob in files.items() if path not in self.edit}
            new = {path: text for path, text in self.edit.items() if text is not None and not isinstance(text, LinkTo)}
            files = {**kept, **{path: _id(content) for path, content in new.items()}}
        return {path: blob for path, blob in files.items() if path.startswith(under)}

    def links(self, revision: str) -> Mapping[str, str]:
        """The links on either side."""
        if revision == "base":
            return self._links
        kept = {path: blob for path, blob in self._links.items() if path not in self.edit}
        return {**kept, **{path: _id(link) for path, link in self.edit.items() if isinstance(link, LinkTo)}}

    def read_objects(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        """Contents of the edit, and of the repository."""
        own = {_id(text): _bytes(text) for text in self.edit.values() if text is not None}
        rest = self._repository.read_objects([identifier for identifier in ids if identifier not in own])
        return {identifier: own[identifier] if identifier in own else rest[identifier] for identifier in ids}


def _bytes(content: bytes | LinkTo) -> bytes:
    return content.encode() if isinstance(content, LinkTo) else content


def _id(content: bytes | LinkTo) -> str:
    return hashlib.sha1(b"edit " + _bytes(content), usedforsecurity=False).hexdigest()
