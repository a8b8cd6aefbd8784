"""Names and lines as the interpreter has them, held against the code of real files."""

import ast
import dis
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import verl_e2e
from verl_e2e.core.model.execution import Side
from verl_e2e.core.reach.diff import compare
from verl_e2e.core.reach.statements import CodeLines

STANDARD = Path(ast.__file__).parent
FILES = (
    *(STANDARD / name for name in ("ast.py", "asyncio/base_events.py", "dataclasses.py", "enum.py", "typing.py")),
    *(STANDARD / name for name in ("inspect.py", "argparse.py", "json/encoder.py", "unittest/mock.py", "functools.py")),
    *sorted((Path(verl_e2e.__file__).parent / "core" / "reach").glob("*.py")),
)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def starts(code: CodeType) -> set[int]:
    """The lines at which an instruction of a code object, or of a part of it that is not a function, begins a line."""
    found = {line for _, line in dis.findlinestarts(code) if line}
    inner = [item for item in code.co_consts if isinstance(item, CodeType)]
    return found.union(*(starts(item) for item in inner if not _is_own(item)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_function_of_a_real_file_is_named_and_placed_as_at_run_time(path: Path) -> None:
    source = path.read_bytes()
    module = compile(source, str(path), "exec", dont_inherit=True)
    known = {(code.co_qualname, code.co_firstlineno): starts(code) for code in codes(module)}
    found = compare(None, source).functions.changed
    functions = {(item.symbol, item.first_line): item for item in found if item.symbol}
    # What a `type` statement stands for, and the bound of a type variable, have code that looks like a function's.
    types = [node for node in ast.walk(ast.parse(source)) if type(node).__name__ in {"TypeAlias", "TypeVar"}]
    names = {getattr(name, "id", name) for node in types for name in [getattr(node, "name", "")]}
    named = {key for key in known if key[0].rpartition(".")[2] not in names}
    assert functions.keys() == {key for key in named if _is_function(key, module)}
    for key, function in functions.items():
        assert set(function.lines) <= known[key], key
        assert function.side is Side.HEAD
    whole = next((item for item in found if not item.symbol), None)
    assert whole is None or set(whole.lines) <= starts(module)


def _is_function(key: tuple[str, int], module: CodeType) -> bool:
    kinds = {(code.co_qualname, code.co_firstlineno): code for code in codes(module)}
    return _is_own(kinds[key])


def _is_own(code: CodeType) -> bool:
    """Whether it is a function that is named by itself: a `def` or a lambda."""
    return bool(code.co_flags & 1) and (not code.co_name.startswith("<") or code.co_name == "<lambda>")


def test_the_line_on_which_a_call_begins_is_no_line_of_the_function() -> None:
    tree = ast.parse("def f(x):\n    return x\ndef g(): return 1\nasync def h():\n    yield 1\n")
    lines = CodeLines(compile(tree, "x", "exec"))
    first, second, third = tree.body
    assert isinstance(first, ast.FunctionDef)
    assert isinstance(second, ast.FunctionDef)
    assert isinstance(third, ast.AsyncFunctionDef)
    assert [lines.lines(node) for node in (first, second, third)] == [{2}, set(), {5}]
    assert lines.lines(None) == {1, 3, 4}


def test_generic_functions_keep_their_names_where_python_can_read_them() -> None:
    found = compare(None, b"class A[T]:\n    def m[U](self, x: U):\n        return x\n")
    names = [function.symbol for function in found.functions.changed if function.symbol]
    readable = sys.version_info >= (3, 12)
    assert (names, bool(found.problem)) == (["A.m"] if readable else [], not readable)
