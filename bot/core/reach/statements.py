"""Statements of a function or class, one by one, without what has no effect on a run.

Without effect: comments, layout, docstrings, annotations, log calls, the texts of raised errors and `pass`.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_LOG_OWNERS = frozenset({"logger", "logging", "log", "warnings", "_logger", "LOG"})
_LOG_CALLS = frozenset(
    {"print", "print_rank_0", "print_rank_last", "warn_rank_0", "log_single_rank", "warn_once", "logger"}
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as comparable text, and the tree that its identifiers are taken from."""

    text: str
    node: ast.AST


def function_statements(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Statement]:
    """Decorators, parameters with their defaults, and the body."""
    found = [Statement(ast.dump(one), one) for one in node.decorator_list]
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults.extend(arguments.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    for name, default in pairs:
        argument = ast.keyword(name.arg, default) if default is not None else ast.Name(name.arg, ast.Param())
        found.append(Statement(f"argument {ast.dump(argument)}", argument))
    rests = [rest for rest in (arguments.vararg, arguments.kwarg) if rest is not None]
    found.extend(Statement(f"arguments {rest.arg}", ast.Name(rest.arg, ast.Param())) for rest in rests)
    for statement in node.body:
        found.extend(flat(statement))
    return found


def flat(node: ast.stmt) -> Iterator[Statement]:
    """A statement, and those inside it one by one; depth does not count, so that a new `if` is one difference."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from function_statements(node)
        case ast.If(test=test) | ast.While(test=test):
            yield Statement(f"{type(node).__name__} {ast.dump(test)}", test)
            yield from _all(node.body)
            if node.orelse:
                yield Statement("else", ast.Pass())
                yield from _all(node.orelse)
        case ast.For():
            yield Statement(
                f"for {ast.dump(node.target)} in {ast.dump(node.iter)}", ast.Tuple([node.target, node.iter])
            )
            yield from _all(node.body + node.orelse)
        case ast.With():
            for item in node.items:
                yield Statement(f"with {ast.dump(item)}", item)
            yield from _all(node.body)
        case ast.Try():
            yield from _all(node.body)
            for handler in node.handlers:
                yield Statement(f"except {ast.dump(handler.type) if handler.type else ''}", handler.type or ast.Pass())
                yield from _all(handler.body)
            yield from _all(node.orelse + node.finalbody)
        case ast.ClassDef():
            yield from _all(node.body)
        case _:
            yield from _pieces(node)


def _pieces(node: ast.AST) -> Iterator[Statement]:
    """A simple statement, with the elements of its tables apart: a long list differs by what is new in it."""
    elements = _Elements()
    rest = elements.visit(node)
    yield Statement(ast.dump(rest), rest)
    for one in elements.found:
        yield from _pieces(one)


_SHORT_CALL = 2


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
        for one in node.keywords:
            self.found.append(ast.Call(ast.Name(last_name(node.func), ast.Load()), [], [one]))
        return self.generic_visit(ast.Call(node.func, node.args, []))


def _all(statements: list[ast.stmt]) -> Iterator[Statement]:
    for statement in statements:
        yield from flat(statement)


def words_of(statements: Iterable[Statement]) -> tuple[frozenset[str], ...]:
    """The identifiers of each statement, those with none left out."""
    found = (frozenset(_words_of(one.node)) for one in statements)
    return tuple(dict.fromkeys(words for words in found if words))


def _words_of(root: ast.AST) -> Iterator[str]:
    for node in ast.walk(root):
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
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return last_name(function)
        case _:
            return ""


def _is_log(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in _LOG_CALLS
        case ast.Call(func=ast.Attribute(value=owner)):
            return last_name(owner) in _LOG_OWNERS
        case _:
            return False


def quiet(tree: ast.Module) -> ast.Module:
    """The tree without what has no effect on a run; the tree that is given is changed."""
    _Quiet().visit(tree)
    return tree


class _Quiet(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) or _is_log(node.value):
            return None
        return self.generic_visit(node)

    def visit_Pass(self, _node: ast.Pass) -> None:
        return None

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        special = any(
            last_name(one) in {"ClassVar", "InitVar"} for one in ast.walk(node.annotation) if isinstance(one, ast.expr)
        )
        if not special:
            node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = ast.Call(node.exc.func, [], [])
        return node
