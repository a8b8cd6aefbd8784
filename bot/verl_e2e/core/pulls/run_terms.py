"""The terms on which a run waits in our queue, from the commands of maintainers."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from verl_e2e.core.pulls.ledger import RecordedCommand, Run
from verl_e2e.core.pulls.pull import MergeGroup
from verl_e2e.core.pulls.queue_place import Own
from verl_e2e.core.pulls.queue_terms import Priority, QueueTerms
from verl_e2e.core.pulls.requests import Entry
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.wanted_jobs import WantedJob, does, runs_of

# It counts for every head of a pull request, not only for the one on which it was given.
PRIORITY = "priority"


def terms_of(wanted: WantedJob, target_state: TargetState, source: str) -> QueueTerms:
    """The terms of a run of a job; `source` is the entry that asked for it, empty for the plan."""
    return QueueTerms(
        person=_person(wanted, target_state, source),
        priority=_priority(target_state.entries),
        planned_minutes=wanted.gpu_minutes,
        since=_since(wanted, target_state),
    )


def with_new_terms(target_state: TargetState) -> Iterator[Run]:
    """The waiting runs of the head of which the terms changed, or what is asked of the result, as they are then."""
    jobs = {item.id: item for item in target_state.wanted}
    for run in target_state.here:
        wanted = jobs.get(run.job_id)
        if wanted is not None and run.waits_for_slot:
            # What it is given for the time before its creation stays: that only grows older.
            before = {"since": run.terms.since}
            changes: dict[str, object] = {
                "terms": terms_of(wanted, target_state, run.asked_by).model_copy(update=before)
            }
            if run.job_digest != wanted.digest and does(run, wanted):
                changes |= {"job": wanted.job, "job_digest": wanted.digest}
            if any(getattr(run, name) != new for name, new in changes.items()):
                yield run.model_copy(update={**changes, "updated": target_state.now})


def own_runs(target_state: TargetState) -> Own:
    """What a target waits for: its runs that are not over, and its required jobs that follow them."""
    live = [run for run in target_state.here if not run.state.final]
    planned = (item for item in target_state.wanted if item.required and item.job is not None)
    known = (*target_state.shared, *target_state.runs)
    return Own(
        waiting=frozenset(run.key for run in live if run.waits_for_slot),
        required=frozenset(run.key for run in live if run.required),
        later=tuple(item.id for item in planned if not runs_of(item, target_state.head_sha, known)),
    )


def _person(wanted: WantedJob, target_state: TargetState, source: str) -> str:
    """Whose GPU time a run is: an extra one is that of the person who asked for it."""
    if isinstance(target_state.target, MergeGroup):
        return ""
    asked = (entry.actor for entry in target_state.entries if not wanted.required and entry.source == source)
    return next(asked, target_state.target.author)


def _since(wanted: WantedJob, target_state: TargetState) -> datetime | None:
    """Since when this job waits, if a push took its run out of the queue: so a push loses no place.

    Only the time in the queue counts: while a pull request was closed or a draft it waited for no slot.
    """
    before = [run for run in target_state.earlier if run.job_id == wanted.id]
    last = max(before, key=lambda run: run.created, default=None)
    if last is None or not last.awaits_slot:
        return None
    since, left = last.terms.since or last.created, last.updated if last.state.final else target_state.now
    return target_state.now - (left - since)


def _priority(entries: Iterable[Entry]) -> Priority:
    given = [entry for entry in entries if isinstance(entry, RecordedCommand) and entry.verb == PRIORITY]
    return Priority(given[-1].arguments[0]) if given else Priority.NORMAL
