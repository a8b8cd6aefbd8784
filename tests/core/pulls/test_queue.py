"""The queue: pools, who gets a slot and in which order, pauses, and which place is worth an edit."""

import random
import time
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.pulls.entries import NOW, RESUME, SMOKE, asked, override, run
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.commands import Pause, pauses_of
from verl_e2e.core.pulls.job_order import minutes_of
from verl_e2e.core.pulls.ledger import Priority, QueueTerms, RecordedCommand, RunState
from verl_e2e.core.pulls.queue import (
    LOOK_S,
    Held,
    Pool,
    QueueEntry,
    QueuePlace,
    QueueSnapshot,
    admit,
    entry_of,
    place_of,
    pool_of,
)

REPOSITORY = "octo/bridge"
ONE = (Pool("all", 1),)
TWO = (Pool("all", 2),)
EIGHT_GPUS = (Pool("all", 8, counts_gpus=True),)
BY_SIZE = (Pool("1", 1, frozenset({1})), Pool("8", 1, frozenset({8})))
FORKS = (Pool("all", 1), Pool("fork:all", 1, for_forks=True))
HIGH: dict[str, Any] = {"priority": Priority.HIGH}
LOW: dict[str, Any] = {"priority": Priority.LOW}
GROUP: dict[str, Any] = {"number": None}
PAUSED = asked("pause", "the disk is full", minute=1, actor="mona")
RESUMED, AGAIN = asked("resume", minute=2), asked("pause", "the network is down", minute=3)


def entry(name: int, *, minute: float = 0, **given: Any) -> QueueEntry:
    """A run that waits since `minute` minutes, of a pull request of its own; `given` are other fields."""
    fields: dict[str, Any] = {
        "key": f"{name:064x}",
        "repository": REPOSITORY,
        "number": name,
        "head_sha": f"{name:040x}",
        "waits": True,
        "since": NOW - timedelta(minutes=minute),
    }
    return QueueEntry.model_validate(fields | given)


def live(name: int, **given: Any) -> QueueEntry:
    """A run that has its slot."""
    begun: dict[str, Any] = {"waits": False, "holds_until": NOW + timedelta(days=1)}
    return entry(name, **(begun | given))


SMALL, LARGE, ALL = Pool("1,2", 4, frozenset({1, 2})), Pool("8", 1, frozenset({8})), Pool("all", 9, counts_gpus=True)
OF_FORKS = Pool("fork:1", 1, frozenset({1}), for_forks=True)


@pytest.mark.parametrize(
    ("gpu_count", "from_fork", "pools", "expected"),
    (
        (1, False, (), None),
        (2, False, (SMALL, LARGE), SMALL),
        (8, False, (SMALL, LARGE), LARGE),
        (4, False, (SMALL, LARGE), None),
        (4, True, (ALL,), ALL),
        (1, True, (ALL, OF_FORKS), OF_FORKS),
        (2, True, (ALL, OF_FORKS), None),
        (1, False, (OF_FORKS,), None),
        # A rehearsal.
        (0, False, (ALL,), None),
    ),
)
def test_the_pool_of_a_run(gpu_count: int, *, from_fork: bool, pools: tuple[Pool, ...], expected: Pool | None) -> None:
    assert pool_of(entry(1, gpu_count=gpu_count, from_fork=from_fork), pools) == expected


def test_a_pool_counts_runs_or_gpus() -> None:
    large = entry(1, gpu_count=8)
    assert (SMALL.takes(large), ALL.takes(large)) == (1, 8)


def test_a_run_in_short() -> None:
    terms = QueueTerms(priority=Priority.HIGH, since=NOW - timedelta(hours=1))
    waiting = run(SMOKE, RunState.QUEUED, awaits_slot=True, terms=terms)
    short = entry_of(waiting)
    assert (short.waits, short.holds_until, short.holds_slot(NOW)) == (True, None, False)
    assert (short.number, short.gpu_count, short.priority, short.since) == (7, SMOKE.gpu_count, "high", terms.since)
    assert not entry_of(waiting.let_start(NOW)).waits
    without_slot = run(SMOKE, RunState.QUEUED)
    assert (entry_of(without_slot).waits, entry_of(without_slot).since) == (False, without_slot.created)
    assert not entry_of(run(RESUME)).holds_slot(NOW - timedelta(days=9))


def test_a_run_that_no_one_looks_at_frees_its_slot_some_time() -> None:
    started = run(SMOKE, RunState.QUEUED, awaits_slot=True, job=SMOKE).let_start(NOW)
    assert entry_of(started).holds_until == NOW + timedelta(hours=1)
    submitted = started.model_copy(update={"state": RunState.SUBMITTED, "queue_deadline_s": 3_600})
    limit = timedelta(hours=1) + timedelta(minutes=minutes_of(SMOKE))
    assert entry_of(submitted).holds_until == NOW + 2 * limit
    assert entry_of(run(SMOKE, RunState.RUNNING, queue_deadline_s=3_600)).holds_until == NOW + timedelta(hours=2)
    assert [entry_of(submitted).holds_slot(NOW + turns * limit) for turns in (1, 2)] == [True, False]
    assert not entry_of(run(SMOKE)).holds_slot(NOW)


def test_a_waiting_run_that_ends_waits_no_more() -> None:
    ended = run(SMOKE, RunState.CANCELLED, awaits_slot=True)
    assert not ended.waits_for_slot
    assert not entry_of(ended).waits


@pytest.mark.parametrize(
    ("entries", "pools", "starts", "left"),
    (
        ((entry(1, minute=1), entry(2, minute=2)), (), [2, 1], []),
        ((entry(1, minute=1), entry(2, minute=2)), ONE, [2], [1]),
        ((entry(2), entry(1)), ONE, [1], [2]),
        ((live(1), entry(2), entry(3, minute=1)), TWO, [3], [2]),
        ((live(1), entry(2)), ONE, [], [2]),
        # A merge group first, then by priority, then who asked first.
        ((entry(1, minute=9), entry(2, **GROUP), entry(3, **HIGH)), TWO, [2, 3], [1]),
        ((entry(1, **GROUP), entry(2, minute=9, **GROUP), entry(3)), TWO, [2, 1], [3]),
        ((entry(1, minute=9, **LOW), entry(2), entry(3, **HIGH)), TWO, [3, 2], [1]),
        ((entry(1, **HIGH), entry(2, minute=9, **HIGH), entry(3, minute=99)), ONE, [2], [1, 3]),
        # Nothing overtakes one that does not fit.
        ((live(1), entry(2, gpu_count=8, minute=9), entry(3, gpu_count=4)), EIGHT_GPUS, [], [2, 3]),
        ((live(1), entry(2, gpu_count=7, minute=9), entry(3, gpu_count=4)), EIGHT_GPUS, [2], [3]),
        # A run that no one looks at any more frees its slot.
        ((live(1, holds_until=NOW), entry(2)), ONE, [2], []),
        ((live(1, holds_until=NOW + timedelta(hours=4)), entry(2)), ONE, [], [2]),
        # Every pool by itself.
        ((live(1), entry(2), entry(3, gpu_count=8), entry(4, gpu_count=2)), BY_SIZE, [3, 4], [2]),
        ((live(1), entry(2), entry(3, from_fork=True)), FORKS, [3], [2]),
        ((live(1), entry(2, from_fork=True)), ONE, [], [2]),
    ),
)  # fmt: skip
def test_who_starts_and_who_waits_in_which_order(
    entries: tuple[QueueEntry, ...], pools: tuple[Pool, ...], starts: list[int], left: list[int]
) -> None:
    decided = admit(QueueSnapshot(entries), pools, NOW)
    assert [int(key, 16) for key in decided.starts] == starts
    assert [int(item.key, 16) for line in decided.lines.values() for item in line] == left
    assert decided.held == {}
    # What one decision starts, the next one finds running.
    begun = {"waits": False, "holds_until": NOW + timedelta(days=1)}
    after = (item.model_copy(update=begun) if item.key in decided.starts else item for item in entries)
    assert admit(QueueSnapshot(tuple(after)), pools, NOW).starts == ()


@pytest.mark.parametrize(
    ("entries", "switches", "pools", "held"),
    (
        ((entry(1),), (PAUSED,), ONE, {1: pauses_of((PAUSED,))[REPOSITORY]}),
        ((entry(1),), (PAUSED, RESUMED), ONE, {}),
        ((entry(1),), (PAUSED.model_copy(update={"repository": "other/one"}),), ONE, {}),
        ((live(1),), (PAUSED,), ONE, {}),
        ((entry(1, gpu_count=16, minute=9), entry(2)), (), EIGHT_GPUS, {1: EIGHT_GPUS[0]}),
    ),
)  # fmt: skip
def test_what_is_held_keeps_no_one_else_from_starting(
    entries: tuple[QueueEntry, ...],
    switches: tuple[RecordedCommand, ...],
    pools: tuple[Pool, ...],
    held: dict[int, Held],
) -> None:
    decided = admit(QueueSnapshot(entries, switches), pools, NOW)
    assert {int(key, 16): hold for key, hold in decided.held.items()} == held
    waiting = {int(item.key, 16) for item in entries if item.waits}
    assert {int(key, 16) for key in decided.starts} == waiting - held.keys()


RUNS = st.lists(
    st.tuples(
        st.integers(0, 3_000), st.sampled_from(Priority), st.sampled_from((1, 2, 4, 8)), st.booleans(),
        st.integers(1, 30),
    ), max_size=40,
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(RUNS, st.sampled_from((ONE, TWO, EIGHT_GPUS, BY_SIZE)))
def test_every_run_starts_and_no_pool_is_ever_overfull(runs: list[tuple], pools: tuple) -> None:  # type: ignore[type-arg]
    waiting: dict[str, QueueEntry] = {}
    running: dict[str, tuple[QueueEntry, int]] = {}
    coming = [
        (minute, took, entry(name, minute=-minute, priority=priority, gpu_count=gpus, **(GROUP if group else {})))
        for name, (minute, priority, gpus, group, took) in enumerate(runs, 1)
    ]
    took = {item.key: minutes for _, minutes, item in coming}
    minute = 0
    while coming or waiting:
        now = NOW + timedelta(minutes=minute)
        running = {key: (item, end) for key, (item, end) in running.items() if end > minute}
        waiting |= {item.key: item for at, _, item in coming if at <= minute}
        coming = [item for item in coming if item[0] > minute]
        for key in admit(
            QueueSnapshot((*waiting.values(), *(item for item, _ in running.values()))), pools, now
        ).starts:
            begun = {"waits": False, "holds_until": NOW + timedelta(days=30)}
            running[key] = (waiting.pop(key).model_copy(update=begun), minute + took[key])
        for pool in pools:
            own = (item for item, _ in running.values() if not pool.sizes or item.gpu_count in pool.sizes)
            assert sum(map(pool.takes, own)) <= pool.limit
        ends = [end for _, end in running.values()]
        minute = min([*ends, *(at for at, _, _ in coming)], default=minute)
        assert ends or coming or not waiting


def test_five_hundred_pull_requests_are_decided_within_a_second_of_processor_time() -> None:
    draw = random.Random(7)
    waiting = [
        entry(name, number=name // 4, minute=draw.randrange(200), priority=draw.choice((*Priority,)))
        for name in range(1, 2_001)
    ]
    began = time.process_time()
    decided = admit(QueueSnapshot(tuple(waiting)), (Pool("all", 16),), NOW)
    assert time.process_time() - began < 1
    assert (len(decided.starts), len(decided.lines["all"])) == (16, 1_984)


def test_the_last_switch_of_a_repository_counts() -> None:
    assert pauses_of(()) == {}
    assert pauses_of((asked("resume"),)) == {}
    found = pauses_of((PAUSED,))[REPOSITORY]
    assert found == Pause("mona", NOW + timedelta(minutes=1), "the disk is full")
    assert found.in_short == "paused by mona since 2026-01-01 00:01 UTC"
    assert pauses_of((PAUSED, RESUMED)) == {}
    assert pauses_of((PAUSED, RESUMED, AGAIN))[REPOSITORY].reason == "the network is down"
    elsewhere = RESUMED.model_copy(update={"repository": "octo/other"})
    assert [*pauses_of((PAUSED, elsewhere))] == [REPOSITORY]


def test_switches_count_in_the_order_in_which_they_were_written() -> None:
    written = [
        item.model_copy(update={"written": item.at, "at": NOW + timedelta(hours=1)})
        for item in (PAUSED, RESUMED, AGAIN)
    ]
    for order in permutations(written):
        assert pauses_of(order)[REPOSITORY] == Pause("ann", AGAIN.at, "the network is down")
    # Other entries switch nothing.
    assert pauses_of((override(Level.SMOKE), asked("run"))) == {}  # type: ignore[arg-type]


def place(own: tuple[QueueEntry, ...], *others: QueueEntry) -> QueuePlace | None:
    decided = admit(QueueSnapshot((*own, *others)), BY_SIZE, NOW)
    return place_of({item.key for item in own if item.waits}, decided)


def test_the_place_is_that_of_the_first_waiting_run() -> None:
    own = entry(3, number=30, minute=5), entry(4, number=30, minute=4)
    assert place(own, live(1), entry(2, minute=9)) == QueuePlace(pool="1", position=2, waiting=3, targets=2)
    others = entry(5, number=30, repository="octo/other"), entry(6, **GROUP), entry(7, **GROUP)
    assert place(own, live(1), *others) == QueuePlace(pool="1", position=3, waiting=5, targets=4)


def test_what_starts_or_runs_or_is_held_has_no_place() -> None:
    assert place((entry(3),)) is None
    assert place((live(3),), entry(4)) is None
    assert place(()) is None


KNOWN = QueuePlace(pool="1", position=30, waiting=40, targets=40)


@pytest.mark.parametrize(
    ("shown", "changed", "news"),
    (
        (30, {}, False),
        (30, {"waiting": 90, "targets": 90}, False),
        (30, {"position": 28}, False),
        (30, {"position": 20}, True),
        (30, {"position": 5}, True),
        (30, {"pool": "8"}, True),
        (4, {"position": 3}, True),
        (4, {"position": 4}, False),
    ),
)
def test_what_is_worth_an_edit(shown: int, changed: dict[str, object], news: bool) -> None:
    before = KNOWN.model_copy(update={"position": shown})
    assert before.model_copy(update=changed).is_news_after(before) is news


def test_many_that_wait_are_shown_less_often() -> None:
    assert QueuePlace(pool="1", position=1, waiting=1, targets=3).again_s == LOOK_S
    assert QueuePlace(pool="1", position=1, waiting=1, targets=500).again_s == 5_000


def test_what_a_schedule_asks_for_waits_behind_all_that_people_wait_for() -> None:
    waiting = (
        entry(1, minute=90, number=None, scheduled=True),
        entry(2, minute=1, **LOW),
        entry(3, minute=1, **GROUP),
        entry(4, minute=5),
    )
    decision = admit(QueueSnapshot((live(9), *waiting)), ONE, NOW)
    assert [int(item.key, 16) for item in decision.lines["all"]] == [3, 4, 2, 1]
    of_branch = run(SMOKE, RunState.QUEUED, number=None, asked_by="schedule:main")
    assert (entry_of(of_branch).scheduled, entry_of(run(SMOKE, RunState.QUEUED)).scheduled) == (True, False)
