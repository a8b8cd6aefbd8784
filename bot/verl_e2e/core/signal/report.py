"""The learning signal of a short run: passed, flat, unstable, or not enough steps; never "converged"."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median
from types import MappingProxyType

from verl_e2e.core.log import printed
from verl_e2e.core.signal.curves import (
    ACTOR_GRADIENT,
    CAP_SHARE,
    CRITIC_GRADIENT,
    ENTROPY,
    KL,
    LEARNING_RATE,
    LENGTH,
    LOG_PROBABILITY,
    POLICY_LOSS,
    REWARD,
    SHOWN,
    VALUE,
    VALUE_LOSS,
    Curve,
    Quantity,
    Step,
    curve,
    train_steps,
)
from verl_e2e.core.signal.statistics import Bar, Direction, Rule, Trend, direction, trend

# A gradient that grows a thousandfold from the first to the last quarter of a run has exploded.
EXPLOSION = 1000.0
# Below this KL divergence, in nats a token, a policy is the reference but for rounding.
UNMOVED_KL = 1e-5
# A divergence that does not grow by half over a run is where it was.
GROWN_KL = 1.5
_LISTED = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding: a sentence without a full stop, the step that shows it first, and the metric."""

    text: str
    step: int
    metric: str = ""


def not_finite(steps: Sequence[Step]) -> Fault | None:
    """The first step with NaN or infinity where a finite number must stand; validation before training counts."""
    for item in sorted(steps, key=lambda item: item.step):
        bad = printed.not_finite(item.values)
        if bad:
            shown = ", ".join(bad[:_LISTED]) + (f" and {len(bad) - _LISTED} more" if len(bad) > _LISTED else "")
            others = "is" if len(bad) == 1 else "are"
            return Fault(f"{shown} {others} {item.values[bad[0]]:g} at step {item.step}", item.step, bad[0])
    return None


def exploded(steps: Sequence[Step]) -> Fault | None:
    """A gradient norm that grew beyond `EXPLOSION` between the first and the last quarter."""
    for quantity in (ACTOR_GRADIENT, CRITIC_GRADIENT):
        found = curve(steps, quantity)
        if found is None or len(found.values) < 4:
            continue
        quarter = len(found.values) // 4
        first, last = median(found.values[:quarter]), median(found.values[-quarter:])
        if last > EXPLOSION * first > 0:
            grown = f"{found.name} grew from {first:.3g} to {last:.3g}"
            return Fault(grown, found.steps[-1], found.name)
    return None


def stuck(steps: Sequence[Step]) -> tuple[Fault, ...]:
    """What does not move although every training moves it: then even a rising reward was not learned."""
    found = (_zero_gradient(steps), *_constants(steps), _no_learning_rate(steps))
    return tuple(fault for fault in found if fault is not None)


def _zero_gradient(steps: Sequence[Step]) -> Fault | None:
    for found in _curves(steps, ACTOR_GRADIENT, CRITIC_GRADIENT):
        zeros = [step for step, value in found.at().items() if value == 0]
        if len(zeros) > 1:
            return Fault(f"{found.name} is exactly 0 at {len(zeros)} steps", zeros[0], found.name)
    return None


def _constants(steps: Sequence[Step]) -> Iterable[Fault]:
    for found in _curves(steps, REWARD, VALUE, LOG_PROBABILITY):
        if len(found.values) > 2 and len(set(found.values)) == 1 and math.isfinite(found.values[0]):
            yield Fault(f"{found.name} is {found.values[0]:.4g} at every step", found.steps[-1], found.name)


def _no_learning_rate(steps: Sequence[Step]) -> Fault | None:
    found = curve(steps, LEARNING_RATE)
    if found is None or any(found.values):
        return None
    return Fault(f"the learning rate is 0 at every step ({found.name})", found.steps[-1], found.name)


def _curves(steps: Sequence[Step], *quantities: Quantity) -> Iterable[Curve]:
    return (found for found in (curve(steps, quantity) for quantity in quantities) if found is not None)


def policy_moved(steps: Sequence[Step]) -> bool | None:
    """Whether the policy went away from the reference; None when the run prints no KL divergence from it.

    An adapter that starts at random is away from the reference from the first step on, so the divergence must grow.
    """
    found = curve(steps, KL)
    if found is None or found.name not in KL.names[:2]:
        return None
    sizes = [abs(value) for value in found.values]
    return median(sizes[-max(1, len(sizes) // 3) :]) > max(UNMOVED_KL, GROWN_KL * sizes[0])


def cap_share(steps: Sequence[Step]) -> float | None:
    """The share of responses cut by the length limit: over the run or over its last third, the larger one.

    NaN when no step prints a number for it, None when none prints it at all.
    """
    found = curve(steps, CAP_SHARE)
    if found is None:
        return None
    values = found.finite().values
    return max(median(values), median(values[-max(1, len(values) // 3) :])) if values else math.nan


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


PLOTS_FOLDER = "plots"
PLOT_NAME = "signal"
FORMATS = ("svg", "png")
# From this ratio between the largest and the smallest value on, equal steps of an axis stand for equal factors.
LOGARITHMIC_FROM = 1000.0
# From this ratio between the sizes of two quantities on, each has an axis of its own: next to the critic's gradient
# the actor's would be a line at zero.
APART_FROM = 10.0
# No axis can be laid out much beyond this.
LARGEST = 1e100


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
class Line:
    """One quantity of the candidate, the baselines below it, and the steps with no number or too large a one."""

    title: str
    candidate: Curve
    baseline: Band | None
    faults: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; `unit` says what the values are. Where `apart`, the second line has its axis on the right."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    logarithmic: bool
    apart: bool = False


@dataclass(frozen=True, slots=True)
class SignalFigure:
    """A figure: its title, its panels, and how many baselines stand behind the candidate."""

    title: str
    panels: tuple[Panel, ...]
    baselines: int


_PANELS: Mapping[str, tuple[str, tuple[Quantity, ...]]] = MappingProxyType(
    {
        "Reward": ("mean score of the responses", (REWARD,)),
        "Losses": ("loss", (POLICY_LOSS, VALUE_LOSS)),
        "Gradient norms": ("norm", (ACTOR_GRADIENT, CRITIC_GRADIENT)),
        "KL to the reference": ("nats a token", (KL,)),
        "Entropy": ("nats a token", (ENTROPY,)),
        "Response length": ("tokens", (LENGTH,)),
    }
)


def signal_figure(title: str, steps: Sequence[Step], baselines: Sequence[Run] = ()) -> SignalFigure:
    """The figure of a run and its baselines; panels without any value are left out."""
    trained = train_steps(steps)
    made = (_panel(name, unit, quantities, trained, baselines) for name, (unit, quantities) in _PANELS.items())
    return SignalFigure(title, tuple(panel for panel in made if panel.lines), len(baselines))


def _panel(
    title: str, unit: str, quantities: Sequence[Quantity], trained: Sequence[Step], baselines: Sequence[Run]
) -> Panel:
    lines = tuple(line for line in (_line(quantity, trained, baselines) for quantity in quantities) if line is not None)
    apart = _are_apart(lines)
    if apart:
        positive = all(min(line.candidate.values) > 0 for line in lines)
        return Panel(title, unit, lines, positive and any(_spans_factors((line,)) for line in lines), apart)
    return Panel(title, unit, lines, _spans_factors(lines))


def _line(quantity: Quantity, trained: Sequence[Step], baselines: Sequence[Run]) -> Line | None:
    found = curve(trained, quantity)
    if found is None:
        return None
    # NaN is not smaller than anything.
    shown = {step: value for step, value in found.at().items() if abs(value) < LARGEST}
    faults = tuple(step for step in found.steps if step not in shown)
    kept = Curve(found.name, tuple(shown), tuple(shown.values()))
    return Line(quantity.title, kept, band(baselines, quantity), faults)


def _are_apart(lines: Sequence[Line]) -> bool:
    sizes = sorted(max((abs(value) for value in line.candidate.values), default=0.0) for line in lines)
    return len(sizes) > 1 and sizes[0] > 0 and sizes[-1] / sizes[0] >= APART_FROM


def _spans_factors(lines: Sequence[Line]) -> bool:
    values = [value for line in lines for value in line.candidate.values]
    return bool(values) and min(values) > 0 and max(values) / min(values) >= LOGARITHMIC_FROM


class SignalOutcome(StrEnum):
    """The four words of the learning signal."""

    PASSED = "learning-signal passed"
    FLAT = "flat"
    UNSTABLE = "unstable"
    NOT_ENOUGH_STEPS = "not enough steps"


@dataclass(frozen=True, slots=True)
class SignalOptions:
    """What the evidence must show."""

    # Fewer rewards than this say nothing.
    min_steps: int = 10
    # The length of the job in steps, None where it is not known.
    requested_steps: int | None = None
    # The share of responses that the length limit may cut; above it the evidence is weak.
    max_cap_share: float = 0.5
    # Why the share says nothing where `max_cap_share` is 1; it is shown next to the share.
    cap_waived: str = ""
    # The rule for a reward that rises.
    rise: Rule = field(default_factory=Rule)
    # The rule for a reward that falls; stricter, because the run is blamed for it.
    fall: Rule = field(default_factory=lambda: Rule(bars=(Bar(0.005, 7.0),)))


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
    # The reward of each step, None where the run printed none.
    reward: Curve | None = None
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
    comparisons: tuple[Comparison, ...] = ()

    @property
    def baseline_moved(self) -> bool | None:
        """Whether most of the baselines that say anything learned; None when none does."""
        text = [
            baseline for baseline in self.baselines if baseline.outcome in (SignalOutcome.PASSED, SignalOutcome.FLAT)
        ]
        if not text:
            return None
        return sum(baseline.outcome is SignalOutcome.PASSED for baseline in text) * 2 > len(text)

    @property
    def failed(self) -> bool:
        """Unstable, or flat where the baseline learned: the run is to blame, and not the evidence."""
        if self.outcome is SignalOutcome.UNSTABLE:
            return True
        if self.outcome is not SignalOutcome.FLAT or self.weak or not self.baseline_moved:
            return False
        return self.stuck or self._behind()

    def _behind(self) -> bool:
        """Whether the reward rose by at most half of what it did on the baselines that learned."""
        rises = [_rise(baseline.trend) for baseline in self.baselines if baseline.outcome is SignalOutcome.PASSED]
        return _rise(self.trend) <= median(rises) / 2

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
            against = f"; {_against(self)}"
        return f"{self.outcome}: {self.cause}{against}"


def _rise(found: Trend | None) -> float:
    return found.end - found.start if found else 0.0


def _against(report: SignalReport) -> str:
    if report.baseline_moved is None:
        return "no baseline says whether it should have moved"
    if not report.baseline_moved:
        return "the baseline did not learn either"
    best = median(_rise(baseline.trend) for baseline in report.baselines if baseline.outcome is SignalOutcome.PASSED)
    return f"on the baseline it rose by {best:.3g}"


@dataclass(frozen=True, slots=True)
class _Finding:
    """An outcome before baselines are looked at."""

    outcome: SignalOutcome
    cause: str
    step: int
    trend: Trend | None = None
    stuck: bool = False


def signal_report(
    steps: Sequence[Step],
    *,
    baseline: Sequence[Run] = (),
    options: SignalOptions | None = None,
) -> SignalReport:
    """Judge the metrics of a run, in any order, validation lines included.

    `baseline` are runs of the same job on the code before the change.
    """
    options = options or SignalOptions()
    trained = train_steps(steps)
    reward = curve(trained, REWARD)
    found = _finding(steps, trained, reward, options)
    comparisons = compare(trained, baseline, rule=options.rise, min_steps=options.min_steps)
    return SignalReport(
        outcome=found.outcome,
        cause=found.cause,
        step=found.step,
        reward=reward,
        trend=found.trend,
        stuck=found.stuck,
        weak=_weak(trained, options),
        notes=_notes(found, trained, comparisons, options),
        baselines=tuple(_of_baseline(run, options) for run in baseline),
        comparisons=comparisons,
    )


def _finding(steps: Sequence[Step], trained: Sequence[Step], reward: Curve | None, options: SignalOptions) -> _Finding:
    fault = not_finite(steps) or exploded(trained)
    if fault is not None:
        return _Finding(SignalOutcome.UNSTABLE, fault.text, fault.step, _trend(reward, options))
    if reward is None:
        named = " or ".join(REWARD.names)
        return _Finding(SignalOutcome.NOT_ENOUGH_STEPS, f"no step prints {named}", _last(trained))
    short = _too_short(reward, trained, options)
    if short:
        return _Finding(SignalOutcome.NOT_ENOUGH_STEPS, short, _last(trained))
    moved = trend(reward.values, autocorrelation=options.rise.autocorrelation)
    still = stuck(trained)
    if still:
        cause = "; ".join(fault.text for fault in still)
        return _Finding(SignalOutcome.FLAT, cause, still[0].step, moved, stuck=True)
    return _by_trend(reward, moved, trained, options)


def _by_trend(reward: Curve, moved: Trend, trained: Sequence[Step], options: SignalOptions) -> _Finding:
    last = reward.steps[-1]
    if direction(moved, options.fall) is Direction.DOWN:
        return _Finding(SignalOutcome.UNSTABLE, _measured(reward, moved, "fell"), last, moved)
    if direction(moved, options.rise) is Direction.UP:
        return _Finding(SignalOutcome.PASSED, _measured(reward, moved, "rose"), last, moved)
    moving = policy_moved(trained)
    why = "" if moving is None else f"; the policy {'moved' if moving else 'did not move'} from the reference"
    return _Finding(SignalOutcome.FLAT, _measured(reward, moved) + why, last, moved)


def _measured(reward: Curve, moved: Trend, verb: str = "") -> str:
    """How the reward went; without a verb it stayed."""
    sizes = f"{moved.start:.4g} to {moved.end:.4g}"
    order = f"tau {moved.tau:+.2f}, {moved.shift:+.1f} times the noise of a step"
    way = f"{verb} from {sizes}" if verb else f"stayed at {sizes}"
    return f"{reward.name} {way} over {moved.count} steps ({order})"


def _too_short(reward: Curve, trained: Sequence[Step], options: SignalOptions) -> str:
    count, wanted = len(reward.values), options.requested_steps
    if count < options.min_steps:
        return f"{count} steps with {reward.name}, at least {options.min_steps} are needed"
    if wanted is not None and _last(trained) < wanted:
        return f"the run stops at step {_last(trained)} of {wanted}"
    return ""


def _last(trained: Sequence[Step]) -> int:
    return trained[-1].step if trained else 0


def _trend(reward: Curve | None, options: SignalOptions) -> Trend | None:
    values = reward.finite().values if reward else ()
    return trend(values, autocorrelation=options.rise.autocorrelation) if len(values) >= options.min_steps else None


def _weak(trained: Sequence[Step], options: SignalOptions) -> tuple[str, ...]:
    share = cap_share(trained)
    if share is None or share <= options.max_cap_share:
        return ()
    if math.isnan(share):
        return () if options.max_cap_share >= 1 else ("no number tells how many responses end at the length cap",)
    return (f"{share:.0%} of the responses end at the length cap, at most {options.max_cap_share:.0%} may",)


def _notes(
    found: _Finding, trained: Sequence[Step], comparisons: Sequence[Comparison], options: SignalOptions
) -> tuple[str, ...]:
    rows = []
    share = cap_share(trained)
    if found.outcome is SignalOutcome.PASSED and share is not None and share > SignalOptions().max_cap_share:
        waived = f": {options.cap_waived}" if options.cap_waived else ""
        rows.append(f"{share:.0%} of the responses end at the length cap{waived}")
    for comparison in comparisons:
        if comparison.standing in (Standing.ABOVE, Standing.BELOW) and comparison.gap is not None:
            change = comparison.gap.end - comparison.gap.start
            rows.append(f"{comparison.quantity.title} drifts {comparison.standing} the baseline, by {abs(change):.3g}")
    return tuple(rows)


def _of_baseline(run: Run, options: SignalOptions) -> BaselineSignal:
    """A baseline judged by itself; it may be shorter than the job that it is compared with."""
    report = signal_report(run.steps, options=replace(options, requested_steps=None))
    return BaselineSignal(run.name, report.outcome, report.cause, report.trend)


__all__ = ["BaselineSignal", "Fault", "SignalOptions", "SignalOutcome", "SignalReport", "signal_report"]
