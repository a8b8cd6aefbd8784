"""The learning signal of a short run: passed, flat, unstable, or not enough steps; never "converged"."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

from verl_e2e.core.signal.checks import Fault, cap_share, exploded, not_finite, policy_moved, stuck
from verl_e2e.core.signal.compare import Comparison, Run, Standing, compare
from verl_e2e.core.signal.curves import REWARD, Curve, Step, curve, train_steps
from verl_e2e.core.signal.statistics import Bar, Direction, Rule, Trend, direction, trend


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
