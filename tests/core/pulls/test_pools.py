"""The pool of a run: by its GPUs, and apart for forks where an operator sets slots for them."""

import pytest

from tests.core.pulls.queue_cases import entry
from verl_e2e.core.pulls.pools import Pool, pool_of

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
    run = entry(1, gpu_count=8)
    assert (SMALL.takes(run), ALL.takes(run)) == (1, 8)
