"""Measured lines of a file, carried to the versions of the file that a change is about."""

import ast
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from verl_e2e.core.reach.syntax import walk


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
                # No run enters a text alone.
                texts = [isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) for item in statements]
                lines = [item.lineno for item, text in zip(statements, texts, strict=True) if not text]
                yield _Block(tuple(lines), within)
