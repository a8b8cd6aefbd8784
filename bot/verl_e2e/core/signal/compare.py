"""Compare a candidate with its baselines: differences step by step, and the band that repeated baselines span.

Runs are paired by the number of the step. With equal seeds and data the pairing takes shared noise away; with
others it is still fair, only blunter. The difference must drift apart by the same rule that a trend must follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from verl_e2e.core.signal.curves import SHOWN, Curve, Quantity, Step, curve, train_steps
from verl_e2e.core.signal.statistics import Direction, Rule, Trend, direction, trend

# From two baselines on they span a band; fewer say nothing about how much equal runs differ.
BAND_FROM = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A run to compare with: a name for people and its training steps."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """Baselines step by step: their median, and the lowest and highest of them; equal where there is one only."""

    steps: tuple[int, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    runs: int


class Standing(StrEnum):
    """How the candidate compares with the baselines."""

    ABOVE = "above"
    BELOW = "below"
    LEVEL = "level with"
    UNKNOWN = "not comparable with"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity of the candidate compared with the baselines.

    `gap` is the trend of candidate less baseline, None where too few steps are shared; `inside` the share of the
    shared steps at which the candidate lies in the band, None without a band.
    """

    quantity: Quantity
    standing: Standing
    shared: int
    gap: Trend | None = None
    inside: float | None = None


def band(runs: Sequence[Run], quantity: Quantity) -> Band | None:
    """The baselines' values of a quantity at the steps that all of them have; None when there are none."""
    found = [item for item in (curve(train_steps(run.steps), quantity) for run in runs) if item is not None]
    curves = [item.finite().at() for item in found]
    shared = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
    if not shared:
        return None
    columns = [[item[step] for item in curves] for step in shared]
    return Band(
        steps=tuple(shared),
        middle=tuple(median(column) for column in columns),
        low=tuple(min(column) for column in columns),
        high=tuple(max(column) for column in columns),
        runs=len(curves),
    )


def compare(steps: Sequence[Step], baselines: Sequence[Run], *, rule: Rule, min_steps: int) -> tuple[Comparison, ...]:
    """Every shown quantity that both have; the chance allowed for order is shared out among them (Bonferroni)."""
    pairs = [
        (quantity, mine, theirs)
        for quantity in SHOWN
        if (mine := curve(steps, quantity)) is not None and (theirs := band(baselines, quantity)) is not None
    ]
    shared = rule.shared_by(len(pairs))
    return tuple(_compared(*pair, rule=shared, min_steps=min_steps) for pair in pairs)


_STANDING = {Direction.UP: Standing.ABOVE, Direction.DOWN: Standing.BELOW, Direction.NONE: Standing.LEVEL}


def _compared(quantity: Quantity, mine: Curve, theirs: Band, *, rule: Rule, min_steps: int) -> Comparison:
    at = mine.finite().at()
    # Candidate less the median of the baselines, at the steps that both have.
    apart = [at[step] - middle for step, middle in zip(theirs.steps, theirs.middle, strict=True) if step in at]
    shared = len(apart)
    inside = _inside(mine, theirs) if theirs.runs >= BAND_FROM else None
    if shared < min_steps:
        return Comparison(quantity, Standing.UNKNOWN, shared, None, inside)
    gap = trend(apart, autocorrelation=rule.autocorrelation)
    standing = _STANDING[direction(gap, rule)]
    if inside is not None and _within_spread(mine, theirs):
        standing = Standing.LEVEL
    return Comparison(quantity, standing, shared, gap, inside)


def _inside(mine: Curve, theirs: Band) -> float | None:
    at = mine.finite().at()
    limits = zip(theirs.steps, theirs.low, theirs.high, strict=True)
    within = [low <= at[step] <= high for step, low, high in limits if step in at]
    return sum(within) / len(within) if within else None


def _within_spread(mine: Curve, theirs: Band) -> bool:
    """Whether the last third lies no further outside the band than the band is wide: equal runs differ as much."""
    at = mine.finite().at()
    last = [row for row in zip(theirs.steps, theirs.low, theirs.high, strict=True) if row[0] in at]
    last = last[-max(1, len(last) // 3) :]
    value = median(at[step] for step, _, _ in last)
    low, high = median(row[1] for row in last), median(row[2] for row in last)
    return low - (high - low) <= value <= high + (high - low)
