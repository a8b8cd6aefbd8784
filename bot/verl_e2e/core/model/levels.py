"""The coverage levels, what a variant of one is and costs, and what levels set beside their settings.

Source: Megatron-Bridge's guide to verl end-to-end testing; `docs/levels.md` explains each level. The cost of a job is
as measured (bench/results/measurements.md), else estimated from the nearest that was measured. It counts every run that
always belongs to the job: the uninterrupted run of a resume and the baseline of a learning signal are started whatever
becomes of the first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum


class Level(IntEnum):
    """Ordered depth of testing; level 0 runs first and alone."""

    # The level's name as the card prints it.
    title: str

    SMOKE = 0, "LoRA + DDP smoke"
    SAVE_RESUME = 1, "Save/resume"
    PARALLELISM = 2, "Parallelism stress"
    MEGATRON_FSDP = 3, "Megatron-FSDP"
    FEATURE = 4, "Feature e2e"
    LEARNING_SIGNAL = 5, "Learning signal"

    def __new__(cls, number: int, title: str = "") -> "Level":
        """A level by its row; a type checker takes a lookup, as `Level(1)`, for this call too."""
        level = int.__new__(cls, number)
        level._value_ = number
        level.title = title
        return level


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


# By job id; all others are estimated from the job of their level. An estimate here takes the whole of level 0.
COSTS = {
    "0-lora-ddp": Cost(400, basis=CostBasis.MEASURED),
    "1-resume": Cost(672, 383, CostBasis.MEASURED),
    "2-dense": Cost(390, basis=CostBasis.MEASURED),
    "3-fsdp": Cost(400),
    "4-feature": Cost(400),
    "5-signal": Cost(404, 404, CostBasis.MEASURED),
}


# Run and unsharded run, each measured beside eleven others: 709 and 712 seconds where 2-dense took 650, not 390.
PARITY_COST = Cost(430, 430)


def stated_cost(job_id: str) -> Cost:
    """The cost of a job by its id, `<level>-<name>`; an estimate from its level where the name is not in the table."""
    of_level = next(cost for known, cost in COSTS.items() if known[0] == job_id[0])
    return COSTS.get(job_id) or replace(of_level, basis=CostBasis.ESTIMATE)


# verl-e2e's own files, as a job and a run folder name them; the runner puts its own folder in place of it.
OWN_FILES = "$VERL_E2E"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a level: its variables and overrides in the consumer's words, and the fewest GPUs.

    `steps` is the training step that the run ends at. A variant with a `feature` joins its level's default one
    when the change touches that feature, and needs a checkpoint that has it; other variants join by name.
    """

    level: Level
    name: str
    gpu_count: int
    wrapper: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    steps: int = 1
    feature: str = ""
    # Whether it is compared with its unsharded run.
    parity: bool = False
    # Whether a reward model gives the scores.
    reward_model: bool = False

    @property
    def job_id(self) -> str:
        """`<level>-<name>`, the name of the run's folder under `jobs/`."""
        return f"{int(self.level)}-{self.name}"

    @property
    def cost(self) -> Cost:
        """What it takes on its own GPUs with a small model."""
        return PARITY_COST if self.parity else stated_cost(self.job_id)

    @property
    def gpu_minutes(self) -> int:
        """GPUs times minutes of all runs of the job, on its own GPUs with a small model."""
        return self.cost.gpu_minutes(self.gpu_count)
