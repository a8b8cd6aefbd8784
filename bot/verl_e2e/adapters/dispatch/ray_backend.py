"""Run jobs on a Ray cluster: one job of Ray Jobs for each run, named by the run's key.

Ray takes each name once, so a lost answer never starts a run twice. The order lies below `root/<run key>` on a disk
that the nodes share. Ray cannot withdraw a job that waits for resources, so a file in the order, `claim`, decides
whether the run begins: the job on its node makes it, or we do first, and no one makes it twice.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from verl_e2e.adapters.dispatch.order_folder import CAPS, Caps, OpenLog, OrderFolder, disk_errors, follow_ups
from verl_e2e.adapters.dispatch.ray_jobs import (
    BEGUN,
    CANCELLED,
    CLAIM,
    ENDS,
    KEY_OF_RUN,
    OVERDUE,
    Phase,
    RayJob,
    RaySettings,
    RefusedError,
    entrypoint,
    resources,
    runtime_env,
    submission_id,
)
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.ports import BackendError, Clock, Progress

# A note in an order: asked by us to end, and Ray took it.
_SENT = "cancel-sent"


class RayJobs(Protocol):
    """The jobs of one cluster, by their names; errors are BackendError."""

    def submit(self, name: str, entrypoint: str, **options: Any) -> None:
        """Submit a job; RefusedError where the cluster does not take it."""
        ...

    def job(self, name: str) -> RayJob | None:
        """A job, None where the cluster has none."""
        ...

    def stop(self, name: str) -> None:
        """Have a job ended; one that is gone is left alone."""
        ...

    def log(self, name: str) -> str:
        """The end of what Ray itself wrote of a job; empty where there is nothing."""
        ...


class RayBackend:
    """The nodes of one Ray cluster. Ray kills a run that does not end in the settings' time of being asked to."""

    def __init__(
        self,
        settings: RaySettings,
        jobs: RayJobs,
        *,
        clock: Clock,
        open_log: OpenLog,
        arguments: Callable[[Run], tuple[str, ...]] = follow_ups,
        caps: Caps = CAPS,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._clock = clock
        self._open_log = open_log
        self._arguments = arguments
        self._caps = caps

    def submit(self, run: Run) -> str:
        """Submit the job once; the handle is its name in Ray."""
        folder, arguments = self._folder(run), self._arguments(run)
        with disk_errors():
            folder.write_order(run, arguments)
        name = submission_id(run)
        if self._job(run) is not None:
            return name
        if folder.has(CLAIM):
            raise BackendError("Ray no longer has its job, which began or was cancelled; run it again", final=True)
        try:
            self._jobs.submit(
                name,
                entrypoint(run, arguments, folder, self._settings),
                metadata={KEY_OF_RUN: run.key},
                runtime_env=runtime_env(run, self._settings),
                **resources(run, self._settings),
            )
        except RefusedError as error:
            # Another process may have submitted it meanwhile.
            if self._job(run) is None:
                what = f"Ray did not take the job: {error}; see the dashboard's log, and run the job again"
                raise BackendError(what, final=400 <= error.code < 500, uncertain=error.code >= 500) from error
        return name

    def find(self, run: Run) -> str:
        """The name of the run's job in Ray, empty when the cluster has none."""
        return submission_id(run) if self._job(run) is not None else ""

    def end_doubles(self, run: Run) -> None:
        """Nothing to end: Ray takes each name once."""

    def poll(self, run: Run) -> Progress:
        """Where the run stands, by Ray and by its files. A run that no node takes in time never begins."""
        folder = self._folder(run)
        if not folder.ordered:
            return folder.gone(run)
        if ended := _withdrawn(folder):
            return ended
        job = self._job(run)
        if job is None:
            return self._ended(folder, None)
        match job.phase:
            case Phase.WAITING | Phase.RUNNING:
                return self._going(run, folder, job)
            case Phase.ENDED | Phase.STOPPED | Phase.BROKEN:
                return self._ended(folder, job)
            case None:
                what = f"Ray says that the job is {job.state[:40]!r}, which this version does not know"
                raise BackendError(f"{what}; update verl-e2e, or look at it with `ray job status {submission_id(run)}`")

    def cancel(self, run: Run) -> None:
        """Ask the runner to end its run and complete the folder; a waiting job never starts."""
        folder = self._folder(run)
        if not folder.ordered or _withdrawn(folder):
            return
        job = self._job(run)
        if job is not None and not job.live:
            return
        with disk_errors():
            folder.ask_for_end(self._clock.now())
            _withdraw(folder, CANCELLED)
        self._send_end(run, folder)

    def log(self, run: Run) -> Iterator[bytes]:
        """The log of the run so far, else the output of the runner, else of a job that never began Ray's own words."""
        folder = self._folder(run)
        if folder.ordered and not folder.has(CLAIM):
            yield self._jobs.log(submission_id(run)).encode()
        else:
            yield from folder.log(self._open_log)

    def artifacts(self, run: Run, into: Path) -> bool:
        """Copy the run folder of a run that has ended; false while it runs and when it left none."""
        job = self._job(run)
        return not (job is not None and job.live) and self._folder(run).copy_run(into, self._caps)

    def unattested(self, run: Run) -> str:  # noqa: ARG002  (the port's signature)
        """Always empty: the recorder on the node wrote the folder itself, on a disk that is ours."""
        return ""

    def _folder(self, run: Run) -> OrderFolder:
        return OrderFolder.of(self._settings.folder, run.key)

    def _job(self, run: Run) -> RayJob | None:
        """The run's job; BackendError where Ray does not say, or where another program's job has the name."""
        name = submission_id(run)
        job = self._jobs.job(name)
        if job is not None and job.key != run.key:
            raise BackendError(f"the job {name} in Ray is not ours; run the job again", final=True)
        return job

    def _going(self, run: Run, folder: OrderFolder, job: RayJob) -> Progress:
        if folder.cancelled:
            if not folder.has(_SENT):
                self._send_end(run, folder)
            return Progress(RunState.CANCELLING, "it is ending its run and completing the folder")
        if job.phase is Phase.RUNNING:
            return Progress(RunState.RUNNING, folder.where())
        if self._clock.now() - run.ordered >= timedelta(seconds=run.queue_deadline_s):
            with disk_errors():
                _withdraw(folder, OVERDUE)
            if overdue := _withdrawn(folder):
                self._jobs.stop(submission_id(run))
                return overdue
            return Progress(RunState.RUNNING, folder.where())
        return Progress(RunState.SUBMITTED, f"it waits for a node; Ray says: {job.message}")

    def _send_end(self, run: Run, folder: OrderFolder) -> None:
        """Have Ray send SIGTERM to the runner and all that it started, and SIGKILL to what is left after the grace."""
        self._jobs.stop(submission_id(run))
        with disk_errors():
            folder.write(_SENT, submission_id(run))

    def _ended(self, folder: OrderFolder, job: RayJob | None) -> Progress:
        if folder.cancelled:
            return folder.cancelled_end()
        if job is not None and job.phase is Phase.BROKEN:
            note = f"Ray ended the job as {job.error[:60] or job.state}: {job.why_broken()}"
            return Progress(RunState.LOST, note, end=ENDS.get(job.error))
        if job is not None and job.phase is Phase.STOPPED:
            return Progress(RunState.CANCELLED, "someone stopped its job in Ray")
        if folder.has_end():
            return Progress(RunState.FINISHED, "", took=_took(folder, job))
        if job is None and not folder.has(CLAIM):
            what = (
                "Ray no longer has its job, which never began: the head node was started again, or someone deleted it"
            )
            return Progress(RunState.LOST, f"{what}; rerun", end=EngineEnd.FORGOTTEN)
        return folder.lost(job.exit_code if job else None)


def _withdraw(folder: OrderFolder, why: str) -> None:
    """Take the order, so that its job never runs it; nothing where the job has it."""
    folder.write_once(CLAIM, f"{why}\n")


def _withdrawn(folder: OrderFolder) -> Progress | None:
    """How a run ended that its job can never begin, None for any other."""
    match folder.read(CLAIM).split()[:1]:
        case [word] if word == CANCELLED:
            return Progress(RunState.CANCELLED, "it was cancelled before it began")
        case [word] if word == OVERDUE:
            what = "no node of the cluster had what it asks for in time"
            return Progress(RunState.LOST, f"{what}; see `ray status`, and run it again", end=EngineEnd.NO_MACHINE)
    return None


def _took(folder: OrderFolder, job: RayJob | None) -> BackendTimes:
    """When the job began, by the clock of its node before any code under test ran, and when Ray saw its end."""
    began, ended = job.submitted if job else None, job.ended if job else None
    with suppress(ValueError, OverflowError, OSError):
        word, seconds, _ = folder.read(CLAIM).split()
        began = datetime.fromtimestamp(int(seconds), UTC) if word == BEGUN else began
    return BackendTimes(who="Ray's job", started=began, ended=ended)
