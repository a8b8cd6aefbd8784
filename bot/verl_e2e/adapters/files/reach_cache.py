"""Summaries of source files in a small database, by the id of the content; it never lies inside a repository.

What cannot be read or written costs time, not the plan: the summaries are then made again.
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from verl_e2e.core.reach.summary import SUMMARY_VERSION, Import, Summary, Symbol

_AT_ONCE = 500
_PATIENCE_S = 5.0


class SummaryCache:
    """A `SummaryStore` in memory, and in a file below `folder` when one is given."""

    def __init__(self, folder: Path | None = None) -> None:
        self._known: dict[str, Summary] = {}
        self._file = None if folder is None else folder / f"reach-{SUMMARY_VERSION}.sqlite"

    def load(self, ids: Collection[str]) -> Mapping[str, Summary]:
        """The summaries that are known among the ids."""
        missing = [identifier for identifier in ids if identifier not in self._known]
        if missing and self._file is not None and self._file.exists():
            self._known.update(self._stored(missing))
        return {identifier: self._known[identifier] for identifier in ids if identifier in self._known}

    def save(self, summaries: Mapping[str, Summary]) -> None:
        """Keep more summaries."""
        self._known.update(summaries)
        if self._file is None or not summaries:
            return
        rows = [(blob, json.dumps(astuple(summary), separators=(",", ":"))) for blob, summary in summaries.items()]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with sqlite3.connect(self._file, timeout=_PATIENCE_S) as database:
                database.execute("CREATE TABLE IF NOT EXISTS summary (blob TEXT PRIMARY KEY, text TEXT NOT NULL)")
                database.executemany("INSERT OR REPLACE INTO summary VALUES (?, ?)", rows)
            database.close()
        except (OSError, sqlite3.Error):
            self._file = None

    def _stored(self, ids: list[str]) -> dict[str, Summary]:
        try:
            return dict(self._rows(ids))
        except (OSError, sqlite3.Error, ValueError, TypeError, IndexError):
            return {}

    def _rows(self, ids: list[str]) -> Iterator[tuple[str, Summary]]:
        database = sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=_PATIENCE_S)
        try:
            for start in range(0, len(ids), _AT_ONCE):
                some = ids[start : start + _AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"SELECT blob, text FROM summary WHERE blob IN ({marks})"  # noqa: S608  (question marks only)
                for blob, text in database.execute(query, some):
                    yield blob, _summary(json.loads(text))
        finally:
            database.close()


def _summary(row: list[Any]) -> Summary:
    symbols, imports, problem, lazy = row
    return Summary(
        tuple(
            Symbol(name, kind, line, tuple(refs), tuple(bases), decorated, serves)
            for name, kind, line, refs, bases, decorated, serves in symbols
        ),
        tuple(Import(*item) for item in imports),
        problem,
        tuple((name, module) for name, module in lazy),
    )
