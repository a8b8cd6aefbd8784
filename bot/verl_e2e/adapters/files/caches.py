"""What planning reads of sources, kept in memory and in small files of bounded size that never lie in a repository."""

import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from verl_e2e.core.plan.reached_files import Marks, ReachedFiles
from verl_e2e.core.reach.diff import FileDifference
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.reach.program import SUMMARY_VERSION, Import, Summary, Symbol

# What the rows of one file take; those that were written first go when there are more.
MOST_CACHE_BYTES = 128 << 20
_AT_ONCE = 500
_PATIENCE_S = 5.0


class KeptTexts:
    """Tables of texts in one file, of so many bytes and what one call adds; the names of tables are ours."""

    def __init__(self, file: Path, tables: Collection[str], most_bytes: int = MOST_CACHE_BYTES) -> None:
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


# Far more than one tree of sources has; beyond it memory starts with none.
_MOST_IN_MEMORY = 20_000
# A difference is as large as what differs, and few are asked for again.
_MOST_DIFFERENCES_IN_MEMORY = 500
_TABLES = ("summary", "marks", "reached", "difference", "uses")
_Value = TypeVar("_Value")


class SummaryCache:
    """A `SummaryStore` in memory, and in a file below `folder` when one is given; the file's size is bounded.

    `program` gives a digest of what decides a difference besides both contents; default: that of this program.
    """

    def __init__(
        self, folder: Path | None = None, most_bytes: int = MOST_CACHE_BYTES, program: Callable[[], str] | None = None
    ) -> None:
        self._program = program or _this_program
        file = None if folder is None else folder / f"reach-{SUMMARY_VERSION}.sqlite"
        texts = None if file is None else KeptTexts(file, _TABLES, most_bytes)
        self._summaries = _Table(texts, "summary", _summary_text, _summary)
        self._marks = _Table(texts, "marks", *_forms(Marks))
        self._reached = _Table(texts, "reached", *_forms(ReachedFiles))
        self._differences = _Table(texts, "difference", *_forms(FileDifference), _MOST_DIFFERENCES_IN_MEMORY)
        self._uses = _Table(texts, "uses", *_forms(Uses))

    def load(self, ids: Collection[str]) -> Mapping[str, Summary]:
        """The summaries that are known among the ids."""
        return self._summaries.load(ids)

    def save(self, summaries: Mapping[str, Summary]) -> None:
        """Keep more summaries."""
        self._summaries.save(summaries)

    def load_marks(self, keys: Collection[str]) -> Mapping[str, Marks]:
        """The marks of test files that are known among the keys."""
        return self._marks.load(keys)

    def save_marks(self, marks: Mapping[str, Marks]) -> None:
        """Keep the marks of more test files."""
        self._marks.save(marks)

    def load_reached(self, key: str) -> ReachedFiles | None:
        """What was kept of a tree with this key, None where nothing was."""
        return self._reached.load([key]).get(key)

    def save_reached(self, key: str, reached: ReachedFiles) -> None:
        """Keep what jobs can read of a tree."""
        self._reached.save({key: reached})

    def load_differences(self, keys: Collection[str]) -> Mapping[str, FileDifference]:
        """What differs between the versions of files, as far as it is known for the keys."""
        ours = {self._of_program(key): key for key in keys}
        return {ours[key]: difference for key, difference in self._differences.load(ours).items()}

    def save_differences(self, differences: Mapping[str, FileDifference]) -> None:
        """Keep what differs between more versions."""
        self._differences.save({self._of_program(key): difference for key, difference in differences.items()})

    def load_uses(self, key: str) -> Uses | None:
        """What another program uses, as it was kept under a key, None where nothing was."""
        return self._uses.load([key]).get(key)

    def save_uses(self, key: str, uses: Uses) -> None:
        """Keep what another program uses."""
        self._uses.save({key: uses})

    def _of_program(self, key: str) -> str:
        return hashlib.sha256(f"{self._program()}\0{key}".encode()).hexdigest()


class _Table(Generic[_Value]):
    """Values of one type by key, in memory and in a table where there is one."""

    def __init__(
        self,
        texts: KeptTexts | None,
        name: str,
        write: Callable[[_Value], str],
        read: Callable[[str], _Value],
        most_in_memory: int = _MOST_IN_MEMORY,
    ) -> None:
        self._most = most_in_memory
        self._texts = texts
        self._name = name
        self._write = write
        self._read = read
        self._known: dict[str, _Value] = {}

    def load(self, keys: Collection[str]) -> dict[str, _Value]:
        if len(self._known) > self._most:
            self._known.clear()
        missing = [key for key in keys if key not in self._known]
        for key, text in self._texts.load(self._name, missing).items() if self._texts is not None else ():
            # A text that does not read as a value is as good as none.
            with suppress(ValueError, TypeError, IndexError, RecursionError):
                self._known[key] = self._read(text)
        return {key: self._known[key] for key in keys if key in self._known}

    def save(self, values: Mapping[str, _Value]) -> None:
        self._known.update(values)
        if self._texts is not None:
            self._texts.save(self._name, {key: self._write(value) for key, value in values.items()})


# Not by `_forms`: of these there are thousands, and they are read with every plan.
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
def _forms(kind: type[_Value]) -> tuple[Callable[[_Value], str], Callable[[str], _Value]]:
    """How values of a type are written and read; a name that is not UTF-8 is written by its escapes."""
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
