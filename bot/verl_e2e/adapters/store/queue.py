"""The queue's side of the runs table: every run in short, and slots that are given in one transaction."""

from collections.abc import Callable, Collection
from datetime import datetime
from functools import lru_cache

import sqlalchemy as sa

from verl_e2e.adapters.store.database import IS_OPEN, IS_SWITCH, WAITS, Store, entries, runs
from verl_e2e.core.pulls.ledger import RecordedCommand, Run
from verl_e2e.core.pulls.queue import QueueEntry, Snapshot, entry_of

# PostgreSQL's advisory lock of a decision, so that two bots decide one after the other.
_DECIDING = 0x7665726F
# More than any cluster runs at once.
_MOST = 20_000


def short_of(run: Run) -> dict[str, object]:
    """What the queue keeps of a run in addition to its document."""
    return {"waiting": run.waits_for_slot, "brief": entry_of(run).model_dump_json()}


def has_waiting(store: Store) -> bool:
    """Whether any run waits for a slot."""
    with store.read() as connection:
        return connection.scalar(sa.select(runs.c.seq).where(WAITS).limit(1)) is not None


def snapshot(store: Store) -> Snapshot:
    """The runs that are not over, and the switches."""
    with store.read() as connection:
        return _snapshot(connection)


def switches(store: Store, repository: str) -> tuple[RecordedCommand, ...]:
    """Every accepted `pause` and `resume` of a repository."""
    with store.read() as connection:
        return _switches(connection, entries.c.repository == repository)


def give_slots(store: Store, decide: Callable[[Snapshot], Collection[str]], now: datetime) -> tuple[Run, ...]:
    """Let the runs start that a decision names, in one transaction; gives those that waited until now.

    When this process is killed meanwhile, or loses the database, no run got a slot.
    """
    # Whether anything starts is found out without a lock that others would wait for.
    with store.read() as connection:
        if not decide(_snapshot(connection)):
            return ()
    with store.write() as connection:
        if store.dialect == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_DECIDING)))
        chosen = decide(_snapshot(connection))
        wanted = sa.select(runs.c.document).where(runs.c.key.in_(chosen), runs.c.waiting, sa.not_(runs.c.final))
        found = [Run.model_validate_json(document) for document in connection.scalars(wanted.with_for_update())]
        started = [run.let_start(now) for run in found]
        for run in started:
            values = {"document": run.model_dump_json(), **short_of(run)}
            connection.execute(sa.update(runs).where(runs.c.key == run.key).values(values))
    return tuple(started)


def _snapshot(connection: sa.Connection) -> Snapshot:
    """The runs that are not over."""
    # In their order here: a database that sorts by `seq` would read all that ever ran.
    rows = connection.execute(sa.select(runs.c.seq, runs.c.brief).where(IS_OPEN).limit(_MOST))
    known = (_read_entry(row.brief) for row in sorted(rows, key=lambda row: row.seq))
    return Snapshot(tuple(known), _switches(connection, sa.true()))


def _switches(connection: sa.Connection, where: sa.ColumnElement[bool]) -> tuple[RecordedCommand, ...]:
    # Sorted here: for the order SQLite would read all entries instead of the few in the index of these.
    rows = connection.execute(sa.select(entries.c.seq, entries.c.document).where(IS_SWITCH, where))
    return tuple(_read_switch(row.document) for row in sorted(rows, key=lambda row: row.seq))


@lru_cache(maxsize=2 * _MOST)
def _read_entry(brief: str) -> QueueEntry:
    """An entry from its row; the same rows are read with every decision, and hardly one of them changed."""
    return QueueEntry.model_validate_json(brief)


@lru_cache(maxsize=1024)
def _read_switch(document: str) -> RecordedCommand:
    return RecordedCommand.model_validate_json(document)
