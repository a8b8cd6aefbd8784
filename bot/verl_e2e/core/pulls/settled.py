"""What earlier attempts, the policy and the queue make of the last run of a job."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from verl_e2e.core.judge.execution import (
    JoinedExecution,
    Shortfall,
    accepted,
    join,
    shortfall,
    unknown_execution,
)
from verl_e2e.core.judge.verdict_document import read_verdict
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.execution import ChangeExecution, Side
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.gate import MAX_TITLE, Gate, Settle, Standing, overridden_reason
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import MergeGroup
from verl_e2e.core.pulls.queue import Pause
from verl_e2e.core.pulls.retry import Attempt, NextAttempt, attempts_due, set_aside_by
from verl_e2e.core.pulls.target_state import Hold, TargetState, hold_in_queue
from verl_e2e.core.pulls.wanted_jobs import runs_of


def execution_of_job(standing: Standing) -> ChangeExecution | None:
    """What the last run of a job executed of the change; None before it ended, and for a job that is for no change."""
    run, job = standing.run, standing.wanted.job
    if run is None or run.state is not RunState.FINISHED:
        return None
    verdict = read_verdict(run.verdict)
    # What the policy sets aside shows nothing, so nothing of it counts as executed.
    aside = standing.quarantine is not None
    if verdict is not None and verdict.execution is not None and not aside:
        return verdict.execution
    return unknown_execution(job.changed) if job is not None and job.changed else None


def joined_execution(found: Iterable[Standing]) -> JoinedExecution:
    """What the required jobs executed together."""
    return join(_executions(found))


def _executions(found: Iterable[Standing]) -> dict[str, ChangeExecution]:
    known = ((standing.wanted.id, execution_of_job(standing)) for standing in found if standing.wanted.required)
    return {job_id: execution for job_id, execution in known if execution is not None}


def with_accepted(found: tuple[Standing, ...], rules: ExecutionRules) -> tuple[Standing, ...]:
    """The standings, those accepted whose run never entered the change and that others make up for.

    A job that no host can run is named as such where the policy lets the gate open without it.
    """
    if rules.uncoverable is Demand.ALLOW:
        found = tuple(map(_without_hosts, found))
    if not any(standing.state is JobStatus.UNEXECUTED for standing in found):
        return found
    passed = _executions(standing for standing in found if standing.state is JobStatus.PASSED)
    return tuple(_weighed(standing, passed, rules) for standing in found)


def _without_hosts(standing: Standing) -> Standing:
    reason = standing.wanted.uncoverable if standing.state is JobStatus.BLOCKED else ""
    return replace(standing, state=JobStatus.UNCOVERABLE, reason=reason) if reason else standing


def _weighed(standing: Standing, passed: dict[str, ChangeExecution], rules: ExecutionRules) -> Standing:
    own = execution_of_job(standing) if standing.state is JobStatus.UNEXECUTED else None
    reason = accepted(own, passed, rules) if own is not None else ""
    if not reason:
        return standing
    parts = (standing.disagreement, "the run was good and never entered its part of the change", reason)
    return replace(standing, state=JobStatus.ACCEPTED, reason="; ".join(part for part in parts if part))


@dataclass(frozen=True, slots=True)
class ExecutionGap:
    """What no required job executed of a change, with the level whose override accepts it."""

    shortfall: Shortfall
    # A level of a job that was planned for the first of it; None where nothing keeps the gate closed.
    level: Level | None = None


def execution_gap(found: tuple[Standing, ...], rules: ExecutionRules, overridden: frozenset[Level]) -> ExecutionGap:
    """What no required job executed; an override of a level accepts what its jobs were planned for."""
    required = tuple(standing for standing in found if standing.wanted.required)
    levels = {standing.wanted.id: standing.wanted.level for standing in required}
    joined = joined_execution(required)
    gap = shortfall(joined, rules, (job_id for job_id, level in levels.items() if level in overridden))
    if not gap.closing:
        return ExecutionGap(gap)
    head = joined.of_side(Side.HEAD)
    allowed = rules.uncoverable is Demand.ALLOW
    closing = (item for item in head if not (allowed and item.function.uncoverable))
    open_jobs = [job for item in closing if item.never or item.unknown for job in item.planned]
    wanted = [levels[job] for job in (*open_jobs, *joined.cut_off) if levels[job] not in overridden]
    return ExecutionGap(gap, min(wanted))


# A good run that never entered the change opens the gate as well, where another job makes up for it.
_GOOD = frozenset({JobStatus.PASSED, JobStatus.UNEXECUTED})
_WAITS = "it waits for a free slot"
_ENDED_BADLY = frozenset({JobStatus.FAILED, JobStatus.BLOCKED})


def settled_by(target_state: TargetState, runs: tuple[Run, ...]) -> Settle:
    """What to make of each standing of a target; `runs` are those that speak for it, as far as they are decided."""
    attempts = attempts_due(target_state, runs)

    def settle(standing: Standing) -> Standing:
        if standing.run is None or standing.override is not None:
            return standing
        if standing.state in _GOOD:
            return _with_disagreement(standing, target_state)
        standing = _with_attempt(standing, attempts.get(standing.wanted.id))
        return _with_quarantine(standing, target_state) if standing.state in _ENDED_BADLY else standing

    return settle


def _with_attempt(standing: Standing, attempt: Attempt | None) -> Standing:
    """The standing with the attempt that follows, for which it waits, or with why none does."""
    if attempt is None:
        return standing
    if isinstance(attempt, NextAttempt):
        return replace(standing, state=JobStatus.WAITING, reason=attempt.reason, attempt=attempt)
    return replace(standing, reason=f"{standing.reason}; {attempt.reason}", attempt=attempt)


def _with_quarantine(standing: Standing, target_state: TargetState) -> Standing:
    """A bad end that the policy sets aside; what the gate makes of it is another key."""
    run, policy = standing.run, target_state.policy
    entry = set_aside_by(run, policy.quarantine, target_state.now.date()) if run is not None else None
    if entry is None:
        return standing
    allowed = policy.gate.quarantined is Demand.ALLOW
    state = JobStatus.TOLERATED if allowed else JobStatus.QUARANTINED
    until = f"quarantined until {entry.until.isoformat()} ({entry.reason}, {entry.link})"
    return replace(standing, state=state, reason=f"{until}; {standing.reason}", quarantine=entry)


def _with_disagreement(standing: Standing, target_state: TargetState) -> Standing:
    """A pass after a failure of the same job on the same head: both are named, and neither is the other's proof.

    Also where it failed under another pull request with this head: to close that one takes nothing back.
    """
    elsewhere = runs_of(standing.wanted, target_state.head_sha, target_state.elsewhere)
    attempts = (*elsewhere, *standing.earlier)
    failed = next((run for run in reversed(attempts) if run.result is Result.FAIL), None)
    if failed is None:
        return standing
    found = replace(standing, disagrees_with=failed)
    found = replace(found, reason=f"{found.disagreement}; {standing.reason}")
    if target_state.policy.gate.disagreement is Demand.ALLOW or not standing.wanted.required:
        return found
    given = next((item for item in target_state.overrides if item.level is standing.wanted.level), None)
    if given is None:
        return replace(found, state=JobStatus.BLOCKED)
    return replace(found, state=JobStatus.OVERRIDDEN, reason=overridden_reason((given,)), override=given)


def with_queue(found: Iterable[Standing], target_state: TargetState) -> tuple[Standing, ...]:
    """The standings with what the queue makes of runs that wait in it, and of the jobs that wait for these.

    A merge group is never held by a pause: the merge queue would take that for its answer, and the pause may end.
    """
    shown: dict[str, Standing] = {}
    for standing in found:
        shown[standing.wanted.id] = _in_queue(standing, target_state, shown)
    return tuple(shown.values())


def _in_queue(standing: Standing, target_state: TargetState, before: Mapping[str, Standing]) -> Standing:
    if standing.state is JobStatus.WAITING:
        holds = (before[required].hold for required in standing.wanted.requires if required in before)
        hold = next((hold for hold in holds if hold is not None), None)
        return _held(standing, hold) if hold is not None else standing
    run = standing.run
    if run is None or not run.waits_for_slot or standing.state is not JobStatus.RUNNING:
        return standing
    queue = target_state.queue
    held = queue.pause or queue.held.get(run.key)
    if held is None:
        return replace(standing, state=JobStatus.WAITING, reason=_WAITS) if queue.limited else standing
    hold = hold_in_queue(held)
    if isinstance(target_state.target, MergeGroup) and isinstance(held, Pause):
        return replace(standing, state=JobStatus.WAITING, reason=hold.sentence)
    return _held(standing, hold)


def _held(standing: Standing, hold: Hold) -> Standing:
    return replace(standing, state=JobStatus.HELD, reason=hold.in_short, hold=hold)


def with_place(decided: Gate, target_state: TargetState) -> Gate:
    """The gate with the place of the target in the queue, while nothing of it runs and something waits."""
    place = target_state.queue.place
    if place is None or decided.status is not JobStatus.RUNNING:
        return decided
    title = f"{decided.title}, place {place.position} of {place.waiting} in the queue"
    # A title that is full already says more important things.
    return replace(decided, title=title if len(title) <= MAX_TITLE else decided.title)
