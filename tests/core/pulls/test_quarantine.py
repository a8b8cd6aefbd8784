"""Which runs the policy sets aside: every cause of theirs, and a Fail only by its fingerprint."""

from datetime import date
from typing import Any

import pytest

from tests.core.pulls.entries import SMOKE, run
from verl_e2e.core.model.known_defects import QuarantinedCause
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.pulls.retry import set_aside_by

TODAY = date(2026, 1, 1)
MARK, OTHER = "0123456789abcdef", "f" * 16


def entry(cause_id: str, until: str = "2026-02-01", **given: Any) -> QuarantinedCause:
    fields = {"cause": cause_id, "until": until, "reason": "known", "link": "https://example.com/1"}
    return QuarantinedCause.model_validate(fields | given)


BLOCKED = run(SMOKE, result=Result.BLOCKED, causes=("log:network",), stage=Stage.RAY)
FAILED = run(SMOKE, result=Result.FAIL, causes=("log:train-step",), stage=Stage.TRAIN_STEP, fingerprint=MARK)
TWO = run(SMOKE, result=Result.BLOCKED, causes=("preflight:gpus", "preflight:disk"))


@pytest.mark.parametrize(
    ("ended", "entries", "aside"),
    [
        (BLOCKED, (entry("log:network"),), True),
        (BLOCKED, (entry("log:network", job=SMOKE.id, stage="ray"),), True),
        (BLOCKED, (), False),
        (BLOCKED, (entry("log:storage"),), False),
        (BLOCKED, (entry("log:network", job="1-resume"),), False),
        (BLOCKED, (entry("log:network", stage="train_step"),), False),
        (BLOCKED, (entry("log:network", "2025-12-31"),), False),
        (BLOCKED, (entry("log:network", "2027-01-01"),), False),
        (BLOCKED, (entry("log:network", fingerprint=MARK),), False),
        (run(SMOKE, result=Result.BLOCKED), (entry("log:network"),), False),
        # A kind of failure is never excused, one known failure may be.
        (FAILED, (entry("log:train-step"),), False),
        (FAILED, (entry("log:train-step", fingerprint=OTHER),), False),
        (FAILED, (entry("log:train-step", fingerprint=MARK),), True),
        # Every cause has to be known.
        (TWO, (entry("preflight:gpus"),), False),
        (TWO, (entry("preflight:gpus"), entry("preflight:disk")), True),
    ],
)
def test_what_is_set_aside(ended: Any, entries: tuple[QuarantinedCause, ...], aside: bool) -> None:
    assert (set_aside_by(ended, entries, TODAY) is not None) == aside


def test_of_several_entries_the_one_that_ends_first_is_named() -> None:
    first, last = entry("preflight:gpus", "2026-01-05"), entry("preflight:disk", "2026-01-09")
    assert set_aside_by(TWO, (last, first), TODAY) == first
