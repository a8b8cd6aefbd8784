"""Differences of files are found again by both contents, and only where two versions could be compared."""

from tests.fakes.trees import FakeSummaries
from verl_e2e.app.plan_change import compared_files
from verl_e2e.core.reach.diff import FileDifference, compare

OLD, NEW, OTHER = b"x = 1\n", b"x = 2\n", b"x = 3\n"


def test_a_pair_is_answered_as_when_it_is_compared_whether_it_was_kept_or_not() -> None:
    store = FakeSummaries()
    pairs = ((OLD, NEW), (NEW, OLD), (None, NEW), (OLD, None))
    for _ in range(2):
        compared = compared_files(pairs, store)
        assert [compared(*pair) for pair in pairs] == [compare(*pair) for pair in pairs]
    assert len(store.values[FileDifference]) == len(pairs)


def test_a_pair_that_was_kept_is_not_compared_again() -> None:
    store = FakeSummaries()
    compared_files([(OLD, NEW)], store)
    (key,) = store.values[FileDifference]
    store.values[FileDifference][key] = compare(OLD, OTHER)
    compared = compared_files([(OLD, NEW), (OLD, OTHER)], store)
    assert compared(OLD, NEW) is store.values[FileDifference][key]
    assert len(store.values[FileDifference]) == 2


def test_what_could_not_be_compared_is_not_kept() -> None:
    store = FakeSummaries()
    compared = compared_files([(OLD, b"def")], store)
    assert compared(OLD, b"def").problem
    assert store.values[FileDifference] == {}
