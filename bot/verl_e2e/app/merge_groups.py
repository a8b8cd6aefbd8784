"""Merge groups: what the queue said of them is kept, for GitHub cannot be asked for it later."""

from dataclasses import replace

from verl_e2e.app.services import AppRooms
from verl_e2e.core.pulls.ledger import Posted, Run
from verl_e2e.core.pulls.pull import MergeGroup, PullRef
from verl_e2e.core.pulls.references import Reference, read_reference, reference_text

# In these two the ledger's `digest` holds the group itself, as text; `at` is when the queue asked, or gave it up.
_ASKED, _GIVEN_UP = "group", "group-end"


def remember_group(group: MergeGroup, rooms: AppRooms) -> None:
    """The queue asked for a group's checks."""
    _remember(_ASKED, group, rooms)


def remember_end(group: MergeGroup, rooms: AppRooms) -> None:
    """The queue gave a group up."""
    _remember(_GIVEN_UP, group, rooms)


def _remember(kind: str, group: MergeGroup, rooms: AppRooms) -> None:
    if rooms.ledger.posted(group.repository, kind, group.head_sha) is not None:
        return
    now = rooms.clock.now()
    text = reference_text(group)
    rooms.ledger.put_posted(
        Posted(repository=group.repository, kind=kind, subject=group.head_sha, remote_id=0, digest=text, at=now)
    )


def with_group_facts(group: MergeGroup, rooms: AppRooms) -> MergeGroup:
    """The group with when the queue asked and whether it gave up."""
    asked = rooms.ledger.posted(group.repository, _ASKED, group.head_sha)
    ended = rooms.ledger.posted(group.repository, _GIVEN_UP, group.head_sha)
    return replace(group, since=asked.at if asked else group.since, destroyed=ended is not None)


def remembered_group(repository: str, head_sha: str, rooms: AppRooms) -> MergeGroup | None:
    """The group of a head, None when nobody remembers it."""
    asked = rooms.ledger.posted(repository, _ASKED, head_sha)
    found = read_reference(asked.digest) if asked is not None else None
    return found if isinstance(found, MergeGroup) else None


def reference_of(run: Run, rooms: AppRooms) -> Reference | None:
    """What a run was made for; None for a merge group that nobody remembers."""
    if run.number is not None:
        return PullRef(run.repository, run.number)
    return remembered_group(run.repository, run.head_sha, rooms)
