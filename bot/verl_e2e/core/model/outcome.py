"""The words of a verdict: the result of the whole, the outcome of one deliverable, and the decision behind them."""

from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.model.evidence import Evidence
from verl_e2e.core.model.stages import Stage


class Result(StrEnum):
    """The whole: inconclusive is a cause of Blocked."""

    PASS = "Pass"
    FAIL = "Fail"
    BLOCKED = "Blocked"


class Outcome(StrEnum):
    """One deliverable of the card."""

    PASS = "Pass"
    FAIL = "Fail"
    SKIPPED = "Skipped"
    NOT_REQUESTED = "Not requested"
    BLOCKED = "Blocked"


@dataclass(frozen=True, slots=True)
class Deliverable:
    """One line under `Deliverables:`."""

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A result with its reason: the stage (None for a Pass), the cause, the fix, and the evidence that decided.

    `blame` says what caused a Fail, by the related runs.
    """

    result: Result
    stage: Stage | None
    cause: str
    fix: str = ""
    at: Evidence | None = None
    blame: str = ""
