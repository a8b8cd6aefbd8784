"""Run jobs on a Slurm cluster: one `sbatch` for each run, found again by the run's key, which is the job's name.

No other module starts Slurm's commands.

The handle is the number of Slurm's job. The order lies below `root/<run key>` on a disk that the nodes share. A lost
answer never starts a run twice: `submit` first looks for a job with the name, and of two jobs with one name only the
one that makes the folder `claim` runs anything.
"""

import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from pathlib import Path

from verl_e2e.adapters.dispatch.order_folder import (
    CAPS,
    RUNNER_LOG,
    Caps,
    OpenLog,
    OrderFolder,
    disk_errors,
    follow_ups,
    safe_environment,
)
from verl_e2e.adapters.dispatch.slurm_script import OVERDUE, SlurmSettings, batch_script, gpus_words, sbatch_words
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.ray_nodes import LOST_FILE, STOP_FILE
from verl_e2e.ports import BackendError, Clock, Progress

# ssh's own exit code where the connection, and not the command, failed.
_NO_CONNECTION = 255
# Variables by which a user changes what the commands do and print.
_DEFAULTS_OF_SLURM = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_JOB")
_ANSWER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    code: int
    """Its exit code."""
    text: str
    """Its standard output."""
    error: str
    """The last line of its standard error, at most 300 characters."""


@dataclass(frozen=True, slots=True)
class SlurmCommands:
    """The commands of one cluster."""

    host: str = ""
    """The host where they are run, by ssh; empty: this machine."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment, of which secrets and the service's own settings are not handed down."""
    ssh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
    """How ssh is called: it never asks for a password."""
    time_s: float = 60.0
    """Seconds that a command may take."""

    def ask(self, words: Sequence[str], stdin: str = "") -> Answer:
        """Run one command to its end; BackendError where it cannot be run or gives no answer.

        Such an error is `uncertain`, for the command may have done its work.
        """
        command = self._command(words)
        try:
            ended = subprocess.run(
                command,
                input=stdin.encode(),
                env=self._environment(),
                cwd="/",
                capture_output=True,
                timeout=self.time_s,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._silent(command, f"gave no answer within {self.time_s:g} s") from None
        except OSError as error:
            what = f"{command[0]} cannot be started: {error.strerror}"
            raise BackendError(f"{what}; install Slurm's commands, or name a host in VERL_E2E_SLURM_HOST") from error
        answer = Answer(ended.returncode, ended.stdout[:_ANSWER_BYTES].decode(errors="replace"), _last(ended.stderr))
        if self.host and answer.code == _NO_CONNECTION:
            raise self._silent(command, f"did not reach {self.host}: {answer.error}")
        return answer

    def _command(self, words: Sequence[str]) -> list[str]:
        # ssh hands one text to a shell of the other host.
        return [*self.ssh, self.host, "--", shlex.join(words)] if self.host else [*words]

    def _environment(self) -> dict[str, str]:
        kept = safe_environment(self.environ)
        return {name: value for name, value in kept.items() if not name.startswith(_DEFAULTS_OF_SLURM)}

    def _silent(self, command: Sequence[str], what: str) -> BackendError:
        fix = "see that slurmctld runs and can be reached (`scontrol ping`)"
        return BackendError(f"{command[0]} {what}; {fix}", uncertain=True)


def _last(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no message"


# One line for each job, in an order that both programs can give.
_SQUEUE_FORMAT = "%i|%T|%r|%S|%e"
_SACCT_FORMAT = "JobIDRaw,State,Reason,Start,End"
_FIELDS = 5


class Phase(Enum):
    """What a state of Slurm means for a run."""

    WAITING = auto()
    """It does not run, and may."""
    RUNNING = auto()
    """It runs, is suspended, or is being ended."""
    ENDED = auto()
    """Its script ended by itself; the run folder says how the run ended."""
    CANCELLED = auto()
    """Someone cancelled it."""
    BROKEN = auto()
    """Slurm ended it, or could not run it: never a fault that a verdict may name."""


_PHASES: Mapping[Phase, tuple[str, ...]] = {
    Phase.WAITING: (
        *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"),
        *("RESV_DEL_HOLD", "POWER_UP_NODE"),
    ),
    Phase.RUNNING: ("RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"),
    Phase.ENDED: ("COMPLETED", "FAILED"),
    Phase.CANCELLED: ("CANCELLED",),
}
PHASES: Mapping[str, Phase] = {state: phase for phase, states in _PHASES.items() for state in states}

# States in which Slurm ended a job, or could not run it: what happened, and what to do.
BROKEN: Mapping[str, str] = {
    "BOOT_FAIL": "its node did not boot; have the node checked, and rerun",
    "DEADLINE": "it reached its deadline before it ended; rerun with a later one",
    "LAUNCH_FAILED": "its node could not start it; look at the log of slurmd there, and rerun",
    "NODE_FAIL": "its node failed; have the node checked, and rerun",
    "OUT_OF_MEMORY": "it used more host memory than it was given; raise `--mem` in VERL_E2E_SLURM_OPTIONS, and rerun",
    "PREEMPTED": "another job took its node; use a partition or QOS that is not preempted, or rerun",
    "RECONFIG_FAIL": "its node could not be prepared; have the node checked, and rerun",
    "REVOKED": "another cluster of the federation took it; name one cluster, and rerun",
    "TIMEOUT": "it reached its time limit; raise the job's `time_limit_s`, and rerun",
}

REQUEUED = (
    "Slurm ended its job and put it back into the queue, as `scontrol requeue` does or a restart of the controller, "
    "and a run is never continued; rerun"
)
# The same states as the decision on another attempt knows them.
_ENDS: Mapping[str, EngineEnd] = {
    "BOOT_FAIL": EngineEnd.NODE_NOT_READY,
    "DEADLINE": EngineEnd.TIME_LIMIT,
    "LAUNCH_FAILED": EngineEnd.NODE_NOT_READY,
    "NODE_FAIL": EngineEnd.NODE_FAILED,
    "OUT_OF_MEMORY": EngineEnd.HOST_MEMORY,
    "PREEMPTED": EngineEnd.PREEMPTED,
    "RECONFIG_FAIL": EngineEnd.NODE_NOT_READY,
    "REVOKED": EngineEnd.PREEMPTED,
    "TIMEOUT": EngineEnd.TIME_LIMIT,
}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job as Slurm lists it."""

    id: str
    """Its number."""
    state: str
    """Slurm's word, as `NODE_FAIL`."""
    reason: str
    """Slurm's word for why it waits or ended, as `Resources`."""
    started: datetime | None = None
    """When it began, None before."""
    ended: datetime | None = None
    """When it ended, or will by its time limit; None where Slurm gives no time."""

    @property
    def phase(self) -> Phase | None:
        """What the state means, None for a state that no version we know has."""
        return Phase.BROKEN if self.state in BROKEN else PHASES.get(self.state)


def squeue_words(name: str) -> list[str]:
    """The command that lists our jobs with a name, those that ended a few minutes ago too."""
    listing = [f"--name={name}", "--me", "--states=all", "--noheader", f"--format={_SQUEUE_FORMAT}"]
    return [*_in_utc(), "squeue", *listing]


def sacct_words(name: str, since: datetime) -> list[str]:
    """The command that lists our jobs with a name by the accounting, where a cluster has one."""
    start = f"--starttime={since.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"
    listing = [f"--name={name}", start, "--allocations", "--noheader", "--parsable2", f"--format={_SACCT_FORMAT}"]
    return [*_in_utc(), "sacct", *listing]


def _in_utc() -> tuple[str, ...]:
    # Both programs print the time of their own zone, in a format that a user may change.
    return ("env", "TZ=UTC", "LC_ALL=C", "SLURM_TIME_FORMAT=standard")


def read_jobs(text: str) -> tuple[SlurmJob, ...]:
    """The jobs of a listing, oldest first; a line of another form is left out."""
    rows = (line.strip().split("|") for line in text.splitlines())
    jobs = [_read_job(row) for row in rows if len(row) == _FIELDS and row[0].isdecimal() and row[0].isascii()]
    return tuple(sorted(jobs, key=lambda job: int(job.id)))


def _read_job(row: list[str]) -> SlurmJob:
    number, state, reason, started, ended = row
    # sacct writes `CANCELLED by 1000`, and `TIMEOUT+` where a column is too narrow.
    word = state.split()[0].rstrip("+") if state.split() else ""
    return SlurmJob(number, word, reason[:80], _time(started), _time(ended))


def _time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def read_submitted(text: str) -> str:
    """The number in what `sbatch --parsable` prints, `NUMBER` or `NUMBER;CLUSTER`; empty for anything else."""
    lines = text.strip().splitlines()
    number = lines[-1].partition(";")[0].strip() if lines else ""
    return number if number.isascii() and number.isdecimal() else ""


_SCRIPT = "#!/bin/bash\ntrue\n"
# What a node prints that has no such file.
_MISSING = "missing"


def check_cluster(settings: SlurmSettings, commands: SlurmCommands, *, free_node_s: int = 20) -> str:
    """What the cluster is, in words; BackendError with the fix for the first thing that keeps jobs from running.

    It starts one task of a second on a node, without a GPU, and waits `free_node_s` for a free node.
    """
    version = commands.ask(["sbatch", "--version"])
    if version.code:
        fix = "install Slurm's commands there, or set VERL_E2E_SLURM_HOST to a host that has them"
        raise BackendError(f"`sbatch --version` ended with {version.code}: {version.error}; {fix}")
    for words in (["squeue", "--me", "--noheader"], ["scancel", "--version"]):
        answer = commands.ask(words)
        if answer.code:
            fix = "see that slurmctld runs and can be reached (`scontrol ping`)"
            raise BackendError(f"`{' '.join(words)}` ended with {answer.code}: {answer.error}; {fix}")
    size = ["--nodes=1", "--ntasks=1", "--time=10"]
    taken = commands.ask(["sbatch", "--test-only", *size, *gpus_words(settings.gpus, 1), *settings.options], _SCRIPT)
    if taken.code:
        fix = "correct VERL_E2E_SLURM_OPTIONS or VERL_E2E_SLURM_GPUS"
        raise BackendError(f"Slurm would not take a job with one GPU: {taken.error}; {fix}")
    accounting = commands.ask(["sacct", "--noheader", "--allocations", "--starttime=now"])
    kept = "with accounting" if accounting.code == 0 else "without accounting"
    return f"{version.text.strip()[:60]}, {kept}, {_on_a_node(settings, commands, free_node_s)}"


def _on_a_node(settings: SlurmSettings, commands: SlurmCommands, free_node_s: int) -> str:
    """Whether a node reads what this machine wrote into the folder of orders."""
    mark = secrets.token_hex(8)
    file = settings.folder / f".check-{mark}"
    with disk_errors():
        file.write_text(mark)
    try:
        words = ["srun", f"--immediate={free_node_s}", "--nodes=1", "--ntasks=1", "--time=1", *settings.options]
        read = commands.ask([*words, "sh", "-c", f'cat "$1" 2>/dev/null || echo {_MISSING}', "sh", str(file)])
    finally:
        file.unlink(missing_ok=True)
    if read.text == mark:
        return "a node sees the folder of orders"
    if read.text.strip() == _MISSING:
        fix = "name a folder in VERL_E2E_SLURM_FOLDER that the nodes have at the same path"
        raise BackendError(f"a node does not see what lies in {settings.folder}; {fix}")
    return f"no node looked at the folder of orders within {free_node_s} s ({read.error})"


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
            return Progress(RunState.LOST, note, took=_took(job), end=_ENDS[job.state])
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
