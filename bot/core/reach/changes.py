"""What changed inside a file: two syntax trees compared symbol by symbol, after all that has no effect is taken away.

Without effect: comments, layout, docstrings, annotations, log calls, the texts of raised errors, `pass`, names of
local variables, and imports that only a type checker sees.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bot.core.reach.summary import BODY, assigned_names, parse

_LOG_OWNERS = frozenset({"logger", "logging", "log", "warnings", "_logger", "LOG"})
_LOG_CALLS = frozenset(
    {"print", "print_rank_0", "print_rank_last", "warn_rank_0", "log_single_rank", "warn_once", "logger"}
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class SymbolChange:
    """One symbol that differs. `kind`: `added`, `removed`, `changed` or `imports`.

    `statements` are the identifiers of each statement that differs, on either side; `line` is the symbol's line at the
    head, or at the base when it is gone. For `imports` they are the dotted names that the head imports anew.
    """

    symbol: str
    kind: str
    line: int
    statements: tuple[frozenset[str], ...]

    @property
    def words(self) -> frozenset[str]:
        """All identifiers of the statements that differ."""
        return frozenset().union(*self.statements)


@dataclass(frozen=True, slots=True)
class FileDifference:
    """All symbols of a file that differ in effect; `problem` is set when the two sides could not be compared."""

    changes: tuple[SymbolChange, ...]
    problem: str = ""


def compare(old: bytes | None, new: bytes | None) -> FileDifference:
    """Compare two versions of a Python file; None stands for a version that does not exist."""
    before_tree, after_tree = parse(old or b""), parse(new or b"")
    for tree in (before_tree, after_tree):
        if isinstance(tree, str):
            return FileDifference((), tree)
    assert isinstance(before_tree, ast.Module)
    assert isinstance(after_tree, ast.Module)
    _drop_same(before_tree, old or b"", after_tree, new or b"")
    before, after = _Side.of(before_tree), _Side.of(after_tree)
    found = list(_symbol_changes(before, after))
    imported = after.imports - before.imports
    if imported:
        found.append(SymbolChange(BODY, "imports", 1, (frozenset(imported),)))
    return FileDifference(tuple(sorted(found, key=lambda one: (one.line, one.symbol, one.kind))))


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _drop_same(before: ast.Module, old: bytes, after: ast.Module, new: bytes) -> None:
    """Take out of both trees the definitions that read the same letter by letter: most of a file, as a rule."""
    pairs: list[tuple[list[ast.stmt], list[ast.stmt]]] = [(before.body, after.body)]
    old_lines, new_lines = old.splitlines(), new.splitlines()
    while pairs:
        ours, theirs = pairs.pop()
        mine, others = _texts(ours, old_lines), _texts(theirs, new_lines)
        same = mine.keys() & others.keys()
        classes = {node.name: node for key, node in others.items() if key not in same and isinstance(node, ast.ClassDef)}
        for key, node in mine.items():
            twin = classes.get(node.name)
            if key not in same and isinstance(node, ast.ClassDef) and twin is not None:
                pairs.append((node.body, twin.body))
        dropped = {id(found[key]) for key in same for found in (mine, others)}
        ours[:] = [node for node in ours if id(node) not in dropped]
        theirs[:] = [node for node in theirs if id(node) not in dropped]


def _texts(body: list[ast.stmt], lines: list[bytes]) -> dict[tuple[str, bytes], _Definition]:
    found: dict[tuple[str, bytes], _Definition] = {}
    doubled: set[str] = set()
    for node in body:
        if isinstance(node, _Definition):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            key = (node.name, b"\n".join(lines[first - 1 : node.end_lineno]))
            doubled.update({node.name} if any(name == node.name for name, _ in found) else ())
            found[key] = node
    return {key: node for key, node in found.items() if key[0] not in doubled}


@dataclass(frozen=True, slots=True)
class _Statement:
    text: str
    node: ast.AST


class _Side:
    """The statements of one version, by symbol."""

    def __init__(self) -> None:
        self.statements: dict[str, list[_Statement]] = {}
        self.lines: dict[str, int] = {}
        self.imports: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tree: ast.Module) -> "_Side":
        side = cls()
        imports: set[str] = set()
        side._body(_Quiet().visit(tree).body, imports)
        side.imports = frozenset(imports)
        return side

    def key(self, symbol: str) -> tuple[str, ...]:
        """The symbol's whole body as text."""
        return tuple(one.text for one in self.statements[symbol])

    def rename(self, old: str, new: str) -> None:
        """Call a symbol by its new name, here and wherever it is mentioned."""
        self.statements[new] = self.statements.pop(old)
        self.lines[new] = self.lines.pop(old)
        mention, instead = f"'{old.rpartition('.')[2]}'", f"'{new.rpartition('.')[2]}'"
        for name, statements in self.statements.items():
            self.statements[name] = [
                _Statement(one.text.replace(mention, instead), one.node) if mention in one.text else one
                for one in statements
            ]

    def _add(self, symbol: str, line: int, statements: Iterable[_Statement]) -> None:
        self.lines.setdefault(symbol, line)
        self.statements.setdefault(symbol, []).extend(statements)

    def _body(self, body: list[ast.stmt], imports: set[str]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    if not _is_overload(node):
                        self._add(node.name, node.lineno, _function(node))
                case ast.ClassDef():
                    self._class(node)
                case ast.Import() | ast.ImportFrom():
                    imports.update(_imported(node))
                case ast.If(test=test) if not _typing_only(test):
                    self._add(BODY, 1, [_Statement(ast.dump(test), test)] if not _has_definitions(node) else [])
                    self._body(node.body, imports)
                    self._body(node.orelse, imports)
                case ast.If():
                    self._body(node.orelse, imports)
                case ast.Try():
                    self._body(node.body, imports)
                    for handler in node.handlers:
                        self._body(handler.body, imports)
                    self._body(node.orelse + node.finalbody, imports)
                case _:
                    names = assigned_names(node)
                    for name in names or (BODY,):
                        self._add(name, node.lineno if names else 1, _flat(node))

    def _class(self, node: ast.ClassDef) -> None:
        own = [_Statement(ast.dump(one), one) for one in (*node.bases, *node.keywords, *node.decorator_list)]
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                if _is_overload(statement):
                    continue
                self._add(f"{node.name}.{statement.name}", statement.lineno, _function(statement))
            else:
                own.extend(_flat(statement))
        self._add(node.name, node.lineno, own)


def _symbol_changes(before: _Side, after: _Side) -> Iterator[SymbolChange]:
    renamed = _renames(before, after)
    for old_name, new_name in renamed.items():
        before.rename(old_name, new_name)
        if not new_name.rpartition(".")[2].startswith("_"):
            yield SymbolChange(old_name, "renamed", after.lines[new_name], (frozenset({old_name, new_name}),))
    for name in before.statements.keys() | after.statements.keys():
        old, new = before.statements.get(name), after.statements.get(name)
        line = after.lines.get(name) or before.lines[name]
        if old is None or new is None:
            yield SymbolChange(name, "added" if old is None else "removed", line, _words(new or old or []))
            continue
        if [one.text for one in old] == [one.text for one in new] or _same_but_names(old, new):
            continue
        yield SymbolChange(name, "changed", line, _words(_differing(old, new)))


def _renames(before: _Side, after: _Side) -> dict[str, str]:
    """Symbols that are gone and whose whole body stands under one other, new name."""
    gone = {name: before.key(name) for name in before.statements.keys() - after.statements.keys()}
    came: dict[tuple[str, ...], list[str]] = {}
    for name in after.statements.keys() - before.statements.keys():
        came.setdefault(after.key(name), []).append(name)
    pairs = {name: came[key] for name, key in gone.items() if len(came.get(key, ())) == 1 and len(key) > 1}
    wanted = Counter(names[0] for names in pairs.values())
    return {name: names[0] for name, names in sorted(pairs.items()) if wanted[names[0]] == 1}


def _differing(old: list[_Statement], new: list[_Statement]) -> list[_Statement]:
    had, has = Counter(one.text for one in old), Counter(one.text for one in new)
    gone, came = had - has, has - had
    found = [one for one in old if one.text in gone] + [one for one in new if one.text in came]
    return found or [one for one, other in zip(old, new, strict=False) if one.text != other.text]


def _same_but_names(old: list[_Statement], new: list[_Statement]) -> bool:
    """Whether the two differ by the names of local variables alone."""
    if len(old) != len(new) or [type(one.node) for one in old] != [type(one.node) for one in new]:
        return False
    return _renamed(old) == _renamed(new)


def _renamed(statements: list[_Statement]) -> list[str]:
    stored: dict[str, str] = {}
    for one in statements:
        for node in ast.walk(one.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stored.setdefault(node.id, f"local {len(stored)}")
    pattern = re.compile(r"Name\(id='(\w+)'")
    return [pattern.sub(lambda m: f"Name(id='{stored.get(m[1], m[1])}'", one.text) for one in statements]


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[_Statement]:
    found = [_Statement(ast.dump(one), one) for one in node.decorator_list]
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults.extend(arguments.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    for name, default in pairs:
        argument = ast.keyword(name.arg, default) if default is not None else ast.Name(name.arg, ast.Param())
        found.append(_Statement(f"argument {ast.dump(argument)}", argument))
    for rest in (arguments.vararg, arguments.kwarg):
        if rest is not None:
            found.append(_Statement(f"arguments {rest.arg}", ast.Name(rest.arg, ast.Param())))
    for statement in node.body:
        found.extend(_flat(statement))
    return found


def _flat(node: ast.stmt) -> Iterator[_Statement]:
    """A statement, and those inside it one by one; depth does not count, so that a new `if` is one difference."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _function(node)
        case ast.If(test=test) | ast.While(test=test):
            yield _Statement(f"{type(node).__name__} {ast.dump(test)}", test)
            yield from _all(node.body)
            if node.orelse:
                yield _Statement("else", ast.Pass())
                yield from _all(node.orelse)
        case ast.For():
            yield _Statement(f"for {ast.dump(node.target)} in {ast.dump(node.iter)}", ast.Tuple([node.target, node.iter]))
            yield from _all(node.body + node.orelse)
        case ast.With():
            for item in node.items:
                yield _Statement(f"with {ast.dump(item)}", item)
            yield from _all(node.body)
        case ast.Try():
            yield from _all(node.body)
            for handler in node.handlers:
                yield _Statement(f"except {ast.dump(handler.type) if handler.type else ''}", handler.type or ast.Pass())
                yield from _all(handler.body)
            yield from _all(node.orelse + node.finalbody)
        case ast.ClassDef():
            yield from _all(node.body)
        case _:
            yield from _pieces(node)


def _pieces(node: ast.AST) -> Iterator[_Statement]:
    """A simple statement, with the elements of its tables apart: a long list differs by what is new in it."""
    elements = _Elements()
    rest = elements.visit(node)
    yield _Statement(ast.dump(rest), rest)
    for one in elements.found:
        yield from _pieces(one)


_SHORT_CALL = 2


class _Elements(ast.NodeTransformer):
    """Takes the elements out of lists and dictionaries, and the named arguments out of calls that have many."""

    def __init__(self) -> None:
        self.found: list[ast.AST] = []

    def visit_List(self, node: ast.List) -> ast.AST:  # noqa: N802  (ast's naming)
        self.found.extend(node.elts)
        return ast.List([], node.ctx)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:  # noqa: N802  (ast's naming)
        pairs = zip(node.keys, node.values, strict=True)
        self.found.extend(value if key is None else ast.Tuple([key, value], ast.Load()) for key, value in pairs)
        return ast.Dict([], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802  (ast's naming)
        if len(node.keywords) <= _SHORT_CALL:
            return self.generic_visit(node)
        for one in node.keywords:
            self.found.append(ast.Call(ast.Name(_last(node.func), ast.Load()), [], [one]))
        return self.generic_visit(ast.Call(node.func, node.args, []))


def _all(statements: list[ast.stmt]) -> Iterator[_Statement]:
    for statement in statements:
        yield from _flat(statement)


def _words(statements: Iterable[_Statement]) -> tuple[frozenset[str], ...]:
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


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.name
        elif not node.level:
            yield f"{node.module}.{alias.name}"


def _typing_only(test: ast.expr) -> bool:
    return any(isinstance(one, ast.Name | ast.Attribute) and _last(one) == "TYPE_CHECKING" for one in ast.walk(test))


def _has_definitions(node: ast.If) -> bool:
    return all(isinstance(one, ast.Import | ast.ImportFrom) for one in node.body)


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(_last(one) == "overload" for one in node.decorator_list)


def _last(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last(function)
        case _:
            return ""


def _is_log(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in _LOG_CALLS
        case ast.Call(func=ast.Attribute(value=owner)):
            return _last(owner) in _LOG_OWNERS
        case _:
            return False


class _Quiet(ast.NodeTransformer):
    """Takes out what has no effect on a run."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:  # noqa: N802  (ast's naming)
        if isinstance(node.value, ast.Constant) or _is_log(node.value):
            return None
        return self.generic_visit(node)

    def visit_Pass(self, _node: ast.Pass) -> None:  # noqa: N802  (ast's naming)
        return None

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:  # noqa: N802  (ast's naming)
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:  # noqa: N802  (ast's naming)
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:  # noqa: N802  (ast's naming)
        special = any(_last(one) in {"ClassVar", "InitVar"} for one in ast.walk(node.annotation) if isinstance(one, ast.expr))
        if not special:
            node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:  # noqa: N802  (ast's naming)
        node.msg = None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:  # noqa: N802  (ast's naming)
        if isinstance(node.exc, ast.Call):
            node.exc = ast.Call(node.exc.func, [], [])
        return node
