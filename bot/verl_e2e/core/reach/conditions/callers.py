"""What every way into a function demands: the conditions around its callers, and around what makes its class.

A condition counts only where all ways have it. Whatever may be called from outside of the program, and whatever too
many places name, has ways that are not known, so nothing is demanded of its callers.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from verl_e2e.core.reach.conditions.code_tree import CodeTree, is_body, owner_of
from verl_e2e.core.reach.conditions.flow import Flows, FunctionFlow, Place, inner_guards
from verl_e2e.core.reach.conditions.formula import Formula, all_of, conjuncts, formula, text_of
from verl_e2e.core.reach.conditions.predicates import Predicates
from verl_e2e.core.reach.conditions.resolve import Replacing, resolve
from verl_e2e.core.reach.conditions.settings import Settings
from verl_e2e.core.reach.conditions.table import CALLERS, SPECIAL_CLASSES, SPECIAL_METHODS, Special
from verl_e2e.core.reach.nodes import children
from verl_e2e.core.reach.program import Node

_MOST_WAYS = 12
_MOST_PLACES = 24
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class Demand:
    """One condition on the way to a function; two with the same settings are the same demand."""

    text: str
    # None where no setting is known for it.
    settings: Settings | None


# The demands by what makes them equal.
Demands = Mapping[object, Demand]
_NOTHING: Demands = {}


class Ways:
    """The ways into the functions of one tree."""

    def __init__(self, tree: CodeTree) -> None:
        self._tree = tree
        self._known: dict[Node, Demands] = {}
        self._open: set[Node] = set()
        self._cycles = 0
        self._of_uses: dict[str, list[Demands]] = {}

    def into(self, node: Node) -> tuple[Demand, ...]:
        """What every way into a function or a class demands."""
        return tuple((self._demands(node, 0) or _NOTHING).values())

    def _demands(self, node: Node, depth: int) -> Demands | None:
        """The demands by their keys; None for a way that leads through the node itself, and so does not count."""
        if node in self._open:
            self._cycles += 1
            return None
        if node in self._known or depth > _DEEPEST:
            return self._known.get(node, _NOTHING)
        before = self._cycles
        self._open.add(node)
        found = self._found(node, depth)
        self._open.discard(node)
        # What left a cycle out holds for the question that led here, and for no other.
        if found is not None and (before == self._cycles or not self._open):
            self._known[node] = found
        return found

    def _found(self, node: Node, depth: int) -> Demands | None:
        symbol = self._tree.program.symbol(node)
        if symbol is None or is_body(node):
            return _NOTHING
        if symbol.kind == "class":
            return self._of_class(node, decorated=symbol.decorated, depth=depth)
        owner = owner_of(node)
        if owner is None:
            return self._of_sites(node, _short(node), depth)
        of_owner = self._demands(owner, depth + 1) or _NOTHING
        name = _short(node)
        if name in SPECIAL_METHODS:
            return {**of_owner, **_of_special("method", name, SPECIAL_METHODS[name])}
        hidden = name.startswith("_") and not name.startswith("__")
        if name.startswith("__") or (not hidden and self._tree.has_foreign_base(owner)):
            return of_owner
        of_sites = self._of_sites(node, name, depth)
        return None if of_sites is None else {**of_owner, **of_sites}

    def _of_class(self, node: Node, *, decorated: bool, depth: int) -> Demands | None:
        special = SPECIAL_CLASSES.get(node.symbol)
        if special is not None:
            return _of_special("class", node.symbol, special)
        if decorated:
            return _NOTHING
        of_sites = self._of_sites(node, node.symbol, depth)
        return _shared([of_sites, *(self._demands(below, depth + 1) for below in self._tree.below(node))])

    def _of_sites(self, target: Node, name: str, depth: int) -> Demands | None:
        """What all places demand that name a symbol; itself it may name as well."""
        outside = self._outside(name)
        if any(not way for way in outside):
            return _NOTHING
        # A class that inherits from it names it as well, and has ways of its own.
        aside = {target, *self._tree.below(target)}
        naming = [node for node in self._tree.naming(name) if node not in aside]
        if len(naming) > _MOST_WAYS:
            return _NOTHING
        ways: list[Demands | None] = [*outside]
        for node in naming:
            ways.extend(self._through(node, name, depth))
            if any(way is not None and not way for way in ways):
                return _NOTHING
        if not ways and not self._tree.below(target):
            return _NOTHING
        return _shared(ways)

    def _outside(self, name: str) -> list[Demands]:
        """What the other program's uses of a name demand, one for each; nothing for one that is not known."""
        if name not in self._tree.used_outside:
            return []
        if name not in self._of_uses:
            conditions = self._tree.outside.get(name, [""])
            tests = (formula(ast.parse(text or "True", mode="eval").body, {}) for text in conditions[:_MOST_PLACES])
            self._of_uses[name] = [_demands_of(test, CALLERS) for test in tests]
        return self._of_uses[name]

    def _through(self, node: Node, name: str, depth: int) -> Iterator[Demands | None]:
        """What the ways through one symbol demand, one for each place where it names the target.

        A function that names it in annotations and tests of a type alone is not a way.
        """
        path = self._tree.path_of(node.module)
        flows = self._tree.flows(path)
        known = flows is not None and bool(node.symbol) and flows.get(node.symbol) is not None
        places = [*islice(_sites(flows, node, name), _MOST_PLACES + 1)] if flows is not None and known else []
        if not known or len(places) > _MOST_PLACES:
            yield _NOTHING
            return
        around = self._demands(node, depth + 1) if places else None
        for condition in places:
            yield None if around is None else {**around, **_demands_of(condition, path, Predicates(self._tree, node))}


def _of_special(kind: str, name: str, special: Special) -> Demands:
    settings = Settings(axes=special.axes, rules=(f"{kind}: {name}",))
    return {(kind, name): Demand(special.text, settings)}


def _short(node: Node) -> str:
    return node.symbol.rpartition(".")[2]


def _shared(ways: list[Demands | None]) -> Demands | None:
    """What all ways demand; None where every one leads through the node itself."""
    known = [way for way in ways if way is not None]
    if not known:
        return None
    return {key: demand for key, demand in known[0].items() if all(key in way for way in known[1:])}


def _demands_of(condition: Formula, path: str, replacing: Replacing | None = None) -> Demands:
    found: dict[object, Demand] = {}
    for part in conjuncts(condition):
        resolved = resolve(part, path, replacing)
        text = text_of(part)
        if resolved.open:
            found[text] = Demand(text, None)
        elif resolved.settings.count or resolved.settings.absent:
            found[_key(resolved.settings)] = Demand(text, resolved.settings)
    return found


def _key(settings: Settings) -> object:
    parts = (settings.axes, settings.limits, settings.overrides, settings.fields)
    return (*(frozenset(part.items()) for part in parts), settings.features, settings.family, settings.absent)


def is_named_at(tree: CodeTree, node: Node, name: str) -> bool:
    """Whether a symbol names something other than in annotations and tests of a type; so where it cannot be read."""
    flows = tree.flows(tree.path_of(node.module))
    if flows is None or not node.symbol or flows.get(node.symbol) is None:
        return True
    return next(_sites(flows, node, name), None) is not None


def _sites(flows: Flows, node: Node, name: str) -> Iterator[Formula]:
    """The condition of each place inside a symbol that names something."""
    for flow in flows.inside(node.symbol):
        for place in flow.places:
            yield from _mentions(place, flow, name)


def _mentions(place: Place, flow: FunctionFlow, name: str) -> Iterator[Formula]:
    for root in place.expressions:
        for part in _naming_parts(root, name):
            inside = inner_guards(root, part, flow.names)
            assert inside is not None, "a part of an expression has a way to it"
            yield all_of((flow.defined, place.guards, inside))


def _naming_parts(root: ast.AST, name: str) -> Iterator[ast.AST]:
    """The parts of an expression that name something; tests of a type and annotations do not."""
    match root:
        case ast.Name(id=found) | ast.Attribute(attr=found) if found == name:
            yield root
        case ast.Constant(value=str(text)) if name in text.split("."):
            yield root
        case ast.alias(name=found) if found == name:
            return
        case _:
            pass
    for child in _evaluated(root):
        yield from _naming_parts(child, name)


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[subject, *_]):
            yield subject
        case ast.AnnAssign(target=target, value=value):
            yield from (part for part in (target, value) if part is not None)
        case _:
            yield from children(node)
