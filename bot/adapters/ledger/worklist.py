"""The targets table: which pull requests and merge groups are to be looked at again, however often it was asked."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from bot.adapters.ledger.schema import targets
from bot.adapters.ledger.store import Store, instant
from bot.core.deliveries import Wanted

_PROBLEM_CHARACTERS = 500


def ask(store: Store, connection: sa.Connection, wanted: Collection[Wanted], now: datetime, *, touch: bool) -> None:
    """Want targets once more, inside a transaction; `touch` when something really happened to them."""
    at = instant(now)
    for one in _merged(wanted):
        if one.text:
            connection.execute(_insert_or_ask(store, one, at, touch=touch))
        else:
            connection.execute(sa.update(targets).where(targets.c.key == one.key).values(_asked(at, touch=touch)))


def _merged(wanted: Collection[Wanted]) -> list[Wanted]:
    """One for each key, that which counts; in one order, so that two transactions never wait for each other."""
    found: dict[str, Wanted] = {}
    for one in wanted:
        known = found.get(one.key)
        if known is None or (one.text and one.rank >= known.rank):
            found[one.key] = one
    return [found[key] for key in sorted(found)]


def _insert_or_ask(store: Store, one: Wanted, at: str, *, touch: bool) -> Any:
    fresh = {"asked": 1, "done": 0, "since": at, "touched": at, "finished": "", "attempts": 0, "due": at, "problem": ""}
    put = store.insert(targets).values(key=one.key, text=one.text, rank=one.rank, **fresh)
    counts = put.excluded.rank >= targets.c.rank
    changed = _asked(at, touch=touch) | {
        "text": sa.case((counts, put.excluded.text), else_=targets.c.text),
        "rank": sa.case((counts, put.excluded.rank), else_=targets.c.rank),
    }
    return put.on_conflict_do_update(index_elements=[targets.c.key], set_=changed)


def _asked(at: str, *, touch: bool) -> dict[str, Any]:
    """What asking once more changes in a row that is there."""
    waits = targets.c.asked > targets.c.done
    changed: dict[str, Any] = {"asked": targets.c.asked + 1}
    if touch:
        # News are a reason to look at once at what was put off.
        since = sa.case((sa.and_(waits, targets.c.since < at), targets.c.since), else_=at)
        return changed | {"since": since, "due": at, "touched": at, "attempts": 0}
    since = sa.case((waits, targets.c.since), else_=at)
    return changed | {"since": since, "due": sa.case((waits, targets.c.due), else_=at)}


class SqlWorklist:
    """Wanted targets in a database; see `bot.ports.Worklist`. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def want(self, wanted: Collection[Wanted], now: datetime) -> None:
        """Want targets once more, by the clock and not because something happened to them."""
        with self._store.write() as connection:
            ask(self._store, connection, wanted, now, touch=False)

    def wanted(self, now: datetime, limit: int) -> tuple[str, ...]:
        """The targets to look at now, the longest waiting first."""
        rows = sa.select(targets.c.key).where(targets.c.asked > targets.c.done, targets.c.due <= instant(now))
        with self._store.read() as connection:
            return tuple(connection.scalars(rows.order_by(targets.c.since, targets.c.key).limit(limit)))

    def asked(self, key: str) -> tuple[int, str]:
        """How often it was asked for up to now, to be handed to `finish`, and its text."""
        row = sa.select(targets.c.asked, targets.c.text).where(targets.c.key == key)
        with self._store.read() as connection:
            found = connection.execute(row).one_or_none()
        return (0, "") if found is None else (found[0], found[1])

    def finish(self, key: str, asked: int, now: datetime, again_at: datetime | None = None) -> None:
        """It was looked at for all that was asked up to then; what was asked meanwhile is not lost.

        With `again_at` it is wanted then once more, or earlier when something happens to it.
        """
        at = instant(now)
        values: dict[str, Any] = {"done": asked, "since": at, "finished": at, "attempts": 0, "problem": ""}
        done = sa.update(targets).where(targets.c.key == key, targets.c.done < asked)
        with self._store.write() as connection:
            connection.execute(done.values(values))
            if again_at is not None:
                later = {"asked": asked + 1, "since": instant(again_at), "due": instant(again_at)}
                quiet = (targets.c.key == key, targets.c.asked == asked)
                connection.execute(sa.update(targets).where(*quiet).values(later))

    def postpone(self, key: str, problem: str, retry_at: datetime) -> None:
        """Looking at it failed: try again then, or earlier when something happens to it."""
        values = {
            "attempts": targets.c.attempts + 1,
            "due": instant(retry_at),
            "problem": problem[:_PROBLEM_CHARACTERS],
        }
        with self._store.write() as connection:
            connection.execute(sa.update(targets).where(targets.c.key == key).values(values))

    def attempts(self, key: str) -> int:
        """How often looking at it failed since it last succeeded."""
        with self._store.read() as connection:
            return connection.scalar(sa.select(targets.c.attempts).where(targets.c.key == key)) or 0

    def stale(self, touched_since: datetime, finished_before: datetime, limit: int) -> tuple[str, ...]:
        """Targets that something happened to since one instant and that were last looked at before another."""
        table = targets.c
        rows = sa.select(table.key).where(table.touched >= instant(touched_since), table.asked == table.done)
        rows = rows.where(table.finished < instant(finished_before)).order_by(table.finished).limit(limit)
        with self._store.read() as connection:
            return tuple(connection.scalars(rows))
