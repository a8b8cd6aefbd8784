"""The terms of a run: whose GPU time, and how urgent."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.core.pulls.entries import (
    GROUP,
    NOW,
    OTHER,
    RESUME,
    SMOKE,
    WANTED,
    asked,
    override,
    run,
    target_state,
)
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.core.pulls.queue_place import Own
from verl_e2e.core.pulls.queue_terms import Priority, QueueTerms
from verl_e2e.core.pulls.run_terms import own_runs, terms_of, with_new_terms

EXTRA = replace(WANTED[0], required=False)
BOB = asked("level", "0", actor="bob")


@pytest.mark.parametrize(
    ("given", "wanted", "source", "terms"),
    (
        ({}, WANTED[0], "", QueueTerms(person="ann")),
        ({}, replace(WANTED[0], gpu_minutes=7), "", QueueTerms(person="ann", planned_minutes=7)),
        ({"entries": (BOB,)}, EXTRA, BOB.source, QueueTerms(person="bob")),
        # Who lets the plan's own run start again does not pay for it.
        ({"entries": (BOB,)}, WANTED[0], BOB.source, QueueTerms(person="ann")),
        ({"target": GROUP}, WANTED[0], "", QueueTerms()),
    ),
)  # fmt: skip
def test_the_terms_of_a_run(given: dict, wanted: object, source: str, terms: QueueTerms) -> None:  # type: ignore[type-arg]
    assert terms_of(wanted, target_state(**given), source) == terms  # type: ignore[arg-type]


def test_the_last_priority_counts_on_every_head() -> None:
    given = (asked("priority", "high", head=OTHER), override(Level.SMOKE), asked("run"))
    assert terms_of(WANTED[0], target_state(entries=given), "").priority is Priority.HIGH
    later = (*given, asked("priority", "low", minute=1))
    assert terms_of(WANTED[0], target_state(entries=later), "").priority is Priority.LOW


def test_a_push_keeps_the_time_that_a_run_waited_in_the_queue() -> None:
    created = NOW - timedelta(hours=2)
    waited = run(SMOKE, RunState.QUEUED, awaits_slot=True, head_sha=OTHER, created=created)
    assert terms_of(WANTED[0], target_state(waited), "").since == created
    assert terms_of(WANTED[1], target_state(waited), "").since is None
    longer = waited.model_copy(update={"terms": QueueTerms(since=NOW - timedelta(hours=3))})
    assert terms_of(WANTED[0], target_state(longer), "").since == NOW - timedelta(hours=3)
    ran = run(SMOKE, RunState.CANCELLED, attempt=2, head_sha=OTHER, created=NOW - timedelta(hours=1))
    assert terms_of(WANTED[0], target_state(waited, ran), "").since is None


def test_time_outside_of_the_queue_does_not_count_as_waiting() -> None:
    # It waited for an hour, and was a draft or closed for two days since.
    times: dict[str, Any] = {"created": NOW - timedelta(hours=49), "updated": NOW - timedelta(hours=48)}
    ended = run(SMOKE, RunState.CANCELLED, awaits_slot=True, head_sha=OTHER, **times)
    assert terms_of(WANTED[0], target_state(ended), "").since == NOW - timedelta(hours=1)
    # What waits again keeps the time that it was given.
    terms = QueueTerms(person="ann", since=NOW - timedelta(hours=1))
    waiting = run(SMOKE, RunState.QUEUED, awaits_slot=True, created=NOW, terms=terms)
    later = target_state(ended, waiting, now=NOW + timedelta(hours=5))
    assert [*with_new_terms(later)] == []


def test_what_a_target_waits_for() -> None:
    waiting, extra = (run(SMOKE, RunState.QUEUED, awaits_slot=True, required=part) for part in (True, False))
    extra = extra.model_copy(update={"key": "e" * 64, "state": RunState.RUNNING})
    assert own_runs(target_state(waiting, extra)) == Own(
        frozenset({waiting.key}), frozenset({waiting.key}), later=("1-resume",)
    )
    assert own_runs(target_state(run(SMOKE), run(RESUME))) == Own(frozenset(), frozenset())
    gone = (replace(WANTED[0], job=None), replace(WANTED[1], required=False))
    assert own_runs(target_state(wanted=gone)) == Own(frozenset(), frozenset())


def test_waiting_runs_get_the_terms_of_now() -> None:
    waiting = run(SMOKE, RunState.QUEUED, awaits_slot=True, terms=QueueTerms(person="ann"))
    gone = waiting.model_copy(update={"job_id": "9-gone", "key": "9" * 64})
    running = run(SMOKE, RunState.RUNNING)
    high = asked("priority", "high")
    assert [*with_new_terms(target_state(waiting, gone, running))] == []
    (changed,) = with_new_terms(target_state(waiting, gone, running, entries=(high,)))
    assert (changed.key, changed.terms.priority, changed.updated) == (waiting.key, Priority.HIGH, NOW)
