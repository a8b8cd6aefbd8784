"""Carry a pass forward to a merge group where nothing that the job can reach differs: no GPU learns anything new."""

from dataclasses import dataclass

from verl_e2e.app.analysis import Analysis
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.job_order import portable
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.core.pulls.pull import MergeGroup, Target
from verl_e2e.core.pulls.wanted_jobs import WantedJob, runs_of
from verl_e2e.ports import Clock, Ledger


@dataclass(frozen=True, slots=True)
class VerdictReuse:
    """Takes passes of pull requests over to a merge group."""

    analysis: Analysis
    clock: Clock
    ledger: Ledger

    def carry_forward(
        self, target: Target, policy: Policy, wanted: tuple[WantedJob, ...], runs: tuple[Run, ...]
    ) -> tuple[Run, ...]:
        """The runs with those that a merge group takes over from the pull requests inside it."""
        if not isinstance(target, MergeGroup) or target.destroyed:
            return runs
        passed = [
            other_run for number in target.pulls for other_run in self.ledger.runs(target.repository, number=number)
        ]
        passed = [pull for pull in passed if pull.required and _passed(pull)]
        missing = [
            wanted_job
            for wanted_job in wanted
            if wanted_job.required and not runs_of(wanted_job, target.head_sha, runs)
        ]
        found = list(runs)
        for wanted_job in missing:
            origin = next((run for run in reversed(passed) if _is_like(run, wanted_job)), None)
            if origin is None:
                continue
            if wanted_job.job and self._reaches_the_same(target, origin.head_sha, policy, wanted_job.job):
                found.append(self.ledger.put_run(self._carried(origin, wanted_job, target)))
        return tuple(found)

    def _reaches_the_same(self, group: MergeGroup, origin_sha: str, policy: Policy, job: Job) -> bool:
        try:
            return self.analysis.reaches_the_same(group, origin_sha, policy, job)
        except LimitError:
            # Not known, so the job runs on the group itself.
            return False

    def _carried(self, origin: Run, wanted: WantedJob, target: MergeGroup) -> Run:
        now = self.clock.now()
        return origin.model_copy(
            update={
                "key": run_key(target.repository, target.head_sha, wanted.digest, 1),
                "number": None,
                "head_sha": target.head_sha,
                "job_digest": wanted.digest,
                "attempt": 1,
                "carried_from": origin.head_sha,
                "handle": "",
                "asked_by": "",
                "gpu_minutes": 0.0,
                "created": now,
                "updated": now,
                "job": wanted.job,
            }
        )


def _passed(run: Run) -> bool:
    """Whether a run was good; one that never entered the change may be made up for in a merge group as well."""
    good = run.result is Result.PASS or run.never_entered
    return run.state is RunState.FINISHED and good and not run.carried_from


def _is_like(run: Run, wanted: WantedJob) -> bool:
    """Whether a run's job differs from the wanted one in the commit of Bridge alone."""
    if run.job is None or wanted.job is None or run.job_id != wanted.id:
        return False
    old, new = portable(run.job), portable(wanted.job)
    return old.model_copy(update={"bridge": new.bridge}) == new
