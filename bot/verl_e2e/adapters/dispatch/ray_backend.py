"""Run jobs on a Ray cluster: one job of Ray Jobs for each run, named by the run's key.

Ray takes each name once, so a lost answer never starts a run twice. It cannot withdraw a job that waits for resources:
the claim of the order does. Nothing here imports Ray; `ray_client` asks it.
"""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from verl_e2e.adapters.dispatch.order_folder import (
    ORDER_VARIABLE,
    RECORDER_KEY,
    RUNNER_LOG,
    OpenLog,
    OrderFolder,
    follow_ups,
    ordered_job,
)
from verl_e2e.adapters.dispatch.shared_disk import (
    BEGUN,
    CLAIM,
    CLAIMING,
    GRACE_S,
    ClusterBackend,
    ClusterJob,
    EngineFailure,
    JobPhase,
)
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.jobs import REHEARSAL_CORES, REHEARSAL_MEMORY_GIB
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.pulls.job_order import RECORDER_KEY_VARIABLE, TOKEN_VARIABLE
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.ports import BackendError, Clock

_PHASES: Mapping[str, JobPhase] = {
    "PENDING": JobPhase.WAITING,
    "RUNNING": JobPhase.RUNNING,
    "SUCCEEDED": JobPhase.ENDED,
    "STOPPED": JobPhase.CANCELLED,
}
_FAILED = "FAILED"
# The command ended with another exit code than 0, as the runner does for a run that did not pass.
_COMMAND_ERROR = "JOB_ENTRYPOINT_COMMAND_ERROR"

# Ray's error types in which Ray ended a job, or could not run it.
RAY_FAILURES: Mapping[str, EngineFailure] = {
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": EngineFailure(
        "its node could not start the command; look at Ray's log of the job, and rerun", EngineEnd.NODE_NOT_READY
    ),
    "JOB_SUPERVISOR_ACTOR_DIED": EngineFailure(
        "its node was lost, or the process of Ray that watched it was killed, as for want of memory; look at `ray list "
        "nodes` and at the memory of the node, and rerun",
        EngineEnd.NODE_FAILED,
    ),
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": EngineFailure(
        "Ray could not start the process that runs it; look at the dashboard's log, and rerun", EngineEnd.NODE_NOT_READY
    ),
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": EngineFailure(
        "no node took it in the time that Ray lets a job wait; set RAY_JOB_START_TIMEOUT_SECONDS on the head node to "
        "the policy's `gate.queue_deadline_s`, and rerun",
        EngineEnd.NO_MACHINE,
    ),
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE": EngineFailure(
        "Ray lost the process that ran it; look at the dashboard's log, and rerun", EngineEnd.NODE_FAILED
    ),
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": EngineFailure(
        "no node of the cluster can take it; see `ray status`, and rerun", EngineEnd.NO_MACHINE
    ),
    "RUNTIME_ENV_SETUP_FAILURE": EngineFailure(
        "its node could not prepare the job's variables; look at the log of the runtime environment there, and rerun",
        EngineEnd.NODE_NOT_READY,
    ),
}
_OTHER = EngineFailure("Ray gives no cause that this version knows; look at `ray job logs`, and rerun", None)


@dataclass(frozen=True, slots=True)
class RayJob:
    """One job in Ray's words."""

    state: str
    """As `RUNNING`."""
    error: str = ""
    """Why it failed, as `JOB_SUPERVISOR_ACTOR_DIED`; empty where it did not, or Ray is too old."""
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
    def phase(self) -> JobPhase | None:
        """What the state means, None for a state that no version we know has."""
        if self.state != _FAILED:
            return _PHASES.get(self.state)
        by_itself = self.error == _COMMAND_ERROR or (not self.error and self.exit_code is not None)
        return JobPhase.ENDED if by_itself else JobPhase.BROKEN


class RayRefusedError(Exception):
    """The server answered with an error; `code` is its HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        lines = text.strip().splitlines()
        super().__init__(f"{code} {lines[-1][:300] if lines else ''}".rstrip())
        self.code = code


class RayJobs(Protocol):
    """The jobs of one cluster, by their names; errors are BackendError."""

    def submit(self, name: str, entrypoint: str, **options: Any) -> None:
        """Submit a job; RefusedError where the cluster does not take it."""

    def job(self, name: str) -> RayJob | None:
        """A job, None where the cluster has none."""

    def stop(self, name: str) -> None:
        """Have a job ended; one that is gone is left alone."""


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


# After the claim: `$4` is a script to read first, the command follows. `exec` makes the runner the process that Ray
# signals. Variables of the cluster, its token among them, must not reach verl, which starts a Ray of its own; Ray sets
# OMP_NUM_THREADS by the CPUs that it was asked for.
_SCRIPT = f"""\
{CLAIMING}unset OMP_NUM_THREADS PYTHONBREAKPOINT ${{!RAY_@}}
exec >> {RUNNER_LOG} 2>&1
if [ -n "$4" ]; then . "$4" || exit 78; fi
shift 4
exec "$@"
"""


def submission_id(run: Run) -> str:
    """The name of a run's job in Ray, which takes each name once."""
    return f"verl-e2e-{run.key}"


def entrypoint(run: Run, folder: OrderFolder, settings: RaySettings) -> str:
    """The command that a shell of the node runs; Ray keeps its text, so no one who can write the folder changes it."""
    given = [str(folder.path), submission_id(run), folder.digest_line(run), settings.setup]
    called = folder.call(settings.command, follow_ups(run))
    return f"exec {shlex.join(['bash', '-c', _SCRIPT, 'verl-e2e', *given, *called])}"


def runtime_env(run: Run, settings: RaySettings) -> dict[str, Any]:
    """Ray's description of the environment: variables alone, nothing is installed or uploaded."""
    variables = {
        ORDER_VARIABLE: run.key,
        RECORDER_KEY_VARIABLE: str(settings.folder / RECORDER_KEY),
        TOKEN_VARIABLE: settings.token_file,
        # Ray's own limit is 3 s, in which no run can complete its folder.
        "RAY_JOB_STOP_WAIT_TIME_S": str(GRACE_S),
    }
    return {"env_vars": variables}


def resources(run: Run, settings: RaySettings) -> dict[str, Any]:
    """What a run asks of one node, in the words of Ray's `submit_job`."""
    needs = ordered_job(run).required_of_host if run.rehearsal is None else None
    asked: dict[str, Any] = {
        "entrypoint_num_cpus": needs.cores if needs else REHEARSAL_CORES,
        "entrypoint_memory": int((needs.memory_gib if needs else REHEARSAL_MEMORY_GIB) * 2**30),
        "entrypoint_resources": dict(settings.resources),
    }
    if needs:
        # Ray takes a part of one GPU, and whole GPUs where there are several.
        asked["entrypoint_num_gpus"] = needs.gpu_share if needs.gpu_count == 1 else needs.gpu_count
    return {name: value for name, value in asked.items() if value}


class RayBackend(ClusterBackend):
    """The nodes of one Ray cluster."""

    engine, shows_job, shows_nodes = "Ray", "ray job status", "ray status"

    def __init__(self, settings: RaySettings, jobs: RayJobs, *, clock: Clock, open_log: OpenLog) -> None:
        super().__init__(settings.folder, clock=clock, open_log=open_log)
        self._settings, self._jobs = settings, jobs

    def _job(self, run: Run, folder: OrderFolder) -> ClusterJob | None:  # noqa: ARG002  (Ray knows which job has it)
        name = submission_id(run)
        job = self._jobs.job(name)
        if job is None:
            return None
        if job.key != run.key:
            raise BackendError(f"the job {name} in Ray is not ours; run the job again", final=True)
        broken = RAY_FAILURES.get(job.error, _OTHER) if job.phase is JobPhase.BROKEN else None
        state = job.error[:60] or job.state if broken else job.state
        return ClusterJob(name, state, job.phase, job.message, broken, job.submitted, job.ended, job.exit_code)

    def _start(self, run: Run, folder: OrderFolder) -> str:
        name = submission_id(run)
        try:
            self._jobs.submit(
                name,
                entrypoint(run, folder, self._settings),
                metadata={KEY_OF_RUN: run.key},
                runtime_env=runtime_env(run, self._settings),
                **resources(run, self._settings),
            )
        except RayRefusedError as error:
            # Another process may have submitted it meanwhile.
            if self._job(run, folder) is None:
                what = f"Ray did not take the job: {error}; see the dashboard's log, and run the job again"
                raise BackendError(what, final=400 <= error.code < 500, uncertain=error.code >= 500) from error
        return name

    def _send_end(self, job: ClusterJob) -> bool:
        # Ray sends SIGTERM to the runner and all that it started, and SIGKILL to what is left after the grace.
        self._jobs.stop(job.id)
        return True

    def _took(self, folder: OrderFolder, job: ClusterJob | None) -> BackendTimes:
        """When the job began, by the clock of its node before any code under test ran, and when Ray saw its end."""
        began = job.began if job else None
        with suppress(ValueError, OverflowError, OSError):
            word, seconds, _ = folder.read(CLAIM).split()
            began = datetime.fromtimestamp(int(seconds), UTC) if word == BEGUN else began
        return BackendTimes(who="Ray's job", started=began, ended=job.ended if job else None)
