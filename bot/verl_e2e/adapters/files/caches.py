"""What planning reads of sources, kept in memory and in small files of bounded size that never lie in a repository."""

import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from verl_e2e.core.plan.reached_files import Marks, ReachedFiles
from verl_e2e.core.reach.diff import FileDifference
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.reach.program import SUMMARY_VERSION, Import, Summary, Symbol

# What the rows of one file take; those that were written first go when there are more.
MOST_CACHE_BYTES = 128 << 20
_AT_ONCE = 500
_PATIENCE_S = 5.0


# Values in memory of one type; beyond it memory starts with none. Far more than one tree of sources has.
_MOST_IN_MEMORY = 20_000
# What is kept, with the name of its table and how many are in memory: a difference is as large as what differs.
_TABLES: Mapping[type, tuple[str, int]] = {
    Summary: ("summary", _MOST_IN_MEMORY),
    Marks: ("marks", _MOST_IN_MEMORY),
    ReachedFiles: ("reached", _MOST_IN_MEMORY),
    FileDifference: ("difference", 500),
    Uses: ("uses", _MOST_IN_MEMORY),
}
_Value = TypeVar("_Value")


class SummaryCache:
    """A `SummaryStore` in memory, and in a file below `folder` when one is given, whose rows take at most `most_bytes`.

    `program` gives a digest of what decides a difference besides both contents; default: that of this program.
    """

    def __init__(
        self, folder: Path | None = None, most_bytes: int = MOST_CACHE_BYTES, program: Callable[[], str] | None = None
    ) -> None:
        self._program, self._most = program or _this_program, most_bytes
        self._file = None if folder is None else folder / f"reach-{SUMMARY_VERSION}.sqlite"
        self._known: dict[type, dict[str, Any]] = {kind: {} for kind in _TABLES}

    def load(self, kind: type[_Value], keys: Collection[str]) -> Mapping[str, _Value]:
        known, (table, most) = self._known[kind], _TABLES[kind]
        if len(known) > most:
            known.clear()
        missing = {self._place(kind, key): key for key in keys if key not in known}
        if missing and self._file is not None and self._file.exists():
            _, read = _forms(table)
            name, places = f"file:{self._file}?mode=ro", list(missing)
            with (
                suppress(OSError, sqlite3.Error),
                closing(sqlite3.connect(name, uri=True, timeout=_PATIENCE_S)) as database,
            ):
                for start in range(0, len(places), _AT_ONCE):
                    some = places[start : start + _AT_ONCE]
                    marks = ",".join("?" * len(some))
                    query = f"SELECT blob, text FROM {table} WHERE blob IN ({marks})"  # noqa: S608  (our own names)
                    for place, text in database.execute(query, some):
                        # A text that does not read as a value is as good as none.
                        with suppress(ValueError, TypeError, IndexError, RecursionError):
                            known[missing[place]] = read(text)
        return {key: known[key] for key in keys if key in known}

    def save(self, kind: type[_Value], values: Mapping[str, _Value]) -> None:
        """Keep more values of one type; where the file cannot be written nothing is tried again."""
        self._known[kind].update(values)
        if self._file is None or not values:
            return
        table = _TABLES[kind][0]
        write, _ = _forms(table)
        texts = {self._place(kind, key): write(value) for key, value in values.items()}
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

    def _place(self, kind: type, key: str) -> str:
        """The key in the file: a difference is found again by the program alone that made it."""
        return hashlib.sha256(f"{self._program()}\0{key}".encode()).hexdigest() if kind is FileDifference else key

    def _write(self, file: Path, table: str, texts: Mapping[str, str]) -> None:
        names = [name for name, _ in _TABLES.values()]
        with closing(sqlite3.connect(file, timeout=_PATIENCE_S)) as database, database:
            for name in names:
                database.execute(f"CREATE TABLE IF NOT EXISTS {name} (blob TEXT PRIMARY KEY, text TEXT NOT NULL)")
            database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", texts.items())  # noqa: S608  (ours)
            dropped = 1
            while dropped and _used_bytes(database) > self._most:
                dropped = sum(_drop_half(database, name) for name in names)


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


def _summary_text(summary: Summary) -> str:
    rest = (summary.problem, summary.lazy, summary.files)
    return json.dumps((summary.symbols, summary.imports, *rest), separators=(",", ":"))


def _summary(text: str) -> Summary:
    row: list[Any] = json.loads(text)
    symbols, imports, problem, lazy, files = row
    return Summary(
        tuple(
            Symbol(name, kind, line, tuple(refs), tuple(bases), decorated, serves)
            for name, kind, line, refs, bases, decorated, serves in symbols
        ),
        tuple(map(Import._make, imports)),
        problem,
        tuple((name, module) for name, module in lazy),
        tuple(files),
    )


@cache
def _forms(table: str) -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """How the values of a table are written and read; a name that is not UTF-8 is written by its escapes."""
    kind: Any = next(kind for kind, (name, _) in _TABLES.items() if name == table)
    if kind is Summary:
        # Of these there are thousands, and they are read with every plan.
        return _summary_text, _summary
    adapter = TypeAdapter(kind)
    return (
        lambda value: json.dumps(adapter.dump_python(value, mode="json"), separators=(",", ":")),
        lambda text: adapter.validate_python(json.loads(text)),
    )


@cache
def _this_program() -> str:
    # The imports of the package that compares lead to these and to no other one.
    return digest_of_program([files("verl_e2e.core") / name for name in ("reach", "model", "text")])


def digest_of_program(folders: Iterable[Traversable]) -> str:
    """The files in some folders, and this Python with its parser and compiler, as one digest."""
    digest = hashlib.sha256(sys.version.encode())
    todo = list(folders)
    while todo:
        place = todo.pop()
        if place.is_dir():
            todo.extend(sorted(place.iterdir(), key=lambda item: item.name) if place.name != "__pycache__" else ())
        else:
            content = place.read_bytes()
            digest.update(f"\0{place.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
