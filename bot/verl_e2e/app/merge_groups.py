"""Merge groups: what the queue said of them is kept, for GitHub cannot be asked for it later."""

from dataclasses import dataclass, replace

from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.pull import MergeGroup, PullRef
from verl_e2e.core.pulls.references import Reference
from verl_e2e.ports import Clock, Ledger


@dataclass(frozen=True, slots=True)
class MergeGroups:
    """Remembers merge groups."""

    clock: Clock
    ledger: Ledger

    def remember(self, group: MergeGroup) -> None:
        """The queue asked for a group's checks."""
        self.ledger.put_group(replace(group, since=self.clock.now()))

    def remember_end(self, group: MergeGroup) -> None:
        """The queue gave a group up."""
        self.ledger.put_group(replace(group, destroyed=True))

    def with_group_facts(self, group: MergeGroup) -> MergeGroup:
        """The group with when the queue asked and whether it gave up."""
        known = self.ledger.group(group.repository, group.head_sha)
        return replace(group, since=known.since, destroyed=known.destroyed) if known is not None else group

    def remembered_group(self, repository: str, head_sha: str) -> MergeGroup | None:
        """The group of a head as a reference, None when it is not known."""
        known = self.ledger.group(repository, head_sha)
        return replace(known, since=None, destroyed=False) if known is not None else None

    def reference_of(self, run: Run) -> Reference | None:
        """What a run was made for; None for a merge group that no one remembers."""
        if run.number is not None:
            return PullRef(run.repository, run.number)
        return self.remembered_group(run.repository, run.head_sha)
