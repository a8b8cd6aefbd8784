"""The metrics of a run as curves: which of verl's names belong to what, and their values step by step."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol


class Step(Protocol):
    """The metrics of one training step, from a log or from the record of a related run."""

    @property
    def step(self) -> int:
        """The number of the training step, 1 for the first; 0 is the validation before training."""
        ...

    @property
    def values(self) -> Mapping[str, float]:
        """The metrics by verl's names; NaN and infinity included."""
        ...


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a curve shows: a key, a title for people, and verl's names for it, the first one present counts."""

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
        kept = [(step, value) for step, value in zip(self.steps, self.values, strict=True) if math.isfinite(value)]
        return Curve(self.name, tuple(step for step, _ in kept), tuple(value for _, value in kept))


# The score is what the reward function said; `rewards` may have a KL penalty taken off.
REWARD = Quantity("reward", "Reward", ("critic/score/mean", "critic/rewards/mean"))
POLICY_LOSS = Quantity("policy_loss", "Policy loss", ("actor/pg_loss", "actor/loss"))
VALUE_LOSS = Quantity("value_loss", "Value loss", ("critic/vf_loss", "critic/loss"))
ACTOR_GRADIENT = Quantity("actor_grad_norm", "Actor gradient norm", ("actor/grad_norm",))
CRITIC_GRADIENT = Quantity("critic_grad_norm", "Critic gradient norm", ("critic/grad_norm",))
KL = Quantity("kl", "KL to the reference", ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"))
ENTROPY = Quantity("entropy", "Entropy", ("actor/entropy", "actor/entropy_loss"))
LENGTH = Quantity("response_length", "Response length", ("response_length/mean",))
CAP_SHARE = Quantity("cap_share", "Responses at the length cap", ("response_length/clip_ratio",))
LOG_PROBABILITY = Quantity(
    "log_probability", "Log-probability", ("rollout_corr/training_log_ppl", "rollout_corr/rollout_log_ppl")
)
VALUE = Quantity("value", "Value", ("critic/values/mean", "critic/vpred_mean"))
LEARNING_RATE = Quantity("learning_rate", "Learning rate", ("actor/lr",))

SHOWN = (REWARD, POLICY_LOSS, VALUE_LOSS, ACTOR_GRADIENT, CRITIC_GRADIENT, KL, ENTROPY, LENGTH)


def train_steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The training steps in order, each once; of a repeated one the last counts."""
    return tuple(step for _, step in sorted({item.step: item for item in steps if item.step > 0}.items()))


def curve(steps: Sequence[Step], quantity: Quantity) -> Curve | None:
    """The quantity over the steps, under the first of its names that any step prints; None when none does."""
    for name in quantity.names:
        found = [(item.step, item.values[name]) for item in steps if name in item.values]
        if found:
            return Curve(name, tuple(step for step, _ in found), tuple(value for _, value in found))
    return None


_BLOCKS = "▁▂▃▄▅▆▇█"
# A value that is not a number.
GAP = "×"


def sparkline(values: Sequence[float], width: int = 20) -> str:
    """At most `width` blocks between the lowest and the highest finite value; a series longer than that is binned.

    A block stands for the median of its bin, and `×` for a bin with NaN or infinity in it.
    """
    size = -(-len(values) // width) or 1
    bins = [values[at : at + size] for at in range(0, len(values), size)]
    points = [median(item) if all(map(math.isfinite, item)) else math.nan for item in bins]
    finite = [point for point in points if math.isfinite(point)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_block(point, low, high) for point in points)


def _block(point: float, low: float, high: float) -> str:
    if not math.isfinite(point):
        return GAP
    # Divided before it is subtracted, so that values near the largest float do not overflow.
    share = 0.5 if high == low else (point / 2 - low / 2) / (high / 2 - low / 2)
    return _BLOCKS[min(int(share * len(_BLOCKS)), len(_BLOCKS) - 1)]
