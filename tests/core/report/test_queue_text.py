"""What a card and a gate say of the queue."""

from datetime import timedelta

import pytest

from tests.core.pulls.entries import NOW, POLICY, SMOKE, asked, run, target_state
from verl_e2e.core.plan.policy import Budget
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.core.pulls.pause import Pause
from verl_e2e.core.pulls.queue_estimate import Span
from verl_e2e.core.pulls.queue_place import Place
from verl_e2e.core.pulls.queue_view import QueueView
from verl_e2e.core.report.attempts_text import place_sentence, queue_notices
from verl_e2e.core.report.checks import checks_wanted
from verl_e2e.core.report.pull_card import render
from verl_e2e.core.report.pull_card_content import card_of

SPAN = Span(p50=NOW, p90=NOW + timedelta(hours=1))
PLACE = Place(pool="1", position=3, waiting=12, targets=9)
LIMITED = POLICY.model_copy(update={"budget": Budget(person=1)})
GIVEN = (asked("priority", "low"), asked("budget", "120", "the release", minute=1), asked("run"))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    (
        ({}, "When it starts is not known: fewer than 3 runs of a job before it ended lately."),
        ({"start": SPAN},
         "It starts between 01-01 00:00 and 01-01 01:00 UTC, by the times of past runs (p50 and p90)."),
        ({"start": SPAN, "answer": SPAN},
         "It starts between 01-01 00:00 and 01-01 01:00 UTC and is answered between 01-01 00:00 and 01-01 01:00 UTC, "
         "by the times of past runs (p50 and p90)."),
    ),
)  # fmt: skip
def test_the_place_says_what_is_known_and_no_more(changed: dict[str, object], sentence: str) -> None:
    found = place_sentence(PLACE.model_copy(update=changed))
    assert found == f"Place 3 of 12 in the queue for the slots `1`. {sentence}"


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
    shown = [*queue_notices(target_state(entries=GIVEN, policy=LIMITED), JobStatus.HELD)]
    assert shown == [
        "Priority low, set by ann.",
        "ann lets this pull request use 120 GPU minutes from 2026-01-01 00:01 UTC on: the release.",
    ]
    assert [*queue_notices(target_state(entries=GIVEN), JobStatus.RUNNING)] == shown[:1]
    assert [*queue_notices(target_state(entries=GIVEN, policy=LIMITED), JobStatus.PASSED)] == []


def test_a_pause_is_said_where_the_heading_does_not_say_it() -> None:
    paused = target_state(queue=QueueView(limited=True, pause=Pause("mona", NOW, "the disk is full")))
    (said,) = queue_notices(paused, JobStatus.RUNNING)
    assert said.startswith("Paused by mona since 2026-01-01 00:00 UTC: the disk is full. What runs goes on")
    assert [*queue_notices(paused, JobStatus.HELD)] == []
