"""Simulated runs: the metrics that verl prints, with a reward of any shape."""

import random
from collections.abc import Sequence

from verl_e2e.core.model.facts import StepMetrics

SEEDS = range(5)


def noisy(seed: int, rise: float = 0.0, *, count: int = 20, start: float = 0.045, noise: float = 0.003) -> list[float]:
    """An evenly rising reward under independent noise."""
    source = random.Random(seed)
    return [start + rise * at / (count - 1) + source.gauss(0, noise) for at in range(count)]


def run_of(rewards: Sequence[float], *, seed: int = 7, **changed: float) -> tuple[StepMetrics, ...]:
    """A run that prints those rewards with healthy metrics; `changed` replaces a metric at every step."""
    return tuple(
        StepMetrics(at, 1400 + 10 * at, _values(at, reward, random.Random(1000 * seed + at), changed))
        for at, reward in enumerate(rewards, start=1)
    )


def _values(at: int, reward: float, source: random.Random, changed: dict[str, float]) -> dict[str, float]:
    values = {
        "training/global_step": float(at),
        "training/rollout_actor_probs_pearson_corr": 0.9998,
        "critic/score/mean": reward,
        "critic/rewards/mean": reward,
        "critic/values/mean": source.gauss(0, 0.1),
        "critic/vf_loss": abs(source.gauss(0.08, 0.02)),
        "critic/grad_norm": abs(source.gauss(4, 1)) + 0.1,
        "actor/pg_loss": source.gauss(0.02, 0.01),
        "actor/kl_loss": 0.05 * at + abs(source.gauss(0, 0.01)),
        "actor/entropy": source.gauss(7.3, 0.03),
        "actor/grad_norm": abs(source.gauss(1, 0.1)),
        "actor/lr": 0.005,
        "rollout_corr/training_log_ppl": source.gauss(7.4, 0.03),
        "response_length/mean": 40 + source.gauss(0, 2),
        "response_length/clip_ratio": 0.1,
    }
    return values | {name.replace("__", "/"): value for name, value in changed.items()}


def with_value(steps: Sequence[StepMetrics], at: int, **changed: float) -> tuple[StepMetrics, ...]:
    """The run with metrics of one step replaced; a double underscore in a name stands for its slash."""
    new = {name.replace("__", "/"): value for name, value in changed.items()}
    return tuple(
        StepMetrics(item.step, item.line, {**item.values, **new}) if item.step == at else item for item in steps
    )


def without(steps: Sequence[StepMetrics], *names: str) -> tuple[StepMetrics, ...]:
    """The run without some metrics."""
    return tuple(
        StepMetrics(item.step, item.line, {name: value for name, value in item.values.items() if name not in names})
        for item in steps
    )
