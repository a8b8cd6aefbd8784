"""What a card and a gate say of the queue."""

from tests.core.pulls.entries import NOW, SMOKE, asked, run, target_state
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.core.pulls.queue import Pause, Place, QueueView
from verl_e2e.core.report.checks import checks_wanted
from verl_e2e.core.report.pull_card import render
from verl_e2e.core.report.pull_card_content import card_of
from verl_e2e.core.report.queue_text import queue_notices

PLACE = Place(pool="1", position=3, waiting=12, targets=9)
GIVEN = (asked("priority", "low"), asked("run", minute=1))


def test_card_and_gate_have_the_place() -> None:
    waiting = run(SMOKE, RunState.QUEUED, awaits_slot=True)
    known = target_state(waiting, queue=QueueView(limited=True, place=PLACE))
    steps = decide_actions(known)
    gate, *_ = checks_wanted(known, steps)
    assert gate.title == "0 of 2 required jobs satisfied, place 3 of 12 in the queue"
    assert gate.title in render(card_of(known, steps))
    for text in (gate.summary, render(card_of(known, steps))):
        assert "Place 3 of 12 in the queue for the slots `1`" in text


def test_what_maintainers_set_is_shown_while_something_is_to_run() -> None:
    assert [*queue_notices(target_state(entries=GIVEN), JobStatus.HELD)] == ["Priority low, set by ann."]
    assert [*queue_notices(target_state(entries=GIVEN), JobStatus.RUNNING)] == ["Priority low, set by ann."]
    assert [*queue_notices(target_state(entries=GIVEN), JobStatus.PASSED)] == []


def test_a_pause_is_said_where_the_heading_does_not_say_it() -> None:
    paused = target_state(queue=QueueView(limited=True, pause=Pause("mona", NOW, "the disk is full")))
    (said,) = queue_notices(paused, JobStatus.RUNNING)
    assert said.startswith("Paused by mona since 2026-01-01 00:00 UTC: the disk is full. What runs goes on")
    assert [*queue_notices(paused, JobStatus.HELD)] == []
