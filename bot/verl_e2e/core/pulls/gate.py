"""The gate: the one check that a branch protection may require, from the required jobs of a head.

It is always reported. Success needs, for every required job, a pass of exactly that job on exactly that head, or a
level that someone took the responsibility for. What is not known is never a success.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import takewhile

from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge.execution import JoinedExecution, Shortfall, accepted, join, shortfall, unknown_execution
from verl_e2e.core.judge.verdict_document import read_verdict
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.execution import ChangeExecution, Side
from verl_e2e.core.model.known_defects import QuarantinedCause, Validity
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.outline import TimedJob, minutes_to_answer
from verl_e2e.core.pulls.commands import Pause, asked_again
from verl_e2e.core.pulls.forge import Conclusion, MergeGroup
from verl_e2e.core.pulls.ledger import SATISFIED, UNDERWAY, JobStatus, Override, Run, RunState, status_of_run, turn_of
from verl_e2e.core.pulls.retry import MAY_PASS, STALE, RetryClass, class_of, was_blocked
from verl_e2e.core.pulls.target_state import Hold, TargetState, hold, hold_in_queue, hold_of_plan
from verl_e2e.core.pulls.wanted_jobs import WantedJob, changed_since, does, origin_text, replaced_run, runs_of

MAX_TITLE = 200


DAY = timedelta(days=1)


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
    now, group = target_state.now, isinstance(target_state.target, MergeGroup)
    planned = {wanted.id: float(wanted.gpu_minutes) for wanted in target_state.wanted}
    again = [run for run in runs if run.retry_of and run.number == target_state.number and now - run.created < DAY]
    # What attempts of this kind have taken of the day's budget; one under way will take about as much as planned.
    count = len(again)
    minutes = sum(run.gpu_minutes if run.state.final else planned.get(run.job_id, 0) for run in again)
    found: dict[str, Attempt] = {}
    for wanted in target_state.wanted:
        of_job = runs_of(wanted, target_state.head_sha, runs)
        # What is only shown takes no attempt from what is required.
        if wanted.shown or not of_job or wanted.job is None or not was_blocked(of_job[-1]):
            continue
        last = of_job[-1]
        held = hold(target_state) if wanted.asked_by else hold_of_plan(target_state)
        if held is not None or asked_again(last, target_state.here, target_state.entries):
            # It does not start, or a person's request starts it.
            continue
        whose = class_of(last.causes, undecided=last.undecided)
        if whose not in MAY_PASS:
            continue
        # A merge queue waits for its answer, so its group does not wait for the next attempt.
        wait_s = 0 if group else target_state.policy.retry.wait_s * 2 ** _tried(of_job)
        at = last.updated + timedelta(seconds=wait_s)
        refusals = _refusals(wanted, of_job, whose, target_state, (count, minutes), max(at, now))
        if refused := next(refusals, ""):
            found[wanted.id] = NoAttempt(refused)
        else:
            found[wanted.id] = NextAttempt(last, whose, at)
            count, minutes = count + 1, minutes + wanted.gpu_minutes
    return found


def _tried(runs: tuple[Run, ...]) -> int:
    """How many attempts in a row were made by themselves; a person's request begins the count again."""
    return sum(1 for _ in takewhile(lambda run: run.retry_of, reversed(runs)))


def _refusals(
    wanted: WantedJob,
    runs: tuple[Run, ...],
    found: RetryClass,
    target_state: TargetState,
    spent: tuple[int, float],
    at: datetime,
) -> Iterator[str]:
    """Why an attempt is not made, the first reason first; `spent` are attempts and GPU minutes of the last day."""
    rules, target, (count, minutes) = target_state.policy.retry, target_state.target, spent
    most = rules.passing if found is RetryClass.PASSING else rules.lasting
    attempts = (*target_state.elsewhere, *target_state.here)
    if any(run.result is Result.FAIL for run in attempts if does(run, wanted)):
        yield "not run again by itself: an attempt of this job failed"
    if not most:
        yield f"not run again by itself: a {found}"
    if _tried(runs) >= most:
        yield f"not run again: {len(runs)} attempts met a {found}"
    if target_state.now - runs[-1].updated > STALE:
        yield f"not run again by itself: it ended more than {STALE.total_seconds() / 3600:.0f} hours ago"
    if count >= rules.per_day:
        yield f"not run again: the policy allows {rules.per_day} such attempts of a pull request within 24 hours"
    if minutes + wanted.gpu_minutes > rules.gpu_minutes_per_day:
        took = f"such attempts took {minutes:.0f} of {rules.gpu_minutes_per_day} GPU minutes within 24 hours"
        yield f"not run again: {took}, and this one would take about {wanted.gpu_minutes}"
    if isinstance(target, MergeGroup) and target.since is not None:
        expected = timedelta(minutes=wanted.gpu_minutes / (wanted.job.gpu_count if wanted.job is not None else 1))
        if at + expected > target.since + timedelta(seconds=target_state.policy.gate.merge_queue_deadline_s):
            yield "not run again: it would not end before the time limit of the merge queue"


def set_aside_by(run: Run, entries: Iterable[QuarantinedCause], today: date) -> QuarantinedCause | None:
    """The entry that sets a run's end aside, of several the one that ends first; None where a cause is left."""
    fitting = [
        entry
        for entry in entries
        if entry.counts(today) is Validity.YES
        and entry.job in (None, run.job_id)
        and entry.stage in (None, run.stage)
        # Without a fingerprint nothing says that it is the known failure, and a Fail is never excused by its kind.
        and (run.result is not Result.FAIL if entry.fingerprint is None else entry.fingerprint == run.fingerprint)
    ]
    found = [next((entry for entry in fitting if entry.cause_id == cause_id), None) for cause_id in run.causes]
    given = [entry for entry in found if entry is not None]
    return min(given, key=lambda entry: entry.until) if given and len(given) == len(found) else None


@dataclass(frozen=True, slots=True)
class JobStanding:
    """The status of a wanted job, with the reason."""

    wanted: WantedJob
    state: JobStatus
    # Why it has that status, as a clause.
    reason: str
    # Its last run, None where it has none.
    run: Run | None = None
    # The override of its level that counts, None where the job needs none.
    override: Override | None = None
    # Why nothing starts for the head, where that keeps this job from starting.
    hold: Hold | None = None
    # The attempt that follows by itself, or why none does; None where the infrastructure did not block it.
    attempt: Attempt | None = None
    # The attempts before `run`, oldest first.
    earlier: tuple[Run, ...] = ()
    # The entry of the policy that sets its end aside, None where none does.
    quarantine: QuarantinedCause | None = None
    # The attempt that failed where the last one passed, None where none did.
    disagrees_with: Run | None = None
    # The last run of the head that ended and was of another job with this name, so that it does not count; else None.
    replaces: Run | None = None

    @property
    def clause(self) -> str:
        """Status and reason in one clause; the reason of a quarantine says both."""
        return self.reason if self.quarantine is not None else f"{self.state}: {self.reason}"

    @property
    def repetition(self) -> str:
        """Why the job runs though a run of its name ended on this head; empty where none did, or it passed since."""
        if self.replaces is None or self.state in SATISFIED:
            return ""
        ended = f"a run of {self.wanted.id} that ended on {self.replaces.updated:%Y-%m-%d}"
        word = status_of_run(self.replaces).word
        return f"{ended} ({word}) does not count any more: {changed_since(self.replaces, self.wanted)}"

    @property
    def disagreement(self) -> str:
        """That the last attempt disagrees with one that failed, as a clause; empty where it does not."""
        if self.disagrees_with is None or self.run is None:
            return ""
        good = "was good" if self.run.never_entered else "passed"
        return (
            f"attempt {self.run.attempt} {good} and disagrees with attempt {self.disagrees_with.attempt}, which failed"
        )


Settle = Callable[[JobStanding], JobStanding]


@dataclass(frozen=True, slots=True)
class Gate:
    """The status of the gate, its one sentence, and the reasons for it."""

    # The status of the required jobs together; a closed gate has the status of a held or cancelled job.
    status: JobStatus
    # One sentence of plain text, at most `MAX_TITLE` characters.
    title: str
    # Reasons that do not belong to a single job: an obstacle, what the change breaks, why nothing is required.
    general: tuple[str, ...] = ()
    # A reason for every required job.
    of_jobs: tuple[str, ...] = ()
    # The obstacle with the command that removes it, empty where no command does.
    action: str = ""
    # Whether the title holds the whole obstacle.
    says_obstacle: bool = False
    # Whether a rehearsal that failed closes it.
    of_rehearsal: bool = False

    @property
    def conclusion(self) -> Conclusion | None:
        """The conclusion of the gate's check run, None while jobs are running."""
        # A person stopped the work and a person must start it again: GitHub calls that "action required".
        return Conclusion.ACTION_REQUIRED if self.status is JobStatus.CANCELLED else self.status.conclusion

    @property
    def is_open(self) -> bool:
        """Whether a branch protection may let the change through."""
        return self.status in SATISFIED

    @property
    def reasons(self) -> tuple[str, ...]:
        """All reasons, the general ones first."""
        return (*self.general, *self.of_jobs)


def standings(
    wanted: Iterable[WantedJob],
    runs: tuple[Run, ...],
    overrides: Iterable[Override],
    head_sha: str,
    hold: Hold | None = None,
    settle: Settle | None = None,
) -> tuple[JobStanding, ...]:
    """The status of each job, in the order given, prerequisites first.

    `hold` says why no job is started, None when jobs may start. `settle` says what policy and earlier attempts make of
    a job whose status its last run gives; jobs that need it see that.
    """
    taken: dict[Level, tuple[Override, ...]] = {}
    for override in overrides:
        if override.head_sha == head_sha:
            taken[override.level] = (*taken.get(override.level, ()), override)
    found: dict[str, JobStanding] = {}
    for wanted_job in wanted:
        of_job = runs_of(wanted_job, head_sha, runs)
        replaced = replaced_run(wanted_job, head_sha, runs)
        standing = replace(_standing(wanted_job, of_job, taken, found, hold), earlier=of_job[:-1], replaces=replaced)
        found[wanted_job.id] = settle(standing) if settle is not None else standing
    return tuple(found.values())


def _standing(
    wanted: WantedJob,
    runs: tuple[Run, ...],
    overrides: Mapping[Level, tuple[Override, ...]],
    before: Mapping[str, JobStanding],
    hold: Hold | None,
) -> JobStanding:
    last = runs[-1] if runs else None
    given = overrides.get(wanted.level, ()) if wanted.required else ()
    status = status_of_run(last) if last is not None else None
    if last is not None and status is JobStatus.PASSED:
        text = last.sentence or "passed"
        reason = f"{text}; {origin_text(last)}" if last.carried_from else text
        return JobStanding(wanted, JobStatus.PASSED, reason, last)
    if given:
        return JobStanding(wanted, JobStatus.OVERRIDDEN, overridden_reason(given), last, given[0])
    held = JobStatus.CANCELLED if hold is not None and hold.cancelled else JobStatus.HELD
    if last is not None and status is not None:
        if status is JobStatus.CANCELLED and hold is not None:
            return JobStanding(wanted, held, hold.in_short, last, hold=hold)
        # A cancelled run keeps the gate closed like a blocked one.
        status = (
            JobStatus.BLOCKED if status is JobStatus.CANCELLED else status if last.state.final else JobStatus.RUNNING
        )
        return JobStanding(wanted, status, last.sentence or last.reason or f"the run is {last.state}", last)
    if wanted.job is None:
        return JobStanding(wanted, JobStatus.BLOCKED, wanted.missing or "it cannot be completed")
    turn = turn_of(wanted.requires, {job_id: standing.state for job_id, standing in before.items()})
    if turn.skipped:
        return JobStanding(wanted, JobStatus.SKIPPED, turn.skipped)
    if hold is not None:
        return JobStanding(wanted, held, hold.in_short, hold=hold)
    reason = f"it waits for {turn.waits_for}" if turn.waits_for else "it is about to start"
    return JobStanding(wanted, JobStatus.WAITING, reason)


def overridden_reason(given: tuple[Override, ...]) -> str:
    """Who took the responsibility for a level, and why; `given` has at least one override."""
    people = " and ".join(dict.fromkeys(override.actor for override in given))
    return f"level {int(given[0].level)} is overridden by {people}: {given[0].reason}"


def gate(
    found: Iterable[JobStanding],
    *,
    nothing_reason: tuple[str, ...] = (),
    obstacle: str = "",
    command: str = "",
    broken: tuple[str, ...] = (),
    failed_rehearsal: str = "",
    waits_for: str = "",
    unexecuted: Shortfall = Shortfall(),
    acceptance: str = "",
    in_tests_alone: str = "",
) -> Gate:
    """The gate of a head from the status of its wanted jobs; extra jobs do not count.

    - `nothing_reason`: why the plan requires no level.
    - `obstacle`: what keeps the gate from success whatever the jobs say, as a plan that cannot be relied on.
    - `command`: the command that removes the obstacle; only in the text, because a title is plain and may be cut.
    - `broken`: uses in verl that the change breaks; a failure unless every required level is overridden.
    - `failed_rehearsal`: what the head's rehearsal found that it must not do; a failure.
    - `waits_for`: what else the gate waits for once the jobs are satisfied.
    - `unexecuted`: what no job executed of the change, once the jobs are satisfied.
    - `acceptance`: the command that accepts it; only in the text.
    - `in_tests_alone`: what Bridge tests alone executed of the change.
    """
    required = tuple(standing for standing in found if standing.wanted.required)
    of_jobs = tuple(
        # The run's own check shows its progress; here it would be a write for each of its steps.
        f"{standing.wanted.id}: {standing.state}"
        + ("" if standing.state is JobStatus.RUNNING else f", {standing.reason}")
        for standing in required
    )
    unsatisfied = [standing for standing in required if standing.state not in SATISFIED]
    failed = next((standing for standing in unsatisfied if standing.state is JobStatus.FAILED), None)
    if failed is not None:
        title = _sentence(f"{failed.wanted.id} {failed.state}: {failed.reason}")
        return Gate(JobStatus.FAILED, title, broken, of_jobs)
    overridden = bool(required) and all(standing.state is JobStatus.OVERRIDDEN for standing in required)
    if broken and not overridden:
        return Gate(JobStatus.FAILED, "The change breaks what verl uses of Bridge", broken, of_jobs)
    if failed_rehearsal:
        both, title = (failed_rehearsal, *broken), _sentence(failed_rehearsal)
        return Gate(JobStatus.FAILED, title, both, of_jobs, of_rehearsal=True)
    if obstacle:
        whole = f"{obstacle}; {command}" if command else obstacle
        title, action = _sentence(obstacle), whole if command else ""
        fits_title = len(obstacle) <= MAX_TITLE
        return Gate(JobStatus.BLOCKED, title, (whole, *broken), of_jobs, action=action, says_obstacle=fits_title)
    if any(standing.state in UNDERWAY for standing in unsatisfied):
        done = sum(standing.state in SATISFIED for standing in required)
        running = ", ".join(standing.wanted.id for standing in required if standing.state is JobStatus.RUNNING)
        title = f"{done} of {len(required)} required jobs satisfied" + (f", running {running}" if running else "")
        return Gate(JobStatus.RUNNING, title, broken, of_jobs)
    if unsatisfied:
        first = unsatisfied[0]
        status = first.state if first.state in (JobStatus.HELD, JobStatus.CANCELLED) else JobStatus.BLOCKED
        # A command is in the summary, because a title is plain text and may be cut.
        why = first.hold.sentence if first.hold is not None else f"{first.wanted.id} {first.clause}"
        return Gate(status, _sentence(why), broken, of_jobs)
    if unexecuted.closing:
        whole = f"{unexecuted.closing}; {acceptance}" if acceptance else unexecuted.closing
        return Gate(JobStatus.BLOCKED, _sentence(unexecuted.closing), (whole, *broken), of_jobs, action=whole)
    if waits_for:
        waiting = f"waits for {waits_for}"
        return Gate(JobStatus.RUNNING, _sentence(waiting), (waiting, *broken), of_jobs)
    if not required:
        return Gate(JobStatus.NOT_REQUIRED, "No verl coverage is required by this change", nothing_reason)
    allowed = f"{unexecuted.allowed}, which the policy allows" if unexecuted.allowed else ""
    title = "; ".join(text for text in (_passed_title(required), in_tests_alone, allowed) if text)
    return Gate(JobStatus.PASSED, _sentence(title), (*([allowed] if allowed else []), *broken), of_jobs)


def _sentence(text: str) -> str:
    shown = text[:1].upper() + text[1:]
    return shown if len(shown) <= MAX_TITLE else f"{shown[: MAX_TITLE - 4]} ..."


def _passed_title(required: tuple[JobStanding, ...]) -> str:
    taken = [standing for standing in required if standing.override is not None]
    made_up = sum(standing.state is JobStatus.ACCEPTED for standing in required)
    uncovered = [standing for standing in required if standing.state is JobStatus.UNCOVERABLE]
    aside = [standing for standing in required if standing.state is JobStatus.TOLERATED]
    disputed = [standing for standing in required if standing.disagrees_with is not None]
    named = ""
    if disputed and disputed[0].disagrees_with is not None:
        # The first in full.
        more = f" (and {len(disputed) - 1} more)" if len(disputed) > 1 else ""
        attempt = disputed[0].disagrees_with.attempt
        named = f", {disputed[0].wanted.id} disagrees with attempt {attempt}, which failed{more}"
    if not taken and not made_up and not uncovered and not aside and not disputed:
        return f"All {len(required)} required jobs passed" if len(required) > 1 else "The required job passed"
    people = ", ".join(dict.fromkeys(standing.override.actor for standing in taken if standing.override is not None))
    count = len(required) - len(taken) - made_up - len(uncovered) - len(aside)
    passed = f"{count} of {len(required)} required jobs passed{named}"
    left_aside = f", {len(aside)} {aside[0].reason}" if aside else ""
    left = f", {len(uncovered)} not covered: {uncovered[0].reason}" if uncovered else ""
    accepted = f", {made_up} accepted that never entered the change" if made_up else ""
    return f"{passed}{left_aside}{accepted}{f', {len(taken)} overridden by {people}' if taken else ''}{left}"


def execution_of_job(standing: JobStanding) -> ChangeExecution | None:
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


def joined_execution(found: Iterable[JobStanding]) -> JoinedExecution:
    """What the required jobs of one trainer executed together: of verl where it has any."""
    return join(_executions(next(iter(_by_consumer(found)), ())))


def _by_consumer(found: Iterable[JobStanding]) -> tuple[tuple[JobStanding, ...], ...]:
    """The required jobs of each trainer, those of verl first: what one executes shows nothing of another's way."""
    groups: dict[str, list[JobStanding]] = {}
    for standing in found:
        if standing.wanted.required:
            groups.setdefault(standing.wanted.consumer, []).append(standing)
    return tuple(tuple(groups[name]) for name in sorted(groups, key=lambda name: name != VERL.name))


def _executions(found: Iterable[JobStanding]) -> dict[str, ChangeExecution]:
    known = ((standing.wanted.id, execution_of_job(standing)) for standing in found if standing.wanted.required)
    return {job_id: execution for job_id, execution in known if execution is not None}


def with_accepted(found: tuple[JobStanding, ...], rules: ExecutionRules) -> tuple[JobStanding, ...]:
    """The standings, those accepted whose run never entered the change and that others make up for.

    A job that no host can run is named as such where the policy lets the gate open without it.
    """
    if rules.uncoverable is Demand.ALLOW:
        found = tuple(
            replace(standing, state=JobStatus.UNCOVERABLE, reason=standing.wanted.uncoverable)
            if standing.state is JobStatus.BLOCKED and standing.wanted.uncoverable
            else standing
            for standing in found
        )
    groups = _by_consumer(standing for standing in found if standing.state is JobStatus.PASSED)
    by_name = {group[0].wanted.consumer: _executions(group) for group in groups}
    weighed: list[JobStanding] = []
    for before in found:
        standing, passed = before, by_name.get(before.wanted.consumer, {})
        own = execution_of_job(standing) if standing.state is JobStatus.UNEXECUTED else None
        if own is not None and (reason := accepted(own, passed, rules)):
            parts = (standing.disagreement, "the run was good and never entered its part of the change", reason)
            reason = "; ".join(part for part in parts if part)
            standing = replace(standing, state=JobStatus.ACCEPTED, reason=reason)
        weighed.append(standing)
    return tuple(weighed)


@dataclass(frozen=True, slots=True)
class ExecutionGap:
    """What no required job executed of a change, with the level whose override accepts it."""

    shortfall: Shortfall
    # A level of a job that was planned for the first of it; None where nothing keeps the gate closed.
    level: Level | None = None


def execution_gap(found: tuple[JobStanding, ...], rules: ExecutionRules, overridden: frozenset[Level]) -> ExecutionGap:
    """What no required job executed; an override of a level accepts what its jobs were planned for."""
    gaps = [_gap(required, rules, overridden) for required in _by_consumer(found) or ((),)]
    return next((gap for gap in gaps if gap.shortfall.closing), gaps[0])


def _gap(required: tuple[JobStanding, ...], rules: ExecutionRules, overridden: frozenset[Level]) -> ExecutionGap:
    """The same of the required jobs of one trainer."""
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

    def settle(standing: JobStanding) -> JobStanding:
        run, policy = standing.run, target_state.policy
        if run is None or standing.override is not None:
            return standing
        if standing.state in _GOOD:
            return _with_disagreement(standing, target_state)
        attempt = attempts.get(standing.wanted.id)
        if isinstance(attempt, NextAttempt):
            return replace(standing, state=JobStatus.WAITING, reason=attempt.reason, attempt=attempt)
        if attempt is not None:
            standing = replace(standing, reason=f"{standing.reason}; {attempt.reason}", attempt=attempt)
        entry = set_aside_by(run, policy.quarantine, target_state.now.date())
        if entry is None or standing.state not in _ENDED_BADLY:
            return standing
        # What the gate makes of it is another key.
        state = JobStatus.TOLERATED if policy.gate.quarantined is Demand.ALLOW else JobStatus.QUARANTINED
        until = f"quarantined until {entry.until.isoformat()} ({entry.reason}, {entry.link})"
        return replace(standing, state=state, reason=f"{until}; {standing.reason}", quarantine=entry)

    return settle


def _with_disagreement(standing: JobStanding, target_state: TargetState) -> JobStanding:
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


def with_queue(found: Iterable[JobStanding], target_state: TargetState) -> tuple[JobStanding, ...]:
    """The standings with what the queue makes of runs that wait in it, and of the jobs that wait for these.

    A merge group is never held by a pause: the merge queue would take that for its answer, and the pause may end.
    """
    shown: dict[str, JobStanding] = {}
    queue = target_state.queue
    for before in found:
        standing, run, hold = before, before.run, None
        if standing.state is JobStatus.WAITING:
            holds = (shown[required].hold for required in standing.wanted.requires if required in shown)
            hold = next((hold for hold in holds if hold is not None), None)
        elif run is not None and run.waits_for_slot and standing.state is JobStatus.RUNNING:
            held = queue.pause or queue.held.get(run.key)
            hold = hold_in_queue(held) if held is not None else None
            if hold is not None and isinstance(target_state.target, MergeGroup) and isinstance(held, Pause):
                standing, hold = replace(standing, state=JobStatus.WAITING, reason=hold.sentence), None
            elif hold is None and queue.limited:
                standing = replace(standing, state=JobStatus.WAITING, reason=_WAITS)
        if hold is not None:
            standing = replace(standing, state=JobStatus.HELD, reason=hold.in_short, hold=hold)
        shown[standing.wanted.id] = standing
    return tuple(shown.values())


def with_place(decided: Gate, target_state: TargetState) -> Gate:
    """The gate with the place of the target in the queue, while nothing of it runs and something waits."""
    place = target_state.queue.place
    if place is None or decided.status is not JobStatus.RUNNING:
        return decided
    title = f"{decided.title}, place {place.position} of {place.waiting} in the queue"
    # A title that is full already says more important things.
    return replace(decided, title=title if len(title) <= MAX_TITLE else decided.title)


def minutes_left(found: Iterable[JobStanding]) -> int:
    """Minutes until the last required job has ended if none has to wait for a machine; 0 when none is open.

    A job that runs counts with its whole time: so the number changes only when a job's status does.
    """
    jobs = ((standing.wanted, standing.wanted.job) for standing in found if standing.state in UNDERWAY)
    return minutes_to_answer(
        TimedJob(wanted.id, wanted.requires, wanted.gpu_minutes, job.gpu_count)
        for wanted, job in jobs
        if job is not None and wanted.required
    )
