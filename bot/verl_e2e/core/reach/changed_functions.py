"""The functions that a change touches: their lines, whether the other program reaches them, where they ran."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_e2e.core.model.execution import MOST_READERS, ChangedFunction, Excuse, ExcusedLines, Side
from verl_e2e.core.reach.normal import bound_names
from verl_e2e.core.reach.program import Node, Program
from verl_e2e.core.reach.statements import CodeLines, Function, first_line
from verl_e2e.core.reach.syntax import own_nodes, walk
from verl_e2e.core.reach.walk import Reach


@dataclass(frozen=True, slots=True)
class Mark:
    """A place that differs."""

    # Where what differs begins.
    line: int
    # The first and the last line of the statement, or of the head of a block, that it is in.
    first: int
    last: int
    # Why it need not be executed.
    excuse: Excuse | None
    # Whether the whole statement is in this version alone.
    whole: bool
    # The statement, None for the head of a block that no node stands for.
    node: ast.AST | None = None
    # The class whose body it is in; None outside of a class body.
    class_name: str | None = None


@dataclass(slots=True)
class Marked:
    """One function of one version, or what belongs to no function (`node` None), with what differs in it."""

    node: Function | ast.Lambda | None
    # Its qualified name as the source has it.
    name: str
    # Why nothing of its body need be executed.
    excuse: Excuse | None = None
    # Whether this version alone has it.
    whole: bool = False
    # Whether a call of it differs wherever its lines do not: its parameters, defaults or decorators, or which names are
    # its own.
    head_differs: bool = False
    # Whether an annotation in its head differs.
    annotation_differs: bool = False
    # The same function in the older version, for one of the newer.
    earlier: "Marked | None" = None
    marks: list[Mark] = field(default_factory=list)


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
            if not isinstance(node, Function | ast.Lambda) or not (symbol := code.name(node)):
                continue
            reported = code.lines(node)
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


@dataclass(frozen=True, slots=True)
class ChangedFunctions:
    """The functions of one file; their paths are left empty."""

    # At the head, and with the side of the merge base what the head does not have any more, each side by line.
    changed: tuple[ChangedFunction, ...] = ()
    # On the merge base: all that is gone or exchanged, so what a run there must execute to enter the same code.
    earlier: tuple[ChangedFunction, ...] = ()
    # By the first line of an entry of the head without a symbol: the functions that read what its statement binds.
    readers: Mapping[int, ReadBy] = field(default_factory=dict)


NO_FUNCTIONS = ChangedFunctions()


@dataclass(frozen=True, slots=True)
class _Version:
    """One version's tree in its normal form, and its code; None for one that Python does not compile."""

    tree: ast.Module
    code: CodeLines | None
    last_line: int

    @classmethod
    def of(cls, tree: ast.Module, code: CodeLines | None) -> "_Version":
        return cls(tree, code, max([1, *(item.end_lineno or 1 for item in tree.body)]))


def changed_functions(
    marked: tuple[Sequence[Marked], Sequence[Marked]],
    trees: tuple[ast.Module, ast.Module],
    codes: tuple[CodeLines | None, CodeLines],
) -> ChangedFunctions:
    """The functions of one file by what differs in the older and in the newer version, trees in their normal form."""
    before, after = marked
    old, new = _Version.of(trees[0], codes[0]), _Version.of(trees[1], codes[1])
    gone = [
        _function(marked, old, Side.MERGE_BASE, [mark for mark in marked.marks if marked.whole or mark.whole])
        for marked in before
    ]
    lost = {
        id(marked) for marked, function in zip(before, gone, strict=True) if function is not None and function.lines
    }
    head = [
        _function(marked, new, Side.HEAD, marked.marks, lost=id(marked.earlier) in lost)
        for marked in after
        if marked.node is not None
    ]
    earlier = [_function(marked, old, Side.MERGE_BASE, marked.marks) for marked in before]
    modules = [marked for marked in after if marked.node is None]
    at_import = [found for marked in modules for found in _at_import(marked, new)]
    readers = {function.first_line: read_by for function, read_by in at_import if read_by is not None}
    changed = _by_line([function for function, _ in at_import] + head)
    return ChangedFunctions((*changed, *_by_line(gone)), _by_line(earlier), readers)


def _at_import(marked: Marked, version: _Version) -> Iterator[tuple[ChangedFunction, ReadBy | None]]:
    """What runs at import: an entry for each statement that functions of the file read, and one for the rest."""
    if version.code is None or not marked.marks:
        return
    readers = Readers(version.tree, version.code)
    found: dict[int, list[Mark]] = {}
    read_by: dict[int, ReadBy] = {}
    rest: list[Mark] = []
    for mark in marked.marks:
        own = readers.of(mark) if mark.excuse is None and mark.first > 1 else None
        if own is None:
            rest.append(mark)
        else:
            found.setdefault(mark.first, []).append(mark)
            read_by.setdefault(mark.first, own)
    for first, marks in found.items():
        function = _function(marked, version, Side.HEAD, marks)
        if function is not None and function.lines:
            yield function.model_copy(update={"first_line": first}), read_by[first]
        else:
            rest.extend(marks)
    function = _function(marked, version, Side.HEAD, rest)
    if function is not None:
        yield function, None


def _by_line(functions: Iterable[ChangedFunction | None]) -> tuple[ChangedFunction, ...]:
    # Several lambdas on one line are one for a record.
    found = dict.fromkeys(function for function in functions if function is not None)
    return tuple(sorted(found, key=lambda function: (function.first_line, function.symbol)))


def _function(
    marked: Marked, version: _Version, side: Side, marks: Sequence[Mark], *, lost: bool = False
) -> ChangedFunction | None:
    """One function with what is marked in it, None where that is nothing; `lost` says that it lost statements."""
    if version.code is None:
        return None
    node = marked.node
    symbol = version.code.name(node) if node is not None else ""
    first = first_line(node) if node is not None else 1
    last = (node.end_lineno or first) if node is not None else version.last_line
    # A function that the compiler drops has no code that could run.
    dropped = node is not None and not symbol
    # Of a function on one line no interpreter reports more than that it was entered.
    inside = [mark for mark in marks if node is None or mark.line != first or mark.excuse is not None]
    reported = frozenset[int]() if dropped else version.code.lines(node)
    # The lines that a run must report, and the others by their excuse.
    lines: set[int] = set()
    excused: dict[Excuse, set[int]] = {}
    for mark in inside:
        places = (mark.line, mark.first, *range(mark.first, mark.last + 1))
        line = next((place for place in places if place in reported), None)
        if mark.excuse is None and line is not None:
            lines.add(line)
        else:
            excused.setdefault(mark.excuse or Excuse.IDLE, set()).add(mark.line)
    whole = Excuse.IDLE if dropped else marked.excuse
    if whole is Excuse.IDLE and lost and not dropped:
        # It did something before.
        whole = None
    call_differs = lost or marked.head_differs or len(inside) < len(marks)
    entered = call_differs or marked.whole
    if not lines and entered and whole:
        excused.setdefault(whole, set()).add(first)
    elif not lines and call_differs:
        excused = {}
    elif not lines and not excused and marked.annotation_differs:
        excused = {Excuse.IDLE: {first}}
    elif not lines and not excused and not entered:
        return None
    return ChangedFunction(
        path="",
        symbol=symbol or marked.name,
        side=side,
        first_line=first,
        last_line=last,
        lines=tuple(sorted(lines)),
        excused=tuple(
            ExcusedLines(excuse=excuse, lines=tuple(sorted(excused[excuse] - lines)))
            for excuse in Excuse
            if excused.get(excuse, set()) - lines
        ),
    )


_LOCALS = ".<locals>."
_LAMBDA = "<lambda>"


@dataclass(frozen=True, slots=True)
class TouchedFunction:
    """A function that the change touches, with the names by which its effects are found."""

    function: ChangedFunction
    # The path of its effects: that of the head, or of the base for a file that is gone.
    path: str
    # The symbol of its effects, empty for what belongs to no function.
    symbol: str
    # Whether it is the merge base's side of a function: what a run there executes in the place of the change.
    earlier: bool = False


@dataclass(frozen=True, slots=True)
class ReachedTree:
    """One tree with all that is reached in it."""

    program: Program
    reach: Reach
    # Whether a symbol counts where only the imports run the file's code; None where all that is reached counts.
    counts: Callable[[Node], bool] | None = None
    # What the imported modules take from others: pairs of a module and a name of it, None for the module itself.
    taken: Callable[[], frozenset[tuple[str, str | None]]] = frozenset

    def reaches(self, module: str | None, symbol: str) -> bool:
        """Whether a function is reached; what the graph does not have is taken for reached."""
        view = self.program.view(module or "")
        if module is None or view is None:
            return True
        # Whatever imports the module may call a lambda that is in no function.
        if not symbol or (symbol.endswith(_LAMBDA) and _LOCALS not in symbol):
            return module in self.reach.imported
        name = next((name for name in graph_names(symbol) if name in view.symbols), None)
        if name is None:
            return True
        node = Node(module, name)
        return (node in self.reach.steps or node in self.reach.live) and (self.counts is None or self.counts(node))

    def reading_lines(self, read_by: ReadBy, module: str | None) -> tuple[int, ...]:
        """Lines of reached functions that read what a statement binds; none where another file may be what reads it."""
        outer, _, own = (module or "").rpartition(".")
        ways = {(module, name) for name in (*read_by.names, None, "*")} | {(outer, own)}
        if module is None or (read_by.names and not ways.isdisjoint(self.taken())):
            return ()
        reached = (reader for reader in read_by.functions if self.reaches(module, reader.symbol))
        return tuple(sorted({line for reader in reached for line in reader.lines})[:MOST_READERS])


def touched_functions(
    found: ChangedFunctions,
    names: tuple[str, str],
    modules: tuple[str | None, str | None],
    trees: tuple[ReachedTree, ReachedTree],
) -> Iterator[TouchedFunction]:
    """The functions of one file with their paths and whether they are reached; all pairs are base and head."""
    effects_path = names[1]
    for functions, earlier in ((found.changed, False), (found.earlier, True)):
        for function in functions:
            at = 1 if function.side is Side.HEAD else 0
            reached = trees[at].reaches(modules[at], function.symbol)
            read_by = found.readers.get(function.first_line) if at and function.at_import else None
            lines = trees[at].reading_lines(read_by, modules[at]) if read_by is not None else ()
            named = function.model_copy(update={"path": names[at], "reached": reached, "readers": lines})
            yield TouchedFunction(named, effects_path, symbol_of_effect(function.symbol), earlier)


def symbol_of_effect(symbol: str) -> str:
    """The symbol that a difference of a function is listed by: the function or method of the module that it is in.

    A lambda that an import makes belongs to its class, or to no symbol.
    """
    parts = symbol.partition(_LOCALS)[0].removesuffix(_LAMBDA).rstrip(".").split(".")
    return ".".join(parts) if len(parts) <= 2 else parts[0]


def graph_names(symbol: str) -> Iterator[str]:
    """The names that the graph may have for a function, the nearest first."""
    outer, _, inner = symbol.partition(_LOCALS)
    own = symbol.rpartition(".")[2]
    # A function that is registered as the implementation of another has a name of its own.
    yield f"{outer if inner else ''}:{own}"
    yield outer
    yield symbol_of_effect(symbol)
