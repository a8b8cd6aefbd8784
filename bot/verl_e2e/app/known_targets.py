"""Which pull requests have a head, and which merge groups the queue named."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from verl_e2e.core.pulls.decide import Actions, decide_actions
from verl_e2e.core.pulls.gate import Gate
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullRef, PullState, Reference
from verl_e2e.core.pulls.target_state import OtherPull, TargetState
from verl_e2e.ports import Clock, Ledger, Pulls, UnknownPullError

# A head is shared by a few pull requests at most; someone who opens a hundred with one head delays the rest only.
_MOST_SHARING = 20


@dataclass(frozen=True, slots=True)
class KnownTargets:
    """Remembers which pull requests have which head, and the merge groups."""

    clock: Clock
    ledger: Ledger
    pulls: Pulls

    def pull(self, ref: PullRef) -> Pull | None:
        """The pull request as it is now, None when there is none."""
        try:
            return self.pulls.pull(ref)
        except UnknownPullError:
            return None

    def sharing(self, repository: str, head_sha: str) -> tuple[PullRef, ...]:
        """Every pull request that was ever seen with this head, the newest first, at most twenty."""
        return self.ledger.pulls_with(repository, head_sha)[:_MOST_SHARING]

    def with_sharing(self, reference: Reference, heads: Iterable[str]) -> tuple[Reference, ...]:
        """The reference, and every pull request that shares one of the heads: one gate is shown for all of them."""
        found = (self.sharing(reference.repository, head_sha) for head_sha in heads if head_sha)
        return tuple(dict.fromkeys((reference, *(ref for refs in found for ref in refs))))

    def others_with(self, ref: PullRef, head_sha: str) -> tuple[Pull, ...]:
        """The other pull requests that are open and have this head now."""
        found = (self.pull(other) for other in self.sharing(ref.repository, head_sha) if other != ref)
        there = (pull for pull in found if pull is not None and pull.state is PullState.OPEN)
        return tuple(pull for pull in there if pull.head_sha == head_sha)

    def with_others(self, target_state: TargetState, actions: Actions, gate_of: Callable[[Pull], Gate]) -> Actions:
        """The actions as they are with regard to other open pull requests that have this head.

        There is no success before each of them has it by itself, by `gate_of`, which reads it again. A closed
        one leaves the checks to the others.
        """
        if not isinstance(target_state.target, Pull):
            return actions
        others = self.others_with(target_state.target.ref, target_state.head_sha)
        if target_state.over and others:
            return replace(actions, shows_checks=False)
        if not actions.gate.is_open:
            return actions
        gates = [(pull.ref.number, gate) for pull in others if not (gate := gate_of(pull)).is_open]
        if not gates:
            return actions
        # What needs a person is shown before what only needs time.
        number, gate = min(gates, key=lambda found: (found[1].status is JobStatus.RUNNING, found[0]))
        other = OtherPull(number, gate.title, gate.status is JobStatus.RUNNING)
        return decide_actions(replace(target_state, other_pull=other))

    def remember_group(self, group: MergeGroup, *, destroyed: bool = False) -> None:
        """The queue asked for a group's checks, or gave it up."""
        self.ledger.put_group(replace(group, since=self.clock.now(), destroyed=destroyed))

    def with_group_facts(self, group: MergeGroup) -> MergeGroup:
        """The group with when the queue asked and whether it gave up."""
        known = self.ledger.group(group.repository, group.head_sha)
        return replace(group, since=known.since, destroyed=known.destroyed) if known is not None else group

    def group(self, repository: str, head_sha: str) -> MergeGroup | None:
        """The group of a head as a reference, None when it is not known."""
        known = self.ledger.group(repository, head_sha)
        return replace(known, since=None, destroyed=False) if known is not None else None

    def reference_of(self, run: Run) -> Reference | None:
        """What a run was made for; None for a merge group that no one remembers."""
        if run.number is not None:
            return PullRef(run.repository, run.number)
        return self.group(run.repository, run.head_sha)
