"""Runs as the queue sees them, in short."""

from datetime import timedelta
from typing import Any

from tests.core.pulls.entries import NOW, asked
from verl_e2e.core.pulls.admission import Snapshot
from verl_e2e.core.pulls.ledger import RecordedCommand
from verl_e2e.core.pulls.queue_entry import QueueEntry
from verl_e2e.core.pulls.queue_terms import QueueTerms

REPOSITORY = "octo/bridge"


def entry(
    name: int, number: int | None = None, *, person: str = "", minute: float = 0, group: bool = False, **given: object
) -> QueueEntry:
    """A run that waits, of a pull request of its own, created `minute` minutes ago; `given` are other fields."""
    terms = {name: given.pop(name) for name in tuple(given) if name in QueueTerms.model_fields}
    of = name if number is None else number
    fields: dict[str, object] = {
        "key": f"{name:064x}",
        "repository": REPOSITORY,
        "number": None if group else of,
        "head_sha": f"{of:040x}",
        "job_id": "0-lora-ddp",
        "waits": True,
        "created": NOW - timedelta(minutes=minute),
        "updated": NOW - timedelta(minutes=minute),
        "terms": QueueTerms.model_validate({"person": person or f"p{of}", "planned_minutes": 7} | terms),
    }
    return QueueEntry.model_validate(fields | given)


def live(name: int, number: int | None = None, *, minute: float = 0, **given: Any) -> QueueEntry:
    """A run that got its slot `minute` minutes ago."""
    return entry(name, number, minute=minute, waits=False, admitted=NOW - timedelta(minutes=minute), **given)


def ended(name: int, number: int | None = None, *, used: float = 7, minute: float = 0, **given: Any) -> QueueEntry:
    """A run that ended `minute` minutes ago and used GPU minutes."""
    fields: dict[str, Any] = {"final": True, "judged": True, "used_minutes": used} | given
    started = NOW - timedelta(minutes=minute + used)
    return entry(name, number, minute=minute, waits=False, **({"created": started, "admitted": started} | fields))


def names(keys: tuple[str, ...]) -> list[int]:
    """The numbers of runs by their keys."""
    return [int(key, 16) for key in keys]


def snapshot(*entries: QueueEntry, switches: tuple[RecordedCommand, ...] = ()) -> Snapshot:
    """A snapshot of runs."""
    return Snapshot(entries, switches)


PAUSED = asked("pause", "the disk is full", minute=-5)
