"""Files in a folder that code under test may have written to: no link is followed, and no pipe is waited for.

Every folder on the way is opened by itself, so that none of them can be a link to somewhere else.
"""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe opened so does not wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_folder(root: Path, *names: str) -> Iterator[int]:
    """The descriptor of a folder below `root`; OSError where it, or one on the way, is a link or no folder.

    What `root` itself is called may lead over links: it is the service's own word.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            deeper = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(folder: int, name: str) -> int:
    """The descriptor of a regular file, which the caller closes; OSError for anything else."""
    descriptor = os.open(name, _FILE, dir_fd=folder)
    if S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", name)


def read_tail(folder: int, name: str, limit: int) -> bytes:
    """The last bytes of a regular file; OSError for anything else."""
    with os.fdopen(open_regular(folder, name), "rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - limit))
        return opened.read(limit)


def write_file(folder: int, name: str, text: str, *, once: bool) -> bool:
    """Write a file, whole or not at all, in the place of what has the name; `once`: false where something has it."""
    temporary = f".{name}.{secrets.token_hex(8)}"
    with os.fdopen(os.open(temporary, _NEW, 0o666, dir_fd=folder), "w", encoding="utf-8") as opened:
        opened.write(text)
    if not once:
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True
    try:
        with suppress(FileExistsError):
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            return True
        return False
    finally:
        os.unlink(temporary, dir_fd=folder)
