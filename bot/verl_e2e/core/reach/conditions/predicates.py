"""Functions that only return a test: a call of one stands for what it returns, with the arguments put in."""

import ast
from collections.abc import Mapping

from verl_e2e.core.reach.conditions.code_tree import CodeTree, owner_of
from verl_e2e.core.reach.conditions.formula import Formula, Literal, formula
from verl_e2e.core.reach.nodes import walk
from verl_e2e.core.reach.program import Node
from verl_e2e.core.reach.syntax import dotted


class Predicates:
    """The tests of one function that call a function of the program, written out."""

    def __init__(self, tree: CodeTree, node: Node) -> None:
        self._tree = tree
        self._node = node

    def __call__(self, literal: Literal) -> Formula | None:
        """What a test stands for that asks a function; None where the function does more than return a value."""
        match literal.test:
            case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call):
                value = self._returned(call)
                return None if value is None else formula(value, literal.names, holds=False)
            case ast.Call() as call:
                value = self._returned(call)
                return None if value is None else formula(value, literal.names)
            case _:
                return None

    def _returned(self, call: ast.Call) -> ast.expr | None:
        function = self._function(call)
        if function is None or function.decorator_list:
            return None
        body = function.body[1:] if _is_docstring(function.body[0]) else function.body
        if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return None
        given = _given(call, function)
        if given is None:
            return None
        shown = ast.parse(ast.unparse(body[0].value), mode="eval").body
        if any(isinstance(node, ast.Lambda | ast.ListComp | ast.GeneratorExp | ast.SetComp) for node in walk(shown)):
            return None
        found = _Given(given).visit(shown)
        return found if isinstance(found, ast.expr) else None

    def _function(self, call: ast.Call) -> ast.FunctionDef | None:
        """The function that a call runs; of a method that of the nearest class, whatever overrides it."""
        parts = dotted(call.func).split(".")
        owner = owner_of(self._node)
        if parts[0] in {"self", "cls"} and len(parts) == 2 and owner is not None:
            return self._at(Node(owner.module, f"{owner.symbol}.{parts[1]}"))
        known, rest = self._tree.program.dotted(self._node.module, parts) if parts[0] else (None, [])
        return None if known is None or rest or known.kind != "function" else self._at(known.node)

    def _at(self, node: Node) -> ast.FunctionDef | None:
        flows = self._tree.flows(self._tree.path_of(node.module))
        flow = flows.get(node.symbol) if flows is not None else None
        return flow.node if flow is not None and isinstance(flow.node, ast.FunctionDef) else None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _given(call: ast.Call, function: ast.FunctionDef) -> Mapping[str, ast.expr] | None:
    """The arguments by parameter, with defaults; None where a call or a function takes any number of them."""
    arguments = function.args
    if arguments.vararg or arguments.kwarg or any(isinstance(item, ast.Starred) for item in call.args):
        return None
    names = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
    found = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
    found |= {item.arg: value for item, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value}
    own = names[1:] if names and names[0] in {"self", "cls"} else names
    found |= dict(zip(own, call.args, strict=False))
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    return None if len(named) < len(call.keywords) else {**found, **named}


class _Given(ast.NodeTransformer):
    """Puts arguments in the place of parameters."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The argument for a parameter."""
        return self._given.get(node.id, node)
