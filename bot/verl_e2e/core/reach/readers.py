"""Which functions of a file read what its import binds: to change a constant is to change what reads it.

A run that imported the file has executed the statement and not yet shown what it decides.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from verl_e2e.core.reach import excuses
from verl_e2e.core.reach.code_lines import CodeLines
from verl_e2e.core.reach.marks import Mark
from verl_e2e.core.reach.normal import bound_names

_Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Reader:
    """A function with the lines on which it reads something."""

    # Its qualified name.
    symbol: str
    # The lines that a run of it can report.
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadBy:
    """Who reads what statements bind."""

    # The names of the module that they bind: another file may import them. Empty for what classes hold.
    names: frozenset[str]
    # The functions of the file.
    functions: tuple[Reader, ...]


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a statement binds: names of the module, attributes, and a class."""

    names: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    # Of a class each method counts: what reads its fields and inherits from it may be in another file.
    class_name: str = ""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one function reads: names that are not its own and attributes, each with its lines."""

    symbol: str
    names: dict[str, set[int]]
    attributes: dict[str, set[int]]
    lines: frozenset[int]


class Readers:
    """The functions of one version of a file."""

    def __init__(self, tree: ast.Module, code: CodeLines) -> None:
        nodes = (node for node in ast.walk(tree) if isinstance(node, _Node))
        self._functions = tuple(_reading(node, code) for node in nodes if code.name(node))

    def of(self, mark: Mark) -> ReadBy | None:
        """The functions that read what a statement of the module or of a class body binds; None where none does."""
        bound = _bound_by(mark)
        found = ((function.symbol, _lines(function, bound)) for function in self._functions)
        functions = tuple(Reader(symbol, tuple(sorted(lines))) for symbol, lines in found if lines)
        return ReadBy(frozenset() if bound.class_name else bound.names, functions) if functions else None


def _reading(node: _Node, code: CodeLines) -> _Reading:
    reported = code.lines(node)
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    inside = [item for statement in body for item in excuses.own_nodes(statement)]
    shared = {name for item in inside if isinstance(item, ast.Global) for name in item.names}
    own = {name for item in (*inside, *ast.walk(node.args)) for name in bound_names(item)} - shared
    names: dict[str, set[int]] = {}
    attributes: dict[str, set[int]] = {}
    for item in inside:
        if getattr(item, "lineno", 0) not in reported:
            continue
        match item:
            case ast.Name(id=name, ctx=ast.Load(), lineno=line) if name not in own:
                names.setdefault(name, set()).add(line)
            case ast.Attribute(attr=name, ctx=ast.Load(), lineno=line):
                attributes.setdefault(name, set()).add(line)
            case _:
                pass
    return _Reading(code.name(node), names, attributes, reported)


def _lines(function: _Reading, bound: _Bound) -> set[int]:
    found: set[int] = set()
    for name in bound.names:
        found |= function.names.get(name, set())
    for name in bound.attributes:
        found |= function.attributes.get(name, set())
    if bound.class_name and function.symbol.startswith(f"{bound.class_name}."):
        found |= function.lines
    return found


def _bound_by(mark: Mark) -> _Bound:
    match mark.node:
        case ast.ClassDef(name=name):
            outer = mark.class_name
            return _Bound(frozenset({name}), frozenset({name}), f"{outer}.{name}" if outer else name)
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Import() | ast.ImportFrom():
            names = frozenset(name for item in excuses.own_nodes(mark.node) for name in bound_names(item))
            stored = frozenset(_attributes(mark.node))
            if mark.class_name is not None:
                return _Bound(attributes=names | stored, class_name=mark.class_name)
            return _Bound(names, stored)
        case _:
            return _Bound()


def _attributes(node: ast.AST) -> Iterator[str]:
    for item in excuses.own_nodes(node):
        if isinstance(item, ast.Attribute) and not isinstance(item.ctx, ast.Load):
            yield item.attr
