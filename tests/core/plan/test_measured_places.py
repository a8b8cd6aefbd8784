"""Which cells and jobs enter the places of a change."""

from collections.abc import Iterable

from tests.core.plan.cells import COMMIT, entered, places
from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.model.execution import ChangedFunction, ExecutionMap, ExecutionMaps, ProcessRole, Side
from verl_e2e.core.plan.measured_jobs import NEW, NOT_ENTERED, Measured, Place, measured_places
from verl_e2e.core.reach.carried import CarriedLines
from verl_e2e.core.reach.changed_functions import TouchedFunction

A = "src/a.py"
ALL = ("qwen2-plain", "qwen2-lora", "moe-lora")


def touched(symbol: str = "f", lines: Iterable[int] = (), *, earlier: bool = False, **given: object) -> TouchedFunction:
    values = {"path": A, "symbol": symbol, "first_line": 1, "last_line": 9, "lines": tuple(lines), **given}
    return TouchedFunction(ChangedFunction.model_validate(values), A, symbol, earlier=earlier)


def found(
    cells: CellMap,
    *functions: TouchedFunction,
    head: dict[int, int] | None = None,
    base: dict[int, int] | None = None,
    jobs: ExecutionMaps | None = None,
    of_head: bool = False,
) -> list[tuple[tuple[int, ...], frozenset[int], str]]:
    measured = Measured(cells, jobs or ExecutionMaps(), of_head)
    made = measured_places(functions, measured, {A: CarriedLines(head or {}, base or {})})
    return [(place.lines, place.cells, place.problem) for place in made]


def test_a_function_of_which_no_line_is_known_is_entered_as_a_whole() -> None:
    cells = entered({"f": ALL})
    assert found(cells, touched(), touched(lines=(3,))) == [((), places(*ALL), "")] * 2


def test_lines_that_other_cells_enter_are_places_of_their_own() -> None:
    cells = entered({"f": ALL}, {11: ALL, 12: ("moe-lora",), 13: ("qwen2-plain",)})
    # Who enters line 2 enters line 1 as well.
    assert found(cells, touched(lines=(1, 2)), head={1: 11, 2: 12}) == [((2,), places("moe-lora"), "")]
    assert found(cells, touched(lines=(2, 3)), head={2: 12, 3: 13}) == [
        ((2,), places("moe-lora"), ""),
        ((3,), places("qwen2-plain"), ""),
    ]


def test_a_line_that_no_cell_enters_is_named_beside_the_others() -> None:
    cells = entered({"f": ALL}, {11: ALL})
    assert found(cells, touched(lines=(1, 2)), head={1: 11, 2: 12}) == [
        ((1,), places(*ALL), ""),
        ((2,), frozenset(), NOT_ENTERED),
    ]


def test_what_the_change_takes_away_is_entered_where_it_was() -> None:
    cells = entered({"f": ALL}, {11: ALL, 12: ("moe-lora",)})
    before = touched(lines=(7,), earlier=True, side="merge_base")
    assert found(cells, touched(lines=(1,)), before, head={1: 11}, base={7: 12}) == [((), places("moe-lora"), "")]
    # A function that is gone has lines of the base alone.
    gone = touched(lines=(7,), side=Side.MERGE_BASE)
    assert found(cells, gone, base={7: 12}) == [((7,), places("moe-lora"), "")]


def test_what_no_cell_enters_may_be_entered_by_a_measured_job() -> None:
    measured = ExecutionMap(
        job="3-fsdp", variant="3-fsdp", model="m", bridge=COMMIT, verl=COMMIT, measured="2026-08-01",
        files={A: {"f": (ProcessRole.TRAINER,)}},
    )  # fmt: skip
    jobs = ExecutionMaps(maps=(measured,))
    (place,) = measured_places([touched()], Measured(entered({}), jobs), {})
    assert (sorted(place.variants), sorted(place.cells), place.problem) == (["3-fsdp"], [], "")
    assert [item[2] for item in found(entered({}), touched("g"), jobs=jobs)] == [NEW]
    assert [item[2] for item in found(entered({}), touched("g"), touched("g", earlier=True))] == [NOT_ENTERED]
    assert [item[2] for item in found(entered({}), touched("g"), of_head=True)] == [NOT_ENTERED]


def test_where_the_cells_ran_the_change_those_count_that_failed_or_else_moved() -> None:
    outcomes = {"qwen2-lora": CellOutcome.CHANGED, "moe-lora": CellOutcome.FAIL, "qwen2-plain": CellOutcome.EQUAL}
    cells = entered({"f": ALL, "g": ALL[:2], "h": ALL[:1]}, outcomes=outcomes)
    every = [touched(name) for name in "fgh"]
    assert [item[1] for item in found(cells, *every, of_head=True)] == [places("moe-lora"), places("qwen2-lora")]
    # Where nothing was compared, nothing is known of what moves.
    blocked = entered({"f": ALL, "g": ALL[:1]}, outcomes={"moe-lora": CellOutcome.EQUAL, ALL[0]: CellOutcome.BLOCKED})
    assert [item[1] for item in found(blocked, *every[:2], of_head=True)] == [places(ALL[0])]
    # Of another commit it says nothing.
    assert [item[1] for item in found(cells, *every)] == [places(*ALL), places(*ALL[:2]), places(*ALL[:1])]


def test_what_no_run_must_enter_is_no_place() -> None:
    excused = ({"excuse": "logging", "lines": (2,)},)
    cells = entered({"f": ALL})
    assert found(cells, touched(reached=False), touched(excused=excused), touched("")) == []


def test_a_place_is_named_with_its_first_lines() -> None:
    assert str(Place(touched(lines=()).function, (), frozenset())) == f"{A}:f"
    assert str(Place(touched().function, tuple(range(1, 12)), frozenset())) == (
        f"{A}:f, lines 1, 2, 3, 4, 5, 6, 7, 8 and 3 more"
    )
