"""A push that changes nothing that a running job can reach: the run goes on and counts for the new head."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import make_job
from tests.core.executions import TRANSFORM, change
from tests.core.pulls.entries import DRAFTED, HEAD, OTHER, SHUT, asked, run, target_state
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.decide import SUPERSEDED, decide_actions
from verl_e2e.core.pulls.ledger import JobStatus, Run, RunState
from verl_e2e.core.pulls.wanted_jobs import WantedJob

KEY = "1" * 64
SMOKE, RESUME = make_job(), make_job(Level.SAVE_RESUME, "resume")
WANTED = (
    WantedJob("0-lora-ddp", Level.SMOKE, job=SMOKE, reuse_key=KEY),
    WantedJob("1-resume", Level.SAVE_RESUME, ("0-lora-ddp",), RESUME, reuse_key="2" * 64),
)


def of_old(state: RunState = RunState.RUNNING, **given: Any) -> Run:
    return run(SMOKE, state, **{"head_sha": OTHER, "job": SMOKE, "reuse_key": KEY, **given})


def test_it_goes_on_and_is_shown_as_a_run_of_the_new_head() -> None:
    due = decide_actions(target_state(of_old(), wanted=WANTED))
    assert (due.dispatch, due.cancel) == ((), ())
    assert [standing.state for standing in due.standings] == [JobStatus.RUNNING, JobStatus.WAITING]
    assert due.gate.status is JobStatus.RUNNING


@pytest.mark.parametrize(
    "given",
    (
        {"reuse_key": "3" * 64},
        {"reuse_key": ""},
        {"required": False},
        {"job": None},
        {"job": SMOKE.model_copy(update={"changed": change(TRANSFORM)})},
    ),
)
def test_it_ends_where_anything_differs(given: dict[str, Any]) -> None:
    due = decide_actions(target_state(of_old(**given), wanted=WANTED))
    assert [(ended.state, ended.reason) for ended in due.cancel] == [(RunState.CANCELLING, SUPERSEDED)]
    assert due.dispatch == ()


def test_it_ends_next_to_a_run_of_the_new_head_itself() -> None:
    own = run(SMOKE, RunState.RUNNING, job=SMOKE)
    due = decide_actions(target_state(own, of_old(), wanted=WANTED))
    assert [ended.head_sha for ended in due.cancel] == [OTHER]


@pytest.mark.parametrize(
    ("given", "reason"),
    (
        ({"target": DRAFTED}, "drafts are planned, not run"),
        ({"target": SHUT}, "the pull request is closed"),
        ({"entries": (asked("cancel"),)}, "cancelled by ann"),
    ),
)
def test_it_ends_for_every_other_reason(given: dict[str, Any], reason: str) -> None:
    due = decide_actions(target_state(of_old(), wanted=WANTED, **given))
    assert [ended.reason for ended in due.cancel] == [reason]


def test_one_that_is_ending_already_holds_the_new_head_up() -> None:
    due = decide_actions(target_state(of_old(RunState.CANCELLING, reason=SUPERSEDED), wanted=WANTED))
    assert (due.dispatch, next(standing.state for standing in due.standings)) == ((), JobStatus.WAITING)


def test_others_start_with_it() -> None:
    alone = replace(WANTED[1], requires=())
    due = decide_actions(target_state(of_old(), wanted=(WANTED[0], alone)))
    assert [started.job_id for started in due.dispatch] == ["1-resume"]
    assert (due.dispatch[0].head_sha, due.dispatch[0].reuse_key) == (HEAD, "2" * 64)


def test_a_reused_pass_runs_again_for_who_asks_and_no_other_pass_does() -> None:
    reused = run(SMOKE, job=SMOKE, carried_from=OTHER)
    for last, verb, started in (
        (reused, asked("rerun", minute=1), 1),
        (reused, asked("rerun", "0-lora-ddp", minute=1), 1),
        (reused, asked("rerun", "failed", minute=1), 0),
        (reused, asked("run", minute=1), 0),
        (run(SMOKE, job=SMOKE), asked("rerun", minute=1), 0),
    ):
        due = decide_actions(target_state(last, wanted=WANTED[:1], entries=(verb,)))
        assert [(made.attempt, made.asked_by) for made in due.dispatch] == [(2, verb.source)] * started
