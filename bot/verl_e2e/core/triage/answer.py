"""The answer of triage: the values that its modules and its readers share."""

from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.model.facts import Frame, Noise
from verl_e2e.core.model.stages import Stage

COMPLETED, INCOMPLETE, UNEXPLAINED, FORMAT = "completed", "incomplete", "unexplained", "format"
OTHER_TRAINER, OTHER_BACKEND = "other-trainer", "other-backend"


class TriageVerdict(StrEnum):
    """`pass` means only that the requested steps completed with no unexplained error; never the verdict Pass."""

    PASS = "pass"
    FAIL = "fail"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How another run of the same log ended."""

    run: int
    """Which run of the log, from 1."""
    begins: int
    """Its first line."""
    ends: int
    """Its last line."""
    verdict: TriageVerdict
    stage: Stage
    cause: str
    line: int
    """The line that decided, 0 when there is nothing to point at."""


@dataclass(frozen=True, slots=True)
class Triage:
    """The answer of triage."""

    # What the log comes to.
    verdict: TriageVerdict
    # The stage of the fault, or the last stage reached.
    stage: Stage
    # Why, as a clause.
    cause: str
    # The line that shows it, 1-based; 0 for none.
    line: int
    # The text of that line.
    excerpt: str
    # Harmless messages that look like errors.
    residual_noise: tuple[Noise, ...]
    # The id of the rule that decided.
    rule: str
    # What to do, with the section of the runbook; empty when there is nothing to do.
    fix: str
    frame: Frame | None = None
    """The innermost frame of the error in Megatron-Bridge, Megatron-LM or verl."""
    message: str = ""
    """The whole message of the error, with its line feeds; empty when no error decided."""
    run: int = 1
    """Which run of the log the answer is about, from 1."""
    others: tuple[RunOutcome, ...] = ()
    """The other runs of the log, in order; of many only the last ones are kept."""
    reached: Stage | None = None
    """How far Bridge-managed construction got, where `cause` says so."""
    undecided: bool = False
    """Whether a change of Megatron-Bridge or Megatron-LM may have caused what blocked the run."""
