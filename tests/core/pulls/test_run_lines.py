"""Runs as pages show them: what each comes to, what weeks and levels come to, and why one waits."""

from datetime import date

import pytest

from tests.core.pulls.entries import NOW, SMOKE, run
from tests.core.pulls.test_queue import PAUSED, entry, live
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.queue import Pool, QueueSnapshot
from verl_e2e.core.pulls.run_lines import (
    RunCount,
    counted_result,
    line_of,
    slots_in_use,
    tallies,
    waiting_reasons,
    week_of,
)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (run(SMOKE), Result.PASS),
        (run(SMOKE, result=Result.FAIL), Result.FAIL),
        (run(SMOKE, result=Result.BLOCKED), Result.BLOCKED),
        (run(SMOKE, RunState.LOST), Result.BLOCKED),
        (run(SMOKE, RunState.REFUSED), Result.BLOCKED),
        # What was cancelled, is not over or has the verdict of another run counts for nothing.
        (run(SMOKE, RunState.CANCELLED), None),
        (run(SMOKE, RunState.RUNNING), None),
        (run(SMOKE, carried_from="f" * 64), None),
    ],
)
def test_a_run_counts_once_it_is_over_with_a_verdict_of_its_own(ended: Run, expected: Result | None) -> None:
    assert counted_result(ended) is expected


def test_a_line_has_the_sentence_of_a_run_or_why_there_is_none() -> None:
    assert line_of(run(SMOKE, sentence="Level 0 passed", reason="it waits")).sentence == "Level 0 passed"
    assert line_of(run(SMOKE, RunState.QUEUED, reason="it waits")).sentence == "it waits"


def counted(day: int, level: Level, result: Result | None, runs: int) -> RunCount:
    return RunCount(date(2026, 11, day), level, "", (), result, runs, 2.0 * runs)


def test_runs_are_added_up_for_each_title_and_most_of_them_first() -> None:
    counts = (
        counted(23, Level.SMOKE, Result.PASS, 2),
        counted(29, Level.SMOKE, Result.FAIL, 1),
        counted(30, Level.SMOKE, None, 5),
        counted(30, Level.SAVE_RESUME, Result.PASS, 4),
    )
    levels = tallies(counts, lambda count: [str(count.level)] if count.level is not None else [])
    found = [(tally.title, tally.total, tally.pass_percent, tally.gpu_minutes) for tally in levels]
    assert found == [("1", 4, 100, 8.0), ("0", 3, 66, 16.0)]
    weeks = tallies(counts, lambda count: [week_of(count.day)])
    assert [(tally.title, tally.total) for tally in weeks] == [("2026-11-30", 4), ("2026-11-23", 3)]
    (nothing,) = tallies(counts[2:3], lambda _: ["all"])
    assert (nothing.total, nothing.pass_percent) == (0, 0)


def test_why_a_run_waits_and_what_is_taken_meanwhile() -> None:
    pools = (Pool("1", 1, frozenset({1})), Pool("8", 4, frozenset({8}), counts_gpus=True))
    entries = (live(1), entry(2, minute=9), entry(3, minute=5), entry(4, gpu_count=8), entry(5, gpu_count=2))
    snapshot = QueueSnapshot(entries)
    assert [(use.pool.name, use.taken) for use in slots_in_use(snapshot, pools, NOW)] == [("1", 1), ("8", 0)]
    assert dict(waiting_reasons(snapshot, pools, NOW)) == {
        f"{2:064x}": "1 of 2 for slots 1",
        f"{3:064x}": "2 of 2 for slots 1",
        f"{4:064x}": "slots 8 are fewer than it takes",
        f"{5:064x}": "it starts with the next look",
    }
    paused = QueueSnapshot((entry(6),), (PAUSED,))
    (why,) = waiting_reasons(paused, pools, NOW).values()
    assert why == "paused by mona since 2026-01-01 00:01 UTC"
