"""Which functions of a file read what its import binds: to change a constant is to change what reads it.

A run that imported the file has executed the statement and not yet shown what it decides.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from verl_e2e.core.reach.code_lines import CodeLines
from verl_e2e.core.reach.marks import Mark
from verl_e2e.core.reach.nodes import own_nodes, walk
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
    classes: frozenset[str] = frozenset()


# The lines of each function, by its qualified name.
_Lines = dict[str, set[int]]


class Readers:
    """The functions of one version of a file."""

    def __init__(self, tree: ast.Module, code: CodeLines) -> None:
        self._names: dict[str, _Lines] = {}
        self._attributes: dict[str, _Lines] = {}
        self._methods: dict[str, _Lines] = {}
        for node in walk(tree):
            if isinstance(node, _Node) and (symbol := code.name(node)):
                self._read(node, symbol, code.lines(node))

    def of(self, mark: Mark) -> ReadBy | None:
        """The functions that read what a statement of the module or of a class body binds; None where none does."""
        bound = _bound_by(mark)
        found: _Lines = {}
        tables = ((self._names, bound.names), (self._attributes, bound.attributes), (self._methods, bound.classes))
        for lines in (table.get(name, {}) for table, asked in tables for name in asked):
            for symbol, numbers in lines.items():
                found[symbol] = found.get(symbol, set()) | numbers
        functions = tuple(Reader(symbol, tuple(sorted(lines))) for symbol, lines in found.items() if lines)
        functions = tuple(sorted(functions, key=lambda reader: (reader.lines, reader.symbol)))
        return ReadBy(frozenset() if bound.classes else bound.names, functions) if functions else None

    def _read(self, node: _Node, symbol: str, reported: frozenset[int]) -> None:
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        inside = [item for statement in body for item in own_nodes(statement)]
        shared = {name for item in inside if isinstance(item, ast.Global) for name in item.names}
        own = {name for item in (*inside, *walk(node.args)) for name in bound_names(item)} - shared
        self._methods.setdefault(symbol.rpartition(".")[0], {}).setdefault(symbol, set()).update(reported)
        for item in inside:
            match item:
                case ast.Name(id=name, ctx=ast.Load(), lineno=line) if name not in own and line in reported:
                    self._names.setdefault(name, {}).setdefault(symbol, set()).add(line)
                case ast.Attribute(attr=name, ctx=ast.Load(), lineno=line) if line in reported:
                    self._attributes.setdefault(name, {}).setdefault(symbol, set()).add(line)
                case _:
                    pass


def _bound_by(mark: Mark) -> _Bound:
    match mark.node:
        case ast.ClassDef(name=name):
            outer = mark.class_name
            return _Bound(frozenset({name}), frozenset({name}), frozenset({f"{outer}.{name}" if outer else name}))
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Import() | ast.ImportFrom():
            names = frozenset(name for item in own_nodes(mark.node) for name in bound_names(item))
            stored = frozenset(_attributes(mark.node))
            if mark.class_name is not None:
                return _Bound(attributes=names | stored, classes=frozenset({mark.class_name}))
            return _Bound(names, stored)
        case _:
            return _Bound()


def _attributes(node: ast.AST) -> Iterator[str]:
    for item in own_nodes(node):
        if isinstance(item, ast.Attribute) and not isinstance(item.ctx, ast.Load):
            yield item.attr
