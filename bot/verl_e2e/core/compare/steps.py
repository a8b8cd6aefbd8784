"""Two runs of the same training, compared step by step and metric by metric."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Protocol

from verl_e2e.core.compare.tolerances import (
    COMPARED,
    COUNTERS,
    DATA,
    DEFAULTS,
    SAME_SAMPLES_WITHIN,
    SAMPLED_LOG_PPL,
    Compared,
    Tolerance,
    Tolerances,
)


class Step(Protocol):
    """The metrics of one training step, of a log or of a related run."""

    @property
    def step(self) -> int:
        """The number of the step."""
        ...

    @property
    def values(self) -> Mapping[str, float]:
        """Metric name to value."""
        ...


class Agreement(StrEnum):
    """What a comparison says: within tolerance, beyond it, or shown without a judgement."""

    WITHIN = "within"
    BEYOND = "beyond"
    SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one step in both runs.

    `difference` is run less reference, `relative` the same as a share of the larger; `allowed` is the largest
    difference that the tolerance lets through, None when the metric is only shown.
    """

    step: int
    metric: str
    run: float
    reference: float
    tolerance: Tolerance | None
    allowed: float | None
    agreement: Agreement

    @property
    def difference(self) -> float:
        """Run less reference."""
        return self.run - self.reference

    @property
    def relative(self) -> float:
        """The difference as a share of the larger of both; 0 when both are 0."""
        larger = max(abs(self.run), abs(self.reference))
        return self.difference / larger if larger else 0.0

    @property
    def excess(self) -> float:
        """The difference in units of what is allowed, signed; beyond 1 it is too far."""
        if self.allowed is None:
            return 0.0
        if not math.isfinite(self.difference):
            return math.copysign(math.inf, self.difference) if math.isinf(self.difference) else math.inf
        if self.allowed == 0:
            return math.copysign(math.inf, self.difference) if self.difference else 0.0
        return self.difference / self.allowed


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric over all steps that both runs have.

    The judgement is on the median over the steps, so that one step of unlucky samples decides nothing: `excess` is
    the median of the rows' excesses, `ratio` the median of run over reference (NaN where no step has both above 0).
    """

    compared: Compared
    rows: tuple[Row, ...]
    excess: float
    ratio: float
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side.

    `steps` are those that both have; `same_samples` those of them whose samples are the same; `data_differs` names
    the first sign that the two did not train on the same prompts, empty when there is none, and `counters_differ`
    the first counter that differs. Both make a judgement of the metrics meaningless.
    """

    steps: tuple[int, ...]
    same_samples: tuple[int, ...]
    metrics: tuple[MetricComparison, ...]
    data_differs: str
    counters_differ: str
    source: str

    @property
    def comparable(self) -> bool:
        """Whether there is anything to judge."""
        judged = any(metric.agreement is not Agreement.SHOWN for metric in self.metrics)
        return bool(self.steps) and judged and not self.data_differs

    @property
    def beyond(self) -> tuple[MetricComparison, ...]:
        """The metrics beyond tolerance, the farthest first."""
        found = [metric for metric in self.metrics if metric.agreement is Agreement.BEYOND]
        return tuple(sorted(found, key=lambda metric: -abs(metric.excess)))


@dataclass(frozen=True, slots=True)
class Report:
    """A comparison with what it compares."""

    # Names both runs.
    title: str
    comparison: Comparison
    # What else a reader must know.
    notes: tuple[str, ...] = ()


def compare_steps(
    run: Sequence[Step], reference: Sequence[Step], tolerances: Tolerances = DEFAULTS, *, narrow: bool = False
) -> Comparison:
    """Every compared metric of every step that both runs have.

    With `narrow` the samples are known to be the same where both runs are healthy, so the narrow tolerances count
    whatever the samples look like.
    """
    pairs = _pairs(run, reference)
    same = tuple(one.step for one, other in pairs if samples_agree(one.values, other.values))
    narrowed = tuple(one.step for one, _ in pairs) if narrow else same
    metrics = tuple(
        found for compared in COMPARED if (found := _compare_metric(compared, pairs, narrowed, tolerances)) is not None
    )
    return Comparison(
        steps=tuple(one.step for one, _ in pairs),
        same_samples=same,
        metrics=metrics,
        data_differs=_first_difference(pairs, DATA),
        counters_differ=_first_difference(pairs, COUNTERS),
        source=tolerances.source,
    )


def samples_agree(run: Mapping[str, float], reference: Mapping[str, float]) -> bool:
    """Whether two steps drew the same samples, by what the rollout engine says about them."""
    one, other = run.get(SAMPLED_LOG_PPL), reference.get(SAMPLED_LOG_PPL)
    if one is None or other is None:
        return False
    return abs(one - other) <= SAME_SAMPLES_WITHIN * max(abs(one), abs(other))


def _pairs(run: Sequence[Step], reference: Sequence[Step]) -> tuple[tuple[Step, Step], ...]:
    """The steps of both by number, the last line of a number counts; step 0 is a validation."""
    ours = {item.step: item for item in run if item.step > 0}
    theirs = {item.step: item for item in reference if item.step > 0}
    return tuple((ours[step], theirs[step]) for step in sorted(ours.keys() & theirs.keys()))


def _compare_metric(
    compared: Compared, pairs: Sequence[tuple[Step, Step]], same: Sequence[int], tolerances: Tolerances
) -> MetricComparison | None:
    """One metric over all steps; None when no step has it in both runs."""
    rows = tuple(
        _row(compared, one, other, tolerances.of(compared, same_samples=one.step in same))
        for one, other in pairs
        if compared.metric in one.values and compared.metric in other.values
    )
    if not rows:
        return None
    judged = [row.excess for row in rows if row.agreement is not Agreement.SHOWN]
    excess = median(judged) if judged else 0.0
    ratios = [row.run / row.reference for row in rows if row.reference > 0 and row.run > 0]
    ratio = median(ratios) if ratios else math.nan
    agreement = _agreement(excess) if judged else Agreement.SHOWN
    if any(row.agreement is Agreement.BEYOND and not math.isfinite(row.run) for row in rows):
        agreement = Agreement.BEYOND
    return MetricComparison(compared, rows, excess, ratio, agreement)


def _row(compared: Compared, item: Step, other: Step, tolerance: Tolerance | None) -> Row:
    run, reference = item.values[compared.metric], other.values[compared.metric]
    shown = tolerance is None or not math.isfinite(reference)
    allowed = None if tolerance is None or shown else _allowed(compared.metric, item, other, tolerance)
    row = Row(item.step, compared.metric, run, reference, tolerance, allowed, Agreement.SHOWN)
    if shown:
        return row
    return Row(item.step, compared.metric, run, reference, tolerance, allowed, _agreement(row.excess))


def _agreement(excess: float) -> Agreement:
    return Agreement.WITHIN if abs(excess) <= 1 else Agreement.BEYOND


def _allowed(metric: str, step: Step, other: Step, tolerance: Tolerance) -> float:
    larger = max(abs(other.values[metric]), abs(step.values[metric]))
    larger = larger if math.isfinite(larger) else abs(other.values[metric])
    return tolerance.absolute + tolerance.relative * larger + tolerance.spread * _range(metric, step, other)


def _range(metric: str, item: Step, other: Step) -> float:
    """The widest range that either step gives for a metric `x/mean`: `x/max` less `x/min`."""
    stem = metric.rpartition("/")[0]
    ranges = [step.values.get(f"{stem}/max", 0.0) - step.values.get(f"{stem}/min", 0.0) for step in (item, other)]
    return max((width for width in ranges if math.isfinite(width)), default=0.0)


def _first_difference(pairs: Sequence[tuple[Step, Step]], metrics: Sequence[str]) -> str:
    """The first of the metrics that differs at a step, as a sentence; both must have it."""
    for one, other in pairs:
        for metric in metrics:
            ours, theirs = one.values.get(metric), other.values.get(metric)
            if ours is not None and theirs is not None and ours != theirs:
                return f"{metric} is {ours:g} in the run and {theirs:g} in its reference at step {one.step}"
    return ""
