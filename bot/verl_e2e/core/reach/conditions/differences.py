"""What a change does to conditions themselves: guards that came or went, parts of expressions, and called functions."""

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping

from verl_e2e.core.reach.conditions.flow import FunctionFlow, Place, inner_guards
from verl_e2e.core.reach.conditions.formula import (
    NOTHING,
    Formula,
    Literal,
    Names,
    all_of,
    any_of,
    conjuncts,
    formula,
    impossible,
    negation,
)
from verl_e2e.core.reach.nodes import children, walk
from verl_e2e.core.reach.tree_numbers import TreeNumbers

_MOST_DIFFERENCES = 8


class Differences:
    """Compares functions of two versions, reading each part of them once."""

    def __init__(self) -> None:
        self._numbers = TreeNumbers({})
        self._known: dict[int, frozenset[int]] = {}

    def guards(self, old: FunctionFlow, new: FunctionFlow) -> tuple[Formula, ...]:
        """For statements that both versions have under other conditions: when exactly one version executes them."""
        found: dict[Formula, None] = {}
        before, after = self._by_statement(old), self._by_statement(new)
        for key, guards in after.items():
            if len(before.get(key, ())) == len(guards):
                for first, second in zip(before[key], guards, strict=True):
                    found.update(dict.fromkeys(itertools.filterfalse(impossible, _exactly_one(first, second))))
        return tuple(found)[:_MOST_DIFFERENCES]

    def parts(self, place: Place, other: FunctionFlow | None, flow: FunctionFlow) -> tuple[Formula, ...]:
        """The conditions inside a statement under which its parts are evaluated that the other version does not have.

        The statement as a whole where the other version has nothing to compare it with.
        """
        if other is None:
            return (NOTHING,)
        known = self._expressions_of(other)
        found: dict[Formula, None] = {}
        for root in place.expressions:
            for part in self._smallest_new(root, known):
                evaluated = inner_guards(root, part, flow.names) or NOTHING
                # Where the test of a branch differs, the guards of what is in the branch do.
                branch = isinstance(place.node, ast.If | ast.While)
                value = NOTHING if branch else self._deciding(root, part, other, flow.names)
                found[all_of((evaluated, value))] = None
        return tuple(found) or (NOTHING,)

    def _deciding(self, root: ast.AST, part: ast.AST, other: FunctionFlow, names: Names) -> Formula:
        """The outcome of an operand that came to an `and` or `or` by which the whole differs from the other version."""
        holders = [
            (node, operand)
            for node in walk(root)
            if isinstance(node, ast.BoolOp)
            for operand in node.values
            if any(inner is part for inner in walk(operand))
        ]
        if not holders:
            return NOTHING
        (node, operand) = holders[-1]
        rest = {self._numbers.of(value) for value in node.values if value is not operand}
        before = (old for old in walk(other.node) if isinstance(old, ast.BoolOp) and type(old.op) is type(node.op))
        # An operand that only changed decides where its own parts say.
        if any(rest < {*map(self._numbers.of, old.values)} for old in before):
            return NOTHING
        return formula(operand, names, holds=isinstance(node.op, ast.Or))

    def calls(self, place: Place, other: FunctionFlow | None) -> tuple[ast.Call, ...]:
        """The calls in a statement that the other version of the function does not make."""
        known = frozenset() if other is None else self._expressions_of(other)
        calls = (node for root in place.expressions for node in walk(root) if isinstance(node, ast.Call))
        return tuple(call for call in calls if self._numbers.of(call) not in known)

    def _by_statement(self, flow: FunctionFlow) -> Mapping[tuple[object, ...], list[Formula]]:
        found: dict[tuple[object, ...], list[Formula]] = defaultdict(list)
        for place in flow.places:
            if not isinstance(place.node, ast.Raise | ast.Pass):
                found[(type(place.node), *map(self._numbers.of, place.expressions))].append(place.guards)
        return found

    def _expressions_of(self, flow: FunctionFlow) -> frozenset[int]:
        known = self._known.get(id(flow))
        if known is None:
            nodes = (node for node in walk(flow.node) if isinstance(node, ast.expr))
            known = self._known[id(flow)] = frozenset(map(self._numbers.of, nodes))
        return known

    def _smallest_new(self, node: ast.AST, known: frozenset[int]) -> list[ast.AST]:
        """The smallest expressions in a node that are not known."""
        inside = [part for child in children(node) for part in self._smallest_new(child, known)]
        if inside or not isinstance(node, ast.expr):
            return inside
        return [] if self._numbers.of(node) in known else [node]


def _exactly_one(old: Formula, new: Formula) -> Iterator[Formula]:
    before, after = conjuncts(old), conjuncts(new)
    common = [part for part in after if part in before]
    gone = [part for part in before if part not in after and not _healthy(part)]
    came = [part for part in after if part not in before and not _healthy(part)]
    if came:
        yield all_of((*common, *gone, any_of(map(negation, came))))
    if gone:
        yield all_of((*common, *came, any_of(map(negation, gone))))


def _healthy(part: Formula) -> bool:
    return isinstance(part, Literal) and part.healthy


def guards_inside(flow: FunctionFlow) -> Formula:
    """What everything that a function does is guarded by; what only ends it does nothing."""
    telling = [place for place in flow.places if _does_something(place.node)]
    if not telling:
        return NOTHING
    common = conjuncts(telling[0].guards)
    for place in telling[1:]:
        common = tuple(part for part in common if part in conjuncts(place.guards))
    return all_of(common)


def _does_something(node: ast.stmt) -> bool:
    match node:
        case ast.Return(value=value):
            return value is not None and not isinstance(value, ast.Name | ast.Constant)
        case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Raise() | ast.Continue() | ast.Break() | ast.Assert():
            return False
        case ast.If() | ast.While() | ast.For() | ast.With() | ast.Try() | ast.Match():
            return False
        case ast.Import() | ast.ImportFrom() | ast.Assign(targets=[ast.Name()], value=ast.expr()):
            return False
        case _:
            return True
