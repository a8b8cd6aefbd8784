"""The jobs of a consumer: every named one, and one for every value of every axis that it takes."""

from verl_e2e.core.consumer.consumer import Consumer
from verl_e2e.core.consumer.consumers import variant_of
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.model.space import POINTS, JobPoint


def jobs_of(consumer: Consumer) -> list[Variant]:
    """The jobs of the levels that the consumer has, of the points of which it refuses no value."""
    points = [JobPoint.default().with_axes({axis: value}) for axis in Axis for value in axis.tried]
    named = [(Level(int(name[0])), point) for name, point in POINTS.items()]
    single = [(point.levels[0], point) for point in points if not point.conflict]
    return [
        variant_of(point, level, str(number), consumer=consumer)
        for number, (level, point) in enumerate([*named, *single])
        if level not in consumer.refused_levels
        and not any(consumer.refused(axis, value) for axis, value in point.settings.items())
    ]


def variables_of(consumer: Consumer, variant: Variant) -> dict[str, str]:
    """The variables of a job."""
    return {**consumer.base, **variant.wrapper, **consumer.counts(variant.gpu_count, variant.steps).wrapper}
