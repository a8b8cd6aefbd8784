"""What planning reads of files and trees, so that it is read once: in memory and in a small database.

What cannot be read costs time, not the plan: it is then made again, and takes the place of what was there.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from verl_e2e.adapters.files.kept_texts import MOST_BYTES, KeptTexts
from verl_e2e.core.plan.pytest_marks import Marks
from verl_e2e.core.plan.reached_files import ReachedFiles
from verl_e2e.core.reach.changes import FileDifference
from verl_e2e.core.reach.summary import SUMMARY_VERSION, Import, Summary, Symbol

# Far more than one tree of sources has; beyond it memory starts with none.
_MOST_IN_MEMORY = 20_000
# A difference is as large as what differs, and few are asked for again.
_MOST_DIFFERENCES_IN_MEMORY = 500
_SUMMARIES, _MARKS, _REACHED, _DIFFERENCES = "summary", "marks", "reached", "difference"
Value = TypeVar("Value")


class SummaryCache:
    """A `SummaryStore` in memory, and in a file below `folder` when one is given; the file's size is bounded.

    `program` gives a digest of what decides a difference besides both contents; default: that of this program.
    """

    def __init__(
        self, folder: Path | None = None, most_bytes: int = MOST_BYTES, program: Callable[[], str] | None = None
    ) -> None:
        self._program = program or _this_program
        file = None if folder is None else folder / f"reach-{SUMMARY_VERSION}.sqlite"
        texts = None if file is None else KeptTexts(file, (_SUMMARIES, _MARKS, _REACHED, _DIFFERENCES), most_bytes)
        self._summaries = _Table(texts, _SUMMARIES, _summary_text, _summary)
        self._marks = _Table(texts, _MARKS, _marks_text, _marks)
        self._reached = _Table(texts, _REACHED, _reached_text, _reached)
        self._differences = _Table(texts, _DIFFERENCES, _difference_text, _difference, _MOST_DIFFERENCES_IN_MEMORY)

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

    def _of_program(self, key: str) -> str:
        return hashlib.sha256(f"{self._program()}\0{key}".encode()).hexdigest()


class _Table(Generic[Value]):
    """Values of one type by key, in memory and in a table where there is one."""

    def __init__(
        self,
        texts: KeptTexts | None,
        name: str,
        write: Callable[[Value], str],
        read: Callable[[str], Value],
        most_in_memory: int = _MOST_IN_MEMORY,
    ) -> None:
        self._most = most_in_memory
        self._texts = texts
        self._name = name
        self._write = write
        self._read = read
        self._known: dict[str, Value] = {}

    def load(self, keys: Collection[str]) -> dict[str, Value]:
        if len(self._known) > self._most:
            self._known.clear()
        missing = [key for key in keys if key not in self._known]
        for key, text in self._texts.load(self._name, missing).items() if self._texts is not None else ():
            # A text that does not read as a value is as good as none.
            with suppress(ValueError, TypeError, IndexError, RecursionError):
                self._known[key] = self._read(text)
        return {key: self._known[key] for key in keys if key in self._known}

    def save(self, values: Mapping[str, Value]) -> None:
        self._known.update(values)
        if self._texts is not None:
            self._texts.save(self._name, {key: self._write(value) for key, value in values.items()})


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


def _marks_text(marks: Marks) -> str:
    return json.dumps([marks.tests, marks.gpu_count])


def _marks(text: str) -> Marks:
    tests, gpu_count = json.loads(text)
    if not all(type(count) is int and count >= 0 for count in (tests, gpu_count)):
        raise ValueError(text)
    return Marks(tests, gpu_count)


def _reached_text(reached: ReachedFiles) -> str:
    return json.dumps([reached.digest, reached.with_tests, sorted(reached.sources), reached.roots])


def _reached(text: str) -> ReachedFiles:
    digest, with_tests, sources, roots = json.loads(text)
    if not all(isinstance(found, str) for found in (digest, with_tests, *sources, *roots)):
        raise ValueError(text)
    return ReachedFiles(digest, with_tests, frozenset(sources), tuple(roots))


@cache
def _differences() -> TypeAdapter[FileDifference]:
    return TypeAdapter(FileDifference)


def _difference_text(difference: FileDifference) -> str:
    return _differences().dump_json(difference).decode()


def _difference(text: str) -> FileDifference:
    return _differences().validate_json(text)


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
