"""What is found out from text that strangers wrote: each question a method, over values and the ports that it reads.

The service asks these in processes with limits, tests and small tools in their own. What an ended run or rehearsal left
is judged by its records: a run's own word counts for nothing.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Protocol

from verl_e2e.app.judge_folder import judge_run, write_verdict
from verl_e2e.app.plan_change import CommitsAt, Planned, Planner, differences_between, explain_targets, plan_target
from verl_e2e.config.maps import other_uses, packaged_cell_map
from verl_e2e.core.compare.cell_map import CellMap, cell_map, pack_cells, with_outcomes
from verl_e2e.core.compare.rehearsal import CellOutcome, Observed, ObserveLimits, Rehearsal, judge_rehearsal, observable
from verl_e2e.core.judge import wording
from verl_e2e.core.judge.criteria.run_record import Expected, hold_against_record, run_record
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict, verdict_json
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, ChangedFunction, in_megatron_lm
from verl_e2e.core.model.jobs import Job, RehearsalJob
from verl_e2e.core.model.outcome import EngineEnd, Recurrence, Result, Stage, of_engine
from verl_e2e.core.model.record import EndedEvent, Record, read_data
from verl_e2e.core.model.related import Role
from verl_e2e.core.plan.explain import Explanation
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.figures import phase_seconds
from verl_e2e.core.pulls.forge import Annotation, Target, repository_of
from verl_e2e.core.pulls.job_order import megatron_lm_of, same_job
from verl_e2e.core.pulls.ledger import Rehearsed, Run
from verl_e2e.core.pulls.wanted_jobs import ASKED_OF_RESULT
from verl_e2e.core.reach.bump import MEGATRON_CODE
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.report.annotations import ChangedSource, annotate, paths_to_read
from verl_e2e.core.report.rehearsal_text import first_failure, headline, rehearsal_json, render_rehearsal
from verl_e2e.core.text import packed
from verl_e2e.ports import RunFolders, SourceTrees, SummaryStore

# A verdict is bounded by its parts; one beyond this is not kept, its result and sentence are.
MAX_VERDICT = 512 * 1024
NO_FOLDER = "the run ended and left no run folder"
OTHER_JOB = "the run folder holds another job than the one that was sent, so it is not evidence"
# The names of some hundred files, packed.
_MAX_EXECUTED = 64 * 1024
SEVERAL = "the run left not one run folder but several"


@dataclass(frozen=True, slots=True)
class Judged:
    """What the folder of an ended run comes to."""

    result: Result
    """The result; Blocked also where nothing could be judged."""
    sentence: str
    """One sentence for people."""
    verdict: str = ""
    """The text of verdict.json; empty where there is no verdict, or one too long to be kept."""
    never_entered: bool = False
    """Whether nothing keeps the run from a pass but that it never entered the changed code."""
    reported_s: float = 0.0
    """Seconds that the run's own events tell of, not below zero."""
    causes: tuple[str, ...] = ()
    """What kept the run from a pass, as identifiers of `verl_e2e.core.model.outcome`."""
    undecided: bool = False
    """Whether the change may have caused what blocked the run."""
    recurrence: Recurrence | None = None
    """What related runs show of the failure."""
    stage: Stage | None = None
    """Where the failure lies."""
    fingerprint: str = ""
    """What identifies the failure, of 16 hexadecimal digits; empty where nothing does."""
    executed_files: str = ""
    """The sources of Bridge of which the run executed something, packed; empty where no whole record tells."""
    phase_s: tuple[tuple[str, float], ...] = ()
    """Seconds of the phases, by the same events; see `verl_e2e.core.pulls.figures`."""
    rehearsed: Rehearsed | None = None
    """What a rehearsal came to; None for a job."""

    @property
    def of_run(self) -> dict[str, object]:
        """What a run keeps of it."""
        fields = ("result", "sentence", "verdict", "never_entered", "causes", "undecided", "recurrence", "stage")
        return {name: getattr(self, name) for name in (*fields, "fingerprint", "executed_files", "rehearsed")}


def blocked_by_end(sentence: str, end: EngineEnd) -> Judged:
    """What cannot be judged, and why there is nothing to judge."""
    return Judged(Result.BLOCKED, sentence, causes=(of_engine(end),))


def cannot_be_judged(why: object) -> Judged:
    """What cannot be judged because of what the run left."""
    return blocked_by_end(f"what the run left cannot be judged: {why}", EngineEnd.NOT_JUDGED)


def with_doubt(judged: Judged, doubt: str) -> Judged:
    """The judgement with a limitation that the folder itself cannot tell, as who handed it over; empty for none."""
    verdict = read_verdict(judged.verdict)
    if doubt and judged.rehearsed is not None:
        return replace(judged, sentence=f"{judged.sentence}; {doubt}")
    if not doubt or verdict is None:
        return judged
    limitation = f"{doubt[:1].upper()}{doubt[1:]}."
    return replace(judged, verdict=_kept(replace(verdict, limitations=(*verdict.limitations, limitation))))


def _kept(verdict: Verdict) -> str:
    text = verdict_json(verdict)
    return text if len(text) <= MAX_VERDICT else ""


def judge_ended(
    run: Run, folder: Path, folders: RunFolders, trees: SourceTrees | None = None, megatron_lm: CommitsAt | None = None
) -> Judged:
    """Judge the run folder that was brought into `folder`, a rehearsal by its trees, and write the judgement there."""
    try:
        if trees is None:
            return _judged(run, folder, folders)
        return _judged_rehearsal(run, folder, trees, folders, megatron_lm)
    except OSError as error:
        # A file of the run's where a folder of ours should be, or the other way round; it will be there for ever.
        return cannot_be_judged(error.strerror or type(error).__name__)
    except UserError as error:
        # Where we keep it is nobody's business.
        return cannot_be_judged(str(error).replace(str(folder), "run folder"))


def _judged(run: Run, folder: Path, folders: RunFolders) -> Judged:
    found = folders.find(folder)
    if len(found) != 1:
        return blocked_by_end(SEVERAL if found else NO_FOLDER, EngineEnd.LEFT_NOTHING)
    record = folders.record(found[0])
    if not is_of(record.job, run):
        return blocked_by_end(OTHER_JOB, EngineEnd.OTHER_FOLDER)
    verdict, facts = judge_run(folders, found[0])
    if run.job is not None:
        fits = run_record(record, facts, Expected(run.took, run.nonce))
        verdict = hold_against_record(verdict, fits, run.job)
    write_verdict(folders, found[0], verdict, record)
    return outcome(verdict, record)


def outcome(verdict: Verdict, record: Record) -> Judged:
    """What a verdict on a record comes to for a run."""
    executed, files = record.executed, ""
    if executed is not None and executed.is_whole:
        paths = [file.path for file in executed.files if not in_megatron_lm(file.path)]
        files = packed.pack_text("\n".join(sorted(paths)))
    return Judged(
        verdict.result,
        verdict.sentence,
        _kept(verdict),
        verdict.never_entered,
        reported_s(record),
        verdict.causes,
        verdict.undecided,
        verdict.recurrence,
        verdict.stage,
        hashlib.sha256("\0".join(verdict.fingerprint).encode()).hexdigest()[:16] if verdict.fingerprint else "",
        files if len(files) <= _MAX_EXECUTED else "",
        phase_s=phase_seconds(record.events),
    )


def is_of(job: Job | None, run: Run) -> bool:
    """Whether a run folder is that of the run: its job is the one that was sent, wherever its repositories lie."""
    return job is not None and run.job is not None and same_job(job, run.job)


def reported_s(record: Record) -> float:
    """Seconds that the events of a run tell of."""
    # The events are the run's own: what is not a number of seconds would not even be read back from the ledger.
    return max((event.t_s for event in record.events if math.isfinite(event.t_s) and event.t_s > 0), default=0.0)


def judge_again(run: Run, job: Job, folder: Path, folders: RunFolders) -> Judged | None:
    """The judgement for the job.

    None where the folder is not there any more, holds another job, was compared with a merge base, or where its record
    does not tell of every function of the job's change.
    """
    try:
        found = folders.find(folder)
        record = folders.record(found[0]) if len(found) == 1 else Record()
        if record.job is None or run.job is None or not is_of(record.job, run):
            return None
        if any(related.role is Role.MERGE_BASE for related in record.related):
            return None
        # The folder is redacted, so of what is asked only that is exchanged that differs.
        asked = ((key, getattr(job, key), getattr(run.job, key)) for key in ASKED_OF_RESULT)
        change = {key: now for key, now, then in asked if now != then}
        facts = folders.facts(found[0])
        verdict = judge(record.model_copy(update={"job": record.job.model_copy(update=change)}), facts)
        verdict = hold_against_record(verdict, run_record(record, facts, Expected(run.took, run.nonce)), run.job)
    except (OSError, UserError):
        return None
    if verdict.execution is not None and verdict.execution.not_recorded:
        return None
    # What its folder does not tell comes after the limitations that it does tell.
    before = read_verdict(run.verdict)
    doubts = () if before is None else before.limitations[len(before.left_open) :]
    return outcome(replace(verdict, limitations=(*verdict.limitations, *doubts)), record)


# What a cell imports of Bridge lies there.
BRIDGE_CODE = "src/"
# The card shows the start of it; the whole is in the JSON document next to the records.
MOST_SECTION = 12_000
DOCUMENT, SECTION = "rehearsal.json", "rehearsal.md"
_RESULTS = {
    CellOutcome.FAIL: Result.FAIL,
    CellOutcome.BLOCKED: Result.BLOCKED,
    CellOutcome.CHANGED: Result.PASS,
    CellOutcome.EQUAL: Result.PASS,
}


def _judged_rehearsal(
    run: Run, folder: Path, trees: SourceTrees, folders: RunFolders, megatron_lm: CommitsAt | None
) -> Judged:
    places = folders.find(folder)
    if len(places) != 1 or run.rehearsal is None:
        return blocked_by_end(SEVERAL if places else NO_FOLDER, EngineEnd.LEFT_NOTHING)
    left, record = folders.rehearsal(places[0]), folders.record(places[0])
    if left.order is None or not same_job(left.order, run.rehearsal):
        return blocked_by_end(OTHER_JOB, EngineEnd.OTHER_FOLDER)
    if why := _why_no_evidence(record, run):
        return replace(cannot_be_judged(why), reported_s=reported_s(record))
    commits = run.rehearsal.base, run.rehearsal.bridge.commit
    functions, blobs_of_bump = _bumped(run.rehearsal, trees, megatron_lm)
    changed = (*functions_between(trees, *commits), *functions)
    asked, observed = left.asked, left.observed
    if observed is None and any(observable(changed)):
        # Faults were to be tried, and nothing says what they showed.
        observed = Observed()
    found = judge_rehearsal(
        left.base,
        left.head,
        changed,
        asked=asked.cells,
        whole=asked.whole,
        observed=observed,
        observe=ObserveLimits(),
        run=left.note,
    )
    folders.write(folder, {DOCUMENT: rehearsal_json(found), SECTION: render_rehearsal(found)})
    judged = replace(outcome_of_rehearsal(found), reported_s=reported_s(record))
    if judged.rehearsed is None or not asked.whole or found.outcome is CellOutcome.BLOCKED:
        return judged
    before, after = (trees.tree(commit, BRIDGE_CODE) for commit in commits)
    differing = {path: blob for path, blob in after.items() if before.get(path) != blob}
    # What a cell stands for is read in the table of this program, not in the folder.
    rows = with_outcomes(packaged_cell_map().cells, found)
    # Where the files of a bump take too much, those of Bridge are kept.
    cells = (
        pack_cells(cell_map(commits[1], blobs, left.head, rows)) for blobs in (differing | blobs_of_bump, differing)
    )
    return replace(judged, rehearsed=judged.rehearsed.model_copy(update={"cells": next(filter(None, cells), "")}))


def _bumped(
    job: RehearsalJob, trees: SourceTrees, megatron_lm: CommitsAt | None
) -> tuple[tuple[ChangedFunction, ...], dict[str, str]]:
    """The functions of Megatron-LM that differ where a rehearsed change moves it, and the contents of their files."""
    links = (trees.links(commit).get(MEGATRON_LM_FOLDER, "") for commit in (job.base, job.bridge.commit))
    pins = tuple(link.removeprefix("commit ") for link in links if link.startswith("commit "))
    if megatron_lm is None or len(set(pins)) < 2:
        return (), {}
    core, prefix = megatron_lm(megatron_lm_of(job), pins), f"{MEGATRON_LM_FOLDER}/"
    changed = tuple(functions_between(core, pins[0], pins[1], MEGATRON_CODE, prefix))
    paths = {function.path for function in changed}
    files = {f"{prefix}{name}": blob for name, blob in core.tree(pins[1], MEGATRON_CODE).items()}
    return changed, {path: blob for path, blob in files.items() if path in paths}


def outcome_of_rehearsal(found: Rehearsal) -> Judged:
    """What a rehearsal comes to for its run."""
    worst = first_failure(found)
    at = f" at {worst.where}" if worst and worst.where else ""
    edited = f", first changed function {worst.edited}" if worst and worst.edited else ""
    sentence = f"{headline(found)}: {worst.what}{at}{edited}" if worst else headline(found)
    section = render_rehearsal(found)
    if len(section) > MOST_SECTION:
        # Up to the last whole line that fits.
        kept = section[:MOST_SECTION].rpartition("\n")[0]
        section = f"{kept}\n\n_Cut to fit; {DOCUMENT} has the whole._\n"
    rehearsed = Rehearsed(
        outcome=found.outcome,
        equal_everywhere=found.equal_everywhere,
        unentered=len(found.unentered),
        failure=worst,
        section=section,
    )
    return Judged(_RESULTS[found.outcome], sentence, rehearsed=rehearsed)


def functions_between(
    trees: SourceTrees, base: str, head: str, below: str = BRIDGE_CODE, prefix: str = ""
) -> Iterator[ChangedFunction]:
    """The functions below a folder that differ between two commits, their paths with a prefix."""
    for path, difference in differences_between(trees, base, head, below).items():
        for function in difference.functions.changed:
            yield function.model_copy(update={"path": prefix + path})


def _why_no_evidence(record: Record, run: Run) -> str:
    """Why the records are evidence of nothing, empty where they are."""
    if record.seal is not None and record.seal.state == "broken":
        return wording.not_the_recorders(record.seal.problem)
    ends = [read_data(event, EndedEvent) for event in record.events if event.kind == "ended"]
    last = ends[-1] if ends else None
    if last is not None and not last.exited_zero:
        return last.note or f"it ended early ({last.end_reason})"
    fits = run_record(record, None, Expected(run.took, run.nonce))
    return f"the record does not fit the run: {fits.summary}" if fits.state is State.BROKEN else ""


class Analysis(Protocol):
    """The questions. LimitError when an answer would take more than it may."""

    def plan(self, target: Target, policy: Policy, cells: CellMap | None = None, megatron_lm: str = "") -> Planned:
        """The plan of a target, by what the cells of its rehearsal entered; None: by the packaged map.

        `megatron_lm` is a commit in the place of the one that the head pins.
        """
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
    megatron_lm: Callable[[str, str, tuple[str, ...]], SourceTrees] | None = None
    """The commits of Megatron-LM that a repository's changes name: by its name, the address, and full SHAs."""

    def plan(self, target: Target, policy: Policy, cells: CellMap | None = None, megatron_lm: str = "") -> Planned:
        return plan_target(target, policy, self._planner(target), cells, megatron_lm)

    def explain(self, target: Target, policy: Policy, path: str, symbol: str) -> tuple[Explanation, ...]:
        return explain_targets(self._planner(target), target.head_sha, policy, [(path, symbol)])

    def _planner(self, target: Target) -> Planner:
        commits = self._commits_for(target)
        return Planner(self.changes(target), self.uses, self.summaries, self.today, commits, other_uses())

    def _commits_for(self, target: Target) -> CommitsAt | None:
        return partial(self.megatron_lm, repository_of(target)) if self.megatron_lm is not None else None

    def annotate(self, target: Target, plan: Plan, verdict: Verdict) -> tuple[Annotation, ...]:
        paths = paths_to_read(plan, verdict)
        if not paths:
            return ()
        trees = self.changes(target)
        base = trees.change(plan.base, plan.head).merge_base or plan.base
        at_head = {path: trees.read_blob(plan.head, path) for path in paths}
        sources = {
            path: ChangedSource(now, trees.read_blob(base, path)) for path, now in at_head.items() if now is not None
        }
        return annotate(plan, verdict, sources)

    def judge(self, run: Run, folder: Path) -> Judged:
        return judge_ended(run, folder, self.folders)

    def judge_rehearsal(self, target: Target, run: Run, folder: Path) -> Judged:
        return judge_ended(run, folder, self.folders, self.changes(target), self._commits_for(target))

    def judge_again(self, run: Run, job: Job, folder: Path) -> Judged | None:
        return judge_again(run, job, folder, self.folders)
