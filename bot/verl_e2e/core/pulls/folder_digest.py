"""The digest of a run folder: one over the names, sizes and digests of all its files."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A plain file of a run folder."""

    path: str
    """Its path below the folder, with slashes."""
    size: int
    """Its length in bytes."""
    sha256: str
    """The digest of its content, 64 hexadecimal digits."""


def folder_digest(files: Iterable[FolderFile]) -> str:
    """The folder's digest as 64 hexadecimal digits: another name, size or content anywhere gives another one."""
    rows = sorted((file.path.encode("utf-8", "surrogateescape"), file.size, file.sha256) for file in files)
    whole = hashlib.sha256()
    for path, size, sha256 in rows:
        # Lengths stand in front of names, so that no name can pass for the end of a row.
        whole.update(b"%d %s %d %s\n" % (len(path), path, size, sha256.encode("ascii")))
    return whole.hexdigest()
