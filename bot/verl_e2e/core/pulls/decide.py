"""What to do next for a target: which runs to start and which to end.

A function of what is known now and of nothing that happened on the way, so a lost, repeated or late delivery changes
nothing. Level 0 runs first and alone, the rest after it passed; a new head ends the runs of the one before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from verl_e2e.core.judge.execution import in_tests_alone
from verl_e2e.core.model.access import Absence
from verl_e2e.core.model.jobs import REHEARSAL
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.commands import NeedsApproval, asked_again, cancelled_by
from verl_e2e.core.pulls.forge import MergeGroup, Pull
from verl_e2e.core.pulls.gate import (
    Gate,
    JobStanding,
    NextAttempt,
    execution_gap,
    gate,
    joined_execution,
    settled_by,
    standings,
    with_accepted,
    with_place,
    with_queue,
)
from verl_e2e.core.pulls.ledger import (
    ENDED,
    PRIORITY,
    JobStatus,
    Priority,
    QueueTerms,
    RecordedCommand,
    Run,
    RunState,
    turn_of,
)
from verl_e2e.core.pulls.target_state import (
    DRAFT,
    Hold,
    RehearsalStanding,
    TargetState,
    hold,
    hold_of_plan,
    new_run,
    rehearsal_standing,
    rehearsal_to_start,
    spares_level_0,
    why_not_wanted,
)
from verl_e2e.core.pulls.wanted_jobs import WantedJob, changed_since, does, runs_of

SUPERSEDED = "a new head was pushed"
NOT_WANTED = "the job is no longer requested"
NOT_TRUSTED = "the head now needs an approval to run"
IMPORTS_SHOWN = (
    "Level 0 is spared: only imports differ, and the rehearsal of this head is equal in every cell that runs"
)
AFTER_REHEARSAL = "it waits for the rehearsal of this head"
QUEUE_AGAIN = "add the pull request to the merge queue again"
# A request to end a run may be lost; it is repeated after this time.
CANCEL_AGAIN = timedelta(seconds=60)
# Run again where someone asks for it.
_TRIED = (ENDED | {JobStatus.ACCEPTED, JobStatus.TOLERATED}) - {JobStatus.CANCELLED}
_QUEUED = frozenset({RunState.QUEUED, RunState.SUBMITTED})


@dataclass(frozen=True, slots=True)
class Actions:
    """What to do, and what to show once it is done."""

    # Runs to store and submit.
    dispatch: tuple[Run, ...]
    # Runs to end, in the state in which they are then stored.
    cancel: tuple[Run, ...]
    # Every run, as it is then.
    runs: tuple[Run, ...]
    # The status of each job then.
    standings: tuple[JobStanding, ...]
    # What the required jobs come to then.
    gate: Gate
    # The standing of the head's rehearsal then, None where it has none.
    rehearsal: RehearsalStanding | None = None
    # Whether this target writes the checks of its head; false where another one does.
    shows_checks: bool = True


def decide_actions(target_state: TargetState) -> Actions:
    """Decide the next actions; doing them twice changes nothing more."""
    spared = spares_level_0(target_state, rehearsal_standing(target_state))
    if spared:
        others = target_state.policy.consumers
        kept = [item for item in target_state.wanted if item.asked_by or item.consumer in others]
        ids = {item.id for item in kept}
        kept = [replace(item, requires=tuple(name for name in item.requires if name in ids)) for item in kept]
        target_state = replace(target_state, wanted=tuple(kept))
    if isinstance(target_state.target, MergeGroup):
        # Nobody reads what is only shown of a commit that is about to be merged.
        target_state = replace(target_state, wanted=tuple(item for item in target_state.wanted if not item.shown))
    ending = tuple(_to_end(target_state))
    # Nothing starts before the live runs of an earlier head ended that do no job of this one.
    going_on = {run.key for run in target_state.continued}
    earlier = (run for run in target_state.earlier if not run.state.final and not run.waits_for_slot)
    starting = () if any(run.key not in going_on for run in earlier) else tuple(_starting(target_state))
    changed = {run.key: run for run in (*ending, *starting)}
    runs = (*(changed.pop(run.key, run) for run in target_state.runs), *changed.values())
    rehearsal = rehearsal_standing(replace(target_state, runs=runs))
    found = _standings(target_state, (*target_state.shared, *runs))
    obstacle = _obstacle(target_state)
    absence, command = ("", "") if obstacle else _absence(target_state, found, rehearsal)
    overridden = frozenset(override.level for override in target_state.overrides)
    gap = execution_gap(found, target_state.policy.gate.execution, overridden)
    accepts = "" if gap.level is None else f"override {int(gap.level)} {target_state.head_sha} REASON"
    gate_now = gate(
        found,
        nothing_reason=_nothing_reason(target_state, rehearsal),
        obstacle=obstacle or absence,
        command=command,
        broken=target_state.broken,
        failed_rehearsal=rehearsal.failure if rehearsal is not None else "",
        waits_for=_waits_for(target_state, rehearsal),
        unexecuted=gap.shortfall,
        acceptance=f"`/verl-e2e {accepts}` accepts that" if accepts else "",
        in_tests_alone=in_tests_alone(joined_execution(found)),
    )
    if spared and gate_now.status is JobStatus.NOT_REQUIRED:
        gate_now = replace(gate_now, title=IMPORTS_SHOWN)
    return Actions(starting, ending, runs, found, with_place(gate_now, target_state), rehearsal)


def _standings(target_state: TargetState, runs: tuple[Run, ...]) -> tuple[JobStanding, ...]:
    held, held_plan = hold(target_state), hold_of_plan(target_state)
    known = (target_state.wanted, runs, target_state.overrides, target_state.head_sha)
    settle = settled_by(target_state, runs)
    found = standings(*known, held_plan, settle)
    if held != held_plan:
        # What a person asked for may start where the plan waits to be asked for.
        of_extras = standings(*known, held, settle)
        found = tuple(extra if one.wanted.asked_by else one for one, extra in zip(found, of_extras, strict=True))
    late = _too_late(target_state)
    found = with_queue(found, target_state)
    found = with_accepted(found, target_state.policy.gate.execution)
    rehearsal = rehearsal_standing(replace(target_state, runs=runs))
    waits_for_rehearsal = rehearsal is not None and not rehearsal.lets_start
    states = {standing.wanted.id: standing.state for standing in found}
    shown: list[JobStanding] = []
    for standing in found:
        if standing.state is not JobStatus.WAITING:
            shown.append(standing)
        elif late:
            # What has not begun in time never begins, so its check must not say that it waits.
            hold_late = Hold(late, action=QUEUE_AGAIN)
            shown.append(replace(standing, state=JobStatus.HELD, reason=late, hold=hold_late))
        elif waits_for_rehearsal and standing.run is None and turn_of(standing.wanted.requires, states).has_come:
            shown.append(replace(standing, reason=AFTER_REHEARSAL))
        else:
            shown.append(standing)
    return tuple(shown)


def _to_end(target_state: TargetState) -> Iterator[Run]:
    for run in target_state.runs:
        end = None if run.state.final else _why_end(run, target_state)
        if end is None:
            continue
        if run.state is not RunState.CANCELLING:
            changes = {"reason": end.reason, "may_start_again": end.passing}
            # The back end does not know of one that waits in our own queue.
            state = RunState.CANCELLED if run.waits_for_slot else RunState.CANCELLING
            yield _with(run, target_state, state=state, **changes)
        elif target_state.now - run.updated >= CANCEL_AGAIN:
            yield _with(run, target_state, reason=run.reason or end.reason)


def _with(run: Run, target_state: TargetState, **changes: object) -> Run:
    return run.model_copy(update={"updated": target_state.now, **changes})


@dataclass(frozen=True, slots=True)
class _End:
    """Why a run ends, and whether the reason may go away: then the run starts again without a request."""

    reason: str
    passing: bool = False


def _why_end(run: Run, target_state: TargetState) -> _End | None:
    """Why a live run must end, None when it may go on."""
    if run.state is RunState.CANCELLING:
        return _End(run.reason or "it was cancelled", run.may_start_again)
    going_on = any(item.key == run.key for item in target_state.continued)
    if run.head_sha != target_state.head_sha and not going_on:
        return _End(SUPERSEDED, passing=True)
    if target_state.over:
        # A closed pull request may be opened again; a merge group that was given up does not come back.
        return _End(target_state.over, passing=isinstance(target_state.target, Pull))
    if target_state.draft:
        return _End(DRAFT, passing=True)
    cancelled = cancelled_by(target_state.entries, target_state.head_sha)
    if cancelled is not None:
        return _End(f"cancelled by {cancelled.actor}")
    rehearses, rules = run.job_id == REHEARSAL, target_state.policy.rehearsal
    if isinstance(target_state.trust, NeedsApproval) and (rules.approval or not rehearses):
        return _End(NOT_TRUSTED, passing=True)
    # The time in our own queue does not count: no machine could have taken it.
    waited, limit_s = target_state.now - run.ordered, target_state.policy.gate.queue_deadline_s
    limit_s = rules.limit_s if rehearses else limit_s
    if run.state in _QUEUED and not run.waits_for_slot and waited > timedelta(seconds=limit_s):
        return _End(f"no machine took it within {limit_s // 60} minutes")
    if _too_late(target_state):
        return _End(_too_late(target_state))
    if rehearses:
        unwanted = why_not_wanted(run, target_state)
        return _End(unwanted, passing=True) if unwanted else None
    if going_on or target_state.plan is None:
        return None
    wanted = next((item for item in target_state.wanted if item.id == run.job_id), None)
    if wanted is None:
        return _End(NOT_WANTED, passing=True)
    # What is not known of a job ends nothing.
    other_work = wanted.job is not None and not does(run, wanted)
    return _End(changed_since(run, wanted), passing=True) if other_work else None


def _starting(target_state: TargetState) -> Iterator[Run]:
    """The rehearsal of the head where it has its turn, and new runs of jobs where those need not wait for it.

    Of jobs that nothing keeps from starting, and of ended ones that someone requested again.
    """
    rehearsal = rehearsal_standing(target_state)
    first = None if _too_late(target_state) else rehearsal_to_start(target_state)
    if first is not None:
        yield first
    # What was cancelled and begins again is waited for; what gave no answer once is not.
    begins = first is not None and rehearsal is not None and rehearsal.status is JobStatus.CANCELLED
    if rehearsal is not None and (begins or not rehearsal.lets_start):
        return
    found = _standings(target_state, (*target_state.shared, *target_state.runs))
    states = {standing.wanted.id: standing.state for standing in found}
    known, late = (*target_state.here, *target_state.shared), _too_late(target_state)
    for standing in found:
        wanted, last = standing.wanted, standing.run
        held = hold(target_state) if wanted.asked_by else hold_of_plan(target_state)
        # A job has at most one live run on this head, for all requests.
        lives = any(not run.state.final for run in known if run.job_id == wanted.id)
        if held or lives or late or wanted.job is None or not turn_of(wanted.requires, states).has_come:
            continue
        ended_by_us = last is not None and last.state is RunState.CANCELLED and last.may_start_again
        if isinstance(standing.attempt, NextAttempt):
            if standing.attempt.at <= target_state.now:
                repeated = {"retry_of": standing.attempt.after.key}
                yield run_of_job(wanted, target_state, wanted.asked_by).model_copy(update=repeated)
        elif standing.state is JobStatus.WAITING or ended_by_us:
            yield run_of_job(wanted, target_state, wanted.asked_by)
        elif last is not None and (standing.state in _TRIED or last.carried_from):
            source = asked_again(last, target_state.here, target_state.entries)
            yield from [run_of_job(wanted, target_state, source)] if source else []


def run_of_job(wanted: WantedJob, target_state: TargetState, source: str) -> Run:
    """Another run of a complete job of this head, after the attempts before; `source` is what asked for it."""
    before = (run for run in (*target_state.here, *target_state.elsewhere) if does(run, wanted))
    limit_s = target_state.policy.gate.queue_deadline_s
    run = new_run(target_state, wanted.id, wanted.digest, before, source, limit_s)
    of_job = {"required": wanted.required, "shown": wanted.shown, "job": wanted.job, "reuse_key": wanted.reuse_key}
    queued = {"merge_base": target_state.merge_base, "awaits_slot": True, "terms": terms_of(wanted, target_state)}
    return run.model_copy(update={**of_job, **queued})


def with_new_terms(target_state: TargetState) -> Iterator[Run]:
    """The waiting runs of the head of which the terms changed, or what is asked of the result, as they are then."""
    jobs = {item.id: item for item in target_state.wanted}
    for run in target_state.here:
        wanted = jobs.get(run.job_id)
        if wanted is not None and run.waits_for_slot:
            # What it is given for the time before its creation stays: that only grows older.
            terms = terms_of(wanted, target_state).model_copy(update={"since": run.terms.since})
            changes: dict[str, object] = {"terms": terms}
            if run.job_digest != wanted.digest and does(run, wanted):
                changes |= {"job": wanted.job, "job_digest": wanted.digest}
            if any(getattr(run, name) != new for name, new in changes.items()):
                yield _with(run, target_state, **changes)


def terms_of(wanted: WantedJob, target_state: TargetState) -> QueueTerms:
    """What the queue orders a run of a job by."""
    commands = (entry for entry in target_state.entries if isinstance(entry, RecordedCommand))
    given = [command for command in commands if command.verb == PRIORITY]
    priority = Priority(given[-1].arguments[0]) if given else Priority.NORMAL
    # Since when the job waits, if a push took its run out of the queue: so a push loses no place. Only the time in the
    # queue counts: while a pull request was closed or a draft it waited for no slot.
    before = [run for run in target_state.earlier if run.job_id == wanted.id]
    last = max(before, key=lambda run: run.created, default=None)
    if last is None or not last.awaits_slot:
        return QueueTerms(priority=priority)
    since, left = last.terms.since or last.created, last.updated if last.state.final else target_state.now
    return QueueTerms(priority=priority, since=target_state.now - (left - since))


def _too_late(target_state: TargetState) -> str:
    """Why a merge group gets its answer before its jobs are done, empty while there is time."""
    target, limit_s = target_state.target, target_state.policy.gate.merge_queue_deadline_s
    if not isinstance(target, MergeGroup) or target.since is None:
        return ""
    late = target_state.now - target.since > timedelta(seconds=limit_s)
    if not late:
        return ""
    pause = target_state.queue.pause
    paused = f"; dispatch is {pause.in_short}: {pause.reason}" if pause is not None else ""
    return f"no verdict within {limit_s // 60} minutes of the merge queue's request{paused}"


def _obstacle(target_state: TargetState) -> str:
    """What keeps the gate from success whatever the jobs say, empty if nothing does."""
    if target_state.plan is None:
        return target_state.problem or target_state.over or "there is no plan"
    if target_state.other_pull is not None and not target_state.other_pull.underway:
        shared = f"pull request #{target_state.other_pull.number} has the same head, and both share one gate"
        return f"{shared}; its gate says: {target_state.other_pull.title}"
    runs, taken = (*target_state.shared, *target_state.runs), {override.level for override in target_state.overrides}
    for wanted in target_state.wanted:
        of_job = runs_of(wanted, target_state.head_sha, runs)
        if wanted.required and wanted.level not in taken and not (of_job and of_job[-1].state.final):
            return _too_late(target_state)
    return ""


def _absence(
    target_state: TargetState, found: tuple[JobStanding, ...], rehearsal: RehearsalStanding | None
) -> tuple[str, str]:
    """Why a plan that requires nothing is not enough for this head, and the command that helps; empty if it is."""
    plan = target_state.plan
    none, trust = target_state.policy.gate.none, target_state.trust
    required = any(item.required for item in target_state.wanted)
    requires = plan is None or (bool(plan.levels) and not spares_level_0(target_state, rehearsal)) or required
    if requires or none is Absence.OPEN or not isinstance(trust, NeedsApproval):
        return "", ""
    passed = (item.wanted for item in found if item.state is JobStatus.PASSED)
    shown = any(wanted.level is Level.SMOKE and not wanted.shown for wanted in passed)
    strangers = none is Absence.APPROVE_STRANGERS
    rehearsed = rehearsal is not None and (rehearsal.is_equal or rehearsal.is_underway)
    if shown or (strangers and (trust.has_role or rehearsed)):
        return "", ""
    asked = "the policy asks for an approval where nothing is required (gate.none)"
    whose = ", and the head is not that of an author with a role in the repository" if strangers else ""
    return f"{asked}: {trust.reason}{whose}", f"`/verl-e2e approve {target_state.head_sha}` gives it"


def _waits_for(target_state: TargetState, rehearsal: RehearsalStanding | None) -> str:
    """What the gate still waits for when every job of this target is satisfied, empty for nothing."""
    if rehearsal is not None and rehearsal.is_underway:
        return "the rehearsal of this head"
    if target_state.other_pull is None or not target_state.other_pull.underway:
        return ""
    other = target_state.other_pull
    return f"pull request #{other.number}, which has the same head; its gate says: {other.title}"


def _nothing_reason(target_state: TargetState, rehearsal: RehearsalStanding | None) -> tuple[str, ...]:
    if target_state.plan is None:
        return ()
    looked = (target_state.plan.looked_at.sentence,) if target_state.plan.looked_at is not None else ()
    equal = (f"the rehearsal of this head: {rehearsal.reason}",) if rehearsal is not None and rehearsal.is_equal else ()
    return (*dict.fromkeys(item.reason for item in target_state.plan.not_required), *looked, *equal)
