"""A run in short: what it used or holds, and whose it is."""

from datetime import timedelta

from tests.core.pulls.entries import NOW, RESUME, SMOKE, run
from tests.core.pulls.queue_cases import ended, entry, live
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.job_order import minutes_of
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.core.pulls.queue_entry import entry_of
from verl_e2e.core.pulls.queue_terms import QueueTerms


def test_a_run_in_short() -> None:
    waiting = run(SMOKE, RunState.QUEUED, awaits_slot=True, terms=QueueTerms(person="ann", planned_minutes=7))
    short = entry_of(waiting)
    assert (short.waits, short.final, short.judged, short.admitted) == (True, False, False, None)
    assert (short.gpu_count, short.terms, short.pull) == (SMOKE.gpu_count, waiting.terms, ("octo/bridge", 7, ""))
    assert not entry_of(waiting.let_start(NOW)).waits
    # A run that does not wait was given to the back end at once.
    assert not entry_of(run(SMOKE, RunState.QUEUED)).waits
    over = entry_of(run(RESUME, result=Result.FAIL, gpu_minutes=3.5))
    assert (over.final, over.judged, over.used_minutes) == (True, True, 3.5)
    assert not entry_of(run(RESUME, carried_from="c" * 40)).judged
    assert not entry_of(run(RESUME, RunState.LOST)).judged


def test_a_run_that_no_one_looks_at_frees_its_slot_some_time() -> None:
    started = run(SMOKE, RunState.QUEUED, awaits_slot=True, job=SMOKE).let_start(NOW)
    assert entry_of(started).holds_until == NOW + timedelta(hours=1)
    submitted = started.model_copy(update={"state": RunState.SUBMITTED, "queue_deadline_s": 3_600})
    limit = timedelta(hours=1) + timedelta(minutes=minutes_of(SMOKE))
    assert entry_of(submitted).holds_until == NOW + 2 * limit
    assert entry_of(run(SMOKE, RunState.RUNNING, queue_deadline_s=3_600)).holds_until == NOW + timedelta(hours=2)
    assert [entry_of(submitted).holds_slot(NOW + turns * limit) for turns in (1, 2)] == [True, False]
    assert not entry_of(run(SMOKE)).holds_slot(NOW)


def test_a_waiting_run_that_ends_waits_no_more() -> None:
    ended_run = run(SMOKE, RunState.CANCELLED, awaits_slot=True)
    assert not ended_run.waits_for_slot
    assert not entry_of(ended_run).waits


def test_what_a_run_used_or_holds() -> None:
    assert entry(1).gpu_minutes(NOW) == 0
    assert ended(1, used=3).gpu_minutes(NOW) == 3
    assert live(1).gpu_minutes(NOW) == 7
    assert live(1, minute=10, gpu_count=2).gpu_minutes(NOW) == 20
    # A run that never waited counts from its creation.
    assert live(1, minute=10).model_copy(update={"admitted": None}).gpu_minutes(NOW) == 10


def test_people_are_the_same_in_any_case_and_what_has_none_stands_for_itself() -> None:
    assert entry(1, person="Ann").person == entry(2, person="ann").person
    groups = [entry(name, name, group=True, terms=QueueTerms()) for name in (1, 2)]
    assert groups[0].person != groups[1].person
