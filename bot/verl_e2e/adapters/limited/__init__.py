"""Work on text of strangers in child processes with limits: what grows too large ends the child, not the service."""

from verl_e2e.adapters.limited.limits import StepError, StepRefusedError, WorkLimits
from verl_e2e.adapters.limited.processes import LimitedProcesses

__all__ = ["LimitedProcesses", "StepError", "StepRefusedError", "WorkLimits"]
