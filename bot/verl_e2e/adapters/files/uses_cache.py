"""What commits of verl use of Megatron-Bridge, a small file for each; it never lies inside a repository.

What cannot be read or written costs time, not the plan: the uses are then read again.
"""

import contextlib
import json
import os
import tempfile
from dataclasses import astuple
from pathlib import Path
from typing import Any

from verl_e2e.core.reach.entries import CallSite, Uses
from verl_e2e.core.reach.walk import Entry


class UsesCache:
    """A `UsesStore` in files below `folder`; without a folder nothing is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = None if folder is None else folder / "uses"

    def load(self, key: str) -> Uses | None:
        """The uses that were kept under a key, None where none were."""
        if self._folder is None:
            return None
        try:
            return _uses(json.loads((self._folder / f"{key}.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, key: str, uses: Uses) -> None:
        """Keep uses under a key; another process reads the whole file or none."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(astuple(uses), file, separators=(",", ":"))
            Path(name).replace(self._folder / f"{key}.json")


def _uses(row: list[Any]) -> Uses:
    entries, calls, source = row
    sites = (
        CallSite(name, method, positional, tuple(keywords), open_ended, file, line)
        for name, method, positional, keywords, open_ended, file, line in calls
    )
    return Uses(tuple(Entry(*entry) for entry in entries), tuple(sites), source)
