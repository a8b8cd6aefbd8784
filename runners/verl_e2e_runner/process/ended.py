"""How a wrapper ended, for the folder and for the caller."""

from dataclasses import dataclass

from verl_e2e.core.model.record import EndReason
from verl_e2e.core.model.stages import Stage
from verl_e2e_runner.process.processes import Survivor


@dataclass(frozen=True, slots=True)
class Ended:
    """How the wrapper ended."""

    reason: EndReason
    # Of a wrapper that ended by itself, negative for a signal. None for a run that we ended, whose code says nothing.
    exit_code: int | None
    # One sentence, empty for an ordinary exit.
    note: str = ""
    # Processes that could not be ended.
    survivors: tuple[Survivor, ...] = ()
    # The stages as they were entered, with seconds since the folder was opened.
    stages: tuple[tuple[Stage, float], ...] = ()
    # The end, in seconds since the folder was opened.
    ended_s: float = 0.0
