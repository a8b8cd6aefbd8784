"""What cells entered, by function and line, as a small document."""

import hashlib

from verl_e2e.core.compare.cell_map import (
    CellMap,
    CellRow,
    FileCells,
    cell_map,
    pack_cells,
    unpack_cells,
    with_outcomes,
)
from verl_e2e.core.compare.rehearsal import CellOutcome, CellRecord, CellVerdict, EnteredCode, Rehearsal
from verl_e2e.core.text.packed import pack_text

A, MEGATRON = "src/a.py", "3rdparty/Megatron-LM/megatron/core/b.py"


def record(cell: str, lines: dict[str, tuple[tuple[int, int], ...]], *functions: str) -> CellRecord:
    return CellRecord(cell=cell, error=None, entered=EnteredCode(lines=lines, functions=functions))


RECORDS = {
    "one": record("one", {A: ((3, 5), (9, 9)), MEGATRON: ((1, 1),)}, f"{A}:f", f"{MEGATRON}:g"),
    "two": record("two", {A: ((3, 4),)}, f"{A}:f", f"{A}:C.<locals>.h"),
    "import": record("import", {A: ((1, 2),)}, f"{A}:f"),
}
ROWS = tuple(CellRow(name=name, family="qwen2") for name in ("one", "two", "none"))


def mapped() -> CellMap:
    return cell_map("a" * 40, {A: "b" * 40}, RECORDS, ROWS)


def test_each_line_and_function_has_the_cells_that_entered_it() -> None:
    found = mapped()
    assert [row.name for row in found.cells] == ["one", "two"]
    assert [sorted(found.of_line(A, line)) for line in (2, 3, 4, 5, 6, 9)] == [[], [0, 1], [0, 1], [0], [], [0]]
    assert sorted(found.of_function(A, "f")) == [0, 1]
    assert sorted(found.of_function(A, "C.<locals>.h")) == [1]
    assert found.of_function(A, "g") == found.of_function("b.py", "f") == found.of_line("b.py", 1) == frozenset()
    assert found.files.keys() == {A}
    assert found.files[A].blob == "b" * 40


def test_lines_of_one_set_lie_together_and_the_document_is_read_back() -> None:
    found = mapped()
    assert [(first, last) for first, last, _ in found.files[A].lines] == [(3, 4), (5, 5), (9, 9)]
    assert CellMap.model_validate_json(found.model_dump_json()) == found


def test_cells_have_what_a_rehearsal_says_of_them() -> None:
    verdicts = (CellVerdict("two", CellOutcome.FAIL), CellVerdict("import", CellOutcome.EQUAL))
    rows = with_outcomes(ROWS[:2], Rehearsal(CellOutcome.FAIL, verdicts, (), 1))
    found = mapped().model_copy(update={"cells": rows})
    assert [row.outcome for row in found.cells] == [None, CellOutcome.FAIL]
    assert found.judged(CellOutcome.FAIL, CellOutcome.CHANGED) == {1}
    assert found.judged(CellOutcome.EQUAL) == frozenset()


def test_a_map_that_a_ledger_keeps_is_read_again() -> None:
    text = pack_cells(mapped())
    assert unpack_cells(text) == mapped()
    assert unpack_cells("") is None
    assert unpack_cells(text[:-8]) is None
    assert unpack_cells(pack_text('{"cells": 1}')) is None


def test_a_map_that_is_too_long_is_not_kept() -> None:
    noise = {hashlib.sha256(str(at).encode()).hexdigest(): 0 for at in range(1_000)}
    long = FileCells(blob="b" * 40, functions=noise, lines=())
    assert pack_cells(mapped().model_copy(update={"files": {"src/a.py": long}})) == ""
