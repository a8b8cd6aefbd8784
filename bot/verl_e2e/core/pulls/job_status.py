"""The status of a job, and everything that a person or GitHub sees of it, in one table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.forge import CheckStatus, Conclusion
from verl_e2e.core.pulls.ledger import Run, RunState


class JobStatus(StrEnum):
    """The status of a job, or of all required jobs together. The value is the word in a sentence."""

    # Before a result on the card.
    icon: str
    # The result on the card.
    word: str
    # The status of the check run.
    check: CheckStatus
    # The conclusion of the check run, None before it is completed.
    conclusion: Conclusion | None

    def __new__(
        cls, value: str, icon: str, word: str, check: CheckStatus, conclusion: Conclusion | None = None
    ) -> "JobStatus":
        """A member with all that is shown of it."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.icon, member.word, member.check, member.conclusion = icon, word, check, conclusion
        return member

    PASSED = "passed", "✅", "Pass", CheckStatus.COMPLETED, Conclusion.SUCCESS
    OVERRIDDEN = "overridden", "⚠️", "Overridden", CheckStatus.COMPLETED, Conclusion.SUCCESS
    FAILED = "failed", "❌", "Fail", CheckStatus.COMPLETED, Conclusion.FAILURE
    BLOCKED = "blocked", "⛔", "Blocked", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    # Blocked by nothing but that the run never entered the changed code: another job may make up for it.
    UNEXECUTED = "unexecuted", "🚫", "Not executed", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    # Such a run that another job makes up for, or that the policy allows.
    ACCEPTED = "accepted", "☑️", "Accepted", CheckStatus.COMPLETED, Conclusion.SUCCESS
    # No host can run it, and the policy lets the gate open without it.
    UNCOVERABLE = "not covered", "🚧", "Not covered", CheckStatus.COMPLETED, Conclusion.SUCCESS
    # The policy sets its end aside until a day, and the gate stays closed all the same.
    QUARANTINED = "quarantined", "🧪", "Quarantined", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    # The same, and the policy lets the gate open: its own check stays what it is.
    TOLERATED = "tolerated", "🩹", "Tolerated", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    RUNNING = "running", "🔄", "Running", CheckStatus.IN_PROGRESS
    WAITING = "waiting", "⏳", "Waiting", CheckStatus.QUEUED
    SKIPPED = "skipped", "⏭️", "Skipped", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    HELD = "held", "⏸️", "Held", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    CANCELLED = "cancelled", "⏹️", "Cancelled", CheckStatus.COMPLETED, Conclusion.CANCELLED
    # Of all jobs together only: the plan requires none.
    NOT_REQUIRED = "not required", "✅", "Nothing required", CheckStatus.COMPLETED, Conclusion.SUCCESS


# Ended without a pass: what can be run again.
ENDED = frozenset(
    {
        *(JobStatus.FAILED, JobStatus.BLOCKED, JobStatus.UNEXECUTED, JobStatus.CANCELLED),
        JobStatus.QUARANTINED,
    }
)
SATISFIED = frozenset(
    {
        *(JobStatus.PASSED, JobStatus.OVERRIDDEN, JobStatus.ACCEPTED, JobStatus.UNCOVERABLE, JobStatus.TOLERATED),
        JobStatus.NOT_REQUIRED,
    }
)
# The run itself was good, so what needs the job may start.
RAN_WELL = SATISFIED | {JobStatus.UNEXECUTED}
UNDERWAY = frozenset({JobStatus.RUNNING, JobStatus.WAITING})
# A held or cancelled job may be started again by a person, so what requires it is not lost.
_MAY_PASS = RAN_WELL | UNDERWAY | {JobStatus.HELD, JobStatus.CANCELLED}
OF_RESULT = {Result.PASS: JobStatus.PASSED, Result.FAIL: JobStatus.FAILED, Result.BLOCKED: JobStatus.BLOCKED}


def status_of_verdict(verdict: Verdict) -> JobStatus:
    """What a verdict comes to for the jobs that need this one."""
    return JobStatus.UNEXECUTED if verdict.never_entered else OF_RESULT[verdict.result]


def status_of_run(run: Run) -> JobStatus:
    """What the state and the result of a run come to; a run that was lost or refused is blocked."""
    if run.state is RunState.CANCELLED:
        return JobStatus.CANCELLED
    if run.state is RunState.FINISHED and run.never_entered:
        return JobStatus.UNEXECUTED
    if run.state.final:
        finished = run.state is RunState.FINISHED and run.result is not None
        return OF_RESULT[run.result] if finished and run.result is not None else JobStatus.BLOCKED
    return JobStatus.WAITING if run.state is RunState.QUEUED else JobStatus.RUNNING


@dataclass(frozen=True, slots=True)
class Turn:
    """What a job waits for, or why it is skipped; both are empty when it may start.

    Level 0 runs first and alone and the rest after it passed, because every other job requires it. One that ran well
    and never entered the changed code lets the rest start: another job may enter it.
    """

    # Why it is not started any more, as a clause.
    skipped: str = ""
    # The first required job that may still pass, and has not.
    waits_for: str = ""

    @property
    def has_come(self) -> bool:
        """Whether the job may start now."""
        return not self.skipped and not self.waits_for


def turn_of(requires: Iterable[str], statuses: Mapping[str, JobStatus]) -> Turn:
    """The turn of a job from the ids that it requires; an id without a status is of a job that no one runs."""
    waiting = ""
    for required in requires:
        status = statuses.get(required)
        if status not in _MAY_PASS:
            return Turn(skipped=f"it needs {required}, which did not pass")
        if status not in RAN_WELL:
            waiting = waiting or required
    return Turn(waits_for=waiting)
