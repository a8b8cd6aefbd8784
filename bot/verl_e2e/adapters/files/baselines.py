"""Kept baselines: whole run folders by the digest of their job, each whole or not there.

A kept folder comes with the SHA-256 of each of its files; one that does not match, for whatever reason, is as good as
none. Keeping is a saving and no duty: a disk that takes no copy costs GPU time later, not the check.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

FOLDER = "baselines"
_MANIFEST = "manifest.json"
_RUN = "run"


class BaselineCache:
    """Baselines below `work`, or none at all without it."""

    def __init__(self, work: Path | None) -> None:
        self._root = None if work is None else work / FOLDER

    def fetch(self, key: str, into: Path, accept: Callable[[Path], bool]) -> bool:
        """Copy the run kept under a key to the new folder `into`; false when there is none, whole and accepted.

        `accept` looks at the kept run folder before it is copied.
        """
        if self._root is None:
            return False
        place = self._root / key
        if not _is_whole(place) or not accept(place / _RUN):
            return False
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(place / _RUN, into)
        return True

    def keep(self, key: str, folder: Path) -> bool:
        """Keep a run folder under a key, in the place of an older one; false when that was not possible."""
        if self._root is None:
            return False
        place, made = self._root / key, self._root / f".{key}.{os.getpid()}"
        try:
            shutil.rmtree(made, ignore_errors=True)
            shutil.copytree(folder, made / _RUN)
            (made / _MANIFEST).write_text(json.dumps(_digests(made / _RUN), indent=1), encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            made.rename(place)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            return False
        return True


def _is_whole(place: Path) -> bool:
    try:
        return bool(json.loads((place / _MANIFEST).read_bytes()) == _digests(place / _RUN))
    except (OSError, ValueError, RecursionError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _digest(path) for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
