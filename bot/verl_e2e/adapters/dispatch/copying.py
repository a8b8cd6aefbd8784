"""Copies run folders from where untrusted code ran: with size limits and safe paths, whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from verl_e2e.adapters.dispatch.untrusted_files import open_regular
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
        self.caps = caps
        self._bytes = caps.total_bytes
        self._files = caps.files

    def spend_file(self, name: str) -> None:
        self._files -= 1
        if self._files < 0:
            raise _over(f"more than {self.caps.files:,} files")
        if len(name) > self.caps.name_chars or name.count("/") >= self.caps.depth:
            raise _over(f"a path longer or deeper than allowed: {name[:60]!r}")

    def copy(self, source: BinaryIO, target: BinaryIO) -> None:
        while block := source.read(_CHUNK):
            self._bytes -= len(block)
            if self._bytes < 0:
                raise _over(f"more than {self.caps.total_bytes:,} bytes")
            target.write(block)


def _over(what: str) -> BackendError:
    return BackendError(
        f"the run folder holds {what}, so nothing was copied; look at it on the host of the run, and run the job again",
        final=True,
    )


def copy_folder(source: Path, into: Path, caps: Caps = CAPS, *, within: int | None = None) -> bool:
    """Copy the regular files below `source` to the new folder `into`; false when there are none.

    `within` is the descriptor of the folder that a relative `source` lies in.

    Links, pipes and devices are not copied: nothing outside the folder is read. `into` appears whole or not at all;
    an existing one is kept. BackendError when a limit is exceeded.
    """
    if into.exists():
        return True
    budget = _Budget(caps)
    with _Arriving(into) as arriving:
        for name, descriptor in _regular_files(source, budget, within):
            target = arriving.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(descriptor, "rb") as read, target.open("xb") as written:
                budget.copy(read, written)
        return arriving.keep()


def _regular_files(source: Path, budget: _Budget, within: int | None) -> Iterator[tuple[str, int]]:
    """The name and an open descriptor of each file; `fwalk` opens every folder by itself, so that none is a link."""
    for root, folders, names, descriptor in os.fwalk(source, follow_symlinks=False, dir_fd=within):
        folder = Path(root).relative_to(source)
        if len(folder.parts) > budget.caps.depth:
            raise _over(f"a path longer or deeper than allowed: {folder.as_posix()[:60]!r}")
        folders.sort()
        for name in sorted(names):
            if S_ISREG(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                budget.spend_file((folder / name).as_posix())
                # It may have become a link or a pipe since it was listed.
                yield (folder / name).as_posix(), open_regular(descriptor, name)


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
