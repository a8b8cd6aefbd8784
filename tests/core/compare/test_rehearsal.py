"""What a change does in the cells of a rehearsal, and the verdict on it."""

from collections.abc import Mapping

import pytest

from verl_e2e.core.compare.rehearsal import (
    IMPORTS,
    CellError,
    CellRecord,
    Entered,
    OracleFinding,
    Outcome,
    Rehearsal,
    TensorSummary,
    Unentered,
    judge_rehearsal,
)
from verl_e2e.core.model.changed_code import ChangedFunction, Excuse, ExcusedLines, Side

PATH = "src/megatron/bridge/peft/lora.py"
ERROR = CellError(type="KeyError", text="'weight'", at="megatron/bridge/peft/lora.py:3")
HANG = CellError(type="Hang", text="no end within 120 s", at="")
TENSOR = TensorSummary(shape=(2, 3), dtype="float32", digest="a" * 16, norm=2.0, sketch=(1.0, -1.0))


def oracle(name: str, *, passed: bool) -> OracleFinding:
    return OracleFinding(oracle=name, passed=passed, off=0.0 if passed else "inf", where="")


def record(cell: str, **fields: object) -> CellRecord:
    return CellRecord.model_validate({"cell": cell, "error": None, **fields})


def judged(
    base: CellRecord | None, head: CellRecord | None, *functions: ChangedFunction, imports: CellRecord | None = None
) -> Rehearsal:
    """The verdict on one cell, with imports that are equal unless others are given."""
    same = record(IMPORTS)
    before = {IMPORTS: same} | ({base.cell: base} if base else {})
    after = {IMPORTS: imports or same} | ({head.cell: head} if head else {})
    return judge_rehearsal(before, after, functions)


GOOD = record("a", oracles=(oracle("logits", passed=True),), quantities={"step1/loss@0": 2.0, "step1/x@0": TENSOR})
BAD = record("a", oracles=(oracle("logits", passed=False),), quantities=GOOD.quantities)
RAISED = record("a", error=ERROR)


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (GOOD, GOOD, Outcome.EQUAL),
        (GOOD, BAD, Outcome.FAIL),
        (BAD, BAD, Outcome.EQUAL),
        (BAD, GOOD, Outcome.EQUAL),
        (GOOD, RAISED, Outcome.FAIL),
        (GOOD, record("a", error=HANG), Outcome.FAIL),
        (GOOD, None, Outcome.FAIL),
        (RAISED, GOOD, Outcome.CHANGED),
        # Two errors are never called equal, and what the base has no record of was not compared.
        (RAISED, RAISED, Outcome.BLOCKED),
        (RAISED, record("a", error=HANG), Outcome.BLOCKED),
        (None, GOOD, Outcome.BLOCKED),
        (None, RAISED, Outcome.BLOCKED),
    ],
)
def test_a_cell_is_judged_by_what_is_newly_wrong(
    base: CellRecord | None, head: CellRecord | None, expected: Outcome
) -> None:
    found = judged(base, head)
    assert [cell.outcome for cell in found.cells if cell.cell == "a"] == [expected]
    assert found.outcome is expected


def test_what_fails_on_both_sides_and_what_is_fixed_is_said() -> None:
    assert [f.oracle for f in judged(BAD, BAD).cells[1].before_too] == ["logits"]
    assert [f.oracle for f in judged(BAD, GOOD).cells[1].fixed] == ["logits"]


def changed_to(**quantities: object) -> list[tuple[str, str, float | None]]:
    head = record("a", quantities={**GOOD.quantities, **quantities})
    found = judged(GOOD, head)
    assert found.outcome is Outcome.CHANGED
    return [(item.quantity, item.what, item.size) for item in found.cells[1].differences]


def test_tensors_are_read_from_a_record_as_tensors() -> None:
    kept = CellRecord.model_validate_json(GOOD.model_dump_json())
    assert kept == GOOD
    assert kept.quantities["step1/x@0"] == TENSOR


def test_every_kind_of_difference_is_named() -> None:
    assert changed_to(**{"step1/loss@0": 3.0}) == [("step1/loss@0", "is 3.0, was 2.0", 0.5)]
    other = TENSOR.model_copy(update={"digest": "b" * 16, "sketch": (1.0, 1.0)})
    ((name, what, size),) = changed_to(**{"step1/x@0": other})
    assert (name, what) == ("step1/x@0", "differs")
    assert size == pytest.approx(2 / 2**0.5 / 2.0)
    infinite = other.model_copy(update={"sketch": (None, None), "norm": None})
    assert changed_to(**{"step1/x@0": infinite}) == [("step1/x@0", "differs", float("inf"))]
    wider = TENSOR.model_copy(update={"shape": (2, 4)})
    assert changed_to(**{"step1/x@0": wider}) == [("step1/x@0", "is [2, 4] float32, was [2, 3] float32", None)]
    assert changed_to(new=1) == [("new", "is new", None)]
    assert changed_to(long="x" * 200)[0][0] == "long"


def test_a_quantity_that_is_gone_and_a_field_of_a_configuration_are_named() -> None:
    base = record("a", quantities={"gone@0": 1, "provider@0": {"rope": 1e4, "old": True, "kept": 0}})
    head = record("a", quantities={"provider@0": {"rope": 5e5, "kept": 0, "text": "y" * 100}})
    found = {item.quantity: item.what for item in judged(base, head).cells[1].differences}
    assert found["provider@0.rope"] == "is 500000.0, was 10000.0"
    assert found["provider@0.old"] == "is missing, was True"
    assert found["provider@0.text"].startswith("is 'yyy")
    assert found["provider@0.text"].endswith("..., was missing")
    assert found["gone@0"] == "is gone"
    assert list(found)[-1] == "gone@0"


def test_what_is_blocked_in_some_cells_does_not_hide_what_others_show() -> None:
    base = {IMPORTS: record(IMPORTS), "a": GOOD, "b": record("b", error=ERROR)}
    head = {IMPORTS: record(IMPORTS), "a": GOOD, "b": record("b", error=ERROR)}
    assert judge_rehearsal(base, head, ()).outcome is Outcome.EQUAL
    assert judge_rehearsal(base, {**head, "a": BAD}, ()).outcome is Outcome.FAIL


def test_imports_that_fail_at_the_head_alone_are_a_failure_and_at_the_base_block() -> None:
    broken = record(IMPORTS, error=ERROR)
    assert judge_rehearsal({IMPORTS: record(IMPORTS), "a": GOOD}, {IMPORTS: broken}, ()).outcome is Outcome.FAIL
    assert judge_rehearsal({IMPORTS: broken}, {IMPORTS: broken}, ()).outcome is Outcome.BLOCKED
    assert judge_rehearsal({}, {}, ()).outcome is Outcome.BLOCKED
    repaired = judge_rehearsal({IMPORTS: broken}, {IMPORTS: record(IMPORTS), "a": GOOD}, ())
    assert repaired.outcome is Outcome.BLOCKED


def test_a_name_that_the_consumer_imports_and_that_is_gone_is_a_difference() -> None:
    names: Mapping[str, object] = {"megatron.bridge.peft.utils:create_peft": True}
    base, head = record(IMPORTS, values=names), record(IMPORTS, values={**names, **dict.fromkeys(names, "ImportError")})
    found = judge_rehearsal({IMPORTS: base, "a": GOOD}, {IMPORTS: head, "a": GOOD}, ())
    assert found.outcome is Outcome.CHANGED
    assert found.cells[0].differences[0].quantity == "megatron.bridge.peft.utils:create_peft"


def function(symbol: str, lines: tuple[int, ...], first: int = 10, **fields: object) -> ChangedFunction:
    given = {"path": PATH, "symbol": symbol, "first_line": first, "last_line": first + 9, "lines": lines, **fields}
    return ChangedFunction.model_validate(given)


def entering(*lines: int, functions: tuple[str, ...] = ()) -> CellRecord:
    entered = Entered(lines={PATH: tuple((line, line) for line in lines)}, functions=functions)
    return GOOD.model_copy(update={"entered": entered})


@pytest.mark.parametrize(
    ("changed", "lines", "expected"),
    [
        (function("f", (12, 13)), (12, 13), ()),
        (function("f", (12, 13)), (12,), (13,)),
        (function("f", (12, 13)), (), (12, 13)),
        # Only its signature differs: that it is called is enough.
        (function("f", ()), (10,), ()),
        (function("f", ()), (), ()),
        # An error path need not be entered.
        (function("f", (), excused=(ExcusedLines(excuse=Excuse.ERROR_PATH, lines=(12,)),)), (), None),
        # What is gone can be entered at no head.
        (function("f", (12,), side=Side.MERGE_BASE), (), None),
    ],
)
def test_changed_lines_that_no_cell_entered_are_listed(
    changed: ChangedFunction, lines: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    found = judged(GOOD, entering(*lines), changed)
    entered = expected is None or (expected == () and lines)
    assert found.unentered == (() if entered else (Unentered(PATH, "f", expected or ()),))


def test_the_cause_is_the_first_changed_function_that_the_cell_entered() -> None:
    order = (f"{PATH}:other", f"{PATH}:second", f"{PATH}:first")
    head = entering(12, functions=order).model_copy(update={"quantities": {}})
    found = judged(
        GOOD, head, function("first", (12,)), function("second", (32,), first=30), function("", (1,), first=1)
    )
    assert found.cells[1].cause == f"{PATH}:second"
    assert judged(GOOD, head, function("never", (12,))).cells[1].cause == ""
