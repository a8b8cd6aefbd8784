"""Budgets: what counts for which one, and what a maintainer may let a pull request use beyond them."""

from datetime import timedelta

import pytest

from tests.core.pulls.entries import NOW
from tests.core.pulls.queue_cases import ended, entry, live
from verl_e2e.core.pulls.budgets import Spending
from verl_e2e.core.pulls.queue_entry import QueueEntry
from verl_e2e.core.pulls.queue_terms import Limits

DAY = 24 * 60


@pytest.mark.parametrize(
    ("limits", "past", "whose"),
    (
        (None, (), ""),
        (Limits(), (ended(9, 1, used=900),), ""),
        (Limits(pull_request=7), (), ""),
        (Limits(pull_request=6), (), "this pull request"),
        (Limits(pull_request=9), (ended(9, 1, used=3),), "this pull request"),
        (Limits(pull_request=9), (ended(9, 2, used=3),), ""),
        (Limits(person=9), (ended(9, 2, used=3, person="ANN"),), "ann"),
        (Limits(person=9), (ended(9, 2, used=3, person="ANN", repository="octo/other"),), ""),
        (Limits(repository=9), (ended(9, 2, used=3),), "octo/bridge"),
        (Limits(repository=9), (ended(9, 2, used=3, group=True),), "octo/bridge"),
        (Limits(repository=9), (ended(9, 2, used=3, minute=8 * DAY),), ""),
        # What runs counts by its time, and at least as it was planned; what waits does not.
        (Limits(pull_request=20), (live(9, 1, minute=14),), "this pull request"),
        (Limits(pull_request=20), (live(9, 1, minute=7, gpu_count=2),), "this pull request"),
        (Limits(pull_request=13), (live(9, 1),), "this pull request"),
        (Limits(pull_request=7), (entry(9, 1),), ""),
    ),
)
def test_what_exceeds_which_budget(limits: Limits | None, past: tuple[QueueEntry, ...], whose: str) -> None:
    over = Spending.of(past, NOW).overspent(entry(1, 1, person="ann", limits=limits))
    assert (over.whose if over else "") == whose


def test_an_old_run_that_still_holds_its_slot_counts() -> None:
    spending = Spending.of((live(9, 1, minute=8 * DAY),), NOW)
    assert spending.overspent(entry(1, 1, limits=Limits(pull_request=8 * DAY))) is not None


def test_a_maintainer_lets_a_pull_request_use_more_from_then_on() -> None:
    granted = Limits(pull_request=0, granted=20, granted_at=NOW - timedelta(minutes=30))
    before, since = ended(8, 1, used=500, minute=60), ended(9, 1, used=7, minute=10)
    waiting = entry(1, 1, limits=granted)
    assert Spending.of((before,), NOW).overspent(waiting) is None
    assert Spending.of((before, since), NOW).overspent(waiting) is None
    over = Spending.of((before, since, live(7, 1, minute=10)), NOW).overspent(waiting)
    assert over is not None
    text = "the budget of this pull request: 517 of 0 GPU minutes of the last seven days are used or held"
    assert over.sentence == f"{text}, and this job is expected to take 7"
