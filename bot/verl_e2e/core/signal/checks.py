"""What disturbs or voids a learning signal, each check one sentence or nothing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from verl_e2e.core.log import printed
from verl_e2e.core.signal.curves import (
    ACTOR_GRADIENT,
    CAP_SHARE,
    CRITIC_GRADIENT,
    KL,
    LEARNING_RATE,
    LOG_PROBABILITY,
    REWARD,
    VALUE,
    Curve,
    Quantity,
    Step,
    curve,
)

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
