"""What the queue says to a reader of a card or of a gate."""

from collections.abc import Iterator
from datetime import datetime

from verl_e2e.core.pulls.job_status import UNDERWAY, JobStatus
from verl_e2e.core.pulls.ledger import RecordedCommand
from verl_e2e.core.pulls.queue_estimate import MIN_RUNS, Span
from verl_e2e.core.pulls.queue_place import Place
from verl_e2e.core.pulls.run_terms import PRIORITY
from verl_e2e.core.pulls.target_state import TargetState


def queue_notices(target_state: TargetState, status: JobStatus) -> Iterator[str]:
    """The place in the queue, what maintainers set for the pull request, and a pause that no heading says."""
    queue = target_state.queue
    if status not in {*UNDERWAY, JobStatus.HELD}:
        return
    if queue.place is not None:
        yield place_sentence(queue.place)
    if queue.pause is not None and status in UNDERWAY:
        text = f"{queue.pause.in_short[:1].upper()}{queue.pause.in_short[1:]}: {queue.pause.reason}"
        yield f"{text}. What runs goes on, and nothing else starts; `/verl-e2e resume` ends the pause."
    last = {entry.verb: entry for entry in target_state.entries if isinstance(entry, RecordedCommand)}
    if PRIORITY in last:
        yield f"Priority {last[PRIORITY].arguments[0]}, set by {last[PRIORITY].actor}."


def place_sentence(place: Place) -> str:
    """The place with the estimate, or why there is none."""
    where = f"Place {place.position} of {place.waiting} in the queue for the slots `{place.pool}`."
    if place.start is None:
        return f"{where} When it starts is not known: fewer than {MIN_RUNS} runs of a job before it ended lately."
    start = f"It starts {_between(place.start)}"
    if place.answer is None:
        return f"{where} {start}, by the times of past runs (p50 and p90)."
    return f"{where} {start} and is answered {_between(place.answer)}, by the times of past runs (p50 and p90)."


def _between(span: Span) -> str:
    return f"between {_time(span.p50)} and {_time(span.p90)} UTC"


def _time(at: datetime) -> str:
    return f"{at:%m-%d %H:%M}"
