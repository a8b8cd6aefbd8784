"""One job on this host, from private trees to a whole run folder; judged elsewhere.

Whatever ends the run, the folder says how, and nothing of the run is left on the host.
"""

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TextIO

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import OWN_FILES
from verl_e2e.core.model.record import (
    JOB_FILE,
    EndReason,
    Manifest,
)
from verl_e2e.core.text.redact import Redactor
from verl_e2e_runner.clock import SystemClock, utc_now
from verl_e2e_runner.folder.collect import record_end
from verl_e2e_runner.folder.recorder import host_redactor, open_recorder
from verl_e2e_runner.folder.sealing import seal, usable_key
from verl_e2e_runner.isolation import (
    Host,
    find_isolation,
    mode_of,
)
from verl_e2e_runner.phases import Run, run_phases
from verl_e2e_runner.process.processes import Ended, interruptible, received_signals
from verl_e2e_runner.process.session import Part, Session, close_session, open_session, planned_session, recorded_parts
from verl_e2e_runner.sharing import Devices, Place, read_devices, take_place
from verl_e2e_runner.verl_wrapper import PACKAGE_FOLDER, cluster_of
from verl_e2e_runner.watch.watch import Progress

TakePlace = Callable[[Job, str, Mapping[str, str], Callable[[], Devices]], AbstractContextManager[Place]]


def run_job(
    job: Job,
    out: Path,
    *,
    environ: Mapping[str, str],
    work: Path | None,
    stream: TextIO,
    devices: Callable[[], Devices] = read_devices,
    place: TakePlace = take_place,
    isolation: Callable[[Job, Mapping[str, str]], Host] = find_isolation,
    junit: bytes | None = None,
    now: Callable[[], datetime] = utc_now,
    order_nonce: str = "",
    keep_caches: Path | None = None,
) -> bool:
    """Run a job to its end and leave its folder in `out`; true when it was interrupted.

    `work` keeps caches between runs; private trees lie below it, or next to `out` without it, and are removed
    at the end. Progress goes to `stream`, `devices` reads the GPUs, `place` gives the run its place on this
    host meanwhile, `isolation` finds out whether it can keep the code under test apart. `junit` is a JUnit file that
    states the job's commit; then the Bridge tests are not run here. `order_nonce` is what the order held, and is
    returned with the end of the run. With `keep_caches` the run begins with empty kernel caches and leaves what it
    compiled in that folder, which does not exist or is empty. Raises FolderInUseError when `out` already holds a run.
    """
    clock, began = SystemClock(), now()
    nonce = secrets.token_hex(16)
    own = own_folder(out, work, nonce)
    progress = Progress(stream, clock.monotonic, moving=stream.isatty(), label=job.id)
    recorded = recorded_parts(environ)
    host = isolation(job, environ)
    caged = host.tools is not None
    imports = (own / "suspect" / "out" if caged else own) / "imports.jsonl"
    # Next to the folders that code in a cage may write, and not in one of them.
    executed = (own / "suspect" if caged else own) / "recording.json"
    session = planned_session(
        nonce,
        imports,
        executed=executed if Part.EXECUTED in recorded else None,
        fingerprints=imports.with_name("fingerprints") if Part.FINGERPRINTS in recorded else None,
        caged=caged,
    )
    session = replace(session, ray_address=cluster_of(job, environ))
    if (keep_caches or job.site.kernel_caches is not None) and not (session.ray_address or job.site.ray_address):
        # The workers of another cluster have their caches by variables of its own.
        session = replace(session, caches=(own / "suspect" if caged else own) / "cache")
    hide = _redactor(job, out, own, environ)
    with (
        received_signals() as signals,
        open_recorder(out, redactor=hide, monotonic=clock.monotonic) as recorder,
        _folders(own, session, caged=caged) as opened,
        place(job, host.problem, environ, devices) as taken,
    ):
        cache = work / "cache" if work else None
        own_gpus = replace(opened, gpus=taken.gpus)
        run = Run(job, environ, out, own, cache, host, own_gpus, recorder, progress, devices, taken, junit, keep_caches)
        recorder.nonce = order_nonce
        recorder.document(JOB_FILE, job)
        recorder.event("started", job=job.id, digest=job.digest(), unix_s=round(began.timestamp(), 3))
        try:
            ended = _interruptible(run, signals)
        finally:
            progress.close()
        _seal(run, began, now())
    return ended.reason is EndReason.INTERRUPTED


def _seal(run: Run, began: datetime, ended: datetime) -> None:
    """Close the folder and seal it: from here on nothing in it changes but by those who judge."""
    run.recorder.close()
    manifest = Manifest(
        job=run.job.id,
        job_digest=run.job.digest(),
        began=began.isoformat(timespec="milliseconds"),
        ended=ended.isoformat(timespec="milliseconds"),
        seconds=run.recorder.elapsed(),
        isolation=mode_of(run.host),
        files=(),
    )
    seal(run.out, manifest, usable_key(run.environ, run.progress.note))


def _interruptible(run: Run, signals: list[str]) -> Ended:
    """Run, and record the end whatever it is: a person's, the system's, or an error of our own before it is raised."""
    try:
        with interruptible():
            if signals:
                raise KeyboardInterrupt(signals[0])
            return run_phases(run)
    except KeyboardInterrupt as interruption:
        by = f" by {interruption}" if str(interruption) else ""
        ended = Ended(EndReason.INTERRUPTED, None, f"Interrupted{by} before the wrapper was started.")
        record_end(run.recorder, ended)
        return ended
    except Exception as error:
        # A full disk may be what ended us; the error itself must come through.
        with suppress(OSError):
            note = f"The runner itself failed: {type(error).__name__}: {error}"
            record_end(run.recorder, Ended(EndReason.RUNNER_FAULT, None, note))
        raise


def own_folder(out: Path, work: Path | None, nonce: str) -> Path:
    """Where the private trees of a run lie, resolved: below `work`, or next to `out` without it."""
    whole = out.resolve()
    return (work / f"run-{nonce[:12]}" if work else whole.with_name(f".{whole.name}.work-{nonce[:12]}")).resolve()


@contextmanager
def _folders(own: Path, session: Session, *, caged: bool) -> Iterator[Session]:
    """The run's own folders, there for its time and gone afterwards; Ray's lies in the cage where there is one."""
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = session
    if not caged:
        opened = open_session(
            session.nonce, session.imports, executed=session.executed, fingerprints=session.fingerprints
        )
        opened = replace(opened, ray_address=session.ray_address, caches=session.caches)
    try:
        yield opened
    finally:
        if not caged:
            close_session(opened)
        shutil.rmtree(own, ignore_errors=True)


def _redactor(job: Job, out: Path, own: Path, environ: Mapping[str, str]) -> Redactor:
    """Names of this host become placeholders of equal meaning; secrets of its environment are removed."""
    places = {
        "$WORK": own,
        "$OUT": out.resolve(),
        "$BRIDGE": Path(job.bridge.path),
        "$VERL": Path(job.verl.path),
        OWN_FILES: PACKAGE_FOLDER,
    }
    if job.megatron_lm:
        places["$MEGATRON_LM"] = Path(job.megatron_lm.path)
    return host_redactor({**environ, **job.site.process, **job.process}, places)
