"""Texts by key in a small database of bounded size; it never lies inside a repository.

What cannot be read or written costs time and nothing else: the texts are then made again. A file that is not a
database, or a damaged one, is replaced.
"""

import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path

# What the rows of one file take; those that were written first go when there are more.
MOST_BYTES = 128 << 20
_AT_ONCE = 500
_PATIENCE_S = 5.0


class KeptTexts:
    """Tables of texts in one file, of so many bytes and what one call adds; the names of tables are ours."""

    def __init__(self, file: Path, tables: Collection[str], most_bytes: int = MOST_BYTES) -> None:
        self._file: Path | None = file
        self._tables = tables
        self._most = most_bytes

    def load(self, table: str, keys: Collection[str]) -> dict[str, str]:
        """The texts that are kept under the keys."""
        if not keys or self._file is None or not self._file.exists():
            return {}
        try:
            return dict(self._rows(table, list(keys)))
        except (OSError, sqlite3.Error):
            return {}

    def save(self, table: str, texts: Mapping[str, str]) -> None:
        """Keep texts; where the file cannot be written nothing is tried again."""
        if self._file is None or not texts:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._write(self._file, table, texts)
            except sqlite3.DatabaseError as error:
                # One that is locked or read-only is an OperationalError.
                if type(error) is not sqlite3.DatabaseError:
                    raise
                self._file.unlink()
                self._write(self._file, table, texts)
        except (OSError, sqlite3.Error):
            self._file = None

    def _rows(self, table: str, keys: list[str]) -> Iterator[tuple[str, str]]:
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=_PATIENCE_S)) as database:
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"SELECT blob, text FROM {table} WHERE blob IN ({marks})"  # noqa: S608  (our own names)
                yield from database.execute(query, some)

    def _write(self, file: Path, table: str, texts: Mapping[str, str]) -> None:
        with closing(sqlite3.connect(file, timeout=_PATIENCE_S)) as database, database:
            for name in self._tables:
                database.execute(f"CREATE TABLE IF NOT EXISTS {name} (blob TEXT PRIMARY KEY, text TEXT NOT NULL)")
            database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", texts.items())  # noqa: S608  (ours)
            dropped = 1
            while dropped and _used_bytes(database) > self._most:
                dropped = sum(_drop_half(database, name) for name in self._tables)


def _used_bytes(database: sqlite3.Connection) -> int:
    """What the rows take, without the pages that are free for new ones."""
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _drop_half(database: sqlite3.Connection, table: str) -> int:
    """Remove the rows that were written first, never the last one; how many there were."""
    bounds = f"SELECT (min(rowid) + max(rowid)) / 2, max(rowid) FROM {table}"  # noqa: S608  (our own names)
    middle, last = database.execute(bounds).fetchone()
    return database.execute(f"DELETE FROM {table} WHERE rowid <= ? AND rowid < ?", (middle, last)).rowcount  # noqa: S608
