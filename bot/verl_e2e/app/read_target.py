"""Read a target again: what it is now, its runs as they stand, and all that the decision on it needs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from verl_e2e.app.base_policy import BasePolicies
from verl_e2e.app.collect_runs import RunCollector, Troubles
from verl_e2e.app.current_grants import CurrentGrants
from verl_e2e.app.look_up_person import Permissions
from verl_e2e.app.merge_groups import MergeGroups
from verl_e2e.app.open_checks import OpenChecks
from verl_e2e.app.policy_text import NoPolicyError
from verl_e2e.app.publish_comments import CARD
from verl_e2e.app.required_jobs import RequiredJobs
from verl_e2e.app.reuse_verdict import VerdictReuse
from verl_e2e.core.model.access import Absence
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.check_runs import OpenCheck
from verl_e2e.core.pulls.gate import Standing, standings
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullState, Target
from verl_e2e.core.pulls.references import Reference
from verl_e2e.core.pulls.requests import Entry, in_order
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.trust import NeedsApproval, Trusted
from verl_e2e.ports import Clock, Ledger, Pulls, UnknownPullError


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
