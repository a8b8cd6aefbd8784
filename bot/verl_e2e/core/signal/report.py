"""The learning signal of a short run: passed, flat, unstable, or not enough steps; never "converged"."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from verl_e2e.core.consumer.consumer import Quantity
from verl_e2e.core.consumer.consumers import METRICS, consumer_of, consumer_that_prints
from verl_e2e.core.log import printed
from verl_e2e.core.model.facts import StepValues
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.signal.curves import (
    ACTOR_GRADIENT,
    CAP_SHARE,
    CRITIC_GRADIENT,
    ENTROPY,
    KL,
    LEARNING_RATE,
    LENGTH,
    LOG_PROBABILITY,
    MOVES,
    POLICY_LOSS,
    REWARD,
    SHOWN,
    VALUE,
    VALUE_LOSS,
    Bar,
    Curve,
    CurveQuantity,
    Direction,
    Trend,
    curve,
    direction,
    train_steps,
    trend,
)

# Those of `verl_e2e_runner/rewards.py` that do not depend on the length of an answer: only with them is it no matter
# that every response is cut at the length limit, as it is with random weights.
LENGTH_FREE = frozenset({"digit_share"})


def length_free_reward(job: Job) -> str:
    """The name of the job's reward where it is one that does not depend on the length, empty for any other."""
    pairs = (override.lstrip("+").partition("=") for override in (*job.site.overrides, *job.overrides))
    # The last one counts.
    given = {key: value for key, _, value in pairs}
    name = consumer_of(job).own_reward(given)
    return name if name in LENGTH_FREE and not job.reward_model else ""


# A gradient that grows a thousandfold from the first to the last quarter of a run has exploded.
_EXPLOSION = 1000.0
# Below this KL divergence, in nats a token, a policy is the reference but for rounding.
_UNMOVED_KL = 1e-5
# A divergence that does not grow by half over a run is where it was.
_GROWN_KL = 1.5
_LISTED = 3


@dataclass(frozen=True, slots=True)
class CurveFault:
    """One finding: a sentence without a full stop, and the step that shows it first."""

    text: str
    step: int


def first_not_finite(steps: Sequence[StepValues]) -> CurveFault | None:
    """The first step with NaN or infinity where a finite number must stand; validation before training counts."""
    for item in sorted(steps, key=lambda item: item.step):
        bad = printed.not_finite(item.values)
        if bad:
            shown = ", ".join(bad[:_LISTED]) + (f" and {len(bad) - _LISTED} more" if len(bad) > _LISTED else "")
            verb = "is" if len(bad) == 1 else "are"
            return CurveFault(f"{shown} {verb} {item.values[bad[0]]:g} at step {item.step}", item.step)
    return None


def _exploded(steps: Sequence[StepValues]) -> CurveFault | None:
    """A gradient norm that grew beyond measure between the first and the last quarter."""
    for found in _curves(steps, ACTOR_GRADIENT, CRITIC_GRADIENT):
        quarter = len(found.values) // 4
        if quarter:
            first, last = median(found.values[:quarter]), median(found.values[-quarter:])
            if last > _EXPLOSION * first > 0:
                return CurveFault(f"{found.name} grew from {first:.3g} to {last:.3g}", found.steps[-1])
    return None


def stuck(steps: Sequence[StepValues]) -> Iterator[CurveFault]:
    """What does not move although every training moves it: then even a rising reward was not learned."""
    for found in _curves(steps, ACTOR_GRADIENT, CRITIC_GRADIENT):
        zeros = [step for step, value in found.at().items() if value == 0]
        if len(zeros) > 1:
            yield CurveFault(f"{found.name} is exactly 0 at {len(zeros)} steps", zeros[0])
            break
    for found in _curves(steps, REWARD, VALUE, LOG_PROBABILITY):
        if len(found.values) > 2 and len(set(found.values)) == 1 and math.isfinite(found.values[0]):
            yield CurveFault(f"{found.name} is {found.values[0]:.4g} at every step", found.steps[-1])
    for found in _curves(steps, LEARNING_RATE):
        if not any(found.values):
            yield CurveFault(f"the learning rate is 0 at every step ({found.name})", found.steps[-1])


def _curves(steps: Sequence[StepValues], *quantities: CurveQuantity) -> Iterator[Curve]:
    return (found for found in (curve(steps, quantity) for quantity in quantities) if found is not None)


def last_third(values: Sequence[float]) -> Sequence[float]:
    """The last third of a series, of at least one value."""
    return values[-max(1, len(values) // 3) :]


def cap_share(steps: Sequence[StepValues]) -> float | None:
    """The share of responses cut by the length limit: over the run or over its last third, the larger one.

    NaN when no step prints a number for it, None when none prints it at all.
    """
    found = curve(steps, CAP_SHARE)
    if found is None:
        return None
    values = found.finite().values
    return max(median(values), median(last_third(values))) if values else math.nan


# Fewer rewards than this say nothing.
MIN_STEPS = 10
# The bar of a reward that falls; higher, because the run is blamed for it.
_FALLS = (Bar(0.005, 7.0),)
# From two baselines on they span a band; fewer say nothing about how much equal runs differ.
_BAND_FROM = 2


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """A run to compare with: a name for people and its training steps."""

    name: str
    steps: tuple[StepValues, ...]


@dataclass(frozen=True, slots=True)
class BaselineBand:
    """Baselines step by step: their median, and the lowest and highest of them; equal where there is one only."""

    steps: tuple[int, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    runs: int


class CurveStanding(StrEnum):
    """How the candidate compares with the baselines."""

    ABOVE = "above"
    BELOW = "below"
    LEVEL = "level with"
    UNKNOWN = "not comparable with"


@dataclass(frozen=True, slots=True)
class CurveComparison:
    """One quantity of the candidate compared with the baselines."""

    quantity: CurveQuantity
    standing: CurveStanding
    # How many steps both have.
    shared: int
    # The trend of candidate less baseline, None where too few steps are shared.
    gap: Trend | None = None
    # The share of the shared steps at which the candidate lies in the band, None without a band.
    inside: float | None = None


def band(runs: Sequence[BaselineRun], quantity: CurveQuantity) -> BaselineBand | None:
    """The baselines' values of a quantity at the steps that all of them have; None when there are none."""
    found = [item for item in (curve(train_steps(run.steps), quantity) for run in runs) if item is not None]
    curves = [item.finite().at() for item in found]
    shared = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
    if not shared:
        return None
    columns = [[item[step] for item in curves] for step in shared]
    middle, low, high = zip(*((median(column), min(column), max(column)) for column in columns), strict=True)
    return BaselineBand(tuple(shared), middle, low, high, len(curves))


def compare_curves(steps: Sequence[StepValues], baselines: Sequence[BaselineRun]) -> tuple[CurveComparison, ...]:
    """Every shown quantity that both have; the chance allowed for order is shared out among them (Bonferroni)."""
    pairs = [
        (quantity, mine, theirs)
        for quantity in SHOWN
        if (mine := curve(steps, quantity)) is not None and (theirs := band(baselines, quantity)) is not None
    ]
    bars = [Bar(bar.order / max(1, len(pairs)), bar.size) for bar in MOVES]
    found = []
    for quantity, mine, theirs in pairs:
        at = mine.finite().at()
        columns = zip(theirs.steps, theirs.middle, theirs.low, theirs.high, strict=True)
        # Candidate, and the median, the lowest and the highest of the baselines, at the steps that both have.
        rows = [(at[step], middle, low, high) for step, middle, low, high in columns if step in at]
        inside = None
        if theirs.runs >= _BAND_FROM and rows:
            inside = sum(low <= value <= high for value, _, low, high in rows) / len(rows)
        if len(rows) < MIN_STEPS:
            found.append(CurveComparison(quantity, CurveStanding.UNKNOWN, len(rows), None, inside))
            continue
        gap = trend([value - middle for value, middle, _, _ in rows])
        standing = _STANDING[direction(gap, bars)]
        if inside is not None:
            value, _, low, high = (median(last_third(column)) for column in zip(*rows, strict=True))
            # No further outside the band in the end than the band is wide: equal runs differ as much.
            standing = CurveStanding.LEVEL if low - (high - low) <= value <= high + (high - low) else standing
        found.append(CurveComparison(quantity, standing, len(rows), gap, inside))
    return tuple(found)


_STANDING = {
    Direction.UP: CurveStanding.ABOVE,
    Direction.DOWN: CurveStanding.BELOW,
    Direction.NONE: CurveStanding.LEVEL,
}


PLOTS_FOLDER = "plots"
PLOT_NAME = "signal"
FORMATS = ("svg", "png")
# From this ratio between the largest and the smallest value on, equal steps of an axis stand for equal factors.
_LOGARITHMIC_FROM = 1000.0
# From this ratio between the sizes of two quantities on, each has an axis of its own: next to the critic's gradient
# the actor's would be a line at zero.
_APART_FROM = 10.0
# No axis can be laid out much beyond this.
_LARGEST = 1e100


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours for one background, as hexadecimal RGB; `lines` are for the first and the second quantity."""

    name: str
    background: str
    text: str
    grid: str
    lines: tuple[str, str]
    fault: str


# Text reaches a contrast of 7:1 on its background and lines 4.5:1; the grid only has to be seen.
THEMES: tuple[Theme, ...] = (
    Theme("light", "#ffffff", "#24292f", "#d0d7de", ("#0550ae", "#a04100"), "#a40e26"),
    Theme("dark", "#0d1117", "#e6edf3", "#30363d", ("#6cb6ff", "#ffa657"), "#ff7b72"),
)


@dataclass(frozen=True, slots=True)
class FigureLine:
    """One quantity of the candidate, the baselines below it, and the steps with no number or too large a one."""

    title: str
    candidate: Curve
    baseline: BaselineBand | None
    faults: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; `unit` says what the values are. Where `apart`, the second line has its axis on the right."""

    title: str
    unit: str
    lines: tuple[FigureLine, ...]
    logarithmic: bool
    apart: bool = False


@dataclass(frozen=True, slots=True)
class SignalFigure:
    """A figure: its title, its panels, and how many baselines stand behind the candidate."""

    title: str
    panels: tuple[Panel, ...]
    baselines: int


_PANELS: Mapping[str, tuple[str, tuple[CurveQuantity, ...]]] = {
    "Reward": ("mean score of the responses", (REWARD,)),
    "Losses": ("loss", (POLICY_LOSS, VALUE_LOSS)),
    "Gradient norms": ("norm", (ACTOR_GRADIENT, CRITIC_GRADIENT)),
    "KL to the reference": ("nats a token", (KL,)),
    "Entropy": ("nats a token", (ENTROPY,)),
    "Response length": ("tokens", (LENGTH,)),
}


def signal_figure(title: str, steps: Sequence[StepValues], baselines: Sequence[BaselineRun] = ()) -> SignalFigure:
    """The figure of a run and its baselines; panels without any value are left out."""
    trained = train_steps(steps)
    panels = []
    for name, (unit, quantities) in _PANELS.items():
        lines = []
        for quantity in quantities:
            if (mine := curve(trained, quantity)) is not None:
                # NaN is not smaller than anything.
                shown = {step: value for step, value in mine.at().items() if abs(value) < _LARGEST}
                faults = tuple(step for step in mine.steps if step not in shown)
                kept = Curve(mine.name, tuple(shown), tuple(shown.values()))
                lines.append(FigureLine(quantity.title, kept, band(baselines, quantity), faults))
        if not lines:
            continue
        values = [line.candidate.values for line in lines]
        sizes = sorted(max(map(abs, points), default=0.0) for points in values)
        apart = len(sizes) > 1 and sizes[0] > 0 and sizes[-1] / sizes[0] >= _APART_FROM
        if apart:
            logarithmic = min(map(min, values)) > 0 and any(map(_spans_factors, values))
        else:
            logarithmic = _spans_factors([value for points in values for value in points])
        panels.append(Panel(name, unit, tuple(lines), logarithmic, apart))
    return SignalFigure(title, tuple(panels), len(baselines))


def _spans_factors(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) >= _LOGARITHMIC_FROM


class SignalOutcome(StrEnum):
    """The four words of the learning signal."""

    PASSED = "learning-signal passed"
    FLAT = "flat"
    UNSTABLE = "unstable"
    NOT_ENOUGH_STEPS = "not enough steps"


@dataclass(frozen=True, slots=True)
class SignalOptions:
    """What the evidence must show."""

    # The length of the job in steps, None where it is not known.
    requested_steps: int | None = None
    # The share of responses that the length limit may cut; above it the evidence is weak.
    max_cap_share: float = 0.5
    # Why the share says nothing where `max_cap_share` is 1; it is shown next to the share.
    cap_waived: str = ""


@dataclass(frozen=True, slots=True)
class BaselineSignal:
    """What one baseline shows by itself."""

    name: str
    outcome: SignalOutcome
    cause: str
    trend: Trend | None


@dataclass(frozen=True, slots=True)
class SignalReport:
    """The outcome with its reasons."""

    outcome: SignalOutcome
    # Why, in one sentence without a full stop.
    cause: str
    # The step to look at, 0 for none.
    step: int
    # How the reward moved, None where it cannot be measured.
    trend: Trend | None = None
    # Whether something did not move that training always moves.
    stuck: bool = False
    # Sentences that make the evidence weak whatever the outcome.
    weak: tuple[str, ...] = ()
    # What a reader should know in addition.
    notes: tuple[str, ...] = ()
    # The baselines, each judged by itself.
    baselines: tuple[BaselineSignal, ...] = ()
    # The quantities compared with the baselines.
    comparisons: tuple[CurveComparison, ...] = ()

    @property
    def baseline_moved(self) -> bool | None:
        """Whether most of the baselines that say anything learned; None when none does."""
        telling = [item for item in self.baselines if item.outcome in (SignalOutcome.PASSED, SignalOutcome.FLAT)]
        if not telling:
            return None
        return sum(item.outcome is SignalOutcome.PASSED for item in telling) * 2 > len(telling)

    @property
    def failed(self) -> bool:
        """Unstable, or flat where the baseline learned: the run is to blame, and not the evidence."""
        if self.outcome is SignalOutcome.UNSTABLE:
            return True
        if self.outcome is not SignalOutcome.FLAT or self.weak or not self.baseline_moved:
            return False
        # Or the reward rose by at most half of what it did on the baselines that learned.
        return self.stuck or _rise(self.trend) <= self._baseline_rise / 2

    @property
    def _baseline_rise(self) -> float:
        return median(_rise(item.trend) for item in self.baselines if item.outcome is SignalOutcome.PASSED)

    @property
    def headline(self) -> str:
        """The outcome in a word or two."""
        return "weak evidence" if self._is_weak else str(self.outcome)

    @property
    def _is_weak(self) -> bool:
        return bool(self.weak) and self.outcome in (SignalOutcome.PASSED, SignalOutcome.FLAT)

    @property
    def sentence(self) -> str:
        """The outcome and its cause in one sentence without a full stop; weak evidence is never called passed."""
        if self._is_weak:
            return f"weak evidence: {'; '.join(self.weak)}"
        against = ""
        if self.outcome is SignalOutcome.FLAT and self.baselines:
            against = "; the baseline did not learn either"
            if self.baseline_moved is None:
                against = "; no baseline says whether it should have moved"
            elif self.baseline_moved:
                against = f"; on the baseline it rose by {self._baseline_rise:.3g}"
        return f"{self.outcome}: {self.cause}{against}"


def _rise(found: Trend | None) -> float:
    return found.end - found.start if found else 0.0


def signal_report(
    steps: Sequence[StepValues],
    *,
    baseline: Sequence[BaselineRun] = (),
    options: SignalOptions | None = None,
) -> SignalReport:
    """Judge the metrics of a run, in any order, validation lines included.

    `baseline` are runs of the same job on the code before the change.
    """
    options = options or SignalOptions()
    trained = train_steps(steps)
    found = _judged(steps, trained, options)
    comparisons = compare_curves(trained, baseline)
    share = cap_share(trained)
    # A baseline is judged by itself; it may be shorter than the job that it is compared with.
    own = replace(options, requested_steps=None)
    reports = [(run.name, signal_report(run.steps, options=own)) for run in baseline]
    weak, notes = [], []
    if share is not None and math.isnan(share) and options.max_cap_share < 1:
        weak.append("no number tells how many responses end at the length cap")
    if share is not None and share > options.max_cap_share:
        weak.append(f"{share:.0%} of the responses end at the length cap, at most {options.max_cap_share:.0%} may")
    if found.outcome is SignalOutcome.PASSED and share is not None and share > SignalOptions().max_cap_share:
        waived = f": {options.cap_waived}" if options.cap_waived else ""
        notes.append(f"{share:.0%} of the responses end at the length cap{waived}")
    for comparison in comparisons:
        if comparison.standing in (CurveStanding.ABOVE, CurveStanding.BELOW) and comparison.gap is not None:
            change = abs(_rise(comparison.gap))
            notes.append(f"{comparison.quantity.title} drifts {comparison.standing} the baseline, by {change:.3g}")
    return replace(
        found,
        weak=tuple(weak),
        notes=tuple(notes),
        baselines=tuple(BaselineSignal(name, report.outcome, report.cause, report.trend) for name, report in reports),
        comparisons=comparisons,
    )


def _judged(steps: Sequence[StepValues], trained: Sequence[StepValues], options: SignalOptions) -> SignalReport:
    """The outcome before baselines are looked at."""
    reward = curve(trained, REWARD)
    last = trained[-1].step if trained else 0
    fault = first_not_finite(steps) or _exploded(trained)
    if fault is not None:
        values = reward.finite().values if reward else ()
        moved = trend(values) if len(values) >= MIN_STEPS else None
        return SignalReport(SignalOutcome.UNSTABLE, fault.text, fault.step, moved)
    if reward is None:
        names = consumer_that_prints(name for step in steps for name in step.values).metrics[Quantity.SCORE]
        return SignalReport(SignalOutcome.NOT_ENOUGH_STEPS, f"no step prints {' or '.join(names)}", last)
    count, wanted = len(reward.values), options.requested_steps
    if count < MIN_STEPS:
        text = f"{count} steps with {reward.name}, at least {MIN_STEPS} are needed"
        return SignalReport(SignalOutcome.NOT_ENOUGH_STEPS, text, last)
    if wanted is not None and last < wanted:
        return SignalReport(SignalOutcome.NOT_ENOUGH_STEPS, f"the run stops at step {last} of {wanted}", last)
    moved = trend(reward.values)
    if still := list(stuck(trained)):
        cause = "; ".join(item.text for item in still)
        return SignalReport(SignalOutcome.FLAT, cause, still[0].step, moved, stuck=True)
    sizes = f"{moved.start:.4g} to {moved.end:.4g}"
    order = f"over {moved.count} steps (tau {moved.tau:+.2f}, {moved.shift:+.1f} times the noise of a step)"
    if direction(moved, _FALLS) is Direction.DOWN:
        outcome, way, more = SignalOutcome.UNSTABLE, "fell from", ""
    elif direction(moved) is Direction.UP:
        outcome, way, more = SignalOutcome.PASSED, "rose from", ""
    else:
        away, more = curve(trained, KL), ""
        if away is not None and away.name not in METRICS[Quantity.STEP_KL]:
            # An adapter that starts at random is away from the reference from the first step on, so the divergence must
            # grow.
            distances = [abs(value) for value in away.values]
            moving = median(last_third(distances)) > max(_UNMOVED_KL, _GROWN_KL * distances[0])
            more = f"; the policy {'moved' if moving else 'did not move'} from the reference"
        outcome, way = SignalOutcome.FLAT, "stayed at"
    return SignalReport(outcome, f"{reward.name} {way} {sizes} {order}{more}", reward.steps[-1], moved)
