"""Robust statistics of a short series: how it moves, against a noise whose autocorrelation is assumed.

Twenty points are far too few to estimate how much one step's noise carries over to the next, so nothing is
estimated: Kendall's S is compared with the variance that it has under autoregressive noise of a stated strength.
`docs/learning-signal.md` shows the measured error rates and the power of the rule.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, pairwise
from statistics import fmean, median

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import OWN_FILES

# Where the recorder's redaction puts the files of verl-e2e itself; a run folder is redacted.
# The second is where it lay when the packages were called `bot` and `runners`: older folders are still judged.
_OURS = frozenset({f"{OWN_FILES}/verl_e2e_runner/rewards.py", f"{OWN_FILES}/runners/rewards.py"})
# As `verl_e2e_runner/rewards.py` declares them, which verl loads by its path.
LENGTH_FREE = frozenset({"digit_share"})
_PATH, _NAME = "reward.custom_reward_function.path", "reward.custom_reward_function.name"


def length_free_reward(job: Job) -> str:
    """The name of the job's reward where it is one that does not depend on the length, empty for any other."""
    given = _given((*job.site.overrides, *job.overrides))
    name = given.get(_NAME, "")
    return name if given.get(_PATH) in _OURS and name in LENGTH_FREE and not job.reward_model else ""


def _given(overrides: tuple[str, ...]) -> Mapping[str, str]:
    """The overrides as keys and values; the last one counts."""
    pairs = (override.lstrip("+").partition("=") for override in overrides)
    return {key: value for key, _, value in pairs}


# The pairs of a series grow with the square of its length; longer ones are judged by the medians of equal blocks.
MAX_POINTS = 200
# The length that sizes are stated for.
_AT_STEPS = 20


class Direction(StrEnum):
    """Where a series goes, once noise is ruled out."""

    UP = "up"
    DOWN = "down"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Bar:
    """What a series must clear, both: its order, and its size.

    `order` is the largest one-sided chance of Kendall's S in noise alone, `size` the least shift from the first to
    the last third, in units of one step's noise, at 20 steps.
    """

    order: float
    size: float


@dataclass(frozen=True, slots=True)
class Rule:
    """When a series counts as moving: it clears any of the bars. The better ordered it is, the smaller it may be.

    Noise is taken to have that lag-one `autocorrelation`. Sizes go with the inverse root of the number of steps, as
    the noise of a mean does, down to the share `least` of those at 20 steps.
    """

    bars: tuple[Bar, ...] = (Bar(0.01, 2.0), Bar(0.1, 4.0))
    least: float = 0.8
    autocorrelation: float = 0.5

    def clears(self, chance: float, shift: float, count: int) -> bool:
        """Whether so much order and size over so many points is enough."""
        scale = max(self.least, math.sqrt(_AT_STEPS / count))
        return any(chance <= bar.order and shift >= bar.size * scale for bar in self.bars)

    def shared_by(self, count: int) -> "Rule":
        """The rule for each of so many series that are looked at together (Bonferroni)."""
        return replace(self, bars=tuple(Bar(bar.order / max(1, count), bar.size) for bar in self.bars))


@dataclass(frozen=True, slots=True)
class Trend:
    """How a series moves. `start` and `end` are the medians of its first and last third.

    `slope` is the Theil-Sen slope per step, `noise` the spread of one point, both in the unit of the series;
    `tau` is Kendall's, between -1 and 1; `p_up` and `p_down` are the one-sided chances of that much order in
    noise alone.
    """

    count: int
    start: float
    end: float
    slope: float
    noise: float
    tau: float
    p_up: float
    p_down: float

    @property
    def shift(self) -> float:
        """End less start in units of the noise; infinite where a change has no noise, 0 where nothing changed."""
        change = self.end - self.start
        if self.noise > 0:
            return change / self.noise
        return math.copysign(math.inf, change) if change else 0.0


def trend(values: Sequence[float], *, autocorrelation: float) -> Trend:
    """The trend of at least four finite values in equal steps, under noise of that lag-one autocorrelation."""
    points = thinned(values)
    count, third = len(points), max(1, len(points) // 3)
    score = sum(_sign(later - earlier) for earlier, later in combinations(points, 2))
    spread = math.sqrt(_variance(points) * inflation(count, autocorrelation))
    return Trend(
        count=len(values),
        start=median(points[:third]),
        end=median(points[-third:]),
        slope=theil_sen(points) * (count - 1) / (len(values) - 1),
        noise=noise(points),
        tau=score / (count * (count - 1) / 2),
        p_up=_tail(score, spread),
        p_down=_tail(-score, spread),
    )


def direction(found: Trend, rule: Rule) -> Direction:
    """Where the series goes by the rule."""
    count = min(found.count, MAX_POINTS)
    if rule.clears(found.p_up, found.shift, count):
        return Direction.UP
    if rule.clears(found.p_down, -found.shift, count):
        return Direction.DOWN
    return Direction.NONE


def thinned(values: Sequence[float], most: int = MAX_POINTS) -> tuple[float, ...]:
    """The series as at most that many medians of equal neighbouring blocks."""
    size = -(-len(values) // most)
    return tuple(median(values[at : at + size]) for at in range(0, len(values), size))


def theil_sen(values: Sequence[float]) -> float:
    """The median of all pairwise slopes, per point."""
    pairs = combinations(enumerate(values), 2)
    return median((later - earlier) / (right - left) for (left, earlier), (right, later) in pairs)


def noise(values: Sequence[float]) -> float:
    """The spread of one point as a standard deviation, from the differences of neighbours.

    A smooth trend shifts all differences alike, and the mean of their sizes lets a single jump count little.
    """
    steps = [later - earlier for earlier, later in pairwise(values)]
    middle = median(steps)
    return math.sqrt(math.pi) / 2 * fmean(abs(step - middle) for step in steps)


def inflation(count: int, autocorrelation: float) -> float:
    """By how much autoregressive noise widens the variance of Kendall's S, after Hamed and Rao (1998).

    A normal correlation r shows among ranks as 6/pi * asin(r/2).
    """
    weighted = sum(
        (count - lag) * (count - lag - 1) * (count - lag - 2) * 6 / math.pi * math.asin(autocorrelation**lag / 2)
        for lag in range(1, count - 2)
    )
    return 1 + 2 * weighted / (count * (count - 1) * (count - 2))


def _variance(values: Sequence[float]) -> float:
    """The variance of Kendall's S for exchangeable values, less what ties take from it."""
    return (_cubic(len(values)) - sum(_cubic(size) for size in Counter(values).values())) / 18


def _cubic(size: int) -> int:
    return size * (size - 1) * (2 * size + 5)


def _tail(score: int, spread: float) -> float:
    """The chance of a score of at least this, by the normal law with continuity correction."""
    return 0.5 * math.erfc((score - 1) / spread / math.sqrt(2)) if spread > 0 else 1.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
