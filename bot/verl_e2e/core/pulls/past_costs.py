"""What a job of a repository is expected to cost, from its runs that ended well there."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from verl_e2e.core.model.costs import CostBasis
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.pulls.ledger import Run, RunState

# Older runs say less about today's host, image and verl.
_LATEST = 5


@dataclass(frozen=True, slots=True)
class PastCost:
    """One run that passed: which job it was, on how many GPUs, with which model, and its GPU minutes."""

    job_id: str
    gpu_count: int
    model_id: str
    gpu_minutes: float


def past_costs(runs: Iterable[Run]) -> tuple[PastCost, ...]:
    """What the runs cost that passed and really ran, oldest first; one carried forward cost nothing."""
    return tuple(
        PastCost(run.job_id, run.job.gpu_count, run.job.checkpoint.model_id, run.gpu_minutes)
        for run in runs
        if run.state is RunState.FINISHED and run.result is Result.PASS and run.job is not None
        if run.gpu_minutes > 0 and not run.carried_from
    )


def expected_cost(outline: JobOutline, job: Job | None, past: Iterable[PastCost]) -> tuple[int, CostBasis]:
    """GPU minutes of all runs of a planned job, and where the number comes from; nothing for one that is not run.

    `job` is the complete job, with the model and the GPUs of its host. A past run tells its own time; the runs that
    always follow are counted in the proportion of the measured table.
    """
    if job is None:
        return 0, outline.cost_basis
    table = outline.variant.cost
    wanted = (outline.id, job.gpu_count, job.checkpoint.model_id)
    found = [cost.gpu_minutes for cost in past if (cost.job_id, cost.gpu_count, cost.model_id) == wanted]
    if found:
        runs = (table.run_s + table.reference_s) / table.run_s
        return math.ceil(median(found[-_LATEST:]) * runs), CostBasis.PAST_RUNS
    basis = table.basis if job.gpu_count == outline.variant.gpu_count else CostBasis.ESTIMATE
    return table.gpu_minutes(job.gpu_count), basis
