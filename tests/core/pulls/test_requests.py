"""What people ask for, read off the entries of a head: each question has a table of entries."""

from datetime import timedelta

import pytest

from tests.core.pulls.entries import HEAD, NOW, OTHER, SMOKE, asked, override, run
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.commands import (
    LEVEL,
    MAX_REQUESTS,
    asked_again,
    asked_for,
    cancelled_by,
    in_order,
    level_requests,
    was_begun,
)
from verl_e2e.core.pulls.ledger import RecordedCommand, Run, RunState


def test_entries_count_in_the_order_in_which_they_were_written() -> None:
    first = asked("run", minute=9, source="comment:5:1", written=NOW)
    second = asked("cancel", minute=1, source="comment:6:1", written=NOW)
    label = asked("run", minute=2, source="label:level0:aaaa")
    odd = asked("run", minute=3, source="check:abc:rerun", written=NOW + timedelta(minutes=1))
    given = override(Level.SMOKE)
    assert in_order((label, odd, second, first, given)) == (given, first, second, odd, label)


def test_only_commands_on_this_head_count() -> None:
    here, there = asked("run"), asked("run", head=OTHER)
    assert asked_for((here, there, override(Level.SMOKE)), HEAD) == (here,)


@pytest.mark.parametrize(
    ("entries", "cancelled", "begun"),
    (
        ((), False, False),
        ((asked("cancel"),), True, False),
        ((asked("cancel"), asked("run", minute=1)), False, True),
        ((asked("cancel"), asked("rerun", minute=1)), False, True),
        ((asked("cancel"), asked(LEVEL, "1", minute=1)), False, False),
        ((asked("cancel"), asked("plan", minute=1)), True, False),
        ((asked("run"), asked("cancel", minute=1)), True, True),
        ((asked("cancel", head=OTHER), asked("run", head=OTHER)), False, False),
    ),
)
def test_whether_the_work_on_a_head_was_begun_or_ended(
    entries: tuple[RecordedCommand, ...], cancelled: bool, begun: bool
) -> None:
    assert (cancelled_by(entries, HEAD) is not None, was_begun(entries, HEAD)) == (cancelled, begun)


def test_the_same_levels_asked_for_twice_count_once() -> None:
    entries = (
        asked(LEVEL, "1", "2"),
        asked(LEVEL, "1", "2", minute=1),
        asked(LEVEL, "1", "2", minute=2, options={"steps": "3"}),
        asked("run", minute=3),
        asked(LEVEL, "1", head=OTHER),
    )
    found = level_requests(entries, HEAD)
    assert [(request.source, request.levels, dict(request.options)) for request in found] == [
        ("comment:100:1", (Level(1), Level(2)), {}),
        ("comment:102:1", (Level(1), Level(2)), {"steps": "3"}),
    ]


def test_so_many_different_requests_for_one_head_are_served() -> None:
    many = tuple(asked(LEVEL, "0", minute=count, options={"steps": str(count)}) for count in range(MAX_REQUESTS + 5))
    assert len(level_requests(many, HEAD)) == MAX_REQUESTS


FAILED = run(SMOKE, result=Result.FAIL)
BLOCKED = run(SMOKE, result=Result.BLOCKED)
LOST = run(SMOKE, RunState.LOST)
CANCELLED = run(SMOKE, RunState.CANCELLED, updated=NOW + timedelta(minutes=5))


@pytest.mark.parametrize(
    ("last", "entry", "again"),
    (
        (FAILED, asked("rerun"), True),
        (FAILED, asked("rerun", "failed"), True),
        (FAILED, asked("rerun", "blocked"), False),
        (FAILED, asked("rerun", SMOKE.id), True),
        (FAILED, asked("rerun", "1-resume"), False),
        (FAILED, asked("plan"), False),
        (BLOCKED, asked("rerun", "failed"), False),
        (BLOCKED, asked("rerun", "blocked"), True),
        (LOST, asked("rerun", "blocked"), True),
        # A pass stays, and what has not ended is not begun a second time.
        (run(SMOKE), asked("rerun"), False),
        (run(SMOKE, RunState.RUNNING), asked("rerun"), False),
        # `run` goes on only with what was cancelled, and counts from the start of that run.
        (FAILED, asked("run"), False),
        (CANCELLED, asked("run", minute=1), True),
        (CANCELLED, asked("run", minute=-1), False),
        (FAILED, asked("rerun", minute=-1), False),
        # An entry counts once for a job.
        (run(SMOKE, result=Result.FAIL, asked_by="comment:100:1"), asked("rerun"), False),
    ),
)
def test_which_entry_wants_an_ended_run_once_more(last: Run, entry: RecordedCommand, again: bool) -> None:
    assert asked_again(last, (last,), (entry,)) == (entry.source if again else "")
