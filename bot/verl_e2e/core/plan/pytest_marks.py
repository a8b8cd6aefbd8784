"""Read from a test file, without running it, whether it holds tests and how many GPUs all of them need."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from verl_e2e.core.reach.read_trees import parse_to_read
from verl_e2e.core.reach.syntax import dotted

_PROCESSES = re.compile(rb"nproc[-_]per[-_]node[\s=\"',]+(\d{1,3})")
_NO_DEVICE = re.compile(r"\bnot\b.*\bcuda\b|\bcuda\b.*<")
_SKIPS = frozenset({"skipif"})

# Raise it whenever the marks of the same text would read differently: kept ones are then made again.
MARKS_VERSION = 1
_Test = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Marks:
    """`tests` counts the test functions that can be seen; `gpu_count` is 0 when some of them run without a GPU."""

    tests: int
    gpu_count: int = 0


def read_marks(source: bytes, gpu_marks: Iterable[str]) -> Marks:
    """Read one test file; `gpu_marks` are the names of pytest marks that ask for a GPU.

    A mark with arguments asks for one when an argument says `gpu`. A file that is not Python counts as one test: pytest
    must be the one that says so.
    """
    tree = parse_to_read(source)
    if isinstance(tree, str):
        return Marks(1)
    marks = frozenset(gpu_marks)
    found = list(_tests(tree.body, on_gpu=_module_mark(tree, marks), marks=marks))
    if not found or not all(found):
        return Marks(len(found))
    processes = (int(count) for count in _PROCESSES.findall(source))
    return Marks(len(found), max((1, *processes)))


def _tests(body: list[ast.stmt], *, on_gpu: bool, marks: frozenset[str]) -> Iterator[bool]:
    """For every test function, whether it needs a GPU."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test"):
                yield on_gpu or _asks_for_gpu(node.decorator_list, marks)
            case ast.ClassDef() if node.name.startswith("Test") or node.bases:
                inside = on_gpu or _asks_for_gpu(node.decorator_list, marks)
                yield from _tests(node.body, on_gpu=inside, marks=marks)
            case ast.If() | ast.Try():
                yield from _tests([*node.body, *node.orelse], on_gpu=on_gpu, marks=marks)
            case _:
                pass


def _module_mark(tree: ast.Module, marks: frozenset[str]) -> bool:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=ast.List(elts=many) | ast.Tuple(elts=many)):
                return _asks_for_gpu(many, marks)
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=one):
                return _asks_for_gpu([one], marks)
            case _:
                pass
    return False


def _asks_for_gpu(decorators: Iterable[ast.expr], marks: frozenset[str]) -> bool:
    return any(_is_gpu_mark(decorator, marks) for decorator in decorators)


def _is_gpu_mark(node: ast.expr, marks: frozenset[str]) -> bool:
    owner, _, name = dotted(node).rpartition(".")
    if owner.rpartition(".")[2] != "mark":
        return False
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)] if isinstance(node, ast.Call) else []
    if name in _SKIPS:
        return bool(arguments) and _NO_DEVICE.search(ast.unparse(arguments[0])) is not None
    texts = [
        argument.value
        for argument in arguments
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    return name in marks and (not texts or any("gpu" in text.lower() for text in texts))
