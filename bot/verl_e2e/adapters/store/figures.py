"""What the tables say of the work that waits: the same for every process on the database. Also whether it answers."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from verl_e2e.adapters.store.database import Store
from verl_e2e.adapters.store.schema import (
    IS_OPEN,
    bots,
    deliveries,
    instant,
    outbox,
    read_instant,
    runs,
    steps,
    targets,
    versions,
)
from verl_e2e.core.pulls.figures import SharedFigures, Waiting
from verl_e2e.core.pulls.ledger import RunState


class SqlFigures:
    """Counts rows; each number comes from an index or from the rows that wait. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Runs keep their state inside their document.
        document: sa.ColumnElement[Any] = sa.type_coerce(runs.c.document, sa.JSON)
        if store.dialect == "postgresql":
            document = sa.cast(runs.c.document, sa.JSON)
        self._state = document["state"].as_string()

    def read(self, now: datetime) -> SharedFigures:
        """What waits now."""
        at = instant(now)
        due_targets = sa.and_(targets.c.asked > targets.c.done, targets.c.due <= at)
        due_messages = sa.and_(outbox.c.state == "waiting", outbox.c.due <= at)
        refused = sa.select(sa.func.count()).select_from(deliveries).where(deliveries.c.state == "refused")
        with self._store.read() as connection:
            return SharedFigures(
                deliveries=_waiting(connection, deliveries.c.received, deliveries.c.state == "waiting", now),
                targets=_waiting(connection, targets.c.since, due_targets, now),
                messages=_waiting(connection, outbox.c.created, due_messages, now),
                deliveries_refused=connection.scalar(refused) or 0,
                runs=self._runs(connection, now),
                processes=connection.scalar(sa.select(sa.func.count()).select_from(bots)) or 0,
            )

    def version(self) -> tuple[int, int]:
        """The version of the tables, and the one that this program knows; an error when there is no answer."""
        with self._store.read() as connection:
            have = connection.scalar(sa.select(sa.func.max(versions.c.version))) or 0
        return have, len(steps(self._store.dialect))

    def _runs(self, connection: sa.Connection, now: datetime) -> dict[RunState, Waiting]:
        found = sa.select(self._state.label("state"), runs.c.created).where(IS_OPEN).subquery()
        counted = sa.select(found.c.state, sa.func.count(), sa.func.min(found.c.created)).group_by(found.c.state)
        rows = {RunState(state): (count, oldest) for state, count, oldest in connection.execute(counted)}
        open_states = (state for state in RunState if not state.final)
        return {state: _aged(*rows.get(state, (0, None)), now) for state in open_states}


def _waiting(connection: sa.Connection, since: sa.Column[str], which: sa.ColumnElement[bool], now: datetime) -> Waiting:
    count, oldest = connection.execute(sa.select(sa.func.count(), sa.func.min(since)).where(which)).one()
    return _aged(count, oldest, now)


def _aged(count: int, oldest: str | None, now: datetime) -> Waiting:
    return Waiting(count, max(0.0, (now - read_instant(oldest)).total_seconds()) if oldest else 0.0)
