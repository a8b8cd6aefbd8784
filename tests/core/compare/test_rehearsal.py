"""What a change does in the cells of a rehearsal, and the verdict on it."""

import math

import pytest
from pydantic import ValidationError

from verl_e2e.core.compare.rehearsal import (
    IMPORTS,
    MOST_DIFFERENCES,
    CellError,
    CellOutcome,
    CellRecord,
    EnteredCode,
    OracleFinding,
    Rehearsal,
    TensorSummary,
    Unentered,
    judge_rehearsal,
)
from verl_e2e.core.model.execution import ChangedFunction, Excuse, ExcusedLines, Side

PATH = "src/megatron/bridge/peft/lora.py"
ERROR = CellError(type="KeyError", text="'weight'", at="megatron/bridge/peft/lora.py:3")
HANG = CellError(type="Hang", text="no end within 120 s", at="")
EXHAUSTED = CellError(type="Exhausted", text="the host had nothing left for it (BlockingIOError: ...)", at="")
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
        (GOOD, GOOD, CellOutcome.EQUAL),
        (GOOD, BAD, CellOutcome.FAIL),
        (BAD, BAD, CellOutcome.EQUAL),
        (BAD, GOOD, CellOutcome.EQUAL),
        (GOOD, RAISED, CellOutcome.FAIL),
        (GOOD, record("a", error=HANG), CellOutcome.FAIL),
        (GOOD, None, CellOutcome.FAIL),
        (RAISED, GOOD, CellOutcome.CHANGED),
        # Two errors are never called equal, and what the base has no record of was not compared.
        (RAISED, RAISED, CellOutcome.BLOCKED),
        (RAISED, record("a", error=HANG), CellOutcome.BLOCKED),
        (None, GOOD, CellOutcome.BLOCKED),
        (None, RAISED, CellOutcome.BLOCKED),
        # What a host had no process for says nothing of the change.
        (GOOD, record("a", error=EXHAUSTED), CellOutcome.BLOCKED),
        (record("a", error=EXHAUSTED), GOOD, CellOutcome.BLOCKED),
    ],
)
def test_a_cell_is_judged_by_what_is_newly_wrong(
    base: CellRecord | None, head: CellRecord | None, expected: CellOutcome
) -> None:
    found = judged(base, head)
    assert [cell.outcome for cell in found.cells if cell.cell == "a"] == [expected]
    assert found.outcome is expected


@pytest.mark.parametrize("head", [EXHAUSTED, ERROR, None])
def test_a_cell_that_the_host_blocks_on_both_sides_was_not_compared(head: CellError | None) -> None:
    same = {IMPORTS: record(IMPORTS), "a": GOOD}
    base = {**same, "b": record("b", error=EXHAUSTED)} if head else same
    after = {**same, "b": record("b", error=head)} if head else same
    assert judge_rehearsal(base, after, (), asked=("a", "b")).outcome is CellOutcome.BLOCKED
    # The base was cut off before the cell that raises at the head.
    cut = judge_rehearsal(same, {**same, "b": record("b", error=ERROR)}, (), asked=("a", "b"))
    assert cut.outcome is CellOutcome.BLOCKED
    # What raises on both sides by itself hides nothing that a run could show.
    raising = {**same, "b": record("b", error=ERROR)}
    assert judge_rehearsal(raising, raising, ()).outcome is CellOutcome.EQUAL


@pytest.mark.parametrize(("other", "expected"), [(GOOD, CellOutcome.BLOCKED), (BAD, CellOutcome.FAIL)])
def test_a_cell_that_the_host_blocks_may_hide_a_fault(other: CellRecord, expected: CellOutcome) -> None:
    same, full = record(IMPORTS), record("b", error=EXHAUSTED)
    base = {IMPORTS: same, "a": GOOD, "b": record("b")}
    assert judge_rehearsal(base, {IMPORTS: same, "a": other, "b": full}, ()).outcome is expected


def test_a_head_is_not_blamed_before_its_code_ran() -> None:
    base = {IMPORTS: record(IMPORTS), "a": GOOD}
    found = judge_rehearsal(base, {}, ())
    assert [cell.outcome for cell in found.cells] == [CellOutcome.BLOCKED, CellOutcome.BLOCKED]
    died = record(IMPORTS, error=CellError(type="Died", text="the process ended while it imported", at=""))
    assert judge_rehearsal(base, {IMPORTS: died}, ()).outcome is CellOutcome.FAIL


def test_what_fails_on_both_sides_and_what_is_fixed_is_said() -> None:
    assert [f.oracle for f in judged(BAD, BAD).cells[1].before_too] == ["logits"]
    assert [f.oracle for f in judged(BAD, GOOD).cells[1].fixed] == ["logits"]


def changed_to(**quantities: object) -> list[tuple[str, str, float | None]]:
    head = record("a", quantities={**GOOD.quantities, **quantities})
    found = judged(GOOD, head)
    assert found.outcome is CellOutcome.CHANGED
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
    assert judge_rehearsal(base, head, ()).outcome is CellOutcome.EQUAL
    assert judge_rehearsal(base, {**head, "a": BAD}, ()).outcome is CellOutcome.FAIL


def test_imports_that_fail_at_the_head_alone_are_a_failure_and_at_the_base_block() -> None:
    broken = record(IMPORTS, error=ERROR)
    assert judge_rehearsal({IMPORTS: record(IMPORTS), "a": GOOD}, {IMPORTS: broken}, ()).outcome is CellOutcome.FAIL
    assert judge_rehearsal({IMPORTS: broken}, {IMPORTS: broken}, ()).outcome is CellOutcome.BLOCKED
    assert judge_rehearsal({}, {}, ()).outcome is CellOutcome.BLOCKED
    repaired = judge_rehearsal({IMPORTS: broken}, {IMPORTS: record(IMPORTS), "a": GOOD}, ())
    assert repaired.outcome is CellOutcome.BLOCKED


def test_a_name_that_the_consumer_imports_and_that_is_gone_is_a_failure() -> None:
    name = "import megatron.bridge.peft.utils:create_peft"
    there = record(IMPORTS, oracles=(OracleFinding(oracle=name, passed=True, off=0.0, where=""),))
    gone = record(IMPORTS, oracles=(OracleFinding(oracle=name, passed=False, off="inf", where="ImportError: no"),))
    found = judge_rehearsal({IMPORTS: there, "a": GOOD}, {IMPORTS: gone, "a": GOOD}, ())
    assert found.outcome is CellOutcome.FAIL
    assert [finding.oracle for finding in found.cells[0].newly] == [name]
    # One that the base does not have either says nothing about the change.
    assert judge_rehearsal({IMPORTS: gone, "a": GOOD}, {IMPORTS: gone, "a": GOOD}, ()).outcome is CellOutcome.EQUAL


def test_what_an_import_leaves_in_the_process_is_compared() -> None:
    head = record(IMPORTS, quantities={"environment/NCCL_DEBUG": "INFO"})
    found = judge_rehearsal({IMPORTS: record(IMPORTS), "a": GOOD}, {IMPORTS: head, "a": GOOD}, ())
    assert [item.quantity for item in found.cells[0].differences] == ["environment/NCCL_DEBUG"]


def test_a_cell_that_was_asked_for_and_has_no_record_is_judged_too() -> None:
    base = {IMPORTS: record(IMPORTS), "a": GOOD}
    found = judge_rehearsal(base, base, (), asked=("a", "b"))
    assert [(cell.cell, cell.outcome) for cell in found.cells[1:]] == [
        ("a", CellOutcome.EQUAL),
        ("b", CellOutcome.BLOCKED),
    ]


HUNG, NO_MODEL = record("a", error=HANG), record("a", error=ERROR, no_model=True)
SAME = {IMPORTS: record(IMPORTS), "a": GOOD}
AT_IMPORT = ChangedFunction(path=PATH, symbol="", first_line=1, last_line=1, lines=(3,))


@pytest.mark.parametrize(
    ("base", "head", "changed", "whole", "expected"),
    [
        (SAME, SAME, (), True, True),
        # Some cells of the table alone were run.
        (SAME, SAME, (), False, False),
        (SAME, {**SAME, "a": BAD}, (), True, False),
        (SAME, {**SAME, "b": GOOD}, (), True, False),
        # Where both sides raise, a run would have raised before the change, too.
        ({**SAME, "a": RAISED, "b": GOOD}, {**SAME, "a": RAISED, "b": GOOD}, (), True, True),
        ({**SAME, "a": RAISED}, {**SAME, "a": RAISED}, (), True, False),
        # A host without time, memory or the model is not an exception of the code.
        ({**SAME, "a": HUNG, "b": GOOD}, {**SAME, "a": HUNG, "b": GOOD}, (), True, False),
        ({**SAME, "a": NO_MODEL, "b": GOOD}, {**SAME, "a": NO_MODEL, "b": GOOD}, (), True, False),
        ({**SAME, "a": RAISED, "b": GOOD}, {IMPORTS: record(IMPORTS), "b": GOOD}, (), True, False),
        # What has no record was not compared.
        ({IMPORTS: record(IMPORTS), "b": GOOD}, {**SAME, "b": GOOD}, (), True, False),
        # What differs at import and was never imported was not tried.
        (SAME, SAME, (AT_IMPORT,), True, False),
        (SAME, {**SAME, IMPORTS: record(IMPORTS, entered={"lines": {PATH: [[1, 4]]}})}, (AT_IMPORT,), True, True),
        ({}, {}, (), True, False),
    ],
)
def test_everywhere_equal_is_the_whole_table_with_equal_imports_that_executed_what_changed(
    base: dict[str, CellRecord],
    head: dict[str, CellRecord],
    changed: tuple[ChangedFunction, ...],
    whole: bool,
    expected: bool,
) -> None:
    assert judge_rehearsal(base, head, changed, asked=("a",), whole=whole).equal_everywhere is expected


@pytest.mark.parametrize(
    "fields",
    [
        {"entered": {"lines": {PATH: [[1, 10**12]]}}},
        {"entered": {"lines": {PATH: [[9, 3]]}}},
        {"entered": {"lines": {PATH: [[1, 5], [2, 9]]}}},
        {"entered": {"lines": {PATH: [[-1, 1]]}}},
        {"entered": {"lines": {"x" * 2000: []}}},
        {"quantities": {"x" * 2000: 1}},
        {"oracles": [{"oracle": "logits", "passed": True, "off": "nan", "where": ""}]},
        {"error": {"type": "E", "text": "x" * 10_000, "at": ""}},
        {"surprise": 1},
    ],
)
def test_a_record_that_is_out_of_bounds_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        record("a", **fields)


def test_numbers_that_are_out_of_range_are_compared_all_the_same() -> None:
    base = record("a", quantities={"nan@0": math.nan, "huge@0": 10**400, "one@0": 1.0})
    assert judged(base, base).outcome is CellOutcome.EQUAL
    head = record("a", quantities={"nan@0": math.nan, "huge@0": 3 * 10**400, "one@0": math.nan})
    found = {item.quantity: item.size for item in judged(base, head).cells[1].differences}
    assert found == {"huge@0": 2.0, "one@0": math.inf}
    small = record("a", quantities={"nan@0": math.nan, "huge@0": 1, "one@0": 1.0})
    assert judged(small, base).cells[1].differences[0].size == math.inf


@pytest.mark.parametrize("sketch", [(), (1.0,), (1e200, -1e200), (None, 1.0)])
def test_products_of_any_number_and_size_are_compared(sketch: tuple[float | None, ...]) -> None:
    other = TENSOR.model_copy(update={"digest": "b" * 16, "sketch": sketch})
    (found,) = judged(GOOD, record("a", quantities={"step1/loss@0": 2.0, "step1/x@0": other})).of(CellOutcome.CHANGED)
    assert found.differences[0].size is not None
    assert found.differences[0].size > 1


def test_a_cell_lists_no_more_differences_than_fit_and_cuts_their_names() -> None:
    head = record("a", quantities={"x@0": {f"{'y' * 900}{number}": 1 for number in range(MOST_DIFFERENCES + 5)}})
    found = judged(record("a", quantities={"x@0": {}}), head).cells[1].differences
    assert len(found) == MOST_DIFFERENCES
    assert max(len(item.quantity) for item in found) == 500


def function(symbol: str, lines: tuple[int, ...], first: int = 10, **fields: object) -> ChangedFunction:
    given = {"path": PATH, "symbol": symbol, "first_line": first, "last_line": first + 9, "lines": lines, **fields}
    return ChangedFunction.model_validate(given)


def entering(*lines: int, functions: tuple[str, ...] = ()) -> CellRecord:
    entered = EnteredCode(lines={PATH: tuple((line, line) for line in lines)}, functions=functions)
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


def test_of_one_cell_the_cause_is_the_first_changed_function_that_it_entered() -> None:
    order = (f"{PATH}:other", f"{PATH}:second", f"{PATH}:first")
    head = entering(12, functions=order).model_copy(update={"quantities": {}})
    found = judged(
        GOOD, head, function("first", (12,)), function("second", (32,), first=30), function("", (1,), first=1)
    )
    assert found.cells[1].cause == f"{PATH}:second"
    assert judged(GOOD, head, function("never", (12,))).cells[1].cause == ""


def test_the_cause_is_the_changed_function_that_is_entered_where_something_differs() -> None:
    always, special, other = (f"{PATH}:{name}" for name in ("in_every_cell", "special", "other"))
    entered = {"a": [always, special], "b": [always, special], "c": [always], "d": [always, other], "e": [always]}
    base = {IMPORTS: record(IMPORTS), **{name: GOOD.model_copy(update={"cell": name}) for name in entered}}
    head = {
        name: entering(12, functions=tuple(functions)).model_copy(update={"cell": name})
        for name, functions in entered.items()
    }
    for name in ("a", "b", "e"):
        head[name] = head[name].model_copy(update={"quantities": {}})
    changed = [function(name, (12,)) for name in ("in_every_cell", "special", "other")]
    found = judge_rehearsal(base, {IMPORTS: record(IMPORTS), **head}, changed)
    assert {cell.cell: cell.cause for cell in found.cells} == {
        IMPORTS: "",
        "a": special,
        "b": special,
        "c": always,
        "d": always,
        "e": always,
    }
