"""What Ray says of a job, as values, and what its words mean for a run. Nothing here asks Ray."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any

from verl_e2e.adapters.dispatch.order_folder import KEY_VARIABLE, ORDER_VARIABLE, RECORDER_KEY, RUNNER_LOG, OrderFolder
from verl_e2e.core.model.jobs import REHEARSAL_CORES, REHEARSAL_MEMORY_GIB, Job
from verl_e2e.core.model.needs import Needs
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.ports import BackendError


class Phase(Enum):
    """What a state of Ray means for a run."""

    WAITING = auto()
    """It does not run, and may."""
    RUNNING = auto()
    """Its command runs."""
    ENDED = auto()
    """Its command ended by itself; the run folder says how the run ended."""
    STOPPED = auto()
    """Someone stopped it."""
    BROKEN = auto()
    """Ray ended it, or could not run it: never a fault that a verdict may name."""


_PHASES: Mapping[str, Phase] = {
    "PENDING": Phase.WAITING,
    "RUNNING": Phase.RUNNING,
    "SUCCEEDED": Phase.ENDED,
    "STOPPED": Phase.STOPPED,
}
_FAILED = "FAILED"
# The command ended with another exit code than 0, as the runner does for a run that did not pass.
_COMMAND_ERROR = "JOB_ENTRYPOINT_COMMAND_ERROR"

# Ray's error types in which Ray ended a job, or could not run it: what happened, and what to do.
BROKEN: Mapping[str, str] = {
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": "its node could not start the command; look at Ray's log of the job, and "
    "rerun",
    "JOB_SUPERVISOR_ACTOR_DIED": "its node was lost, or the process of Ray that watched it was killed, as for want of "
    "memory; look at `ray list nodes` and at the memory of the node, and rerun",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": "Ray could not start the process that runs it; look at the dashboard's log, "
    "and rerun",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": "no node took it in the time that Ray lets a job wait; set "
    "RAY_JOB_START_TIMEOUT_SECONDS on the head node to the policy's `gate.queue_deadline_s`, and rerun",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE": "Ray lost the process that ran it; look at the dashboard's log, and rerun",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": "no node of the cluster can take it; see `ray status`, and rerun",
    "RUNTIME_ENV_SETUP_FAILURE": "its node could not prepare the job's variables; look at the log of the runtime "
    "environment there, and rerun",
}
# The same errors as the decision on another attempt knows them.
ENDS: Mapping[str, EngineEnd] = {
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": EngineEnd.NODE_NOT_READY,
    "JOB_SUPERVISOR_ACTOR_DIED": EngineEnd.NODE_FAILED,
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": EngineEnd.NODE_NOT_READY,
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": EngineEnd.NO_MACHINE,
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE": EngineEnd.NODE_FAILED,
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": EngineEnd.NO_MACHINE,
    "RUNTIME_ENV_SETUP_FAILURE": EngineEnd.NODE_NOT_READY,
}
_OTHER = "Ray gives no cause that this version knows; look at `ray job logs`, and rerun"


@dataclass(frozen=True, slots=True)
class RayJob:
    """One job as Ray describes it."""

    state: str
    """Ray's word, as `RUNNING`."""
    error: str = ""
    """Ray's word for why it failed, as `JOB_SUPERVISOR_ACTOR_DIED`; empty where it did not, or Ray is too old."""
    message: str = ""
    """Ray's sentence, at most 300 characters."""
    exit_code: int | None = None
    """The exit code of the command, None where it did not end."""
    key: str = ""
    """The run's key in its metadata; empty for a job of another program."""
    submitted: datetime | None = None
    """When Ray took it."""
    ended: datetime | None = None
    """When it ended, None before."""

    @property
    def phase(self) -> Phase | None:
        """What the state means, None for a state that no version we know has."""
        if self.state != _FAILED:
            return _PHASES.get(self.state)
        by_itself = self.error == _COMMAND_ERROR or (not self.error and self.exit_code is not None)
        return Phase.ENDED if by_itself else Phase.BROKEN

    @property
    def live(self) -> bool:
        """Whether it has not ended, or may not have."""
        return self.phase in (Phase.WAITING, Phase.RUNNING, None)

    def why_broken(self) -> str:
        """What Ray did to it, and what to do."""
        return BROKEN.get(self.error, _OTHER)


class RefusedError(Exception):
    """The server answered with an error; `code` is its HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        lines = text.strip().splitlines()
        super().__init__(f"{code} {lines[-1][:300] if lines else ''}".rstrip())
        self.code = code


# A file in an order that is made once, by the job or by the service. Its first word says whether the run begins.
CLAIM = "claim"
BEGUN, CANCELLED, OVERDUE = "begun", "cancelled", "overdue"
# In the metadata of a job.
KEY_OF_RUN = "verl-e2e-run"


@dataclass(frozen=True, slots=True)
class RaySettings:
    """How jobs are submitted to a cluster."""

    folder: Path
    """The folder of orders, at the same path here and on the nodes."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What else of Ray's resources a job takes, by name."""
    command: tuple[str, ...] = ("verl-e2e",)
    """How `verl-e2e` is called on a node."""
    setup: str = ""
    """A bash script that is read before that; empty for none."""
    token_file: str = ""
    """The file on the nodes with the token for fetching repositories; empty for none."""
    grace_s: int = 300
    """Seconds that a run has to end itself before Ray kills it."""


# Its arguments: the folder of the order, the job's name, the line for sha256sum, a script to read first, the command.
# `exec` makes the runner the process that Ray signals. Variables of the cluster, its token among them, must not reach
# verl, which starts a Ray of its own; Ray sets OMP_NUM_THREADS by the CPUs that it was asked for.
_SCRIPT = f"""\
cd "$1" || exit 71
echo "{BEGUN} $(date +%s) $2" > ".{CLAIM}.$$" || exit 71
if ! ln ".{CLAIM}.$$" {CLAIM}; then
    echo "another job has this order, or it was cancelled" >&2
    exit 76
fi
if ! echo "$3" | sha256sum --check --status; then
    echo "job.json is not the job that was ordered" >&2
    exit 77
fi
unset OMP_NUM_THREADS PYTHONBREAKPOINT ${{!RAY_@}}
exec >> {RUNNER_LOG} 2>&1
if [ -n "$4" ]; then . "$4" || exit 78; fi
shift 4
exec "$@"
"""


def submission_id(run: Run) -> str:
    """The name of a run's job in Ray, which takes each name once."""
    return f"verl-e2e-{run.key}"


def entrypoint(run: Run, arguments: tuple[str, ...], folder: OrderFolder, settings: RaySettings) -> str:
    """The command that a shell of the node runs; Ray keeps its text, so no one who can write the folder changes it."""
    root = folder.path.parent
    called = [*settings.command, "run", "--job", str(folder.job_file), "--out", str(folder.run_folder)]
    called += ["--work", str(root / "work"), *arguments]
    digest = f"{folder.digest_of_order(run)}  {folder.job_file.name}"
    given = [str(folder.path), submission_id(run), digest, settings.setup]
    return f"exec {shlex.join(['bash', '-c', _SCRIPT, 'verl-e2e', *given, *called])}"


def runtime_env(run: Run, settings: RaySettings) -> dict[str, Any]:
    """Ray's description of the environment: variables alone, nothing is installed or uploaded."""
    variables = {
        ORDER_VARIABLE: run.key,
        KEY_VARIABLE: str(settings.folder / RECORDER_KEY),
        TOKEN_VARIABLE: settings.token_file,
        # Ray's own limit is 3 s, in which no run can complete its folder.
        "RAY_JOB_STOP_WAIT_TIME_S": str(settings.grace_s),
    }
    return {"env_vars": variables}


def resources(run: Run, settings: RaySettings) -> dict[str, Any]:
    """What a run asks of one node, in the words of Ray's `submit_job`."""
    if run.rehearsal is not None:
        asked = {"entrypoint_num_cpus": REHEARSAL_CORES, "entrypoint_memory": REHEARSAL_MEMORY_GIB << 30}
        return asked | ({"entrypoint_resources": dict(settings.resources)} if settings.resources else {})
    return asked_of(ordered_job(run).required_of_host, settings)


def asked_of(needs: Needs, settings: RaySettings) -> dict[str, Any]:
    """What a job that needs so much asks of one node, in the words of Ray's `submit_job`."""
    asked = {
        # Ray takes a part of one GPU, and whole GPUs where there are several.
        "entrypoint_num_gpus": needs.gpu_share if needs.gpu_count == 1 else needs.gpu_count,
        "entrypoint_num_cpus": needs.cores,
        "entrypoint_memory": int(needs.memory_gib * 2**30),
        "entrypoint_resources": dict(settings.resources),
    }
    return {name: value for name, value in asked.items() if value}


def no_place(asked: Mapping[str, Any], nodes: Sequence[Mapping[str, float]]) -> str:
    """Why no node can ever take a job that asks for this, in words; empty where one can."""
    names = {"entrypoint_num_gpus": "GPU", "entrypoint_num_cpus": "CPU", "entrypoint_memory": "memory"}
    needed = {names[name]: float(amount) for name, amount in asked.items() if name in names}
    needed |= asked.get("entrypoint_resources", {})
    if any(all(node.get(name, 0.0) >= amount for name, amount in needed.items()) for node in nodes):
        return ""
    most = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in needed}
    rows = [
        f"{_shown(name, amount)} (the most of one node: {_shown(name, most[name])})" for name, amount in needed.items()
    ]
    return f"no node has all that a job with one GPU asks for: {', '.join(rows)}"


def _shown(name: str, amount: float) -> str:
    return f"{amount / 2**30:.0f} GiB of memory" if name == "memory" else f"{amount:g} {name}"


def ordered_job(run: Run) -> Job:
    """The job of a run; BackendError, final, where there is none."""
    if run.job is None:
        raise BackendError(f"run {run.key[:12]} has no job; plan it again", final=True)
    return run.job
