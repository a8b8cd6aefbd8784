"""What check, card and gate say of a rehearsal."""

from dataclasses import replace

import pytest

from tests.core.pulls.entries import DRAFTED, HEAD, NOW, OTHER, SHUT, asked
from tests.core.pulls.test_rehearsal_standing import (
    BLOCKED,
    CHANGED,
    EQUAL,
    FAILED,
    LIVE,
    LOST,
    NOTHING,
    SENTENCE,
    SLOW,
    rehearsal,
    rehearsed_state,
)
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.forge import CheckRun, CheckStatus, Conclusion, OpenCheck
from verl_e2e.core.pulls.ledger import Rehearsed, Run, RunState
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.checks import checks_wanted
from verl_e2e.core.report.pull_card import render_pull_card

NAME = "verl-e2e / rehearsal"
SECTION = "### Rehearsal\n\n| cell | what |\n|---|---|\n| `a` | b |\n"
UNENTERED = Rehearsed(outcome=CellOutcome.EQUAL, unentered=3, section=SECTION)


def check(state: TargetState) -> CheckRun | None:
    return next((found for found in checks_wanted(state, decide_actions(state)) if found.name == NAME), None)


def card(state: TargetState) -> str:
    return render_pull_card(state, decide_actions(state))


@pytest.mark.parametrize(
    ("runs", "status", "conclusion", "title"),
    [
        ((), CheckStatus.QUEUED, "", "Rehearsal on a CPU waiting: jobs start after it"),
        ((rehearsal(RunState.SUBMITTED),), CheckStatus.QUEUED, "", "Rehearsal on a CPU running: jobs start after it"),
        ((LIVE,), CheckStatus.IN_PROGRESS, "", "Rehearsal on a CPU running: jobs start after it"),
        ((SLOW,), CheckStatus.IN_PROGRESS, "", "no answer after 30 minutes; jobs start without it"),
        ((EQUAL,), CheckStatus.COMPLETED, Conclusion.SUCCESS, SENTENCE),
        ((CHANGED,), CheckStatus.COMPLETED, Conclusion.SUCCESS, "levels 0, 1 of the plan look at what moved"),
        ((FAILED,), CheckStatus.COMPLETED, Conclusion.FAILURE, SENTENCE),
        ((BLOCKED,), CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED, "jobs start without it"),
        ((LOST,), CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED, "no runner took it; jobs start without it"),
    ],
)
def test_the_check(runs: tuple[Run, ...], status: CheckStatus, conclusion: str, title: str) -> None:
    found = check(rehearsed_state(*runs))
    assert found is not None
    assert (found.status, found.conclusion) == (status, conclusion)
    assert title in found.title
    assert found.external_id == f"verl-e2e:7:{HEAD}:rehearsal"


def test_what_no_cell_entered_is_for_the_levels_of_the_plan() -> None:
    one = rehearsed_state(EQUAL.model_copy(update={"rehearsed": UNENTERED}))
    words = "levels 0, 1 of the plan look at changed lines of 3 functions that no cell entered"
    assert words in card(one)
    none = replace(one, plan=NOTHING, wanted=())
    assert "no level is required to look at changed lines of 3 functions" in card(none)
    assert "that no cell entered" not in card(rehearsed_state(EQUAL))


def test_the_section_is_folded_on_the_card_and_open_on_the_check() -> None:
    state = rehearsed_state(EQUAL.model_copy(update={"rehearsed": UNENTERED}))
    assert f"<details><summary>Rehearsal on a CPU</summary>\n\n{SECTION}" in card(state)
    found = check(state)
    assert found is not None
    assert SECTION in found.summary
    assert "<details><summary>Rehearsal on a CPU" not in card(rehearsed_state(LIVE))


def test_a_head_whose_rehearsal_is_held_has_no_check_unless_one_is_open() -> None:
    held = rehearsed_state(target=DRAFTED)
    assert check(held) is None
    opened = replace(held, opened=(OpenCheck(NAME, HEAD, f"verl-e2e:7:{HEAD}:rehearsal"),))
    found = check(opened)
    assert found is not None
    assert (found.status, found.conclusion) == (CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED)
    assert "drafts are not rehearsed" in found.title
    for given in ({"target": SHUT}, {"entries": (asked("cancel"),)}):
        assert check(rehearsed_state(**given)) is None


def test_a_rehearsal_that_the_policy_asks_for_no_longer_ends_its_check() -> None:
    found = check(rehearsed_state(EQUAL, rehearsal=None))
    assert found is not None
    assert "no longer requested" in found.summary


def test_one_of_an_earlier_head_is_superseded() -> None:
    old = rehearsal(RunState.CANCELLED, head_sha=OTHER, reason="a new head was pushed")
    state = rehearsed_state(old, opened=(OpenCheck(NAME, OTHER, f"verl-e2e:7:{OTHER}:rehearsal"),), now=NOW)
    ends = [item for item in checks_wanted(state, decide_actions(state)) if item.head_sha == OTHER]
    assert [(item.name, item.conclusion) for item in ends] == [(NAME, Conclusion.CANCELLED)]
