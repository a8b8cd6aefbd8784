"""What back ends do alike whose jobs share a disk with this process: this host, Slurm, Ray.

On a cluster a file in the order, `claim`, decides whether the run begins: the job on its node makes it, or we do first,
and no one makes it twice. So a run that waits can be cancelled, and of two jobs for one order one runs anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from pathlib import Path
from typing import ClassVar

from verl_e2e.adapters.dispatch.order_folder import OpenLog, OrderFolder, disk_errors
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.ports import BackendError, Clock, Progress

# A file in an order that is made once, by the job or by us: `begun SECONDS JOB`, or why the run never begins.
CLAIM = "claim"
BEGUN, _CANCELLED, _OVERDUE = "begun", "cancelled", "overdue"
# A note in an order: asked by us to end, and the engine took it for the job that it names.
_SENT = "cancel-sent"
# A run that does not end within so many seconds of being asked to is ended by force.
GRACE_S = 300

# Of a job's script: `$1` is the folder of the order, `$2` the job's name, `$3` the line for sha256sum. The engine keeps
# this text, so no one who can write the folder changes what is checked here.
CLAIMING = f"""\
cd "$1" || exit 71
echo "{BEGUN} $(date +%s) $2" > ".{CLAIM}.$2" || exit 71
if ! ln ".{CLAIM}.$2" {CLAIM}; then
    echo "another job has this order, or it was cancelled" >&2
    exit 76
fi
if ! echo "$3" | sha256sum --check --status; then
    echo "job.json is not the job that was ordered" >&2
    exit 77
fi
"""


class JobPhase(Enum):
    """What an engine's state of a job means for a run."""

    WAITING = auto()
    """It does not run, and may."""
    RUNNING = auto()
    """It runs, is suspended, or is being ended."""
    ENDED = auto()
    """Its command ended by itself; the run folder says how the run ended."""
    CANCELLED = auto()
    """Someone ended it."""
    BROKEN = auto()
    """The engine ended it, or could not run it: never a fault that a verdict may name."""


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """A way in which an engine ends a job, or cannot run it."""

    what: str
    """What happened, and what to do."""
    end: EngineEnd | None
    """The same as the decision on another attempt knows it; None for one that no version we know has."""


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """One job as its engine describes it."""

    id: str
    """Its number or name."""
    state: str
    """The engine's word, as `NODE_FAIL`."""
    phase: JobPhase | None
    """What that means, None for a state that no version we know has."""
    says: str = ""
    """The engine's words for why it waits or ended."""
    broken: EngineFailure | None = None
    """What the engine did to it where it is broken."""
    began: datetime | None = None
    """When it began, None before."""
    ended: datetime | None = None
    """When it ended, or will by its time limit; None where the engine gives no time."""
    exit_code: int | None = None
    """The exit code of its command, None where the engine does not tell."""

    @property
    def live(self) -> bool:
        """Whether it has not ended, or may not have."""
        return self.phase in (JobPhase.WAITING, JobPhase.RUNNING, None)


class SharedDiskBackend:
    """Runs whose orders lie below `root/<run key>`, on a disk that this process and the runner share."""

    def __init__(self, root: Path, *, clock: Clock, open_log: OpenLog) -> None:
        self._root, self._clock, self._open_log = root, clock, open_log

    def end_doubles(self, run: Run) -> None:
        """Nothing to end: there is one job for each key."""

    def where(self, run: Run) -> str:
        """How far it is, by the events of its folder."""
        return self._folder(run).where()

    def log(self, run: Run) -> Iterator[bytes]:
        yield from self._folder(run).log(self._open_log)

    def artifacts(self, run: Run, into: Path) -> bool:
        """Copy the run folder of a run that has ended; false while it runs and when it left none."""
        return not self._is_live(run) and self._folder(run).copy_run(into)

    def unattested(self, run: Run) -> str:  # noqa: ARG002  (the port's signature)
        """Always empty: the recorder wrote the folder itself, on a disk that is ours."""
        return ""

    def _folder(self, run: Run) -> OrderFolder:
        return OrderFolder.of(self._root, run.key)

    def _is_live(self, run: Run) -> bool:
        raise NotImplementedError


class ClusterBackend(SharedDiskBackend):
    """The nodes of one cluster."""

    engine: ClassVar[str]
    """Its name in sentences."""
    shows_job: ClassVar[str]
    """The command that shows a job."""
    shows_nodes: ClassVar[str]
    """The command that shows what is free."""

    def submit(self, run: Run) -> str:
        """Submit the job once; the handle is its number or name."""
        folder = self._folder(run)
        with disk_errors():
            folder.write_order(run)
        known = self._job(run, folder)
        if known is not None:
            return known.id
        if folder.cancelled or folder.has(CLAIM):
            what = f"{self.engine} no longer has its job, which began or was cancelled"
            raise BackendError(f"{what}; run it again", final=True)
        return self._start(run, folder)

    def find(self, run: Run) -> str:
        """The handle of the run's job, empty when the cluster has none."""
        found = self._job(run, self._folder(run))
        return found.id if found is not None else ""

    def poll(self, run: Run) -> Progress:
        """Where the run stands, by the engine and by its files. A run that no node takes in time never begins."""
        folder = self._folder(run)
        if not folder.ordered:
            return folder.gone(run)
        job = self._job(run, folder)
        if ended := self._withdrawn(folder, job):
            return ended
        if job is not None and job.phase is None:
            what = f"{self.engine} says that job {job.id} is {job.state[:40]!r}, which this version does not know"
            raise BackendError(f"{what}; update verl-e2e, or look at it with `{self.shows_job} {job.id}`")
        return self._going(run, folder, job) if job is not None and job.live else self._ended(folder, job)

    def cancel(self, run: Run) -> None:
        """Ask the runner to end its run and complete the folder; a waiting job never starts."""
        folder = self._folder(run)
        job = self._job(run, folder) if folder.ordered else None
        if not folder.ordered or (job is not None and not job.live):
            return
        with disk_errors():
            folder.ask_for_end(self._clock.now())
            folder.write(CLAIM, f"{_CANCELLED}\n", once=True)
        if job is not None:
            self._send(folder, job)

    def _is_live(self, run: Run) -> bool:
        job = self._job(run, self._folder(run))
        return job is not None and job.live

    def _going(self, run: Run, folder: OrderFolder, job: ClusterJob) -> Progress:
        if folder.cancelled:
            if folder.read(_SENT) != job.id:
                self._send(folder, job)
            elif folder.asked_for_s(self._clock.now()) > GRACE_S:
                self._end_by_force(job)
            return Progress(RunState.CANCELLING, "it is ending its run and completing the folder")
        if job.phase is JobPhase.WAITING:
            if self._clock.now() - run.ordered < timedelta(seconds=run.queue_deadline_s):
                return Progress(RunState.SUBMITTED, f"it waits for a node; {self.engine} says: {job.says or job.state}")
            with disk_errors():
                folder.write(CLAIM, f"{_OVERDUE}\n", once=True)
            if ended := self._withdrawn(folder, job):
                return ended
        return Progress(RunState.RUNNING, folder.where())

    def _withdrawn(self, folder: OrderFolder, job: ClusterJob | None) -> Progress | None:
        """How a run ended that its job can never begin, None for any other."""
        match folder.read(CLAIM).split():
            case [word] if word == _CANCELLED:
                ended = Progress(RunState.CANCELLED, "it was cancelled before it began")
            case [word] if word == _OVERDUE:
                what = f"no node of the cluster took it in time; see `{self.shows_nodes}`, and run it again"
                ended = Progress(RunState.LOST, what, end=EngineEnd.NO_MACHINE)
            case _:
                return None
        # It may wait still, or code under test wrote so.
        if job is not None and job.live:
            self._send_end(job)
        return ended

    def _send(self, folder: OrderFolder, job: ClusterJob) -> None:
        if self._send_end(job):
            with disk_errors():
                folder.write(_SENT, job.id)

    def _ended(self, folder: OrderFolder, job: ClusterJob | None) -> Progress:
        took = self._took(folder, job)
        if folder.cancelled:
            return folder.cancelled_end()
        if job is not None and job.broken is not None:
            note = f"{self.engine} ended job {job.id} as {job.state}: {job.broken.what}"
            return Progress(RunState.LOST, note, took=took, end=job.broken.end)
        if job is not None and job.phase is JobPhase.CANCELLED:
            return Progress(RunState.CANCELLED, f"someone cancelled job {job.id} in {self.engine}")
        if ended := self._ended_by_script(folder):
            return ended
        if folder.has_end():
            return Progress(RunState.FINISHED, "", took=took)
        if job is None and not folder.has(CLAIM):
            what = f"{self.engine} no longer has its job, which never began: someone deleted it, or its head restarted"
            return Progress(RunState.LOST, f"{what}; rerun", end=EngineEnd.FORGOTTEN)
        return folder.lost(job.exit_code if job and job.exit_code is not None else folder.exit_code())

    def _ended_by_script(self, folder: OrderFolder) -> Progress | None:  # noqa: ARG002  (for an engine to say)
        """How a run ended that the job's own script ended, None for any other."""
        return None

    def _job(self, run: Run, folder: OrderFolder) -> ClusterJob | None:
        """The run's job, None where the cluster has none; BackendError where the engine does not say."""
        raise NotImplementedError

    def _start(self, run: Run, folder: OrderFolder) -> str:
        """Submit the job, and give its handle; BackendError."""
        raise NotImplementedError

    def _send_end(self, job: ClusterJob) -> bool:
        """Have the runner told to end its run, and a job that waits ended; whether the engine took it."""
        raise NotImplementedError

    def _end_by_force(self, job: ClusterJob) -> None:
        """End a job with everything that it started; nothing where the engine does so by itself."""

    def _took(self, folder: OrderFolder, job: ClusterJob | None) -> BackendTimes:
        """When the run began and ended, as far as the engine knows."""
        raise NotImplementedError
