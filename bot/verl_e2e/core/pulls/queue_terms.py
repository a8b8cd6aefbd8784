"""What a run is ordered by while it waits in the queue."""

from enum import StrEnum

from pydantic import AwareDatetime

from verl_e2e.core.model.document import Document

# The command; it counts for every head of a pull request, not only for the one on which it was given.
PRIORITY = "priority"


class Priority(StrEnum):
    """How urgent the runs of a pull request are; the first is started first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class QueueTerms(Document):
    """What the queue orders a run by."""

    priority: Priority = Priority.NORMAL
    # Since when the pull request waits for this job, where a push took an earlier run out of the queue; else None.
    since: AwareDatetime | None = None
