"""Copies run folders from where untrusted code ran: with size limits and safe paths, whole or not at all."""

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from verl_e2e.core.model.record import MOST_FOLDER_BYTES
from verl_e2e.ports import BackendError

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits of a run folder; a larger one is refused as a whole."""

    # Bytes of all files together.
    total_bytes: int = MOST_FOLDER_BYTES
    # The number of files.
    files: int = 5_000
    # The number of parts of a path.
    depth: int = 8
    # The length of a path in characters.
    name_chars: int = 400


CAPS = Caps()


class _Budget:
    """What may still be copied; BackendError when a limit is exceeded."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._bytes = caps.total_bytes
        self._files = caps.files

    def spend_file(self, name: str) -> None:
        self._files -= 1
        if self._files < 0:
            raise _over(f"more than {self._caps.files:,} files")
        if len(name) > self._caps.name_chars or name.count("/") >= self._caps.depth:
            raise _over(f"a path longer or deeper than allowed: {name[:60]!r}")

    def copy(self, source: BinaryIO, target: BinaryIO) -> None:
        while block := source.read(_CHUNK):
            self._bytes -= len(block)
            if self._bytes < 0:
                raise _over(f"more than {self._caps.total_bytes:,} bytes")
            target.write(block)


def _over(what: str) -> BackendError:
    return BackendError(
        f"the run folder holds {what}, so nothing was copied; look at it on the host of the run, and run the job again",
        final=True,
    )


def copy_folder(source: Path, into: Path, caps: Caps = CAPS) -> bool:
    """Copy the regular files below `source` to the new folder `into`; false when there are none.

    Links, pipes and devices are not copied: nothing outside the folder is read. `into` appears whole or not at all;
    an existing one is kept. BackendError when a limit is exceeded.
    """
    if into.exists():
        return True
    budget = _Budget(caps)
    with _Arriving(into) as arriving:
        for path in sorted(_regular_files(source)):
            name = path.relative_to(source).as_posix()
            budget.spend_file(name)
            _copy_file(path, arriving.folder / name, budget)
        return arriving.keep()


def _regular_files(folder: Path) -> Iterable[Path]:
    for root, _, names in os.walk(folder, followlinks=False):
        yield from (Path(root, name) for name in names if stat.S_ISREG(Path(root, name).lstat().st_mode))


def _copy_file(source: Path, target: Path, budget: _Budget) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # The file may have become a link or a pipe since it was listed.
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as read, target.open("xb") as written:
        budget.copy(read, written)


class _Arriving:
    """A temporary folder next to the target that is renamed to it when complete, and removed otherwise."""

    def __init__(self, into: Path) -> None:
        self._into = into
        self.folder = into.with_name(f".{into.name}.arriving-{os.getpid()}")

    def __enter__(self) -> "_Arriving":
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self

    def keep(self) -> bool:
        """Put the folder in its place; false, and nothing there, when it is empty."""
        if not any(self.folder.iterdir()):
            return False
        self.folder.rename(self._into)
        return True

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
