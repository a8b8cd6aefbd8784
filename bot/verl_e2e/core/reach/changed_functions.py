"""The functions that a change touches: their lines, whether the other program reaches them, where they ran."""

import ast
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from verl_e2e.core.model.execution import MOST_READERS, ChangedFunction, Excuse, ExcusedLines, Side
from verl_e2e.core.reach.normal import TreeNumbers
from verl_e2e.core.reach.program import Node, Program
from verl_e2e.core.reach.statements import CodeLines, first_line
from verl_e2e.core.reach.syntax import walk
from verl_e2e.core.reach.tree_differences import Mark, Marked, differences
from verl_e2e.core.reach.users import ReadBy, Readers
from verl_e2e.core.reach.walk import Reach


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
    trees: tuple[ast.Module, ast.Module],
    codes: tuple[CodeLines | None, CodeLines],
    numbers: TreeNumbers,
    catching: tuple[list[ast.AST], list[ast.AST]],
) -> ChangedFunctions:
    """Compare two trees in their normal form, older and newer, by the numbers of their parts.

    `catching` are the statements of each that may catch an error.
    """
    old, new = _Version.of(trees[0], codes[0]), _Version.of(trees[1], codes[1])
    before, after = differences(old.tree, new.tree, numbers, catching)
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
    lines, excused = _resolved(inside, frozenset() if dropped else version.code.lines(node))
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


def _resolved(marks: Iterable[Mark], reported: frozenset[int]) -> tuple[set[int], dict[Excuse, set[int]]]:
    """The lines that a run must report, and the others by their excuse."""
    lines: set[int] = set()
    excused: dict[Excuse, set[int]] = {}
    for mark in marks:
        places = (mark.line, mark.first, *range(mark.first, mark.last + 1))
        line = next((place for place in places if place in reported), None)
        if mark.excuse is None and line is not None:
            lines.add(line)
        else:
            excused.setdefault(mark.excuse or Excuse.IDLE, set()).add(mark.line)
    return lines, excused


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
        if not symbol or _made_at_import(symbol):
            return module in self.reach.imported
        name = next((name for name in graph_names(symbol) if name in view.symbols), None)
        if name is None:
            return True
        node = Node(module, name)
        return (node in self.reach.steps or node in self.reach.live) and (self.counts is None or self.counts(node))

    def reading_lines(self, read_by: ReadBy, module: str | None) -> tuple[int, ...]:
        """Lines of reached functions that read what a statement binds; none where another file may be what reads it."""
        if module is None or self._is_taken(read_by.names, module):
            return ()
        reached = (reader for reader in read_by.functions if self.reaches(module, reader.symbol))
        return tuple(sorted({line for reader in reached for line in reader.lines})[:MOST_READERS])

    def _is_taken(self, names: frozenset[str], module: str) -> bool:
        """Whether another imported module takes one of the names from the module, or the module itself."""
        outer, _, own = module.rpartition(".")
        ways = {(module, name) for name in (*names, None, "*")} | {(outer, own)}
        return bool(names) and not ways.isdisjoint(self.taken())


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


def _made_at_import(symbol: str) -> bool:
    """Whether it is a lambda in no function: whatever imports the module may call it."""
    return symbol.endswith(_LAMBDA) and _LOCALS not in symbol


def graph_names(symbol: str) -> Iterator[str]:
    """The names that the graph may have for a function, the nearest first."""
    outer, _, inner = symbol.partition(_LOCALS)
    own = symbol.rpartition(".")[2]
    # A function that is registered as the implementation of another has a name of its own.
    yield f"{outer if inner else ''}:{own}"
    yield outer
    yield symbol_of_effect(symbol)


@dataclass(frozen=True)
class CarriedLines:
    """For one file, the measured line of each line that is still as it was."""

    # Of the head's lines, by line.
    head: Mapping[int, int] = field(default_factory=dict)
    # Of the merge base's.
    base: Mapping[int, int] = field(default_factory=dict)
    # The head's text.
    text: str = ""

    def near(self, line: int) -> int | None:
        """The measured line that runs with a line of the head: its own, else that of a statement in the same block.

        A block that is new as a whole runs, as far as anyone knows, with what it stands in. None: nothing is known.
        """
        while line not in self.head:
            block = self._blocks.get(line)
            if block is None:
                return None
            others = sorted(block.lines, key=lambda other: (other > line, abs(other - line)))
            known = next((self.head[other] for other in others if other in self.head), None)
            if known is not None or block.within is None:
                return known
            line = block.within
        return self.head[line]

    @cached_property
    def _blocks(self) -> Mapping[int, "_Block"]:
        try:
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError):
            return {}
        return {line: block for block in _blocks(tree) for line in block.lines}


@dataclass(frozen=True, slots=True)
class _Block:
    """Statements that run one after the other, by their first lines, and the line of what they stand in."""

    lines: tuple[int, ...]
    within: int | None


def carried_lines(measured: bytes | None, base: bytes | None, head: bytes | None) -> CarriedLines:
    """The lines of a file at the merge base and the head that were measured at some other commit; None: no such file.

    What the change itself adds was not measured, even where the other commit has it.
    """
    texts = ["" if content is None else content.decode("utf-8", "replace") for content in (measured, base, head)]
    if texts[0] == texts[2]:
        same = range(1, len(texts[2].splitlines()) + 1)
        return CarriedLines(dict(zip(same, same, strict=True)), _same_lines(texts[0], texts[1]), texts[2])
    of_base = _same_lines(texts[0], texts[1])
    kept = _same_lines(texts[1], texts[2])
    of_head = {line: of_base[earlier] for line, earlier in kept.items() if earlier in of_base}
    return CarriedLines(of_head, of_base, texts[2])


def _same_lines(old: str, new: str) -> dict[int, int]:
    """By the line of the newer text, the line of the older one that it was."""
    before, after = old.splitlines(), new.splitlines()
    least = min(len(before), len(after))
    # Most of a file is as it was: what lies before and after all differences need not be searched.
    first = next((at for at in range(least) if before[at] != after[at]), least)
    last = next((at for at in range(least - first) if before[-1 - at] != after[-1 - at]), least - first)
    ends = len(before) - last, len(after) - last
    matcher = difflib.SequenceMatcher(None, before[first : ends[0]], after[first : ends[1]], autojunk=False)
    found = {at + 1: at + 1 for at in range(first)}
    found |= {ends[1] + at + 1: ends[0] + at + 1 for at in range(last)}
    for block in matcher.get_matching_blocks():
        found |= {first + block.b + at + 1: first + block.a + at + 1 for at in range(block.size)}
    return found


def _blocks(tree: ast.Module) -> Iterator[_Block]:
    """The blocks of functions; a function as a whole stands in nothing."""
    for node in walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            continue
        within = None if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else getattr(node, "lineno", None)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list) and statements and isinstance(statements[0], ast.stmt):
                lines = [item.lineno for item in statements if not _is_text(item)]
                yield _Block(tuple(lines), within)


def _is_text(statement: ast.stmt) -> bool:
    """Whether it is a text alone, which no run enters."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
