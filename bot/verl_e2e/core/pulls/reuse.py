"""Which verdict counts for a job that has no run yet: of the same code, recent enough, and from someone who may say it.

A Pass is taken over, and a run that was good and never entered the change where it is the same change. A Fail is not: a
red answer comes from a run of this head, with its own comparison with the merge base. Blocked says nothing.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.core.pulls.pull import MergeGroup, Pull, Target, repository_of
from verl_e2e.core.pulls.requests import Entry, asked_for
from verl_e2e.core.pulls.reuse_key import is_image_pinned, same_but_commit
from verl_e2e.core.pulls.wanted_jobs import WantedJob, does, must_be_judged_again, runs_of

_RUN_AGAIN = "rerun"


def may_take_over(wanted: WantedJob, head_sha: str, runs: tuple[Run, ...], entries: Iterable[Entry]) -> bool:
    """Whether another verdict may stand for a job of this head: nothing of its own does, and no one asked for a run.

    Where the key leaves Bridge tests to another job, those must have passed on this head: an override or a tolerated
    failure of that job says nothing of them.
    """
    if not wanted.required or wanted.job is None or not wanted.reuse_key:
        return False
    if wanted.tested_by and not _tests_passed(wanted.tested_by, wanted.job, head_sha, runs):
        return False
    if any(asked.verb == _RUN_AGAIN for asked in asked_for(entries, head_sha)):
        return False
    made = runs_of(wanted, head_sha, runs)
    return not made or (made[-1].state is RunState.CANCELLED and made[-1].may_start_again)


def to_judge_again(wanted: WantedJob, head_sha: str, runs: tuple[Run, ...]) -> Run | None:
    """The run behind the last verdict of a job of this head, where that was good for what was asked then; else None."""
    known = [run for run in runs if does(run, wanted) and (run.required or not wanted.required)]
    last = max((run for run in known if run.head_sha == head_sha), key=lambda run: run.attempt, default=None)
    if last is None or not must_be_judged_again(last, wanted):
        return None
    ran = (run for run in known if run.head_sha == (last.carried_from or head_sha) and not run.carried_from)
    good = (run for run in ran if run.state is RunState.FINISHED and run.result is last.result)
    return max(good, key=lambda run: run.attempt, default=None)


def _tests_passed(job_id: str, job: Job, head_sha: str, runs: Iterable[Run]) -> bool:
    """Whether the last required run of another job of the head, with the same Bridge tests, was good."""
    made = [run for run in runs if run.head_sha == head_sha and run.job_id == job_id and run.required]
    last = max(made, key=lambda run: (run.attempt, run.created), default=None)
    if last is None or last.job is None or last.job.bridge_tests != job.bridge_tests:
        return False
    return last.result is Result.PASS or last.never_entered


def origin_of(wanted: WantedJob, target: Target, found: Iterable[Run], now: datetime, most_h: int) -> Run | None:
    """The run whose verdict may count for a job, None where there is none.

    The newest verdict on the code decides, but a Pass that any other run contradicts does not count: where attempts
    disagree, a head shows its own.
    """
    age = timedelta(hours=most_h)
    telling = [run for run in found if _is_telling(run, wanted) and now - run.updated <= age]
    if any(run.result is Result.FAIL and _may_contradict(run, target) for run in telling):
        return None
    passed = (run for run in telling if _may_speak(run, target) and run.result is not Result.FAIL)
    newest = max(passed, key=lambda run: (run.updated, run.key), default=None)
    if newest is None:
        return None
    return newest if newest.result is Result.PASS or is_same_change(newest, wanted) else None


def is_same_change(run: Run, wanted: WantedJob) -> bool:
    """Whether a run was for the very change that a job is for, so that its verdict holds as it is."""
    return run.job is not None and wanted.job is not None and same_but_commit(run.job, wanted.job)


def _is_telling(run: Run, wanted: WantedJob) -> bool:
    """Whether a run says something about the code of a job, by itself."""
    decided = run.result in (Result.PASS, Result.FAIL) or run.never_entered
    own = run.required and not run.carried_from and run.job is not None
    return run.state is RunState.FINISHED and decided and own and run.reuse_key == wanted.reuse_key


def _may_speak(run: Run, target: Target) -> bool:
    """Whether a run may speak for a target.

    One of the same pull request may. One of another may if nothing about it was left to chance or to a stranger: its
    image is pinned, it recorded which files it ran, and its head did not lie in a fork.
    """
    if run.number is not None and run.number in _numbers(target):
        return True
    return run.job is not None and is_image_pinned(run.job) and bool(run.executed_files) and not run.from_fork


def _may_contradict(run: Run, target: Target) -> bool:
    """Whether a failed run speaks against taking over a Pass: any but that of a stranger's other pull request.

    It need not have recorded anything, for what crashed early did not, and no other result becomes green by it.
    """
    return not run.from_fork or run.number in _numbers(target)


def _numbers(target: Target) -> tuple[int, ...]:
    return (target.ref.number,) if isinstance(target, Pull) else target.pulls


def taken_over(origin: Run, wanted: WantedJob, target: Target, made: Iterable[Run], now: datetime) -> Run:
    """The run that stands for a job by the verdict of another one, at no cost; `made` are all runs of the head."""
    attempt = 1 + max((run.attempt for run in made if does(run, wanted)), default=0)
    key = run_key(repository_of(target), target.head_sha, wanted.digest, attempt)
    return origin.model_copy(
        update={
            "key": key,
            "number": None if isinstance(target, MergeGroup) else target.ref.number,
            "head_sha": target.head_sha,
            "job_id": wanted.id,
            "job_digest": wanted.digest,
            "attempt": attempt,
            "carried_from": origin.head_sha,
            "origin_number": origin.number,
            "origin_at": origin.updated,
            "handle": "",
            "asked_by": "",
            "nonce": "",
            "retry_of": "",
            "gpu_minutes": 0.0,
            "created": now,
            "updated": now,
            "job": wanted.job,
            "from_fork": isinstance(target, Pull) and target.from_fork,
        }
    )


def origin_text(run: Run) -> str:
    """Where a verdict was taken from, empty for a run's own: head, pull request and day."""
    if not run.carried_from:
        return ""
    if run.carried_from == run.head_sha and run.origin_at is not None:
        return f"judged again for this job, from the run that ended on {run.origin_at:%Y-%m-%d}"
    whose = f" of #{run.origin_number}" if run.origin_number is not None else ""
    when = f", {run.origin_at:%Y-%m-%d}" if run.origin_at is not None else ""
    return f"reused from {run.carried_from[:12]}{whose}{when}"
