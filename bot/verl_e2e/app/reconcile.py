"""Bring a pull request or a merge group to what it should be: read everything again, decide, do what is missing.

The caller makes sure that no reference is reconciled twice at the same time. Every step is looked up first, so
a look that was cut off is simply taken again.
"""

import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.known_targets import Grants, KnownTargets, NoPolicyError
from verl_e2e.app.publish import CheckPublisher, CommentPublisher, PostRestorer, answer_questions, content_digest
from verl_e2e.app.required_jobs import REPLAN_S, RequiredJobs, VerdictReuse
from verl_e2e.app.runs import BackendRuns, RunQueue, Troubles
from verl_e2e.app.watch import Watcher
from verl_e2e.core.judge.verdict_document import read_verdict
from verl_e2e.core.model.access import Absence
from verl_e2e.core.model.errors import LimitError, UserError
from verl_e2e.core.pulls.commands import GivenEntry, NeedsApproval, Trusted, expires_at, in_written_order
from verl_e2e.core.pulls.decide import Actions, decide_actions
from verl_e2e.core.pulls.forge import (
    Branch,
    CheckId,
    CheckRun,
    CheckStatus,
    Conclusion,
    MergeGroup,
    Pull,
    PullRef,
    PullState,
    Reference,
    Target,
    check_name,
    repository_of,
)
from verl_e2e.core.pulls.gate import Gate, JobStanding, NextAttempt, standings
from verl_e2e.core.pulls.ledger import JobStatus, Run, RunState
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.annotations import paths_to_read
from verl_e2e.core.report.checks import checks_wanted
from verl_e2e.core.report.pull_card import render_pull_card
from verl_e2e.core.text.escape import sentence
from verl_e2e.log_context import add_to_log_context
from verl_e2e.ports import BackendError, Clock, ForgeError, Ledger

# A fault that may pass by itself is not shown on the pull request before it has lasted so long.
_PATIENCE = timedelta(minutes=5)
_PLANNING, FAILED = "Planning", "The change could not be planned"
_AGAIN = "It is tried again by itself, and at once by `/verl-e2e status`."
_PLANNING_SUMMARY = "What the change does to the code that verl runs is being read; the jobs that it needs come next."


SOON_S = 1.0
# While a run is being ended, which may have to be asked again and forced.
ENDING_S = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Brings one target after the other to what it should be."""

    grants: Grants
    required_jobs: RequiredJobs
    reuse: VerdictReuse
    runs: BackendRuns
    known: KnownTargets
    queue: RunQueue
    check_posts: CheckPublisher
    comments: CommentPublisher
    restorer: PostRestorer
    analysis: Analysis
    clock: Clock
    ledger: Ledger
    branches: Watcher
    poll_s: float = 30.0
    """How long a run under way is left alone when no event tells of it: short where none ever does."""

    def reconcile(self, reference: Reference) -> float | None:
        """Do all that is due for a reference; gives in how many seconds to look again, None when nothing is expected.

        Raises ForgeError or BackendError when something did not answer; what was done stands, look again later.
        """
        if isinstance(reference, Branch):
            try:
                return self.branches.look(reference)
            finally:
                self.queue.give_slots()
        target = self._target_of(reference)
        if target is None:
            return None
        try:
            return self._reconcile(target)
        except Exception as error:
            self._tell_failure(target, error)
            raise
        finally:
            # Whatever ended here is free for others.
            self.queue.give_slots()

    def announce(self, reference: Reference) -> None:
        """Show on a target that it was seen, before there is time to look at it. ForgeError; again changes nothing."""
        target = self._target_of(reference) if not isinstance(reference, Branch) else None
        if target is not None:
            self._show_seen(target)

    def _target_of(self, reference: PullRef | MergeGroup) -> Target | None:
        """The target as it is now, None when it is gone."""
        if isinstance(reference, MergeGroup):
            return self.known.with_group_facts(reference)
        return self.known.pull(reference)

    def _reconcile(self, target: Target) -> float | None:
        troubles: Troubles = []
        add_to_log_context(head=target.head_sha)
        if isinstance(target, Pull):
            self.ledger.put_head(target.ref, target.head_sha)
        entries, before = self._remembered(target, troubles)
        if not any(not run.state.final for run in before) and not self.check_posts.any_open(target):
            # No one waits for this target, nothing runs, and nothing of ours stands there.
            if isinstance(target, MergeGroup):
                over = target.destroyed
            else:
                over = target.state is PullState.CLOSED and self.comments.posted_card(target.ref) is None
            if over:
                return None
        self._show_seen(target)
        found = self._state_of(target, entries, before, troubles)
        opened, queue = self.check_posts.open_checks(target), self.queue.view(found)
        found = replace(found, opened=opened, queue=queue)
        due = decide_actions(found)
        ended = {run.key: self.runs.cancel(run, troubles) for run in due.cancel}
        found = replace(found, runs=tuple(ended.get(run.key, run) for run in found.runs))
        if due.dispatch or any(run.state is RunState.QUEUED for run in found.here):
            # Where checks cannot be written no GPU is spent: no one would see what came of it.
            announced = decide_actions(replace(found, runs=(*found.runs, *due.dispatch)))
            wanted = checks_wanted(found, self._with_others(found, announced, troubles))
            self.check_posts.post_checks(target, wanted)
            found = replace(found, runs=self.runs.start(due, found, self.queue, troubles))
            found = replace(found, queue=self.queue.view(found))
        # What is shown is what came of the actions, a refusal too; what that makes possible is for the next look.
        actions = self._with_others(found, decide_actions(found), troubles)
        # Checks first, for they gate; then the card and the answers.
        checks = with_notes(found, actions.standings, checks_wanted(found, actions), self.analysis)
        card = render_pull_card(found, actions)
        self.restorer.restore(found, checks, card)
        waits = [self.check_posts.post_checks(target, checks)]
        if isinstance(target, Pull):
            answer_questions(found, self.comments, self.grants, self.analysis)
            waits.append(self.comments.post_card(target.ref, card, found.policy.gate.card_interval_s))
        waits += [self.runs.end_doubles(run) for run in found.runs if run.handle]
        self.known.note_policy(target, found.policy)
        if troubles:
            raise troubles[0]
        submitted = {run.key for run in found.runs if run.state is RunState.SUBMITTED}
        if any(run.state is RunState.QUEUED and run.key in submitted for run in before):
            return SOON_S
        return _again(found, actions, [wait for wait in waits if wait > 0], self.poll_s)

    def _remembered(self, target: Target, troubles: Troubles) -> tuple[tuple[GivenEntry, ...], tuple[Run, ...]]:
        """The entries in their order, and the runs as they stand now."""
        runs = self.runs.of_target(target, troubles)
        if isinstance(target, MergeGroup):
            return (), runs
        return in_written_order(self.ledger.entries(target.ref.repository, target.ref.number)), runs

    def _state_of(
        self, target: Target, entries: tuple[GivenEntry, ...], runs: tuple[Run, ...], troubles: Troubles
    ) -> TargetState:
        """All that is known of the target: its policy, plan, jobs, trust and runs; but for the checks to close."""
        now, elsewhere = self.clock.now(), self.runs.elsewhere(target, troubles)
        try:
            policy = self.known.policy_of(target)
        except NoPolicyError as error:
            # Nothing starts, and the gate says what to fix.
            problem = str(error)
            return TargetState(
                target=target,
                now=now,
                policy=self.known.without_policy(target, error),
                trust=NeedsApproval(problem),
                problem=problem,
                entries=entries,
                runs=runs,
                elsewhere=elsewhere,
            )
        nothing_runs = Trusted("nothing is to run")
        if isinstance(target, MergeGroup) and target.destroyed:
            # Its commit may be gone from GitHub, and only ends are left to be shown.
            return TargetState(target=target, now=now, policy=policy, trust=nothing_runs, runs=runs)
        entries, refused = self.grants.standing(target, entries, policy) if isinstance(target, Pull) else (entries, ())
        made = self.required_jobs.prepare(target, policy, entries)
        runs = self.reuse.with_reused(target, policy, made, entries, runs)
        at_hand = standings(made.wanted, runs, (), target.head_sha)
        trust: Trusted | NeedsApproval = nothing_runs
        if made.plan is not None and not made.plan.levels and policy.gate.none is not Absence.OPEN:
            trust = self.grants.with_role(self.grants.trust_of(target, entries, policy), target, policy)
        elif any(standing.state is not JobStatus.PASSED for standing in at_hand):
            # No one is looked up where nothing is to run any more.
            trust = self.grants.trust_of(target, entries, policy)
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
            elsewhere=elsewhere,
            merge_base=made.merge_base,
            rehearsal=made.rehearsal,
            rehearsal_missing=made.rehearsal_missing,
            refused=refused,
        )

    def _with_others(self, target_state: TargetState, actions: Actions, troubles: Troubles) -> Actions:
        """The actions with regard to other pull requests that have this head; nothing is done for those."""

        def gate_of(pull: Pull) -> Gate:
            try:
                entries, runs = self._remembered(pull, troubles)
                return decide_actions(self._state_of(pull, entries, runs, troubles)).gate
            except ForgeError as error:
                if error.passing:
                    raise
                # What is wrong with another one for good must not end the look at this one.
                return Gate(JobStatus.BLOCKED, f"It cannot be planned: {error.answer}", ())

        return self.known.with_others(target_state, actions, gate_of)

    def _show_seen(self, target: Target) -> None:
        """Show the gate of a head on which there is none yet. ForgeError where checks cannot be written."""
        if isinstance(target, Pull) and self.known.noted(target.ref, target.head_sha) is not None:
            return
        over = target.state is PullState.CLOSED if isinstance(target, Pull) else target.destroyed
        try:
            name = self.known.policy_of(target).gate.name
        except NoPolicyError as error:
            name = self.known.without_policy(target, error).gate.name
        if not over and self.check_posts.posted(repository_of(target), target.head_sha, name) is None:
            self.check_posts.post_checks(target, (_planning(target, name),))

    def _tell_failure(self, target: Target, error: Exception) -> None:
        """Put the reason on a gate that still says `Planning`; whatever ended the look is raised by the caller."""
        may_pass = isinstance(error, ForgeError) and error.passing
        may_pass = may_pass or (isinstance(error, BackendError) and not error.final)
        # What is ours and unexpected goes to the log, not onto a pull request.
        is_expected = isinstance(error, BackendError | ForgeError | UserError)
        why = sentence(str(error), 1000) if is_expected else "An internal error of verl-e2e; its log says more"
        with suppress(ForgeError, BackendError):
            for check in self.check_posts.open_checks(target):
                planning = _planning(target, check.name)
                posted = self.check_posts.posted(repository_of(target), target.head_sha, check.name)
                if posted is None or posted.digest != content_digest(asdict(planning)):
                    continue
                if not may_pass or self.clock.now() - posted.at >= _PATIENCE:
                    failed = replace(
                        planning,
                        status=CheckStatus.COMPLETED,
                        conclusion=Conclusion.ACTION_REQUIRED,
                        title=FAILED,
                        summary=f"**{why}.**\n\n{_AGAIN}\n",
                    )
                    self.check_posts.post_checks(target, (failed,))


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


def with_notes(
    target_state: TargetState, standings: tuple[JobStanding, ...], checks: tuple[CheckRun, ...], analysis: Analysis
) -> tuple[CheckRun, ...]:
    """The checks, those of failed jobs with their annotations; files are read only for lines in a traceback."""
    plan = target_state.plan
    if plan is None:
        return checks
    failed = {
        check_name(target_state.policy.gate.name, standing.wanted.id): verdict
        for standing in standings
        if standing.state is JobStatus.FAILED
        and standing.run is not None
        and (verdict := read_verdict(standing.run.verdict)) is not None
    }
    found = list(checks)
    for place, check in enumerate(checks):
        verdict = failed.get(check.name) if check.head_sha == target_state.head_sha else None
        # Asked here too, so that no process is needed where there is nothing to read.
        if verdict is None or not paths_to_read(plan, verdict):
            continue
        try:
            found[place] = replace(check, annotations=analysis.annotate(target_state.target, plan, verdict))
        except LimitError as error:
            log.warning("no annotations on %s: %s", check.name, error)
    return tuple(found)


def _again(target_state: TargetState, actions: Actions, waits: list[float], poll_s: float) -> float | None:
    """When to look again: at once for what an end makes possible, in a while for what runs."""
    if actions.cancel:
        return SOON_S
    # Who gets a slot is looked at by itself, but not who shares its head.
    own = (run for run in target_state.runs if not run.waits_for_slot)
    if actions.dispatch or any(not run.state.final for run in (*own, *target_state.shared)):
        waits = [*waits, poll_s]
    if any(run.state is RunState.CANCELLING for run in target_state.runs):
        waits = [*waits, ENDING_S]
    if target_state.plan is not None and target_state.plan.passing:
        waits = [*waits, REPLAN_S]
    if target_state.queue.again_s > 0:
        waits = [*waits, target_state.queue.again_s]
    begins = (standing.attempt.at for standing in actions.standings if isinstance(standing.attempt, NextAttempt))
    # One that is due and did not begin waits for something else, which is looked at anyway.
    times = [begin for begin in begins if begin > target_state.now]
    if actions.rehearsal is not None and actions.rehearsal.starts_at is not None:
        times.append(actions.rehearsal.starts_at)
    # No event tells that a day is over, and a gate may be open by an entry that counts until then.
    times += [expires_at(override, target_state.policy.overrides) for override in target_state.overrides]
    times += [standing.quarantine.ends_at for standing in actions.standings if standing.quarantine is not None]
    seconds = (max((time - target_state.now).total_seconds(), SOON_S) for time in times)
    return min((*waits, *seconds), default=None)
