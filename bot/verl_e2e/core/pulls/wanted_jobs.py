"""A job that someone wants for a head: the plan, or a person beside it."""

from dataclasses import dataclass

from verl_e2e.core.model.costs import CostBasis
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.job_order import portable
from verl_e2e.core.pulls.ledger import Run


@dataclass(frozen=True, slots=True)
class WantedJob:
    """A job for one head, complete or with what it lacks.

    `requires` are ids of wanted jobs that must pass first. `job` is None when policy or site cannot complete it, and
    `missinging` says why. `required` jobs decide the gate; others were asked for by the entry `asked_by`.
    """

    id: str
    level: Level
    requires: tuple[str, ...] = ()
    job: Job | None = None
    lacking: str = ""
    required: bool = True
    asked_by: str = ""
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
