"""Two runs of the same training, compared step by step and metric by metric; and two tensors, by their fingerprints.

Two runs of the same job rarely draw the same samples, so a metric has two tolerances: a wide one for steps whose
samples differ, where means over a batch scatter, and a narrow one for steps whose samples are the same, where only
rounding, the order of additions and which sequences share a mini-batch are left. `docs/parity.md` says where each
number comes from.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from verl_e2e.core.consumer.consumer import Quantity
from verl_e2e.core.consumer.consumers import FIRST_NAMES, measured
from verl_e2e.core.model.facts import StepValues
from verl_e2e.core.model.fingerprints import Tensor

# The unit roundoff of double precision, in which the sums were made, and of the types that weights have.
_DOUBLE = 2.0**-53
_UNIT = {"float64": _DOUBLE, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Types of one range of exponents: a conversion between them rounds, and neither overflows nor underflows.
_ONE_RANGE = frozenset({"float32", "bfloat16"})
# The mean square of the weights of `position`, which are spread evenly over [-0.5, 0.5).
_WEIGHT_SQUARE = 1 / 12
# Rounding errors of many elements are independent: beyond so many standard deviations it is another tensor.
_DEVIATIONS = 6.0


class TensorDifference(StrEnum):
    """How one tensor differs from the one that was expected."""

    SHAPE = "another shape"
    DTYPE = "another type"
    NOT_FINITE = "NaN or infinite values"
    ZERO = "all zero"
    STALE = "a stale copy: the values of an earlier point"
    ORDER = "a permutation or transposition: the same values in another order"
    SCALE = "a scale"
    ROUNDED = "nearly equal values, as after another rounding"
    OTHER = "other values"


@dataclass(frozen=True, slots=True)
class FoundDifference:
    """The kind of a difference, with the factor of a scale."""

    kind: TensorDifference
    factor: float = 1.0

    def __str__(self) -> str:
        return f"{self.kind} by {self.factor:.4g}" if self.kind is TensorDifference.SCALE else str(self.kind)


def same(first: Tensor, second: Tensor) -> bool:
    """Whether two fingerprints are of equal tensors."""
    return (first.bits, first.shape, first.dtype) == (second.bits, second.shape, second.dtype)


def count(tensor: Tensor) -> int:
    """How many elements a tensor has."""
    return math.prod(tensor.shape)


def is_constant(tensor: Tensor) -> bool:
    """Whether all elements have one value: only then does the inequality of Cauchy and Schwarz hold with equality."""
    whole = count(tensor) * tensor.square
    return not math.isfinite(whole) or abs(tensor.sum**2 - whole) <= 4 * _growth(count(tensor) + 2) * whole


def difference(expected: Tensor, found: Tensor, *, earlier: Iterable[Tensor] = ()) -> FoundDifference | None:
    """How `found` differs from `expected`, None where it does not; `earlier` are states that it may be a copy of."""
    if same(expected, found):
        return None
    if any(same(state, found) for state in earlier):
        return FoundDifference(TensorDifference.STALE)
    if count(expected) != count(found):
        return FoundDifference(TensorDifference.SHAPE)
    if not _finite(found) and _finite(expected):
        return FoundDifference(TensorDifference.NOT_FINITE)
    if found.square == 0 and expected.square != 0:
        return FoundDifference(TensorDifference.ZERO)
    if adds_up([expected], [found]):
        # Sums do not depend on the order, so equal ones leave an order, a shape or a type to differ.
        bound = rounding(count(expected), expected.square) + rounding(count(found), found.square)
        if expected.dtype != found.dtype:
            return FoundDifference(TensorDifference.DTYPE)
        if abs(expected.position - found.position) > bound:
            return FoundDifference(TensorDifference.ORDER)
        other_shape = expected.shape != found.shape
        return FoundDifference(TensorDifference.SHAPE if other_shape else TensorDifference.OTHER)
    return _scale(expected, found) or FoundDifference(TensorDifference.OTHER)


def converts(expected: Tensor, found: Tensor) -> bool:
    """Whether a conversion between the types of two tensors does no more than round, so that sums can be compared."""
    return {expected.dtype, found.dtype} <= _ONE_RANGE


def difference_but_rounding(expected: Tensor, found: Tensor) -> FoundDifference | None:
    """How `found` differs from `expected` of another type, None where by no more than rounding to the narrower one.

    All sums must be within what rounding each element once can make of them. Its error is at most u times the element,
    and equal elements have equal errors: so `sum` gets the bound of the worst case, while the weights of `position`
    have nothing to do with the errors, which then add up like independent ones.
    """
    if not (_finite(expected) and _finite(found)):
        is_rounding = _finite(expected) == _finite(found)
    else:
        number, square = count(expected), max(expected.square, found.square)
        unit = max(_UNIT[expected.dtype], _UNIT[found.dtype])
        bounds = {
            "sum": unit * math.sqrt(number * square) + 2 * rounding(number, square),
            "square": unit * (2 + unit) * square + 2 * _growth(number + 1) * square,
            "position": _DEVIATIONS * unit * math.sqrt(_WEIGHT_SQUARE * square) + 2 * rounding(number, square),
        }
        is_rounding = all(
            abs(getattr(expected, name) - getattr(found, name)) <= bound for name, bound in bounds.items()
        )
    if is_rounding:
        return None
    narrow = max((expected.dtype, found.dtype), key=lambda dtype: _UNIT[dtype])
    kind = difference(*(tensor.model_copy(update={"dtype": narrow}) for tensor in (expected, found)))
    return kind if kind and kind.kind is not TensorDifference.ROUNDED else FoundDifference(TensorDifference.OTHER)


def _scale(expected: Tensor, found: Tensor) -> FoundDifference | None:
    """One factor in all sums: k in `sum` and `position`, k squared in `square`, but for the type's own rounding."""
    if not (_finite(expected) and _finite(found) and expected.square > 0):
        return None
    size = math.sqrt(found.square / expected.square)
    unit = max(_UNIT.get(expected.dtype, 0.0), _UNIT.get(found.dtype, 0.0), _DOUBLE * count(found))
    bound = _DEVIATIONS * unit * size * math.sqrt(expected.square)
    for factor in (size, -size):
        sums = (found.sum - factor * expected.sum, found.position - factor * expected.position)
        if all(abs(left) <= bound for left in sums):
            if abs(factor - 1) <= _DEVIATIONS * unit:
                return FoundDifference(TensorDifference.ROUNDED)
            return FoundDifference(TensorDifference.SCALE, factor)
    return None


def adds_up(parts: Sequence[Tensor], whole: Sequence[Tensor], *, times: int = 1) -> bool:
    """Whether the sums and squares of the parts add up to `times` those of the whole, within rounding.

    Sums that are NaN or infinite add up to the same kind of sum only.
    """
    # Of each tensor the figure, and how far it can be from the true one; a square is rounded once before it is added.
    sums = [[(item.sum, rounding(count(item), item.square)) for item in side] for side in (parts, whole)]
    squares = [[(item.square, _growth(count(item) + 1) * item.square) for item in side] for side in (parts, whole)]
    for ours, theirs in (sums, squares):
        added = sum(figure for figure, _ in ours)
        wanted = times * sum(figure for figure, _ in theirs)
        if not (math.isfinite(added) and math.isfinite(wanted)):
            return repr(added) == repr(wanted)
        sizes = sum(abs(figure) for figure, _ in ours) + times * sum(abs(figure) for figure, _ in theirs)
        bound = sum(bound for _, bound in ours) + times * sum(bound for _, bound in theirs)
        if abs(added - wanted) > _growth(len(parts) + len(whole)) * sizes + bound:
            return False
    return True


def rounding(number: int, square: float) -> float:
    """How far a sum of so many elements can be from the true one.

    That is `n u / (1 - n u)` times the sum of the absolute values, which is at most `sqrt(n * square)`.
    """
    return _growth(number) * math.sqrt(number * square)


def _growth(number: int) -> float:
    return number * _DOUBLE / (1 - number * _DOUBLE)


def _finite(tensor: Tensor) -> bool:
    return all(map(math.isfinite, (tensor.sum, tensor.square, tensor.position)))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two values may differ: `relative` of the larger one, plus `absolute`, plus `spread` of the range.

    The range comes from the metric's own maximum and minimum at the same step (`x/max` and `x/min` for `x/mean`).
    """

    relative: float = 0.0
    absolute: float = 0.0
    spread: float = 0.0

    def shown(self) -> str:
        """The tolerance as people read it."""
        parts = (
            (self.relative, f"{100 * self.relative:.3g}% of the larger"),
            (self.absolute, f"{self.absolute:.3g}"),
            (self.spread, f"{self.spread:.3g} of the range"),
        )
        return " + ".join(text for bound, text in parts if bound) or "equal"


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric: what it measures, its name and title, and its tolerances; None means shown, not judged."""

    quantity: Quantity
    metric: str
    title: str
    same: Tolerance | None
    sampled: Tolerance | None
    # At the first step of two runs with equal weights and the same samples, where it decides alone.
    first: Tolerance | None = None


# What both runs must agree on exactly before anything else can be compared: the prompts of the step.
DATA = (Quantity.PROMPT_LENGTH, Quantity.PROMPT_LENGTH_MAX, Quantity.PROMPT_LENGTH_MIN)
# Counters that neither samples nor rounding can move.
COUNTERS = (Quantity.GLOBAL_STEP, Quantity.EPOCH, Quantity.LEARNING_RATE, Quantity.CRITIC_LEARNING_RATE)

_TABLE: tuple[tuple[Quantity, str, Tolerance, Tolerance | None, Tolerance | None], ...] = (
    (Quantity.POLICY_LOSS, "policy loss", Tolerance(0.25, 6e-3), None, None),
    (Quantity.VALUE_LOSS, "value loss", Tolerance(0.05, 1e-4), Tolerance(0.4, 1e-3), None),
    (Quantity.GRADIENT_NORM, "grad norm, actor", Tolerance(0.08), Tolerance(0.2), Tolerance(0.01)),
    (Quantity.CRITIC_GRADIENT_NORM, "grad norm, critic", Tolerance(0.08), Tolerance(0.33), Tolerance(0.01)),
    (Quantity.ENTROPY, "entropy", Tolerance(0.005), Tolerance(0.03), None),
    (Quantity.KL, "KL to the reference", Tolerance(0.3, 1e-5), Tolerance(0.6, 1e-5), None),
    (Quantity.STEP_KL, "KL within the step", Tolerance(0.25, 2e-3), None, None),
    (Quantity.TRAINER_LOG_PPL, "log perplexity, trainer", Tolerance(0.005), Tolerance(0.03), None),
    (Quantity.ROLLOUT_LOG_PPL, "log perplexity, rollout", Tolerance(0.005), Tolerance(0.03), None),
    (Quantity.SCORE, "score", Tolerance(spread=0.02), None, None),
    (Quantity.REWARD, "reward", Tolerance(spread=0.02), None, None),
    (Quantity.VALUE, "value", Tolerance(spread=0.02), Tolerance(spread=0.1), None),
    (
        Quantity.AGREEMENT,
        "trainer and rollout correlation",
        Tolerance(absolute=0.002),
        Tolerance(absolute=0.005),
        None,
    ),
)
# A metric without a range beside it is only shown where the range is what it is allowed.
COMPARED: tuple[Compared, ...] = tuple(
    Compared(
        quantity,
        name,
        title,
        *(None if item and item.spread and not name.endswith("/mean") else item for item in allowed),
    )
    for quantity, title, *allowed in _TABLE
    for name in FIRST_NAMES[quantity]
)

# Below this relative difference of the samples' log perplexity, as the rollout engine itself reports it, the samples
# of a step are taken to be the same.
SAME_SAMPLES_WITHIN = 1e-6
DEFAULT_SOURCE = "stated defaults"


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The tolerances of one comparison by metric, and where they come from, for the report.

    `same` and `sampled` replace the stated default of a metric for steps with the same and with other samples.
    """

    source: str = DEFAULT_SOURCE
    same: Mapping[str, Tolerance] = field(default_factory=dict)
    sampled: Mapping[str, Tolerance] = field(default_factory=dict)

    def of(self, compared: Compared, *, same_samples: bool) -> Tolerance | None:
        """The tolerance of one metric at one step, None when it is shown and not judged."""
        if same_samples:
            return self.same.get(compared.metric, compared.same)
        return self.sampled.get(compared.metric, compared.sampled)


STATED_TOLERANCES = Tolerances()


class Agreement(StrEnum):
    """What a comparison says: within tolerance, beyond it, or shown without a judgement."""

    WITHIN = "within"
    BEYOND = "beyond"
    SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class MetricRow:
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

    @property
    def agreement(self) -> Agreement:
        """Whether it is within tolerance."""
        if self.allowed is None:
            return Agreement.SHOWN
        return Agreement.WITHIN if abs(self.excess) <= 1 else Agreement.BEYOND

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
    the median of the rows' excesses, or that of a first step that decides alone; `ratio` is the median of run over
    reference (NaN where no step has both above 0).
    """

    compared: Compared
    rows: tuple[MetricRow, ...]
    excess: float
    ratio: float
    agreement: Agreement
    # The row of the first step where that decided alone.
    first: MetricRow | None = None


@dataclass(frozen=True, slots=True)
class RunComparison:
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
    comparison: RunComparison
    # What else a reader must know.
    notes: tuple[str, ...] = ()


def compare_steps(
    run: Sequence[StepValues],
    reference: Sequence[StepValues],
    tolerances: Tolerances = STATED_TOLERANCES,
    *,
    narrow: bool = False,
    equal_start: bool = False,
) -> RunComparison:
    """Every compared metric of every step that both runs have.

    With `narrow` the samples are known to be the same where both runs are healthy, so the narrow tolerances count
    whatever the samples look like. With `equal_start` both runs begin with the same weights and put all samples of
    the first step into one mini-batch, so that with the same samples its gradients differ by the order of additions
    alone.
    """
    # By number, of which the last line counts; step 0 is a validation.
    ours, theirs = ({step.step: step for step in steps if step.step > 0} for steps in (run, reference))
    pairs = [(ours[step], theirs[step]) for step in sorted(ours.keys() & theirs.keys())]
    same = tuple(one.step for one, other in pairs if samples_agree(one.values, other.values))
    narrowed = tuple(one.step for one, _ in pairs) if narrow else same
    metrics = tuple(
        found
        for compared in COMPARED
        if (found := _compare_metric(compared, pairs, narrowed, tolerances, first=equal_start and 1 in same))
        is not None
    )
    return RunComparison(
        steps=tuple(one.step for one, _ in pairs),
        same_samples=same,
        metrics=metrics,
        data_differs=_first_difference(pairs, DATA),
        counters_differ=_first_difference(pairs, COUNTERS),
        source=tolerances.source,
    )


def samples_agree(run: Mapping[str, float], reference: Mapping[str, float]) -> bool:
    """Whether two steps drew the same samples, by what the rollout engine says about them."""
    one, other = (measured(values, Quantity.ROLLOUT_LOG_PPL) for values in (run, reference))
    if one is None or other is None:
        return False
    return abs(one - other) <= SAME_SAMPLES_WITHIN * max(abs(one), abs(other))


def _compare_metric(
    compared: Compared,
    pairs: Sequence[tuple[StepValues, StepValues]],
    same: Sequence[int],
    tolerances: Tolerances,
    *,
    first: bool,
) -> MetricComparison | None:
    """One metric over all steps; None when no step has it in both runs. With `first` the first step decides alone."""
    metric = compared.metric
    rows = []
    for one, other in pairs:
        if metric not in one.values or metric not in other.values:
            continue
        run, reference = one.values[metric], other.values[metric]
        tolerance, allowed = tolerances.of(compared, same_samples=one.step in same), None
        if first and one.step == 1 and compared.first is not None:
            tolerance = compared.first
        if tolerance is not None and math.isfinite(reference):
            larger = max(abs(reference), abs(run)) if math.isfinite(run) else abs(reference)
            # The widest range that either step gives for a metric `x/mean`: `x/max` less `x/min`.
            low, high = (f"{metric.rpartition('/')[0]}/{end}" for end in ("min", "max"))
            widths = [step.values.get(high, 0.0) - step.values.get(low, 0.0) for step in (one, other)]
            width = max(filter(math.isfinite, widths), default=0.0)
            allowed = tolerance.absolute + tolerance.relative * larger + tolerance.spread * width
        rows.append(MetricRow(one.step, metric, run, reference, tolerance, allowed))
    if not rows:
        return None
    judged = [row.excess for row in rows if row.agreement is not Agreement.SHOWN]
    alone = first and compared.first is not None and rows[0].step == 1 and rows[0].agreement is Agreement.BEYOND
    decided = rows[0] if alone else None
    excess = decided.excess if decided else median(judged) if judged else 0.0
    ratios = [row.run / row.reference for row in rows if row.reference > 0 and row.run > 0]
    ratio = median(ratios) if ratios else math.nan
    agreement = Agreement.SHOWN
    if judged:
        lost = any(row.agreement is Agreement.BEYOND and not math.isfinite(row.run) for row in rows)
        # The median of opposite infinities is not a number, and not within anything.
        agreement = Agreement.WITHIN if abs(excess) <= 1 and not lost else Agreement.BEYOND
    return MetricComparison(compared, tuple(rows), excess, ratio, agreement, decided)


def _first_difference(pairs: Sequence[tuple[StepValues, StepValues]], quantities: Sequence[Quantity]) -> str:
    """The first of the metrics that differs at a step, as a sentence; both must have it."""
    for one, other in pairs:
        for metric in (name for quantity in quantities for name in FIRST_NAMES[quantity]):
            ours, theirs = one.values.get(metric), other.values.get(metric)
            if ours is not None and theirs is not None and ours != theirs:
                return f"{metric} is {ours:g} in the run and {theirs:g} in its reference at step {one.step}"
    return ""
