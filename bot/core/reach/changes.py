"""What changed inside a file: two syntax trees compared symbol by symbol, after all that has no effect is taken away.

Without effect: comments, layout, docstrings, annotations, log calls, the texts of raised errors, `pass`, names of
local variables, and imports that only a type checker sees.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bot.core.reach.statements import Statement, flat, function_statements, last_name, quiet, words_of
from bot.core.reach.summary import BODY, parse
from bot.core.reach.syntax import assigned_names


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


def symbols_of(content: bytes) -> tuple[str, ...]:
    """The symbols of a file in the order of its lines, empty for one that is no Python."""
    tree = parse(content)
    if isinstance(tree, str):
        return ()
    lines = _Side.of(tree).lines
    return tuple(sorted((name for name in lines if name), key=lambda name: lines[name]))


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _drop_same(before: ast.Module, old: bytes, after: ast.Module, new: bytes) -> None:
    """Take out of both trees the definitions that read the same letter by letter: most of a file, as a rule."""
    pairs: list[tuple[list[ast.stmt], list[ast.stmt]]] = [(before.body, after.body)]
    old_lines, new_lines = old.splitlines(), new.splitlines()
    while pairs:
        ours, theirs = pairs.pop()
        mine, others = _texts(ours, old_lines), _texts(theirs, new_lines)
        same = mine.keys() & others.keys()
        classes = {
            node.name: node for key, node in others.items() if key not in same and isinstance(node, ast.ClassDef)
        }
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


class _Side:
    """The statements of one version, by symbol."""

    def __init__(self) -> None:
        self.statements: dict[str, list[Statement]] = {}
        self.lines: dict[str, int] = {}
        self.imports: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tree: ast.Module) -> "_Side":
        side = cls()
        imports: set[str] = set()
        side._body(quiet(tree).body, imports)
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
                Statement(one.text.replace(mention, instead), one.node) if mention in one.text else one
                for one in statements
            ]

    def _add(self, symbol: str, line: int, statements: Iterable[Statement]) -> None:
        self.lines.setdefault(symbol, line)
        self.statements.setdefault(symbol, []).extend(statements)

    def _body(self, body: list[ast.stmt], imports: set[str]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_overload(node):
                    pass
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._add(node.name, node.lineno, function_statements(node))
                case ast.ClassDef():
                    self._class(node)
                case ast.Import() | ast.ImportFrom():
                    imports.update(_imported(node))
                case ast.If() | ast.Try():
                    self._branches(node, imports)
                case _:
                    names = assigned_names(node)
                    for name in names or (BODY,):
                        self._add(name, node.lineno if names else 1, flat(node))

    def _branches(self, node: ast.If | ast.Try, imports: set[str]) -> None:
        if isinstance(node, ast.Try):
            for body in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
                self._body(body, imports)
            return
        if not _typing_only(node.test):
            if not _imports_alone(node):
                self._add(BODY, 1, [Statement(ast.dump(node.test), node.test)])
            self._body(node.body, imports)
        self._body(node.orelse, imports)

    def _class(self, node: ast.ClassDef) -> None:
        own = [Statement(ast.dump(one), one) for one in (*node.bases, *node.keywords, *node.decorator_list)]
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                if _is_overload(statement):
                    continue
                self._add(f"{node.name}.{statement.name}", statement.lineno, function_statements(statement))
            else:
                own.extend(flat(statement))
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
            yield SymbolChange(name, "added" if old is None else "removed", line, words_of(new or old or []))
            continue
        if [one.text for one in old] == [one.text for one in new] or _same_but_names(old, new):
            continue
        yield SymbolChange(name, "changed", line, words_of(_differing(old, new)))


def _renames(before: _Side, after: _Side) -> dict[str, str]:
    """Symbols that are gone and whose whole body stands under one other, new name."""
    gone = {name: before.key(name) for name in before.statements.keys() - after.statements.keys()}
    came: dict[tuple[str, ...], list[str]] = {}
    for name in after.statements.keys() - before.statements.keys():
        came.setdefault(after.key(name), []).append(name)
    pairs = {name: came[key] for name, key in gone.items() if key and len(came.get(key, ())) == 1}
    wanted = Counter(names[0] for names in pairs.values())
    return {name: names[0] for name, names in sorted(pairs.items()) if wanted[names[0]] == 1}


def _differing(old: list[Statement], new: list[Statement]) -> list[Statement]:
    had, has = Counter(one.text for one in old), Counter(one.text for one in new)
    gone, came = had - has, has - had
    found = [one for one in old if one.text in gone] + [one for one in new if one.text in came]
    return found or [one for one, other in zip(old, new, strict=False) if one.text != other.text]


def _same_but_names(old: list[Statement], new: list[Statement]) -> bool:
    """Whether the two differ by the names of local variables alone."""
    if len(old) != len(new) or [type(one.node) for one in old] != [type(one.node) for one in new]:
        return False
    return _renamed(old) == _renamed(new)


def _renamed(statements: list[Statement]) -> list[str]:
    stored: dict[str, str] = {}
    for one in statements:
        for node in ast.walk(one.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stored.setdefault(node.id, f"local {len(stored)}")
    pattern = re.compile(r"Name\(id='(\w+)'")
    return [pattern.sub(lambda m: f"Name(id='{stored.get(m[1], m[1])}'", one.text) for one in statements]


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.name
        elif not node.level:
            yield f"{node.module}.{alias.name}"


def _typing_only(test: ast.expr) -> bool:
    return any(
        isinstance(one, ast.Name | ast.Attribute) and last_name(one) == "TYPE_CHECKING" for one in ast.walk(test)
    )


def _imports_alone(node: ast.If) -> bool:
    return all(isinstance(one, ast.Import | ast.ImportFrom) for one in node.body)


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(last_name(one) == "overload" for one in node.decorator_list)
