"""The functions that a change of one file touches, with the lines that a run must execute and those that it need not.

At the head they are what came and what differs; on the merge base what is gone from there. A line is demanded only
where the compiler put an instruction on it.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_e2e.core.model.changed_code import ChangedFunction, Excuse, ExcusedLines, Side
from verl_e2e.core.reach.code_lines import CodeLines, first_line
from verl_e2e.core.reach.marks import Mark, Marked
from verl_e2e.core.reach.readers import ReadBy, Readers
from verl_e2e.core.reach.tree_differences import differences
from verl_e2e.core.reach.tree_numbers import TreeNumbers


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
