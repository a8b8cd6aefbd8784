"""What differs between two versions of a file: both syntax trees are gone through once, side by side.

Two versions are the same when their normal forms (`normal`) are equal. Otherwise a definition is compared with the one
of its name wherever that is, any other statement with the one in its place. What has no counterpart is marked as a
whole, what has an unequal one by its parts that differ. From this one comparison follow the symbols that differ, with
the identifiers of the statements that do (`SymbolChange`), and the lines that a run must execute (`ChangedFunctions`).

What importing the file executes is compared apart: that is the whole tree but for the bodies of functions. Any
difference in it counts, and no rule says that one has no effect.
"""

import ast
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from verl_e2e.core.model.execution import Excuse
from verl_e2e.core.reach.changed_functions import NO_FUNCTIONS, ChangedFunctions, Mark, Marked, changed_functions
from verl_e2e.core.reach.normal import Common, Pair, TreeNumbers, freeze, is_plainly_decorated, normalize
from verl_e2e.core.reach.program import BODY, parse, parse_to_read
from verl_e2e.core.reach.statements import (
    Block,
    CodeLines,
    Function,
    Piece,
    begins,
    blocks_of,
    caught_by_callers,
    first_line,
    is_protocol,
    may_go_on,
    of_function,
    of_statement,
    own_errors_caught,
    pieces,
    test_line,
    words_of,
)
from verl_e2e.core.reach.syntax import assigned_names, own_nodes, walk

IMPORT_TIME = "import time"


@dataclass(frozen=True, slots=True)
class SymbolChange:
    """One symbol that differs."""

    # The symbol's name, empty for the module's own statements.
    symbol: str
    # `added`, `removed`, `changed`, `imports` (names that the head newly imports), or `import time`.
    kind: str
    # The identifiers of each statement that differs, on either side; for `imports` the dotted names.
    statements: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class FileDifference:
    """All that differs in effect between two versions of a file."""

    # The symbols that differ.
    changes: tuple[SymbolChange, ...]
    # Why the two sides could not be compared, empty when they were.
    problem: str = ""
    # What differs of the code that importing the file executes.
    import_time: tuple[SymbolChange, ...] = ()
    # The functions that differ, with their lines.
    functions: ChangedFunctions = NO_FUNCTIONS


def all_changed(content: bytes) -> FileDifference:
    """The difference of a file in which all that it holds is changed."""
    found = compare(None, content)
    changes = (tuple(replace(change, kind="changed") for change in side) for side in (found.changes, found.import_time))
    return FileDifference(next(changes), found.problem, next(changes), found.functions)


def compare(old: bytes | None, new: bytes | None) -> FileDifference:
    """Compare two versions of a Python file; None stands for a version that does not exist."""
    # Trees of our own: their normal form takes their place.
    before, after = parse(old or b""), parse(new or b"")
    for tree in (before, after):
        if isinstance(tree, str):
            return FileDifference((), tree)
    assert isinstance(before, ast.Module)
    assert isinstance(after, ast.Module)
    try:
        codes = _compiled(before), _compiled(after)
        if isinstance(codes[1], str):
            return FileDifference((), codes[1])
        # An older version that Python does not compile could not run.
        known = (None if isinstance(codes[0], str) else codes[0], codes[1])
        return _compared(before, after, known, both=old is not None and new is not None)
    except (RecursionError, MemoryError) as error:
        return FileDifference((), f"it nests too deeply to be compared ({type(error).__name__})")


def _compiled(tree: ast.Module) -> CodeLines | str:
    """The code of a tree, or why Python does not compile what it can parse, as a `return` outside a function."""
    try:
        return CodeLines(compile(tree, "head", "exec", dont_inherit=True, optimize=0))
    except (SyntaxError, ValueError) as error:
        return f"it is not Python ({error})"


def _compared(
    before: ast.Module, after: ast.Module, codes: tuple[CodeLines | None, CodeLines], *, both: bool
) -> FileDifference:
    common = Common.of(before, after)
    for tree in (before, after):
        normalize(tree, common)
    numbers = TreeNumbers()
    if both and numbers.of(before) == numbers.of(after):
        return FileDifference(())
    sides = _Side(before), _Side(after)
    # An error of the file's own may be caught by what only one of them has.
    sides[0].caught = sides[1].caught = sides[0].caught | sides[1].caught
    _Comparison(numbers).bodies(before.body, after.body, sides[0].scope, sides[1].scope)
    functions = changed_functions((sides[0].marked, sides[1].marked), (before, after), codes)
    newly = _imports(after) - _imports(before)
    changes = [SymbolChange(BODY, "imports", (newly,))] if newly else []
    # The symbols that differ, in the order of their lines.
    ours, theirs = _lines(before), _lines(after)
    lines = ours | theirs
    for name in sorted(sides[0].pieces.keys() | sides[1].pieces.keys(), key=lambda name: (lines.get(name, 1), name)):
        kind = "added" if name not in ours else "changed" if name in theirs else "removed"
        old, new = (side.pieces.get(name, []) for side in sides)
        had, has = Counter(piece.key for piece in old), Counter(piece.key for piece in new)
        # What one side alone has; all where nothing but the order or the place differs.
        alone = (had - has).keys() | (has - had).keys()
        found = (piece.words for piece in (*old, *new) if piece.key in alone or not alone)
        changes.append(SymbolChange(name, kind, tuple(dict.fromkeys(words for words in found if words))))
    if not both:
        return FileDifference(tuple(changes), "", (SymbolChange(BODY, IMPORT_TIME),), functions)
    # The statements that only one import executes; where both execute the same in another order, the module's.
    counted = _ImportNumbers(numbers, common.plain)
    runs = [list(_executed(tree.body, counted)) for tree in (before, after)]
    had_run, has_run = map(Counter, runs)
    only = {symbol for symbol, _ in (*(has_run - had_run), *(had_run - has_run))}
    if not only and runs[0] != runs[1]:
        only = {BODY}
    at_import = tuple(SymbolChange(symbol, IMPORT_TIME) for symbol in sorted(only))
    # Whatever differs and belongs to nothing counts as executed by the import.
    if not changes and not at_import:
        at_import = (SymbolChange(BODY, IMPORT_TIME),)
    return FileDifference(tuple(changes), "", at_import, functions)


def symbols_of(content: bytes) -> tuple[str, ...]:
    """The symbols of a file in the order of its lines, empty for one that is not Python."""
    tree = parse_to_read(content)
    if isinstance(tree, str):
        return ()
    lines = _lines(tree)
    return tuple(sorted((name for name in lines if name), key=lambda name: lines[name]))


def _lines(tree: ast.Module) -> dict[str, int]:
    """The symbols of a file, each with the line on which it is defined first."""
    lines: dict[str, int] = {}
    for name, line in _symbols(tree.body):
        lines.setdefault(name, line)
    return lines


def _symbols(body: Iterable[ast.stmt]) -> Iterator[tuple[str, int]]:
    """The symbols that statements of a module define, with their lines; the empty one for what has no name."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.ClassDef():
                yield node.name, node.lineno
                yield from (
                    (f"{node.name}.{item.name}", item.lineno) for item in node.body if isinstance(item, Function)
                )
            case ast.If() | ast.Try():
                yield from _symbols(_inside(node))
                if isinstance(node, ast.If):
                    yield BODY, 1
            case ast.Import() | ast.ImportFrom():
                pass
            case _:
                yield from ((name, node.lineno) for name in assigned_names(node) or (BODY,))


def _inside(node: ast.If | ast.Try) -> list[ast.stmt]:
    return [statement for block in blocks_of(node) for statement in block.body]


def _imports(tree: ast.Module) -> frozenset[str]:
    """The full names that a module imports."""
    found: set[str] = set()
    todo = list(tree.body)
    for node in todo:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If | ast.Try):
            todo += _inside(node)
    return frozenset(found)


class _ImportNumbers(TreeNumbers):
    """Numbers for what an import executes: bodies of functions do not count, unless a decorator may run them."""

    def __init__(self, whole: TreeNumbers, plain: frozenset[str]) -> None:
        super().__init__()
        self._whole, self._plain = whole, plain

    def content(self, node: ast.AST) -> Hashable:
        """The numbers of the parts of a node that count."""
        if not isinstance(node, Function):
            return super().content(node)
        if not is_plainly_decorated(node, self._plain):
            return "whole", self._whole.of(node)
        return (type(node), *(self._whole.of(getattr(node, name)) for name in node._fields if name != "body"))


def _executed(body: Iterable[ast.stmt], numbers: TreeNumbers, outer: str = "") -> Iterator[tuple[str, Hashable]]:
    """The statements that an import executes by their symbols, those of classes one by one."""
    for node in body:
        symbol = outer + (getattr(node, "name", "") or next(iter(assigned_names(node)), ""))
        if isinstance(node, ast.ClassDef):
            head = (node.bases, node.keywords, node.decorator_list, getattr(node, "type_params", []))
            yield symbol, tuple(map(numbers.of, head))
            yield from _executed(node.body, numbers, f"{symbol}.")
        else:
            yield symbol, numbers.of(node)


class _Side:
    """All that differs on one side."""

    def __init__(self, tree: ast.Module) -> None:
        module = Marked(None, "")
        self.marked = [module]
        # By symbol the statements that differ.
        self.pieces: dict[str, list[Piece]] = {}
        # The lambdas that were met, by the `id` of their nodes.
        self.lambdas: dict[int, Marked] = {}
        catching = [node for node in walk(tree) if isinstance(node, ast.Try | ast.TryStar | ast.With | ast.AsyncWith)]
        # The file's own errors that some place of the file catches.
        self.caught = own_errors_caught(catching)
        # By the name of a function: the errors that callers of the file catch.
        self.callers = caught_by_callers(catching)
        self.scope = _Scope(self, module)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where a statement of one version is."""

    side: _Side
    owner: Marked
    # What it belongs to; None at the level of the module, where each statement belongs to what it defines.
    symbol: str | None = None
    # Prefix of the qualified names of what is defined here.
    prefix: str = ""
    excuse: Excuse | None = None
    # The class whose body this is; None outside of a class body.
    class_name: str | None = None
    # Whether a function that is defined here is a method with a symbol of its own.
    of_methods: bool = False
    in_protocol: bool = False
    # The errors that are caught around here in this function.
    caught: frozenset[str] = frozenset()
    # The lines of this block below its head; empty where they are not known.
    block_lines: range = range(0)
    # The identifiers of the conditions around here within the symbol.
    guards: frozenset[str] = frozenset()

    def note(self, node: ast.AST, pieces: Iterable[Piece] = ()) -> None:
        """Note what differs of a statement for what it belongs to."""
        for name in (self.symbol,) if self.symbol is not None else _names_of(node):
            own = self.side.pieces.setdefault(name, [])
            own.extend(piece.guarded(self.guards) for piece in pieces)

    def mark(self, line: int, node: ast.AST, excuse: Excuse | None, *, whole: bool, first: int, last: int = 0) -> None:
        """Note that a part of a statement, or of the head of a block, differs."""
        end = last or getattr(node, "end_lineno", None) or first
        excuse = self.excuse or excuse
        self.owner.marks.append(Mark(line, first, max(end, first), excuse, whole, node, self.class_name))

    def excuse_of(self, node: ast.stmt) -> Excuse | None:
        """What excuses a statement here."""
        if isinstance(node, ast.AnnAssign) and self.class_name is not None:
            # A field: decorators and base classes read it.
            return None
        return self._unless_caught(of_statement(node), [node])

    def head_excuse_of(self, block: Block) -> Excuse | None:
        """What excuses the head of a block."""
        return self._unless_caught(block.head_excuse, block.body)

    def _unless_caught(self, excuse: Excuse | None, body: Iterable[ast.AST]) -> Excuse | None:
        error = excuse is Excuse.ERROR_PATH
        return None if error and may_go_on(body, self.caught, self.side.caught) else excuse

    def function(self, node: Function, *, whole: bool) -> "_Scope":
        """The body of a function that is defined here."""
        called = node.name if node.name != "__init__" else (self.class_name or "").rpartition(".")[2]
        inner = replace(self, caught=self.side.callers.get(called, frozenset()))
        own = of_function(node, in_protocol=self.in_protocol)
        excuse = self.excuse or inner._unless_caught(own, node.body)
        symbol = self.symbol
        if symbol is None:
            symbol = node.name
        elif self.of_methods:
            symbol = f"{symbol}.{node.name}"
        return self._inner(node, symbol, excuse, inner.caught, whole=whole)

    def of_lambda(self, node: ast.Lambda, excuse: Excuse | None, *, whole: bool) -> "_Scope":
        """The body of a lambda that is made here."""
        known = self.side.lambdas.get(id(node))
        if known is not None:
            return replace(self, owner=known, prefix=f"{known.name}.<locals>.")
        made = self._inner(node, self.symbol, self.excuse or excuse, frozenset(), whole=whole)
        self.side.lambdas[id(node)] = made.owner
        return made

    def _inner(
        self,
        node: Function | ast.Lambda,
        symbol: str | None,
        excuse: Excuse | None,
        caught: frozenset[str],
        *,
        whole: bool,
    ) -> "_Scope":
        name = f"{self.prefix}{'<lambda>' if isinstance(node, ast.Lambda) else node.name}"
        owner = Marked(node, name, excuse, whole)
        self.side.marked.append(owner)
        guards = self.guards if symbol == self.symbol else frozenset[str]()
        return _Scope(self.side, owner, symbol, f"{name}.<locals>.", excuse, caught=caught, guards=guards)

    def of_class(self, node: ast.ClassDef) -> "_Scope":
        """The body of a class that is defined here."""
        name = f"{self.prefix}{node.name}"
        return replace(
            self,
            symbol=node.name if self.symbol is None else self.symbol,
            prefix=f"{name}.",
            class_name=name,
            of_methods=self.symbol is None,
            in_protocol=is_protocol(node),
            block_lines=range(0),
        )

    def within(self, node: ast.AST) -> "_Scope":
        """The blocks of a compound statement."""
        if self.symbol is None:
            return self if isinstance(node, ast.If | ast.Try) else replace(self, symbol=BODY)
        match node:
            case ast.If(test=asked) | ast.While(test=asked) | ast.Match(subject=asked):
                return replace(self, of_methods=False, guards=self.guards | words_of(asked))
            case _:
                return replace(self, of_methods=False)

    def inside(self, block: Block) -> "_Scope":
        """The body of a block."""
        excuse = self.excuse or self._unless_caught(block.excuse, block.body)
        asked = block.head if isinstance(block.node, ast.match_case) else ()
        guards = self.guards.union(*map(words_of, asked))
        caught = self.caught | block.caught
        return replace(self, excuse=excuse, caught=caught, block_lines=block.body_lines, guards=guards)


def _names_of(node: ast.AST) -> tuple[str, ...]:
    """The symbols that a statement of the module belongs to; none for one that is about imports."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Try():
            return ()
        case ast.If(body=body) if all(isinstance(item, ast.Import | ast.ImportFrom) for item in body):
            return ()
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.stmt():
            return assigned_names(node) or (BODY,)
        case _:
            return (BODY,)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _lambdas_of(part: object) -> Iterator[ast.Lambda]:
    """The lambdas in a part of a statement, without those in functions that it defines."""
    if isinstance(part, ast.AST):
        for node in walk(part):
            if isinstance(node, ast.Lambda):
                yield node


def _mark_place(node: ast.AST, scope: _Scope) -> None:
    """Demand what a statement begins with, unless it is an error that no run executes."""
    blocks = blocks_of(node)
    if isinstance(node, ast.Raise):
        return
    if isinstance(node, ast.Try | ast.TryStar) and node.body:
        _mark_place(node.body[0], scope)
    elif blocks:
        scope.mark(blocks[0].line, ast.Pass(), None, whole=False, first=blocks[0].line, last=blocks[0].last)
    else:
        assert isinstance(node, ast.stmt)
        simple = not isinstance(node, Definition)
        line = begins(node) if simple else first_line(node)
        last = node.end_lineno if simple and node.end_lineno else line
        scope.mark(line, ast.Pass(), None, whole=False, first=line, last=last)


def _mark_whole(node: ast.AST | None, scope: _Scope) -> None:
    """All of a statement that the other version does not have."""
    assert isinstance(node, ast.stmt)
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if scope.owner.node is not None:
                line = first_line(node)
                scope.mark(line, node, None, whole=True, first=line, last=line)
            _mark_lambdas([node.args, *node.decorator_list], scope, None)
            inner = scope.function(node, whole=True)
            inner.note(node, _head_pieces(node))
            for item in node.body:
                _mark_whole(item, inner)
        case ast.ClassDef():
            line = first_line(node)
            scope.mark(line, node, None, whole=True, first=line, last=node.lineno)
            scope.note(node, map(Piece.of, _class_head(node).head))
            for item in node.body:
                _mark_whole(item, scope.of_class(node))
        case _ if blocks := blocks_of(node):
            for block in blocks:
                _mark_block(block, node, scope)
        case _:
            line, excuse = begins(node), scope.excuse_of(node)
            scope.mark(line, node, excuse, whole=True, first=line)
            scope.note(node, pieces(node))
            _mark_lambdas([node], scope, excuse)


def _mark_block(block: Block, of: ast.AST, scope: _Scope) -> None:
    """All of a block that the other version does not have."""
    scope = scope.within(of)
    if block.head or block.node is not None:
        excuse = scope.head_excuse_of(block)
        scope.mark(block.line, block.node or ast.Pass(), excuse, whole=True, first=block.line, last=block.last)
        scope.note(of, _pieces_of_head(block, of))
        _mark_lambdas(block.head, scope, excuse)
    for item in block.body:
        _mark_whole(item, scope.inside(block))


def _pieces_of_head(block: Block, of: ast.AST) -> list[Piece]:
    """The parts of a head: what is gone through together with what it is bound to, any others each by itself."""
    if isinstance(of, ast.For | ast.AsyncFor) and block.head:
        return [Piece.of(ast.Tuple([of.target, of.iter], ast.Load()))]
    return list(map(Piece.of, block.head))


def _every_piece(node: ast.AST) -> Iterator[Piece]:
    """The pieces of a statement, and of all that is below it."""
    blocks = blocks_of(node)
    for block in blocks:
        yield from _pieces_of_head(block, node)
    if blocks or isinstance(node, Definition):
        body = node.body if isinstance(node, Definition) else [item for block in blocks for item in block.body]
        yield from chain.from_iterable(map(_every_piece, body))
    else:
        yield from pieces(node)


def _mark_lambdas(parts: Iterable[ast.AST], scope: _Scope, excuse: Excuse | None) -> None:
    """The lambdas of a statement that the other version does not have."""
    for part in parts:
        for node in _lambdas_of(part):
            inner = scope.of_lambda(node, excuse, whole=True)
            inner.mark(node.body.lineno, node, inner.excuse, whole=True, first=node.lineno)


def _head_pieces(node: Function) -> Iterator[Piece]:
    """The decorators and the parameters of a function."""
    yield from map(Piece.of, node.decorator_list)
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults += [*arguments.defaults, *arguments.kw_defaults]
    for parameter, default in zip((*plain, *arguments.kwonlyargs), defaults, strict=True):
        given = words_of(default) if default is not None else frozenset[str]()
        yield Piece((parameter.arg, freeze(default)), given | {parameter.arg})
    rests = (rest for rest in (arguments.vararg, arguments.kwarg) if rest is not None)
    yield from (Piece(("rest", rest.arg), frozenset({rest.arg})) for rest in rests)


# A line where something differs, and the lambda in whose body that is.
_Part = tuple[int, ast.Lambda | None]


class _Comparison:
    def __init__(self, numbers: TreeNumbers) -> None:
        self._numbers = numbers

    def bodies(self, old: list[ast.stmt], new: list[ast.stmt], ours: _Scope, theirs: _Scope) -> None:
        """The statements of two bodies that take each other's place."""
        numbers = self._numbers
        if numbers.of(old) == numbers.of(new):
            return
        definitions = [[item for item in body if isinstance(item, Definition)] for body in (old, new)]
        others = [[item for item in body if not isinstance(item, Definition)] for body in (old, new)]
        # A property and its setter have one name and other decorators.
        heads = (lambda node: (_title(node), numbers.of(getattr(node, "decorator_list", None))), _title)
        for before, after in numbers.paired(definitions[0], definitions[1], heads):
            self._pair(before, after, ours, theirs)
        pairs = list(numbers.aligned(others[0], others[1], (self._target, type)))
        for before, after in pairs:
            self._pair(before, after, ours, theirs)
        if theirs.symbol is not None:
            self._note_order(pairs, others[0], others[1], ours, theirs)
        if theirs.owner.node is not None and theirs.excuse is None:
            self._mark_gaps(pairs, old, new, ours, theirs)

    def _note_order(self, pairs: Sequence[Pair], old: Sequence[ast.AST], new: Sequence[ast.AST], *of: _Scope) -> None:
        """Where a statement has another place, those that it passed count as well: either may have moved."""
        number = self._numbers.of
        gone = {number(before) for before, after in pairs if after is None}
        if not any(before is None and number(after) in gone for before, after in pairs):
            return
        places = [{id(node): at for at, node in enumerate(body)} for body in (old, new)]
        for pair in pairs:
            passed = places[0].get(id(pair[0])) != places[1].get(id(pair[1]))
            for node, scope in zip(pair, of, strict=True):
                if node is not None and passed and number(pair[0]) == number(pair[1]):
                    scope.note(node, _every_piece(node))

    def _mark_gaps(
        self, pairs: Iterable[Pair], old: list[ast.stmt], new: list[ast.stmt], ours: _Scope, theirs: _Scope
    ) -> None:
        """Where statements are gone: what is executed next there tells whether they would have been executed."""
        known = {id(before): after for before, after in pairs if before is not None and after is not None}
        later, earlier = _nearest(reversed(old), known), _nearest(old, known)
        for node in old:
            if isinstance(node, Definition) or id(node) in known:
                continue
            # An error that does not come any more makes a difference, too.
            if not isinstance(node, ast.Raise) and (ours.excuse or ours.excuse_of(node)):
                continue
            place = later.get(id(node)) or earlier.get(id(node)) or next(iter(new), None)
            if place is not None:
                _mark_place(place, theirs)
            elif theirs.block_lines:
                first, last = theirs.block_lines[0], theirs.block_lines[-1]
                theirs.mark(first, ast.Pass(), None, whole=False, first=first, last=last)

    def _target(self, node: ast.AST) -> Hashable:
        """What two versions of one statement have in common: what is assigned, called, tested or gone through."""
        for name in ("targets", "target", "test", "items", "subject"):
            if hasattr(node, name):
                return type(node), self._numbers.of(getattr(node, name))
        value = getattr(node, "value", None)
        return type(node), self._numbers.of(value.func) if isinstance(value, ast.Call) else None

    def _pair(self, old: ast.AST | None, new: ast.AST | None, ours: _Scope, theirs: _Scope) -> None:
        if old is not None and new is not None and self._numbers.of(old) == self._numbers.of(new):
            return
        names = ast.Global | ast.Nonlocal
        if theirs.owner.node is not None and (isinstance(old, names) or isinstance(new, names)):
            # The statement does nothing itself, and decides what others of the function mean.
            theirs.owner.head_differs = True
        match old, new:
            case _, None:
                _mark_whole(old, ours)
            case None, _:
                _mark_whole(new, theirs)
            case ((ast.FunctionDef() | ast.AsyncFunctionDef()), (ast.FunctionDef() | ast.AsyncFunctionDef())):
                self._function(old, new, ours, theirs)
            case ast.ClassDef(), ast.ClassDef():
                self._heads(_class_head(old), _class_head(new), (old, new), ours, theirs)
                self.bodies(old.body, new.body, ours.of_class(old), theirs.of_class(new))
            case ast.AST(), ast.AST():
                self._statement(old, new, ours, theirs)

    def _function(self, old: Function, new: Function, ours: _Scope, theirs: _Scope) -> None:
        before, after = ours.function(old, whole=False), theirs.function(new, whole=False)
        of = self._numbers.of
        same = all(of(text) == of(other) for text, other in zip(_called_by(old), _called_by(new), strict=True))
        after.owner.earlier = before.owner
        after.owner.head_differs = not same
        after.owner.annotation_differs = same and any(
            of(text) != of(other) for text, other in ((old.args, new.args), (old.returns, new.returns))
        )
        kinds = [of(getattr(node, "type_params", None)) for node in (old, new)]
        evaluated = theirs.owner.node is not None and after.owner.annotation_differs
        if not same or evaluated or kinds[0] != kinds[1]:
            before.note(old, _head_pieces(old))
            after.note(new, _head_pieces(new))
        heads = [[*node.args.defaults, *node.args.kw_defaults, *node.decorator_list] for node in (old, new)]
        self._mark_parts(heads[0], heads[1], theirs, None, new, first=first_line(new), lambdas_alone=True)
        self.bodies(old.body, new.body, before, after)

    def _mark_parts(
        self,
        old: object,
        new: object,
        scope: _Scope,
        excuse: Excuse | None,
        node: ast.AST,
        *,
        first: int,
        last: int = 0,
        lambdas_alone: bool = False,
    ) -> None:
        """Mark the parts that the other version does not have, each in its function or its lambda."""
        start = first if isinstance(node, Definition) else getattr(node, "lineno", first)
        for line, inner in dict.fromkeys(self._parts(old, new, start)):
            if inner is not None:
                body = scope.of_lambda(inner, excuse, whole=False)
                body.mark(line, inner, body.excuse, whole=False, first=inner.lineno)
            elif not lambdas_alone:
                scope.mark(line, node, excuse, whole=False, first=first, last=last)

    def _statement(self, old: ast.AST, new: ast.AST, ours: _Scope, theirs: _Scope) -> None:
        before, after = blocks_of(old), blocks_of(new)
        if not before and not after:
            assert isinstance(old, ast.stmt)
            assert isinstance(new, ast.stmt)
            ours.note(old, pieces(old))
            theirs.note(new, pieces(new))
            annotation = False
            if isinstance(old, ast.AnnAssign) and isinstance(new, ast.AnnAssign):
                rest = [self._numbers.of([node.target, node.value]) for node in (old, new)]
                annotation = rest[0] == rest[1]
            for text, other, scope in ((old, new, theirs), (new, old, ours)):
                excuse = Excuse.IDLE if annotation and scope.class_name is None else scope.excuse_of(other)
                self._mark_parts(text, other, scope, excuse, other, first=begins(other))
            return
        fixed = [[block for block in blocks if block.node is None] for blocks in (before, after)]
        for text, other in zip(*fixed, strict=True):
            self._block(text, other, (old, new), ours, theirs)
        by_node = {id(block.node): block for block in (*before, *after) if block.node is not None}
        nodes = [[block.node for block in blocks if block.node is not None] for blocks in (before, after)]
        # What tells the handlers of one statement apart.
        caught = (lambda node: (type(node), self._numbers.of(getattr(node, "type", None))), type)
        for one, two in self._numbers.aligned(nodes[0], nodes[1], caught):
            if one is None:
                _mark_block(by_node[id(two)], new, theirs)
            elif two is None:
                _mark_block(by_node[id(one)], old, ours)
            else:
                self._block(by_node[id(one)], by_node[id(two)], (old, new), ours, theirs)

    def _block(self, old: Block, new: Block, of: tuple[ast.AST, ast.AST], ours: _Scope, theirs: _Scope) -> None:
        ours, theirs = ours.within(of[0]), theirs.within(of[1])
        self._heads(old, new, of, ours, theirs)
        self.bodies(old.body, new.body, ours.inside(old), theirs.inside(new))

    def _heads(self, old: Block, new: Block, of: tuple[ast.AST, ast.AST], ours: _Scope, theirs: _Scope) -> None:
        if self._numbers.of(list(old.head)) == self._numbers.of(list(new.head)):
            return
        ours.note(of[0], _pieces_of_head(old, of[0]))
        theirs.note(of[1], _pieces_of_head(new, of[1]))
        for text, other, scope in ((old, new, theirs), (new, old, ours)):
            parts, node = (list(text.head), list(other.head)), other.node or ast.Pass()
            self._mark_parts(*parts, scope, scope.head_excuse_of(other), node, first=other.line, last=other.last)

    def _parts(self, old: object, new: object, line: int, within: ast.Lambda | None = None) -> Iterator[_Part]:
        """The lines where the parts of a statement begin that the other one does not have."""
        of = self._numbers.of
        # The normal form of a message has no line of its own.
        here = test_line(new) if isinstance(new, ast.BoolOp | ast.UnaryOp) else getattr(new, "lineno", line)
        if isinstance(old, list) and isinstance(new, list):
            if len(old) == len(new):
                for text, other in zip(old, new, strict=True):
                    if of(text) != of(other):
                        yield from self._parts(text, other, line, within)
                return
            had = Counter(map(of, old))
            had.subtract(map(of, new))
            only = [part for part in new if had[of(part)] < 0]
            yield from ((getattr(part, "lineno", line), within) for part in only) if only else ((line, within),)
            yield from ((inner.body.lineno, inner) for part in only for inner in _lambdas_of(part))
        elif isinstance(old, ast.AST) and type(old) is type(new) and not isinstance(old, ast.Constant):
            inner = new if isinstance(new, ast.Lambda) else within
            for name in old._fields:
                text, other = getattr(old, name, None), getattr(new, name, None)
                if of(text) != of(other):
                    yield from self._parts(text, other, here, inner)
        else:
            yield here, within
            yield from ((inner.body.lineno, inner) for inner in _lambdas_of(new))


def _nearest(body: Iterable[ast.stmt], known: Mapping[int, ast.AST]) -> dict[int, ast.AST]:
    """For each statement without a counterpart that of the nearest one before it, where there is one."""
    found: dict[int, ast.AST] = {}
    last = None
    for node in body:
        last = known.get(id(node), last)
        if last is not None:
            found[id(node)] = last
    return found


def _class_head(node: ast.ClassDef) -> Block:
    return Block((*node.bases, *node.keywords, *node.decorator_list), [], first_line(node), node)


def _title(node: ast.AST) -> Hashable:
    return isinstance(node, ast.ClassDef), getattr(node, "name", None)


def _called_by(node: Function) -> tuple[object, ...]:
    """What decides how a call of a function begins: all of its head but annotations."""
    arguments = node.args
    plain = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
    rests = [item.arg if item else None for item in (arguments.vararg, arguments.kwarg)]
    by_name = [item.arg for item in arguments.kwonlyargs]
    counts = [len(arguments.posonlyargs)]
    values = (list(arguments.defaults), list(arguments.kw_defaults), list(node.decorator_list))
    inside = (item for statement in node.body for item in own_nodes(statement))
    generator = any(isinstance(item, ast.Yield | ast.YieldFrom) for item in inside)
    return (type(node).__name__, generator, plain, rests, by_name, counts, *values)
