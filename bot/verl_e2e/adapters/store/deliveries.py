"""The deliveries table: what GitHub sent; no delivery may be lost."""

from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa

from verl_e2e.adapters.store.database import Store
from verl_e2e.adapters.store.leases import take_rows
from verl_e2e.adapters.store.schema import deliveries, instant, read_instant
from verl_e2e.adapters.store.targets import ask
from verl_e2e.core.pulls.deliveries import Received

_WAITING, _PROCESSED, _REFUSED = "waiting", "processed", "refused"
_NEW = {"state": _WAITING, "attempts": 0, "problem": "", "owner": ""}
_PROBLEM_CHARACTERS = 500


class SqlDeliveries:
    """Deliveries in a database; see `verl_e2e.ports.Deliveries`. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, received: Sequence[Received]) -> tuple[bool, ...]:
        """Keep deliveries until they are processed, all or none; false for one whose id was kept before."""
        rows = [{**_NEW, "id": item.id, "event": item.event, "body": item.body, **_times(item)} for item in received]
        # The rows apart from the statement, which is then compiled once and not for each number of rows.
        put = self._store.insert(deliveries).on_conflict_do_nothing().returning(deliveries.c.id)
        with self._store.write() as connection:
            new = set(connection.scalars(put, rows))
        first = {delivery.id: index for index, delivery in reversed([*enumerate(received)])}
        return tuple(delivery.id in new and first[delivery.id] == index for index, delivery in enumerate(received))

    def take(self, now: datetime, limit: int) -> tuple[Received, ...]:
        """The deliveries to act on now, oldest first; they are this process's until `processed` or `failed`."""
        table = deliveries.c
        wanted = sa.select(table.id, table.event, table.body, table.received, table.attempts)
        # In the order of the index of what waits: by `seq` SQLite would read all that was ever processed.
        wanted = wanted.where(table.state == _WAITING, table.due <= instant(now)).order_by(table.due, table.seq)
        wanted = wanted.limit(limit)
        rows = take_rows(self._store, wanted, deliveries)
        return tuple(
            Received(row.id, row.event, bytes(row.body), read_instant(row.received), row.attempts) for row in rows
        )

    def processed(self, processed: Collection[tuple[str, Collection[str]]], now: datetime) -> None:
        """Deliveries by id are done with, each with the targets that are wanted for it; all at once or not at all.

        The body goes, the id stays: the same delivery may be sent again for days.
        """
        wanted = {target for _, its_targets in processed for target in its_targets}
        done = sa.update(deliveries).where(deliveries.c.id.in_([key for key, _ in processed]))
        with self._store.write(lasting=False) as connection:
            ask(self._store, connection, wanted, now, touch=True)
            connection.execute(done.values(state=_PROCESSED, problem="", body=b"", owner=""))

    def failed(self, delivery_id: str, problem: str, retry_at: datetime | None) -> None:
        """It could not be processed: try again at `retry_at`, or never (None). A refused one keeps its body."""
        values: dict[str, object] = {
            "attempts": deliveries.c.attempts + 1,
            "problem": problem[:_PROBLEM_CHARACTERS],
            "state": _REFUSED if retry_at is None else _WAITING,
            "owner": "",
        }
        if retry_at is not None:
            values["due"] = instant(retry_at)
        # Not what another process has, or has processed, since this one was taken for dead.
        waits = sa.and_(deliveries.c.state == _WAITING, deliveries.c.owner.in_(("", self._store.owner)))
        with self._store.write() as connection:
            connection.execute(sa.update(deliveries).where(deliveries.c.id == delivery_id, waits).values(values))


def _times(item: Received) -> dict[str, str]:
    received = instant(item.received)
    return {"received": received, "due": received}
