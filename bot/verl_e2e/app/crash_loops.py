"""Looks that never returned: what ends the service again and again is set aside for a while, and its gate says so."""

from datetime import timedelta

from verl_e2e.app.first_check import tell_set_aside
from verl_e2e.app.reconcile import reconcile, target_of
from verl_e2e.app.services import AppRooms
from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.core.pulls.pull import PullRef
from verl_e2e.core.pulls.references import Reference

MOST_BEGUN = 3
# Looks are also cut off by whoever restarts the service: so the first rests are short, and others have their turn.
FIRST_REST, LONGEST_REST = timedelta(seconds=5), timedelta(minutes=15)
_SHORT_RESTS_UNTIL, _LONGER = 30, 4
_LOOK = "look"


def reconcile_counted(reference: Reference, rooms: AppRooms) -> float | None:
    """`reconcile`, counted before it begins: one that never returned three times in a row waits, and others go on.

    A look that fails has returned. One that was cut off by a restart has not, nor one that ended the service.
    """
    found = rooms.ledger.posted(reference.repository, _LOOK, _subject(reference))
    begun = found.remote_id if found is not None else 0
    if found is not None and begun >= MOST_BEGUN and rooms.clock.now() - found.at < rest_after(begun):
        return _set_aside(reference, begun, rooms)
    _note(reference, begun + 1, rooms)
    try:
        again_s = reconcile(reference, rooms)
    except Exception:
        _note(reference, 0, rooms)
        raise
    _note(reference, 0, rooms)
    return again_s


def _set_aside(reference: Reference, begun: int, rooms: AppRooms) -> float:
    target = target_of(reference, rooms)
    if target is not None:
        tell_set_aside(target, f"verl-e2e was ended {begun} times while it looked at this head", rooms)
    return rest_after(begun).total_seconds()


def rest_after(begun: int) -> timedelta:
    """How long a target is left alone after so many looks that never returned: longer with each."""
    return min(FIRST_REST * int(_LONGER ** min(max(begun - _SHORT_RESTS_UNTIL, 0), 9)), LONGEST_REST)


def _note(reference: Reference, begun: int, rooms: AppRooms) -> None:
    rooms.ledger.put_posted(
        Posted(
            repository=reference.repository,
            kind=_LOOK,
            subject=_subject(reference),
            remote_id=begun,
            at=rooms.clock.now(),
        )
    )


def _subject(reference: Reference) -> str:
    return str(reference.number) if isinstance(reference, PullRef) else reference.head_sha
