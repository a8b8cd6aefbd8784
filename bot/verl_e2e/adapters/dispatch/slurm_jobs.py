"""What Slurm says of jobs: the questions as command lines, the answers as values. Nothing here starts a program."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto

from verl_e2e.core.model.causes import EngineEnd

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
ENDS: Mapping[str, EngineEnd] = {
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
