"""Work on text of strangers in child processes with limits: what grows too large ends the child, not the service."""

from bot.adapters.limited.limits import Limits, StepError
from bot.adapters.limited.processes import LimitedProcesses

__all__ = ["LimitedProcesses", "Limits", "StepError"]
