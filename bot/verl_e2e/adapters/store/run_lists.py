"""What the pages list, on tables: short rows of runs, each list bounded, and no document but the one that is shown."""

from collections.abc import Collection
from datetime import date, datetime

import sqlalchemy as sa

from verl_e2e.adapters.store.database import IS_OPEN, IS_OVERRIDE, Store, entries, instant, runs
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.ledger import Override, Run
from verl_e2e.core.pulls.run_lines import RunCount, RunLine

_OVERRIDES, _IN_HISTORY = 2_000, 20_000


class SqlRunLists:
    """`verl_e2e.ports.RunLists` in a database. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def repositories(self) -> tuple[str, ...]:
        with self._store.read() as connection:
            return tuple(connection.scalars(sa.select(runs.c.repository).distinct().order_by(runs.c.repository)))

    def lines(
        self, repositories: Collection[str], *, over: bool | None = None, number: int | None = None, limit: int = 500
    ) -> tuple[RunLine, ...]:
        # By the index of repositories only for one pull request: SQLite would read and sort all rows for the newest.
        table = runs.c
        wanted = sa.select(table.line).where((table.repository if number else table.repository + "").in_(repositories))
        if over is not None:
            wanted = wanted.where(table.final if over else IS_OPEN)
        if number is not None:
            wanted = wanted.where(table.number == number)
        with self._store.read() as connection:
            rows = connection.scalars(wanted.order_by(table.seq.desc()).limit(limit))
            return tuple(map(RunLine.model_validate_json, rows))

    def counts(self, repositories: Collection[str], since: datetime) -> tuple[RunCount, ...]:
        day = sa.func.substr(runs.c.created, 1, 10).label("day")
        alike = (day, runs.c.level, runs.c.family, runs.c.causes, runs.c.result)
        wanted = sa.select(*alike, sa.func.count().label("runs"), sa.func.sum(runs.c.gpu_minutes).label("gpu_minutes"))
        wanted = wanted.where(runs.c.final, runs.c.created >= instant(since), runs.c.repository.in_(repositories))
        with self._store.read() as connection:
            rows = connection.execute(wanted.group_by(*alike).limit(_IN_HISTORY)).all()
        return tuple(
            RunCount(
                date.fromisoformat(row.day),
                None if row.level is None else Level(row.level),
                row.family,
                tuple(row.causes.split()),
                Result(row.result) if row.result else None,
                row.runs,
                row.gpu_minutes,
            )
            for row in rows
        )

    def overrides(self, repositories: Collection[str], since: datetime) -> tuple[Override, ...]:
        wanted = sa.select(entries.c.document).where(IS_OVERRIDE, entries.c.repository.in_(repositories))
        with self._store.read() as connection:
            documents = connection.scalars(wanted.order_by(entries.c.seq.desc()).limit(_OVERRIDES)).all()
        found = map(Override.model_validate_json, documents)
        return tuple(override for override in found if override.at >= since)

    def run(self, key: str) -> Run | None:
        with self._store.read() as connection:
            document = connection.scalar(sa.select(runs.c.document).where(runs.c.key == key))
        return None if document is None else Run.model_validate_json(document)
