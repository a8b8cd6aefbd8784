"""What our own queue knows of a run when it is ordered: whose GPU time it is, how urgent it is, and its budgets."""

from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field

from verl_e2e.core.model.document import Document

_Minutes = Annotated[int, Field(ge=0)]


class Priority(StrEnum):
    """How urgent the runs of a pull request are; the first is started first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Limits(Document):
    """The budgets that a run counts against, in GPU minutes of seven days; None where there is none."""

    # Of its pull request.
    pull_request: _Minutes | None = None
    # Of the person whose GPU time it is.
    person: _Minutes | None = None
    # Of its repository.
    repository: _Minutes | None = None
    # What a maintainer let the pull request use whatever the budgets are, from `granted_at` on.
    granted: _Minutes = 0
    # When that was, None for never.
    granted_at: AwareDatetime | None = None


class QueueTerms(Document):
    """What the queue orders a run by."""

    # The login of the person whose GPU time it is: who opened the pull request, or asked for the extra run.
    person: str = ""
    priority: Priority = Priority.NORMAL
    # GPU minutes that it is expected to take.
    planned_minutes: _Minutes = 0
    # Since when the pull request waits for this job, where a push took an earlier run out of the queue; else None.
    since: AwareDatetime | None = None
    # Its budgets, None where it has none.
    limits: Limits | None = None
