"""Run folders brought home from where untrusted code ran: size-capped, path-safe, whole or not there at all."""

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
    """How much of a run folder is taken: all files together in bytes, their number, and how deep they lie."""

    total_bytes: int = MOST_FOLDER_BYTES
    files: int = 5_000
    depth: int = 8
    name_chars: int = 400


CAPS = Caps()


class _Budget:
    """What may still be written; BackendError as soon as it is spent."""

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
        f"the run folder holds {what}, so none of it was taken; look at it where it ran and run the job again",
        final=True,
    )


def copy_folder(source: Path, into: Path, caps: Caps = CAPS) -> bool:
    """Copy the regular files below `source` to the new folder `into`; false when there are none.

    Links, pipes and devices are left behind: nothing outside the folder is read. `into` appears whole or not at all;
    one that is there already is kept. BackendError when a cap is passed.
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
    """A folder beside the wanted one that takes its place once it is whole, and is removed otherwise."""

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
