"""The tests that dominate each statement of a file: those around it, and the early exits before it."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from verl_e2e.core.reach.code_lines import Function, first_line
from verl_e2e.core.reach.conditions.formula import (
    NOTHING,
    Formula,
    Literal,
    Names,
    all_of,
    as_healthy,
    conjuncts,
    expression_of,
    formula,
)
from verl_e2e.core.reach.nodes import children
from verl_e2e.core.reach.normal import bound_names
from verl_e2e.core.reach.read_trees import parse_to_read

# Far beyond what code that people read has before a statement; more exits are not looked at.
_MOST_GUARDS = 64
# A name with more values is not taken for a flag.
_MOST_VALUES = 2


@dataclass(frozen=True, slots=True)
class Place:
    """One statement with what dominates it inside its function; a compound one stands for its head."""

    node: ast.stmt
    guards: Formula

    @property
    def expressions(self) -> tuple[ast.AST, ...]:
        """What the statement itself evaluates, without the statements inside it."""
        match self.node:
            case ast.If(test=test) | ast.While(test=test):
                return (test,)
            case ast.For(target=target, iter=values) | ast.AsyncFor(target=target, iter=values):
                return (target, values)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                return tuple(items)
            case ast.Match(subject=subject):
                return (subject,)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                arguments = self.node.args
                defaults = (*arguments.defaults, *filter(None, arguments.kw_defaults))
                return (*self.node.decorator_list, *defaults)
            case ast.ClassDef():
                return (*self.node.decorator_list, *self.node.bases, *self.node.keywords)
            case ast.Try() | ast.TryStar():
                return tuple(handler.type for handler in self.node.handlers if handler.type is not None)
            case _:
                return (self.node,)

    @property
    def lines(self) -> range:
        """The lines of what it evaluates itself."""
        last = max([self.node.lineno, *(getattr(item, "end_lineno", None) or 0 for item in self.expressions)])
        return range(first_line(self.node), last + 1)


class FunctionFlow:
    """One function, or what belongs to none; its statements are looked into when they are first asked for."""

    def __init__(self, symbol: str, node: Function | ast.Module, defined: Formula, flows: "Flows") -> None:
        # Its qualified name, empty for the statements of a module and of class bodies.
        self.symbol = symbol
        self.node = node
        # The conditions under which its definition is executed.
        self.defined = defined
        self._flows = flows

    @cached_property
    def names(self) -> Names:
        """The names that are bound once in it, by a plain assignment, with their values."""
        return _single_values(self.node)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Its statements, in order."""
        reader = _Reader(self, self._flows)
        reader.block(self.node.body, NOTHING, f"{self.symbol}.<locals>." if self.symbol else "")
        # The conditions that were read look names up here when they are resolved.
        self.names.update(chosen_values(self.node, reader.places))
        return tuple(reader.places)

    @cached_property
    def _by_line(self) -> Mapping[int, Place]:
        return {line: place for place in self.places for line in place.lines}

    def place_at(self, line: int) -> Place | None:
        """The innermost statement on a line; None for what belongs to the function as a whole."""
        return self._by_line.get(line)


class Flows:
    """The functions of a file by qualified name; of several with one name the first."""

    def __init__(self, tree: ast.Module) -> None:
        self._found: dict[str, FunctionFlow] = {}
        self._found[""] = FunctionFlow("", tree, NOTHING, self)

    def add(self, flow: FunctionFlow) -> None:
        """Keep a function that was found inside another, or in a module."""
        self._found.setdefault(flow.symbol, flow)

    def get(self, symbol: str) -> FunctionFlow | None:
        """A function; the empty name is what belongs to none."""
        outer = symbol.rpartition(".<locals>.")[0] if "<locals>" in symbol else ""
        around = self.get(outer) if symbol else None
        if around is not None:
            # Looking into a function finds those inside it.
            assert around.places is not None
        return self._found.get(symbol)

    def every(self) -> Iterator[FunctionFlow]:
        """Every function of the file, and first what belongs to none."""
        done: set[str] = set()
        while todo := [flow for symbol, flow in self._found.items() if symbol not in done]:
            for flow in todo:
                done.add(flow.symbol)
                # Looking into it finds those inside it.
                assert flow.places is not None
                yield flow

    def inside(self, symbol: str) -> Iterator[FunctionFlow]:
        """A function and those inside it."""
        flow = self.get(symbol)
        todo = [] if flow is None else [flow]
        while todo:
            here = todo.pop()
            yield here
            start = f"{here.symbol}.<locals>."
            nested = (place.node for place in here.places if isinstance(place.node, Function))
            todo.extend(found for node in nested if (found := self._found.get(start + node.name)) is not None)


def read_flows(source: bytes | None) -> Flows | None:
    """The functions of a file, None for one that cannot be read."""
    tree = parse_to_read(source) if source is not None else ""
    return None if isinstance(tree, str) else Flows(tree)


def inner_guards(root: ast.AST, target: ast.AST, names: Names) -> Formula | None:
    """What decides inside an expression whether a part of it is evaluated; None where it is not a part."""
    if root is target:
        return NOTHING
    for child, guards in _children(root, names):
        below = inner_guards(child, target, names)
        if below is not None:
            return all_of((guards, below))
    return None


def _children(node: ast.AST, names: Names) -> Iterator[tuple[ast.AST, Formula]]:
    match node:
        case ast.IfExp(test=test, body=body, orelse=other):
            yield from ((test, NOTHING), (body, formula(test, names)), (other, formula(test, names, holds=False)))
        case ast.BoolOp(op=operator, values=values):
            before: list[Formula] = []
            for value in values:
                yield value, all_of(before)
                before.append(formula(value, names, holds=isinstance(operator, ast.And)))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            filters = all_of(formula(test, names) for part in node.generators for test in part.ifs)
            yield from ((part, NOTHING) for part in node.generators)
            results = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            yield from ((result, filters) for result in results)
        case _:
            yield from ((child, NOTHING) for child in children(node))


class _Reader:
    """Reads the statements of one function; functions inside it are kept for later."""

    def __init__(self, flow: FunctionFlow, flows: Flows) -> None:
        self._flow = flow
        self._flows = flows
        self.places: list[Place] = []

    def block(self, body: list[ast.stmt], guards: Formula, prefix: str) -> None:
        """The statements of a body; what leaves it early is negated for those that follow."""
        for node in body:
            self.places.append(Place(node, guards))
            self._inside(node, guards, prefix)
            if len(conjuncts(guards)) < _MOST_GUARDS:
                guards = all_of((guards, _passed(node, self._flow)))

    def _inside(self, node: ast.stmt, guards: Formula, prefix: str) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                defined = all_of((self._flow.defined, guards))
                self._flows.add(FunctionFlow(prefix + node.name, node, defined, self._flows))
            case ast.ClassDef():
                self.block(node.body, guards, f"{prefix}{node.name}.")
            case ast.If(test=test) | ast.While(test=test):
                names = self._flow.names
                self.block(node.body, all_of((guards, formula(test, names))), prefix)
                after = formula(test, names, holds=False) if isinstance(node, ast.If) else NOTHING
                self.block(node.orelse, all_of((guards, after)), prefix)
            case ast.Match():
                for case in node.cases:
                    pattern = _of_case(node.subject, case, self._flow.names)
                    self.block(case.body, all_of((guards, pattern)), prefix)
            case ast.Try() | ast.TryStar():
                for body in (node.body, node.orelse, node.finalbody):
                    self.block(body, guards, prefix)
                for handler in node.handlers:
                    caught = Literal(f"except {ast.unparse(handler.type)}" if handler.type else "except")
                    self.block(handler.body, all_of((guards, caught)), prefix)
            case ast.For() | ast.AsyncFor() | ast.With() | ast.AsyncWith():
                self.block(node.body, guards, prefix)
                self.block(getattr(node, "orelse", []), guards, prefix)
            case _:
                pass


def _of_case(subject: ast.expr, case: ast.match_case, names: Names) -> Formula:
    match case.pattern:
        case ast.MatchValue(value=value) | ast.MatchAs(pattern=ast.MatchValue(value=value)):
            pattern = formula(ast.Compare(subject, [ast.Eq()], [value]), names)
        case ast.MatchAs(pattern=None):
            pattern = NOTHING
        case _:
            pattern = Literal(f"{ast.unparse(subject)} matches {ast.unparse(case.pattern)}")
    return pattern if case.guard is None else all_of((pattern, formula(case.guard, names)))


def _passed(node: ast.stmt, flow: FunctionFlow) -> Formula:
    """What holds after a statement that did not leave the block."""
    match node:
        case ast.Assert(test=test):
            return as_healthy(formula(test, flow.names))
        case ast.If(test=test, body=body, orelse=other):
            left = _leaves(body), _leaves(other)
            if left == (None, None) or None not in left:
                return NOTHING
            after = formula(test, flow.names, holds=left[0] is None)
            return as_healthy(after) if ast.Raise in left else after
        case _:
            return NOTHING


def _leaves(body: list[ast.stmt]) -> type[ast.stmt] | None:
    """How a block always ends: by which statement; None where it goes on."""
    for node in body:
        match node:
            case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
                return type(node)
            case ast.If(body=first, orelse=second) if second:
                both = {_leaves(first), _leaves(second)}
                if None not in both:
                    return ast.Raise if both == {ast.Raise} else ast.Return
            case ast.With(body=inside) | ast.AsyncWith(body=inside):
                found = _leaves(inside)
                if found is not None:
                    return found
            case _:
                pass
    return None


def _single_values(root: ast.AST) -> Names:
    """The names that one plain assignment of a scope binds and nothing else."""
    counts: dict[str, int] = {}
    values: Names = {}
    for node in own_nodes(root):
        for name in bound_names(node):
            counts[name] = counts.get(name, 0) + 1
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                values[name] = value
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                values[name] = value
            case _:
                pass
    return {name: value for name, value in values.items() if counts[name] == 1}


def chosen_values(root: ast.AST, places: Iterable[Place]) -> Names:
    """The names that a scope gives several values under different conditions, each as a choice between these.

    Only where one of the values is a constant, as of a flag or of what is `None` at first: a test of the name then is
    one of the conditions.
    """
    given: dict[str, list[tuple[Formula, ast.expr]]] = {}
    for place in places:
        match place.node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                given.setdefault(name, []).append((place.guards, value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                given.setdefault(name, []).append((place.guards, value))
            case _:
                pass
    several = {name: ways for name, ways in given.items() if 1 < len(ways) <= _MOST_VALUES}
    if not several:
        return {}
    counts = Counter(name for node in own_nodes(root) for name in bound_names(node))
    found = {name: _choice(ways) for name, ways in several.items() if counts[name] == len(ways)}
    return {name: value for name, value in found.items() if value is not None}


def _choice(ways: list[tuple[Formula, ast.expr]]) -> ast.expr | None:
    """One expression for the values of a name, the last of which counts; None where they do not depend on tests."""
    if not any(isinstance(value, ast.Constant) for _, value in ways):
        return None
    around = set(conjuncts(ways[0][0])).intersection(*(conjuncts(guards) for guards, _ in ways[1:]))
    found = ways[0][1]
    for guards, value in ways[1:]:
        test = expression_of(all_of(part for part in conjuncts(guards) if part not in around))
        if test is None:
            return None
        found = ast.IfExp(test, value, found)
    return found


def own_nodes(root: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of functions and classes inside it but with their names."""
    todo: list[ast.AST] = list(children(root))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            todo.extend(children(node))
