"""Which runs start and which end: a table of all that can be known of a target, and what holds whatever it is."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.pulls.entries import (
    BASE,
    CHANGED,
    DRAFTED,
    GROUP,
    HEAD,
    LATE,
    NOW,
    OTHER,
    PLAN,
    POLICY,
    PULL,
    RESUME,
    SHUT,
    SMOKE,
    WANTED,
    asked,
    override,
    run,
    target_state,
)
from verl_e2e.core.model.access import Absence, Start
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.plan import NotRequired
from verl_e2e.core.pulls.commands import NeedsApproval, Trusted
from verl_e2e.core.pulls.decide import (
    NOT_TRUSTED,
    NOT_WANTED,
    SUPERSEDED,
    Actions,
    decide_actions,
    terms_of,
    with_new_terms,
)
from verl_e2e.core.pulls.ledger import JobStatus, Priority, QueueTerms, Run, RunState
from verl_e2e.core.pulls.target_state import CLOSED, DRAFT, OtherPull, TargetState
from verl_e2e.core.pulls.wanted_jobs import WantedJob
from verl_e2e.core.reach.effects import LookedAt

NOTHING = replace(PLAN, levels=(), not_required=(NotRequired(Level.SMOKE, "no path is run"),))
FORK = NeedsApproval("it is a fork")
KNOWN = replace(FORK, has_role=True)
EXTRA = WantedJob(
    "2-x", Level.SMOKE, job=SMOKE.model_copy(update={"id": "2-x"}), required=False, asked_by="comment:100:1"
)
JOB_CHANGED = "its job is not known any more"
LIVE = run(SMOKE, RunState.RUNNING)
QUEUED = run(SMOKE, RunState.QUEUED, created=NOW - timedelta(days=2))
ENDING = run(SMOKE, RunState.CANCELLING, reason="why", may_start_again=True)
PAST = run(SMOKE, RunState.CANCELLED, may_start_again=True)
FAILED = run(SMOKE, result=Result.FAIL)
OF_OLD = run(SMOKE, RunState.RUNNING, head_sha=OTHER)


def gate_policy(**changes: object) -> dict[str, object]:
    return {"policy": POLICY.model_copy(update={"gate": POLICY.gate.model_copy(update=changes)})}


def keys_of(steps: Actions) -> tuple[list[str], list[str]]:
    """The jobs that start, and why runs end."""
    return [item.job_id for item in steps.dispatch], [item.reason for item in steps.cancel]


Row = tuple[str, tuple[Run, ...], dict[str, Any], list[str], list[str]]
TABLE: tuple[Row, ...] = (
    # What starts.
    ("nothing ran yet", (), {}, ["0-lora-ddp"], []),
    ("level 0 runs", (LIVE,), {}, [], []),
    ("level 0 passed", (run(SMOKE),), {}, ["1-resume"], []),
    ("level 0 passed elsewhere", (), {"elsewhere": (run(SMOKE),)}, ["1-resume"], []),
    ("level 0 runs elsewhere", (), {"elsewhere": (LIVE,)}, [], []),
    ("level 0 failed elsewhere", (), {"elsewhere": (FAILED,)}, ["0-lora-ddp"], []),
    ("level 0 failed", (FAILED,), {}, [], []),
    ("level 0 is overridden", (FAILED,), {"entries": (override(Level.SMOKE),)}, ["1-resume"], []),
    ("both passed", (run(SMOKE), run(RESUME)), {}, [], []),
    ("a job cannot be completed", (), {"wanted": (WantedJob("4-x", Level.FEATURE, missing="no model"),)}, [], []),
    ("an earlier head still runs", (OF_OLD,), {}, [], [SUPERSEDED]),
    ("an earlier head has ended", (run(SMOKE, head_sha=OTHER),), {}, ["0-lora-ddp"], []),
    ("we ended it for what has passed", (PAST,), {}, ["0-lora-ddp"], []),
    ("a person ended it", (run(SMOKE, RunState.CANCELLED),), {}, [], []),
    ("an extra in addition to the plan", (), {"wanted": (*WANTED, EXTRA)}, ["0-lora-ddp", "2-x"], []),
    ("an extra where the plan waits to be asked", (),
     {"wanted": (*WANTED, EXTRA), **gate_policy(start=Start.ASKED)}, ["2-x"], []),
    ("asked for", (), {"entries": (asked("run"),), **gate_policy(start=Start.ASKED)}, ["0-lora-ddp"], []),
    # What is wanted once more.
    ("a rerun", (FAILED,), {"entries": (asked("rerun", minute=1),)}, ["0-lora-ddp"], []),
    ("a rerun of what failed", (FAILED,), {"entries": (asked("rerun", "failed", minute=1),)}, ["0-lora-ddp"], []),
    ("a rerun of what is blocked", (FAILED,), {"entries": (asked("rerun", "blocked", minute=1),)}, [], []),
    ("blocked, and rerun as that", (run(SMOKE, RunState.LOST),), {"entries": (asked("rerun", "blocked", minute=1),)},
     ["0-lora-ddp"], []),
    ("a rerun by name", (FAILED,), {"entries": (asked("rerun", "0-lora-ddp", minute=1),)}, ["0-lora-ddp"], []),
    ("a rerun by another name", (FAILED,), {"entries": (asked("rerun", "1-resume", minute=1),)}, [], []),
    ("a rerun before it ended", (FAILED,), {"entries": (asked("rerun", minute=-1),)}, [], []),
    ("a rerun that was served", (run(SMOKE, result=Result.FAIL, asked_by="comment:101:1"),),
     {"entries": (asked("rerun", minute=1),)}, [], []),
    ("a run asked for again", (run(SMOKE, RunState.CANCELLED),), {"entries": (asked("run", minute=1),)},
     ["0-lora-ddp"], []),
    ("a run asked for of what failed", (FAILED,), {"entries": (asked("run", minute=1),)}, [], []),
    ("a plan asked for of what failed", (FAILED,), {"entries": (asked("plan", minute=1),)}, [], []),
    # What keeps everything from starting, and ends what runs.
    ("closed", (), {"target": SHUT}, [], []),
    ("closed while it runs", (LIVE,), {"target": SHUT}, [], [CLOSED]),
    ("a draft", (LIVE,), {"target": DRAFTED}, [], [DRAFT]),
    ("not trusted", (), {"trust": FORK}, [], []),
    ("not trusted any more", (LIVE,), {"trust": FORK}, [], [NOT_TRUSTED]),
    ("cancelled", (LIVE,), {"entries": (asked("cancel"),)}, [], ["cancelled by ann"]),
    ("cancelled, then asked for", (LIVE,), {"entries": (asked("cancel"), asked("run", minute=1))}, [], []),
    ("a broken contract", (), {"broken": ("gone",)}, [], []),
    ("no plan", (LIVE,), {"plan": None, "problem": "no policy"}, [], []),
    ("not asked for any more", (LIVE,), {"wanted": ()}, [], [NOT_WANTED]),
    ("a changed job", (LIVE,), {"wanted": (WantedJob("0-lora-ddp", Level.SMOKE, job=CHANGED),)}, [], [JOB_CHANGED]),
    ("no machine took it", (QUEUED,), {}, [], ["no machine took it within 360 minutes"]),
    ("it runs for long", (LIVE.model_copy(update={"created": QUEUED.created}),), {}, [], []),
    # An order to end may get lost.
    ("ending", (ENDING,), {}, [], []),
    ("ending for long", (ENDING.model_copy(update={"updated": NOW - timedelta(minutes=2)}),), {}, [], ["why"]),
    ("ending for long without a reason",
     (ENDING.model_copy(update={"updated": NOW - timedelta(minutes=2), "reason": ""}),), {}, [], ["it was cancelled"]),
    # A merge group.
    ("a merge group", (), {"target": GROUP}, ["0-lora-ddp"], []),
    ("a merge group is not asked for", (), {"target": GROUP, **gate_policy(start=Start.ASKED)}, ["0-lora-ddp"], []),
    ("a merge group given up", (LIVE,), {"target": replace(GROUP, destroyed=True)}, [],
     ["the merge queue gave this group up"]),
    ("a merge group that is too late", (), {"target": LATE}, [], []),
    ("a merge group that is too late runs", (LIVE,), {"target": LATE}, [],
     [f"no verdict within {POLICY.gate.merge_queue_deadline_s // 60} minutes of the merge queue's request"]),
    ("a merge group without a time", (), {"target": replace(GROUP, since=None)}, ["0-lora-ddp"], []),
)  # fmt: skip


@pytest.mark.parametrize(("name", "runs", "given", "starts", "ends"), TABLE, ids=[row[0] for row in TABLE])
def test_what_starts_and_what_ends(
    name: str, runs: tuple[Run, ...], given: dict[str, Any], starts: list[str], ends: list[str]
) -> None:
    assert keys_of(decide_actions(target_state(*runs, **given))) == (starts, ends), name


@pytest.mark.parametrize(
    ("runs", "given", "state", "title"),
    (
        ((), {"plan": None, "problem": "no policy"}, JobStatus.BLOCKED, "No policy"),
        ((), {"plan": None, "target": SHUT}, JobStatus.BLOCKED, CLOSED),
        ((), {"plan": None}, JobStatus.BLOCKED, "here is no plan"),
        ((), {"wanted": (), "plan": NOTHING}, JobStatus.NOT_REQUIRED, ""),
        ((), {"wanted": (), "plan": replace(NOTHING, looked_at=LookedAt(1, 2, 0))}, JobStatus.NOT_REQUIRED, ""),
        ((), {"wanted": (), "plan": NOTHING, "trust": FORK, **gate_policy(none=Absence.APPROVE)},
         JobStatus.BLOCKED, "it is a fork"),
        ((), {"wanted": (), "plan": NOTHING, **gate_policy(none=Absence.APPROVE)}, JobStatus.NOT_REQUIRED, ""),
        ((), {"wanted": (), "plan": NOTHING, "trust": KNOWN, **gate_policy(none=Absence.APPROVE)},
         JobStatus.BLOCKED, "it is a fork"),
        ((), {"wanted": (), "plan": NOTHING, "trust": FORK},
         JobStatus.BLOCKED, "it is a fork, and the head is not that of an author with a role in the repository"),
        ((), {"wanted": (), "plan": NOTHING, "trust": KNOWN}, JobStatus.NOT_REQUIRED, ""),
        ((run(SMOKE),), {"wanted": (replace(WANTED[0], required=False),), "plan": NOTHING, "trust": FORK},
         JobStatus.NOT_REQUIRED, ""),
        ((), {"wanted": (), "plan": NOTHING, "trust": FORK, **gate_policy(none=Absence.OPEN)},
         JobStatus.NOT_REQUIRED, ""),
        ((run(SMOKE),), {"wanted": (replace(WANTED[0], required=False),), "plan": NOTHING, "trust": FORK,
                         **gate_policy(none=Absence.APPROVE)}, JobStatus.NOT_REQUIRED, ""),
        ((run(SMOKE), run(RESUME)), {"other_pull": OtherPull(8, "1 of 2", underway=True)}, JobStatus.RUNNING, "#8"),
        ((run(SMOKE), run(RESUME)), {"other_pull": OtherPull(8, "it failed", underway=False)},
         JobStatus.BLOCKED, "ull request #8 has the same head"),
        ((), {"target": LATE}, JobStatus.BLOCKED, "o verdict within"),
        ((run(SMOKE), run(RESUME)), {"target": LATE}, JobStatus.PASSED, ""),
        ((), {"target": LATE, "entries": (override(Level.SMOKE), override(Level.SAVE_RESUME))}, JobStatus.PASSED, ""),
    ),
)  # fmt: skip
def test_what_the_gate_says(runs: tuple[Run, ...], given: dict[str, Any], state: JobStatus, title: str) -> None:
    found = decide_actions(target_state(*runs, **given)).gate
    assert (found.status, title in f"{found.title} {found}") == (state, True), found


def test_a_new_attempt_is_told_from_the_one_before() -> None:
    (again,) = decide_actions(target_state(FAILED, entries=(asked("rerun", minute=1),))).dispatch
    assert (again.attempt, again.asked_by, again.merge_base) == (2, "comment:101:1", BASE)
    assert again.key != FAILED.key
    (forked,) = decide_actions(target_state(target=replace(PULL, head_repository="eve/bridge"))).dispatch
    assert forked.from_fork


RUNS = st.builds(
    lambda job, state, result, head, attempt, kept: run(
        job, state, result, head_sha=head, attempt=attempt, may_start_again=kept
    ),
    st.sampled_from((SMOKE, RESUME, CHANGED)),
    st.sampled_from(RunState),
    st.sampled_from([*Result, None]),
    st.sampled_from([HEAD, OTHER]),
    st.integers(1, 3),
    st.booleans(),
)
ENTRIES = st.lists(
    st.builds(
        lambda verb, minute: asked(*verb, minute=minute),
        st.sampled_from([("run",), ("rerun",), ("rerun", "failed"), ("cancel",), ("plan",)]),
        st.integers(-3, 3),
    ),
    max_size=3,
)
SITUATIONS = st.builds(
    lambda runs, elsewhere, entries, target, trust, plan: target_state(
        *{other_run.key: other_run for other_run in runs}.values(),
        elsewhere=tuple({other_run.key: other_run for other_run in elsewhere}.values()),
        entries=tuple(entries),
        target=target,
        trust=trust,
        plan=plan,
    ),
    st.lists(RUNS, max_size=5),
    st.lists(RUNS.filter(lambda other_run: other_run.head_sha == HEAD), max_size=2),
    ENTRIES,
    st.sampled_from((PULL, DRAFTED, SHUT, GROUP, LATE)),
    st.sampled_from((Trusted("ann may"), FORK)),
    st.sampled_from((PLAN, None)),
)


@settings(deadline=None)
@given(SITUATIONS)
def test_no_job_of_a_head_lives_twice_and_nothing_runs_that_may_not(known: TargetState) -> None:
    steps = decide_actions(known)
    for new in steps.dispatch:
        same = [run for run in (*known.here, *known.elsewhere) if run.job_id == new.job_id]
        assert all(run.state.final for run in same)
        assert new.key not in {run.key for run in same}
        assert new.head_sha == HEAD
    assert len({item.job_id for item in steps.dispatch}) == len(steps.dispatch)
    if known.over or known.draft or isinstance(known.trust, NeedsApproval):
        assert steps.dispatch == ()
        assert {item.key for item in known.here if not item.state.final} <= {
            run.key for run in steps.runs if run.state is RunState.CANCELLING
        }


@settings(deadline=None)
@given(SITUATIONS)
@example(target_state(target=LATE))
@example(target_state(run(SMOKE), target=LATE))
def test_a_job_waits_only_while_something_runs(known: TargetState) -> None:
    steps = decide_actions(known)
    if any(standing.state is JobStatus.WAITING for standing in steps.standings):
        assert any(not run.state.final for run in (*steps.runs, *known.shared))


@settings(deadline=None)
@given(SITUATIONS)
def test_what_was_decided_is_not_decided_again(known: TargetState) -> None:
    steps = decide_actions(known)
    after = decide_actions(replace(known, runs=steps.runs))
    assert (after.dispatch, after.cancel) == ((), ())
    assert after.gate == steps.gate


def test_the_last_priority_counts_on_every_head() -> None:
    given = (asked("priority", "high", head=OTHER), override(Level.SMOKE), asked("run"))
    assert terms_of(WANTED[0], target_state(entries=given)).priority is Priority.HIGH
    later = (*given, asked("priority", "low", minute=1))
    assert terms_of(WANTED[0], target_state(entries=later)).priority is Priority.LOW


def test_a_push_keeps_the_time_that_a_run_waited_in_the_queue() -> None:
    created = NOW - timedelta(hours=2)
    waited = run(SMOKE, RunState.QUEUED, awaits_slot=True, head_sha=OTHER, created=created)
    assert terms_of(WANTED[0], target_state(waited)).since == created
    assert terms_of(WANTED[1], target_state(waited)).since is None
    longer = waited.model_copy(update={"terms": QueueTerms(since=NOW - timedelta(hours=3))})
    assert terms_of(WANTED[0], target_state(longer)).since == NOW - timedelta(hours=3)
    ran = run(SMOKE, RunState.CANCELLED, attempt=2, head_sha=OTHER, created=NOW - timedelta(hours=1))
    assert terms_of(WANTED[0], target_state(waited, ran)).since is None


def test_time_outside_of_the_queue_does_not_count_as_waiting() -> None:
    # It waited for an hour, and was a draft or closed for two days since.
    times: dict[str, Any] = {"created": NOW - timedelta(hours=49), "updated": NOW - timedelta(hours=48)}
    ended = run(SMOKE, RunState.CANCELLED, awaits_slot=True, head_sha=OTHER, **times)
    assert terms_of(WANTED[0], target_state(ended)).since == NOW - timedelta(hours=1)
    # What waits again keeps the time that it was given.
    terms = QueueTerms(since=NOW - timedelta(hours=1))
    waiting = run(SMOKE, RunState.QUEUED, awaits_slot=True, created=NOW, terms=terms)
    later = target_state(ended, waiting, now=NOW + timedelta(hours=5))
    assert [*with_new_terms(later)] == []


def test_waiting_runs_get_the_terms_of_now() -> None:
    waiting = run(SMOKE, RunState.QUEUED, awaits_slot=True, terms=QueueTerms())
    gone = waiting.model_copy(update={"job_id": "9-gone", "key": "9" * 64})
    running = run(SMOKE, RunState.RUNNING)
    high = asked("priority", "high")
    assert [*with_new_terms(target_state(waiting, gone, running))] == []
    (changed,) = with_new_terms(target_state(waiting, gone, running, entries=(high,)))
    assert (changed.key, changed.terms.priority, changed.updated) == (waiting.key, Priority.HIGH, NOW)
