"""One ordered rehearsal on this host, from the commits to a whole run folder; judged elsewhere.

The folder has the order, the records of the cells of both commits and the events of any run. Whatever ends the
rehearsal, the folder says how.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from verl_e2e.core.compare.cell_map import AskedCells
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import ASKED_FILE, BASE_RECORDS, HEAD_RECORDS, RehearsalJob
from verl_e2e.core.model.record import JOB_FILE, EndReason, Manifest, Mode
from verl_e2e_runner.clock import SystemClock, utc_now
from verl_e2e_runner.folder.collect import record_end
from verl_e2e_runner.folder.recorder import Recorder, host_redactor, open_recorder
from verl_e2e_runner.folder.sealing import seal, usable_key
from verl_e2e_runner.process.processes import Ended, interruptible, received_signals
from verl_e2e_runner.rehearsal.cells import CELLS
from verl_e2e_runner.rehearsal.rehearse import (
    Place,
    Sources,
    Wanted,
    check_environment,
    is_isolated,
    record_files,
    rehearse,
)
from verl_e2e_runner.trees import RepositoryError

# The base and the head, each with what is to run over it.
Sides = tuple[tuple[Sources, Wanted], tuple[Sources, Wanted]]


def prepare_base(sides: Callable[[], Sides], place: Place) -> None:
    """Run the cells over the base alone; its records are kept in the place and used by the run. UserError."""
    check_environment(place)
    try:
        base, _ = sides()
    except RepositoryError as error:
        raise UserError(f"{error.summary}; {error.fix}") from None
    rehearse(*base, place)


def record_rehearsal(
    job: RehearsalJob,
    out: Path,
    sides: Callable[[], Sides],
    place: Place,
    *,
    order_nonce: str = "",
    say: Callable[[str], None] = lambda _: None,
    now: Callable[[], datetime] = utc_now,
) -> EndReason:
    """Run the cells over both commits and leave the run folder `out`; how it ended.

    `sides` fetches the commits and says what is to run; UserError and RepositoryError of it are an end that the folder
    tells. Raises FolderInUseError when `out` already holds a run.
    """
    began = now()
    hide = host_redactor(place.environ, {"$WORK": place.work, "$OUT": out.resolve(), "$BRIDGE": job.bridge.path})
    clock = SystemClock()
    with received_signals() as signals, open_recorder(out, redactor=hide, monotonic=clock.monotonic) as recorder:
        recorder.nonce = order_nonce
        recorder.document(JOB_FILE, job)
        recorder.event("started", job=job.id, digest=job.digest(), unix_s=round(began.timestamp(), 3))
        ended, isolated = _run(recorder, sides, place, signals, say)
        record_end(recorder, ended)
        recorder.close()
        manifest = Manifest(
            job=job.id,
            job_digest=job.digest(),
            began=began.isoformat(timespec="milliseconds"),
            ended=now().isoformat(timespec="milliseconds"),
            seconds=recorder.elapsed(),
            isolation=_mode(isolated=isolated),
            files=(),
        )
        seal(out, manifest, usable_key(place.environ, say))
    return ended.reason


def _mode(*, isolated: bool) -> Mode:
    if not isolated:
        return "none"
    return "other_user" if os.getuid() == 0 else "user_namespace"


def _run(
    recorder: Recorder,
    sides: Callable[[], Sides],
    place: Place,
    signals: Sequence[str],
    say: Callable[[str], None],
) -> tuple[Ended, bool]:
    """How it ended, and whether the code of both sides was kept apart."""
    isolated = True
    try:
        with interruptible():
            if signals:
                raise KeyboardInterrupt(signals[0])
            check_environment(place)
            both = sides()
            cells = both[1][1].cells
            recorder.document(ASKED_FILE, AskedCells(cells=tuple(cells), whole=len(cells) == len(CELLS)))
            for name, (sources, wanted) in zip((BASE_RECORDS, HEAD_RECORDS), both, strict=True):
                say(f"rehearsing the {name}, Bridge {sources.commit[:12]}")
                recorder.event("phase", name=name, state="begin")
                records = rehearse(sources, wanted, place)
                _take_over(recorder, records, name)
                recorder.event("phase", name=name, state="end", reason=EndReason.EXITED.value, exit_code=0)
                isolated = isolated and is_isolated(records)
    except KeyboardInterrupt as interruption:
        by = f" by {interruption}" if str(interruption) else ""
        return Ended(EndReason.INTERRUPTED, None, f"Interrupted{by}."), False
    except (UserError, RepositoryError) as error:
        fix = error.fix if isinstance(error, RepositoryError) else ""
        return Ended(EndReason.NOT_STARTED, None, f"{error}; {fix}" if fix else str(error)), False
    except Exception as error:
        # A full disk may be what ended us; the error itself must come through.
        with suppress(OSError):
            note = f"The runner itself failed: {type(error).__name__}: {error}"
            record_end(recorder, Ended(EndReason.RUNNER_FAULT, None, note))
        raise
    return Ended(EndReason.EXITED, 0), isolated


def _take_over(recorder: Recorder, records: Path, name: str) -> None:
    """Write what a side left into the run folder, redacted."""
    (recorder.folder / name).mkdir()
    for file in record_files(records):
        with suppress(ValueError, OSError):
            document = recorder.redactor.redact_document(json.loads(file.read_bytes()))
            # The two of a whole table are some 70 MB without blanks.
            recorder.text(f"{name}/{file.name}", f"{json.dumps(document, separators=(',', ':'))}\n")
