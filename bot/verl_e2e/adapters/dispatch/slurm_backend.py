"""Run jobs on a Slurm cluster: one `sbatch` for each run, found again by the run's key, which is the job's name.

The handle is the number of Slurm's job. The order lies below `root/<run key>` on a disk that the nodes share. A lost
answer never starts a run twice: `submit` first looks for a job with the name, and of two jobs with one name only the
one that makes the folder `claim` runs anything.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from verl_e2e.adapters.dispatch.copying import CAPS, Caps
from verl_e2e.adapters.dispatch.order_folder import RUNNER_LOG, OpenLog, OrderFolder, disk_errors, follow_ups
from verl_e2e.adapters.dispatch.slurm_commands import SlurmCommands
from verl_e2e.adapters.dispatch.slurm_jobs import (
    BROKEN,
    ENDS,
    REQUEUED,
    Phase,
    SlurmJob,
    read_jobs,
    read_submitted,
    sacct_words,
    squeue_words,
)
from verl_e2e.adapters.dispatch.slurm_script import OVERDUE, batch_script, sbatch_words
from verl_e2e.adapters.dispatch.slurm_settings import SlurmSettings
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.causes import EngineEnd
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.ray_nodes import LOST_FILE, STOP_FILE
from verl_e2e.ports import BackendError, Clock, Progress

# Notes in an order: asked by us to end, and Slurm took it for this job; begun, and put back into the queue by Slurm.
_SENT, _REQUEUED = "cancel-sent", "requeued"


class SlurmBackend:
    """The nodes of one Slurm cluster.

    A run that does not end within `grace_s` of being asked to is cancelled by Slurm with everything it started.
    """

    def __init__(
        self,
        settings: SlurmSettings,
        commands: SlurmCommands,
        *,
        clock: Clock,
        open_log: OpenLog,
        arguments: Callable[[Run], tuple[str, ...]] = follow_ups,
        grace_s: float = 300.0,
        caps: Caps = CAPS,
    ) -> None:
        self._settings = settings
        self._commands = commands
        self._clock = clock
        self._open_log = open_log
        self._arguments = arguments
        self._grace_s = grace_s
        self._caps = caps

    def submit(self, run: Run) -> str:
        """Submit the job once; the handle is its number."""
        folder, arguments = self._folder(run), self._arguments(run)
        with disk_errors():
            folder.write_order(run, arguments)
        script = batch_script(run, arguments, folder, self._settings)
        known = self._own(self._listed(run), folder)
        if known is not None:
            return known.id
        if folder.cancelled or folder.has("claim"):
            raise BackendError("Slurm no longer has its job, which began or was cancelled; run it again", final=True)
        words = sbatch_words(run, folder, self._settings)
        answer = self._commands.ask(words, script)
        return (
            read_submitted(answer.text) if answer.code == 0 else self._after_refusal(run, words, script, answer.error)
        )

    def find(self, run: Run) -> str:
        """The number of the job with the run's key, empty when none is listed."""
        found = self._own(self._listed(run), self._folder(run))
        return found.id if found is not None else ""

    def end_doubles(self, run: Run) -> None:
        """Cancel every other job with the run's key; none of them ran anything, for one has the order."""
        jobs = self._listed(run)
        own = self._own(jobs, self._folder(run))
        for job in jobs:
            if own is not None and job.id != own.id and job.phase in (Phase.WAITING, Phase.RUNNING):
                self._commands.ask(["scancel", job.id])

    def poll(self, run: Run) -> Progress:
        """Where the run stands, by Slurm and by its files. A run that no node takes in time is cancelled."""
        folder = self._folder(run)
        if not folder.ordered:
            return folder.gone(run)
        job = self._own(self._listed(run), folder)
        if job is None:
            return self._ended(folder, None)
        match job.phase:
            case Phase.WAITING | Phase.RUNNING:
                return self._going(run, folder, job)
            case Phase.ENDED | Phase.CANCELLED | Phase.BROKEN:
                return self._ended(folder, job)
            case None:
                what = f"Slurm says that job {job.id} is {job.state[:40]!r}, which this version does not know"
                raise BackendError(f"{what}; update verl-e2e, or look at the job with `scontrol show job {job.id}`")

    def cancel(self, run: Run) -> None:
        """Ask the runner to end its run and complete the folder; a waiting job never starts."""
        folder = self._folder(run)
        if not folder.ordered:
            return
        job = self._own(self._listed(run), folder)
        if job is not None and job.phase not in (Phase.WAITING, Phase.RUNNING):
            return
        with disk_errors():
            folder.ask_for_end(self._clock.now())
        if job is not None:
            self._send_end(folder, job)

    def log(self, run: Run) -> Iterator[bytes]:
        """The log of the run so far, else the output of the runner before the log exists."""
        yield from self._folder(run).log(self._open_log)

    def artifacts(self, run: Run, into: Path) -> bool:
        """Copy the run folder of a run that has ended; false while it runs and when it left none."""
        folder = self._folder(run)
        job = self._own(self._listed(run), folder)
        if job is not None and job.phase in (Phase.WAITING, Phase.RUNNING, None):
            return False
        return folder.copy_run(into, self._caps)

    def unattested(self, run: Run) -> str:  # noqa: ARG002  (the port's signature)
        """Always empty: the recorder on the node wrote the folder itself, on a disk that is ours."""
        return ""

    def _folder(self, run: Run) -> OrderFolder:
        return OrderFolder.of(self._settings.folder, run.key)

    def _listed(self, run: Run) -> tuple[SlurmJob, ...]:
        """Our jobs with the run's key; BackendError where Slurm does not say."""
        answer = self._commands.ask(squeue_words(run.key))
        if answer.code:
            fix = "see that slurmctld runs and can be reached (`scontrol ping`)"
            raise BackendError(f"squeue ended with {answer.code}: {answer.error}; {fix}", uncertain=True)
        if jobs := read_jobs(answer.text):
            return jobs
        # The controller forgets a job some minutes after its end. Not every cluster has accounting: without it the
        # files say how the run ended.
        kept = self._commands.ask(sacct_words(run.key, run.created - timedelta(days=1)))
        return read_jobs(kept.text) if kept.code == 0 else ()

    def _own(self, jobs: tuple[SlurmJob, ...], folder: OrderFolder) -> SlurmJob | None:
        """Of the jobs with one key that which has the order, else the first."""
        claimed = folder.read("claim/job").strip()
        return next((job for job in jobs if job.id == claimed), jobs[0] if jobs else None)

    def _after_refusal(self, run: Run, words: list[str], script: str, error: str) -> str:
        """The handle of a job that was taken although `sbatch` failed, else a BackendError.

        What the controller refuses on a second look as well, and only as a test, it will never take.
        """
        if found := self.find(run):
            return found
        again = self._commands.ask([words[0], "--test-only", *words[1:]], script)
        fix = "correct VERL_E2E_SLURM_OPTIONS or VERL_E2E_SLURM_GPUS, and run the job again"
        final = again.code != 0
        raise BackendError(f"sbatch did not take the job: {error}; {fix}", final=final, uncertain=not final)

    def _going(self, run: Run, folder: OrderFolder, job: SlurmJob) -> Progress:
        if folder.cancelled:
            self._hurry(folder, job)
            return Progress(RunState.CANCELLING, "it is ending its run and completing the folder")
        if folder.has(OVERDUE):
            return Progress(RunState.CANCELLING, _no_node(run))
        if job.phase is Phase.WAITING and folder.has("claim"):
            return self._requeued(folder, job)
        if job.phase is Phase.RUNNING:
            return Progress(RunState.RUNNING, folder.where())
        if self._clock.now() - run.ordered >= timedelta(seconds=run.queue_deadline_s):
            with disk_errors():
                folder.write(OVERDUE, job.id)
            self._commands.ask(["scancel", "--state=PENDING", job.id])
            return Progress(RunState.CANCELLING, _no_node(run))
        return Progress(RunState.SUBMITTED, f"it waits for a node, and Slurm says {job.reason or job.state}")

    def _requeued(self, folder: OrderFolder, job: SlurmJob) -> Progress:
        """End a job that waits after it began: its script would only find that it is not the first."""
        with disk_errors():
            folder.write(_REQUEUED, job.id)
        self._commands.ask(["scancel", job.id])
        return Progress(RunState.CANCELLING, REQUEUED)

    def _hurry(self, folder: OrderFolder, job: SlurmJob) -> None:
        """Ask a run again that was not reached, and end by force one that does not end."""
        if folder.read(_SENT) != job.id:
            self._send_end(folder, job)
        elif folder.asked_for_s(self._clock.now()) > self._grace_s:
            self._commands.ask(["scancel", job.id])

    def _send_end(self, folder: OrderFolder, job: SlurmJob) -> None:
        # In this order, for a job may begin between the two.
        waiting = self._commands.ask(["scancel", "--state=PENDING", job.id])
        begun = self._commands.ask(["scancel", "--batch", "--signal=TERM", job.id])
        if waiting.code == 0 and (begun.code == 0 or job.phase is Phase.WAITING):
            with disk_errors():
                folder.write(_SENT, job.id)

    def _ended(self, folder: OrderFolder, job: SlurmJob | None) -> Progress:
        if folder.cancelled:
            return folder.cancelled_end()
        if folder.has(_REQUEUED):
            return Progress(RunState.LOST, REQUEUED, end=EngineEnd.PREEMPTED)
        if job is not None and job.phase is Phase.BROKEN:
            note = f"Slurm ended job {job.id} as {job.state}: {BROKEN[job.state]}"
            return Progress(RunState.LOST, note, took=_took(job), end=ENDS[job.state])
        if job is not None and job.phase is Phase.CANCELLED:
            if folder.has(OVERDUE):
                note = "no node of the cluster took it in time; see `sinfo`, and run it again"
                return Progress(RunState.LOST, note, end=EngineEnd.NO_MACHINE)
            return Progress(RunState.CANCELLED, f"someone cancelled job {job.id} in Slurm")
        if folder.has(STOP_FILE):
            note = f"Slurm asked it to end: {BROKEN['TIMEOUT']}"
            return Progress(RunState.LOST, note, end=EngineEnd.TIME_LIMIT)
        if folder.has(LOST_FILE):
            what = "a node could not join its Ray cluster, or left it before the end"
            note = f"{what}; look at {RUNNER_LOG} in its order, and rerun"
            return Progress(RunState.LOST, note, end=EngineEnd.NODE_FAILED)
        if folder.has_end():
            return Progress(RunState.FINISHED, "", took=_took(job))
        if job is None and not folder.has("claim"):
            note = "Slurm no longer knows its job, which never began; run it again"
            return Progress(RunState.LOST, note, end=EngineEnd.FORGOTTEN)
        return folder.lost(folder.exit_code())


def _took(job: SlurmJob | None) -> BackendTimes:
    if job is None:
        return BackendTimes(who="Slurm")
    return BackendTimes(who=f"Slurm's job {job.id}", started=job.started, ended=job.ended)


def _no_node(run: Run) -> str:
    what = f"no node took the job within {run.queue_deadline_s // 60} minutes"
    return f"{what}; see what is free with `sinfo`, and run the job again"
