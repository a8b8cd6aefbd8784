"""What is removed when no one will ask for it again: a little at a time, so that nothing waits for it."""

import os
import shutil
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa

from verl_e2e.adapters.store.database import Store
from verl_e2e.adapters.store.schema import deliveries, instant, outbox, runs, targets

# Rows of one table in one transaction, folders in one go, and pages that SQLite gives back.
_ROWS, _FOLDERS, _PAGES = 1_000, 20, 2_000


class Retention:
    """Removes what was done with before an instant; entries, runs and what was posted stay: they are the record.

    `folders` holds the run folders, each named by the key of its run.
    """

    def __init__(self, store: Store, folders: Path) -> None:
        self._store, self._folders = store, folders

    def remove(self, before: datetime) -> bool:
        """Remove some; whether more is left."""
        at = instant(before)
        counts = [
            self._delete(deliveries, deliveries.c.seq, deliveries.c.received < at, deliveries.c.state != "waiting"),
            self._delete(outbox, outbox.c.seq, outbox.c.created < at, outbox.c.state != "waiting"),
            self._delete(targets, targets.c.target, targets.c.finished < at, targets.c.asked <= targets.c.done,
                         targets.c.finished != "", targets.c.target.not_in(self._newest())),
        ]  # fmt: skip
        if any(counts):
            self._store.shrink(_PAGES)
        return max(*counts, 0) >= _ROWS or self._remove_folders(before) >= _FOLDERS

    def _delete(self, table: sa.Table, key: sa.Column[object], *conditions: sa.ColumnElement[bool]) -> int:
        old = sa.select(key).where(*conditions).limit(_ROWS)
        with self._store.write(lasting=False) as connection:
            return connection.execute(sa.delete(table).where(key.in_(old))).rowcount

    def _newest(self) -> Collection[str]:
        """The newest target of each repository: what is newer than it was missed."""
        newest: dict[str, tuple[int, str]] = {}
        with self._store.read() as connection:
            for target in connection.scalars(sa.select(targets.c.target)):
                repository, mark, number = target.partition("#")
                if mark and number.isdigit():
                    newest[repository] = max(newest.get(repository, (0, "")), (int(number), target))
        return tuple(target for _, target in newest.values())

    def _remove_folders(self, before: datetime) -> int:
        """Run folders whose run is over; what they proved is in the ledger."""
        try:
            entries = [entry for entry in os.scandir(self._folders) if entry.stat().st_mtime < before.timestamp()]
        except FileNotFoundError:
            return 0
        old = sorted(entry.name for entry in entries)[: 50 * _FOLDERS]
        with self._store.read() as connection:
            still_open = sa.select(runs.c.key).where(runs.c.key.in_(old), sa.not_(runs.c.final))
            kept = set(connection.scalars(still_open))
        chosen = [name for name in old if name not in kept][:_FOLDERS]
        for name in chosen:
            shutil.rmtree(self._folders / name, ignore_errors=True)
        return len(chosen)
