"""What the run of a derived job says of the rules that gave its settings."""

from typing import Any

import pytest

from verl_e2e.core.model.changed_code import Side
from verl_e2e.core.model.executed import Executed, ExecutedFile, ExecutedFunction, ExecutedProcess, ProcessRole
from verl_e2e.core.model.purposes import Purpose
from verl_e2e.core.model.wants import Axis
from verl_e2e.core.plan.learning import Led, lesson_json, lesson_text, lessons

PATH = "src/p/a.py"
PROCESSES = tuple(
    ExecutedProcess(phase="train", role=role, title="x", pid=number, python="3.12", began_s=0.0)
    for number, role in enumerate((ProcessRole.TRAINER, ProcessRole.BRIDGE_TEST))
)
TRAINER, TEST = 0, 1


def executed(functions: dict[str, int], lines: dict[int, int] | None = None, path: str = PATH) -> Executed:
    """A record in which each function, and each line, ran in one process."""
    rows = tuple(ExecutedFunction(symbol=name, line=1, first_s={process: 1.0}) for name, process in functions.items())
    ran: dict[int, tuple[int, ...]] = {line: (process,) for line, process in (lines or {}).items()}
    return Executed(processes=PROCESSES, files=(ExecutedFile(path=path, functions=rows, lines=ran),))


def purpose(**given: Any) -> Purpose:
    fields: dict[str, Any] = {"path": PATH, "symbol": "A.f", "lines": (7, 8), "condition": "tp > 1"}
    return Purpose(**(fields | {"settings": {Axis.TENSOR: 2}, "rules": ("tensor size",)} | given))


@pytest.mark.parametrize(
    ("record", "wanted", "expected"),
    (
        (executed({"A.f": TRAINER}, {8: TRAINER}), purpose(), Led.THERE),
        (executed({"A.f": TRAINER}, {3: TRAINER}), purpose(), Led.PAST_THE_LINES),
        (executed({"A.f": TRAINER}, {3: TRAINER, 8: TEST}), purpose(), Led.PAST_THE_LINES),
        (executed({"A.f": TRAINER}), purpose(), Led.THERE),
        (executed({"A.f": TRAINER}, {3: TRAINER}), purpose(lines=()), Led.THERE),
        (executed({"A.f": TEST}, {8: TEST}), purpose(), Led.ELSEWHERE),
        (executed({"A.g": TRAINER}, {3: TRAINER}), purpose(), Led.ELSEWHERE),
        (executed({"A.f.<locals>.inner": TRAINER}, {8: TRAINER}), purpose(), Led.THERE),
        (executed({"A.f": TRAINER}, {8: TRAINER}, "src/p/b.py"), purpose(), Led.ELSEWHERE),
        (executed({}, {8: TRAINER}), purpose(symbol=""), Led.THERE),
        (executed({}, {3: TRAINER}), purpose(symbol=""), Led.ELSEWHERE),
        (Executed(files=executed({"A.f": TRAINER}).files), purpose(), Led.ELSEWHERE),
        # Lines of the merge base say nothing about those of the head.
        (executed({"A.f": TRAINER}, {8: TRAINER}), purpose(side=Side.MERGE_BASE), Led.REMOVED),
        (executed({}), purpose(side=Side.MERGE_BASE), Led.REMOVED),
    ),
)
def test_a_run_says_whether_the_settings_led_there(record: Executed, wanted: Purpose, expected: Led) -> None:
    (lesson,) = lessons("2-tp2", (wanted,), record)
    assert (lesson.job, lesson.purpose, lesson.led) == ("2-tp2", wanted, expected)


@pytest.mark.parametrize(
    ("record", "wanted", "expected", "blames"),
    (
        (executed({"A.f": TRAINER}), purpose(), "(tensor 2) led there: known entered", False),
        (executed({}), purpose(), "never entered, so a rule of the planner is wrong: tensor size", True),
        (executed({}), purpose(rules=(), settings={}), "(a model): never entered, so a rule of the planner is", True),
        (executed({"A.f": TRAINER}, {3: TRAINER}), purpose(), "the function was entered and none of the lines", True),
        (executed({}), purpose(side=Side.MERGE_BASE), "the change removes this code, so a run on the head", False),
        (executed({}), purpose(rules=("standing: untied",)), "never entered; these settings change what", False),
        (executed({}), purpose(open=("x is None",)), "never entered; no setting is known for x is None", False),
    ),
)  # fmt: skip
def test_a_lesson_names_the_rule_that_is_wrong(
    record: Executed, wanted: Purpose, expected: str, *, blames: bool
) -> None:
    (lesson,) = lessons("2-tp2", (wanted,), record)
    assert expected in lesson_text(lesson)
    assert lesson_text(lesson).startswith("2-tp2: src/p/a.py:A.f: tp > 1")
    assert lesson.blames_rules is blames
    assert lesson_json(lesson)["blames_rules"] is blames
    assert lesson_json(lesson)["purpose"] == wanted.model_dump(mode="json")
