"""A file that is parsed at all is one that the parser reads in memory and time in proportion to its length."""

import subprocess
import time
from pathlib import Path

import pytest

import verl_e2e
from tests.fakes.patience import HANG_S
from verl_e2e.core.reach.program import parse
from verl_e2e.core.reach.syntax import MAX_BYTES, MAX_NAME_PARTS, MAX_STATEMENTS, beyond_limits

DOTTED = b"a." * MAX_NAME_PARTS + b"a"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"#" * (MAX_BYTES + 1), "larger than 1,048,576 bytes"),
        (b"a\n" * (MAX_STATEMENTS + 1), "more than 50,000 statements"),
        (b"a\r" * (MAX_STATEMENTS + 1), "more than 50,000 statements"),
        (b"a;" * (MAX_STATEMENTS + 1), "more than 50,000 statements"),
        (b"import " + DOTTED, "more than 64 parts"),
        (b"from " + DOTTED + b" import x", "more than 64 parts"),
        (b"import " + DOTTED.replace(b".", b" \t.\\\n "), "more than 64 parts"),
        (b"import " + DOTTED.replace(b"a", "ä".encode()), "more than 64 parts"),
        (b"import " + DOTTED.replace(b".", b".\\\r\n"), "more than 64 parts"),
        (b"import x, " + DOTTED, "more than 64 parts"),
    ],
)
def test_a_file_beyond_a_limit_is_not_parsed(source: bytes, message: str) -> None:
    assert message in beyond_limits(source)
    assert parse(source) == beyond_limits(source)


@pytest.mark.parametrize("source", [b"", b"import a.b.c\n", b"x = 1;" * 1_000, b"# " + b"." * 1_000, b"-" * 1_000])
def test_an_ordinary_file_is_parsed(source: bytes) -> None:
    assert beyond_limits(source) == ""


@pytest.mark.parametrize("unit", [b"a", b"a.", b"a . ", b"a.b ", b" ", b"\\\n", b".", b"a\\\n", "ä".encode()])
def test_the_look_itself_takes_linear_time(unit: bytes) -> None:
    began = time.process_time()
    beyond_limits(unit * (MAX_BYTES // len(unit)))
    assert time.process_time() - began < 4


PARSED = "from verl_e2e.core.reach.program import parse; print(type(parse(sys.argv[1].encode())).__name__)"


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
