"""Which cells of a rehearsal enter which functions and lines of Bridge, small enough to be packaged and handed on.

A cell is kept with its row of the table of cells, by which a plan knows the settings that it stands for, and with what
became of it where a change was rehearsed.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated

from pydantic import Field, JsonValue, ValidationError

from verl_e2e.core.compare.rehearsal import CellOutcome, CellRecord, Rehearsal
from verl_e2e.core.model.document import Document
from verl_e2e.core.model.execution import CommitId
from verl_e2e.core.text.packed import UnpackError, pack_text, unpack_text

NO_CELLS: frozenset[int] = frozenset()
CellName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
# More than a table has.
_MOST_CELLS = 2_000
# Characters of a packed map that a ledger keeps with a run, and bytes of it unpacked.
_MOST_PACKED, _MOST_UNPACKED = 12_000, 4 << 20


class CellRow(Document):
    """One row of the table of cells."""

    # Its name, which is that of a file.
    name: CellName
    # The family of the policy whose model it builds.
    family: str
    # What differs from a plain training on one rank, by the field of the table.
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    # What became of it; None where nothing was compared.
    outcome: CellOutcome | None = None


class AskedCells(Document):
    """`cells.json` of a run folder: what the runner was to run."""

    # The names of the cells.
    cells: Annotated[tuple[CellName, ...], Field(max_length=_MOST_CELLS)] = ()
    # Whether they are all of the table.
    whole: bool = False


class FileCells(Document):
    """The cells that entered one file; a number is the place of a set in `CellMap.sets`."""

    # The id of its content in git.
    blob: str
    # By the qualified name of a function.
    functions: dict[str, int]
    # The first line, the last line, and the set of all lines between them.
    lines: tuple[tuple[int, int, int], ...]


class CellMap(Document):
    """What the cells of one commit entered."""

    commit: CommitId
    # The cells; a set is about their places here.
    cells: tuple[CellRow, ...]
    # Sets of cells, each as the hexadecimal number that has a bit for each of its cells.
    sets: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]+$")], ...]
    # By path.
    files: dict[str, FileCells]

    @cached_property
    def _sets(self) -> tuple[frozenset[int], ...]:
        numbers = (int(text, 16) for text in self.sets)
        return tuple(frozenset(at for at in range(len(self.cells)) if number >> at & 1) for number in numbers)

    @cached_property
    def _lines(self) -> Mapping[str, Mapping[int, frozenset[int]]]:
        return {
            path: {line: self._sets[cells] for first, last, cells in file.lines for line in range(first, last + 1)}
            for path, file in self.files.items()
        }

    def of_function(self, path: str, symbol: str) -> frozenset[int]:
        """The cells that entered a function."""
        file = self.files.get(path)
        return NO_CELLS if file is None or symbol not in file.functions else self._sets[file.functions[symbol]]

    def of_line(self, path: str, line: int) -> frozenset[int]:
        """The cells that entered a line."""
        return self._lines.get(path, {}).get(line, NO_CELLS)

    def judged(self, *outcomes: CellOutcome) -> frozenset[int]:
        """The cells with one of some outcomes."""
        return frozenset(at for at, row in enumerate(self.cells) if row.outcome in outcomes)


def with_outcomes(rows: Iterable[CellRow], found: Rehearsal) -> tuple[CellRow, ...]:
    """The rows with what a rehearsal says of each."""
    outcomes = {cell.cell: cell.outcome for cell in found.cells}
    return tuple(row.model_copy(update={"outcome": outcomes.get(row.name)}) for row in rows)


def cell_map(
    commit: str, blobs: Mapping[str, str], records: Mapping[str, CellRecord], rows: Iterable[CellRow]
) -> CellMap:
    """The map of the records of one commit for some files, by the ids of their contents; a row has to have a record."""
    cells = tuple(row for row in rows if row.name in records)
    functions: dict[str, dict[str, int]] = {}
    lines: dict[str, dict[int, int]] = {}
    for at, row in enumerate(cells):
        record = records[row.name]
        for name in record.entered.functions:
            path, _, symbol = name.partition(":")
            if path in blobs:
                own = functions.setdefault(path, {})
                own[symbol] = own.get(symbol, 0) | 1 << at
        for path, ranges in record.entered.lines.items():
            if path in blobs:
                seen = lines.setdefault(path, {})
                for line in (line for first, last in ranges for line in range(first, last + 1)):
                    seen[line] = seen.get(line, 0) | 1 << at
    numbers = {bits for file in functions.values() for bits in file.values()}
    numbers |= {bits for file in lines.values() for bits in file.values()}
    places = {bits: at for at, bits in enumerate(sorted(numbers))}
    files = {}
    for path in sorted(functions.keys() | lines.keys()):
        # Lines that follow one another and have one set, together.
        together: list[tuple[int, int, int]] = []
        for line, bits in sorted(lines.get(path, {}).items()):
            if together and together[-1][1:] == (line - 1, places[bits]):
                together[-1] = (together[-1][0], line, places[bits])
            else:
                together.append((line, line, places[bits]))
        entered = {name: places[bits] for name, bits in sorted(functions.get(path, {}).items())}
        files[path] = FileCells(blob=blobs[path], functions=entered, lines=tuple(together))
    return CellMap(commit=commit, cells=cells, sets=tuple(f"{bits:x}" for bits in sorted(numbers)), files=files)


def pack_cells(cells: CellMap) -> str:
    """A map as a line of text that a ledger keeps; empty where it is too long for that."""
    text = pack_text(cells.model_dump_json(exclude_defaults=True))
    return text if len(text) <= _MOST_PACKED else ""


def unpack_cells(text: str) -> CellMap | None:
    """The map of a packed text; None where it has none."""
    try:
        return CellMap.model_validate_json(unpack_text(text, _MOST_UNPACKED)) if text else None
    except (UnpackError, ValidationError):
        return None
