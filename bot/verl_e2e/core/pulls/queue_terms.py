"""What our own queue knows of a run when it is ordered: whose GPU time it is and how urgent it is."""

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


class QueueTerms(Document):
    """What the queue orders a run by."""

    # The login of the person whose GPU time it is: who opened the pull request, or asked for the extra run.
    person: str = ""
    priority: Priority = Priority.NORMAL
    # GPU minutes that it is expected to take.
    planned_minutes: _Minutes = 0
    # Since when the pull request waits for this job, where a push took an earlier run out of the queue; else None.
    since: AwareDatetime | None = None
