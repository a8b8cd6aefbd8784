"""Judge what a rehearsal left: its records are compared here, and no verdict of the machine that ran it is read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from verl_e2e.app.judge_finished import (
    NO_FOLDER,
    OTHER_JOB,
    SEVERAL,
    Judged,
    blocked,
    cannot_be_judged,
    reported_s,
)
from verl_e2e.config.maps import packaged_cell_map
from verl_e2e.core.compare.cell_map import cell_map, pack_cells, with_outcomes
from verl_e2e.core.compare.observation import Observed, ObserveLimits, observable
from verl_e2e.core.compare.rehearsal import Outcome, Rehearsal, judge_rehearsal
from verl_e2e.core.judge import wording
from verl_e2e.core.judge.criteria.run_record import Expected, run_record
from verl_e2e.core.model.causes import EngineEnd
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.execution import ChangedFunction
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Ended, Record, read_data
from verl_e2e.core.pulls.job_order import same_job
from verl_e2e.core.pulls.ledger import Rehearsed, Run
from verl_e2e.core.reach.changes import compare
from verl_e2e.core.report.rehearsal_text import first_failure, headline, rehearsal_json, render_rehearsal
from verl_e2e.ports import RunFolders, SourceTrees

# What a cell imports of Bridge lies there.
BRIDGE_CODE = "src/"
# The card shows the start of it; the whole is in the JSON document next to the records.
MOST_SECTION = 12_000
DOCUMENT, SECTION = "rehearsal.json", "rehearsal.md"
_RESULTS = {
    Outcome.FAIL: Result.FAIL,
    Outcome.BLOCKED: Result.BLOCKED,
    Outcome.CHANGED: Result.PASS,
    Outcome.EQUAL: Result.PASS,
}


def judge_ended_rehearsal(run: Run, folder: Path, trees: SourceTrees, folders: RunFolders) -> Judged:
    """Judge the rehearsal whose folder was brought into `folder`, and write the judgement into it."""
    try:
        return _judged(run, folder, trees, folders)
    except OSError as error:
        return cannot_be_judged(error.strerror or type(error).__name__)
    except UserError as error:
        return cannot_be_judged(str(error).replace(str(folder), "run folder"))


def _judged(run: Run, folder: Path, trees: SourceTrees, folders: RunFolders) -> Judged:
    places = folders.find(folder)
    if len(places) != 1 or run.rehearsal is None:
        return blocked(SEVERAL if places else NO_FOLDER, EngineEnd.LEFT_NOTHING)
    left, record = folders.rehearsal(places[0]), folders.record(places[0])
    if left.order is None or not same_job(left.order, run.rehearsal):
        return blocked(OTHER_JOB, EngineEnd.OTHER_FOLDER)
    if why := _why_not(record, run):
        return replace(cannot_be_judged(why), reported_s=reported_s(record))
    changed = tuple(changed_functions(trees, run.rehearsal.base, run.rehearsal.bridge.commit))
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
    judged = replace(outcome(found), reported_s=reported_s(record))
    if judged.rehearsed is None or not asked.whole or found.outcome is Outcome.BLOCKED:
        return judged
    commits = run.rehearsal.base, run.rehearsal.bridge.commit
    before, after = (trees.tree(commit, BRIDGE_CODE) for commit in commits)
    differing = {path: blob for path, blob in after.items() if before.get(path) != blob}
    # What a cell stands for is read in the table of this program, not in the folder.
    cells = cell_map(commits[1], differing, left.head, with_outcomes(packaged_cell_map().cells, found))
    return replace(judged, rehearsed=judged.rehearsed.model_copy(update={"cells": pack_cells(cells)}))


def outcome(found: Rehearsal) -> Judged:
    """What a rehearsal comes to for its run."""
    worst = first_failure(found)
    sentence = f"{headline(found)}: {worst}" if worst else headline(found)
    rehearsed = Rehearsed(
        outcome=found.outcome,
        equal_everywhere=found.equal_everywhere,
        unentered=len(found.unentered),
        section=_shortened(render_rehearsal(found)),
    )
    return Judged(_RESULTS[found.outcome], sentence, rehearsed=rehearsed)


def changed_functions(
    trees: SourceTrees, base: str, head: str, below: str = BRIDGE_CODE, prefix: str = ""
) -> Iterator[ChangedFunction]:
    """The functions below a folder that differ between two commits, their paths with a prefix."""
    before, after = trees.tree(base, below), trees.tree(head, below)
    paths = [path for path in sorted({*before, *after}) if before.get(path) != after.get(path) and path.endswith(".py")]
    ids = {found for path in paths for side in (before, after) if (found := side.get(path)) is not None}
    contents = trees.read_objects(ids)
    for path in paths:
        sides = (contents.get(before.get(path, "")), contents.get(after.get(path, "")))
        for function in compare(*sides).functions.changed:
            yield function.model_copy(update={"path": prefix + path})


def _why_not(record: Record, run: Run) -> str:
    """Why the records are evidence of nothing, empty where they are."""
    if record.seal is not None and record.seal.state == "broken":
        return wording.not_the_recorders(record.seal.problem)
    ends = [read_data(event, Ended) for event in record.events if event.kind == "ended"]
    last = ends[-1] if ends else None
    if last is not None and not last.exited_zero:
        return last.note or f"it ended early ({last.end_reason})"
    fits = run_record(record, None, Expected(run.took, run.nonce))
    return f"the record does not fit the run: {fits.summary}" if fits.state is State.BROKEN else ""


def _shortened(section: str) -> str:
    """The section up to the last whole line that fits."""
    if len(section) <= MOST_SECTION:
        return section
    kept = section[:MOST_SECTION].rpartition("\n")[0]
    return f"{kept}\n\n_Cut to fit; {DOCUMENT} has the whole._\n"
