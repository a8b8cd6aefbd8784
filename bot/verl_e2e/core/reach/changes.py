"""What changed inside a file: two syntax trees compared whole, then symbol by symbol where they differ.

Two versions are the same when their normal forms (`normal`) are equal. Otherwise every difference is listed: by the
symbol whose code differs when it is called, and as a difference of what importing the file executes. That is the whole
tree but for the bodies of functions; any difference in it counts, and no rule says that one has no effect.
"""

import ast
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from verl_e2e.core.reach.changed_functions import NO_FUNCTIONS, ChangedFunctions, changed_functions
from verl_e2e.core.reach.normal import (
    Common,
    Frozen,
    TreeNumbers,
    all_bound_names,
    freeze,
    is_plainly_decorated,
    normalized,
)
from verl_e2e.core.reach.program import BODY, encoding_of, parse_to_read
from verl_e2e.core.reach.settled import NOTHING_SETTLED, Settled, settled_in
from verl_e2e.core.reach.statements import CodeLines, Statement, catching, flat, function_statements, words_of
from verl_e2e.core.reach.syntax import assigned_names

IMPORT_TIME = "import time"


@dataclass(frozen=True, slots=True)
class SymbolChange:
    """One symbol that differs."""

    # The symbol's name, empty for the module's own statements.
    symbol: str
    # `added`, `removed`, `changed`, `renamed`, `imports` (names that the head newly imports), or `import time`.
    kind: str
    # The symbol's line at the head, or at the base when it is gone.
    line: int
    # The identifiers of each statement that differs, on either side; for `imports` the dotted names.
    statements: tuple[frozenset[str], ...]

    @property
    def words(self) -> frozenset[str]:
        """All identifiers of the statements that differ."""
        return frozenset().union(*self.statements)


@dataclass(frozen=True, slots=True)
class FileDifference:
    """All that differs in effect between two versions of a file."""

    # The symbols that differ, in order of line.
    changes: tuple[SymbolChange, ...]
    # Why the two sides could not be compared, empty when they were.
    problem: str = ""
    # What differs of the code that importing the file executes.
    import_time: tuple[SymbolChange, ...] = ()
    # The functions that differ, with their lines.
    functions: ChangedFunctions = NO_FUNCTIONS


class _Executed(NamedTuple):
    """A statement that an import executes; of a class its head."""

    symbol: str
    line: int
    # Equal for equal code, bodies of functions left out.
    content: Frozen


def compare(old: bytes | None, new: bytes | None) -> FileDifference:
    """Compare two versions of a Python file; None stands for a version that does not exist."""
    before, after = parse_to_read(old or b""), parse_to_read(new or b"")
    for tree in (before, after):
        if isinstance(tree, str):
            return FileDifference((), tree)
    assert isinstance(before, ast.Module)
    assert isinstance(after, ast.Module)
    try:
        code = _compiled(after)
        if isinstance(code, str):
            return FileDifference((), code)
        return _compare(before, after, old, new, (_compiled_base(before), code))
    except (RecursionError, MemoryError) as error:
        return FileDifference((), f"it nests too deeply to be compared ({type(error).__name__})")


def _compiled(tree: ast.Module) -> CodeLines | str:
    """The code of a tree, or why Python does not compile what it can parse, as a `return` outside a function."""
    try:
        return CodeLines(compile(tree, "head", "exec", dont_inherit=True, optimize=0))
    except (SyntaxError, ValueError) as error:
        return f"it is not Python ({error})"


def _compiled_base(tree: ast.Module) -> CodeLines | None:
    """The code of the older tree, None where Python does not compile it: then none of it could run."""
    try:
        code = _compiled(tree)
    except (RecursionError, MemoryError):
        return None
    return code if isinstance(code, CodeLines) else None


def _compare(
    before: ast.Module,
    after: ast.Module,
    old: bytes | None,
    new: bytes | None,
    codes: tuple[CodeLines | None, CodeLines],
) -> FileDifference:
    one_encoding = encoding_of(old) == encoding_of(new)
    settled = settled_in(before, old or b"", after, new or b"") if one_encoding else NOTHING_SETTLED
    common = Common.of(before, after, settled=settled)
    before, after = normalized(before, common, settled), normalized(after, common, settled)
    numbers = _Numbers(settled, common.plain)
    if old is not None and new is not None and numbers.whole.of(before) == numbers.whole.of(after):
        return FileDifference(())
    outside = settled.outside(before), settled.outside(after)
    shared = catching(settled.nodes)
    caught = [*shared, *catching(outside[0])], [*shared, *catching(outside[1])]
    functions = changed_functions((before, after), codes, numbers.whole, caught)
    sides = _Side(before, numbers), _Side(after, numbers)
    found = list(_symbol_changes(*sides))
    newly = sides[1].imports - sides[0].imports
    if newly:
        found.append(SymbolChange(BODY, "imports", 1, (frozenset(newly),)))
    if old is None or new is None:
        whole = (SymbolChange(BODY, IMPORT_TIME, 1, ()),)
        return FileDifference(_ordered(found), "", whole, functions=functions)
    at_import = _import_time_changes(numbers.statements(before.body), numbers.statements(after.body))
    return FileDifference(_ordered(found), "", _ordered(at_import), functions)


class _Numbers:
    """What both versions share: what is settled, and numbers for their trees, whole and without bodies of functions."""

    def __init__(self, settled: Settled = NOTHING_SETTLED, plain: frozenset[str] = frozenset()) -> None:
        self.settled = settled
        self._plain = plain
        self.whole = TreeNumbers(settled.tokens)
        # Besides the tokens what stands for each function that was met.
        self._outlines: dict[int, Frozen] = dict(settled.tokens)
        self._outlined = TreeNumbers(self._outlines)

    def statements(self, body: list[ast.stmt], outer: str = "") -> Iterator[_Executed]:
        """The statements that an import executes, those of classes one by one."""
        for node in body:
            name = getattr(node, "name", "") or next(iter(assigned_names(node)), "")
            symbol, line = f"{outer}{name}", getattr(node, "lineno", 1)
            if isinstance(node, ast.ClassDef) and id(node) not in self.settled.tokens:
                heads = (node.bases, node.keywords, node.decorator_list, _type_parameters(node))
                yield _Executed(symbol, line, tuple(self._executed(list(part)) for part in heads))
                yield from self.statements(node.body, f"{symbol}.")
            else:
                yield _Executed(symbol, line, (type(node).__name__, self._executed(node)))

    def _executed(self, part: ast.AST | list[ast.AST]) -> int:
        """The number of code without the bodies of functions; one whose decorator may run it counts whole."""
        for root in part if isinstance(part, list) else [part]:
            for node in self.settled.outside(root):
                if isinstance(node, _Function) and id(node) not in self._outlines:
                    body = () if is_plainly_decorated(node, self._plain) else (self.whole.of(node),)
                    arguments = node.args
                    given = [arguments.defaults, list(filter(None, arguments.kw_defaults))]
                    every = [arguments.posonlyargs, arguments.args, arguments.kwonlyargs]
                    notes = [item.annotation for names in every for item in names]
                    notes += [item.annotation for item in (arguments.vararg, arguments.kwarg) if item is not None]
                    kinds = _type_parameters(node)
                    parts = (node.decorator_list, *given, [*filter(None, notes)], node.returns, kinds)
                    self._outlines[id(node)] = ("def", node.name, *body, *map(self.whole.of, parts))
        return self._outlined.of(part)


def _import_time_changes(old: Iterable[_Executed], new: Iterable[_Executed]) -> Iterator[SymbolChange]:
    """The statements that only one import executes; where both execute the same in another order, the module's."""
    ours, theirs = list(old), list(new)
    had, has = (Counter((item.symbol, item.content) for item in side) for side in (ours, theirs))
    sides = ((theirs, has - had), (ours, had - has))
    alone = [item for side, only in sides for item in side if (item.symbol, item.content) in only]
    if not alone and [(o.symbol, o.content) for o in ours] != [(item.symbol, item.content) for item in theirs]:
        yield SymbolChange(BODY, IMPORT_TIME, 1, ())
    yield from (SymbolChange(item.symbol, IMPORT_TIME, item.line, ()) for item in alone)


def _ordered(found: Iterable[SymbolChange]) -> tuple[SymbolChange, ...]:
    return tuple(
        sorted(
            dict.fromkeys(found),
            key=lambda symbol_change: (symbol_change.line, symbol_change.symbol, symbol_change.kind),
        )
    )


def symbols_of(content: bytes) -> tuple[str, ...]:
    """The symbols of a file in the order of its lines, empty for one that is not Python."""
    tree = parse_to_read(content)
    if isinstance(tree, str):
        return ()
    lines = _Side(tree, _Numbers()).lines
    return tuple(sorted((name for name in lines if name), key=lambda name: lines[name]))


class _Side:
    """The code of one version by symbol; definitions that have a token are the same on the other side and left out."""

    def __init__(self, tree: ast.Module, numbers: _Numbers) -> None:
        self._tree = tree
        self._numbers = numbers
        self._nodes: dict[str, list[ast.AST]] = {}
        self._keys: dict[str, tuple[Frozen, ...]] = {}
        self.lines: dict[str, int] = {}
        imports: set[str] = set()
        self._body(tree.body, imports)
        self.imports = frozenset(imports)

    def binds_once(self, symbol: str) -> bool:
        """Whether a name of the module means one symbol wherever the file has it."""
        return "." not in symbol and self._bound[symbol] == 1 and not self._bound["*"]

    @cached_property
    def _bound(self) -> Counter[str]:
        settled = self._numbers.settled
        return Counter(all_bound_names([*settled.nodes, *settled.outside(self._tree)]))

    @property
    def symbols(self) -> set[str]:
        """The symbols that this version has."""
        return set(self.lines)

    def key(self, symbol: str) -> tuple[Frozen, ...]:
        """The symbol's whole code, equal for equal code."""
        if symbol not in self._keys:
            key = self._numbers.whole.of
            nodes = self._nodes[symbol]
            self._keys[symbol] = tuple(
                _deferred(node, key) if isinstance(node, _Function) else key(node) for node in nodes
            )
        return self._keys[symbol]

    def frozen(self, symbol: str) -> Frozen:
        """The symbol's whole code with all its names, equal for equal code."""
        key = partial(freeze, tokens=self._numbers.settled.tokens)
        nodes = self._nodes[symbol]
        return tuple(_deferred(node, freeze) if isinstance(node, _Function) else key(node) for node in nodes)

    def statements(self, symbol: str) -> list[Statement]:
        """The symbol's code statement by statement."""
        return [statement for node in self._nodes[symbol] for statement in _statements(node)]

    def _add(self, symbol: str, line: int, *nodes: ast.AST) -> None:
        self.lines.setdefault(symbol, line)
        self._nodes.setdefault(symbol, []).extend(nodes)

    def _body(self, body: list[ast.stmt], imports: set[str]) -> None:
        for node in body:
            if id(node) in self._numbers.settled.tokens:
                continue
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._add(node.name, node.lineno, node)
                case ast.ClassDef():
                    self._class(node)
                case ast.Import() | ast.ImportFrom():
                    imports.update(_imported(node))
                case ast.If() | ast.Try():
                    self._branches(node, imports)
                case _:
                    names = assigned_names(node)
                    for name in names or (BODY,):
                        self._add(name, node.lineno if names else 1, node)

    def _branches(self, node: ast.If | ast.Try, imports: set[str]) -> None:
        if isinstance(node, ast.Try):
            for body in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
                self._body(body, imports)
            return
        if not all(isinstance(item, ast.Import | ast.ImportFrom) for item in node.body):
            self._add(BODY, 1, node.test)
        self._body(node.body, imports)
        self._body(node.orelse, imports)

    def _class(self, node: ast.ClassDef) -> None:
        own: list[ast.AST] = [*node.bases, *node.keywords, *node.decorator_list]
        for statement in node.body:
            if not isinstance(statement, _Function):
                own.append(statement)
            elif id(statement) not in self._numbers.settled.tokens:
                self._add(f"{node.name}.{statement.name}", statement.lineno, statement)
        self._add(node.name, node.lineno, *own)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _deferred(node: _Function, key: Callable[[object], Frozen]) -> Frozen:
    """What of a function runs when it is called, by the keys of its parts; annotations are not part of it."""
    arguments = node.args
    names = (
        tuple(parameter.arg for parameter in arguments.posonlyargs),
        tuple(item.arg for item in arguments.args),
        tuple(parameter.arg for parameter in arguments.kwonlyargs),
        *(item.arg if item else None for item in (arguments.vararg, arguments.kwarg)),
    )
    parts = (node.decorator_list, arguments.defaults, arguments.kw_defaults, node.body, _type_parameters(node))
    return (type(node).__name__, names, *map(key, parts))


def _type_parameters(node: _Function | ast.ClassDef) -> list[ast.AST]:
    """The names in brackets behind its own, as Python 3.12 has them: they hide others of the same name."""
    return getattr(node, "type_params", [])


def _statements(node: ast.AST) -> Iterable[Statement]:
    if isinstance(node, _Function):
        return function_statements(node)
    return flat(node) if isinstance(node, ast.stmt) else [Statement(freeze(node), node)]


def _symbol_changes(before: _Side, after: _Side) -> Iterator[SymbolChange]:
    renamed = _renames(before, after)
    # Elsewhere in the file only these surely mean the same symbol under both names.
    followed = {old: new for old, new in renamed.items() if before.binds_once(old) and after.binds_once(new)}
    for old_name, new_name in renamed.items():
        if old_name not in followed or not new_name.startswith("_"):
            yield SymbolChange(old_name, "renamed", after.lines[new_name], (frozenset({old_name, new_name}),))
    moved = {*renamed, *renamed.values()}
    same = _same_but_for_renames(before, after, followed)
    for name in (before.symbols | after.symbols) - moved:
        line = after.lines.get(name) or before.lines[name]
        if name not in before.symbols or name not in after.symbols:
            side, kind = (before, "removed") if name in before.symbols else (after, "added")
            yield SymbolChange(name, kind, line, words_of(side.statements(name)))
        elif name not in same:
            differing = _differing(before.statements(name), after.statements(name))
            yield SymbolChange(name, "changed", line, words_of(differing))


def _same_but_for_renames(before: _Side, after: _Side, renamed: Mapping[str, str]) -> set[str]:
    """The symbols of both versions whose code is the same where the renamed names are."""
    both = before.symbols & after.symbols
    same = {name for name in both if before.key(name) == after.key(name)}
    if renamed:
        same |= {name for name in both - same if _mentioning(before.frozen(name), renamed) == after.frozen(name)}
    return same


def _mentioning(frozen: object, renamed: Mapping[str, str]) -> object:
    """Code with each renamed name under its new one; an attribute or a text of the same letters is something else."""
    match frozen:
        case ("Name", str(name), *rest):
            return ("Name", renamed.get(name, name), *rest)
        case tuple():
            return tuple(_mentioning(part, renamed) for part in frozen)
        case _:
            return frozen


def _renames(before: _Side, after: _Side) -> dict[str, str]:
    """Symbols that are gone and whose whole code is now under one other, new name."""
    gone = {name: before.key(name) for name in before.symbols - after.symbols}
    came: dict[tuple[Frozen, ...], list[str]] = {}
    for name in after.symbols - before.symbols:
        came.setdefault(after.key(name), []).append(name)
    pairs = {name: came[key] for name, key in gone.items() if key and len(came.get(key, ())) == 1}
    wanted = Counter(names[0] for names in pairs.values())
    return {name: names[0] for name, names in sorted(pairs.items()) if wanted[names[0]] == 1}


def _differing(old: list[Statement], new: list[Statement]) -> list[Statement]:
    """The statements that only one side has; else those in another block; else those in another place."""
    only = _only_in_one(old, new, lambda statement: statement.key) or _only_in_one(
        old, new, lambda statement: (statement.key, statement.path)
    )
    return only or [one for one, other in zip(old, new, strict=False) if one.key != other.key]


def _only_in_one(old: list[Statement], new: list[Statement], key: Callable[[Statement], Hashable]) -> list[Statement]:
    had, has = Counter(map(key, old)), Counter(map(key, new))
    gone, came = had - has, has - had
    return [statement for statement in old if key(statement) in gone] + [
        statement for statement in new if key(statement) in came
    ]


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.name
        elif not node.level:
            yield f"{node.module}.{alias.name}"
