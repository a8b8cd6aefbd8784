"""Which process works on which row, so that two bots share one database and a killed one's work goes on.

A row of a queue (a delivery, a target, a message) belongs to the process named in its `owner` column, which is set and
cleared in the transaction that takes or returns the row. Each process counts up `beats` in its own row of `bots`. A bot
whose count stands still for `LEASE_S` is dead to the others, and what it owned is free.

Each observer measures the time on its own monotonic clock: no two clocks are compared. While the database is
away no one can count up, so the observation begins again when it is back.
"""

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from verl_e2e.adapters.store.database import Store
from verl_e2e.adapters.store.schema import bots, deliveries, outbox, targets

# A worker counts up every 3 s; one that is silent for so long has ended.
LEASE_S = 15.0
_KEYS: Mapping[sa.Table, sa.Column[Any]] = {
    deliveries: deliveries.c.id,
    outbox: outbox.c.seq,
    targets: targets.c.target,
}


def take_rows(
    store: Store, wanted: sa.Select[Any], table: sa.Table, changes: Mapping[str, Any] | None = None
) -> list[sa.Row[Any]]:
    """The free rows that a query finds, owned by this process from now on; two that ask at once get different rows.

    They are given as they were before `changes`.
    """
    key, free = _KEYS[table], wanted.where(table.c.owner == "")
    with store.read() as connection:
        if connection.execute(free.with_only_columns(key).limit(1)).first() is None:
            return []
    with store.write(lasting=False) as connection:
        rows = list(connection.execute(free.with_for_update(skip_locked=True)))
        keys = [row._mapping[key] for row in rows]
        connection.execute(sa.update(table).where(key.in_(keys)).values({"owner": store.owner, **(changes or {})}))
    return rows


class SqlLeases:
    """The bots on a database; see `verl_e2e.ports.Leases`. Called by one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, tuple[int, float]] = {}
        self._last_s = float("-inf")

    def renew(self, now_s: float) -> bool:
        """Count up, and free what ended bots owned; whether this bot does what one does for all.

        StoreError when another bot works here alone.
        """
        self._store.stay()
        if now_s - self._last_s >= LEASE_S / 2:
            # The database was away, or this process stood still: others had no chance to be seen.
            self._seen.clear()
        with self._store.write(lasting=False) as connection:
            self._count_up(connection)
            beats = {row.name: row.beats for row in connection.execute(sa.select(bots.c.name, bots.c.beats))}
            known = {name: self._seen.get(name, (-1, now_s)) for name in beats}
            self._seen = {
                name: known[name] if known[name][0] == count else (count, now_s) for name, count in beats.items()
            }
            ended = [name for name, (_, since_s) in self._seen.items() if now_s - since_s >= LEASE_S]
            if self._store.alone:
                ended = [name for name in beats if name != self._store.owner]
            connection.execute(sa.delete(bots).where(bots.c.name.in_(ended)))
            living = sa.select(bots.c.name)
            for table in _KEYS:
                lost = sa.and_(table.c.owner != "", table.c.owner.not_in(living))
                connection.execute(sa.update(table).where(lost).values(owner=""))
        self._last_s = now_s
        return self._store.owner == str(min(name for name in beats if name not in ended))

    def retain(self, delivery_ids: Collection[str], letters: Collection[int], wanted: Collection[str]) -> None:
        """Free what this bot owns but for these: an answer of the database was lost, and with it who owns what."""
        held: Mapping[sa.Table, Collection[Any]] = {deliveries: delivery_ids, outbox: letters, targets: wanted}
        with self._store.write(lasting=False) as connection:
            for table, key in _KEYS.items():
                others = sa.and_(table.c.owner == self._store.owner, key.not_in(held[table]))
                connection.execute(sa.update(table).where(others).values(owner=""))

    def leave(self) -> None:
        """This bot ends in good order: what it owns is free at once."""
        self.retain((), (), ())
        with self._store.write(lasting=False) as connection:
            connection.execute(sa.delete(bots).where(bots.c.name == self._store.owner))

    def _count_up(self, connection: sa.Connection) -> None:
        own = bots.c.name == self._store.owner
        counted = connection.execute(sa.update(bots).where(own).values(beats=bots.c.beats + 1))
        if not counted.rowcount:
            connection.execute(sa.insert(bots).values(name=self._store.owner, beats=1))
