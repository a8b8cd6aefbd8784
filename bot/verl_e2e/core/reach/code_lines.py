"""The functions of a file as the interpreter compiles them: qualified names, and the lines that a run can report.

A line counts where an instruction is on it that every interpreter reports as a line of the function, so not the line
on which a call begins. The tables are those of the Python that plans: other versions may place an instruction of a
long expression on another of its lines, but each agrees on where a statement begins.
"""

import ast
import opcode
from collections.abc import Iterator
from types import CodeType

_RESUME = opcode.opmap["RESUME"]
# Set in the flags of a function's code, as `inspect.CO_OPTIMIZED`.
_OPTIMIZED = 1
_LAMBDA = "<lambda>"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def first_line(node: ast.stmt | ast.Lambda) -> int:
    """The first line of a statement or a lambda, that of its first decorator for a definition."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


class CodeLines:
    """One compiled file."""

    def __init__(self, module: CodeType) -> None:
        self._module = module
        self._functions: dict[tuple[str, int], CodeType] = {}
        self._lines: dict[CodeType, frozenset[int]] = {}
        for code in _functions(module):
            self._functions.setdefault((code.co_name, code.co_firstlineno), code)

    def name(self, node: Function | ast.Lambda) -> str:
        """The function's qualified name; empty for one that the compiler drops, as in `if False:`."""
        code = self._functions.get(_key(node))
        return "" if code is None else code.co_qualname

    def lines(self, node: Function | ast.Lambda | None) -> frozenset[int]:
        """The lines that a run of a function with a name can report; of the module's and the class bodies for None."""
        code = self._module if node is None else self._functions[_key(node)]
        if code not in self._lines:
            self._lines[code] = frozenset(_reported(code))
        return self._lines[code]


def _key(node: Function | ast.Lambda) -> tuple[str, int]:
    return _LAMBDA if isinstance(node, ast.Lambda) else node.name, first_line(node)


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Every function in a code object; a comprehension belongs to the function around it."""
    todo = [code]
    while todo:
        for inner in _inner(todo.pop()):
            if _is_function(inner):
                yield inner
            todo.append(inner)


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _is_function(code: CodeType) -> bool:
    """Whether it is the body of a `def` or a lambda: classes and modules have no fast locals, others a name in `<>`."""
    return bool(code.co_flags & _OPTIMIZED) and (not code.co_name.startswith("<") or code.co_name == _LAMBDA)


def _reported(code: CodeType) -> Iterator[int]:
    """The lines of a function and of what belongs to it."""
    todo = [code]
    while todo:
        here = todo.pop()
        yield from _own_lines(here)
        todo.extend(inner for inner in _inner(here) if not _is_function(inner))


def _own_lines(code: CodeType) -> Iterator[int]:
    # What is on the line on which a frame begins is reported by some interpreters, and by others it is not.
    resumes = 2 * code.co_code[::2].index(_RESUME)
    table = list(code.co_lines())
    begin = next(line for first, end, line in table if first <= resumes < end)
    yield from (line for _, end, line in table if line and line != begin and end > resumes)
