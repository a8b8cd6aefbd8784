"""Reads files that code under test wrote: regular ones only, never through a link, never more than a stated size.

Every folder on the way is opened by itself, so that none of them can be a link to somewhere else.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePath
from stat import S_ISDIR, S_ISREG

_MAX_NAMES = 10_000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe opened so does not wait for its other end.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_below(root: Path, name: str | PurePath, *, limit: int, offset: int = 0) -> bytes | None:
    """At most `limit` bytes of the regular file `name` below `root`; None when there is no such file."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return None
    with suppress(OSError), _folder(root, path.parts[:-1]) as folder:
        descriptor = os.open(path.name, FILE, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            if S_ISREG(os.fstat(descriptor).st_mode):
                file.seek(offset)
                return file.read(limit)
    return None


def names_below(root: Path, folder: str | PurePath = ".") -> tuple[str, ...]:
    """The names of regular files in a folder below `root`, sorted, at most `MAX_NAMES`; nothing for a link."""
    parts = tuple(part for part in PurePath(folder).parts if part != ".")
    found: list[str] = []
    with suppress(OSError), _folder(root, parts) as descriptor, os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                found.append(entry.name)
            if len(found) >= _MAX_NAMES:
                break
    return tuple(sorted(found))


def is_folder_below(root: Path, path: Path) -> bool:
    """Whether `path` is a folder below `root` and no part of the way between them is a link."""
    try:
        parts = path.relative_to(root).parts
    except ValueError:
        return False
    with suppress(OSError), _folder(root, parts) as descriptor:
        return S_ISDIR(os.fstat(descriptor).st_mode)
    return False


@contextmanager
def open_folder(path: str | Path, above: int | None = None) -> Iterator[int]:
    """An open folder, below the open folder `above` if there is one; OSError when it is a link or not a folder."""
    descriptor = os.open(path, _FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _folder(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    with ExitStack() as stack:
        descriptor = stack.enter_context(open_folder(root))
        for part in parts:
            descriptor = stack.enter_context(open_folder(part, descriptor))
        yield descriptor
