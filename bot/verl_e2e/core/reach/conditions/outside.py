"""The conditions under which another program uses the package: the tests around its calls, as its code states them.

They are kept as text, as the uses are kept by commit, and become settings only when a plan needs them. A name of a
function stands for the value that the function gives it. Callers are followed inside the other program's file alone, as
far as functions are private or run in a part of a run that a setting asks for.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from verl_e2e.core.reach.conditions.flow import Flows, FunctionFlow, inner_guards, read_flows
from verl_e2e.core.reach.conditions.formula import NOTHING, All, Formula, Literal, Names, all_of, any_of, literals
from verl_e2e.core.reach.conditions.table import PARTS_OF_A_RUN
from verl_e2e.core.reach.entries import UseCondition, Uses, uses_of
from verl_e2e.core.reach.nodes import walk

_DEEPEST = 3
_LONGEST = 1_000
_MOST_USES = 500


def conditions_of(sources: Mapping[str, bytes], uses: Uses) -> tuple[UseCondition, ...]:
    """For each name that is called or handed on, every place of it with the condition there, empty for none."""
    imported = {name for entry in uses.entries if entry.module and (name := entry.attribute) is not None}
    called = {call.name for call in uses.calls}
    wanted = imported | called
    files = {call.file for call in uses.calls} | {entry.file for entry in uses.entries if entry.module}
    sites = {(call.file, call.line, call.name) for call in uses.calls}
    found = (
        condition
        for path in sorted(files & sources.keys())
        if (flows := read_flows(sources[path])) is not None
        for condition in _of_file(flows, path, wanted, imported, sites)
    )
    return tuple(sorted(set(found)))[:_MOST_USES]


def uses_with_conditions(sources: Mapping[str, bytes], package: str, source: str) -> Uses:
    """What another program uses of a package, with the conditions of the uses."""
    uses = uses_of(sources, package, source)
    return replace(uses, conditions=conditions_of(sources, uses))


def _of_file(
    flows: Flows, path: str, wanted: set[str], imported: set[str], sites: set[tuple[str, int, str]]
) -> Iterator[UseCondition]:
    for flow, name, line, condition in _places(flows, wanted):
        if name in imported or (path, line, name) in sites:
            whole = all_of((condition, _around(flows, flow, 0)))
            yield UseCondition(name, path, line, _text(whole))


def _places(flows: Flows, wanted: set[str]) -> Iterator[tuple[FunctionFlow, str, int, Formula]]:
    """Where a file names what is wanted, with what decides it inside the function."""
    for flow in flows.every():
        for place in flow.places:
            for expression in place.expressions:
                for node, name in _named(expression):
                    # A variable of its own is another thing of the same name.
                    if name in wanted and not (isinstance(node, ast.Name) and name in flow.names):
                        inner = inner_guards(expression, node, flow.names) or NOTHING
                        yield flow, name, node.lineno, all_of((place.guards, inner))


def _named(expression: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    for node in walk(expression):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Call(func=ast.Attribute(attr=name)):
                yield node, name
            case _:
                pass


def _around(flows: Flows, flow: FunctionFlow, depth: int) -> Formula:
    """What leads into a function of the other program, as far as its own file tells."""
    name = flow.symbol.rpartition(".")[2]
    if name in PARTS_OF_A_RUN:
        return Literal(name, ast.Name(name))
    if not name.startswith("_") or name.startswith("__") or depth >= _DEEPEST:
        return NOTHING
    ways = [
        _without_names(all_of((condition, _around(flows, caller, depth + 1))))
        for caller, found, _, condition in _places(flows, {name})
        if found == name and caller is not flow
    ]
    return any_of(ways) if ways else NOTHING


def _without_names(condition: Formula) -> Formula:
    """The condition with the names of its function replaced, as another function has others."""
    match condition:
        case Literal(test=ast.expr() as test, names=names) if names:
            shown = _Named(names).visit(ast.parse(ast.unparse(test), mode="eval").body)
            return Literal(ast.unparse(shown), shown, healthy=condition.healthy)
        case Literal():
            return condition
        case All(parts=parts):
            return all_of(map(_without_names, parts))
        case _:
            return any_of(map(_without_names, condition.parts))


class _Named(ast.NodeTransformer):
    """Puts the only value of a name in its place."""

    def __init__(self, names: Names, depth: int = 0) -> None:
        self._names = names
        self._depth = depth

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A name as its value, in which names are replaced in turn; a long value leaves it as it is."""
        value = self._names.get(node.id)
        if value is None or self._depth >= _DEEPEST:
            return node
        text = ast.unparse(value)
        if len(text) > _LONGEST // 4:
            return node
        shown = _Named(self._names, self._depth + 1).visit(ast.parse(text, mode="eval").body)
        return shown if isinstance(shown, ast.expr) else node


def _text(condition: Formula) -> str:
    """The condition as one expression, without what every healthy run passes; empty for none, or where it is long."""
    shown = _without_names(condition)
    if any(literal.test is None for literal in literals(shown)):
        return ""
    text = _expression(shown)
    return text if len(text) <= _LONGEST else ""


def _expression(condition: Formula) -> str:
    match condition:
        case Literal(text=text, healthy=healthy):
            return "" if healthy else f"({text})"
        case All(parts=parts):
            return " and ".join(filter(None, map(_expression, parts)))
        case _:
            ways = [(isinstance(part, All), _expression(part)) for part in condition.parts]
            texts = [f"({text})" if several else text for several, text in ways]
            return f"({' or '.join(texts)})" if all(text for _, text in ways) else ""
