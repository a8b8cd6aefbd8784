"""Judge what an ended run left, by its log and evidence: a run's own word counts for nothing."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from verl_e2e.app.judge_folder import judge_run, write_judgement
from verl_e2e.core.judge.criteria.run_record import Expected, hold_against_record, run_record
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict, verdict_json
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Record
from verl_e2e.core.pulls.job_order import same_job
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.ports import RunFolders

# A verdict is bounded by its parts; one beyond this is not kept, its result and sentence are.
MAX_VERDICT = 512 * 1024
NO_FOLDER = "the run ended and left no run folder"
OTHER_JOB = "the run folder holds another job than the one that was sent, so it is not evidence"
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


def blocked(sentence: str) -> Judged:
    """What cannot be judged."""
    return Judged(Result.BLOCKED, sentence)


def cannot_be_judged(why: object) -> Judged:
    """What cannot be judged because of what the run left."""
    return blocked(f"what the run left cannot be judged: {why}")


def with_doubt(judged: Judged, doubt: str) -> Judged:
    """The judgement with a limitation that the folder itself cannot tell, as who handed it over; empty for none."""
    verdict = read_verdict(judged.verdict)
    if not doubt or verdict is None:
        return judged
    limitation = f"{doubt[:1].upper()}{doubt[1:]}."
    return replace(judged, verdict=_kept(replace(verdict, limitations=(*verdict.limitations, limitation))))


def _kept(verdict: Verdict) -> str:
    text = verdict_json(verdict)
    return text if len(text) <= MAX_VERDICT else ""


def judge_ended(run: Run, folder: Path, folders: RunFolders) -> Judged:
    """Judge the run folder that was brought into `folder`, and write the judgement into it."""
    try:
        return _judged(run, folder, folders)
    except OSError as error:
        # A file of the run's where a folder of ours should be, or the other way round; it will be there for ever.
        return cannot_be_judged(error.strerror or type(error).__name__)
    except UserError as error:
        # Where we keep it is nobody's business.
        return cannot_be_judged(str(error).replace(str(folder), "run folder"))


def _judged(run: Run, folder: Path, folders: RunFolders) -> Judged:
    found = folders.find(folder)
    if len(found) != 1:
        return blocked(SEVERAL if found else NO_FOLDER)
    record = folders.record(found[0])
    if not _is_of(record.job, run):
        return blocked(OTHER_JOB)
    verdict, facts = judge_run(folders, found[0])
    if run.job is not None:
        fits = run_record(record, facts, Expected(run.took, run.nonce))
        verdict = hold_against_record(verdict, fits, run.job)
    write_judgement(folders, folder, (verdict,))
    return Judged(verdict.result, verdict.sentence, _kept(verdict), verdict.never_entered, _reported_s(record))


def _is_of(job: Job | None, run: Run) -> bool:
    """Whether a run folder is that of the run: its job is the one that was sent, wherever its repositories lie."""
    return job is not None and run.job is not None and same_job(job, run.job)


def _reported_s(record: Record) -> float:
    # The events are the run's own: what is not a number of seconds would not even be read back from the ledger.
    return max((event.t_s for event in record.events if math.isfinite(event.t_s) and event.t_s > 0), default=0.0)
