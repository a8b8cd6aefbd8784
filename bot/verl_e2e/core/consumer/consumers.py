"""The consumers that jobs may be for, the one of a job, and the named jobs of each level in a consumer's words."""

from collections.abc import Iterable, Mapping
from itertools import chain
from types import MappingProxyType

from verl_e2e.core.consumer.consumer import Consumer, Quantity, joined_settings
from verl_e2e.core.consumer.nemo_rl import NEMO_RL
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.settings import Axis, Setting
from verl_e2e.core.model.space import NAMED_JOBS, POINTS, JobPoint, name_word

CONSUMERS: Mapping[str, Consumer] = MappingProxyType({consumer.name: consumer for consumer in (VERL, SKYRL, NEMO_RL)})
# Those beside verl whose jobs can run.
OPTIONAL = tuple(consumer.name for consumer in CONSUMERS.values() if consumer is not VERL and not consumer.never_run)

# The names of a quantity in logs of any consumer, and of each the first alone, which is the one that is compared.
METRICS: Mapping[Quantity, tuple[str, ...]] = {
    quantity: tuple(dict.fromkeys(chain.from_iterable(consumer.metrics[quantity] for consumer in CONSUMERS.values())))
    for quantity in Quantity
}
FIRST_NAMES: Mapping[Quantity, tuple[str, ...]] = {
    quantity: tuple(consumer.metrics[quantity][0] for consumer in CONSUMERS.values() if consumer.metrics[quantity])
    for quantity in Quantity
}


def measured(values: Mapping[str, float], quantity: Quantity) -> float | None:
    """What the metrics of a step say of a quantity, by the first name of a consumer; None where they say nothing."""
    return next((values[name] for name in FIRST_NAMES[quantity] if name in values), None)


def consumer_that_prints(names: Iterable[str]) -> Consumer:
    """The consumer that has a name for most of these metrics, the first one where no consumer has any."""
    shown = {*names}
    return max(CONSUMERS.values(), key=lambda consumer: len(shown & {*chain.from_iterable(consumer.metrics.values())}))


def consumer_of(job: Job) -> Consumer:
    """The consumer that a job is for."""
    return CONSUMERS[job.consumer]


def variant_of(point: JobPoint, level: Level, name: str, *, feature: str = "", consumer: Consumer = VERL) -> Variant:
    """The job of a level of a point in the words of a consumer, under a name of lower-case letters, digits and dashes.

    Raises ValueError where the point has a conflict or no job of that level can have it.
    """
    if point.conflict:
        raise ValueError(f"{name}: {point.conflict}")
    if level not in point.levels:
        shown = ", ".join(f"{axis} {value}" for axis, value in point.settings.items()) or "of level 0"
        raise ValueError(f"{name}: no job of level {int(level)} has the settings {shown}")
    of_axes = [consumer.setting(axis, value) for axis, value in point.settings.items()]
    whole = joined_settings([*of_axes, consumer.level_setting(point, level)])
    return Variant(
        level,
        name,
        point.gpu_count,
        whole.wrapper,
        whole.overrides,
        steps=point.size(Axis.STEPS),
        feature=feature,
        parity=point[Axis.PARITY] is True,
        reward_model=point[Axis.REWARD_MODEL] is True,
    )


# A job that joins its level's default one only where the change touches this feature.
_FEATURES = {"expert": "moe"}

VARIANTS: tuple[Variant, ...] = tuple(
    variant_of(POINTS[f"{int(level)}-{name}"], level, name, feature=_FEATURES.get(name, ""))
    for level, name in NAMED_JOBS
)


def variants_of(level: Level) -> tuple[Variant, ...]:
    """All variants of a level, the default one first."""
    return tuple(variant for variant in VARIANTS if variant.level is level)


def variant_named(job_id: str) -> Variant | None:
    """The variant with this job id, `<level>-<name>`, or None."""
    return next((variant for variant in VARIANTS if variant.job_id == job_id), None)


def named_variant(level: Level, name: str, consumer: Consumer) -> Variant | None:
    """The named job of a level in the words of a consumer; None where the level has no job of this name."""
    known = variant_named(f"{int(level)}-{name}")
    if known is None or consumer is VERL:
        return known
    return variant_of(POINTS[known.job_id], level, name, consumer=consumer)


# The jobs that are compared with an unsharded run.
PARITY_VARIANTS = tuple(variant for variant in VARIANTS if POINTS[variant.job_id][Axis.PARITY])


def setting_probes() -> tuple[Variant, ...]:
    """A job of verl for each value that no rule excludes and that is a variable or an override; of a size two."""
    values = [(axis, value) for axis in Axis for value in axis.tried if VERL.setting(axis, value) != Setting()]
    points = [(axis, value, JobPoint.default().with_axes({axis: value})) for axis, value in values]
    return tuple(
        variant_of(point, point.levels[0], name_word(f"{axis} {value}"))
        for axis, value, point in points
        if not point.conflict
    )
