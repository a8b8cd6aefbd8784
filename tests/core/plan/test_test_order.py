"""The order of the test files near a change, and how many of them fit into the time."""

import pytest

from verl_e2e.core.model.jobs import ChosenTest, WhyChosen
from verl_e2e.core.plan.bridge_tests import (
    SECONDS_PER_TEST,
    START_S,
    RankedTest,
    identifiers,
    named_functions,
    ordered,
    within_time,
)
from verl_e2e.core.plan.policy import ChoiceOfTests
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.users import ChangedModule

MODULE = ChangedModule("lib.a", "src/lib/a.py", frozenset({"load", "Maker.build", "Maker.__init__"}))
LOAD, BUILD, MAKE = ((MODULE.name, symbol) for symbol in ("load", "Maker.build", "Maker.__init__"))


def near(path: str, *named: tuple[str, str], reached: bool = True, distance: int = 1) -> RankedTest:
    chosen = ChosenTest(test=path, why=WhyChosen.IMPORTS, reason="near", gpu_count=0)
    return RankedTest(chosen, (not reached, True, distance, True, path), frozenset(named))


def paths(*ranked: RankedTest) -> list[str]:
    return [item.test for item in ordered(ranked)]


@pytest.mark.parametrize(
    ("source", "named"),
    (
        (b"from lib.a import load\ndef test_a():\n    load(1)\n", {LOAD}),
        (b"import lib.a\ndef test_a():\n    lib.a.load(1)\n", {LOAD}),
        (b"def test_a(maker):\n    maker.build()\n", {BUILD}),
        (b"from lib.a import Maker\ndef test_a():\n    Maker().build()\n", {BUILD, MAKE}),
        (b"def test_a(patch):\n    patch('lib.a.load')\n", {LOAD}),
        (b"import lib.a\ndef test_a():\n    assert lib.a\n", set()),
    ),
)
def test_a_file_names_a_function_by_its_name_and_what_python_calls_by_its_class(
    source: bytes, named: set[tuple[str, str]]
) -> None:
    assert named_functions(MODULE, identifiers(summarize(source))) == named


def test_files_that_name_a_function_come_before_nearer_ones_that_do_not() -> None:
    assert paths(near("t/a.py", distance=0), near("t/b.py", LOAD, distance=3)) == ["t/b.py", "t/a.py"]


def test_what_verl_does_not_run_comes_last_among_files_that_name_nothing_new() -> None:
    idle = near("t/a.py", reached=False, distance=0)
    assert paths(idle, near("t/b.py", distance=3)) == ["t/b.py", "t/a.py"]


def test_each_function_gets_a_file_before_one_gets_two() -> None:
    ranked = (near("t/a.py", LOAD), near("t/b.py", LOAD), near("t/c.py", BUILD, distance=3))
    assert paths(*ranked) == ["t/a.py", "t/c.py", "t/b.py"]


def test_equally_near_folders_take_turns() -> None:
    ranked = (near("t/a/1.py"), near("t/a/2.py"), near("t/b/1.py"), near("t/c/1.py"), near("t/z/1.py", distance=0))
    assert paths(*ranked) == ["t/z/1.py", "t/a/1.py", "t/b/1.py", "t/c/1.py", "t/a/2.py"]


def fitting(seconds: int, count: int, **durations: float) -> int:
    """How many of five files with so many tests each fit into the time."""
    choice = ChoiceOfTests.model_validate({"paths": ["t/"], "seconds": seconds, "durations": durations})
    tests = [near(f"t{number}").test for number in range(5)]
    return len(within_time(tests, {test.test: count for test in tests}, choice))


def test_the_time_decides_by_known_durations_and_by_the_number_of_tests() -> None:
    assert fitting(300, 10) == 5
    assert fitting(300, int((150 - START_S) / SECONDS_PER_TEST / 2) - 1) == 2
    assert fitting(300, 10, t1=200) == 1
    assert fitting(300, 100_000, t0=1) == 1
    assert fitting(60, 1) == 0


def test_a_file_that_the_change_touches_runs_whatever_it_takes() -> None:
    choice = ChoiceOfTests.model_validate({"paths": ["t/"], "seconds": 60})
    touched = ChosenTest(test="t/a.py", why=WhyChosen.CHANGED, reason="changed", gpu_count=0)
    assert within_time([touched, near("t/b.py").test], {"t/a.py": 9000}, choice) == [touched]
