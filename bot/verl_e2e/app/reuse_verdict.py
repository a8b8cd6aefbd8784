"""Take over a verdict on the same code where a job of a target has no run yet: no GPU learns anything new."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.judge_finished import Judged
from verl_e2e.app.kept_values import Kept
from verl_e2e.app.required_jobs import Prepared
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.plan.reached_files import ReachedFiles
from verl_e2e.core.pulls.commands import Entry
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.pull import MergeGroup, PullState, Target, repository_of
from verl_e2e.core.pulls.wanted_jobs import (
    WantedJob,
    is_same_change,
    may_take_over,
    origin_of,
    taken_over,
    to_judge_again,
)
from verl_e2e.core.text import packed
from verl_e2e.log_context import log_context
from verl_e2e.ports import Clock, Ledger

_MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class VerdictReuse:
    """Takes verdicts over, from any head of the repository with the same code in reach."""

    analysis: Analysis
    artifacts: Path
    clock: Clock
    ledger: Ledger
    refused: Kept[str] = field(default_factory=lambda: Kept(1024))

    def with_reused(
        self,
        target: Target,
        policy: Policy,
        prepared: Prepared,
        entries: tuple[Entry, ...],
        runs: tuple[Run, ...],
    ) -> tuple[Run, ...]:
        """The runs with those that stand by the verdict of another one."""
        if _is_over(target):
            return runs
        found = list(runs)
        for wanted in prepared.wanted:
            made = self._of_this_head(target, wanted, tuple(found))
            if policy.gate.reuse_h and may_take_over(wanted, target.head_sha, tuple(found), entries):
                made = made or self._taken_over(target, policy, wanted, prepared.reached, runs)
            found.extend([made] if made is not None else [])
        return tuple(found)

    def _of_this_head(self, target: Target, wanted: WantedJob, runs: tuple[Run, ...]) -> Run | None:
        """A good run of this very job, judged again for what is asked of it now; None where that does not help."""
        run = to_judge_again(wanted, target.head_sha, runs)
        if run is None or (run.key, wanted.digest) in self.refused:
            return None
        judged = self._judged_again(wanted, run)
        if judged is None or not (judged.result is Result.PASS or judged.never_entered):
            self.refused.put((run.key, wanted.digest), run.key)
            return None
        made = taken_over(run, wanted, target, runs, self.clock.now())
        return self.ledger.add_run(made.model_copy(update=judged.of_run))

    def _taken_over(
        self,
        target: Target,
        policy: Policy,
        wanted: WantedJob,
        reached: ReachedFiles,
        runs: tuple[Run, ...],
    ) -> Run | None:
        now = self.clock.now()
        origin = origin_of(wanted, target, self._known(target, wanted, runs), now, policy.gate.reuse_h)
        judged = self._same_code(wanted, origin, reached) if origin is not None else None
        if judged is None:
            return None
        here = self.ledger.runs(repository_of(target), head_sha=target.head_sha)
        made = taken_over(judged, wanted, target, here, now)
        # Another bot may have started the job meanwhile: its run stays, and what comes of it counts.
        return self.ledger.add_run(made)

    def _same_code(self, wanted: WantedJob, origin: Run, reached: ReachedFiles) -> Run | None:
        """A run on the same code as it is judged for a job, None where it does not speak for it."""
        if (origin.key, wanted.digest) in self.refused:
            return None
        judged = None if _ran_outside(origin, reached) else self._judged_for(wanted, origin)
        if judged is None:
            self.refused.put((origin.key, wanted.digest), origin.key)
        return judged

    def _known(self, target: Target, wanted: WantedJob, runs: Iterable[Run]) -> Iterable[Run]:
        """The runs whose verdict may be on the same code; a ledger that cannot list them has those at hand."""
        repository = repository_of(target)
        numbers = target.pulls if isinstance(target, MergeGroup) else ()
        inside = (run for number in numbers for run in self.ledger.runs(repository, number=number))
        listed = self.ledger.runs(repository, reuse_key=wanted.reuse_key)
        return {run.key: run for run in (*runs, *inside, *listed)}.values()

    def _judged_for(self, wanted: WantedJob, origin: Run) -> Run | None:
        """The run as it is judged for the change of a job, None where it does not speak for it."""
        if is_same_change(origin, wanted):
            return origin
        judged = self._judged_again(wanted, origin)
        if judged is None or judged.result is not Result.PASS:
            return None
        new = {"sentence": judged.sentence, "verdict": judged.verdict, "never_entered": False}
        return origin.model_copy(update=new)

    def _judged_again(self, wanted: WantedJob, origin: Run) -> Judged | None:
        if wanted.job is None:
            return None
        try:
            with log_context(run=origin.key, head=origin.head_sha, job=origin.job_id):
                return self.analysis.judge_again(origin, wanted.job, self.artifacts / origin.key)
        except LimitError:
            return None


def _is_over(target: Target) -> bool:
    return target.destroyed if isinstance(target, MergeGroup) else target.state is PullState.CLOSED


def _ran_outside(run: Run, reached: ReachedFiles) -> bool:
    """Whether a run executed a source that the digest does not cover, so that the same digest says too little."""
    if not run.executed_files:
        return False
    try:
        executed = packed.unpack(run.executed_files, _MOST_BYTES).decode("utf-8", "replace").split("\n")
    except packed.UnpackError:
        return True
    return bool(reached.outside(executed))
