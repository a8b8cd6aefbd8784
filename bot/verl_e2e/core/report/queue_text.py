"""What the queue says to a reader of a card or of a gate."""

from collections.abc import Iterator

from verl_e2e.core.pulls.job_status import UNDERWAY, JobStatus
from verl_e2e.core.pulls.ledger import RecordedCommand
from verl_e2e.core.pulls.queue_terms import PRIORITY
from verl_e2e.core.pulls.target_state import TargetState


def queue_notices(target_state: TargetState, status: JobStatus) -> Iterator[str]:
    """The place in the queue, what maintainers set for the pull request, and a pause that no heading says."""
    queue = target_state.queue
    if status not in {*UNDERWAY, JobStatus.HELD}:
        return
    if queue.place is not None:
        place = queue.place
        yield f"Place {place.position} of {place.waiting} in the queue for the slots `{place.pool}`."
    if queue.pause is not None and status in UNDERWAY:
        text = f"{queue.pause.in_short[:1].upper()}{queue.pause.in_short[1:]}: {queue.pause.reason}"
        yield f"{text}. What runs goes on, and nothing else starts; `/verl-e2e resume` ends the pause."
    last = {entry.verb: entry for entry in target_state.entries if isinstance(entry, RecordedCommand)}
    if PRIORITY in last:
        yield f"Priority {last[PRIORITY].arguments[0]}, set by {last[PRIORITY].actor}."
