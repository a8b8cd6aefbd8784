"""What was read of a repository and never changes: the files of a commit, the contents of an id. Both are bounded."""

import os
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from verl_e2e.core.model.errors import LimitError
from verl_e2e.git.output import TreeEntry

# What is read of a commit at all.
MAX_ENTRIES = 200_000
MAX_PATH_BYTES = 4096


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


class KeptListings:
    """The listings of the commits that were asked for last, with so many entries in all."""

    def __init__(self, most_entries: int = MAX_ENTRIES) -> None:
        self._most = most_entries
        self._listings: OrderedDict[str, Listing] = OrderedDict()
        self._entries = 0

    def get(self, commit: str) -> Listing | None:
        """The listing of a commit, None where it is not kept."""
        found = self._listings.get(commit)
        if found is not None:
            self._listings.move_to_end(commit)
        return found

    def put(self, commit: str, listing: Listing) -> Listing:
        """Keep a listing, in the place of those that were not asked for longest."""
        self._entries += _entries(listing)
        self._listings[commit] = listing
        while self._entries > self._most:
            _, gone = self._listings.popitem(last=False)
            self._entries -= _entries(gone)
        return listing


class KeptContents:
    """Contents by their ids, with so many bytes in all; a large one is not kept."""

    def __init__(self, most_bytes: int = 64 << 20) -> None:
        self._most = most_bytes
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, ids: Collection[str]) -> dict[str, bytes]:
        """Those of the contents that are kept."""
        found = {object_id: self._contents[object_id] for object_id in ids if object_id in self._contents}
        for object_id in found:
            self._contents.move_to_end(object_id)
        return found

    def put(self, contents: Mapping[str, bytes]) -> None:
        """Keep more contents, in the place of those that were not asked for longest."""
        for object_id, content in contents.items():
            if object_id not in self._contents and len(content) <= self._most // 16:
                self._contents[object_id] = content
                self._bytes += len(content)
        while self._bytes > self._most:
            _, gone = self._contents.popitem(last=False)
            self._bytes -= len(gone)


def _entries(listing: Listing) -> int:
    return len(listing.files) + len(listing.links)
