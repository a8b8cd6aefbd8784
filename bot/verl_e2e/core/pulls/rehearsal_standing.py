"""Where the rehearsal of a head stands, whether the jobs that need a GPU may start, and what the gate makes of it.

It comes first: jobs wait for it, and a Fail keeps them from starting where the policy says so. What it cannot say is no
reason to wait: one that was blocked, lost or takes too long lets the jobs start, and the card says why.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from verl_e2e.core.compare.rehearsal import Outcome
from verl_e2e.core.model.access import Demand
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.rehearsal_job import REHEARSAL, RehearsalJob
from verl_e2e.core.pulls.commands import asked_again, cancelled_by
from verl_e2e.core.pulls.job_status import UNDERWAY, JobStatus, status_of_run
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.core.pulls.pull import Pull
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.trust import NeedsApproval

STARTS_WITHOUT = "jobs start without it"
_AFTER_A_FAIL = "an earlier attempt failed, so jobs start after this one alone"
_OF_OUTCOME = {
    Outcome.FAIL: JobStatus.FAILED,
    Outcome.BLOCKED: JobStatus.BLOCKED,
    Outcome.CHANGED: JobStatus.PASSED,
    Outcome.EQUAL: JobStatus.PASSED,
}


@dataclass(frozen=True, slots=True)
class RehearsalStanding:
    """The status of a head's rehearsal."""

    job: RehearsalJob
    status: JobStatus
    # Why it has that status, as a clause.
    reason: str
    # Whether jobs may start.
    lets_start: bool
    # Its last run, None where it has none.
    run: Run | None = None
    # When jobs start without its answer, None where they do not wait for one.
    starts_at: datetime | None = None
    # Why it closes the gate, as a sentence; empty where it does not.
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether it ran every cell on this very head and found nothing that the change moves."""
        rehearsed = self.run.rehearsed if self.run is not None else None
        return self.status is JobStatus.PASSED and rehearsed is not None and rehearsed.equal_everywhere

    @property
    def is_underway(self) -> bool:
        """Whether it is still to be waited for."""
        return self.status in UNDERWAY and not self.lets_start


def rehearsals_of(target_state: TargetState) -> tuple[Run, ...]:
    """The runs of this very rehearsal on this very head, by attempt; those of other pull requests with it too."""
    job = target_state.rehearsal
    return () if job is None else _runs_of(job, (*target_state.elsewhere, *target_state.here))


def rehearsed_before_jobs(job: RehearsalJob, runs: Iterable[Run]) -> Run | None:
    """The last run of a head's rehearsal that said what cells entered before any job of the head began, if one did.

    A verdict that was taken over from another head is not a job that began.
    """
    known = tuple(runs)
    jobs = (run.created for run in known if run.rehearsal is None and not run.carried_from)
    began = min(jobs, default=None)
    telling = [run for run in _runs_of(job, known) if run.rehearsed is not None and run.rehearsed.cells]
    in_time = [run for run in telling if began is None or run.updated <= began]
    return in_time[-1] if in_time else None


def _runs_of(job: RehearsalJob, runs: Iterable[Run]) -> tuple[Run, ...]:
    """The runs of exactly this rehearsal, each once, by attempt."""
    digest = job.digest()
    same = {run.key: run for run in runs if run.job_id == REHEARSAL and run.job_digest == digest}
    return tuple(sorted(same.values(), key=lambda run: run.attempt))


def rehearsal_standing(target_state: TargetState) -> RehearsalStanding | None:
    """The standing of the head's rehearsal, None where it has none."""
    job, runs = target_state.rehearsal, rehearsals_of(target_state)
    if job is None:
        return None
    standing = _of_last(job, runs[-1] if runs else None, target_state)
    # Only what the cells say takes the place of a Fail: not an attempt that is under way, lost, cancelled or blocked.
    answers = [run for run in runs if run.rehearsed is not None and run.rehearsed.outcome is not Outcome.BLOCKED]
    if not answers or answers[-1] is standing.run or answers[-1].rehearsed is None:
        return standing
    earlier = _judged(job, answers[-1], answers[-1].rehearsed.outcome, target_state)
    if not earlier.failure:
        return standing
    if standing.status in UNDERWAY:
        return replace(standing, reason=_AFTER_A_FAIL, lets_start=False, starts_at=None)
    reason = f"an earlier attempt failed, and no later one has passed: {earlier.failure}"
    return replace(standing, status=JobStatus.FAILED, reason=reason, lets_start=False, failure=earlier.failure)


def _of_last(job: RehearsalJob, last: Run | None, target_state: TargetState) -> RehearsalStanding:
    """The standing by the last attempt alone."""
    if last is None or (last.state is RunState.CANCELLED and last.may_start_again):
        return _not_begun(job, target_state)
    if not last.state.final:
        return _going(job, last, target_state)
    if last.state is RunState.FINISHED and last.rehearsed is not None:
        return _judged(job, last, last.rehearsed.outcome, target_state)
    status, reason = status_of_run(last), last.sentence or last.reason or f"the run is {last.state}"
    return RehearsalStanding(job, status, f"{reason}; {STARTS_WITHOUT}", lets_start=True, run=last)


def spares_level_0(target_state: TargetState, standing: RehearsalStanding | None) -> bool:
    """Whether level 0 would show nothing more: only imports differ, and every cell is equal on this very head."""
    plan = target_state.plan
    return standing is not None and standing.is_equal and plan is not None and plan.differs_at_import_alone


def rehearsal_to_start(target_state: TargetState) -> Run | None:
    """The run of the head's rehearsal that is to start now: its first, or one that someone asked for again."""
    standing = rehearsal_standing(target_state)
    if standing is None or target_state.queue.pause is not None or _hold(target_state):
        return None
    last, source = standing.run, ""
    if last is not None:
        source = asked_again(last, target_state.here, target_state.entries)
        if not source:
            return None
    job, attempts = standing.job, rehearsals_of(target_state)
    attempt, digest = 1 + max((run.attempt for run in attempts), default=0), job.digest()
    return Run(
        key=run_key(target_state.repository, target_state.head_sha, digest, attempt),
        repository=target_state.repository,
        number=target_state.number,
        head_sha=target_state.head_sha,
        job_id=REHEARSAL,
        job_digest=digest,
        attempt=attempt,
        required=False,
        queue_deadline_s=target_state.policy.rehearsal.limit_s,
        asked_by=source,
        merge_base=job.base,
        created=target_state.now,
        updated=target_state.now,
        rehearsal=job,
        from_fork=isinstance(target_state.target, Pull) and target_state.target.from_fork,
    )


def why_not_wanted(run: Run, target_state: TargetState) -> str:
    """Why exactly this rehearsal is not wanted any more, empty while it is or while that is not known."""
    if target_state.plan is None or (target_state.rehearsal and target_state.rehearsal.digest() == run.job_digest):
        return ""
    return "another rehearsal takes its place" if target_state.rehearsal else "no rehearsal is asked for any more"


def _hold(target_state: TargetState) -> str:
    """What keeps a rehearsal of the head from starting, as a clause; empty for nothing."""
    if why := target_state.over or target_state.problem or target_state.rehearsal_missing:
        return why
    if target_state.draft:
        return "drafts are not rehearsed"
    if target_state.policy.rehearsal.approval and isinstance(target_state.trust, NeedsApproval):
        return f"it needs an approval: {target_state.trust.reason}"
    cancelled = cancelled_by(target_state.entries, target_state.head_sha)
    return f"cancelled by {cancelled.actor}" if cancelled is not None else ""


def _not_begun(job: RehearsalJob, target_state: TargetState) -> RehearsalStanding:
    if missing := target_state.rehearsal_missing:
        return RehearsalStanding(job, JobStatus.BLOCKED, f"{missing}; {STARTS_WITHOUT}", lets_start=True)
    if why := _hold(target_state):
        # Jobs are held by the same, so nothing waits for ever.
        return RehearsalStanding(job, JobStatus.HELD, why, lets_start=False)
    return RehearsalStanding(job, JobStatus.WAITING, "it is about to start", lets_start=False)


def _going(job: RehearsalJob, last: Run, target_state: TargetState) -> RehearsalStanding:
    status, limit = status_of_run(last), timedelta(seconds=target_state.policy.rehearsal.limit_s)
    if target_state.now - last.created >= limit:
        reason = f"it has no answer after {limit.total_seconds() / 60:.0f} minutes; {STARTS_WITHOUT}"
        return RehearsalStanding(job, status, reason, lets_start=True, run=last)
    starts_at = last.created + limit
    return RehearsalStanding(job, status, "jobs start after it", lets_start=False, run=last, starts_at=starts_at)


def _judged(job: RehearsalJob, last: Run, outcome: Outcome, target_state: TargetState) -> RehearsalStanding:
    status, sentence = _OF_OUTCOME[outcome], last.sentence
    if outcome is Outcome.BLOCKED:
        sentence = f"{sentence}; {STARTS_WITHOUT}"
    closes = outcome is Outcome.FAIL and target_state.policy.rehearsal.fail is Demand.BLOCK
    if closes and (aside := _set_aside(target_state)):
        closes, sentence = False, f"{sentence}; {aside}"
    failure = sentence if closes else ""
    return RehearsalStanding(job, status, sentence, lets_start=not closes, run=last, failure=failure)


def _set_aside(target_state: TargetState) -> str:
    """That people took the responsibility for every level of the plan, of level 0 where it has none; else empty."""
    given = {override.level: override for override in target_state.overrides}
    needed = set(target_state.plan.levels if target_state.plan is not None else ()) or {Level.SMOKE}
    if not needed <= given.keys():
        return ""
    people = " and ".join(dict.fromkeys(given[level].actor for level in sorted(needed)))
    return f"set aside, because {people} overrode every level of the plan"
