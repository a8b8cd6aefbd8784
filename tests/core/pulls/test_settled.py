"""What the policy makes of a quarantined end and of a pass after a failure, and the queue of a run that waits in it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.core.builders import make_job
from tests.core.executions import TRANSFORM, change, ran, verdict_on
from tests.core.pulls.entries import (
    GROUP,
    LATE,
    NOW,
    OTHER,
    POLICY,
    RESUME,
    SMOKE,
    WANTED,
    asked,
    override,
    run,
    target_state,
)
from tests.core.pulls.test_retry import MARK, entry
from verl_e2e.core.judge.execution import unknown_execution
from verl_e2e.core.judge.verdict_document import verdict_json
from verl_e2e.core.model.access import Demand
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.commands import Pause
from verl_e2e.core.pulls.decide import Actions, decide_actions
from verl_e2e.core.pulls.forge import Conclusion
from verl_e2e.core.pulls.gate import execution_of_job
from verl_e2e.core.pulls.ledger import JobStatus, Run, RunState
from verl_e2e.core.pulls.queue import Held, Pool, QueueView
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.checks import checks_wanted, gate_text, job_check_text
from verl_e2e.core.report.pull_card import render_pull_card

FAILED = run(
    SMOKE,
    result=Result.FAIL,
    causes=("log:collective-timeout",),
    fingerprint=MARK,
    sentence="ranks waited",
    updated=NOW - timedelta(minutes=5),
)
PASSED = run(SMOKE, attempt=2, asked_by="comment:101:1", sentence="it passed")
KNOWN = entry("log:collective-timeout", fingerprint=MARK, reason="a switch is replaced")
NAMED = "quarantined until 2026-02-01 (a switch is replaced, https://example.com/1)"
DISAGREES = "attempt 2 passed and disagrees with attempt 1, which failed"


def policy(*entries: Any, **gate: Demand) -> dict[str, Any]:
    changes = {"quarantine": entries, "gate": POLICY.gate.model_copy(update=gate)}
    return {"policy": POLICY.model_copy(update=changes)}


def shown(state: TargetState) -> tuple[Actions, str]:
    actions = decide_actions(state)
    return actions, render_pull_card(state, actions)


def test_a_quarantined_end_keeps_the_gate_closed_unless_the_policy_says_otherwise() -> None:
    actions, card = shown(target_state(FAILED, **policy(KNOWN)))
    first, second = actions.standings
    assert (first.state, second.state) == (JobStatus.QUARANTINED, JobStatus.SKIPPED)
    assert not actions.gate.is_open
    assert actions.dispatch == ()
    assert actions.gate.title.startswith(f"0-lora-ddp {NAMED}")
    assert "> 0-lora-ddp is quarantined until 2026-02-01" in card
    assert "rerun" in gate_text(actions.standings, actions.gate).summary


def test_with_allow_the_rest_runs_and_an_open_gate_names_the_quarantine() -> None:
    allowed = policy(KNOWN, quarantined=Demand.ALLOW)
    assert [started.job_id for started in decide_actions(target_state(FAILED, **allowed)).dispatch] == [RESUME.id]
    actions, card = shown(target_state(FAILED, run(RESUME), **allowed))
    assert actions.standings[0].state is JobStatus.TOLERATED
    assert actions.gate.is_open
    assert f"1 of 2 required jobs passed, 1 {NAMED}" in actions.gate.title
    assert NAMED[1:] in job_check_text(actions.standings[0]).title
    assert "> 0-lora-ddp is quarantined until 2026-02-01" in card
    # The job's own check is not green: only the gate may be.
    assert JobStatus.TOLERATED.conclusion is JobStatus.QUARANTINED.conclusion
    assert JobStatus.TOLERATED.conclusion is not JobStatus.PASSED.conclusion


@pytest.mark.parametrize("known", [(), (entry("log:collective-timeout", "2025-12-31", fingerprint=MARK),)])
def test_without_an_entry_that_counts_a_failure_is_one(known: tuple[Any, ...]) -> None:
    actions = decide_actions(target_state(FAILED, **policy(*known, quarantined=Demand.ALLOW)))
    assert actions.gate.status is JobStatus.FAILED


def test_what_is_set_aside_can_be_run_again_and_overridden() -> None:
    for demand in Demand:
        given = policy(KNOWN, quarantined=demand)
        (again, *_) = decide_actions(target_state(FAILED, entries=(asked("rerun", minute=1),), **given)).dispatch
        assert (again.job_id, again.attempt) == (SMOKE.id, 2)
        taken = decide_actions(target_state(FAILED, entries=(override(Level.SMOKE),), **given))
        assert taken.standings[0].state is JobStatus.OVERRIDDEN


def test_what_the_infrastructure_broke_is_tried_again_before_it_is_set_aside() -> None:
    ago = NOW - timedelta(minutes=5)
    lost = run(SMOKE, RunState.LOST, causes=("engine:node_failed",), updated=ago)
    given = policy(entry("engine:node_failed"))
    assert decide_actions(target_state(lost, **given)).dispatch[0].retry_of == lost.key
    again = run(SMOKE, RunState.LOST, causes=("engine:node_failed",), attempt=2, retry_of=lost.key, updated=ago)
    assert decide_actions(target_state(lost, again, **given)).standings[0].state is JobStatus.QUARANTINED


def test_nothing_of_a_quarantined_run_counts_as_executed() -> None:
    job = make_job(changed=change(TRANSFORM))
    wanted = (replace(WANTED[0], job=job), WANTED[1])
    own = FAILED.model_copy(
        update={"job_digest": wanted[0].digest, "verdict": verdict_json(verdict_on(job, ran(TRANSFORM)))}
    )
    state = target_state(own, run(RESUME), wanted=wanted, **policy(KNOWN, quarantined=Demand.ALLOW))
    (standing, _) = decide_actions(state).standings
    execution = execution_of_job(standing)
    assert execution is not None
    assert execution.functions == unknown_execution(change(TRANSFORM)).functions


def test_a_pass_after_a_failure_names_the_disagreement_wherever_it_is_shown() -> None:
    actions, card = shown(target_state(FAILED, PASSED, run(RESUME)))
    assert (actions.standings[0].state, actions.gate.status) == (JobStatus.PASSED, JobStatus.PASSED)
    assert "0-lora-ddp disagrees with attempt 1, which failed" in actions.gate.title
    assert DISAGREES in job_check_text(actions.standings[0]).title.replace("Passed: ", "")
    assert f"> 0-lora-ddp: {DISAGREES}" in card
    assert "attempt 1: Fail" in card


def test_with_block_it_keeps_the_gate_closed_until_someone_overrides_it() -> None:
    given = policy(disagreement=Demand.BLOCK)
    actions = decide_actions(target_state(FAILED, PASSED, **given))
    assert [standing.state for standing in actions.standings] == [JobStatus.BLOCKED, JobStatus.SKIPPED]
    assert actions.gate.status is JobStatus.BLOCKED
    assert "find out why its attempts disagree" in gate_text(actions.standings, actions.gate).summary
    taken = decide_actions(target_state(FAILED, PASSED, entries=(override(Level.SMOKE),), **given))
    assert taken.standings[0].state is JobStatus.OVERRIDDEN


def test_a_failure_under_another_pull_request_with_this_head_disagrees_too() -> None:
    failed, passed = (item.model_copy(update={"number": 8}) for item in (FAILED, PASSED))
    again = run(SMOKE, attempt=2)
    cases: tuple[dict[str, Any], ...] = ({"runs": (again,), "elsewhere": (failed,)}, {"elsewhere": (failed, passed)})
    for given in cases:
        actions = decide_actions(replace(target_state(), **given, **policy(disagreement=Demand.BLOCK)))
        assert actions.standings[0].disagrees_with == failed
        assert actions.gate.status is JobStatus.BLOCKED
    # An additional run, or one of another job, does not count as an attempt of this one.
    for other in ({"required": False}, {"job_digest": "other"}):
        state = target_state(again, elsewhere=(failed.model_copy(update=other),), **policy(disagreement=Demand.BLOCK))
        assert decide_actions(state).standings[0].state is JobStatus.PASSED


def test_a_pass_after_a_blocked_attempt_disagrees_with_nothing() -> None:
    blocked = run(SMOKE, result=Result.BLOCKED)
    (first, *_) = decide_actions(target_state(blocked, PASSED, **policy(disagreement=Demand.BLOCK))).standings
    assert (first.state, first.disagrees_with) == (JobStatus.PASSED, None)


def test_two_disagreements_are_counted() -> None:
    failed = run(RESUME, result=Result.FAIL)
    runs: tuple[Run, ...] = (FAILED, PASSED, failed, run(RESUME, attempt=2))
    assert decide_actions(target_state(*runs)).gate.title.endswith("which failed (and 1 more)")


WAITING = run(SMOKE, RunState.QUEUED, awaits_slot=True)
RUNNING, GOOD = run(SMOKE, RunState.RUNNING), run(SMOKE)
NEXT = run(RESUME, RunState.QUEUED, awaits_slot=True)
PAUSE = Pause("mona", NOW, "the disk is full")
PAUSED = QueueView(limited=True, pause=PAUSE)
LARGE = Pool("all", 4, counts_gpus=True)
UNDERWAY, REQUIRED = None, Conclusion.ACTION_REQUIRED


def holding(hold: Held) -> QueueView:
    return QueueView(limited=True, held={WAITING.key: hold})


@pytest.mark.parametrize(
    ("runs", "given", "statuses", "conclusion", "text"),
    (
        ((WAITING,), {}, ["running", "waiting"], UNDERWAY, ""),
        ((WAITING,), {"queue": QueueView(limited=True)}, ["waiting", "waiting"], UNDERWAY, "waits for a free slot"),
        ((WAITING,), {"queue": PAUSED}, ["held", "held"], REQUIRED, "the disk is full"),
        ((GOOD, NEXT), {"queue": PAUSED}, ["passed", "held"], REQUIRED, "the disk is full"),
        ((RUNNING,), {"queue": PAUSED}, ["running", "waiting"], UNDERWAY, "What runs goes on"),
        ((GOOD, run(RESUME)), {"queue": PAUSED}, ["passed", "passed"], Conclusion.SUCCESS, ""),
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
    card = render_pull_card(known, steps)
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
    after = decide_actions(target_state(ordered, queue=PAUSED))
    assert (after.dispatch, after.gate.status) == ((), JobStatus.HELD)
    title = "Paused by mona since 2026-01-01 00:00 UTC: the disk is full"
    assert after.gate.title == title
    assert replace(PAUSED, pause=None).limited
