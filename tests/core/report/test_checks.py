"""The check runs to show: the gate, one for each job, and an end for every one that no one waits for any more."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.pulls.entries import GROUP, HEAD, OTHER, RESUME, SHUT, SMOKE, WANTED, run, target_state
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.commands import NeedsApproval
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.forge import CheckId, CheckRun, CheckStatus, Conclusion, OpenCheck
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.wanted_jobs import WantedJob
from verl_e2e.core.report.checks import checks_wanted

GATE, FIRST, SECOND = "verl-e2e", "verl-e2e / 0-lora-ddp", "verl-e2e / 1-resume"
FAILED = run(SMOKE, result=Result.FAIL)


def opened(name: str, job_id: str = "", head: str = HEAD) -> OpenCheck:
    return OpenCheck(name=name, head_sha=head, external_id=str(CheckId(7, head, job_id)))


def shown(*runs: Run, **given: Any) -> tuple[CheckRun, ...]:
    known = target_state(*runs, **given)
    return checks_wanted(known, decide_actions(known))


def state(check: CheckRun) -> str:
    return str(check.conclusion or check.status)


@pytest.mark.parametrize(
    ("name", "runs", "given", "expected"),
    (
        ("nothing ran yet", (), {}, {GATE: "in_progress", FIRST: "queued", SECOND: "queued"}),
        ("level 0 runs", (run(SMOKE, RunState.RUNNING),), {},
         {GATE: "in_progress", FIRST: "in_progress", SECOND: "queued"}),
        ("both passed", (run(SMOKE), run(RESUME)), {}, {GATE: "success", FIRST: "success", SECOND: "success"}),
        ("level 0 failed", (FAILED,), {}, {GATE: "failure", FIRST: "failure", SECOND: "action_required"}),
        ("held as a whole", (), {"trust": NeedsApproval("a fork")}, {GATE: "action_required"}),
        ("held, and shown as waiting before", (), {"trust": NeedsApproval("a fork"), "opened": (opened(FIRST),)},
         {GATE: "action_required", FIRST: "action_required"}),
        ("a job that is not asked for any more", (FAILED,), {"wanted": (replace(WANTED[1], requires=()),)},
         {GATE: "in_progress", SECOND: "queued", FIRST: "failure"}),
        ("a group that was given up", (), {"target": replace(GROUP, destroyed=True), "opened": (opened(GATE),)},
         {GATE: "cancelled"}),
    ),
)  # fmt: skip
def test_which_checks_are_shown(
    name: str, runs: tuple[Run, ...], given: dict[str, Any], expected: dict[str, str]
) -> None:
    assert {check.name: state(check) for check in shown(*runs, **given)} == expected, name


@pytest.mark.parametrize(
    ("runs", "given", "check", "expected", "title"),
    (
        ((), {}, opened("old"), "cancelled", "No longer requested"),
        ((), {}, opened(FIRST, "0-lora-ddp", OTHER), "cancelled", f"Superseded by {HEAD[:12]}"),
        ((), {"target": SHUT}, opened("old"), "cancelled", "The pull request is closed"),
        ((), {"plan": None, "wanted": ()}, opened("old"), "cancelled", "There is no plan"),
        ((FAILED,), {"plan": None, "wanted": ()}, opened("old", "0-lora-ddp"), "failure", "The run is finished"),
        ((run(SMOKE, RunState.LOST, sentence="it got lost"),), {"plan": None, "wanted": ()},
         opened("old", "0-lora-ddp"), "cancelled", "It got lost"),
        ((run(SMOKE, RunState.RUNNING),), {"plan": None, "wanted": ()}, opened("old", "0-lora-ddp"), "", ""),
        ((run(SMOKE, RunState.RUNNING, head_sha=OTHER),), {}, opened(FIRST, "0-lora-ddp", OTHER), "in_progress",
         "A new head was pushed"),
        ((), {}, OpenCheck(name="theirs", head_sha=HEAD, external_id="not ours"), "cancelled", "No longer requested"),
    ),
)  # fmt: skip
def test_how_a_check_ends_that_nobody_waits_for(
    runs: tuple[Run, ...], given: dict[str, Any], check: OpenCheck, expected: str, title: str
) -> None:
    found = {(text.name, text.head_sha): text for text in shown(*runs, opened=(check,), **given)}
    ended = found.get((check.name, check.head_sha))
    assert (state(ended) if ended else "") == expected
    assert title in (ended.title if ended else "")


def test_where_another_pull_request_shows_the_checks_of_the_head_none_is_shown() -> None:
    known = target_state()
    assert checks_wanted(known, replace(decide_actions(known), shows_checks=False)) == ()


def test_the_gate_offers_what_can_be_done_now() -> None:
    of_states = (shown(trust=NeedsApproval("a fork")), shown(FAILED), shown(run(SMOKE, RunState.RUNNING)))
    labels = [[action[0] for action in checks[0].actions] for checks in of_states]
    assert labels == [["Run level 2"], ["Rerun failed", "Run level 2"], ["Cancel", "Run level 2"]]
    every = tuple(WantedJob(f"{int(level)}-x", level) for level in Level)
    assert shown(wanted=every)[0].actions == ()
    assert {check.status for check in shown()} == {CheckStatus.IN_PROGRESS, CheckStatus.QUEUED}
    assert Conclusion.SUCCESS not in {check.conclusion for check in shown(FAILED)}
