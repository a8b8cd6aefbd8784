"""The cells that need not run over a head, because they enter nothing that differs from the base.

Two runs of a cell over one commit are equal in every bit. So whatever a change does to a cell begins where the cell
enters a function that differs; until then it does what it does at the base, and enters that function there, too. This
holds as long as the imports, which all cells begin with, do the same on both sides.
"""

import ast
import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verl_e2e.core.compare.rehearsal import IMPORTS, OF_THE_HOST, CellRecord, DifferingFiles, EnteredCode
from verl_e2e.core.model.execution import line_pairs
from verl_e2e.core.reach.program import parse
from verl_e2e.core.reach.statements import Function
from verl_e2e.core.reach.syntax import own_nodes

_NO_CELL: frozenset[str] = frozenset()
# In the paths of what saves and loads.
_WRITES = "checkpoint"


def unaffected_cells(
    base: Mapping[str, CellRecord], differing: DifferingFiles, agrees_with: Mapping[str, str]
) -> frozenset[str]:
    """The cells that do the same at the head, by the records of the base; none where that cannot be told.

    It cannot be told of a file that is not Python or that one side alone has, of one that TorchScript may run, which no
    record of lines sees, and of a change to what runs at import. A cell that the host or a limit ended, or that tells
    nothing of what it entered, runs again. `agrees_with` has the cells that are held against another one.
    """
    imported = base.get(IMPORTS)
    if imported is None or imported.error is not None or not imported.entered.lines:
        return _NO_CELL
    cells = {name: record for name, record in base.items() if name != IMPORTS}
    affected = {
        name
        for name, record in cells.items()
        if record.error and (record.error.type in OF_THE_HOST or not record.entered.lines)
    }
    for path, (old, new) in differing.items():
        before, after = _Outline.of(old), _Outline.of(new)
        if not path.endswith(".py") or before is None or after is None:
            return _NO_CELL
        in_file = {name for name, record in cells.items() if path in record.entered.lines}
        if path not in imported.entered.lines:
            affected |= in_file
            continue
        changed = {name for name in before.functions if not before.is_same(name, after)}
        if before.at_import != after.at_import or _entering(imported.entered, path, changed):
            return _NO_CELL
        for name in changed:
            # Without any that entered it by its name, a process or thread of its own may have.
            affected |= {cell for cell in cells if _entering(cells[cell].entered, path, {name})} or in_file
        if _WRITES in path and changed:
            # Writers of checkpoints are processes of their own in some cells.
            affected |= {
                name for name, record in cells.items() if any(_WRITES in file for file in record.entered.lines)
            }
    affected |= {name for name, other in agrees_with.items() if other in affected}
    # What another cell is held against has to be there, too.
    while more := {other for name, other in agrees_with.items() if other and name in affected} - affected:
        affected |= more
    return frozenset(cells.keys() - affected)


def carried_code(entered: EnteredCode, differing: DifferingFiles) -> EnteredCode:
    """What an unaffected cell enters of the head: the same as of the base, in lines as the head counts them."""
    lines = dict(entered.lines)
    for path, (old, new) in differing.items():
        before, after = (_Outline.of(old), _Outline.of(new)) if path in lines else (None, None)
        if before is not None and after is not None:
            at_head = before.lines_in(after)
            numbers = (line for first, last in lines[path] for line in range(first, last + 1))
            lines[path] = line_pairs(at_head[line] for line in numbers if line in at_head)
    return EnteredCode(lines=lines, functions=entered.functions)


def _entering(entered: EnteredCode, path: str, symbols: Iterable[str]) -> bool:
    names = tuple(f"{path}:{symbol}" for symbol in symbols)
    inside = tuple(f"{name}.<locals>." for name in names)
    return any(function in names or function.startswith(inside) for function in entered.functions)


@dataclass(frozen=True, slots=True)
class _Outline:
    """A module in two parts."""

    # What runs when it is imported, without the bodies of its functions.
    at_import: list[str] = field(default_factory=list)
    # Its functions by qualified name, without their own texts; several where one name has several.
    functions: dict[str, list[Function]] = field(default_factory=dict)

    @classmethod
    def of(cls, content: bytes | None) -> "_Outline | None":
        """That of a file; None where it cannot be told what of it runs."""
        tree = "" if content is None or b"jit" in content else parse(content)
        if isinstance(tree, str):
            return None
        found = cls()
        found._add(tree.body, "")
        return found

    def is_same(self, name: str, other: "_Outline") -> bool:
        """Whether the functions of a name do the same in another version."""
        ours, theirs = (list(map(ast.dump, side.functions.get(name, ()))) for side in (self, other))
        return ours == theirs

    def lines_in(self, other: "_Outline") -> dict[int, int]:
        """The line in another version of each line of the functions that are the same there."""
        found: dict[int, int] = {}
        for name in (name for name in self.functions if self.is_same(name, other)):
            for pair in zip(self.functions[name], other.functions[name], strict=True):
                nodes = zip(*map(ast.walk, pair), strict=True)
                found |= {node.lineno: to.lineno for node, to in nodes if hasattr(node, "lineno")}
        return found

    def _add(self, statements: Iterable[ast.stmt], within: str) -> None:
        for statement in statements:
            shown = copy.copy(statement)
            if isinstance(statement, Function) and isinstance(shown, Function):
                whole = copy.copy(statement)
                whole.body = statement.body[ast.get_docstring(statement, clean=False) is not None :]
                self.functions.setdefault(f"{within}{statement.name}", []).append(whole)
                # A generator that was called and never begun is not seen, so that it is one counts here.
                inside = (node for item in statement.body for node in own_nodes(item))
                shown.body = [ast.Pass()] * any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inside)
            elif isinstance(shown, ast.ClassDef):
                shown.body = []
            self.at_import.append(f"{within} {ast.dump(shown)}")
            if isinstance(statement, ast.ClassDef):
                self._add(statement.body, f"{within}{statement.name}.")
