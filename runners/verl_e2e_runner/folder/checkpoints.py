"""Lists the checkpoints of a run before its first and after each of its phases; opens nothing but small files."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from verl_e2e.core.model.checkpoint_files import (
    CHECKPOINTS_FILE,
    TRACKER,
    CheckpointFile,
    CheckpointListing,
    Checkpoints,
)
from verl_e2e_runner.folder.recorder import Recorder
from verl_e2e_runner.folder.suspect_files import is_folder_below

MAX_FILES = 2000
MAX_SEEN = 10 * MAX_FILES
HASHED_BYTES = 1 << 20
_TRACKER_BYTES = 64


@dataclass(slots=True)
class CheckpointLister:
    """Writes `checkpoints.json` again after each phase."""

    recorder: Recorder
    # The wrapper's working directory.
    cwd: Path
    # Where the trainer saves, relative to `cwd`.
    folder: str
    # The folder below which the run may write and whose links are not followed; None where it may write anywhere.
    bounds: Path | None = None
    _listings: list[CheckpointListing] = field(default_factory=list)

    def list_after(self, phase: str) -> None:
        """List what lies there now; `phase` is the one that just ended, empty before the first."""
        folder = self.cwd / self.folder
        inside = self.bounds is None or is_folder_below(self.bounds, folder)
        self._listings.append(listing(folder, phase) if inside else CheckpointListing(after=phase))
        self.recorder.document(CHECKPOINTS_FILE, Checkpoints(folder=self.folder, listings=tuple(self._listings)))


def listing(folder: Path, after: str) -> CheckpointListing:
    """What lies in a folder, by path; links are not followed, and one that does not exist is empty."""
    below = (Path(root, name) for root, _, names in os.walk(folder) for name in names)
    paths = sorted(islice(below, MAX_SEEN))
    files = [found for path in paths[:MAX_FILES] if (found := _file(path, folder)) is not None]
    trackers = {file.path: _text(folder / file.path) for file in files if Path(file.path).name == TRACKER}
    return CheckpointListing(after=after, files=tuple(files), trackers=trackers, cut=len(paths) > MAX_FILES)


def _file(path: Path, folder: Path) -> CheckpointFile | None:
    try:
        found = path.lstat()
        if not S_ISREG(found.st_mode):
            return None
        small = found.st_size <= HASHED_BYTES
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if small else ""
    except OSError:
        return None
    name = path.relative_to(folder).as_posix()
    return CheckpointFile(path=name, size=found.st_size, modified_ns=found.st_mtime_ns, sha256=digest)


def _text(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        return file.read(_TRACKER_BYTES).decode(errors="replace").strip()
    return ""
