"""Reads a run folder for its digest: plain files only, whatever lies there."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.folder_digest import FolderFile

_MOST_FILES = 10_000


class FolderFilesError(UserError):
    """A run folder that has no digest; the text says why."""


def folder_files(folder: Path) -> Iterator[FolderFile]:
    """Every file below a folder; FolderFilesError for a link, a device, a pipe, or too many files."""
    count = 0
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        for name in folders:
            if (Path(parent) / name).is_symlink():
                raise FolderFilesError(
                    f"{_shown(Path(parent) / name, folder)} is a link; a run folder holds plain files"
                )
        for name in names:
            count += 1
            if count > _MOST_FILES:
                raise FolderFilesError(f"the run folder holds more than {_MOST_FILES:,} files")
            yield _read(Path(parent) / name, folder)


def _read(file: Path, folder: Path) -> FolderFile:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        what = "a link" if file.is_symlink() else f"not readable ({error.strerror})"
        raise FolderFilesError(f"{_shown(file, folder)} is {what}; a run folder holds plain files") from error
    with open(handle, "rb") as content:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FolderFilesError(
                f"{_shown(file, folder)} is not a regular file; a run folder holds only regular files"
            )
        digest = hashlib.file_digest(content, "sha256")
        return FolderFile(file.relative_to(folder).as_posix(), content.tell(), digest.hexdigest())


def _refuse(error: OSError) -> None:
    raise FolderFilesError(f"the run folder cannot be read: {error.strerror or error}") from error


def _shown(path: Path, folder: Path) -> str:
    return ascii(path.relative_to(folder).as_posix())
