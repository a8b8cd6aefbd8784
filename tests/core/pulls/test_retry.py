"""Whether a job gets another attempt, which causes allow one, and which come and go."""

from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.pulls.entries import (
    BASE,
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
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.model.known_defects import QuarantinedCause, RetryRules
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import (
    EVIDENCE_CAUSE,
    SEAL_CAUSE,
    UNPROVEN_CAUSE,
    EngineEnd,
    Recurrence,
    Result,
    Stage,
    of_criterion,
    of_end,
    of_engine,
    of_preflight,
)
from verl_e2e.core.model.record import Check, EndReason
from verl_e2e.core.pulls.commands import NeedsApproval
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.gate import JobStanding, NextAttempt, NoAttempt, attempts_due, set_aside_by
from verl_e2e.core.pulls.ledger import JobStatus, Run, RunState
from verl_e2e.core.pulls.retry import CLASSES, STALE, FlakyCause, RetryClass, class_of, flaky_causes, may_follow
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.triage.rules import Fault
from verl_e2e.core.triage.table import RULES

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


def smoke(state: TargetState) -> JobStanding:
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


# What a change of the tested code can cause, however much it reads like the machine's fault.
MAY_BE_THE_CHANGE = (
    of_engine(EngineEnd.HOST_MEMORY),
    of_engine(EngineEnd.TIME_LIMIT),
    of_engine(EngineEnd.RUNNER_ENDED),
    of_engine(EngineEnd.LEFT_NOTHING),
    of_end(EndReason.STALLED),
    of_end(EndReason.TIME_LIMIT),
    of_end(EndReason.HOST_MEMORY),
    of_end(EndReason.EXITED),
    "log:host-memory",
    "log:killed-by-signal",
    "log:worker-died",
    "log:engine-cache",
    "log:engine-memory",
)


def test_every_cause_that_there_is_has_a_class_and_the_table_names_no_other() -> None:
    known = {of_engine(end) for end in EngineEnd} | {of_end(reason) for reason in EndReason}
    known |= {of_preflight(check) for check in Check} | {f"log:{rule.id}" for rule in RULES}
    assert set(CLASSES) == known


def test_no_fault_of_code_is_ever_run_again() -> None:
    of_code = {f"log:{rule.id}" for rule in RULES if rule.fault is not Fault.OUTSIDE}
    assert {cause for cause, found in CLASSES.items() if found is RetryClass.CHANGE} == of_code


@pytest.mark.parametrize("cause", MAY_BE_THE_CHANGE)
def test_what_the_change_may_have_caused_is_unknown(cause: str) -> None:
    assert class_of((cause,), undecided=False) is RetryClass.UNKNOWN


@pytest.mark.parametrize(
    "cause", [SEAL_CAUSE, EVIDENCE_CAUSE, UNPROVEN_CAUSE, *map(of_criterion, Criterion), "log:of-tomorrow"]
)
def test_what_the_table_does_not_name_is_unknown(cause: str) -> None:
    assert class_of((cause,), undecided=False) is RetryClass.UNKNOWN


@pytest.mark.parametrize(
    ("causes", "undecided", "found"),
    [
        ((), False, RetryClass.UNKNOWN),
        (("engine:node_failed",), False, RetryClass.PASSING),
        (("engine:node_failed",), True, RetryClass.UNKNOWN),
        (("log:import-error",), False, RetryClass.LASTING),
        (("log:import-error",), True, RetryClass.UNKNOWN),
        (("preflight:gpus", "preflight:other_runs"), False, RetryClass.PASSING),
        (("preflight:host_memory",), False, RetryClass.PASSING),
        (("preflight:gpus", "preflight:disk"), False, RetryClass.LASTING),
        (("preflight:disk", "preflight:hydra"), False, RetryClass.OURS),
        (("preflight:hydra", "preflight:bridge_tests"), False, RetryClass.UNKNOWN),
        # A failure that the folder does not prove stays one of the code.
        ((UNPROVEN_CAUSE, "log:train-step"), False, RetryClass.CHANGE),
        (("log:train-step",), True, RetryClass.CHANGE),
    ],
)
def test_of_several_causes_the_least_promising_decides(
    causes: tuple[str, ...], undecided: bool, found: RetryClass
) -> None:
    assert class_of(causes, undecided=undecided) is found
    assert class_of(causes[::-1], undecided=undecided) is found


MARK = "0123456789abcdef"
KEYS = iter(range(1000))


def ended(*causes: str, result: Result = Result.FAIL, fingerprint: str = MARK, **given: Any) -> Run:
    key = f"{next(KEYS):064x}"
    return run(SMOKE, result=result, causes=causes, fingerprint=fingerprint, key=key, **given)


def passed(**given: Any) -> Run:
    return run(SMOKE, attempt=2, key=f"{next(KEYS):064x}", **given)


HANG = "log:collective-timeout"


@pytest.mark.parametrize(
    ("runs", "counts"),
    [
        ((), None),
        ((ended(HANG),), None),
        # Another attempt of the same job on the same head passed.
        ((ended(HANG), passed()), (1, 1, 1, 0)),
        ((passed(), ended(HANG)), (1, 1, 1, 0)),
        ((ended(HANG), passed(head_sha=OTHER)), None),
        ((ended(HANG), passed(carried_from=OTHER)), None),
        # The same code on another head, as after a rebase.
        ((ended(HANG, reuse_key="1" * 64), passed(head_sha=OTHER, reuse_key="1" * 64)), (1, 1, 1, 0)),
        ((ended(HANG, reuse_key="1" * 64), passed(head_sha=OTHER, reuse_key="2" * 64)), None),
        ((ended(HANG), run(RESUME)), None),
        ((ended(HANG, recurrence=Recurrence.NOT_REPRODUCED),), (1, 1, 1, 0)),
        # Several pull requests have the same failure, or the merge base has it.
        ((ended(HANG), ended(HANG, number=8, head_sha=OTHER)), (2, 0, 2, 0)),
        ((ended(HANG), ended(HANG, head_sha=OTHER)), None),
        ((ended(HANG), ended(HANG, number=8, fingerprint="f" * 16)), None),
        ((ended(HANG, recurrence=Recurrence.PRE_EXISTING, merge_base=BASE),), (1, 0, 1, 1)),
        # Missing evidence is not one failure, whatever the number of pull requests.
        ((ended("verdict:evidence", fingerprint=""), ended("verdict:evidence", fingerprint="", number=8)), None),
        ((ended("engine:node_failed", fingerprint=""), ended("engine:node_failed", fingerprint="", number=8)),
         (2, 0, 2, 0)),
        ((ended("log:network", fingerprint=""), ended("log:network", fingerprint="", number=8)), (2, 0, 2, 0)),
        ((ended("log:disk-full", fingerprint=""), ended("log:disk-full", fingerprint="", number=None)), None),
        ((run(SMOKE, RunState.RUNNING, causes=(HANG,)), passed()), None),
    ],
)  # fmt: skip
def test_what_is_listed_and_how_often_it_was_seen(
    runs: tuple[Run, ...], counts: tuple[int, int, int, int] | None
) -> None:
    found = flaky_causes(runs)
    assert [(item.runs, item.disagreed, item.pulls, item.merge_bases) for item in found] == ([counts] if counts else [])


def test_a_row_says_where_and_when_and_the_worst_comes_first() -> None:
    later = NOW + timedelta(days=1)
    runs = (
        ended("engine:node_failed", fingerprint="", number=8, head_sha=OTHER),
        ended("engine:node_failed", fingerprint="", number=9, head_sha=OTHER, updated=later),
        ended(HANG, stage=Stage.TRAIN_STEP),
        passed(),
    )
    first, second = flaky_causes(runs)
    assert first == FlakyCause(HANG, MARK, RetryClass.CHANGE, (SMOKE.id,), (Stage.TRAIN_STEP,), 1, 1, 1, 0, NOW)
    assert (second.found, second.last, second.stages) == (RetryClass.PASSING, later, ())


TODAY = date(2026, 1, 1)
FINGERPRINT, ANOTHER = "0123456789abcdef", "f" * 16


def entry(cause_id: str, until: str = "2026-02-01", **given: Any) -> QuarantinedCause:
    fields = {"cause": cause_id, "until": until, "reason": "known", "link": "https://example.com/1"}
    return QuarantinedCause.model_validate(fields | given)


BLOCKED = run(SMOKE, result=Result.BLOCKED, causes=("log:network",), stage=Stage.RAY)
FAILED = run(SMOKE, result=Result.FAIL, causes=("log:train-step",), stage=Stage.TRAIN_STEP, fingerprint=FINGERPRINT)
TWO = run(SMOKE, result=Result.BLOCKED, causes=("preflight:gpus", "preflight:disk"))


@pytest.mark.parametrize(
    ("ended", "entries", "aside"),
    [
        (BLOCKED, (entry("log:network"),), True),
        (BLOCKED, (entry("log:network", job=SMOKE.id, stage="ray"),), True),
        (BLOCKED, (), False),
        (BLOCKED, (entry("log:storage"),), False),
        (BLOCKED, (entry("log:network", job="1-resume"),), False),
        (BLOCKED, (entry("log:network", stage="train_step"),), False),
        (BLOCKED, (entry("log:network", "2025-12-31"),), False),
        (BLOCKED, (entry("log:network", "2027-01-01"),), False),
        (BLOCKED, (entry("log:network", fingerprint=FINGERPRINT),), False),
        (run(SMOKE, result=Result.BLOCKED), (entry("log:network"),), False),
        # A kind of failure is never excused, one known failure may be.
        (FAILED, (entry("log:train-step"),), False),
        (FAILED, (entry("log:train-step", fingerprint=ANOTHER),), False),
        (FAILED, (entry("log:train-step", fingerprint=FINGERPRINT),), True),
        # Every cause has to be known.
        (TWO, (entry("preflight:gpus"),), False),
        (TWO, (entry("preflight:gpus"), entry("preflight:disk")), True),
    ],
)
def test_what_is_set_aside(ended: Any, entries: tuple[QuarantinedCause, ...], aside: bool) -> None:
    assert (set_aside_by(ended, entries, TODAY) is not None) == aside


def test_of_several_entries_the_one_that_ends_first_is_named() -> None:
    first, last = entry("preflight:gpus", "2026-01-05"), entry("preflight:disk", "2026-01-09")
    assert set_aside_by(TWO, (last, first), TODAY) == first
