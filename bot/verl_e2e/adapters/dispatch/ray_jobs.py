"""What Ray says of a job, as values, and what its words mean for a run. Nothing here asks Ray."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from verl_e2e.core.model.causes import EngineEnd


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
