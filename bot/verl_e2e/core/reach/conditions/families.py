"""Which families of models every way into a shared function leads through: those of the files that name it.

A mapping for Mamba layers is in a file of all models, but only the bridges of a few families make one. A run on a model
of any other family never enters it.
"""

from collections.abc import Callable

from verl_e2e.core.reach.conditions.callers import is_named_at
from verl_e2e.core.reach.conditions.code_tree import CodeTree, is_body, owner_of
from verl_e2e.core.reach.program import Node

# The families that a file belongs to, none for one that models of every family may use.
FamiliesOf = Callable[[str], frozenset[str]]
ANY_FAMILY: frozenset[str] = frozenset()
_MOST_WAYS = 24
_MOST_SYMBOLS = 200


class FamilyWays:
    """The families behind the functions of one tree."""

    def __init__(self, tree: CodeTree, families_of: FamiliesOf) -> None:
        self._tree = tree
        self._families_of = families_of
        self._known: dict[Node, frozenset[str]] = {}
        self._ways_of: dict[Node, tuple[Node, ...] | None] = {}

    def into(self, node: Node) -> frozenset[str]:
        """The families of which a model must be one to lead into a function or a class; none where any will do."""
        if node not in self._known:
            self._known[node] = self._into(node)
        return self._known[node]

    def _into(self, node: Node) -> frozenset[str]:
        found: set[str] = set()
        todo, seen = [node], {node}
        while todo:
            here = todo.pop()
            own = self._families_of(self._tree.path_of(here.module))
            found.update(own)
            ways = () if own else self._ways(here)
            if ways is None or len(seen) > _MOST_SYMBOLS:
                return ANY_FAMILY
            todo.extend(way for way in ways if way not in seen)
            seen.update(ways)
        return frozenset(found)

    def _ways(self, node: Node) -> tuple[Node, ...] | None:
        """What leads to a symbol directly; None where that is not known."""
        if node not in self._ways_of:
            self._ways_of[node] = self._found_ways(node)
        return self._ways_of[node]

    def _found_ways(self, node: Node) -> tuple[Node, ...] | None:
        symbol = self._tree.program.symbol(node)
        owner = owner_of(node)
        if symbol is None or symbol.decorated or is_body(node):
            return None
        if owner is not None:
            # The object of a method was made somewhere, from wherever it is called.
            return (owner,)
        below = self._tree.below(node) if symbol.kind == "class" else ()
        naming = [found for found in self._tree.naming(node.symbol) if found != node and found not in below]
        if node.symbol in self._tree.used_outside or len(naming) > _MOST_WAYS:
            return None
        return (*below, *(found for found in naming if is_named_at(self._tree, found, node.symbol)))
