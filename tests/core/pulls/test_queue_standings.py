"""What a target shows of runs that wait in our queue, or are held there."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.core.pulls.entries import GROUP, LATE, NOW, OTHER, RESUME, SMOKE, run, target_state
from verl_e2e.core.pulls.admission import Held, HoldCause
from verl_e2e.core.pulls.check_runs import Conclusion
from verl_e2e.core.pulls.decide import Actions, decide_actions
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pause import Pause
from verl_e2e.core.pulls.pools import Pool
from verl_e2e.core.pulls.queue_view import QueueView
from verl_e2e.core.report.checks import checks_wanted
from verl_e2e.core.report.pull_card import render
from verl_e2e.core.report.pull_card_content import card_of

WAITING = run(SMOKE, RunState.QUEUED, awaits_slot=True)
RUNNING, PASSED = run(SMOKE, RunState.RUNNING), run(SMOKE)
NEXT = run(RESUME, RunState.QUEUED, awaits_slot=True)
PAUSE = Pause("mona", NOW, "the disk is full")
PAUSED = QueueView(limited=True, pause=PAUSE)
LARGE = Held(HoldCause.TOO_LARGE, pool=Pool("all", 4, counts_gpus=True))
UNDERWAY, REQUIRED = None, Conclusion.ACTION_REQUIRED


def holding(hold: Held) -> QueueView:
    return QueueView(limited=True, held={WAITING.key: hold})


@pytest.mark.parametrize(
    ("runs", "given", "statuses", "conclusion", "text"),
    (
        ((WAITING,), {}, ["running", "waiting"], UNDERWAY, ""),
        ((WAITING,), {"queue": QueueView(limited=True)}, ["waiting", "waiting"], UNDERWAY, "waits for a free slot"),
        ((WAITING,), {"queue": PAUSED}, ["held", "held"], REQUIRED, "the disk is full"),
        ((PASSED, NEXT), {"queue": PAUSED}, ["passed", "held"], REQUIRED, "the disk is full"),
        ((RUNNING,), {"queue": PAUSED}, ["running", "waiting"], UNDERWAY, "What runs goes on"),
        ((PASSED, run(RESUME)), {"queue": PAUSED}, ["passed", "passed"], Conclusion.SUCCESS, ""),
        ((WAITING,), {"queue": holding(LARGE)}, ["held", "held"], REQUIRED, "hold 4 GPUs"),
        ((WAITING,), {"queue": PAUSED, "target": GROUP}, ["waiting", "waiting"], UNDERWAY, "the disk is full"),
        ((WAITING,), {"queue": holding(LARGE), "target": GROUP}, ["held", "held"], REQUIRED, "hold 4 GPUs"),
        ((), {"queue": PAUSED, "target": LATE}, ["held", "held"], REQUIRED, "the disk is full"),
    ),
)  # fmt: skip
def test_what_the_gate_and_the_card_say(
    runs: tuple[Run, ...], given: dict[str, Any], statuses: list[str], conclusion: Conclusion | None, text: str
) -> None:
    known = target_state(*runs, **given)
    steps = decide_actions(known)
    assert [str(standing.state) for standing in steps.standings] == statuses
    assert steps.gate.conclusion is conclusion
    card = render(card_of(known, steps))
    assert text in card
    assert (("disk" in card) or ("disk" in str(checks_wanted(known, steps)))) == ("disk" in text or "goes on" in text)


def test_a_waiting_job_keeps_its_check_open_whether_it_is_held_or_not() -> None:
    for view in (QueueView(limited=True), PAUSED, holding(LARGE)):
        known = target_state(WAITING, queue=view)
        _, check, *_ = checks_wanted(known, decide_actions(known))
        assert (check.status, check.conclusion, check.title) == ("queued", "", "Waiting: the job has not started")


def ended(steps: Actions) -> list[RunState]:
    return [item.state for item in steps.cancel]


def test_what_waits_with_us_ends_at_once_and_is_never_late() -> None:
    old = WAITING.model_copy(update={"created": NOW - timedelta(days=9)})
    assert decide_actions(target_state(old)).cancel == ()
    started = old.let_start(NOW - timedelta(minutes=1))
    assert decide_actions(target_state(started)).cancel == ()
    assert ended(decide_actions(target_state(old.let_start(NOW - timedelta(days=1))))) == [RunState.CANCELLING]
    # Of the head before: it ends, and the new head need not wait for that.
    steps = decide_actions(target_state(WAITING.model_copy(update={"head_sha": OTHER, "key": "9" * 64})))
    assert ended(steps) == [RunState.CANCELLED]
    assert [item.job_id for item in steps.dispatch] == ["0-lora-ddp"]


def test_a_pause_lets_runs_be_ordered_so_that_they_start_when_it_ends() -> None:
    (ordered,) = decide_actions(target_state(queue=PAUSED)).dispatch
    assert ordered.waits_for_slot
    assert ordered.terms.person == "ann"
    after = decide_actions(target_state(ordered, queue=PAUSED))
    assert (after.dispatch, after.gate.status) == ((), JobStatus.HELD)
    title = "Paused by mona since 2026-01-01 00:00 UTC: the disk is full"
    assert after.gate.title == title
    assert replace(PAUSED, pause=None).limited
