"""Which planned job is known to enter a changed function: every combination of map, plan and source."""

from typing import Any

import pytest

from tests.core.model.test_execution_maps import LORA, map_of
from verl_e2e.core.model.changed_code import ChangedFunction, Excuse, ExcusedLines, Side
from verl_e2e.core.model.execution_maps import NO_MAPS, ExecutionMap, ExecutionMaps
from verl_e2e.core.plan.known_execution import Entry, KnownExecution, entered_by, known_executions

BRIDGE = "a" * 40
PLACE = (LORA, "LoRA.transform")
OTHER = (LORA, "LoRA.merge")
PLANNED = {"0-lora-ddp": frozenset({PLACE, OTHER}), "1-resume": frozenset({OTHER})}
SMOKE = map_of()
MAPS = ExecutionMaps(maps=(SMOKE, map_of("3-fsdp")))


def function(symbol: str = "LoRA.transform", **given: object) -> ChangedFunction:
    fields = {"path": LORA, "symbol": symbol, "first_line": 1, "last_line": 9, "lines": (3,)}
    return ChangedFunction.model_validate(fields | given)


def there(_: ExecutionMap, __: ChangedFunction) -> bool:
    return True


def new(_: ExecutionMap, __: ChangedFunction) -> bool:
    return False


def unreadable(_: ExecutionMap, __: ChangedFunction) -> None:
    return None


def test_a_function_that_a_planned_job_entered_is_known() -> None:
    (found,) = known_executions([function()], PLANNED, MAPS, there)
    assert found == KnownExecution(*PLACE, Entry.KNOWN, known=(("0-lora-ddp", BRIDGE),), elsewhere=("3-fsdp",))


def test_a_job_without_a_map_is_believed_where_it_is_planned_for_the_function() -> None:
    (found,) = known_executions([function("LoRA.merge")], PLANNED, MAPS, there)
    assert (found.entry, found.believed, found.not_entered) == (
        Entry.BELIEVED,
        ("1-resume",),
        (("0-lora-ddp", BRIDGE),),
    )


@pytest.mark.parametrize(
    ("existed", "entry"), [(there, Entry.NOT_ENTERED), (new, Entry.BELIEVED), (unreadable, Entry.BELIEVED)]
)
def test_a_map_says_nothing_about_a_function_that_came_later(existed: object, entry: Entry) -> None:
    planned = {"0-lora-ddp": PLANNED["0-lora-ddp"]}
    (found,) = known_executions([function("LoRA.merge")], planned, MAPS, existed)  # type: ignore[arg-type]
    assert found.entry is entry
    assert bool(found.believed) != bool(found.not_entered)


def test_a_function_that_no_job_is_planned_for_is_not_entered() -> None:
    (found,) = known_executions([function("LoRA.other")], PLANNED, NO_MAPS, there)
    assert (found.entry, found.known, found.believed, found.not_entered) == (Entry.NOT_ENTERED, (), (), ())


def test_what_reach_does_not_have_is_unreached_unless_a_run_entered_it() -> None:
    rows = [function(reached=False), function("LoRA.merge", reached=False)]
    first, second = known_executions(rows, PLANNED, MAPS, there)
    assert (first.entry, second.entry) == (Entry.KNOWN, Entry.UNREACHED)


@pytest.mark.parametrize(
    "given",
    [
        {"symbol": ""},
        {"side": Side.MERGE_BASE},
        {"lines": (), "excused": (ExcusedLines(excuse=Excuse.LOGGING, lines=(3,)),)},
    ],
)
def test_what_no_run_at_the_head_must_enter_is_left_out(given: dict[str, Any]) -> None:
    assert known_executions([function(**given)], PLANNED, MAPS, there) == ()


def test_who_entered_a_function_is_named_with_its_processes() -> None:
    assert entered_by(MAPS, *PLACE) == ("0-lora-ddp (trainer)", "3-fsdp (trainer)")
    assert entered_by(MAPS, *OTHER) == ()


def test_a_derived_job_has_what_the_job_entered_whose_place_it_takes() -> None:
    planned = {"0-b-xavier": frozenset({PLACE}), "2-pp4": frozenset({PLACE})}
    (found,) = known_executions([function()], planned, MAPS, there, {"0-b-xavier": "0-lora-ddp"})
    assert found.known == (("0-b-xavier", BRIDGE),)
    assert found.believed == ("2-pp4",)
