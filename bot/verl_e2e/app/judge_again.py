"""Judge the folder of an ended run for a job that does the same and asks for another result; nothing is written."""

from dataclasses import replace
from pathlib import Path

from verl_e2e.app.judge_finished import Judged, is_of, outcome
from verl_e2e.core.judge.criteria.run_record import Expected, hold_against_record, run_record
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import read_verdict
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Record
from verl_e2e.core.model.related import Role
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.reuse_key import ASKED_OF_RESULT
from verl_e2e.ports import RunFolders


def judge_again(run: Run, job: Job, folder: Path, folders: RunFolders) -> Judged | None:
    """The judgement for the job.

    None where the folder is not there any more, holds another job, was compared with a merge base, or where its record
    does not tell of every function of the job's change.
    """
    try:
        return _judged(run, job, folder, folders)
    except (OSError, UserError):
        return None


def _judged(run: Run, job: Job, folder: Path, folders: RunFolders) -> Judged | None:
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
    if verdict.execution is not None and verdict.execution.not_recorded:
        return None
    return outcome(replace(verdict, limitations=(*verdict.limitations, *_doubts(run))), record)


def _doubts(run: Run) -> tuple[str, ...]:
    """The limitations of a verdict that its folder does not tell: they come after those that it does."""
    verdict = read_verdict(run.verdict)
    return () if verdict is None else verdict.limitations[len(verdict.left_open) :]
