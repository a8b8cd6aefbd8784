"""Statements of a function or class, one by one: what a difference is about, once trees are known to differ."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from verl_e2e.core.reach.nodes import copied, walk
from verl_e2e.core.reach.normal import Frozen, freeze
from verl_e2e.core.reach.syntax import own_name

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with what it is compared by, and the tree that its identifiers are taken from."""

    # Equal for equal statements; of a statement with a body that of its head.
    key: Frozen
    node: ast.AST
    # The kinds of the blocks around it within its symbol, outermost first.
    path: tuple[str, ...] = ()
    # The identifiers of the conditions around it within its symbol.
    guards: frozenset[str] = frozenset()


_Path = tuple[str, ...]


def function_statements(node: ast.FunctionDef | ast.AsyncFunctionDef, path: _Path = ()) -> list[Statement]:
    """Decorators, parameters with their defaults, and the body."""
    found = [Statement(freeze(item), item, path) for item in node.decorator_list]
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults.extend(arguments.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    for name, default in pairs:
        argument = ast.keyword(name.arg, default) if default is not None else ast.Name(name.arg, ast.Param())
        found.append(Statement(("argument", freeze(argument)), argument, path))
    rests = [rest for rest in (arguments.vararg, arguments.kwarg) if rest is not None]
    found.extend(Statement(("arguments", rest.arg), ast.Name(rest.arg, ast.Param()), path) for rest in rests)
    found.extend(_all(node.body, path))
    return found


def flat(node: ast.stmt, path: _Path = ()) -> Iterator[Statement]:
    """A statement, and those inside it one by one, so that a new `if` is one difference; each knows its `path`."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from function_statements(node, (*path, "def"))
        case ast.If(test=test) | ast.While(test=test):
            kind = type(node).__name__
            yield Statement((kind, freeze(test)), test, path)
            words = frozenset(_words_of(test))
            yield from _guarded(_all(node.body, (*path, kind)), words)
            if node.orelse:
                yield Statement("else", ast.Pass(), path)
                yield from _guarded(_all(node.orelse, (*path, "else")), words)
        case ast.For():
            key = ("for", freeze(node.target), freeze(node.iter))
            yield Statement(key, ast.Tuple([node.target, node.iter]), path)
            yield from _all(node.body, (*path, "for"))
            yield from _all(node.orelse, (*path, "else"))
        case ast.With():
            for item in node.items:
                yield Statement(("with", freeze(item)), item, path)
            yield from _all(node.body, (*path, "with"))
        case ast.Try():
            yield from _all(node.body, (*path, "try"))
            for handler in node.handlers:
                caught = handler.type or ast.Pass()
                yield Statement(("except", freeze(caught)), caught, path)
                yield from _all(handler.body, (*path, "except"))
            yield from _all(node.orelse, (*path, "else"))
            yield from _all(node.finalbody, (*path, "finally"))
        case ast.ClassDef():
            heads = (*node.decorator_list, *node.bases, *node.keywords)
            yield from (Statement(freeze(head), head, path) for head in heads)
            yield from _all(node.body, (*path, "class"))
        case _:
            yield from _pieces(node, path)


def _guarded(statements: Iterable[Statement], words: frozenset[str]) -> Iterator[Statement]:
    """The statements with the identifiers of a condition around them."""
    return (replace(statement, guards=statement.guards | words) for statement in statements)


def _pieces(node: ast.AST, path: _Path, *, own: bool = False) -> Iterator[Statement]:
    """A simple statement, with the elements of its tables apart: a long list differs by what is new in it.

    `own` says that the node is a copy that may be taken apart.
    """
    if not any(map(_has_elements, walk(node))):
        yield Statement(freeze(node), node, path)
        return
    elements = _Elements()
    # Taking elements out changes the nodes.
    rest = elements.visit(node if own else copied(node))
    yield Statement(freeze(rest), rest, path)
    for item in elements.found:
        yield from _pieces(item, path, own=True)


_SHORT_CALL = 2


def _has_elements(node: ast.AST) -> bool:
    return isinstance(node, ast.List | ast.Dict) or (isinstance(node, ast.Call) and len(node.keywords) > _SHORT_CALL)


class _Elements(ast.NodeTransformer):
    """Takes the elements out of lists and dictionaries, and the named arguments out of calls that have many."""

    def __init__(self) -> None:
        self.found: list[ast.AST] = []

    def visit_List(self, node: ast.List) -> ast.AST:
        self.found.extend(node.elts)
        return ast.List([], node.ctx)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        pairs = zip(node.keys, node.values, strict=True)
        self.found.extend(value if key is None else ast.Tuple([key, value], ast.Load()) for key, value in pairs)
        return ast.Dict([], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if len(node.keywords) <= _SHORT_CALL:
            return self.generic_visit(node)
        for keyword in node.keywords:
            self.found.append(ast.Call(ast.Name(last_name(node.func), ast.Load()), [], [keyword]))
        return self.generic_visit(ast.Call(node.func, node.args, []))


def _all(statements: list[ast.stmt], path: _Path) -> Iterator[Statement]:
    for statement in statements:
        yield from flat(statement, path)


def words_of(statements: Iterable[Statement]) -> tuple[frozenset[str], ...]:
    """The identifiers of each statement, those with none left out."""
    found = (own | statement.guards for statement in statements if (own := frozenset(_words_of(statement.node))))
    return tuple(dict.fromkeys(words for words in found if words))


def _words_of(root: ast.AST) -> Iterator[str]:
    for node in walk(root):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.alias(name=name):
                yield name
            case ast.Constant(value=str(text)) if len(text) <= _LONGEST_TEXT:
                yield from _IDENTIFIER.findall(text)
            case ast.ImportFrom(module=str(module)):
                yield from module.split(".")
            case _:
                pass


def last_name(node: ast.expr) -> str:
    """The last part of a name, attribute or called function; empty for any other expression."""
    while isinstance(node, ast.Call):
        node = node.func
    return own_name(node)
