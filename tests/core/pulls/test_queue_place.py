"""The place of a target, and which change of it is worth an edit."""

from datetime import timedelta

import pytest

from tests.core.pulls.entries import NOW
from tests.core.pulls.queue_cases import ended, entry, live, snapshot
from verl_e2e.core.pulls.admission import admit
from verl_e2e.core.pulls.pools import Pool
from verl_e2e.core.pulls.queue_entry import QueueEntry
from verl_e2e.core.pulls.queue_estimate import Span
from verl_e2e.core.pulls.queue_place import LOOK_S, Own, Place, is_news, place_of

ONE = (Pool("1", 1, frozenset({1})), Pool("8", 1, frozenset({8})))
PAST = tuple(ended(name, used=10) for name in range(900, 903))


def place(own: tuple[QueueEntry, ...], *others: QueueEntry, later: tuple[str, ...] = ()) -> Place | None:
    known = snapshot(*own, *others)
    keys = frozenset(item.key for item in own if item.waits)
    every = Own(keys, frozenset(item.key for item in own), later)
    return place_of(every, known, admit(known, ONE, NOW), ONE, NOW)


def span(first: float, last: float | None = None) -> Span:
    return Span(p50=NOW + timedelta(minutes=first), p90=NOW + timedelta(minutes=first if last is None else last))


def test_the_place_of_the_first_waiting_run_with_an_estimate_of_start_and_answer() -> None:
    before, own = (live(1, minute=4), entry(2, minute=9)), (entry(3, 30, minute=5), entry(4, 30, minute=4))
    found = place(own, *before, *PAST)
    assert found == Place(pool="1", position=2, waiting=3, targets=2, start=span(16), answer=span(36))
    assert place(own, *before, *PAST, later=("0-lora-ddp",)) == found.model_copy(update={"answer": span(46)})


def test_what_starts_by_the_same_decision_and_what_runs_elsewhere_counts() -> None:
    own = (entry(3, minute=5), live(4, 3, gpu_count=2, minute=1))
    assert place(own, entry(2, minute=9), *PAST) == Place(
        pool="1", position=1, waiting=1, targets=1, start=span(10), answer=span(20)
    )


def test_without_past_runs_there_is_a_place_and_no_estimate() -> None:
    assert place((entry(3),), live(1)) == Place(pool="1", position=1, waiting=1, targets=1)
    only_extra = Own(frozenset({entry(3).key}), frozenset())
    known = snapshot(live(1), entry(3), *PAST)
    assert place_of(only_extra, known, admit(known, ONE, NOW), ONE, NOW) == Place(
        pool="1", position=1, waiting=1, targets=1, start=span(10)
    )


def test_what_starts_or_is_held_has_no_place() -> None:
    assert place((entry(3),)) is None
    assert place(()) is None


KNOWN = Place(pool="1", position=30, waiting=40, targets=40, start=span(100, 200), answer=span(120, 240))


@pytest.mark.parametrize(
    ("changed", "news"),
    (
        ({}, False),
        ({"waiting": 90, "targets": 90}, False),
        ({"position": 28}, False),
        ({"position": 20}, True),
        ({"position": 5}, True),
        ({"pool": "8"}, True),
        ({"start": span(110, 210)}, False),
        ({"start": span(130, 210)}, True),
        ({"start": span(100, 260)}, True),
        ({"start": None}, True),
        ({"answer": None}, True),
        ({"answer": span(0, 240)}, True),
    ),
)
def test_what_is_worth_an_edit(changed: dict[str, object], news: bool) -> None:
    assert is_news(KNOWN, KNOWN.model_copy(update=changed), NOW) is news


def test_near_the_front_each_step_counts_and_a_time_that_has_passed_is_no_longer_shown() -> None:
    near = KNOWN.model_copy(update={"position": 4})
    assert is_news(near, near.model_copy(update={"position": 3}), NOW)
    assert is_news(near, near, NOW + timedelta(minutes=201))
    bare = Place(pool="1", position=9, waiting=9, targets=9)
    assert not is_news(bare, bare, NOW)


def test_many_that_wait_are_shown_less_often() -> None:
    assert Place(pool="1", position=1, waiting=1, targets=3).again_s == LOOK_S
    assert Place(pool="1", position=1, waiting=1, targets=500).again_s == 5_000
