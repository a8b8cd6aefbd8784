"""The metrics of a run as curves: what they show, and how a short series of values moves.

Twenty points are far too few to estimate how much one step's noise carries over to the next, so nothing is
estimated: Kendall's S is compared with the variance that it has under autoregressive noise of a stated strength.
`docs/learning-signal.md` shows the measured error rates and the power of the rule.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, pairwise
from statistics import fmean, median

from verl_e2e.core.consumer.consumer import Quantity
from verl_e2e.core.consumer.consumers import METRICS
from verl_e2e.core.model.facts import StepValues


@dataclass(frozen=True, slots=True)
class CurveQuantity:
    """What a curve shows: a key, a title for people, and its names, of which the first one present counts."""

    key: str
    title: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run: its name, and a value for each step that printed it."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def at(self) -> dict[int, float]:
        """The values by step."""
        return dict(zip(self.steps, self.values, strict=True))

    def finite(self) -> "Curve":
        """The curve without values that are NaN or infinite."""
        kept = {step: value for step, value in self.at().items() if math.isfinite(value)}
        return Curve(self.name, tuple(kept), tuple(kept.values()))


REWARD = CurveQuantity("reward", "Reward", METRICS[Quantity.SCORE])
POLICY_LOSS = CurveQuantity("policy_loss", "Policy loss", METRICS[Quantity.POLICY_LOSS])
VALUE_LOSS = CurveQuantity("value_loss", "Value loss", METRICS[Quantity.VALUE_LOSS])
ACTOR_GRADIENT = CurveQuantity("actor_grad_norm", "Actor gradient norm", METRICS[Quantity.GRADIENT_NORM])
CRITIC_GRADIENT = CurveQuantity("critic_grad_norm", "Critic gradient norm", METRICS[Quantity.CRITIC_GRADIENT_NORM])
KL = CurveQuantity("kl", "KL to the reference", METRICS[Quantity.KL])
ENTROPY = CurveQuantity("entropy", "Entropy", METRICS[Quantity.ENTROPY])
LENGTH = CurveQuantity("response_length", "Response length", METRICS[Quantity.RESPONSE_LENGTH])
CAP_SHARE = CurveQuantity("cap_share", "Responses at the length cap", METRICS[Quantity.CAP_SHARE])
LOG_PROBABILITY = CurveQuantity(
    "log_probability", "Log-probability", METRICS[Quantity.TRAINER_LOG_PPL] + METRICS[Quantity.ROLLOUT_LOG_PPL]
)
VALUE = CurveQuantity("value", "Value", METRICS[Quantity.VALUE])
LEARNING_RATE = CurveQuantity("learning_rate", "Learning rate", METRICS[Quantity.LEARNING_RATE])

SHOWN = (REWARD, POLICY_LOSS, VALUE_LOSS, ACTOR_GRADIENT, CRITIC_GRADIENT, KL, ENTROPY, LENGTH)


def train_steps(steps: Iterable[StepValues]) -> tuple[StepValues, ...]:
    """The training steps in order, each once; of a repeated one the last counts."""
    return tuple(step for _, step in sorted({item.step: item for item in steps if item.step > 0}.items()))


def curve(steps: Sequence[StepValues], quantity: CurveQuantity) -> Curve | None:
    """The quantity over the steps, under the first of its names that any step prints; None when none does."""
    for name in quantity.names:
        if found := [(item.step, item.values[name]) for item in steps if name in item.values]:
            return Curve(name, *zip(*found, strict=True))
    return None


_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 20) -> str:
    """At most `width` blocks between the lowest and the highest finite value; a series longer than that is binned.

    A block stands for the median of its bin, and `×` for a bin with NaN or infinity in it.
    """
    size = -(-len(values) // width) or 1
    bins = [values[at : at + size] for at in range(0, len(values), size)]
    points = [median(item) if all(map(math.isfinite, item)) else math.nan for item in bins]
    finite = [point for point in points if math.isfinite(point)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    drawn = ""
    for point in points:
        if math.isfinite(point):
            # Divided before it is subtracted, so that values near the largest float do not overflow.
            share = 0.5 if high == low else (point / 2 - low / 2) / (high / 2 - low / 2)
            drawn += _BLOCKS[min(int(share * len(_BLOCKS)), len(_BLOCKS) - 1)]
        else:
            drawn += "×"
    return drawn


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


# Noise is taken to have this lag-one autocorrelation.
AUTOCORRELATION = 0.5
# The bars of a series that moves: it clears any of them. The better ordered it is, the smaller it may be.
MOVES = (Bar(0.01, 2.0), Bar(0.1, 4.0))
# Sizes go with the inverse root of the number of steps, as the noise of a mean does, down to this share of those at 20.
_LEAST = 0.8


def clears(bars: Sequence[Bar], chance: float, shift: float, count: int) -> bool:
    """Whether so much order and size over so many points is enough for any of the bars."""
    scale = max(_LEAST, math.sqrt(_AT_STEPS / count))
    return any(chance <= bar.order and shift >= bar.size * scale for bar in bars)


@dataclass(frozen=True, slots=True)
class Trend:
    """How a series moves. `start` and `end` are the medians of its first and last third.

    `noise` is the spread of one point in the unit of the series; `tau` is Kendall's, between -1 and 1; `p_up` and
    `p_down` are the one-sided chances of that much order in noise alone.
    """

    count: int
    start: float
    end: float
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


def trend(values: Sequence[float], *, autocorrelation: float = AUTOCORRELATION) -> Trend:
    """The trend of at least four finite values in equal steps, under noise of that lag-one autocorrelation."""
    points = thinned(values)
    count, third = len(points), max(1, len(points) // 3)
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(points, 2))
    # The variance of Kendall's S for exchangeable values, less what ties take from it.
    ties = [count, *Counter(points).values()]
    whole, *taken = (size * (size - 1) * (2 * size + 5) for size in ties)
    spread = math.sqrt((whole - sum(taken)) / 18 * inflation(count, autocorrelation))
    # The chance of a score of at least this, by the normal law with continuity correction.
    p_up, p_down = (
        0.5 * math.erfc((found - 1) / spread / math.sqrt(2)) if spread > 0 else 1.0 for found in (score, -score)
    )
    return Trend(
        count=len(values),
        start=median(points[:third]),
        end=median(points[-third:]),
        noise=noise(points),
        tau=score / (count * (count - 1) / 2),
        p_up=p_up,
        p_down=p_down,
    )


def direction(found: Trend, bars: Sequence[Bar] = MOVES) -> Direction:
    """Where the series goes, by the bars."""
    count = min(found.count, MAX_POINTS)
    if clears(bars, found.p_up, found.shift, count):
        return Direction.UP
    return Direction.DOWN if clears(bars, found.p_down, -found.shift, count) else Direction.NONE


def thinned(values: Sequence[float], most: int = MAX_POINTS) -> tuple[float, ...]:
    """The series as at most that many medians of equal neighbouring blocks."""
    size = -(-len(values) // most)
    return tuple(median(values[at : at + size]) for at in range(0, len(values), size))


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
