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
from verl_e2e.core.reach.carried import carried_lines
from verl_e2e.core.reach.program import parse
from verl_e2e.core.reach.statements import Function

_NO_CELL: frozenset[str] = frozenset()


def unaffected_cells(
    base: Mapping[str, CellRecord], differing: DifferingFiles, agrees_with: Mapping[str, str]
) -> frozenset[str]:
    """The cells that do the same at the head, by the records of the base; none where that cannot be told.

    It cannot be told of a file that is not Python or that one side alone has, and of a change to what runs at import.
    A cell that the host or a limit ended tells nothing either. `agrees_with` has the cells that are held against
    another one.
    """
    imported = base.get(IMPORTS)
    if imported is None or imported.error is not None:
        return _NO_CELL
    cells = {name: record for name, record in base.items() if name != IMPORTS}
    affected = {name for name, record in cells.items() if record.error and record.error.type in OF_THE_HOST}
    for path, (old, new) in differing.items():
        if not path.endswith(".py") or old is None or new is None:
            return _NO_CELL
        if path not in imported.entered.lines:
            affected |= {name for name, record in cells.items() if path in record.entered.lines}
            continue
        before, after = parse(old), parse(new)
        if isinstance(before, str) or isinstance(after, str):
            return _NO_CELL
        was, is_now = _Outline.of(before), _Outline.of(after)
        changed = {name for name in was.bodies if was.bodies[name] != is_now.bodies.get(name)}
        if was.at_import != is_now.at_import or _entering(imported.entered, path, changed):
            return _NO_CELL
        for name in changed:
            entering = {cell for cell, record in cells.items() if _entering(record.entered, path, {name})}
            if not entering and b"jit" in old + new:
                # TorchScript runs functions that no record of lines sees.
                return _NO_CELL
            # A process or thread of its own, as a writer of checkpoints is, may have entered it unseen.
            affected |= entering or {cell for cell, record in cells.items() if path in record.entered.lines}
    affected |= {name for name, other in agrees_with.items() if other in affected}
    # What another cell is held against has to be there, too.
    while more := {other for name, other in agrees_with.items() if other and name in affected} - affected:
        affected |= more
    return frozenset(cells.keys() - affected)


def carried_code(entered: EnteredCode, differing: DifferingFiles) -> EnteredCode:
    """What an unaffected cell enters of the head: the same as of the base, in lines as the head counts them."""
    lines = dict(entered.lines)
    for path, (old, new) in differing.items():
        if path in lines:
            at_head = {was: line for line, was in carried_lines(old, old, new).head.items()}
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
    # The bodies of functions by qualified name, without their own texts; several where one name has several.
    bodies: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: ast.Module) -> "_Outline":
        found = cls()
        found._add(tree.body, "")
        return found

    def _add(self, statements: Iterable[ast.stmt], within: str) -> None:
        for statement in statements:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    name, body = f"{within}{statement.name}", statement.body
                    text = ast.get_docstring(statement, clean=False) is not None
                    self.bodies.setdefault(name, []).append(ast.dump(ast.Module(body[text:], [])))
                    self.at_import.append(f"{within} {ast.dump(_without_body(statement))}")
                case ast.ClassDef():
                    self.at_import.append(f"{within} {ast.dump(_without_body(statement))}")
                    self._add(statement.body, f"{within}{statement.name}.")
                case _:
                    self.at_import.append(f"{within} {ast.dump(statement)}")


def _without_body(node: Function | ast.ClassDef) -> ast.stmt:
    alone = copy.copy(node)
    alone.body = []
    return alone
