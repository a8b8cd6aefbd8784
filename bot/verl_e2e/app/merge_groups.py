"""Merge groups: what the queue said of them is kept, for GitHub cannot be asked for it later."""

from dataclasses import replace

from verl_e2e.app.services import AppRooms
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.pull import MergeGroup, PullRef
from verl_e2e.core.pulls.references import Reference


def remember_group(group: MergeGroup, rooms: AppRooms) -> None:
    """The queue asked for a group's checks."""
    rooms.ledger.put_group(replace(group, since=rooms.clock.now()))


def remember_end(group: MergeGroup, rooms: AppRooms) -> None:
    """The queue gave a group up."""
    rooms.ledger.put_group(replace(group, destroyed=True))


def with_group_facts(group: MergeGroup, rooms: AppRooms) -> MergeGroup:
    """The group with when the queue asked and whether it gave up."""
    known = rooms.ledger.group(group.repository, group.head_sha)
    return replace(group, since=known.since, destroyed=known.destroyed) if known is not None else group


def remembered_group(repository: str, head_sha: str, rooms: AppRooms) -> MergeGroup | None:
    """The group of a head as a reference, None when it is not known."""
    known = rooms.ledger.group(repository, head_sha)
    return replace(known, since=None, destroyed=False) if known is not None else None


def reference_of(run: Run, rooms: AppRooms) -> Reference | None:
    """What a run was made for; None for a merge group that no one remembers."""
    if run.number is not None:
        return PullRef(run.repository, run.number)
    return remembered_group(run.repository, run.head_sha, rooms)
