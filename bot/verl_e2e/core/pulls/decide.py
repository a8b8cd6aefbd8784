"""What to do next for a target: which runs to start and which to end.

A function of what is known now and of nothing that happened on the way, so a lost, repeated or late delivery changes
nothing. Level 0 runs first and alone, the rest after it passed; a new head ends the runs of the one before.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from verl_e2e.core.model.access import Absence
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.gate import Gate, Standing, gate, standings
from verl_e2e.core.pulls.hold_reason import DRAFT, hold, hold_of_plan
from verl_e2e.core.pulls.job_status import SATISFIED, JobStatus
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.core.pulls.pull import MergeGroup, Pull
from verl_e2e.core.pulls.requests import asked_again, cancelled_by
from verl_e2e.core.pulls.target_state import Situation
from verl_e2e.core.pulls.trust import NeedsApproval
from verl_e2e.core.pulls.wanted_jobs import WantedJob, runs_of

SUPERSEDED = "a new head was pushed"
NOT_WANTED = "the job is no longer requested"
CHANGED = "the requested job changed"
NOT_TRUSTED = "the head now needs an approval to run"
# An order to end may be lost like anything else; it is given again after this long.
CANCEL_AGAIN = timedelta(seconds=60)
_QUEUED = frozenset({RunState.QUEUED, RunState.SUBMITTED})


@dataclass(frozen=True, slots=True)
class Steps:
    """What to do, and what to show once it is done."""

    # Runs to put down and submit.
    dispatch: tuple[Run, ...]
    # Runs to end, as they shall then be kept.
    cancel: tuple[Run, ...]
    # Every run, as it is then.
    runs: tuple[Run, ...]
    # Where each job stands then.
    standings: tuple[Standing, ...]
    # What the required jobs come to then.
    gate: Gate
    # Whether this target writes the checks of its head; false where another one does.
    shows_checks: bool = True


def conduct(situation: Situation) -> Steps:
    """Decide the next steps; taken twice they change nothing more."""
    ending = tuple(_to_end(situation))
    starting = () if _others_live(situation) else tuple(_to_start(situation))
    changed = {one.key: one for one in (*ending, *starting)}
    runs = (*(changed.pop(one.key, one) for one in situation.runs), *changed.values())
    found = _standings(situation, (*situation.shared, *runs))
    obstacle = _obstacle(situation)
    absence, command = ("", "") if obstacle else _absence(situation, found)
    told = gate(
        found,
        nothing_because=_nothing_because(situation),
        obstacle=obstacle or absence,
        command=command,
        broken=situation.broken,
        waits_for=_waits_for(situation),
    )
    return Steps(starting, ending, runs, found, told)


def _standings(situation: Situation, runs: tuple[Run, ...]) -> tuple[Standing, ...]:
    held, held_plan = hold(situation), hold_of_plan(situation)
    if held == held_plan:
        return standings(situation.wanted, runs, situation.overrides, situation.head_sha, held)
    # Extras may start where the plan waits to be asked for.
    of_plan = standings(situation.wanted, runs, situation.overrides, situation.head_sha, held_plan)
    of_extras = standings(situation.wanted, runs, situation.overrides, situation.head_sha, held)
    return tuple(one if one.wanted.required else extra for one, extra in zip(of_plan, of_extras, strict=True))


def _others_live(situation: Situation) -> bool:
    """Whether a run of an earlier head still lives: its end is waited for before anything starts."""
    return any(not one.state.final for one in situation.earlier)


def _to_end(situation: Situation) -> Iterator[Run]:
    for run in situation.runs:
        end = None if run.state.final else _why_end(run, situation)
        if end is None:
            continue
        if run.state is not RunState.CANCELLING:
            changes = {"reason": end.reason, "may_start_again": end.passing}
            yield _with(run, situation, state=RunState.CANCELLING, **changes)
        elif situation.now - run.updated >= CANCEL_AGAIN:
            yield _with(run, situation, reason=run.reason or end.reason)


def _with(run: Run, situation: Situation, **changes: object) -> Run:
    return run.model_copy(update={"updated": situation.now, **changes})


@dataclass(frozen=True, slots=True)
class _End:
    """Why a run ends, and whether that may pass: then nobody needs to ask for the run again."""

    reason: str
    passing: bool = False


def _why_end(run: Run, situation: Situation) -> _End | None:
    """Why a live run shall end, None when it shall not."""
    if run.state is RunState.CANCELLING:
        return _End(run.reason or "it was cancelled", run.may_start_again)
    if run.head_sha != situation.head_sha:
        return _End(SUPERSEDED, passing=True)
    if situation.over:
        # A closed pull request may be opened again; a merge group that was given up does not come back.
        return _End(situation.over, passing=isinstance(situation.target, Pull))
    if situation.draft:
        return _End(DRAFT, passing=True)
    cancelled = cancelled_by(situation.entries, situation.head_sha)
    if cancelled is not None:
        return _End(f"cancelled by {cancelled.actor}")
    if isinstance(situation.trust, NeedsApproval):
        return _End(NOT_TRUSTED, passing=True)
    waited = situation.now - run.created
    limit = timedelta(seconds=situation.policy.gate.queue_deadline_s)
    if run.state in _QUEUED and waited > limit:
        return _End(f"no machine took it within {situation.policy.gate.queue_deadline_s // 60} minutes")
    if _too_late(situation):
        return _End(_too_late(situation))
    unwanted = _why_not_wanted(run, situation)
    return _End(unwanted, passing=True) if unwanted else None


def _why_not_wanted(run: Run, situation: Situation) -> str:
    """Why nobody asks for this very job any more, empty while somebody does or nobody can say."""
    if situation.plan is None:
        return ""
    wanted = next((one for one in situation.wanted if one.id == run.job_id), None)
    if wanted is None:
        return NOT_WANTED
    return CHANGED if wanted.digest and wanted.digest != run.job_digest else ""


def _to_start(situation: Situation) -> Iterator[Run]:
    """New runs: of jobs that nothing keeps from starting, and of ended ones that somebody wants again."""
    found = _standings(situation, (*situation.shared, *situation.runs))
    states = {one.wanted.id: one.state for one in found}
    for one in found:
        if (
            _held(one, situation)
            or _lives(one.wanted, (*situation.here, *situation.elsewhere))
            or one.wanted.job is None
        ):
            continue
        if any(states.get(required) not in SATISFIED for required in one.wanted.requires):
            continue
        if one.state is JobStatus.WAITING or (one.run is not None and _ended_by_us(one.run)):
            yield _run(one.wanted, situation, one.wanted.asked_by)
        elif one.run is not None and one.state in {JobStatus.FAILED, JobStatus.BLOCKED}:
            source = asked_again(one.run, situation.here, situation.entries)
            if source:
                yield _run(one.wanted, situation, source)


def _ended_by_us(run: Run) -> bool:
    return run.state is RunState.CANCELLED and run.may_start_again


def _held(standing: Standing, situation: Situation) -> bool:
    held = hold_of_plan(situation) if standing.wanted.required else hold(situation)
    return bool(held or _too_late(situation))


def _lives(wanted: WantedJob, runs: Iterable[Run]) -> bool:
    """At most one live run for a job of a head, whatever asked for it."""
    return any(not one.state.final for one in runs if one.job_id == wanted.id)


def _run(wanted: WantedJob, situation: Situation, source: str) -> Run:
    known = (*situation.here, *situation.elsewhere)
    made = [one for one in known if one.job_id == wanted.id and one.job_digest == wanted.digest]
    attempt = 1 + max((one.attempt for one in made), default=0)
    return Run(
        key=run_key(situation.repository, situation.head_sha, wanted.digest, attempt),
        repository=situation.repository,
        number=situation.number,
        head_sha=situation.head_sha,
        job_id=wanted.id,
        job_digest=wanted.digest,
        attempt=attempt,
        required=wanted.required,
        queue_deadline_s=situation.policy.gate.queue_deadline_s,
        asked_by=source,
        merge_base=situation.merge_base,
        created=situation.now,
        updated=situation.now,
        job=wanted.job,
        from_fork=isinstance(situation.target, Pull) and situation.target.from_fork,
    )


def _too_late(situation: Situation) -> str:
    """Why a merge group is answered though its jobs are not done, empty while there is time."""
    target, limit_s = situation.target, situation.policy.gate.merge_queue_deadline_s
    if not isinstance(target, MergeGroup) or target.since is None:
        return ""
    late = situation.now - target.since > timedelta(seconds=limit_s)
    return f"no verdict within {limit_s // 60} minutes of the merge queue's request" if late else ""


def _obstacle(situation: Situation) -> str:
    """What keeps the gate from success whatever the jobs say, empty for nothing."""
    if situation.plan is None:
        return situation.problem or situation.over or "there is no plan"
    if situation.beside is not None and not situation.beside.underway:
        shared = f"pull request #{situation.beside.number} has the same head, and both share one gate"
        return f"{shared}; its gate says: {situation.beside.title}"
    late = _too_late(situation)
    done = all(_is_done(one, situation) for one in situation.wanted if one.required)
    return "" if done else late


def _absence(situation: Situation, found: tuple[Standing, ...]) -> tuple[str, str]:
    """Why a plan that requires nothing is not enough for this head, and the command that helps; empty where it is."""
    plan = situation.plan
    if plan is None or plan.levels or situation.policy.gate.none is Absence.OPEN:
        return "", ""
    shown = any(one.wanted.level is Level.SMOKE and one.state is JobStatus.PASSED for one in found)
    if shown or not isinstance(situation.trust, NeedsApproval):
        return "", ""
    asked = "the policy asks for an approval where nothing is required (gate.none)"
    return f"{asked}: {situation.trust.reason}", f"`/verl-e2e approve {situation.head_sha}` gives it"


def _waits_for(situation: Situation) -> str:
    """What the gate waits for though every job of this target is satisfied, empty for nothing."""
    if situation.beside is None or not situation.beside.underway:
        return ""
    return f"pull request #{situation.beside.number}, which has the same head; its gate says: {situation.beside.title}"


def _is_done(wanted: WantedJob, situation: Situation) -> bool:
    runs = runs_of(wanted, situation.head_sha, (*situation.shared, *situation.runs))
    overridden = any(one.level is wanted.level for one in situation.overrides)
    return overridden or (bool(runs) and runs[-1].state.final)


def _nothing_because(situation: Situation) -> tuple[str, ...]:
    if situation.plan is None:
        return ()
    looked = (situation.plan.looked_at.sentence,) if situation.plan.looked_at is not None else ()
    return (*dict.fromkeys(one.because for one in situation.plan.not_required), *looked)
