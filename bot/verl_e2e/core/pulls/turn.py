"""Whether the jobs that must pass first let a job start: one decision, of the service and of `verl-e2e check`.

Level 0 runs first and alone and the rest after it passed, because every other job requires it. One that ran well and
never entered the changed code lets the rest start: another job may enter it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verl_e2e.core.pulls.job_status import RAN_WELL, UNDERWAY, JobStatus

# A held or cancelled job may be started again by a person, so what requires it is not lost.
_MAY_PASS = RAN_WELL | UNDERWAY | {JobStatus.HELD, JobStatus.CANCELLED}


@dataclass(frozen=True, slots=True)
class Turn:
    """What a job waits for, or why it is skipped; both are empty when it may start."""

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
