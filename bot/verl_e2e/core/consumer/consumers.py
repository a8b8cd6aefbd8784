"""The consumers that jobs may be for, and the one of a job."""

from collections.abc import Mapping
from types import MappingProxyType

from verl_e2e.core.consumer.consumer import Consumer
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job

CONSUMERS: Mapping[str, Consumer] = MappingProxyType({consumer.name: consumer for consumer in (VERL,)})


def consumer_of(job: Job) -> Consumer:
    """The consumer that a job is for; UserError for a name that is not known."""
    try:
        return CONSUMERS[job.consumer]
    except KeyError:
        known = ", ".join(CONSUMERS)
        raise UserError(f"job {job.id}: consumer: {job.consumer!r} is not known; it is one of {known}") from None
