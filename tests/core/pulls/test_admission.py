"""Which waiting runs get a slot: a table of single decisions, and what holds over time whatever arrives."""

import random
import time
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.pulls.entries import NOW, asked
from tests.core.pulls.queue_cases import PAUSED, REPOSITORY, ended, entry, live, names, snapshot
from verl_e2e.core.pulls.admission import Admission, HoldCause, Snapshot, admit
from verl_e2e.core.pulls.ledger import RecordedCommand
from verl_e2e.core.pulls.pools import Pool
from verl_e2e.core.pulls.queue_entry import QueueEntry
from verl_e2e.core.pulls.queue_order import OVERDUE
from verl_e2e.core.pulls.queue_terms import Priority

ONE = (Pool("all", 1),)
TWO = (Pool("all", 2),)
EIGHT_GPUS = (Pool("all", 8, counts_gpus=True),)
BY_SIZE = (Pool("1", 1, frozenset({1})), Pool("8", 1, frozenset({8})))
FORKS = (Pool("all", 1), Pool("fork:all", 1, for_forks=True))
HIGH: dict[str, Any] = {"priority": Priority.HIGH}
LOW: dict[str, Any] = {"priority": Priority.LOW}
LONG = OVERDUE / timedelta(minutes=1) + 1
GROUP: dict[str, Any] = {"group": True}


@pytest.mark.parametrize(
    ("entries", "pools", "starts", "left"),
    (
        ((entry(1, minute=1), entry(2, minute=2)), (), [2, 1], []),
        ((entry(1, minute=1), entry(2, minute=2)), ONE, [2], [1]),
        ((live(1), entry(2), entry(3, minute=1)), TWO, [3], [2]),
        ((live(1), entry(2)), ONE, [], [2]),
        # A merge group first, then by priority.
        ((entry(1, minute=9), entry(2, 2, **GROUP), entry(3, **HIGH)), TWO, [2, 3], [1]),
        ((entry(1, minute=9, **LOW), entry(2), entry(3, **HIGH)), TWO, [3, 2], [1]),
        # Who used less lately goes first, among people and among the pull requests of one.
        ((ended(1, person="ann"), entry(2, person="ann", minute=9), entry(3)), ONE, [3], [2]),
        ((ended(1, person="ann", minute=2_000), entry(2, person="ann", minute=9), entry(3)), ONE, [2], [3]),
        ((live(1, person="ann"), entry(2, person="Ann", minute=9), entry(3)), TWO, [3], [2]),
        ((entry(1, 1, person="ann", minute=9), entry(2, 2, person="ann", minute=8), entry(3)), TWO, [1, 3], [2]),
        ((ended(1, 8, person="a"), entry(2, 8, person="a", minute=9, head_sha="c" * 40), entry(3, person="a")),
         ONE, [3], [2]),
        # What is begun goes on before what is new of the same person, if it ends at least as soon.
        ((ended(1, 8, person="a"), entry(2, 8, person="a"), entry(3, person="a", minute=9)), ONE, [2], [3]),
        ((ended(1, 8, person="a"), entry(2, 8, person="a", planned_minutes=9), entry(3, person="a")), ONE, [3], [2]),
        # One that does not fit lets smaller ones pass, until it is overdue.
        ((live(1), entry(2, gpu_count=8, minute=9), entry(3, gpu_count=4)), EIGHT_GPUS, [3], [2]),
        ((live(1), entry(2, gpu_count=8, minute=LONG), entry(3, gpu_count=4)), EIGHT_GPUS, [], [2, 3]),
        ((live(1), entry(2, 2, gpu_count=8, **GROUP), entry(3, gpu_count=4)), EIGHT_GPUS, [], [2, 3]),
        # Overdue runs and merge groups take turns.
        ((entry(1, minute=LONG), entry(2, 2, **GROUP), entry(3, **HIGH)), ONE, [2], [1, 3]),
        ((ended(9, 9, **GROUP), entry(1, minute=LONG), entry(2, 2, **GROUP)), ONE, [1], [2]),
        ((ended(9, 9, minute=9, **GROUP), ended(8), entry(1, minute=LONG), entry(2, 2, **GROUP)), ONE, [2], [1]),
        ((entry(1, since=NOW - OVERDUE), entry(2, **HIGH)), ONE, [1], [2]),
        # A run that no one looks at any more frees its slot.
        ((live(1, holds_until=NOW), entry(2)), ONE, [2], []),
        ((live(1, holds_until=NOW + OVERDUE), entry(2)), ONE, [], [2]),
        # Every pool by itself.
        ((live(1), entry(2), entry(3, gpu_count=8), entry(4, gpu_count=2)), BY_SIZE, [3, 4], [2]),
        ((live(1), entry(2), entry(3, from_fork=True)), FORKS, [3], [2]),
        ((live(1), entry(2, from_fork=True)), ONE, [], [2]),
    ),
)  # fmt: skip
def test_who_starts_and_who_waits_in_which_order(
    entries: tuple[QueueEntry, ...], pools: tuple[Pool, ...], starts: list[int], left: list[int]
) -> None:
    decided = admit(snapshot(*entries), pools, NOW)
    assert names(decided.starts) == starts
    assert [int(item.key, 16) for line in decided.lines.values() for item in line] == left
    assert decided.held == {}
    assert admit(snapshot(*entries), pools, NOW, only_starts=True).starts == decided.starts
    # What one decision starts, the next one finds running.
    assert admit(after(snapshot(*entries), decided), pools, NOW).starts == ()


def after(before: Snapshot, decided: Admission) -> Snapshot:
    started = {"waits": False, "admitted": NOW}
    entries = (item.model_copy(update=started) if item.key in decided.starts else item for item in before.entries)
    return Snapshot(tuple(entries), before.switches)


@pytest.mark.parametrize(
    ("entries", "switches", "pools", "held"),
    (
        ((entry(1),), (PAUSED,), ONE, {1: HoldCause.PAUSED}),
        ((entry(1),), (PAUSED, asked("resume")), ONE, {}),
        ((entry(1),), (PAUSED.model_copy(update={"repository": "other/one"}),), ONE, {}),
        ((live(1),), (PAUSED,), ONE, {}),
        ((entry(1, gpu_count=16),), (), EIGHT_GPUS, {1: HoldCause.TOO_LARGE}),
    ),
)  # fmt: skip
def test_what_is_held_and_why(
    entries: tuple[QueueEntry, ...],
    switches: tuple[RecordedCommand, ...],
    pools: tuple[Pool, ...],
    held: dict[int, HoldCause],
) -> None:
    decided = admit(snapshot(*entries, switches=switches), pools, NOW)
    assert {int(key, 16): hold.cause for key, hold in decided.held.items()} == held
    waiting = {int(item.key, 16) for item in entries if item.waits}
    assert {*names(decided.starts)} == waiting - held.keys()


RUNS = st.lists(
    st.tuples(
        st.integers(0, 3_000), st.sampled_from("abcd"), st.sampled_from(Priority), st.sampled_from((1, 2, 4, 8)),
        st.booleans(), st.integers(1, 30),
    ), max_size=40,
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(RUNS, st.sampled_from((ONE, TWO, EIGHT_GPUS, BY_SIZE)))
def test_every_run_starts_within_a_bound_and_no_pool_is_ever_overfull(runs: list[tuple], pools: tuple) -> None:  # type: ignore[type-arg]
    """Each run waits until it is overdue, and then at most for two runs of each that was there before it."""
    waiting: dict[str, QueueEntry] = {}
    running: dict[str, tuple[QueueEntry, int]] = {}
    coming = [
        (minute, took, entry(name, minute=-minute, person=person, priority=priority, gpu_count=gpus,
                             **(GROUP if group else {})))
        for name, (minute, person, priority, gpus, group, took) in enumerate(runs, 1)
    ]  # fmt: skip
    took = {item.key: minutes for _, minutes, item in coming}
    minute = 0
    while coming or waiting:
        now = NOW + timedelta(minutes=minute)
        running = {key: (item, end) for key, (item, end) in running.items() if end > minute}
        waiting |= {item.key: item for at, _, item in coming if at <= minute}
        coming = [item for item in coming if item[0] > minute]
        decided = admit(snapshot(*waiting.values(), *(item for item, _ in running.values())), pools, now)
        for key in decided.starts:
            item = waiting.pop(key).model_copy(update={"waits": False, "admitted": now})
            running[key] = (item, minute + took[key])
            assert now - item.created <= OVERDUE + timedelta(minutes=2 * 30 * (len(runs) + 1))
        assert all(sum(pool.takes(item) for item, _ in _in(pool, running)) <= pool.limit for pool in pools)
        ends = [end for _, end in running.values()]
        minute = min([*ends, *(at for at, _, _ in coming)], default=minute)
        assert ends or coming or not waiting


def _in(pool: Pool, running: dict) -> list:  # type: ignore[type-arg]
    return [(item, end) for item, end in running.values() if not pool.sizes or item.gpu_count in pool.sizes]


def test_one_low_run_starts_though_merge_groups_and_high_runs_never_end_to_come() -> None:
    """With one slot, of 30 minutes each, and a merge group and two runs of high priority arriving for each start."""
    low = entry(1, person="low", **LOW)
    waiting, minute, name = {low.key: low}, 0, 1
    last: tuple[QueueEntry, ...] = ()
    while low.key in waiting:
        now = NOW + timedelta(minutes=minute)
        for fields in (GROUP, HIGH, HIGH):
            name += 1
            made = entry(name, minute=-minute, person=f"p{name}", **fields)
            waiting[made.key] = made
        (key,) = admit(snapshot(*waiting.values(), *last), ONE, now).starts
        begun = waiting.pop(key)
        last = (begun.model_copy(update={"waits": False, "final": True, "admitted": now, "updated": now}),)
        minute += 30
    assert timedelta(minutes=minute) <= OVERDUE + timedelta(minutes=90)


def test_fair_share_evens_out_what_people_use() -> None:
    """One person with fifty pull requests and one with five: the second waits behind five of the first, not fifty."""
    many = [entry(name, person="many", minute=100 - name) for name in range(1, 51)]
    few = [entry(name, person="few") for name in range(51, 56)]
    (line,) = admit(snapshot(live(99, minute=1), *many, *few), ONE, NOW).lines.values()
    places = [place for place, item in enumerate(line) if item.terms.person == "few"]
    assert places == [1, 3, 5, 7, 9]


def test_five_hundred_pull_requests_are_decided_within_a_second_of_processor_time() -> None:
    draw = random.Random(7)
    people, levels = [f"p{number}" for number in range(60)], (*Priority,)
    waiting = [
        entry(name, name // 4, person=draw.choice(people), minute=draw.randrange(200), priority=draw.choice(levels))
        for name in range(1, 2_001)
    ]
    past = [ended(name, person=draw.choice(people), minute=draw.randrange(9_000)) for name in range(2_001, 6_001)]
    before = snapshot(*waiting, *past)
    began = time.process_time()
    decided = admit(before, (Pool("all", 16),), NOW)
    assert time.process_time() - began < 1
    assert (len(decided.starts), len(decided.lines["all"])) == (16, 1_984)
    assert REPOSITORY in {item.repository for item in decided.lines["all"]}
