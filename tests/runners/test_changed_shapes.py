"""What must run of a change, held against what real interpreters report: too little and too much.

For each small change one program goes around what differs, and the judgement must say that the change did not run;
another one goes through it, and nothing may be missing.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.runners.changed_shapes import SHAPES, Shape
from tests.runners.recorded import Place
from verl_e2e.core.judge.execution import Recorded, match_execution
from verl_e2e.core.model.execution import (
    ChangedCode,
    ChangedFunction,
    Entered,
    Executed,
    FunctionRun,
    ProcessRole,
    Side,
)
from verl_e2e.core.reach.diff import compare

pytestmark = [pytest.mark.monitoring]

PATHS = {shape.name: f"src/megatron/bridge/shape{number}.py" for number, shape in enumerate(SHAPES)}
PROGRAM = """
import importlib, sys
sys.path.insert(0, sys.argv[0].replace("program.py", "programs"))
for number in range({count}):
    importlib.import_module(f"use{{number}}")
"""


@pytest.fixture
def make_place(tmp_path: Path) -> Iterator[Callable[[], Place]]:
    with ExitStack() as stack:

        def make() -> Place:
            place = Place(tmp_path, tuple(PATHS.values()))
            stack.enter_context(place.recorder)
            return place

        yield make


def recorded(place: Place, python: str, *, through: bool) -> Executed:
    """What one process ran of all the changed files, as a trainer."""
    programs = place.root / "programs"
    programs.mkdir()
    for number, shape in enumerate(SHAPES):
        (place.root / "bridge" / PATHS[shape.name]).write_text(shape.after)
        use = shape.through if through else shape.around
        (programs / f"use{number}.py").write_text(f"from megatron.bridge.shape{number} import *\n{use}\n")
    done = place.run(python, PROGRAM.format(count=len(SHAPES)))
    assert done.returncode == 0, done.stderr
    executed = place.executed()
    trainers = tuple(process.model_copy(update={"role": ProcessRole.TRAINER}) for process in executed.processes)
    return executed.model_copy(update={"processes": trainers})


def demanded(shape: Shape) -> ChangedCode:
    """What a job that is for the change must execute, with everything reached."""
    found = compare(shape.before.encode(), shape.after.encode()).functions

    def placed(function: ChangedFunction) -> ChangedFunction:
        read_by = found.readers.get(function.first_line) if function.at_import else None
        lines = tuple(line for reader in read_by.functions for line in reader.lines) if read_by is not None else ()
        return function.model_copy(update={"path": PATHS[shape.name], "readers": lines})

    return ChangedCode(functions=tuple(map(placed, found.changed)))


def judged(shape: Shape, executed: Executed) -> tuple[FunctionRun, ...]:
    return match_execution(demanded(shape), Recorded(executed), Recorded(None)).of_side(Side.HEAD)


def test_a_run_around_a_change_has_not_executed_it(monitoring_python: str, make_place: Callable[[], Place]) -> None:
    executed = recorded(make_place(), monitoring_python, through=False)
    found = {shape.name: [function.entered for function in judged(shape, executed)] for shape in SHAPES}
    passed = [name for name, entered in found.items() if all(item is Entered.IN_VERL for item in entered)]
    assert passed == [], "a Pass over a change that did not run"


def test_a_run_through_a_change_has_executed_it(monitoring_python: str, make_place: Callable[[], Place]) -> None:
    executed = recorded(make_place(), monitoring_python, through=True)
    found = {shape.name: judged(shape, executed) for shape in SHAPES}
    assert [name for name, functions in found.items() if not functions] == []
    missed = {
        name: [function for function in functions if function.entered is not Entered.IN_VERL]
        for name, functions in found.items()
    }
    assert {name: functions for name, functions in missed.items() if functions} == {}, "a block of a run that was good"
