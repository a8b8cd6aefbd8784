"""What becomes of a job that the infrastructure blocked: another attempt, later, or why none."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.pulls.entries import (
    DRAFTED,
    GROUP,
    HEAD,
    NOW,
    OTHER,
    POLICY,
    RESUME,
    SHUT,
    SMOKE,
    WANTED,
    asked,
    override,
    run,
    target_state,
)
from verl_e2e.core.model.known_defects import RetryRules
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.gate import Standing
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.retry import CLASSES, STALE, NextAttempt, NoAttempt, RetryClass, attempts_due, may_follow
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.trust import NeedsApproval

NODE, FULL, OURS = ("engine:node_failed",), ("log:disk-full",), ("preflight:hydra",)
AGO = NOW - timedelta(minutes=5)
LOST = run(SMOKE, RunState.LOST, causes=NODE, updated=AGO, created=AGO)
COSTS = (replace(WANTED[0], gpu_minutes=10), replace(WANTED[1], gpu_minutes=10))


def blocked(*causes: str, **fields: Any) -> Run:
    times: dict[str, Any] = {"updated": AGO, "created": AGO}
    return run(SMOKE, result=Result.BLOCKED, causes=causes, **{**times, **fields})


def again(attempt: int, **fields: Any) -> Run:
    """An attempt that was made by itself, and lost too."""
    times: dict[str, Any] = {"updated": AGO, "created": AGO}
    return run(SMOKE, RunState.LOST, causes=NODE, attempt=attempt, retry_of=LOST.key, **{**times, **fields})


def rules(**changes: Any) -> dict[str, Any]:
    return {"policy": POLICY.model_copy(update={"retry": RetryRules(**changes)})}


def due(state: TargetState) -> NextAttempt | NoAttempt | None:
    return attempts_due(state, (*state.shared, *state.runs)).get("0-lora-ddp")


def smoke(state: TargetState) -> Standing:
    return decide_actions(state).standings[0]


@pytest.mark.parametrize(
    ("runs", "given_state"),
    [
        ((LOST,), {}),
        ((blocked("preflight:other_runs"),), {}),
        ((blocked("log:hub-unreachable"),), {}),
        ((blocked(*FULL),), rules(lasting=1)),
        ((LOST, again(2)), rules(passing=2)),
        # A person's request begins the count again.
        ((LOST, again(2), run(SMOKE, RunState.LOST, attempt=3, asked_by="comment:1:1", causes=NODE, updated=AGO)), {}),
        # The attempts of another pull request are not of this one's budget.
        ((LOST, again(2, number=8, head_sha=OTHER, key="e" * 64)), rules(per_day=1)),
        ((LOST, run(RESUME, RunState.LOST, retry_of="x", created=NOW - timedelta(days=2))), rules(per_day=1)),
    ],
)
def test_another_attempt_follows_what_the_infrastructure_broke(
    runs: tuple[Run, ...], given_state: dict[str, Any]
) -> None:
    state = target_state(*runs, wanted=COSTS, **given_state)
    assert isinstance(due(state), NextAttempt)
    (started,) = decide_actions(state).dispatch
    last = [item for item in runs if item.job_id == SMOKE.id and item.number == 7][-1]
    assert (started.job_id, started.attempt, started.retry_of) == (SMOKE.id, last.attempt + 1, last.key)


NEVER: tuple[tuple[str, tuple[Run, ...], dict[str, Any]], ...] = (
    ("it passed", (run(SMOKE, causes=NODE),), {}),
    ("it failed", (run(SMOKE, result=Result.FAIL, causes=NODE),), {}),
    ("it never entered the change", (blocked(*NODE, never_entered=True),), {}),
    ("it was cancelled", (run(SMOKE, RunState.CANCELLED, causes=NODE),), {}),
    ("it is under way", (run(SMOKE, RunState.RUNNING, causes=NODE),), {}),
    ("nothing is known", (run(SMOKE, RunState.LOST),), {}),
    ("the change may have caused it", (blocked(*NODE, undecided=True),), {}),
    ("the code is at fault", (blocked("log:train-step"),), {}),
    ("we are at fault", (blocked(*OURS),), {}),
    ("closed", (LOST,), {"target": SHUT}),
    ("a draft", (LOST,), {"target": DRAFTED}),
    ("not approved", (LOST,), {"trust": NeedsApproval("a fork")}),
    ("cancelled by a person", (LOST,), {"entries": (asked("cancel"),)}),
    ("of an earlier head", (run(SMOKE, RunState.LOST, causes=NODE, head_sha=OTHER),), {}),
    ("the job cannot be completed", (LOST,), {"wanted": (replace(WANTED[0], job=None, missing="no model"),)}),
    ("a merge group that was given up", (LOST,), {"target": replace(GROUP, destroyed=True)}),
)


@pytest.mark.parametrize(("name", "runs", "given_state"), NEVER, ids=[row[0] for row in NEVER])
def test_nothing_else_is_tried_again_and_nothing_is_said_of_it(
    name: str, runs: tuple[Run, ...], given_state: dict[str, Any]
) -> None:
    state = target_state(*runs, **given_state)
    assert due(state) is None, name
    assert not any(started.retry_of for started in decide_actions(state).dispatch)


GROUP_LATE = replace(GROUP, since=NOW - timedelta(seconds=POLICY.gate.merge_queue_deadline_s - 300))
REFUSED: tuple[tuple[str, tuple[Run, ...], dict[str, Any]], ...] = (
    ("an attempt of this job failed", (run(SMOKE, result=Result.FAIL), again(2)), {}),
    ("an attempt of this job failed", (LOST,), {"elsewhere": (run(SMOKE, result=Result.FAIL, number=8),)}),
    ("a passing fault", (LOST,), rules(passing=0)),
    ("a lasting fault", (blocked(*FULL),), {}),
    ("2 attempts met a passing fault", (LOST, again(2)), {}),
    ("more than 12 hours ago", (LOST.model_copy(update={"updated": NOW - STALE - timedelta(seconds=1)}),), {}),
    ("the policy allows 1 such attempts", (LOST, run(RESUME, RunState.LOST, retry_of="x")), rules(per_day=1)),
    ("and this one would take about 10", (LOST, run(RESUME, retry_of="x", gpu_minutes=31.0)),
     rules(gpu_minutes_per_day=40)),
    ("took 10 of 19 GPU minutes", (LOST, run(RESUME, RunState.RUNNING, retry_of="x")), rules(gpu_minutes_per_day=19)),
    ("time limit of the merge queue", (LOST,), {"target": GROUP_LATE}),
)  # fmt: skip


@pytest.mark.parametrize(("words", "runs", "given_state"), REFUSED, ids=[row[0] for row in REFUSED])
def test_why_there_is_no_further_attempt_is_said_with_the_job(
    words: str, runs: tuple[Run, ...], given_state: dict[str, Any]
) -> None:
    state = target_state(*runs, wanted=COSTS, **given_state)
    found = due(state)
    assert isinstance(found, NoAttempt)
    assert words in found.reason
    standing = smoke(state)
    assert standing.state is JobStatus.BLOCKED
    assert found.reason in standing.reason
    assert not any(started.job_id == SMOKE.id for started in decide_actions(state).dispatch)


def test_it_waits_twice_as_long_before_each_further_attempt() -> None:
    for runs, seconds in (((LOST,), 60), ((LOST, again(2)), 120), ((LOST, again(2), again(3)), 240)):
        found = due(target_state(*runs, **rules(passing=3)))
        assert isinstance(found, NextAttempt)
        assert found.at - runs[-1].updated == timedelta(seconds=seconds)


def test_until_then_the_job_waits_and_so_does_what_needs_it() -> None:
    fresh = LOST.model_copy(update={"updated": NOW})
    actions = decide_actions(target_state(fresh))
    first, second = actions.standings
    assert not actions.dispatch
    assert (first.state, second.state, actions.gate.status) == (
        JobStatus.WAITING,
        JobStatus.WAITING,
        JobStatus.RUNNING,
    )
    assert "attempt 2 begins at 2026-01-01 00:01 UTC" in first.reason


def test_two_jobs_at_once_share_what_is_left_of_the_budget() -> None:
    wanted = (COSTS[0], replace(COSTS[1], requires=()))
    lost = run(RESUME, RunState.LOST, causes=NODE, updated=AGO)
    state = target_state(LOST, lost, wanted=wanted, **rules(per_day=1))
    assert [started.job_id for started in decide_actions(state).dispatch] == [SMOKE.id]
    minutes = target_state(LOST, lost, wanted=wanted, **rules(gpu_minutes_per_day=15))
    assert [started.job_id for started in decide_actions(minutes).dispatch] == [SMOKE.id]
    both = target_state(LOST, lost, wanted=wanted, **rules(gpu_minutes_per_day=20))
    assert len(decide_actions(both).dispatch) == 2


def test_a_request_of_a_person_comes_first_and_is_not_one_of_ours() -> None:
    state = target_state(LOST, entries=(asked("rerun", minute=1),))
    (started,) = decide_actions(state).dispatch
    assert (started.asked_by, started.retry_of) == ("comment:101:1", "")


def test_an_overridden_level_is_not_tried_again() -> None:
    actions = decide_actions(target_state(LOST, entries=(override(Level.SMOKE),)))
    assert [started.job_id for started in actions.dispatch] == [RESUME.id]
    assert actions.standings[0].attempt is None


def test_a_merge_group_with_time_left_gets_its_attempt() -> None:
    of_group = LOST.model_copy(update={"number": None})
    for since in (NOW - timedelta(minutes=6), None):
        (started,) = decide_actions(target_state(of_group, target=replace(GROUP, since=since))).dispatch
        assert started.retry_of == of_group.key


def test_a_merge_group_does_not_wait_for_its_next_attempt() -> None:
    fresh = LOST.model_copy(update={"number": None, "updated": NOW})
    (started,) = decide_actions(target_state(fresh, target=GROUP)).dispatch
    assert started.retry_of == fresh.key


@pytest.mark.parametrize(
    ("runs", "follows"),
    [
        ((), False),
        ((LOST,), True),
        ((blocked(*FULL),), True),
        ((run(SMOKE),), False),
        ((blocked("log:train-step"),), False),
        ((LOST, run(SMOKE, attempt=2, retry_of=LOST.key)), False),
        ((LOST, again(2)), True),
        ((LOST.model_copy(update={"updated": NOW - STALE - timedelta(seconds=1)}),), False),
    ],
)
def test_a_target_whose_run_may_be_followed_by_another_is_looked_at_again(runs: tuple[Run, ...], follows: bool) -> None:
    assert may_follow(runs, NOW) is follows


RESULTS = st.sampled_from([Result.PASS, Result.FAIL, Result.BLOCKED])
CAUSES = st.lists(st.sampled_from(sorted(CLASSES)), max_size=2)


@given(st.lists(st.tuples(RESULTS, CAUSES, st.booleans()), min_size=1, max_size=4), st.integers(0, 3))
def test_no_attempt_is_made_of_a_job_that_ever_failed_or_may_have_by_the_change(
    history: list[tuple[Result, list[str], bool]], most: int
) -> None:
    runs = tuple(
        run(SMOKE, result=result, causes=tuple(causes), undecided=undecided, attempt=number, updated=AGO)
        for number, (result, causes, undecided) in enumerate(history, 1)
    )
    for started in decide_actions(target_state(*runs, **rules(passing=most, lasting=min(most, 1)))).dispatch:
        assert started.head_sha == HEAD
        if started.retry_of:
            assert Result.FAIL not in {item.result for item in runs}
            assert (runs[-1].result, runs[-1].undecided) == (Result.BLOCKED, False)
            found = {CLASSES[cause] for cause in runs[-1].causes}
            assert found
            assert found <= {RetryClass.PASSING, RetryClass.LASTING}
