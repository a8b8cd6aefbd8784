"""The targets table: which pull requests and merge groups are to be looked at again, however often it was asked."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from verl_e2e.adapters.store.database import Store
from verl_e2e.adapters.store.leases import take_rows
from verl_e2e.adapters.store.schema import instant, targets
from verl_e2e.core.pulls.deliveries import ClaimedTarget

_PROBLEM_CHARACTERS = 500
# A target of which so many looks failed or were cut off is left alone so long after the last one. A restart of the
# service cuts looks off too.
_MOST_CUT_OFF, _REST = 3, timedelta(minutes=15)


def ask(store: Store, connection: sa.Connection, wanted: Collection[str], now: datetime, *, touch: bool) -> None:
    """Want targets once more, inside a transaction; `touch` when something really happened to them."""
    if not wanted:
        return
    at = instant(now)
    fresh = {"asked": 1, "done": 0, "since": at, "touched": at, "finished": "", "attempts": 0, "due": at}
    fresh |= {"problem": "", "owner": ""}
    # In one order, so that two transactions never wait for each other.
    rows = [{"target": target, **fresh} for target in sorted(set(wanted))]
    put = store.insert(targets).on_conflict_do_update(index_elements=[targets.c.target], set_=_asked(at, touch=touch))
    connection.execute(put, rows)


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
    """Wanted targets in a database; see `verl_e2e.ports.Worklist`. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def want(self, wanted: Collection[str], now: datetime, *, at_once: bool = False) -> None:
        """Want targets once more by the clock, and not because something happened to them.

        What is wanted at a later time stays so, but with `at_once`.
        """
        with self._store.write(lasting=False) as connection:
            ask(self._store, connection, wanted, now, touch=False)
            if at_once:
                late = sa.update(targets).where(targets.c.target.in_(wanted), targets.c.due > instant(now))
                connection.execute(late.values(due=instant(now), since=instant(now)))

    def take(
        self, now: datetime, limit: int, *, first: Collection[str] = (), only: Collection[str] | None = None
    ) -> tuple[ClaimedTarget, ...]:
        """The targets to look at now: those named `first`, then the longest waiting; `only` some of them.

        They are this process's, and no other one gets them, until `finish`, `postpone` or `release`. Until then a look
        counts as one that failed: what ends the process again and again is left alone for a while, and others go on.
        """
        table = targets.c
        wanted = sa.select(table.target, table.asked, table.attempts)
        wanted = wanted.where(table.asked > table.done, table.due <= instant(now))
        if only is not None:
            wanted = wanted.where(table.target.in_(only))
        due = sa.case((table.attempts + 1 < _MOST_CUT_OFF, table.due), else_=instant(now + _REST))
        begun = {"attempts": table.attempts + 1, "due": due}
        named = sa.case((table.target.in_(first), 0), else_=1)
        rows = take_rows(self._store, wanted.order_by(named, table.since, table.target).limit(limit), targets, begun)
        return tuple(ClaimedTarget(row.target, row.asked, row.attempts) for row in rows)

    def finish(self, taken: ClaimedTarget, now: datetime, again_at: datetime | None = None) -> None:
        """It was looked at for all that was asked when it was taken; what was asked meanwhile is not lost.

        With `again_at` it is wanted then once more, or earlier when something happens to it.
        """
        at = instant(now)
        values = {
            "done": taken.asked,
            "since": at,
            "finished": at,
            "attempts": 0,
            "due": at,
            "problem": "",
            "owner": "",
        }
        with self._store.write(lasting=False) as connection:
            done = connection.execute(sa.update(targets).where(*self._own(taken.target)).values(values))
            if again_at is not None and done.rowcount:
                later = {"asked": taken.asked + 1, "since": instant(again_at), "due": instant(again_at)}
                quiet = (targets.c.target == taken.target, targets.c.asked == taken.asked)
                connection.execute(sa.update(targets).where(*quiet).values(later))

    def postpone(self, target: str, problem: str, retry_at: datetime) -> None:
        """Looking at it failed: try again then, or earlier when something happens to it."""
        values = {
            "due": instant(retry_at),
            "problem": problem[:_PROBLEM_CHARACTERS],
            "owner": "",
        }
        with self._store.write(lasting=False) as connection:
            connection.execute(sa.update(targets).where(*self._own(target)).values(values))

    def release(self, target: str) -> None:
        """It was not looked at, and anyone may."""
        attempts = sa.case((targets.c.attempts > 0, targets.c.attempts - 1), else_=0)
        with self._store.write(lasting=False) as connection:
            connection.execute(sa.update(targets).where(*self._own(target)).values(owner="", attempts=attempts))

    def _own(self, target: str) -> tuple[sa.ColumnElement[bool], ...]:
        """A target that this process still has: it was not taken for dead meanwhile."""
        return targets.c.target == target, targets.c.owner == self._store.owner

    def known(self) -> tuple[str, ...]:
        """Every target that was ever asked for."""
        with self._store.read() as connection:
            return tuple(connection.scalars(sa.select(targets.c.target).order_by(targets.c.target)))

    def stale(self, touched_since: datetime, finished_before: datetime, limit: int) -> tuple[str, ...]:
        """Targets that something happened to since one instant and that were last looked at before another."""
        table = targets.c
        rows = sa.select(table.target).where(table.touched >= instant(touched_since), table.asked == table.done)
        rows = rows.where(table.finished < instant(finished_before)).order_by(table.finished).limit(limit)
        with self._store.read() as connection:
            return tuple(connection.scalars(rows))
