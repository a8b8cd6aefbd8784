"""Which causes come and go, by the runs of a ledger."""

from datetime import timedelta
from typing import Any

import pytest

from tests.core.pulls.entries import BASE, NOW, OTHER, RESUME, SMOKE, run
from verl_e2e.core.model.outcome import Recurrence, Result, Stage
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.retry import FlakyCause, RetryClass, flaky_causes

MARK = "0123456789abcdef"
KEYS = iter(range(1000))


def ended(*causes: str, result: Result = Result.FAIL, fingerprint: str = MARK, **given: Any) -> Run:
    key = f"{next(KEYS):064x}"
    return run(SMOKE, result=result, causes=causes, fingerprint=fingerprint, key=key, **given)


def passed(**given: Any) -> Run:
    return run(SMOKE, attempt=2, key=f"{next(KEYS):064x}", **given)


HANG = "log:collective-timeout"


@pytest.mark.parametrize(
    ("runs", "counts"),
    [
        ((), None),
        ((ended(HANG),), None),
        # Another attempt of the same job on the same head passed.
        ((ended(HANG), passed()), (1, 1, 1, 0)),
        ((passed(), ended(HANG)), (1, 1, 1, 0)),
        ((ended(HANG), passed(head_sha=OTHER)), None),
        ((ended(HANG), passed(carried_from=OTHER)), None),
        # The same code on another head, as after a rebase.
        ((ended(HANG, reuse_key="1" * 64), passed(head_sha=OTHER, reuse_key="1" * 64)), (1, 1, 1, 0)),
        ((ended(HANG, reuse_key="1" * 64), passed(head_sha=OTHER, reuse_key="2" * 64)), None),
        ((ended(HANG), run(RESUME)), None),
        ((ended(HANG, recurrence=Recurrence.NOT_REPRODUCED),), (1, 1, 1, 0)),
        # Several pull requests have the same failure, or the merge base has it.
        ((ended(HANG), ended(HANG, number=8, head_sha=OTHER)), (2, 0, 2, 0)),
        ((ended(HANG), ended(HANG, head_sha=OTHER)), None),
        ((ended(HANG), ended(HANG, number=8, fingerprint="f" * 16)), None),
        ((ended(HANG, recurrence=Recurrence.PRE_EXISTING, merge_base=BASE),), (1, 0, 1, 1)),
        # Missing evidence is not one failure, whatever the number of pull requests.
        ((ended("verdict:evidence", fingerprint=""), ended("verdict:evidence", fingerprint="", number=8)), None),
        ((ended("engine:node_failed", fingerprint=""), ended("engine:node_failed", fingerprint="", number=8)),
         (2, 0, 2, 0)),
        ((ended("log:network", fingerprint=""), ended("log:network", fingerprint="", number=8)), (2, 0, 2, 0)),
        ((ended("log:disk-full", fingerprint=""), ended("log:disk-full", fingerprint="", number=None)), None),
        ((run(SMOKE, RunState.RUNNING, causes=(HANG,)), passed()), None),
    ],
)  # fmt: skip
def test_what_is_listed_and_how_often_it_was_seen(
    runs: tuple[Run, ...], counts: tuple[int, int, int, int] | None
) -> None:
    found = flaky_causes(runs)
    assert [(item.runs, item.disagreed, item.pulls, item.merge_bases) for item in found] == ([counts] if counts else [])


def test_a_row_says_where_and_when_and_the_worst_comes_first() -> None:
    later = NOW + timedelta(days=1)
    runs = (
        ended("engine:node_failed", fingerprint="", number=8, head_sha=OTHER),
        ended("engine:node_failed", fingerprint="", number=9, head_sha=OTHER, updated=later),
        ended(HANG, stage=Stage.TRAIN_STEP),
        passed(),
    )
    first, second = flaky_causes(runs)
    assert first == FlakyCause(HANG, MARK, RetryClass.CHANGE, (SMOKE.id,), (Stage.TRAIN_STEP,), 1, 1, 1, 0, NOW)
    assert (second.found, second.last, second.stages) == (RetryClass.PASSING, later, ())
