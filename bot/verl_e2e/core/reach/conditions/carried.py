"""Values that arguments carry: a test of a parameter, as the places that call the function would state it."""

import ast
from collections.abc import Iterator
from functools import cached_property

from verl_e2e.core.reach.code_lines import Function
from verl_e2e.core.reach.conditions.code_tree import CodeTree, owner_of
from verl_e2e.core.reach.conditions.flow import FunctionFlow, own_nodes
from verl_e2e.core.reach.conditions.formula import NOTHING, Any, Formula, Literal, any_of, formula
from verl_e2e.core.reach.conditions.tested import constants_pass
from verl_e2e.core.reach.nodes import walk
from verl_e2e.core.reach.normal import all_bound_names
from verl_e2e.core.reach.program import Node
from verl_e2e.core.reach.syntax import own_name

_MOST_CALLERS = 12
_MOST_CALLS = 24


class Carried:
    """The tests of one function's parameters; its callers are the reached symbols that name it."""

    def __init__(self, tree: CodeTree, node: Node, flow: FunctionFlow) -> None:
        self._tree = tree
        self._node = node
        self._flow = flow
        self._known: dict[str, list[tuple[ast.expr, FunctionFlow]]] = {}

    def __call__(self, literal: Literal) -> Formula | None:
        """The test with the arguments of its callers in place of a parameter; None where they are not known.

        Any of the callers will do.
        """
        test, function = literal.test, self._flow.node
        if test is None or not isinstance(function, Function) or "<locals>" in self._flow.symbol:
            return None
        named = {node.id for node in walk(test) if isinstance(node, ast.Name)} & _parameters(function)
        if len(named) != 1 or self._bound & named:
            return None
        (name,) = named
        if name not in self._known:
            self._known[name] = list(self._arguments(function, name))
        ways = [_replaced(test, name, value, caller) for value, caller in self._known[name]]
        return any_of(ways) if ways else None

    @cached_property
    def _bound(self) -> frozenset[str]:
        """The names that the function gives other values itself."""
        nodes = (node for statement in self._flow.node.body for node in (statement, *own_nodes(statement)))
        return frozenset(all_bound_names(nodes))

    def _arguments(self, function: Function, name: str) -> Iterator[tuple[ast.expr, FunctionFlow]]:
        """What each call gives for a parameter, with the function that calls."""
        owner, short = owner_of(self._node), self._node.symbol.rpartition(".")[2]
        called = owner.symbol if owner is not None and short == "__init__" else short
        callers = self._tree.naming(called)
        if len(callers) > _MOST_CALLERS:
            return
        for caller in callers:
            flows = self._tree.flows(self._tree.path_of(caller.module))
            for flow in () if flows is None or not caller.symbol else flows.inside(caller.symbol):
                for call in _calls(flow, called):
                    bound = owner is not None and not _is_of_class(call, owner.symbol)
                    value = _argument(call, function, name, bound=bound)
                    if value is not None:
                        yield value, flow


def _parameters(function: Function) -> set[str]:
    arguments = function.args
    return {item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} - {"self", "cls"}


def _calls(flow: FunctionFlow, called: str) -> list[ast.Call]:
    expressions = (expression for place in flow.places for expression in place.expressions)
    nodes = (node for expression in expressions for node in walk(expression))
    found = [node for node in nodes if isinstance(node, ast.Call) and own_name(node.func) == called]
    return found if len(found) <= _MOST_CALLS else []


def _is_of_class(call: ast.Call, owner: str) -> bool:
    """Whether a method is called on its class, with the object as first argument."""
    return isinstance(call.func, ast.Attribute) and own_name(call.func.value) == owner


def _argument(call: ast.Call, function: Function, name: str, *, bound: bool) -> ast.expr | None:
    """What a call gives for a parameter, its default where it gives nothing; None where that is not known."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    arguments = function.args
    ordered = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
    static = any(own_name(item) == "staticmethod" for item in function.decorator_list)
    position = ordered.index(name) - (bound and not static) if name in ordered else len(call.args)
    starred = next((place for place, item in enumerate(call.args) if isinstance(item, ast.Starred)), len(call.args))
    if position < starred:
        return call.args[position]
    if starred < len(call.args) or any(keyword.arg is None for keyword in call.keywords):
        return None
    defaults = dict(zip(reversed(ordered), reversed(arguments.defaults), strict=False))
    own = {item.arg: value for item, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value}
    return {**defaults, **own}.get(name)


def _replaced(test: ast.expr, name: str, value: ast.expr, caller: FunctionFlow) -> Formula:
    """A test with a value in place of a parameter, in the names of the function that gives it."""

    class Replaced(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            """The value for the parameter."""
            return value if node.id == name else node

    shown = Replaced().visit(ast.parse(ast.unparse(test), mode="eval").body)
    passes = constants_pass(shown)
    if passes is not None:
        return NOTHING if passes else Any(())
    return formula(shown, caller.names)
