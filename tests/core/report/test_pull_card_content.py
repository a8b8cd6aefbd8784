"""What stands at the top of a pull request's card: by fields, never by the words of a sentence."""

from dataclasses import replace

import pytest

from tests.fakes.shown_pull import FAILED, shown_plan, shown_target_state
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.pull_card import render
from verl_e2e.core.report.pull_card_content import card_of


def shown(target_state: TargetState) -> str:
    return render(card_of(target_state, decide_actions(target_state)))


@pytest.mark.parametrize("words", ["GitHub counts 9 changed files and 7 are known.", "Whatever it is called tomorrow."])
def test_a_plan_that_may_not_be_what_the_change_needs_says_so_at_the_top(words: str) -> None:
    target_state = shown_target_state(*FAILED)
    assert words not in shown(target_state)
    plan = replace(shown_plan(), incomplete=(words,), notes=(words,))
    text = shown(replace(target_state, plan=plan))
    assert f"> {words}" in text
    assert text.index(words) < text.index("| job |")


def test_a_remark_that_says_how_reach_was_found_stays_folded() -> None:
    plan = replace(shown_plan(), notes=("Reach starts from here.", "every level is run"))
    assert "> every level is run" not in shown(replace(shown_target_state(*FAILED), plan=plan))


@pytest.mark.parametrize("words", ["no commit", "x" * 260])
def test_why_there_is_no_plan_is_told_once_and_whole(words: str) -> None:
    text = shown(replace(shown_target_state(*FAILED), plan=None, wanted=(), runs=(), problem=words))
    assert text.lower().count(words) == 1
