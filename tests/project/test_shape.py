"""How the code is cut, as numbers that may only get better: names, the size of functions, and helpers called once."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.fakes.places import ROOT

# What is aimed at is in the second place.
NAMES_IN_TWO_MODULES = (0, 0)
MEDIAN_LINES = (7, 8)
PERCENT_CALLED_ONCE = (39, 40)
# Programs of another Python, each started by itself: their names meet no one.
OTHER_PROGRAMS = {"instrumentation", "host_python"}
# What each module may have of its own: its logger, and the start of a program.
OWN = {"log", "main"}


@pytest.fixture(scope="module")
def modules() -> list[tuple[Path, ast.Module]]:
    files = sorted(path for package in ("bot", "runners") for path in (ROOT / package).rglob("*.py"))
    return [(path.relative_to(ROOT), ast.parse(path.read_text())) for path in files]


def defined(tree: ast.Module) -> Iterator[str]:
    """The public names that a module defines: functions, classes and constants."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


def held(what: str, found: float, budget: tuple[int, int], *, slack: int) -> None:
    """A number is within its budget, and the budget is not larger than it has to be."""
    today, aim = budget
    assert found <= today, f"{what}: {found}, where {today} is the most; {aim} is aimed at"
    assert found > today - slack, f"{what}: {found}; lower the budget of {today}"


def test_a_public_name_is_defined_in_one_module(modules: list[tuple[Path, ast.Module]]) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules:
        if not OTHER_PROGRAMS & {*path.parts}:
            for name in {name for name in defined(tree) if not name.startswith("_")} - OWN:
                places[name].append(str(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    held(f"public names of two modules ({', '.join(sorted(twice))})", len(twice), NAMES_IN_TWO_MODULES, slack=40)


def test_functions_are_long_enough_to_say_something(modules: list[tuple[Path, ast.Module]]) -> None:
    lines = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for _, tree in modules
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert MEDIAN_LINES[0] <= median(lines) < MEDIAN_LINES[0] + 1, "the median: raise the budget, or inline helpers"


def test_most_helpers_are_called_more_than_once(modules: list[tuple[Path, ast.Module]]) -> None:
    helpers = once = 0
    for _, tree in modules:
        used = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if re.match("_[^_]", name):
                    helpers += 1
                    once += used[name] == 1
                case _:
                    pass
    held("percent of private functions that are used once", 100 * once / helpers, PERCENT_CALLED_ONCE, slack=8)
