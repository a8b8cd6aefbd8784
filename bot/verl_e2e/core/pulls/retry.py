"""Whether a job that the infrastructure blocked gets another attempt, when, and why not.

Only the last run of a job counts, and only where it is Blocked by causes that no change can have (see
`verl_e2e.core.pulls.retry_classes`). What failed once is never run again by itself: a later pass would hide it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.hold_reason import hold, hold_of_plan
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import MergeGroup
from verl_e2e.core.pulls.requests import asked_again
from verl_e2e.core.pulls.retry_classes import RetryClass, class_of
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.wanted_jobs import WantedJob, does, runs_of

DAY = timedelta(days=1)
# What ended longer ago is left to a person: no one may wait for it any more.
STALE = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """Another attempt that a job gets by itself."""

    # The run that it repeats.
    after: Run
    # Why that one may be repeated.
    found: RetryClass
    # When it may begin.
    at: datetime

    @property
    def reason(self) -> str:
        """Why there is one, as a clause."""
        number = self.after.attempt
        return f"attempt {number} met a {self.found}, so attempt {number + 1} begins at {self.at:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class NoAttempt:
    """Why a job gets no further attempt, although the infrastructure blocked it."""

    # As a clause.
    reason: str


Attempt = NextAttempt | NoAttempt


def attempts_due(target_state: TargetState, runs: tuple[Run, ...]) -> dict[str, Attempt]:
    """What becomes of each job that the infrastructure blocked, by its id; other jobs are not named.

    `runs` are those that speak for the target, as far as they are decided.
    """
    spent = _Spent.of(target_state, runs)
    found: dict[str, Attempt] = {}
    for wanted in target_state.wanted:
        of_job = runs_of(wanted, target_state.head_sha, runs)
        answer = _answer(wanted, of_job, target_state, spent)
        if answer is not None:
            found[wanted.id] = answer
        if isinstance(answer, NextAttempt):
            spent = _Spent(spent.count + 1, spent.gpu_minutes + wanted.gpu_minutes)
    return found


def may_follow(runs: Iterable[Run], now: datetime) -> bool:
    """Whether another attempt of one of these runs may still begin, as far as the runs themselves say.

    For those who look only now and then, and must not pass over a target that waits for one.
    """
    known = tuple(runs)
    repeated = {run.retry_of for run in known}
    return any(_may_be_tried(run) and run.key not in repeated and now - run.updated <= STALE for run in known)


def _may_be_tried(run: Run) -> bool:
    return _was_blocked(run) and class_of(run.causes, undecided=run.undecided) in _CAN_BE_TRIED


@dataclass(frozen=True, slots=True)
class _Spent:
    """What attempts of this kind have taken of the day's budget."""

    count: int
    gpu_minutes: float

    @classmethod
    def of(cls, target_state: TargetState, runs: tuple[Run, ...]) -> "_Spent":
        own = (run for run in runs if run.retry_of and run.number == target_state.number)
        again = [run for run in own if target_state.now - run.created < DAY]
        planned = {wanted.id: float(wanted.gpu_minutes) for wanted in target_state.wanted}
        # One under way has no minutes yet, and will have about as many as were planned.
        return cls(len(again), sum(run.gpu_minutes if run.state.final else planned.get(run.job_id, 0) for run in again))


def _answer(wanted: WantedJob, runs: tuple[Run, ...], target_state: TargetState, spent: _Spent) -> Attempt | None:
    if not runs or wanted.job is None or not _was_blocked(runs[-1]):
        return None
    last = runs[-1]
    held = hold_of_plan(target_state) if wanted.required else hold(target_state)
    if held is not None or asked_again(last, target_state.here, target_state.entries):
        # It does not start, or a person's request starts it.
        return None
    found = class_of(last.causes, undecided=last.undecided)
    if found not in _CAN_BE_TRIED:
        return None
    # A merge queue waits for its answer, so its group does not wait for the next attempt.
    wait_s = 0 if isinstance(target_state.target, MergeGroup) else target_state.policy.retry.wait_s * 2 ** _tried(runs)
    at = last.updated + timedelta(seconds=wait_s)
    refused = next(_refusals(wanted, runs, found, target_state, spent, max(at, target_state.now)), "")
    return NoAttempt(refused) if refused else NextAttempt(last, found, at)


_CAN_BE_TRIED = frozenset({RetryClass.PASSING, RetryClass.LASTING})


def _was_blocked(run: Run) -> bool:
    judged = run.state is RunState.FINISHED and run.result is Result.BLOCKED and not run.never_entered
    return judged or run.state in (RunState.LOST, RunState.REFUSED)


def _tried(runs: tuple[Run, ...]) -> int:
    """How many attempts in a row were made by themselves; a person's request begins the count again."""
    return sum(1 for _ in takewhile(lambda run: run.retry_of, reversed(runs)))


def _refusals(
    wanted: WantedJob,
    runs: tuple[Run, ...],
    found: RetryClass,
    target_state: TargetState,
    spent: _Spent,
    at: datetime,
) -> Iterator[str]:
    """Why an attempt is not made, the first reason first."""
    rules, now = target_state.policy.retry, target_state.now
    most = rules.passing if found is RetryClass.PASSING else rules.lasting
    if _has_failed(wanted, target_state):
        yield "not run again by itself: an attempt of this job failed"
    if not most:
        yield f"not run again by itself: a {found}"
    if _tried(runs) >= most:
        yield f"not run again: {len(runs)} attempts met a {found}"
    if now - runs[-1].updated > STALE:
        yield f"not run again by itself: it ended more than {STALE.total_seconds() / 3600:.0f} hours ago"
    if spent.count >= rules.per_day:
        yield f"not run again: the policy allows {rules.per_day} such attempts of a pull request within 24 hours"
    if spent.gpu_minutes + wanted.gpu_minutes > rules.gpu_minutes_per_day:
        took = f"such attempts took {spent.gpu_minutes:.0f} of {rules.gpu_minutes_per_day} GPU minutes within 24 hours"
        yield f"not run again: {took}, and this one would take about {wanted.gpu_minutes}"
    if _ends_too_late(wanted, target_state, at):
        yield "not run again: it would not end before the time limit of the merge queue"


def _has_failed(wanted: WantedJob, target_state: TargetState) -> bool:
    """Whether exactly this job failed on this head, at the request of anyone."""
    known = (*target_state.elsewhere, *target_state.here)
    return any(run.result is Result.FAIL for run in known if does(run, wanted))


def _ends_too_late(wanted: WantedJob, target_state: TargetState, at: datetime) -> bool:
    target = target_state.target
    if not isinstance(target, MergeGroup) or target.since is None:
        return False
    gpu_count = wanted.job.gpu_count if wanted.job is not None else 1
    expected = timedelta(minutes=wanted.gpu_minutes / gpu_count)
    limit = timedelta(seconds=target_state.policy.gate.merge_queue_deadline_s)
    return at + expected > target.since + limit
