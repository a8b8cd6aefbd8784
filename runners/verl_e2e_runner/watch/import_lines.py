"""The lines of the import instrumentation: read as they grow, to stop a run that imports from the wrong tree."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_e2e_runner.folder.suspect_files import read_below

_READ_BYTES = 1 << 18


@dataclass(slots=True)
class ImportLines:
    """Reads that file as it grows and looks for a module that came from the wrong tree."""

    path: Path
    roots: Mapping[str, str]
    _offset: int = 0

    def wrong(self) -> str:
        """A sentence about the first module below none of its roots since the last call, empty when all is well."""
        grown = read_below(self.path.parent, self.path.name, limit=_READ_BYTES, offset=self._offset) or b""
        whole = grown[: grown.rfind(b"\n") + 1]
        self._offset += len(whole)
        return next((sentence for line in whole.splitlines() if (sentence := self._wrong(line))), "")

    def _wrong(self, line: bytes) -> str:
        try:
            entry = json.loads(line)
            module, file = str(entry["module"]), str(entry.get("file") or "")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return ""
        root = self.roots.get(module)
        if not root or not file or _is_below(file, root):
            return ""
        return f"{module} was imported from {file}, not from {root} (process {entry.get('pid')})."


def _is_below(file: str, root: str) -> bool:
    pairs = ((os.path.normpath(file), os.path.normpath(root)), (os.path.realpath(file), os.path.realpath(root)))
    return any(path == base or path.startswith(base.rstrip("/") + "/") for path, base in pairs)
