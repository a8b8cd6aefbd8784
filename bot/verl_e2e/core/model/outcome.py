"""The words of a verdict: the result of the whole, the outcome of one deliverable, and the verdict itself."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from verl_e2e.core.model.evidence import Criterion, Evidence
from verl_e2e.core.model.stages import Stage
from verl_e2e.core.report.comparison_text import Report

if TYPE_CHECKING:
    # A signal is made of a case, and a case names results.
    from verl_e2e.core.signal.figure import SignalFigure


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
    """A result with its reason: the stage (None for a Pass), the cause, the mend, and the evidence that decided.

    `blame` says whose a Fail is, by the runs that stand beside it.
    """

    result: Result
    stage: Stage | None
    cause: str
    mend: str = ""
    at: Evidence | None = None
    blame: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one job with everything that the card shows; `stage` is None for a Pass.

    `alone` is the result before the runs beside it were weighed, `signature` the marks of a failure (see
    `verl_e2e.core.judge.same_failure`), `related` a sentence for each run beside it, `reports` its steps beside theirs,
    `figure` the curves of a learning signal. `calls` are the frames of the error that decided, `path:function`,
    outermost first.
    """

    job_id: str
    result: Result
    stage: Stage | None
    cause: str
    sentence: str
    coverage: str
    checkpoint: str
    deliverables: tuple[Deliverable, ...]
    evidence: tuple[Evidence, ...]
    repositories: tuple[str, ...]
    command: str
    key_lines: tuple[Evidence, ...]
    limitations: tuple[str, ...]
    followups: tuple[str, ...]
    related: tuple[str, ...] = ()
    alone: Result | None = None
    signature: tuple[str, ...] = ()
    reports: tuple[Report, ...] = ()
    figure: "SignalFigure | None" = None
    calls: tuple[str, ...] = ()
    # For each limitation what another job may show of it, see `verl_e2e.core.judge.left_open`.
    left_open: tuple[tuple[str, ...], ...] = ()
    # What this job shows of what others may leave open, where it passed.
    shows: tuple[str, ...] = ()
    # The criterion whose evidence decided, before the runs beside it were weighed; None where none did.
    decided_by: Criterion | None = None
