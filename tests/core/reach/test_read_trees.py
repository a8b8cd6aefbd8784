"""Trees that several questions share."""

import ast
import subprocess
from pathlib import Path

import pytest

import verl_e2e
from tests.fakes.patience import HANG_S
from verl_e2e.core.reach.program import ReadTrees

PARSED = "from verl_e2e.core.reach.program import parse; print(type(parse(sys.argv[1].encode())).__name__)"


def test_one_content_is_parsed_once_and_a_problem_is_kept_too() -> None:
    trees = ReadTrees()
    found = trees.get(b"x = 1\n")
    assert isinstance(found, ast.Module)
    assert trees.get(b"".join([b"x = ", b"1\n"])) is found
    assert trees.get(b"x = (\n") == trees.get(b"x = (\n") == "line 1 is not Python ('(' was never closed)"


def test_what_was_asked_for_last_is_kept_within_so_many_bytes() -> None:
    trees = ReadTrees(most_bytes=12)
    first, second = trees.get(b"a = 1\n"), trees.get(b"b = 1\n")
    assert trees.get(b"a = 1\n") is first
    trees.get(b"c = 1\n")
    assert trees.get(b"a = 1\n") is first
    assert trees.get(b"b = 1\n") is not second
    large = trees.get(b"large = 123456\n")
    assert trees.get(b"large = 123456\n") is not large


@pytest.mark.monitoring
@pytest.mark.parametrize(
    ("text", "read"),
    (
        ("def f[T](x): return f'{x!r:{'a'}}'", True),
        ("def f[T = int](x): return x", False),
        ("try: pass\nexcept A, B: pass", False),
        ("x = t'{y}'", False),
    ),
)
def test_what_only_a_python_after_that_of_the_runs_can_read_is_a_problem(
    monitoring_python: str, text: str, read: bool
) -> None:
    package = Path(verl_e2e.__file__).parents[1]
    asked = subprocess.run(
        [monitoring_python, "-c", f"import sys; {PARSED}", text],
        env={"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    assert asked.stdout.strip() == ("Module" if read else "str")
