"""The definitions that read the same in both versions of a file: most of it, as a rule, and so read once for both."""

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from verl_e2e.core.reach.syntax import walk

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Settled:
    """Definitions of two trees that are equal but for their lines."""

    # What stands for the whole of a definition, by the `id` of its node in either tree.
    tokens: Mapping[int, tuple[str, str, int]] = field(default_factory=dict)
    # The definitions in the older tree.
    definitions: tuple[ast.AST, ...] = ()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The definitions with all nodes below them, as they are in the older tree."""
        return [node for definition in self.definitions for node in walk(definition)]

    def outside(self, root: ast.AST) -> list[ast.AST]:
        """A node of either tree and those below it, without the definitions."""
        return walk(root, without=self.tokens)


NOTHING_SETTLED = Settled()


def settled_in(before: ast.Module, old: bytes, after: ast.Module, new: bytes) -> Settled:
    """The definitions of two sources in one encoding that read the same letter by letter."""
    tokens: dict[int, tuple[str, str, int]] = {}
    definitions: list[ast.AST] = []
    pairs: list[tuple[list[ast.stmt], list[ast.stmt]]] = [(before.body, after.body)]
    old_lines, new_lines = old.splitlines(), new.splitlines()
    while pairs:
        ours, theirs = pairs.pop()
        mine, others = _texts(ours, old_lines), _texts(theirs, new_lines)
        for key in mine.keys() & others.keys():
            token = ("same text", key[0], len(tokens))
            tokens[id(mine[key])] = tokens[id(others[key])] = token
            definitions.append(mine[key])
        classes = {node.name: node for node in others.values() if isinstance(node, ast.ClassDef)}
        for node in mine.values():
            other = classes.get(node.name)
            if id(node) not in tokens and isinstance(node, ast.ClassDef) and other is not None:
                pairs.append((node.body, other.body))
    return Settled(tokens, tuple(definitions))


def _texts(body: list[ast.stmt], lines: list[bytes]) -> dict[tuple[str, bytes], _Definition]:
    found: dict[tuple[str, bytes], _Definition] = {}
    definitions = [node for node in body if isinstance(node, _Definition)]
    counts = Counter(node.name for node in definitions)
    for node in definitions:
        if counts[node.name] == 1:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            found[node.name, b"\n".join(lines[first - 1 : node.end_lineno])] = node
    return found
