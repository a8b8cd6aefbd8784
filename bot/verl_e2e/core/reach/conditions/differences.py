"""What a change does to conditions themselves: guards that came or went, parts of expressions, and called functions."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from verl_e2e.core.reach.conditions.flow import FunctionFlow, Place, inner_guards
from verl_e2e.core.reach.conditions.formula import NOTHING, Formula, Literal, all_of, any_of, conjuncts, negation

_MOST_DIFFERENCES = 8


def changed_guards(old: FunctionFlow, new: FunctionFlow) -> tuple[Formula, ...]:
    """For statements that both versions have under other conditions: when exactly one version executes them."""
    found: dict[Formula, None] = {}
    before, after = _by_statement(old), _by_statement(new)
    for key in before.keys() & after.keys():
        if len(before[key]) == len(after[key]):
            for first, second in zip(before[key], after[key], strict=True):
                found.update(dict.fromkeys(_exactly_one(first, second)))
    return tuple(sorted(found, key=repr))[:_MOST_DIFFERENCES]


def _by_statement(flow: FunctionFlow) -> Mapping[str, list[Formula]]:
    found: dict[str, list[Formula]] = defaultdict(list)
    for place in flow.places:
        if not isinstance(place.node, ast.Raise | ast.Pass):
            key = " ".join((type(place.node).__name__, *(ast.dump(part) for part in place.expressions)))
            found[key].append(place.guards)
    return found


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


def new_parts(place: Place, other: FunctionFlow | None, flow: FunctionFlow) -> tuple[Formula, ...]:
    """The conditions inside a statement under which the parts of it that the other version does not have are evaluated.

    The statement as a whole where the other version has nothing to compare it with.
    """
    if other is None:
        return (NOTHING,)
    known = other.expressions
    found: dict[Formula, None] = {}
    for root in place.expressions:
        for part in _smallest_new(root, known):
            found[inner_guards(root, part, flow.names) or NOTHING] = None
    return tuple(found) or (NOTHING,)


def _smallest_new(node: ast.AST, known: frozenset[str]) -> list[ast.AST]:
    """The smallest expressions in a node that are not known."""
    inside = [part for child in ast.iter_child_nodes(node) for part in _smallest_new(child, known)]
    if inside or not isinstance(node, ast.expr):
        return inside
    return [] if ast.dump(node) in known else [node]


def new_calls(place: Place, other: FunctionFlow | None) -> tuple[ast.Call, ...]:
    """The calls in a statement that the other version of the function does not make."""
    known = frozenset() if other is None else other.expressions
    calls = (node for root in place.expressions for node in ast.walk(root) if isinstance(node, ast.Call))
    return tuple(call for call in calls if ast.dump(call) not in known)


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
