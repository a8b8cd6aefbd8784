"""Leaves the run folder whole after the end: imports, metrics, configuration, durations, and closing events.

The checkpoints of a run are listed before its first and after each of its phases; nothing but small files is opened.
"""

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from pydantic import ValidationError

from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.record import (
    CHECKPOINTS_FILE,
    CONFIG_FILE,
    IMPORTS_FILE,
    METRICS_FILE,
    TRACKER,
    CheckpointFile,
    CheckpointListing,
    Checkpoints,
    ImportLine,
)
from verl_e2e_runner.folder.recorder import Recorder
from verl_e2e_runner.folder.suspect_files import is_folder_below, read_below
from verl_e2e_runner.process.processes import Ended

MAX_IMPORT_LINES = 20_000
_LINE_CHARS = 4096
_MOST_BYTES = 16 << 20


def collect(recorder: Recorder, facts: LogFacts, *, imports_file: Path, ended: Ended) -> None:
    """Write what the log and the instrumentation say into the folder, then the closing events; nothing is judged.

    `facts` are those of the log as written. `imports_file` is removed once its lines are in the folder.
    """
    _move_imports(recorder, imports_file)
    steps = ({"step": step.step, "line": step.line, "metrics": plain(step.values)} for step in facts.steps)
    recorder.lines(METRICS_FILE, steps)
    configs = [
        {"line": config.line, "problem": config.problem, "values": plain(config.values)} for config in facts.configs
    ]
    recorder.document(CONFIG_FILE, {"schema": 1, "configs": configs})
    recorder.event("durations", seconds=durations(ended))
    record_end(recorder, ended)


def record_end(recorder: Recorder, ended: Ended) -> None:
    """The two closing events, also for a run whose wrapper never started."""
    # The order's nonce comes last, when nothing that the run started is left to read it.
    nonce = {"nonce": recorder.nonce} if recorder.nonce else {}
    recorder.event("ended", reason=ended.reason.value, exit_code=ended.exit_code, note=ended.note, **nonce)
    survivors = [
        {"pid": survivor.pid, "name": survivor.name, "command": survivor.command} for survivor in ended.survivors
    ]
    recorder.event("left_running", processes=survivors)


def durations(ended: Ended) -> dict[str, float]:
    """Seconds spent in each stage, all its visits added up, from its first sign to that of the next stage."""
    spent: defaultdict[str, float] = defaultdict(float)
    ends = [at_s for _, at_s in ended.stages[1:]] + [ended.ended_s]
    for (stage, began_s), end_s in zip(ended.stages, ends, strict=False):
        spent[stage.value] += end_s - began_s
    return {stage: round(seconds, 3) for stage, seconds in spent.items()}


def _move_imports(recorder: Recorder, imports_file: Path) -> None:
    raw = read_below(imports_file.parent, imports_file.name, limit=_MOST_BYTES)
    if raw is None:
        recorder.event("probe", lines=0, unreadable=0)
        return
    unreadable = 0

    def lines() -> Iterator[ImportLine]:
        nonlocal unreadable
        for line in raw.splitlines()[:MAX_IMPORT_LINES]:
            try:
                yield ImportLine.model_validate_json(line[:_LINE_CHARS])
            except ValidationError:
                unreadable += 1

    written = recorder.lines(IMPORTS_FILE, lines())
    recorder.event("probe", lines=written, unreadable=unreadable)
    imports_file.unlink()


def plain(value: object) -> object:
    """The value in JSON's terms: NaN and the infinities as "nan", "inf", "-inf", unknown objects as their text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): plain(entry) for key, entry in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(entry) for entry in value]
        case _:
            return str(value)


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
