"""Bring a pull request or a merge group to what it should be: read everything again, decide, do what is missing.

The caller makes sure that no reference is reconciled twice at the same time. Every step is looked up first, so
a look that was cut off is simply taken again.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.base_policy import BasePolicies, NoPolicyError
from verl_e2e.app.current_grants import CurrentGrants, Permissions
from verl_e2e.app.dispatch import Dispatch, RunCollector, Troubles
from verl_e2e.app.keep_command import Answers
from verl_e2e.app.known_heads import KnownHeads, MergeGroups
from verl_e2e.app.publish import (
    CARD,
    CHECK,
    CheckPublisher,
    CommentPublisher,
    OpenChecks,
    PostRestorer,
    check_digest,
    check_subject,
)
from verl_e2e.app.required_jobs import RequiredJobs, VerdictReuse
from verl_e2e.app.run_queue import RunQueue
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict
from verl_e2e.core.model.access import Absence
from verl_e2e.core.model.errors import LimitError, UserError
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import Entry, in_order
from verl_e2e.core.pulls.decide import Actions, decide_actions, with_new_terms
from verl_e2e.core.pulls.forge import CheckId, CheckRun, CheckStatus, Conclusion, OpenCheck, check_name
from verl_e2e.core.pulls.gate import Gate, Standing, standings
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullState, Reference, Target, repository_of
from verl_e2e.core.pulls.retry import NextAttempt
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.trust import NeedsApproval, Trusted, expires_at
from verl_e2e.core.report.annotations import paths_to_read
from verl_e2e.core.report.checks import checks_wanted
from verl_e2e.core.report.pull_card import render
from verl_e2e.core.report.pull_card_content import pull_card_of
from verl_e2e.core.text.escape import sentence
from verl_e2e.log_context import add_to_log_context
from verl_e2e.ports import BackendError, Clock, ForgeError, Ledger, Pulls, UnknownPullError

# A fault that may pass by itself is not shown on the pull request before it has lasted so long.
_PATIENCE = timedelta(minutes=5)
_PLANNING, FAILED = "Planning", "The change could not be planned"
_PLANNING_SUMMARY = "What the change does to the code that verl runs is being read; the jobs that it needs come next."


@dataclass(frozen=True, slots=True)
class FirstCheck:
    """Shows a target that it was seen, and why no look at it succeeds."""

    policies: BasePolicies
    check_posts: CheckPublisher
    open_checks: OpenChecks
    clock: Clock
    ledger: Ledger

    def show(self, target: Target) -> None:
        """Show the gate of a head on which there is none yet. ForgeError where checks cannot be written."""
        if isinstance(target, Pull) and self.policies.noted_digest(target.ref, target.head_sha) is not None:
            return
        over = target.state is PullState.CLOSED if isinstance(target, Pull) else target.destroyed
        name = self._gate_name(target)
        if not over and self.ledger.posted(repository_of(target), CHECK, check_subject(target.head_sha, name)) is None:
            self.check_posts.post_checks(target, (_planning(target, name),))

    def tell_failure(self, target: Target, error: Exception) -> None:
        """Put the reason on a gate that still says `Planning`; whatever ended the look is raised by the caller."""
        with suppress(ForgeError, BackendError):
            for check in self.open_checks.of_target(target):
                planning = _planning(target, check.name)
                posted = self.ledger.posted(repository_of(target), CHECK, check_subject(target.head_sha, check.name))
                if posted is None or posted.digest != check_digest(planning):
                    continue
                if not _may_pass(error) or self.clock.now() - posted.at >= _PATIENCE:
                    self.check_posts.post_checks(target, (_failed(planning, error),))

    def _gate_name(self, target: Target) -> str:
        try:
            return self.policies.policy_of(target).gate.name
        except NoPolicyError as error:
            return self.policies.without_policy(target, error).gate.name


def _may_pass(error: Exception) -> bool:
    passing = isinstance(error, ForgeError) and error.passing
    return passing or (isinstance(error, BackendError) and not error.final)


def _planning(target: Target, name: str) -> CheckRun:
    number = target.ref.number if isinstance(target, Pull) else 0
    return CheckRun(
        name=name,
        head_sha=target.head_sha,
        status=CheckStatus.IN_PROGRESS,
        title=_PLANNING,
        summary=_PLANNING_SUMMARY,
        external_id=str(CheckId(number, target.head_sha)),
    )


_AGAIN = "It is tried again by itself, and at once by `/verl-e2e status`."


def _failed(planning: CheckRun, error: Exception) -> CheckRun:
    # What is ours and unexpected goes to the log, not onto a pull request.
    is_expected = isinstance(error, BackendError | ForgeError | UserError)
    why = sentence(str(error), 1000) if is_expected else "An internal error of verl-e2e; its log says more"
    return CheckRun(
        name=planning.name,
        head_sha=planning.head_sha,
        status=CheckStatus.COMPLETED,
        conclusion=Conclusion.ACTION_REQUIRED,
        title=FAILED,
        summary=f"**{why}.**\n\n{_AGAIN}\n",
        external_id=planning.external_id,
    )


@dataclass(frozen=True, slots=True)
class TargetStates:
    """Makes the state of a target from its entries and runs."""

    policies: BasePolicies
    grants: CurrentGrants
    permissions: Permissions
    required_jobs: RequiredJobs
    reuse: VerdictReuse
    clock: Clock

    def target_state(self, target: Target, entries: tuple[Entry, ...], runs: tuple[Run, ...]) -> TargetState:
        """The target with its policy, plan, jobs and trust."""
        now = self.clock.now()
        try:
            policy = self.policies.policy_of(target)
        except NoPolicyError as error:
            return self._without_policy(target, entries, runs, error)
        if isinstance(target, MergeGroup) and target.destroyed:
            # Its commit may be gone from GitHub, and only ends are left to be shown.
            return TargetState(target=target, now=now, policy=policy, trust=Trusted("nothing is to run"), runs=runs)
        entries, refused = self.grants.standing(target, entries, policy) if isinstance(target, Pull) else (entries, ())
        made = self.required_jobs.prepare(target, policy, entries)
        runs = self.reuse.with_reused(target, policy, made, entries, runs)
        nothing = made.plan is not None and not made.plan.levels and policy.gate.none is not Absence.OPEN
        at_hand = () if nothing else standings(made.wanted, runs, (), target.head_sha)
        trust = (
            self.permissions.with_role(self.permissions.trust_of(target, entries, policy), target, policy)
            if nothing
            else self._trust(target, entries, policy, at_hand)
        )
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
            rehearsal=made.rehearsal,
            rehearsal_missing=made.rehearsal_missing,
            refused=refused,
        )

    def _without_policy(
        self, target: Target, entries: tuple[Entry, ...], runs: tuple[Run, ...], error: NoPolicyError
    ) -> TargetState:
        """A base whose policy cannot be used: nothing starts, and the gate says what to fix."""
        problem = str(error)
        return TargetState(
            target=target,
            now=self.clock.now(),
            policy=self.policies.without_policy(target, error),
            trust=NeedsApproval(problem),
            problem=problem,
            entries=entries,
            runs=runs,
        )

    def _trust(
        self, target: Target, entries: tuple[Entry, ...], policy: Policy, found: Iterable[Standing]
    ) -> Trusted | NeedsApproval:
        """Whether the head may run; no one is looked up where nothing is to run any more."""
        if all(standing.state is JobStatus.PASSED for standing in found):
            return Trusted("nothing is to run")
        return self.permissions.trust_of(target, entries, policy)


@dataclass(frozen=True, slots=True)
class TargetReader:
    """Reads targets, their runs and all that is known of them."""

    pulls: Pulls
    ledger: Ledger
    groups: MergeGroups
    runs: RunCollector
    target_states: TargetStates
    open_checks: OpenChecks

    def target_of(self, reference: Reference) -> Target | None:
        """The target as it is now, None when it is gone."""
        if isinstance(reference, MergeGroup):
            return self.groups.with_group_facts(reference)
        try:
            return self.pulls.pull(reference)
        except UnknownPullError:
            return None

    def remembered(self, target: Target, troubles: Troubles) -> tuple[tuple[Entry, ...], tuple[Run, ...]]:
        """The entries in their order, and the runs as they stand now."""
        if isinstance(target, MergeGroup):
            return (), self.runs.of_target(target, troubles)
        entries = in_order(self.ledger.entries(target.ref.repository, target.ref.number))
        return entries, self.runs.of_target(target, troubles)

    def target_state(
        self, target: Target, entries: tuple[Entry, ...], runs: tuple[Run, ...], troubles: Troubles
    ) -> TargetState:
        """All that is known of the target, but for the checks that it has to close."""
        found = self.target_states.target_state(target, entries, runs)
        return replace(found, elsewhere=self.runs.elsewhere(target, troubles))

    def to_close(self, target: Target) -> tuple[OpenCheck, ...]:
        """The checks of the target that may be open."""
        return self.open_checks.of_target(target)

    def is_at_rest(self, target: Target, runs: tuple[Run, ...]) -> bool:
        """Whether no one waits for this target, nothing runs, and nothing of ours stands there."""
        if any(not run.state.final for run in runs) or self.open_checks.any_of(target):
            return False
        if isinstance(target, MergeGroup):
            return target.destroyed
        closed = target.state is PullState.CLOSED
        return closed and self.ledger.posted(target.ref.repository, CARD, str(target.ref.number)) is None


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Display:
    """Shows on GitHub what was decided for a target."""

    answers: Answers
    check_posts: CheckPublisher
    comments: CommentPublisher
    restorer: PostRestorer
    analysis: Analysis

    def announce(self, target_state: TargetState, steps: Actions) -> None:
        """Bring the checks alone to what was decided, before GPUs are spent on it."""
        self.check_posts.post_checks(target_state.target, checks_wanted(target_state, steps))

    def show(self, target_state: TargetState, steps: Actions) -> float:
        """Checks first, for they gate; then the card and the answers. Gives when something is to be written again."""
        checks = with_notes(target_state, steps.standings, checks_wanted(target_state, steps), self.analysis)
        target = target_state.target
        card = render(pull_card_of(target_state, steps))
        self.restorer.restore(target_state, checks, card)
        waits = [self.check_posts.post_checks(target, checks)]
        if isinstance(target, Pull):
            self.answers.answer(target_state)
            waits.append(self.comments.post_card(target.ref, card, target_state.policy.gate.card_interval_s))
        return min((wait for wait in waits if wait > 0), default=0.0)


def with_notes(
    target_state: TargetState, standings: tuple[Standing, ...], checks: tuple[CheckRun, ...], analysis: Analysis
) -> tuple[CheckRun, ...]:
    """The checks, those of failed jobs with their annotations; files are read only for lines in a traceback."""
    if target_state.plan is None:
        return checks
    failed = {
        check_name(target_state.policy.gate.name, standing.wanted.id): verdict
        for standing in standings
        if standing.state is JobStatus.FAILED
        and standing.run is not None
        and (verdict := read_verdict(standing.run.verdict)) is not None
    }
    return tuple(
        _remarked(check, failed[check.name], target_state.plan, target_state, analysis)
        if check.name in failed and check.head_sha == target_state.head_sha
        else check
        for check in checks
    )


def _remarked(check: CheckRun, verdict: Verdict, plan: Plan, target_state: TargetState, analysis: Analysis) -> CheckRun:
    # Asked here too, so that no process is needed where there is nothing to read.
    if not paths_to_read(plan, verdict):
        return check
    try:
        return replace(check, annotations=analysis.annotate(target_state.target, plan, verdict))
    except LimitError as error:
        log.warning("no annotations on %s: %s", check.name, error)
        return check


SOON_S = 1.0
# While a run is being ended, which may have to be asked again and forced.
ENDING_S = 30.0


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Brings one target after the other to what it should be."""

    reader: TargetReader
    dispatch: Dispatch
    queue: RunQueue
    display: Display
    first_check: FirstCheck
    heads: KnownHeads
    policies: BasePolicies
    poll_s: float = 30.0
    """How long a run under way is left alone when no event tells of it: short where none ever does."""

    def reconcile(self, reference: Reference) -> float | None:
        """Do all that is due for a reference; gives in how many seconds to look again, None when nothing is expected.

        Raises ForgeError or BackendError when something did not answer; what was done stands, look again later.
        """
        target = self.reader.target_of(reference)
        if target is None:
            return None
        try:
            return self._reconcile(target)
        except Exception as error:
            self.first_check.tell_failure(target, error)
            raise
        finally:
            # Whatever ended here is free for others.
            self.queue.give_slots()

    def announce(self, reference: Reference) -> None:
        """Show on a target that it was seen, before there is time to look at it. ForgeError; again changes nothing."""
        target = self.reader.target_of(reference)
        if target is not None:
            self.first_check.show(target)

    def _reconcile(self, target: Target) -> float | None:
        troubles = Troubles()
        add_to_log_context(head=target.head_sha)
        if isinstance(target, Pull):
            self.heads.remember(target)
        entries, runs = self.reader.remembered(target, troubles)
        if self.reader.is_at_rest(target, runs):
            return None
        self.first_check.show(target)
        target_state = self.reader.target_state(target, entries, runs, troubles)
        target_state = replace(target_state, opened=self.reader.to_close(target), queue=self.queue.view(target_state))

        def gate_of(pull: Pull) -> Gate:
            return self._gate_of(pull, troubles)

        due = decide_actions(target_state)
        target_state = replace(target_state, runs=self._end(due, target_state, troubles))
        if due.dispatch or any(run.state is RunState.QUEUED for run in target_state.here):
            # Where checks cannot be written no GPU is spent: no one would see what came of it.
            announced = (*target_state.runs, *due.dispatch)
            steps = self.heads.with_others(target_state, decide_actions(replace(target_state, runs=announced)), gate_of)
            self.display.announce(target_state, steps)
            target_state = replace(target_state, runs=self._start(due, target_state, troubles))
            target_state = replace(target_state, queue=self.queue.view(target_state))
        # What is shown is what came of the steps, a refusal too; what that makes possible is for the next look.
        steps = self.heads.with_others(target_state, decide_actions(target_state), gate_of)
        waits = [self.display.show(target_state, steps)]
        waits += [self.dispatch.end_doubles(run) for run in target_state.runs if run.handle]
        found = {run.key for run in target_state.runs if run.state is RunState.SUBMITTED}
        self.policies.note(target, target_state.policy)
        if troubles.found:
            raise troubles.found[0]
        if any(before.state is RunState.QUEUED and before.key in found for before in runs):
            return SOON_S
        return _again(target_state, steps, min((wait for wait in waits if wait > 0), default=0.0), self.poll_s)

    def _gate_of(self, pull: Pull, troubles: Troubles) -> Gate:
        """The gate of another pull request by itself, as it is now; nothing is done for it."""
        try:
            entries, runs = self.reader.remembered(pull, troubles)
            return decide_actions(self.reader.target_state(pull, entries, runs, troubles)).gate
        except ForgeError as error:
            if error.passing:
                raise
            # What is wrong with another one for good must not end the look at this one.
            return Gate(JobStatus.BLOCKED, f"It cannot be planned: {error.answer}", ())

    def _end(self, due: Actions, target_state: TargetState, troubles: Troubles) -> tuple[Run, ...]:
        """End runs; gives all runs as they are then."""
        runs = {run.key: run for run in target_state.runs}
        for run in due.cancel:
            runs[run.key] = self.dispatch.cancel(run, troubles)
        return tuple(runs.values())

    def _start(self, due: Actions, target_state: TargetState, troubles: Troubles) -> tuple[Run, ...]:
        """Start the runs that have their turn, also those that were put down before; gives all runs as they are then.

        The head is read again before anything new is put down, and before anything is submitted.
        """
        runs = {run.key: run for run in target_state.runs}
        if due.dispatch and not self.dispatch.is_still_head(target_state.target):
            return target_state.runs
        new = {run.key: run for run in (*with_new_terms(target_state), *due.dispatch)}
        queued = {run.key: run for run in target_state.here if run.state is RunState.QUEUED}
        runs |= {run.key: run for run in self.queue.let_start((queued | new).values(), new)}
        ready = [run for run in runs.values() if run.key in queued | new and not run.waits_for_slot]
        if ready and (due.dispatch or self.dispatch.is_still_head(target_state.target)):
            runs |= {run.key: self.dispatch.submit(run, troubles) for run in ready}
        return tuple(runs.values())


def _again(target_state: TargetState, steps: Actions, wait: float, poll_s: float) -> float | None:
    """When to look again: at once for what an end makes possible, in a while for what runs."""
    if steps.cancel:
        return SOON_S
    # Who gets a slot is looked at by itself, but not who shares its head.
    own = (run for run in target_state.runs if not run.waits_for_slot)
    live = bool(steps.dispatch) or any(not run.state.final for run in (*own, *target_state.shared))
    ending = any(run.state is RunState.CANCELLING for run in target_state.runs)
    waits = [poll_s] * live + [ENDING_S] * ending + [wait] * (wait > 0)
    begins = (standing.attempt.at for standing in steps.standings if isinstance(standing.attempt, NextAttempt))
    # One that is due and did not begin waits for something else, which is looked at anyway.
    waits += [max((begin - target_state.now).total_seconds(), SOON_S) for begin in begins if begin > target_state.now]
    if steps.rehearsal is not None and steps.rehearsal.starts_at is not None:
        waits.append(max((steps.rehearsal.starts_at - target_state.now).total_seconds(), SOON_S))
    waits += [target_state.queue.again_s] * (target_state.queue.again_s > 0)
    ends = [expires_at(override, target_state.policy.overrides) for override in target_state.overrides]
    # No event tells that a day is over, and a gate may be open by an entry that counts until then.
    ends += [standing.quarantine.ends_at for standing in steps.standings if standing.quarantine is not None]
    waits += [max((end - target_state.now).total_seconds(), SOON_S) for end in ends]
    return min(waits, default=None)
