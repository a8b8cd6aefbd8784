"""The outbox table: reactions and replies that are still to be written on GitHub, one for each subject."""

import json
from collections.abc import Collection
from datetime import datetime, timedelta

import sqlalchemy as sa

from verl_e2e.adapters.store.database import Store
from verl_e2e.adapters.store.leases import take_rows
from verl_e2e.adapters.store.schema import instant, outbox
from verl_e2e.core.pulls.messages import Letter, Message, as_values, from_values

_WAITING, _WRITTEN, _DROPPED = "waiting", "written", "dropped"
_PROBLEM_CHARACTERS = 500
# Messages to people without a role, for each installation: (number, number with the first one to each person, within).
# Further ones are not sent, so that typing errors of strangers never use up our rate limit on GitHub.
OTHERS_BUDGET = ((10, 30, timedelta(minutes=1)), (60, 180, timedelta(hours=1)))


class SqlOutbox:
    """Messages in a database; see `verl_e2e.ports.Outbox`. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, message: Message, now: datetime) -> bool:
        """Keep a message; false for a subject that was put before, or past the budget of people without a role."""
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
            "document": json.dumps(as_values(message)),
            "owner": "",
        }
        new = self._store.insert(outbox).values(row).on_conflict_do_nothing().returning(outbox.c.seq)
        with self._store.write() as connection:
            if not message.person and _used_up(connection, message, now):
                return False
            return connection.scalar(new) is not None

    def holds(self, repository: str, subject: str) -> bool:
        """Whether a message with this subject was ever put."""
        same = sa.select(outbox.c.seq).where(outbox.c.repository == repository, outbox.c.subject == subject)
        with self._store.read() as connection:
            return connection.scalar(same) is not None

    def take(self, now: datetime, limit: int, besides: Collection[str] = ()) -> tuple[Letter, ...]:
        """The messages to write now, oldest first and people with a role first, but for those of some lanes.

        They are this process's until `written` or `failed`.
        """
        table = outbox.c
        wanted = sa.select(table.seq, table.document, table.attempts).where(table.state == _WAITING)
        wanted = wanted.where(table.due <= instant(now), table.lane.not_in(besides))
        rows = take_rows(self._store, wanted.order_by(table.person.desc(), table.seq).limit(limit), outbox)
        return tuple(Letter(row.seq, from_values(json.loads(row.document)), row.attempts) for row in rows)

    def written(self, letter: int) -> None:
        """A message stands on GitHub; its text goes, its subject stays."""
        self._change({"state": _WRITTEN, "document": "", "problem": ""}, outbox.c.seq == letter)

    def failed(self, letter: int, problem: str, retry_at: datetime | None) -> None:
        """It could not be written: try again then, or never (None)."""
        values: dict[str, object] = {"attempts": outbox.c.attempts + 1, "problem": problem[:_PROBLEM_CHARACTERS]}
        values |= {"state": _DROPPED, "document": ""} if retry_at is None else {"due": instant(retry_at)}
        # Not what another process has, or wrote, since this one was taken for dead.
        waits = sa.and_(outbox.c.state == _WAITING, outbox.c.owner.in_(("", self._store.owner)))
        self._change(values, outbox.c.seq == letter, waits)

    def _change(self, values: dict[str, object], *which: sa.ColumnElement[bool]) -> None:
        with self._store.write(lasting=False) as connection:
            connection.execute(sa.update(outbox).where(*which).values({**values, "owner": ""}))


def _used_up(connection: sa.Connection, message: Message, now: datetime) -> bool:
    for most, with_first, span in OTHERS_BUDGET:
        recent = sa.select(outbox.c.reader, sa.func.count().label("messages")).group_by(outbox.c.reader)
        recent = recent.where(outbox.c.lane == message.lane, outbox.c.created > instant(now - span))
        sent = {row.reader: row.messages for row in connection.execute(recent)}
        is_first = bool(message.to) and message.to.lower() not in sent
        if sum(sent.values()) >= (with_first if is_first else most):
            return True
    return False
