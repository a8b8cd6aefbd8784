"""The rehearsal of a head: when it starts and ends, when jobs start after it, and what the gate says meanwhile."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.core.pulls.entries import (
    BASE,
    DRAFTED,
    GROUP,
    HEAD,
    LATE,
    NOW,
    OTHER,
    PLAN,
    POLICY,
    SHUT,
    SMOKE,
    WANTED,
    asked,
    override,
    target_state,
)
from tests.core.pulls.entries import run as job_run
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.model.access import Absence, Capability, Demand
from verl_e2e.core.model.jobs import REHEARSAL, RehearsalJob, RehearsalRules, Repository, read_order
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.classify import Reason
from verl_e2e.core.plan.plan import NotRequired
from verl_e2e.core.pulls.commands import VERBS, NeedsApproval, Pause
from verl_e2e.core.pulls.decide import (
    AFTER_REHEARSAL,
    IMPORTS_SHOWN,
    NOT_TRUSTED,
    NOT_WANTED,
    SUPERSEDED,
    Actions,
    decide_actions,
)
from verl_e2e.core.pulls.ledger import JobStatus, Rehearsed, Run, RunState, run_key
from verl_e2e.core.pulls.queue import Pool, QueueView, entry_of, pool_of
from verl_e2e.core.pulls.target_state import REHEARSAL_FAILED, TargetState, rehearsal_standing, rehearsed_before_jobs

JOB = RehearsalJob(kind="rehearsal", bridge=Repository(path="bridge", commit=HEAD), base=BASE)
OTHER_JOB = JOB.model_copy(update={"base": OTHER})
NOTHING = replace(PLAN, levels=(), not_required=(NotRequired(Level.SMOKE, "no path is run"),))
FORK = NeedsApproval("it is a fork")
SENTENCE = "Rehearsal (CPU): an outcome"
RESULTS = {
    CellOutcome.EQUAL: Result.PASS,
    CellOutcome.CHANGED: Result.PASS,
    CellOutcome.FAIL: Result.FAIL,
    CellOutcome.BLOCKED: Result.BLOCKED,
}


def rules(**changes: object) -> dict[str, Any]:
    given = RehearsalRules(run=True).model_copy(update=changes)
    return {"policy": POLICY.model_copy(update={"rehearsal": given})}


def rehearsal(state: RunState = RunState.FINISHED, outcome: CellOutcome | None = None, **given: object) -> Run:
    job = given.pop("rehearsal", JOB)
    assert isinstance(job, RehearsalJob)
    attempt, head = int(str(given.get("attempt", 1))), str(given.get("head_sha", HEAD))
    fields: dict[str, object] = {
        "key": run_key("octo/bridge", head, job.digest(), attempt),
        "repository": "octo/bridge",
        "number": 7,
        "head_sha": head,
        "job_id": REHEARSAL,
        "job_digest": job.digest(),
        "required": False,
        "rehearsal": job,
        "state": state,
        "created": NOW,
        "updated": NOW,
    }
    if outcome is not None:
        equal = outcome is CellOutcome.EQUAL
        found = Rehearsed(outcome=outcome, equal_everywhere=equal)
        fields |= {"rehearsed": found, "result": RESULTS[outcome], "sentence": SENTENCE}
    return Run.model_validate(fields | given)


def rehearsed_state(*runs: Run, **given: Any) -> TargetState:
    return target_state(*runs, **{**rules(), "rehearsal": JOB, **given})


def keys_of(steps: Actions) -> tuple[list[str], list[str]]:
    return [run.job_id for run in steps.dispatch], [run.reason for run in steps.cancel]


EQUAL, CHANGED = rehearsal(outcome=CellOutcome.EQUAL), rehearsal(outcome=CellOutcome.CHANGED)
FAILED, BLOCKED = rehearsal(outcome=CellOutcome.FAIL), rehearsal(outcome=CellOutcome.BLOCKED)
LIVE = rehearsal(RunState.RUNNING)
LOST = rehearsal(RunState.LOST, reason="no runner took it")
SLOW = rehearsal(RunState.RUNNING, created=NOW - timedelta(minutes=30))
AGAIN = rehearsal(RunState.CANCELLED, may_start_again=True)
ENDED = rehearsal(RunState.CANCELLED, reason="someone cancelled it on GitHub")
SHARED = rehearsal(RunState.RUNNING, number=8)
OF_OLD = rehearsal(RunState.RUNNING, head_sha=OTHER)
BLOCKED_2, LOST_2 = rehearsal(outcome=CellOutcome.BLOCKED, attempt=2), rehearsal(RunState.LOST, reason="why", attempt=2)
ENDED_2 = rehearsal(RunState.CANCELLED, reason="someone cancelled it", attempt=2)
LIVE_2, EQUAL_2 = rehearsal(RunState.RUNNING, attempt=2), rehearsal(outcome=CellOutcome.EQUAL, attempt=2)
SLOW_2 = rehearsal(RunState.RUNNING, created=NOW - timedelta(minutes=31), attempt=2)
PAUSED = Pause("ann", NOW, "why")
ASKS = {"trust": FORK, **rules(approval=True)}
AGAIN_PLEASE = {"entries": (asked("rehearse", minute=1),)}
NONE_ASKED, REPLACED = "no rehearsal is asked for any more", "another rehearsal takes its place"

Row = tuple[str, tuple[Run, ...], dict[str, Any], list[str], list[str]]
TABLE: tuple[Row, ...] = (
    ("nothing ran yet", (), {}, [REHEARSAL], []),
    ("it runs", (LIVE,), {}, [], []),
    ("it runs for another pull request", (), {"elsewhere": (SHARED,)}, [], []),
    ("it is equal", (EQUAL,), {}, ["0-lora-ddp"], []),
    ("it is equal elsewhere", (), {"elsewhere": (EQUAL,)}, ["0-lora-ddp"], []),
    ("it changed", (CHANGED,), {}, ["0-lora-ddp"], []),
    ("it failed", (FAILED,), {}, [], []),
    ("it failed, and the policy only shows it", (FAILED,), rules(fail=Demand.ALLOW), ["0-lora-ddp"], []),
    ("it failed, and one level is overridden", (FAILED,), {"entries": (override(Level.SMOKE),)}, [], []),
    ("it is blocked", (BLOCKED,), {}, ["0-lora-ddp"], []),
    ("it is lost", (LOST,), {}, ["0-lora-ddp"], []),
    ("someone ended it on GitHub", (ENDED,), {}, ["0-lora-ddp"], []),
    ("it takes too long", (SLOW,), {}, ["0-lora-ddp"], []),
    ("it can run nowhere", (), {"rehearsal_missing": "no host has it"}, ["0-lora-ddp"], []),
    ("it is of another base", (rehearsal(outcome=CellOutcome.EQUAL, rehearsal=OTHER_JOB),), {}, [REHEARSAL], []),
    # A new head, an end, a draft.
    ("one of an earlier head runs", (OF_OLD,), {}, [], [SUPERSEDED]),
    ("we ended it before", (AGAIN,), {}, [REHEARSAL], []),
    ("closed", (LIVE,), {"target": SHUT}, [], ["the pull request is closed"]),
    ("a draft", (), {"target": DRAFTED}, [], []),
    ("a draft, and it runs", (LIVE,), {"target": DRAFTED}, [], ["drafts are planned, not run"]),
    ("a merge group", (), {"target": GROUP}, [REHEARSAL], []),
    ("a merge group that is late", (), {"target": LATE}, [], []),
    ("the repository is paused", (), {"queue": QueueView(pause=PAUSED)}, [], []),
    ("the policy asks for none any more", (LIVE,), {"rehearsal": None}, ["0-lora-ddp"], [NONE_ASKED]),
    ("another one takes its place", (LIVE,), {"rehearsal": OTHER_JOB}, [REHEARSAL], [REPLACED]),
    ("no plan says whether it is wanted", (LIVE,), {"plan": None, "rehearsal": None, "problem": "why"}, [], []),
    # Whose head.
    ("a fork", (), {"trust": FORK}, [REHEARSAL], []),
    ("a fork whose rehearsal runs", (LIVE,), {"trust": FORK}, [], []),
    ("a fork that is equal", (EQUAL,), {"trust": FORK}, [], []),
    ("a fork, and the policy asks", (), ASKS, [], []),
    ("a fork whose rehearsal runs, and the policy asks", (LIVE,), ASKS, [], [NOT_TRUSTED]),
    # Requests.
    ("cancelled", (LIVE,), {"entries": (asked("cancel"),)}, [], ["cancelled by ann"]),
    ("cancelled before it began", (), {"entries": (asked("cancel"),)}, [], []),
    # A Fail stands until an answer takes its place.
    ("failed, then blocked", (FAILED, BLOCKED_2), {}, [], []),
    ("failed, then lost", (FAILED, LOST_2), {}, [], []),
    ("failed, then lost for another pull request", (FAILED,), {"elsewhere": (LOST_2,)}, [], []),
    ("failed, then ended by someone", (FAILED, ENDED_2), {}, [], []),
    ("failed, and runs again", (FAILED, LIVE_2), {}, [], []),
    ("failed, and runs again for long", (FAILED, SLOW_2), {}, [], []),
    ("failed, then equal", (FAILED, EQUAL_2), {}, ["0-lora-ddp"], []),
    ("failed, lost, and the policy only shows it", (FAILED, LOST_2), rules(fail=Demand.ALLOW), ["0-lora-ddp"], []),
    ("ended by someone, asked again", (ENDED,), AGAIN_PLEASE, [REHEARSAL], []),
    ("failed, asked again", (FAILED,), AGAIN_PLEASE, [REHEARSAL], []),
    ("failed, everything is run again", (FAILED,), {"entries": (asked("rerun", minute=1),)}, [REHEARSAL], []),
    ("blocked, asked again", (BLOCKED,), AGAIN_PLEASE, [REHEARSAL, "0-lora-ddp"], []),
    ("equal, asked again", (EQUAL,), AGAIN_PLEASE, ["0-lora-ddp"], []),
    ("running, asked again", (LIVE,), AGAIN_PLEASE, [], []),
    ("a job that failed is not meant", (EQUAL, job_run(SMOKE, result=Result.FAIL)), AGAIN_PLEASE, [], []),
)  # fmt: skip


@pytest.mark.parametrize(("runs", "given", "starts", "ends"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_starts_and_what_ends(
    runs: tuple[Run, ...], given: dict[str, Any], starts: list[str], ends: list[str]
) -> None:
    state = rehearsed_state(*runs, **given)
    steps = decide_actions(state)
    assert keys_of(steps) == (starts, ends)
    # Doing it again changes nothing more.
    after = decide_actions(replace(state, runs=steps.runs))
    assert [run.job_id for run in after.dispatch] in ([], ["0-lora-ddp"])


def test_a_second_attempt_has_a_key_of_its_own() -> None:
    state = rehearsed_state(FAILED, entries=(asked("rehearse", minute=1),))
    (again,) = decide_actions(state).dispatch
    assert (again.attempt, again.asked_by, again.from_fork) == (2, "comment:101:1", False)
    assert again.key != FAILED.key
    assert again.queue_deadline_s == 1800


@pytest.mark.parametrize(
    ("runs", "given", "status", "title"),
    [
        ((), {}, JobStatus.RUNNING, "0 of 2"),
        ((LIVE,), {}, JobStatus.RUNNING, "0 of 2"),
        ((FAILED,), {}, JobStatus.FAILED, SENTENCE),
        ((FAILED,), rules(fail=Demand.ALLOW), JobStatus.RUNNING, "0 of 2"),
        ((FAILED, job_run(SMOKE)), {}, JobStatus.FAILED, SENTENCE),
        ((BLOCKED,), {}, JobStatus.RUNNING, "0 of 2"),
        ((FAILED,), {"plan": NOTHING, "wanted": ()}, JobStatus.FAILED, SENTENCE),
        ((FAILED, LOST_2), {"plan": NOTHING, "wanted": ()}, JobStatus.FAILED, SENTENCE),
        ((FAILED, ENDED_2), {"plan": NOTHING, "wanted": ()}, JobStatus.FAILED, SENTENCE),
        ((FAILED, SLOW_2), {"plan": NOTHING, "wanted": ()}, JobStatus.RUNNING, "Waits for the rehearsal"),
        ((LIVE,), {"plan": NOTHING, "wanted": ()}, JobStatus.RUNNING, "Waits for the rehearsal"),
        ((CHANGED,), {"plan": NOTHING, "wanted": ()}, JobStatus.NOT_REQUIRED, "No verl coverage"),
        ((LOST,), {"plan": NOTHING, "wanted": ()}, JobStatus.NOT_REQUIRED, "No verl coverage"),
    ],
)
def test_the_gate(runs: tuple[Run, ...], given: dict[str, Any], status: JobStatus, title: str) -> None:
    found = decide_actions(rehearsed_state(*runs, **given)).gate
    assert found.status is status
    assert title in found.title


@pytest.mark.parametrize(
    ("runs", "none", "status"),
    [
        ((), Absence.APPROVE_STRANGERS, JobStatus.RUNNING),
        ((LIVE,), Absence.APPROVE_STRANGERS, JobStatus.RUNNING),
        ((EQUAL,), Absence.APPROVE_STRANGERS, JobStatus.NOT_REQUIRED),
        ((CHANGED,), Absence.APPROVE_STRANGERS, JobStatus.BLOCKED),
        ((BLOCKED,), Absence.APPROVE_STRANGERS, JobStatus.BLOCKED),
        ((LOST,), Absence.APPROVE_STRANGERS, JobStatus.BLOCKED),
        ((FAILED,), Absence.APPROVE_STRANGERS, JobStatus.FAILED),
        ((rehearsal(outcome=CellOutcome.EQUAL, rehearsal=OTHER_JOB),), Absence.APPROVE_STRANGERS, JobStatus.RUNNING),
        ((rehearsal(outcome=CellOutcome.EQUAL, head_sha=OTHER),), Absence.APPROVE_STRANGERS, JobStatus.RUNNING),
        ((EQUAL,), Absence.APPROVE, JobStatus.BLOCKED),
    ],
)
def test_nothing_required_of_a_stranger_with_a_rehearsal(
    runs: tuple[Run, ...], none: Absence, status: JobStatus
) -> None:
    policy = rules()["policy"]
    policy = policy.model_copy(update={"gate": policy.gate.model_copy(update={"none": none})})
    state = rehearsed_state(*runs, policy=policy, plan=NOTHING, wanted=(), trust=FORK)
    assert decide_actions(state).gate.status is status


def test_level_0_is_spared_where_only_imports_differ_and_every_cell_is_equal() -> None:
    imports = Reason(Level.SMOKE, "src/a.py", "it runs at import", at_import=True)
    plan = replace(PLAN, levels=(Level.SMOKE,), reasons=(imports,))
    given = {"plan": plan, "wanted": WANTED[:1]}
    spared = decide_actions(rehearsed_state(EQUAL, **given))
    assert (keys_of(spared), spared.gate.status, spared.gate.title) == (([], []), JobStatus.NOT_REQUIRED, IMPORTS_SHOWN)
    live = decide_actions(rehearsed_state(EQUAL, job_run(SMOKE, RunState.RUNNING), **given))
    assert keys_of(live)[1] == [NOT_WANTED]
    # A stranger's head needs no approval then, unless the policy asks for one of every such head.
    assert decide_actions(rehearsed_state(EQUAL, trust=FORK, **given)).gate.is_open
    policy = rules()["policy"]
    policy = policy.model_copy(update={"gate": policy.gate.model_copy(update={"none": Absence.APPROVE})})
    assert not decide_actions(rehearsed_state(EQUAL, trust=FORK, policy=policy, **given)).gate.is_open
    called = replace(imports, at_import=False)
    for others, run in (((imports, called), EQUAL), ((imports,), CHANGED), ((imports,), BLOCKED)):
        changed = {**given, "plan": replace(plan, reasons=others)}
        assert keys_of(decide_actions(rehearsed_state(run, **changed)))[0] == ["0-lora-ddp"]


def test_equal_in_some_cells_is_no_proof_of_absence() -> None:
    some = rehearsal(outcome=CellOutcome.EQUAL, rehearsed=Rehearsed(outcome=CellOutcome.EQUAL))
    assert decide_actions(rehearsed_state(some, plan=NOTHING, wanted=(), trust=FORK)).gate.status is JobStatus.BLOCKED


def test_jobs_say_what_they_wait_for_and_why_they_are_held() -> None:
    waiting = decide_actions(rehearsed_state(LIVE)).standings
    assert [standing.reason for standing in waiting] == [AFTER_REHEARSAL, "it waits for 0-lora-ddp"]
    held = decide_actions(rehearsed_state(FAILED)).standings
    assert {standing.state for standing in held} == {JobStatus.HELD}
    assert held[0].hold is not None
    assert held[0].hold.in_short == REHEARSAL_FAILED
    assert SENTENCE in held[0].hold.sentence


def test_overriding_every_level_sets_a_fail_aside() -> None:
    state = rehearsed_state(FAILED, entries=(override(Level.SMOKE), override(Level.SAVE_RESUME)))
    found = rehearsal_standing(state)
    assert found is not None
    assert (found.failure, found.status, found.lets_start) == ("", JobStatus.FAILED, True)
    assert "mona overrode every level" in found.reason
    nothing = rehearsed_state(FAILED, entries=(override(Level.SMOKE),), plan=NOTHING, wanted=())
    assert decide_actions(nothing).gate.status is JobStatus.NOT_REQUIRED


def test_the_card_can_say_until_when_jobs_wait() -> None:
    found = rehearsal_standing(rehearsed_state(LIVE))
    assert found is not None
    assert found.starts_at == NOW + timedelta(minutes=30)
    late = rehearsal_standing(rehearsed_state(SLOW))
    assert late is not None
    assert (late.starts_at, late.status) == (None, JobStatus.RUNNING)
    assert "no answer after 30 minutes" in late.reason


def test_where_it_runs_does_not_change_what_it_is() -> None:
    assert JOB.model_copy(update={"runner": "large", "time_limit_s": 5}).digest() == JOB.digest()
    for changed in ({"base": OTHER}, {"cells": ("qwen3-*",)}, {"recipes": {"qwen3": {"layers": 2}}}):
        assert JOB.model_copy(update=changed).digest() != JOB.digest()


def test_an_order_is_read_as_what_it_is() -> None:
    assert JOB.id == REHEARSAL
    assert read_order(JOB.model_dump_json()) == JOB
    assert read_order(SMOKE.model_dump_json()) == SMOKE
    for text in ("[]", "{", '{"kind": 1}'):
        with pytest.raises(ValueError, match="validation error"):
            read_order(text)


def test_it_costs_no_gpu_so_who_may_plan_may_ask_for_it() -> None:
    assert VERBS["rehearse"].needs is Capability.PLAN


def test_it_counts_for_no_pool() -> None:
    short = entry_of(LIVE)
    assert (short.gpu_count, pool_of(short, (Pool("all", 9),))) == (0, None)
    # It frees what it holds when no back end would run it any more.
    assert short.holds_until == NOW + 2 * timedelta(minutes=50, seconds=LIVE.queue_deadline_s)


EARLY, LATER = NOW - timedelta(minutes=1), NOW + timedelta(minutes=1)
SAID = Rehearsed(outcome=CellOutcome.CHANGED, cells="packed")
FIRST, SECOND = rehearsal(rehearsed=SAID), rehearsal(rehearsed=SAID, attempt=2, updated=LATER)
SILENT = rehearsal(outcome=CellOutcome.EQUAL, attempt=2)
BEGUN = job_run(SMOKE, RunState.RUNNING)


@pytest.mark.parametrize(
    ("runs", "chosen"),
    [
        ((), None),
        ((FIRST,), FIRST),
        ((SECOND, FIRST), SECOND),
        ((FIRST, SILENT), FIRST),
        ((SILENT,), None),
        ((FIRST, BEGUN.model_copy(update={"created": LATER})), FIRST),
        ((FIRST, BEGUN.model_copy(update={"created": NOW})), FIRST),
        ((FIRST, BEGUN.model_copy(update={"created": EARLY})), None),
        ((FIRST, SECOND, BEGUN.model_copy(update={"created": NOW})), FIRST),
        ((FIRST, BEGUN.model_copy(update={"created": EARLY, "carried_from": OTHER})), FIRST),
        ((LIVE,), None),
        ((rehearsal(rehearsed=SAID).model_copy(update={"job_digest": OTHER_JOB.digest()}),), None),
    ],
)
def test_a_rehearsal_counts_for_the_plan_where_no_job_began_before_its_answer(
    runs: tuple[Run, ...], chosen: Run | None
) -> None:
    assert rehearsed_before_jobs(JOB, runs) == chosen
