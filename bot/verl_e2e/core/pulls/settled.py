"""What earlier attempts, the policy and the queue make of the last run of a job."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from verl_e2e.core.model.access import Demand
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.gate import MAX_TITLE, Gate, Settle, Standing, overridden_reason
from verl_e2e.core.pulls.hold_reason import Hold, hold_in_queue
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.pull import MergeGroup
from verl_e2e.core.pulls.quarantine import set_aside_by
from verl_e2e.core.pulls.queue import Pause
from verl_e2e.core.pulls.retry import Attempt, NextAttempt, attempts_due
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.wanted_jobs import runs_of

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
