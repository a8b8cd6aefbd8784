"""Bring a pull request or a merge group to what it should be: read everything again, decide, do what is missing.

Whoever calls sees to it that no two looks at one reference run at once. Every step is looked up before it is taken, so
a look that was cut off is simply taken again.
"""

from collections.abc import Iterable
from dataclasses import replace

from verl_e2e.app.annotate import with_notes
from verl_e2e.app.answer_commands import answer
from verl_e2e.app.base_policy import note_policy, policy_of, without_policy
from verl_e2e.app.collect_runs import advance
from verl_e2e.app.current_grants import standing_entries
from verl_e2e.app.dispatch import Troubles, cancel, end_doubles, is_still_head, submit
from verl_e2e.app.first_check import show_planning, tell_failure
from verl_e2e.app.known_heads import remember_head, with_others
from verl_e2e.app.look_up_person import trust_of
from verl_e2e.app.merge_groups import with_group_facts
from verl_e2e.app.open_checks import has_open_checks, open_checks
from verl_e2e.app.policy_text import NoPolicyError
from verl_e2e.app.publish import CARD, post_card, post_checks
from verl_e2e.app.required_jobs import prepare
from verl_e2e.app.restore_posts import restore
from verl_e2e.app.reuse_verdict import carry_forward
from verl_e2e.app.services import AppRooms
from verl_e2e.core.model.access import Absence
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.decide import Actions, decide_actions
from verl_e2e.core.pulls.gate import Gate, Standing, standings
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.overrides import expires_at
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullState, Target
from verl_e2e.core.pulls.references import Reference
from verl_e2e.core.pulls.requests import Entry, in_order
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.trust import NeedsApproval, Trusted
from verl_e2e.core.report.checks import checks_wanted
from verl_e2e.core.report.pull_card import render
from verl_e2e.core.report.pull_card_content import card_of
from verl_e2e.ports import BackendError, ForgeError, UnknownPullError

SOON_S = 1.0
# While a run is being ended, which may have to be asked again and forced.
ENDING_S = 30.0


def reconcile(reference: Reference, rooms: AppRooms) -> float | None:
    """Do all that is due for a reference; gives in how many seconds to look again, None when nothing is expected.

    Raises ForgeError or BackendError when something did not answer; what was done stands, look again later.
    """
    target = target_of(reference, rooms)
    if target is None:
        return None
    try:
        return _reconcile(target, rooms)
    except Exception as error:
        tell_failure(target, error, rooms)
        raise


def announce(reference: Reference, rooms: AppRooms) -> None:
    """Show on a target that it was seen, before there is time to look at it. ForgeError; again changes nothing."""
    target = target_of(reference, rooms)
    if target is not None:
        show_planning(target, rooms)


def _reconcile(target: Target, rooms: AppRooms) -> float | None:
    troubles = Troubles()
    if isinstance(target, Pull):
        remember_head(target, rooms)
    entries, runs = _remembered(target, rooms, troubles)
    if _is_at_rest(target, runs, rooms):
        return None
    show_planning(target, rooms)
    target_state = replace(
        _target_state(target, entries, runs, rooms),
        elsewhere=_elsewhere(target, rooms, troubles),
        opened=open_checks(target, rooms),
    )

    def gate_of(pull: Pull) -> Gate:
        return _gate_of(pull, rooms, troubles)

    due = decide_actions(target_state)
    target_state = replace(target_state, runs=_end(due, target_state, rooms, troubles))
    if due.dispatch or any(run.state is RunState.QUEUED for run in target_state.here):
        # Where checks cannot be written no GPU is spent: no one would see what came of it.
        announced = (*target_state.runs, *due.dispatch)
        steps = with_others(target_state, decide_actions(replace(target_state, runs=announced)), gate_of, rooms)
        post_checks(target, checks_wanted(target_state, steps), rooms)
        target_state = replace(target_state, runs=_start(due, target_state, rooms, troubles))
    # What is shown is what came of the steps, a refusal too; what that makes possible is for the next look.
    steps = with_others(target_state, decide_actions(target_state), gate_of, rooms)
    wait = _show(target_state, steps, rooms)
    found = {run.key for run in target_state.runs if run.state is RunState.SUBMITTED}
    note_policy(target, target_state.policy, rooms)
    if troubles.found:
        raise troubles.found[0]
    if any(before.state is RunState.QUEUED and before.key in found for before in runs):
        return SOON_S
    return _again(target_state, steps, wait, rooms.poll_s)


def _gate_of(pull: Pull, rooms: AppRooms, troubles: Troubles) -> Gate:
    """The gate of another pull request by itself, as it is now; nothing is done for it."""
    try:
        entries, runs = _remembered(pull, rooms, troubles)
        elsewhere = _elsewhere(pull, rooms, troubles)
        return decide_actions(replace(_target_state(pull, entries, runs, rooms), elsewhere=elsewhere)).gate
    except ForgeError as error:
        if error.passing:
            raise
        # What is wrong with another one for good must not end the look at this one.
        return Gate(JobStatus.BLOCKED, f"It cannot be planned: {error.answer}", ())


def target_of(reference: Reference, rooms: AppRooms) -> Target | None:
    """The target as it is now, None when it is gone."""
    if isinstance(reference, MergeGroup):
        return with_group_facts(reference, rooms)
    try:
        return rooms.pulls.pull(reference)
    except UnknownPullError:
        return None


def _remembered(target: Target, rooms: AppRooms, troubles: Troubles) -> tuple[tuple[Entry, ...], tuple[Run, ...]]:
    """The entries, and the runs as they stand now."""
    if isinstance(target, Pull):
        entries = in_order(rooms.ledger.entries(target.ref.repository, target.ref.number))
        runs = rooms.ledger.runs(target.ref.repository, number=target.ref.number)
    else:
        entries = ()
        runs = tuple(
            run for run in rooms.ledger.runs(target.repository, head_sha=target.head_sha) if run.number is None
        )
    return entries, tuple(_advanced(run, rooms, troubles) for run in runs)


def _elsewhere(target: Target, rooms: AppRooms, troubles: Troubles) -> tuple[Run, ...]:
    """The runs that other pull requests with this very head have, as they stand now."""
    if not isinstance(target, Pull):
        return ()
    found = rooms.ledger.runs(target.ref.repository, head_sha=target.head_sha)
    return tuple(_advanced(run, rooms, troubles) for run in found if run.number not in (None, target.ref.number))


def _advanced(run: Run, rooms: AppRooms, troubles: Troubles) -> Run:
    try:
        return advance(run, rooms)
    except BackendError as error:
        troubles.found.append(error)
        return run


def _is_at_rest(target: Target, runs: tuple[Run, ...], rooms: AppRooms) -> bool:
    """Whether no one waits for this target, nothing runs, and nothing of ours stands there."""
    if any(not run.state.final for run in runs) or has_open_checks(target, rooms):
        return False
    if isinstance(target, MergeGroup):
        return target.destroyed
    closed = target.state is PullState.CLOSED
    return closed and rooms.ledger.posted(target.ref.repository, CARD, str(target.ref.number)) is None


def _target_state(target: Target, entries: tuple[Entry, ...], runs: tuple[Run, ...], rooms: AppRooms) -> TargetState:
    now = rooms.clock.now()
    try:
        policy = policy_of(target, rooms)
    except NoPolicyError as error:
        return _without_policy(target, entries, runs, error, rooms)
    if isinstance(target, MergeGroup) and target.destroyed:
        # Its commit may be gone from GitHub, and only ends are left to be told.
        return TargetState(target=target, now=now, policy=policy, trust=Trusted("nothing is to run"), runs=runs)
    entries, refused = standing_entries(target, entries, policy, rooms) if isinstance(target, Pull) else (entries, ())
    made = prepare(target, policy, entries, rooms)
    nothing = made.plan is not None and not made.plan.levels and policy.gate.none is Absence.APPROVE
    at_hand = () if nothing else standings(made.wanted, runs, (), target.head_sha)
    trust = trust_of(target, entries, policy, rooms) if nothing else _trust(target, entries, policy, at_hand, rooms)
    runs = carry_forward(target, policy, made.wanted, runs, rooms)
    return TargetState(
        target=target,
        now=now,
        policy=policy,
        trust=trust,
        plan=made.plan,
        problem=made.problem,
        broken=made.broken,
        wanted=made.wanted,
        entries=entries,
        runs=runs,
        merge_base=made.merge_base,
        refused=refused,
    )


def _without_policy(
    target: Target, entries: tuple[Entry, ...], runs: tuple[Run, ...], error: NoPolicyError, rooms: AppRooms
) -> TargetState:
    """A base whose policy cannot be used: nothing starts, and the gate says what to fix."""
    problem = str(error)
    return TargetState(
        target=target,
        now=rooms.clock.now(),
        policy=without_policy(target, error, rooms),
        trust=NeedsApproval(problem),
        problem=problem,
        entries=entries,
        runs=runs,
    )


def _trust(
    target: Target, entries: tuple[Entry, ...], policy: Policy, found: Iterable[Standing], rooms: AppRooms
) -> Trusted | NeedsApproval:
    """Whether the head may run; no one is looked up where nothing is to run any more."""
    if all(standing.state is JobStatus.PASSED for standing in found):
        return Trusted("nothing is to run")
    return trust_of(target, entries, policy, rooms)


def _end(due: Actions, target_state: TargetState, rooms: AppRooms, troubles: Troubles) -> tuple[Run, ...]:
    """End runs; gives all runs as they are then."""
    runs = {run.key: run for run in target_state.runs}
    for run in due.cancel:
        runs[run.key] = cancel(run, rooms, troubles)
    return tuple(runs.values())


def _start(due: Actions, target_state: TargetState, rooms: AppRooms, troubles: Troubles) -> tuple[Run, ...]:
    """Start runs, those that were put down before and not taken yet among them; gives all runs as they are then."""
    runs = {run.key: run for run in target_state.runs}
    ordered = [run for run in runs.values() if run.state is RunState.QUEUED and run.head_sha == target_state.head_sha]
    if is_still_head(target_state.target, rooms):
        for run in (*ordered, *due.dispatch):
            runs[run.key] = submit(run, rooms, troubles)
    return tuple(runs.values())


def _show(target_state: TargetState, steps: Actions, rooms: AppRooms) -> float:
    """Checks first, for they gate; then the card and the answers. Gives when something is to be written again."""
    checks = with_notes(target_state, steps.standings, checks_wanted(target_state, steps), rooms)
    target = target_state.target
    card = render(card_of(target_state, steps))
    restore(target_state, checks, card, rooms)
    waits = [post_checks(target, checks, rooms)]
    waits += [end_doubles(run, rooms) for run in target_state.runs if run.handle]
    if isinstance(target, Pull):
        answer(target_state, rooms)
        waits.append(post_card(target.ref, card, target_state.policy.gate.card_interval_s, rooms))
    return min((wait for wait in waits if wait > 0), default=0.0)


def _again(target_state: TargetState, steps: Actions, wait: float, poll_s: float) -> float | None:
    """When to look again: at once for what an end makes possible, in a while for what runs."""
    if steps.cancel:
        return SOON_S
    live = bool(steps.dispatch) or any(not run.state.final for run in (*target_state.runs, *target_state.shared))
    ending = any(run.state is RunState.CANCELLING for run in target_state.runs)
    waits = [poll_s] * live + [ENDING_S] * ending + [wait] * (wait > 0)
    ends = (expires_at(override, target_state.policy.overrides) for override in target_state.overrides)
    waits += [max((end - target_state.now).total_seconds(), SOON_S) for end in ends]
    return min(waits, default=None)
