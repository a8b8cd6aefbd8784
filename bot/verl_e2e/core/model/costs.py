"""What the runs of a job cost: as measured (docs/measurements.md), else estimated from the nearest that was measured.

The one place where these numbers are; the cost of a job counts every run that always belongs to it: the uninterrupted
run of a resume and the baseline of a learning signal are started whatever becomes of the first.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum


class CostBasis(StrEnum):
    """Where an expected cost comes from."""

    PAST_RUNS = "past runs"
    MEASURED = "measured"
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job takes on the GPUs of its variant, on the host and with the checkpoint that was measured."""

    # Seconds of the job's own run, from its start to its end.
    run_s: int
    # Seconds of the runs that always follow it, on the same GPUs.
    reference_s: int = 0
    basis: CostBasis = CostBasis.ESTIMATE

    def gpu_minutes(self, gpu_count: int) -> int:
        """GPUs times minutes of all runs of the job, rounded up."""
        return math.ceil((self.run_s + self.reference_s) * gpu_count / 60)

    def run_gpu_minutes(self, gpu_count: int) -> int:
        """GPUs times minutes of the job's own run alone, rounded up."""
        return math.ceil(self.run_s * gpu_count / 60)


# By job id. An estimate takes the whole of level 0, or of the measured variant of its level.
COSTS = {
    "0-lora-ddp": Cost(400, basis=CostBasis.MEASURED),
    "0-amplified-lora": Cost(400),
    "0-recompute": Cost(400),
    "1-resume": Cost(672, 383, CostBasis.MEASURED),
    "2-dense": Cost(390, basis=CostBasis.MEASURED),
    "2-vpp": Cost(390),
    "2-cp": Cost(390),
    "2-expert": Cost(390),
    "2-dp": Cost(295, basis=CostBasis.MEASURED),
    "3-fsdp": Cost(400),
    "4-feature": Cost(400),
    "5-signal": Cost(404, 404, CostBasis.MEASURED),
}

# The job of each level that stands for those without a measurement or an estimate of their own.
_OF_LEVEL = {"0": "0-lora-ddp", "1": "1-resume", "2": "2-dense", "3": "3-fsdp", "4": "4-feature", "5": "5-signal"}


def expected_cost(job_id: str) -> Cost:
    """The cost of a job by its id, `<level>-<name>`; an estimate from its level where the name is not in the table."""
    known = COSTS.get(job_id)
    return known or replace(COSTS[_OF_LEVEL[job_id[0]]], basis=CostBasis.ESTIMATE)
