"""The toy reward, learnt on a CPU: what the learning signal says of real learning, of none, and of a NaN in it."""

import json
import math

import pytest

from tests.core.logs import FOLDER
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.signal.report import SignalOptions, SignalOutcome, signal_report

SERIES = json.loads((FOLDER.parent / "series" / "digit-share.json").read_text())["runs"]
LEARNING = [run for run in SERIES if run["learning_rate"] > 0]
FROZEN = [run for run in SERIES if run["learning_rate"] == 0]


def _name(run: dict[str, object]) -> str:
    return f"rate {run['learning_rate']}, seed {run['seed']}"


def _steps(run: dict[str, object], **changed: tuple[int, float]) -> tuple[StepMetrics, ...]:
    rows = run["steps"]
    assert isinstance(rows, list)
    found = []
    for at, values in enumerate(rows, start=1):
        new = {name.replace("__", "/"): value for name, (step, value) in changed.items() if step == at}
        found.append(StepMetrics(at, 10 * at, {**values, **new}))
    return tuple(found)


def _outcome(steps: tuple[StepMetrics, ...]) -> SignalOutcome:
    return signal_report(steps, options=SignalOptions()).outcome


@pytest.mark.parametrize("run", LEARNING, ids=_name)
def test_learning_passes_with_every_seed(run: dict[str, object]) -> None:
    assert _outcome(_steps(run)) is SignalOutcome.PASSED


@pytest.mark.parametrize("run", FROZEN, ids=_name)
def test_a_rate_of_zero_is_flat_by_the_reward_alone(run: dict[str, object]) -> None:
    assert _outcome(_steps(run)) is SignalOutcome.FLAT


@pytest.mark.parametrize("run", LEARNING, ids=_name)
@pytest.mark.parametrize("metric", ["actor__grad_norm", "critic__score__mean", "actor__entropy"])
def test_a_planted_nan_is_unstable(run: dict[str, object], metric: str) -> None:
    assert _outcome(_steps(run, **{metric: (12, math.nan)})) is SignalOutcome.UNSTABLE


def test_there_are_five_seeds_of_the_rate_and_two_frozen_ones() -> None:
    assert len([run for run in LEARNING if run["learning_rate"] == 0.003]) == 5
    assert len(FROZEN) == 2
