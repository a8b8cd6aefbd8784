"""The work that waits: deliveries, targets and messages, with what is counted of it and what is removed.

A row of one of these tables that a process took names that process as its owner, until the process returns it. What the
active process took before its end is free again when the next one becomes active.
"""

import json
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from verl_e2e.adapters.store.database import IS_OPEN, Store, deliveries, instant, outbox, read_instant, runs, targets
from verl_e2e.core.pulls.deliveries import ClaimedTarget, Letter, Posting, Received
from verl_e2e.core.pulls.figures import SharedFigures, Waiting
from verl_e2e.core.pulls.ledger import RunState

# Values of the columns `state`: of both tables, of deliveries, and of messages.
_WAITING = "waiting"
_PROCESSED, _REFUSED = "processed", "refused"
_WRITTEN, _DROPPED = "written", "dropped"
_PROBLEM_CHARACTERS = 500
# A target of which so many looks were cut off in a row is left alone so long after the last one. A restart of the
# service cuts looks off too; one that failed is tried again when `postpone` says.
_MOST_CUT_OFF, _REST = 3, timedelta(minutes=15)
# Messages to people without a role, for each installation: (number, number with the first one to each person, within).
# Further ones are not sent, so that typing errors of strangers never use up our rate limit on GitHub.
OTHERS_BUDGET = ((10, 30, timedelta(minutes=1)), (60, 180, timedelta(hours=1)))
# What is removed at once: rows of one table in one transaction, folders, and pages that SQLite gives back.
_ROWS, _FOLDERS, _PAGES = 1_000, 20, 2_000


class SqlDeliveries:
    """Deliveries in a database; see `verl_e2e.ports.Deliveries`. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, received: Sequence[Received]) -> tuple[bool, ...]:
        new = {"state": _WAITING, "attempts": 0, "problem": "", "owner": ""}
        rows = []
        for item in received:
            at = instant(item.received)
            rows.append({**new, "id": item.id, "event": item.event, "body": item.body, "received": at, "due": at})
        # The rows apart from the statement, which is then compiled once and not for each number of rows.
        put = self._store.insert(deliveries).on_conflict_do_nothing().returning(deliveries.c.id)
        with self._store.write() as connection:
            added = set(connection.scalars(put, rows))
        first = {delivery.id: index for index, delivery in reversed([*enumerate(received)])}
        return tuple(delivery.id in added and first[delivery.id] == index for index, delivery in enumerate(received))

    def take(self, now: datetime, limit: int) -> tuple[Received, ...]:
        table = deliveries.c
        wanted = sa.select(table.id, table.event, table.body, table.received, table.attempts)
        # In the order of the index of what waits: by `seq` SQLite would read all that was ever processed.
        wanted = wanted.where(table.state == _WAITING, table.due <= instant(now)).order_by(table.due, table.seq)
        wanted = wanted.limit(limit)
        rows = self._store.take_rows(wanted, deliveries)
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
            _ask(self._store, connection, wanted, now, touch=True)
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
        # Not what another process has, or has processed, since it became the active one.
        waits = sa.and_(deliveries.c.state == _WAITING, deliveries.c.owner.in_(("", self._store.owner)))
        with self._store.write() as connection:
            connection.execute(sa.update(deliveries).where(deliveries.c.id == delivery_id, waits).values(values))


def _ask(store: Store, connection: sa.Connection, wanted: Collection[str], now: datetime, *, touch: bool) -> None:
    """Want targets once more, inside a transaction; `touch` when something really happened to them."""
    if not wanted:
        return
    at = instant(now)
    fresh = {"asked": 1, "done": 0, "since": at, "touched": at, "finished": "", "attempts": 0, "due": at}
    fresh |= {"problem": "", "owner": ""}
    # In one order, so that two transactions never wait for each other.
    rows = [{"target": target, **fresh} for target in sorted(set(wanted))]
    # What asking once more changes in a row that is there. News are a reason to look at once at what was put off.
    waits = targets.c.asked > targets.c.done
    first = sa.and_(waits, targets.c.since < at) if touch else waits
    changed: dict[str, Any] = {"asked": targets.c.asked + 1, "since": sa.case((first, targets.c.since), else_=at)}
    if touch:
        changed |= {"due": at, "touched": at, "attempts": 0}
    else:
        changed["due"] = sa.case((waits, targets.c.due), else_=at)
    put = store.insert(targets).on_conflict_do_update(index_elements=[targets.c.target], set_=changed)
    connection.execute(put, rows)


class SqlWorklist:
    """Wanted targets in a database; see `verl_e2e.ports.Worklist`. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def want(self, wanted: Collection[str], now: datetime, *, at_once: bool = False) -> None:
        with self._store.write(lasting=False) as connection:
            _ask(self._store, connection, wanted, now, touch=False)
            if at_once:
                late = sa.update(targets).where(targets.c.target.in_(wanted), targets.c.due > instant(now))
                connection.execute(late.values(due=instant(now), since=instant(now)))

    def take(
        self, now: datetime, limit: int, *, first: Collection[str] = (), only: Collection[str] | None = None
    ) -> tuple[ClaimedTarget, ...]:
        table = targets.c
        wanted = sa.select(table.target, table.asked, table.attempts)
        wanted = wanted.where(table.asked > table.done, table.due <= instant(now))
        if only is not None:
            wanted = wanted.where(table.target.in_(only))
        due = sa.case((table.attempts + 1 < _MOST_CUT_OFF, table.due), else_=instant(now + _REST))
        begun = {"attempts": table.attempts + 1, "due": due}
        named = sa.case((table.target.in_(first), 0), else_=1)
        rows = self._store.take_rows(wanted.order_by(named, table.since, table.target).limit(limit), targets, begun)
        return tuple(ClaimedTarget(row.target, row.asked, row.attempts) for row in rows)

    def finish(self, taken: ClaimedTarget, now: datetime, again_at: datetime | None = None) -> None:
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
        values = {"due": instant(retry_at), "problem": problem[:_PROBLEM_CHARACTERS], "owner": ""}
        with self._store.write(lasting=False) as connection:
            connection.execute(sa.update(targets).where(*self._own(target)).values(values))

    def release(self, target: str) -> None:
        attempts = sa.case((targets.c.attempts > 0, targets.c.attempts - 1), else_=0)
        # It was due, and is again.
        values = {"owner": "", "attempts": attempts, "due": targets.c.since}
        with self._store.write(lasting=False) as connection:
            connection.execute(sa.update(targets).where(*self._own(target)).values(values))

    def _own(self, target: str) -> tuple[sa.ColumnElement[bool], ...]:
        """A target that this process still has: no other became the active one meanwhile."""
        return targets.c.target == target, targets.c.owner == self._store.owner

    def known(self) -> tuple[str, ...]:
        """Every target that was ever asked for."""
        with self._store.read() as connection:
            return tuple(connection.scalars(sa.select(targets.c.target).order_by(targets.c.target)))

    def stale(self, touched_since: datetime, finished_before: datetime, limit: int) -> tuple[str, ...]:
        table = targets.c
        rows = sa.select(table.target).where(table.touched >= instant(touched_since), table.asked == table.done)
        rows = rows.where(table.finished < instant(finished_before)).order_by(table.finished).limit(limit)
        with self._store.read() as connection:
            return tuple(connection.scalars(rows))


class SqlOutbox:
    """Messages in a database; see `verl_e2e.ports.Outbox`. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, message: Posting, now: datetime) -> bool:
        row = {
            "repository": message.repository,
            "subject": message.subject,
            "lane": message.lane,
            "person": message.person,
            "reader": message.to.lower(),
            "state": _WAITING,
            "attempts": 0,
            "created": instant(now),
            "due": instant(now),
            "problem": "",
            "document": json.dumps(asdict(message)),
            "owner": "",
        }
        new = self._store.insert(outbox).values(row).on_conflict_do_nothing().returning(outbox.c.seq)
        with self._store.write() as connection:
            if message.person:
                return connection.scalar(new) is not None
            for most, with_first, span in OTHERS_BUDGET:
                recent = sa.select(outbox.c.reader, sa.func.count().label("messages")).group_by(outbox.c.reader)
                recent = recent.where(outbox.c.lane == message.lane, outbox.c.created > instant(now - span))
                sent = {row.reader: row.messages for row in connection.execute(recent)}
                is_first = bool(message.to) and message.to.lower() not in sent
                if sum(sent.values()) >= (with_first if is_first else most):
                    return False
            return connection.scalar(new) is not None

    def holds(self, repository: str, subject: str) -> bool:
        same = sa.select(outbox.c.seq).where(outbox.c.repository == repository, outbox.c.subject == subject)
        with self._store.read() as connection:
            return connection.scalar(same) is not None

    def take(self, now: datetime, limit: int, besides: Collection[str] = ()) -> tuple[Letter, ...]:
        table = outbox.c
        wanted = sa.select(table.seq, table.document, table.attempts).where(table.state == _WAITING)
        wanted = wanted.where(table.due <= instant(now), table.lane.not_in(besides))
        rows = self._store.take_rows(wanted.order_by(table.person.desc(), table.seq).limit(limit), outbox)
        return tuple(Letter(row.seq, Posting(**json.loads(row.document)), row.attempts) for row in rows)

    def written(self, letter: int) -> None:
        """A message stands on GitHub; its text goes, its subject stays."""
        self._change({"state": _WRITTEN, "document": "", "problem": ""}, outbox.c.seq == letter)

    def failed(self, letter: int, problem: str, retry_at: datetime | None) -> None:
        values: dict[str, object] = {"attempts": outbox.c.attempts + 1, "problem": problem[:_PROBLEM_CHARACTERS]}
        values |= {"state": _DROPPED, "document": ""} if retry_at is None else {"due": instant(retry_at)}
        # Not what another process has, or wrote, since it became the active one.
        waits = sa.and_(outbox.c.state == _WAITING, outbox.c.owner.in_(("", self._store.owner)))
        self._change(values, outbox.c.seq == letter, waits)

    def _change(self, values: dict[str, object], *which: sa.ColumnElement[bool]) -> None:
        with self._store.write(lasting=False) as connection:
            connection.execute(sa.update(outbox).where(*which).values({**values, "owner": ""}))


class SqlFigures:
    """Counts what waits, from an index or from the rows that wait. Safe to use from several threads."""

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
        found = sa.select(self._state.label("state"), runs.c.created).where(IS_OPEN).subquery()
        counted = sa.select(found.c.state, sa.func.count(), sa.func.min(found.c.created)).group_by(found.c.state)
        with self._store.read() as connection:
            rows = {RunState(state): (count, oldest) for state, count, oldest in connection.execute(counted)}
            open_states = [state for state in RunState if not state.final]
            return SharedFigures(
                deliveries=_waiting(connection, deliveries.c.received, deliveries.c.state == "waiting", now),
                targets=_waiting(connection, targets.c.since, due_targets, now),
                messages=_waiting(connection, outbox.c.created, due_messages, now),
                deliveries_refused=connection.scalar(refused) or 0,
                runs={state: _aged(*rows.get(state, (0, None)), now) for state in open_states},
            )

    def answers(self) -> bool:
        """True; an error when the database does not answer."""
        with self._store.read() as connection:
            return connection.scalar(sa.select(sa.literal(1))) == 1


def _waiting(connection: sa.Connection, since: sa.Column[str], which: sa.ColumnElement[bool], now: datetime) -> Waiting:
    count, oldest = connection.execute(sa.select(sa.func.count(), sa.func.min(since)).where(which)).one()
    return _aged(count, oldest, now)


def _aged(count: int, oldest: str | None, now: datetime) -> Waiting:
    return Waiting(count, max(0.0, (now - read_instant(oldest)).total_seconds()) if oldest else 0.0)


class Retention:
    """Removes what was done with before an instant; entries, runs and notes stay: they are the record.

    `folders` holds the run folders, each named by the key of its run.
    """

    def __init__(self, store: Store, folders: Path) -> None:
        self._store, self._folders = store, folders

    def remove(self, before: datetime) -> bool:
        """Remove some; whether more is left."""
        at = instant(before)
        # The newest target of each repository stays: what is newer than it was missed.
        newest: dict[str, tuple[int, str]] = {}
        with self._store.read() as connection:
            for target in connection.scalars(sa.select(targets.c.target)):
                repository, mark, number = target.partition("#")
                if mark and number.isdigit():
                    newest[repository] = max(newest.get(repository, (0, "")), (int(number), target))
        kept = [target for _, target in newest.values()]
        table = targets.c
        looked_at = (table.finished < at, table.finished != "", table.asked <= table.done, table.target.not_in(kept))
        counts = [
            self._delete(deliveries, deliveries.c.seq, deliveries.c.received < at, deliveries.c.state != "waiting"),
            self._delete(outbox, outbox.c.seq, outbox.c.created < at, outbox.c.state != "waiting"),
            self._delete(targets, table.target, *looked_at),
        ]
        if any(counts):
            self._store.shrink(_PAGES)
        if max(counts) >= _ROWS:
            return True
        # Run folders whose run is over; what they proved is in the ledger.
        try:
            entries = [entry for entry in os.scandir(self._folders) if entry.stat().st_mtime < before.timestamp()]
        except FileNotFoundError:
            return False
        old = sorted(entry.name for entry in entries)[: 50 * _FOLDERS]
        with self._store.read() as connection:
            still_open = sa.select(runs.c.key).where(runs.c.key.in_(old), sa.not_(runs.c.final))
            open_now = set(connection.scalars(still_open))
        chosen = [name for name in old if name not in open_now][:_FOLDERS]
        for name in chosen:
            shutil.rmtree(self._folders / name, ignore_errors=True)
        return len(chosen) >= _FOLDERS

    def _delete(self, table: sa.Table, key: sa.Column[object], *conditions: sa.ColumnElement[bool]) -> int:
        old = sa.select(key).where(*conditions).limit(_ROWS)
        with self._store.write(lasting=False) as connection:
            return connection.execute(sa.delete(table).where(key.in_(old))).rowcount
