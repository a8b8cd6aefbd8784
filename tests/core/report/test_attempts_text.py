"""The attempts of a job: none is left out, each has its result and its cause in words.

The list of causes that come and go, for a terminal and as a document.

What a card and a gate say of the queue.
"""

from dataclasses import replace
from datetime import timedelta

from tests.core.pulls.entries import NOW, SMOKE, asked, run, target_state
from tests.core.pulls.test_retry import HANG, MARK, ended, passed
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.pulls.commands import Pause
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.gate import JobStanding
from verl_e2e.core.pulls.ledger import JobStatus, Run, RunState
from verl_e2e.core.pulls.queue import QueuePlace, QueueView
from verl_e2e.core.pulls.retry import CLASSES, flaky_causes
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.attempts_text import (
    NONE,
    attempt_rows,
    attempts_line,
    cause_words,
    flaky_json,
    flaky_text,
    queue_notices,
    used_minutes,
)
from verl_e2e.core.report.checks import checks_wanted, job_check_text
from verl_e2e.core.report.pull_card import render_pull_card

AGO = NOW - timedelta(minutes=5)
LOST = run(
    SMOKE, RunState.LOST, causes=("engine:node_failed",), updated=AGO, gpu_minutes=3.2, reason="Slurm says NODE_FAIL"
)
AGAIN = run(SMOKE, attempt=2, retry_of=LOST.key, gpu_minutes=6.0, sentence="it passed")
TEXTS = ("attempt 1: Blocked, node failed", "attempt 2: Pass, run again by itself")


def smoke(*runs: Run) -> JobStanding:
    return decide_actions(target_state(*runs)).standings[0]


def shown(state: TargetState) -> str:
    return render_pull_card(state, decide_actions(state))


def test_every_attempt_has_a_row_with_result_cause_and_cost() -> None:
    standing = smoke(LOST, AGAIN)
    assert attempt_rows(standing) == (
        "attempt 1: Blocked, node failed (3.2 GPU minutes): Slurm says NODE_FAIL",
        "attempt 2: Pass, run again by itself (6.0 GPU minutes): it passed",
    )
    assert attempts_line(standing) == TEXTS[0]
    assert used_minutes(standing) == 9.2


def test_a_job_with_one_attempt_has_no_rows_unless_something_is_to_be_said_of_the_next() -> None:
    assert attempt_rows(smoke(run(SMOKE))) == attempt_rows(smoke()) == ()
    assert attempt_rows(smoke(LOST.model_copy(update={"updated": NOW, "reason": ""}))) == (
        "attempt 1: Blocked, node failed (3.2 GPU minutes)",
    )


def test_card_and_check_show_all_attempts_and_their_minutes_together() -> None:
    state = target_state(LOST, AGAIN)
    card, check = shown(state), job_check_text(smoke(LOST, AGAIN)).summary
    for text in TEXTS:
        assert text in card
        assert text in check
    assert "GPU minutes: 9.2 used" in card
    assert "9.2 GPU minutes used" in check


def test_while_the_next_one_waits_card_and_check_say_when_it_begins() -> None:
    fresh = LOST.model_copy(update={"updated": NOW})
    card, check = shown(target_state(fresh)), job_check_text(smoke(fresh))
    for text in (card, check.summary, check.title):
        assert "attempt 2 begins at 2026-01-01 00:01 UTC" in text


def test_why_no_further_attempt_follows_is_on_card_and_check() -> None:
    full = run(SMOKE, result=Result.BLOCKED, causes=("log:disk-full",), sentence="the disk is full")
    words = "not run again by itself: a lasting fault of the infrastructure"
    assert words in shown(target_state(full))
    assert words in job_check_text(smoke(full)).title


def test_a_rerun_of_a_person_shows_the_failure_before_it() -> None:
    failed = run(SMOKE, result=Result.FAIL, causes=("log:train-step",))
    passed = run(SMOKE, attempt=2, asked_by="comment:101:1", sentence="it passed")
    state = replace(target_state(failed, passed), entries=(asked("rerun", minute=1),))
    assert "attempt 1: Fail, the training step failed" in shown(state)


def test_every_cause_has_words_and_an_unknown_one_is_shown_as_it_is() -> None:
    for cause in CLASSES:
        assert cause_words(cause) != cause or cause in ("end:exited",)
    assert cause_words("log:of-tomorrow") == "log:of-tomorrow"


def test_the_text_has_what_an_entry_of_the_quarantine_needs() -> None:
    found = flaky_causes((ended(HANG, stage=Stage.TRAIN_STEP), passed()))
    assert flaky_text(found).splitlines() == [
        f"{HANG} fingerprint {MARK}",
        "  ranks waited for a collective that never completed; a fault of the code under test",
        "  1 run, the last on 2026-01-01, in 0-lora-ddp",
        "  at train_step",
        "  1 head where another attempt passed, 1 pull request, 0 merge bases",
    ]
    assert flaky_text(()) == NONE
    assert flaky_json(found) == {
        "schema": 1,
        "causes": [
            {
                "cause": HANG,
                "fingerprint": MARK,
                "class": "change",
                "jobs": ["0-lora-ddp"],
                "stages": ["train_step"],
                "runs": 1,
                "heads_that_passed": 1,
                "pull_requests": 1,
                "merge_bases": 0,
                "last": "2026-01-01T00:00:00+00:00",
            }
        ],
    }
    lost = flaky_causes((ended("engine:preempted", fingerprint="", result=Result.BLOCKED), passed()))
    assert flaky_text(lost).startswith("engine:preempted\n  preempted; a passing fault of the infrastructure\n")


PLACE = QueuePlace(pool="1", position=3, waiting=12, targets=9)
GIVEN = (asked("priority", "low"), asked("run", minute=1))


def test_card_and_gate_have_the_place() -> None:
    waiting = run(SMOKE, RunState.QUEUED, awaits_slot=True)
    known = target_state(waiting, queue=QueueView(limited=True, place=PLACE))
    steps = decide_actions(known)
    gate, *_ = checks_wanted(known, steps)
    assert gate.title == "0 of 2 required jobs satisfied, place 3 of 12 in the queue"
    assert gate.title in render_pull_card(known, steps)
    for text in (gate.summary, render_pull_card(known, steps)):
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
