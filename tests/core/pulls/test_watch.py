"""Which commit of a watched branch is run next, and which one is named."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.pulls.entries import SMOKE, run
from tests.fakes.trees import sha
from verl_e2e.core.model.change import HistoryCommit
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.ledger import RunState, WatchedJob
from verl_e2e.core.pulls.watch import NextRun, SearchEnd, SearchResult, Seen, after_round, next_run, seen_in

GOOD, BAD, NOTHING = Seen.GOOD, Seen.BAD, Seen.NOTHING


def history(count: int) -> list[HistoryCommit]:
    """Commits 1 to `count` on a line that begins at commit 0."""
    names = [sha(f"commit {number}") for number in range(count + 1)]
    return [HistoryCommit(names[at], names[at - 1], "Mona", f"Change {at}") for at in range(1, count + 1)]


def name(number: int) -> str:
    return sha(f"commit {number}")


def searched(
    count: int, mattering: set[int], says: Callable[[int, int], Seen], *, confirm: bool = False
) -> tuple[SearchResult, list[int], list[int]]:
    """What a search comes to where `says` gives what the n-th run of a commit shows; the probes, the confirmations."""
    commits = history(count)
    number_of = {name(at): at for at in range(count + 1)}
    runs = {name(0): [GOOD], name(count): [BAD]}
    probes: list[int] = []
    confirmations: list[int] = []
    while True:
        step = next_run(name(0), commits, {name(at) for at in mattering}, runs, confirm=confirm)
        if isinstance(step, SearchResult):
            return step, probes, confirmations
        at = number_of[step.sha]
        (confirmations if step.confirms else probes).append(at)
        assert len(probes) + len(confirmations) <= 3 * count, "it does not end"
        runs.setdefault(step.sha, []).append(says(at, len(runs.get(step.sha, []))))


def broken_since(culprit: int) -> Callable[[int, int], Seen]:
    return lambda at, _: BAD if at >= culprit else GOOD


@given(st.data())
def test_the_commit_that_broke_a_job_is_named_within_one_and_log2_runs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 80))
    mattering = data.draw(st.sets(st.integers(1, count), min_size=1))
    culprit = data.draw(st.sampled_from(sorted(mattering)))
    found, probes, _ = searched(count, mattering, broken_since(culprit))
    assert (found.ending, [commit.sha for commit in found.commits]) == (SearchEnd.CULPRIT, [name(culprit)])
    assert len(probes) <= 1 + math.log2(len(mattering))
    assert set(probes) <= mattering, "a commit was run that cannot matter"
    assert (found.searched, found.mattering) == (count, len(mattering))


@given(st.data())
def test_a_confirmed_culprit_is_right_also_where_the_planner_was_not(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    mattering = data.draw(st.sets(st.integers(1, count)))
    culprit = data.draw(st.integers(1, count))
    found, _, confirmations = searched(count, mattering, broken_since(culprit), confirm=True)
    assert (found.ending, [commit.sha for commit in found.commits]) == (SearchEnd.CULPRIT, [name(culprit)])
    assert found.confirmed
    if culprit in mattering:
        assert len(confirmations) <= 2


def test_runs_that_say_nothing_leave_the_commits_that_they_cannot_tell_apart() -> None:
    says: dict[int, Seen] = {3: NOTHING, 4: NOTHING}
    found, probes, _ = searched(6, set(range(1, 7)), lambda at, _: says.get(at, BAD if at >= 4 else GOOD))
    assert found.ending is SearchEnd.UNSEPARATED
    assert [commit.sha for commit in found.commits] == [name(3), name(4), name(5)]
    assert (found.good, found.bad) == (name(2), name(5))
    assert set(probes) == {2, 3, 4, 5}


@given(st.data())
def test_no_one_is_blamed_by_runs_that_say_nothing(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    culprit = data.draw(st.integers(1, count))
    silent = data.draw(st.sets(st.integers(1, count)))
    says = broken_since(culprit)
    found, _, _ = searched(
        count, set(range(1, count + 1)), lambda at, turn: NOTHING if at in silent else says(at, turn)
    )
    blamed = [commit.sha for commit in found.commits]
    assert name(culprit) in blamed
    assert (found.ending is SearchEnd.CULPRIT) == (len(blamed) == 1)


@given(st.data())
def test_no_one_is_named_by_what_the_planner_left_out_and_no_run_showed(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    mattering = data.draw(st.sets(st.integers(1, count)))
    culprit = data.draw(st.integers(1, count))
    silent = data.draw(st.sets(st.integers(1, count), max_size=4))
    says = broken_since(culprit)
    found, _, _ = searched(count, mattering, lambda at, turn: NOTHING if at in silent else says(at, turn), confirm=True)
    assert name(culprit) in [commit.sha for commit in found.commits]
    assert (found.ending is SearchEnd.CULPRIT) == (len(found.commits) == 1)


def test_a_search_that_ends_before_it_is_confirmed_names_all_that_may_have_done_it() -> None:
    """The planner leaves commit 2 out, and nothing but its word speaks against it."""
    step = next_run(name(0), history(3), {name(1), name(3)}, {name(0): [GOOD], name(1): [GOOD]}, confirm=True)
    assert isinstance(step, NextRun)
    assert step.confirms
    assert [commit.sha for commit in step.so_far.commits] == [name(2), name(3)]
    assert step.so_far.ending is SearchEnd.UNSEPARATED


def test_a_job_that_comes_and_goes_blames_no_commit() -> None:
    found, _, confirmations = searched(
        8, set(range(1, 9)), lambda at, turn: BAD if (at == 4 and not turn) or at == 8 else GOOD, confirm=True
    )
    assert (found.ending, found.commits, found.bad) == (SearchEnd.FLAKY, (), name(4))
    assert confirmations == [4]


def test_the_good_commit_is_run_again_where_the_job_is_another_one() -> None:
    commits, everything = history(3), {name(at) for at in range(1, 4)}
    first = next_run(name(0), commits, everything, {name(3): [BAD]}, confirm=False)
    assert isinstance(first, NextRun)
    assert (first.sha, first.so_far.ending, first.so_far.commits) == (name(0), SearchEnd.UNSEPARATED, tuple(commits))
    found = next_run(name(0), commits, everything, {name(0): [BAD], name(3): [BAD]}, confirm=False)
    assert isinstance(found, SearchResult)
    assert (found.ending, found.commits) == (SearchEnd.OTHERWISE, ())
    unknown = next_run(name(0), commits[:1], everything, {name(0): [NOTHING], name(1): [BAD]}, confirm=False)
    assert isinstance(unknown, SearchResult)
    assert unknown.ending is SearchEnd.UNSEPARATED, "a commit was blamed and none is known to be good"


def test_only_the_last_break_is_looked_for() -> None:
    """The job was bad, was repaired, and broke again."""
    says = {1: BAD, 2: BAD, 3: GOOD, 4: GOOD, 5: BAD, 6: BAD}
    runs = {name(0): [GOOD], **{name(at): [seen] for at, seen in says.items()}}
    found = next_run(name(0), history(6), {name(at) for at in range(1, 7)}, runs, confirm=False)
    assert isinstance(found, SearchResult)
    assert [commit.sha for commit in found.commits] == [name(5)]


FINISHED = {"state": RunState.FINISHED}


@pytest.mark.parametrize(
    ("values", "other_code", "seen"),
    [
        ({"state": RunState.RUNNING}, False, NOTHING),
        ({"state": RunState.LOST}, False, NOTHING),
        ({"result": Result.PASS, **FINISHED}, False, GOOD),
        ({"result": Result.FAIL, **FINISHED}, False, BAD),
        ({"result": Result.FAIL, "fingerprint": "a" * 16, **FINISHED}, False, BAD),
        ({"result": Result.FAIL, "fingerprint": "b" * 16, **FINISHED}, False, NOTHING),
        ({"result": Result.BLOCKED, **FINISHED}, False, NOTHING),
        ({"result": Result.BLOCKED, "undecided": True, **FINISHED}, False, BAD),
        ({"result": Result.BLOCKED, "causes": ("log:verl-assert",), **FINISHED}, False, NOTHING),
        ({"result": Result.BLOCKED, "causes": ("log:verl-assert",), **FINISHED}, True, BAD),
        ({"result": Result.BLOCKED, "causes": ("engine:node_failed",), **FINISHED}, True, NOTHING),
    ],
)
def test_what_a_run_says_of_a_failure(values: dict[str, object], other_code: bool, seen: Seen) -> None:
    ended = run(SMOKE).model_copy(update={"result": None, **values})
    assert seen_in(ended, "a" * 16, any_repository=other_code) is seen


def test_a_round_moves_streaks_and_a_new_failure_begins_a_search() -> None:
    passed = run(SMOKE, state=RunState.FINISHED, result=Result.PASS)
    failed = passed.model_copy(update={"result": Result.FAIL, "fingerprint": "a"})
    start = WatchedJob(job_id=SMOKE.id)
    assert after_round(start, name(0), None) is start
    assert after_round(start, name(0), passed.model_copy(update={"result": Result.BLOCKED})) is start
    good = after_round(after_round(start, name(1), passed), name(2), passed)
    assert (good.good, good.bad, good.streak) == (name(2), "", 2)
    first = after_round(good, name(3), failed)
    again = after_round(first, name(4), failed)
    assert [(item.good, item.bad, item.fingerprint, item.streak) for item in (first, again)] == [
        (name(2), name(3), "a", -1),
        (name(2), name(3), "a", -2),
    ]
    other = after_round(again, name(5), failed.model_copy(update={"fingerprint": "b"}))
    assert (other.bad, other.fingerprint, other.streak) == (name(5), "b", -3)
    assert after_round(other, name(6), passed).bad == ""
