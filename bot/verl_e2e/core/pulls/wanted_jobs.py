"""A job that is wanted for a head, by the plan or by a person."""

from dataclasses import dataclass

from verl_e2e.core.model.costs import CostBasis
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.job_order import portable
from verl_e2e.core.pulls.ledger import Run


@dataclass(frozen=True, slots=True)
class WantedJob:
    """A job for one head, complete or with what is missing."""

    # Its id in the plan, as `0-lora-ddp`.
    id: str
    level: Level
    # The ids of wanted jobs that must pass first.
    requires: tuple[str, ...] = ()
    # The complete job; None when policy or site cannot complete it.
    job: Job | None = None
    # Why it cannot be completed, empty when it is complete.
    missing: str = ""
    # Why no host can ever run it, empty where one can.
    uncoverable: str = ""
    # Whether it decides the gate; false for what a person requested.
    required: bool = True
    # The source of the entry that requested it, empty for a job of the plan.
    asked_by: str = ""
    # What a verdict on it depends on as a digest, empty where that is not known.
    reuse_key: str = ""
    # The job on whose Bridge tests it relies, so that `reuse_key` leaves out what they read; empty for none.
    tested_by: str = ""
    # What it is expected to cost.
    gpu_minutes: int = 0
    # Where `gpu_minutes` comes from.
    cost_basis: CostBasis = CostBasis.ESTIMATE
    # The options that it was asked for with, `name=value` with spaces between; empty for none.
    options: str = ""

    @property
    def digest(self) -> str:
        """The digest of the complete job wherever it lies, empty when there is none."""
        return portable(self.job).digest() if self.job is not None else ""


def runs_of(wanted: WantedJob, head_sha: str, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The runs that speak for a wanted job: of this very head and this very job, by attempt.

    Nothing else is evidence for a required job: no run of another head, none of a changed job, none made as an extra.
    """
    found = (run for run in runs if run.head_sha == head_sha and run.job_id == wanted.id)
    same = (run for run in found if wanted.digest and run.job_digest == wanted.digest)
    return tuple(sorted((run for run in same if run.required or not wanted.required), key=lambda run: run.attempt))
