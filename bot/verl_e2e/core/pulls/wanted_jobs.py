"""A job that is wanted for a head, by the plan or by a person."""

from dataclasses import dataclass

from verl_e2e.core.model.costs import CostBasis
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.job_order import portable
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.reuse_key import ASKED_OF_RESULT, differing_keys, same_work


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


def does(run: Run, wanted: WantedJob) -> bool:
    """Whether a run of the wanted job's head does its work, though another version may have written or judged it."""
    if run.job_id != wanted.id or wanted.job is None:
        return False
    return run.job_digest == wanted.digest or (run.job is not None and same_work(run.job, wanted.job))


def must_be_judged_again(run: Run, wanted: WantedJob) -> bool:
    """Whether a run that does a job's work was good for what another version, or another base, asked of the result."""
    if not (run.result is Result.PASS or run.never_entered) or run.job_digest == wanted.digest:
        return False
    return run.job is not None and wanted.job is not None and bool(differing_keys(run.job, wanted.job))


def replaced_run(wanted: WantedJob, head_sha: str, runs: tuple[Run, ...]) -> Run | None:
    """The last run that ended under the name of a job of a head and does not speak for it, None for none."""
    named = (run for run in runs if (run.head_sha, run.job_id) == (head_sha, wanted.id) and run.result is not None)
    others = (run for run in named if not does(run, wanted) or must_be_judged_again(run, wanted))
    return max(others, key=lambda run: run.updated, default=None) if wanted.job is not None else None


def changed_since(run: Run, wanted: WantedJob) -> str:
    """Why a run does not count for the job of its name, as a clause."""
    if run.job is None or wanted.job is None:
        return "its job is not known any more"
    keys = differing_keys(run.job, wanted.job)
    named = ", ".join(sorted(keys - ASKED_OF_RESULT or keys))
    left = "" if keys - ASKED_OF_RESULT else ", of which its run folder does not tell"
    return f"the job changed since then: {named}{left}"


def runs_of(wanted: WantedJob, head_sha: str, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The runs that speak for a wanted job: of this very head and this very job, by attempt.

    Nothing else is evidence for a required job: no run of another head, none that does other work, none made as an
    extra, and none that was good for something else.
    """
    found = (run for run in runs if run.head_sha == head_sha and does(run, wanted))
    same = (run for run in found if not must_be_judged_again(run, wanted))
    return tuple(sorted((run for run in same if run.required or not wanted.required), key=lambda run: run.attempt))
