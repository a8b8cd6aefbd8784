"""Which verdict counts for a job without a run: a table of origins, and who may speak for whom."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.core.builders import make_job
from tests.core.executions import DROPOUT, TRANSFORM, change
from tests.core.pulls.entries import GROUP, HEAD, NOW, OTHER, PULL, asked, run
from verl_e2e.core.model.jobs import ChosenTest, Job, Repository, WhyChosen
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.reached_files import NOT_KNOWN, ReachedFiles
from verl_e2e.core.pulls.forge import Target
from verl_e2e.core.pulls.job_order import portable
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.core.pulls.wanted_jobs import (
    WantedJob,
    is_same_change,
    may_take_over,
    origin_text,
    reuse_key,
    run_to_reuse,
    same_but_commit,
    taken_over,
)

KEY = "1" * 64
REACHED = ReachedFiles("f" * 64, "e" * 64)
PINNED = make_job().site.model_copy(update={"image": f"verlai/verl@sha256:{'0' * 64}"})


def job_at(commit: str = HEAD, **given: Any) -> Job:
    return make_job(bridge=Repository(path="$HOME/bridge", commit=commit), **{"site": PINNED, **given})


WANTED = WantedJob("0-lora-ddp", Level.SMOKE, job=job_at(), reuse_key=KEY)


def earlier(state: RunState = RunState.FINISHED, **given: Any) -> Run:
    """A run of another head whose key is that of the job."""
    job = given.pop("job", job_at(OTHER))
    fields = {"head_sha": OTHER, "job": job, "reuse_key": KEY, "executed_files": "packed"}
    return run(job, state, **{**fields, **given})


def origin(*runs: Run, target: Target = PULL, hours: int = 24, wanted: WantedJob = WANTED) -> Run | None:
    return run_to_reuse(wanted, target, runs, NOW + timedelta(hours=1), hours)


@pytest.mark.parametrize(
    ("given", "counts"),
    (
        ({}, True),
        ({"result": Result.FAIL}, False),
        ({"result": Result.BLOCKED}, False),
        ({"result": Result.BLOCKED, "never_entered": True}, True),
        ({"result": Result.BLOCKED, "never_entered": True, "job": job_at(OTHER, changed=change(TRANSFORM))}, False),
        ({"job": job_at(OTHER, changed=change(TRANSFORM))}, True),
        ({"state": RunState.CANCELLED}, False),
        ({"state": RunState.RUNNING}, False),
        ({"state": RunState.LOST}, False),
        ({"required": False}, False),
        ({"carried_from": OTHER}, False),
        ({"job": None}, False),
        ({"reuse_key": "2" * 64}, False),
        ({"updated": NOW - timedelta(hours=24)}, False),
        ({"updated": NOW - timedelta(hours=23)}, True),
    ),
)
def test_what_counts_as_an_origin(given: dict[str, Any], counts: bool) -> None:
    found = earlier().model_copy(update=given)
    assert (origin(found) is found) is counts


@pytest.mark.parametrize(
    ("given", "target", "counts"),
    (
        ({"from_fork": True, "executed_files": ""}, PULL, True),
        ({"number": 8}, PULL, True),
        ({"number": None}, PULL, True),
        ({"number": 8, "from_fork": True}, PULL, False),
        ({"number": 8, "executed_files": ""}, PULL, False),
        ({"number": 8, "job": job_at(OTHER, site=make_job().site)}, PULL, False),
        ({"number": 8, "from_fork": True}, replace(GROUP, pulls=(7, 8)), True),
        ({"number": 9, "from_fork": True}, replace(GROUP, pulls=(7, 8)), False),
        ({"number": None, "executed_files": ""}, GROUP, False),
    ),
)
def test_a_run_speaks_for_its_own_pull_request_and_for_others_where_nothing_is_left_open(
    given: dict[str, Any], target: Target, counts: bool
) -> None:
    assert (origin(earlier().model_copy(update=given), target=target) is not None) is counts


def test_the_newest_verdict_on_the_code_decides() -> None:
    passed = earlier()
    failed = earlier(result=Result.FAIL, attempt=2, updated=NOW + timedelta(minutes=1))
    again = earlier(attempt=3, updated=NOW + timedelta(minutes=2))
    blocked = earlier(result=Result.BLOCKED, attempt=4, updated=NOW + timedelta(minutes=3))
    assert origin(passed, failed) is None
    # Where attempts disagree, none of them is taken over.
    assert origin(failed, again, passed) is None
    assert origin(failed.model_copy(update={"updated": NOW - timedelta(days=3)}), again) is again
    assert origin(blocked, again) is again
    # A failed run need not have recorded anything, nor be of this pull request: it contradicts all the same.
    for doubt in ({"executed_files": ""}, {"job": job_at(OTHER, site=make_job().site)}):
        assert origin(passed, failed.model_copy(update={"number": 8, **doubt})) is None
    # What a stranger's head showed speaks for itself alone.
    assert origin(passed, failed.model_copy(update={"number": 8, "from_fork": True})) is passed


def test_a_job_takes_a_verdict_over_while_it_has_none_and_no_one_asked_for_a_run() -> None:
    own = run(job_at(), RunState.RUNNING)
    ended = run(job_at(), RunState.CANCELLED, may_start_again=True)
    by_person = run(job_at(), RunState.CANCELLED)
    assert may_take_over(WANTED, HEAD, (), ())
    assert may_take_over(WANTED, HEAD, (ended,), (asked("run"),))
    assert not may_take_over(WANTED, HEAD, (own,), ())
    assert not may_take_over(WANTED, HEAD, (by_person,), ())
    assert not may_take_over(WANTED, HEAD, (), (asked("rerun"),))
    assert may_take_over(WANTED, HEAD, (), (asked("rerun", head=OTHER),))
    for incomplete in ({"required": False}, {"job": None}, {"reuse_key": ""}):
        assert not may_take_over(replace(WANTED, **incomplete), HEAD, (), ())


@pytest.mark.parametrize(
    ("tested", "may"),
    (
        ((), False),
        (({},), True),
        (({"result": Result.BLOCKED, "never_entered": True},), True),
        # Its job may be overridden or tolerated, but its tests did not pass here.
        (({"result": Result.FAIL},), False),
        (({"result": Result.BLOCKED},), False),
        (({"result": None},), False),
        (({"required": False},), False),
        (({"head_sha": OTHER},), False),
        (({"job_id": "0-recompute"},), False),
        (({"job": job_at(bridge_tests=("tests/test_b.py",))},), False),
        (({"job": None},), False),
        (({}, {"attempt": 2, "result": Result.FAIL}), False),
        (({"result": Result.FAIL}, {"attempt": 2}), True),
    ),
)
def test_a_job_that_relies_on_the_tests_of_another_takes_nothing_over_until_these_passed(
    tested: tuple[dict[str, Any], ...], may: bool
) -> None:
    wanted = replace(WANTED, id="1-resume", level=Level.SAVE_RESUME, tested_by="0-lora-ddp")
    runs = tuple(run(job_at(), job=job_at()).model_copy(update=given) for given in tested)
    assert may_take_over(wanted, HEAD, runs, ()) is may


def test_what_is_taken_over_stands_for_this_head_and_costs_nothing() -> None:
    before = run(job_at(), RunState.CANCELLED, may_start_again=True)
    source = earlier(
        handle="h", nonce="n", retry_of="r", gpu_minutes=8.5, sentence="fine", asked_by="x", from_fork=True
    )
    made = taken_over(source, WANTED, PULL, (before,), NOW + timedelta(days=1))
    digest = portable(job_at()).digest()
    assert (made.key, made.attempt) == (run_key("octo/bridge", HEAD, digest, 2), 2)
    assert (made.head_sha, made.number, made.job, made.job_digest) == (HEAD, 7, WANTED.job, digest)
    assert made.retry_of == ""
    assert (made.handle, made.nonce, made.gpu_minutes, made.asked_by, made.from_fork) == ("", "", 0.0, "", False)
    assert (made.result, made.sentence, made.carried_from) == (Result.PASS, "fine", OTHER)
    assert origin_text(made) == f"reused from {OTHER[:12]} of #7, 2026-01-01"
    assert taken_over(source, WANTED, GROUP, (), NOW).number is None


def test_an_origin_of_a_merge_group_or_of_an_earlier_version_names_what_is_known() -> None:
    assert origin_text(earlier()) == ""
    assert origin_text(earlier(carried_from=OTHER)) == f"reused from {OTHER[:12]}"
    assert (
        origin_text(earlier(head_sha=HEAD, carried_from=OTHER, origin_at=NOW))
        == f"reused from {OTHER[:12]}, 2026-01-01"
    )


TESTED = ChosenTest(test="tests/test_a.py", why=WhyChosen.CHANGED, reason="it changed")


@pytest.mark.parametrize(
    ("changes", "same"),
    (
        ({}, True),
        ({"bridge": Repository(path="/elsewhere", commit=OTHER, in_place=True)}, True),
        ({"changed": change(DROPOUT)}, True),
        ({"chosen_tests": (TESTED,)}, False),
        ({"verl": Repository(path="v", commit=OTHER)}, False),
        ({"megatron_lm": Repository(path="m", commit=OTHER)}, False),
        ({"steps": 2}, False),
        ({"overrides": ("a=b",)}, False),
        ({"bridge_tests": ()}, False),
        ({"site": make_job().site}, False),
        ({"site": PINNED.model_copy(update={"kernel_caches": "/srv/kernels"})}, False),
    ),
)
def test_a_key_covers_the_job_but_for_what_says_why_it_was_planned(changes: dict[str, Any], same: bool) -> None:
    key = reuse_key(job_at(), REACHED, "v")
    assert (reuse_key(job_at().model_copy(update=changes), REACHED, "v") == key) is same


def test_why_a_test_was_chosen_is_no_part_of_a_key() -> None:
    tested, again = (
        job_at(chosen_tests=(TESTED.model_copy(update=given),))
        for given in ({}, {"why": WhyChosen.IMPORTS, "reason": "another"})
    )
    assert reuse_key(tested, REACHED, "v") == reuse_key(again, REACHED, "v")


def test_a_key_covers_files_and_program_and_is_empty_where_the_files_are_not_known() -> None:
    job, untested = job_at(), job_at(bridge_tests=())
    keys = {reuse_key(job, REACHED, "v"), reuse_key(job, REACHED, "w"), reuse_key(untested, REACHED, "v")}
    others = {reuse_key(job, replace(REACHED, with_tests="d" * 64), "v")}
    assert len(keys | others) == 4
    assert reuse_key(untested, replace(REACHED, with_tests=""), "v") == reuse_key(untested, REACHED, "v")
    assert reuse_key(job, replace(REACHED, with_tests=""), "v") == ""
    # Another job passes the same tests on the same head.
    later = {reuse_key(job, replace(REACHED, with_tests=text), "v", tested_by="0-a") for text in ("", "d" * 64)}
    assert len(later) == 1
    assert later.isdisjoint({"", *keys})
    assert reuse_key(untested, NOT_KNOWN, "v") == ""


def test_the_same_change_is_the_same_job_at_another_commit() -> None:
    changed = job_at(changed=change(TRANSFORM))
    assert same_but_commit(changed, job_at(OTHER, changed=change(TRANSFORM)))
    assert not same_but_commit(changed, job_at(changed=change(DROPOUT)))
    assert not is_same_change(earlier(), replace(WANTED, job=None))
