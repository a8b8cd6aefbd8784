"""The policy's keys about jobs that the infrastructure broke: how often they are run again, and what that may cost."""

from typing import Annotated

from pydantic import Field

from verl_e2e.core.model.document import DescribedDocument


class RetryRules(DescribedDocument):
    """How often the bot runs a job again that the infrastructure blocked.

    There is no key for what failed, for an unknown cause or for a fault of the tested code: those are never run again
    unless a person asks.
    """

    passing: Annotated[int, Field(strict=True, ge=0, le=3)] = 1
    """Attempts in addition to the first after a fault of the infrastructure that may pass, as a node that failed."""
    lasting: Annotated[int, Field(strict=True, ge=0, le=1)] = 0
    """The same after a fault that someone has to fix, as a full disk."""
    wait_s: Annotated[int, Field(strict=True, ge=0, le=3_600)] = 60
    """Seconds before the next attempt begins; twice as long before each further one."""
    per_day: Annotated[int, Field(strict=True, ge=0, le=100)] = 6
    """So many attempts of this kind within 24 hours, for all jobs of one pull request together."""
    gpu_minutes_per_day: Annotated[int, Field(strict=True, ge=0)] = 240
    """GPU minutes that they may take within 24 hours, for all jobs of one pull request together."""
