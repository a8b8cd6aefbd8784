"""What is found out from text that strangers wrote: each question a method, over values and the ports that it reads.

The service asks these in processes with limits, tests and small tools in their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Protocol

from verl_e2e.app.judge_finished import Judged, judge_again, judge_ended
from verl_e2e.app.plan_change import Planned, Planner
from verl_e2e.app.plan_pull import explain, plan_target
from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.plan.explain import Explanation
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.forge import Annotation
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.pull import Target
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.report.annotations import ChangedSource, annotate, paths_to_read
from verl_e2e.ports import RunFolders, SourceTrees, SummaryStore


class Analysis(Protocol):
    """The questions. LimitError when an answer would take more than it may."""

    def plan(self, target: Target, policy: Policy, cells: CellMap | None = None) -> Planned:
        """The plan of a target, by what the cells of its rehearsal entered; None: by the packaged map."""
        ...

    def explain(self, target: Target, policy: Policy, path: str, symbol: str) -> tuple[Explanation, ...]:
        """What the plan would make of a symbol of the head, were it changed."""
        ...

    def judge_again(self, run: Run, job: Job, folder: Path) -> Judged | None:
        """The judgement of the folder of an ended run for a job that does the same for another change, if it tells."""
        ...

    def annotate(self, target: Target, plan: Plan, verdict: Verdict) -> tuple[Annotation, ...]:
        """The annotations of a failed job on the changed lines."""
        ...

    def judge(self, run: Run, folder: Path) -> Judged:
        """The judgement of the folder of an ended run; it is also written into the folder."""
        ...

    def judge_rehearsal(self, target: Target, run: Run, folder: Path) -> Judged:
        """The judgement of the folder of an ended rehearsal of a target; it is also written into the folder."""
        ...


@dataclass(frozen=True, slots=True)
class DirectAnalysis:
    """An `Analysis` in this process: no limits but those of the ports."""

    changes: Callable[[Target], SourceTrees]
    """The trees of a target, base and head among them."""
    uses: Uses
    """What verl uses of Bridge."""
    summaries: SummaryStore
    """Where summaries of source files are kept."""
    folders: RunFolders
    """Where run folders are read; they must be judged by bands of ours, never by a folder's own."""
    today: date = date.min
    """The day, by UTC, on which entries of the policy end."""

    def plan(self, target: Target, policy: Policy, cells: CellMap | None = None) -> Planned:
        """The plan of a target, by what the cells of its rehearsal entered; None: by the packaged map."""
        planner = Planner(self.changes(target), self.uses, self.summaries, self.today)
        return plan_target(target, policy, planner, cells)

    def explain(self, target: Target, policy: Policy, path: str, symbol: str) -> tuple[Explanation, ...]:
        """What the plan would make of a symbol of the head, were it changed."""
        planner = Planner(self.changes(target), self.uses, self.summaries, self.today)
        return explain(planner, target.head_sha, policy, [(path, symbol)])

    def annotate(self, target: Target, plan: Plan, verdict: Verdict) -> tuple[Annotation, ...]:
        """The annotations of a failed job on the changed lines; files are read only for lines in a traceback."""
        paths = paths_to_read(plan, verdict)
        if not paths:
            return ()
        trees = self.changes(target)
        base = trees.change(plan.base, plan.head).merge_base or plan.base
        sources = {path: source for path in paths if (source := _source(trees, base, plan.head, path)) is not None}
        return annotate(plan, verdict, sources)

    def judge(self, run: Run, folder: Path) -> Judged:
        """The judgement of the folder of an ended run; it is also written into the folder."""
        return judge_ended(run, folder, self.folders)

    def judge_rehearsal(self, target: Target, run: Run, folder: Path) -> Judged:
        """The judgement of the folder of an ended rehearsal of a target; it is also written into the folder."""
        return judge_ended(run, folder, self.folders, self.changes(target))

    def judge_again(self, run: Run, job: Job, folder: Path) -> Judged | None:
        """The judgement of the folder of an ended run for a job that does the same for another change, if it tells."""
        return judge_again(run, job, folder, self.folders)


def _source(trees: SourceTrees, base: str, head: str, path: str) -> ChangedSource | None:
    """The file on both sides; None for one that the head has not."""
    now = trees.read_blob(head, path)
    return ChangedSource(now, trees.read_blob(base, path)) if now is not None else None
