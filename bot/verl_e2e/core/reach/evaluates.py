"""Which expressions provably evaluate, without an effect, when a module is imported."""

import ast
import builtins
from collections.abc import Container, Iterator

from verl_e2e.core.reach.nodes import walk
from verl_e2e.core.reach.normal import Frozen, freeze
from verl_e2e.core.reach.syntax import dotted

BUILTIN_NAMES = frozenset(dir(builtins))
# Of the standard library, and imported by whatever imports anything: their import runs nothing new.
HARMLESS_MODULES = frozenset(
    {
        "typing",
        "collections",
        "collections.abc",
        "dataclasses",
        "functools",
        "enum",
        "abc",
        "logging",
        "os",
        "re",
        "math",
    }
    | {
        "itertools",
        "contextlib",
        "copy",
        "inspect",
        "pathlib",
        "types",
        "warnings",
        "json",
        "operator",
        "typing_extensions",
    }
)
_TYPES = frozenset(
    {"int", "str", "float", "bool", "bytes", "list", "dict", "tuple", "set", "frozenset", "type", "object"}
)
_GENERIC = frozenset({"list", "dict", "tuple", "set", "frozenset", "type"})
CONTAINERS = frozenset({"frozenset", "set", "tuple", "list"})
_DEFAULTS = frozenset({"default", "default_factory"})
_FACTORIES = frozenset({"list", "dict", "set", "tuple"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_immutable(node: ast.expr, constants: Container[str] = frozenset()) -> bool:
    """Whether an expression is a constant, the name of one, a negative number, or a tuple of these."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in constants
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return True
        case ast.Tuple(elts=elements):
            return all(is_immutable(element, constants) for element in elements)
        case _:
            return False


def is_literal(
    node: ast.expr, constants: Container[str] = frozenset(), containers: frozenset[str] = frozenset()
) -> bool:
    """Whether an expression is made of constants alone; what is hashed in it can be hashed.

    `constants` are names of constants, `containers` the builtins that may be called with a display of such.
    """
    match node:
        case ast.Name(id=name):
            return name in constants
        case ast.List(elts=elements):
            return all(is_literal(element, constants, containers) for element in elements)
        case ast.Set(elts=elements):
            return all(is_immutable(element, constants) for element in elements)
        case ast.Dict(keys=keys, values=values):
            hashed = all(key is not None and is_immutable(key, constants) for key in keys)
            return hashed and all(is_literal(value, constants, containers) for value in values)
        case ast.Call(
            func=ast.Name(id=name), args=[ast.Set(elts=e) | ast.List(elts=e) | ast.Tuple(elts=e)], keywords=[]
        ):
            return name in containers and all(is_immutable(item, constants) for item in e)
        case _:
            return is_immutable(node, constants)


def is_plain_field(node: ast.expr) -> bool:
    """Whether a class attribute's value is a constant, or a `field` with a default that is one or an empty builtin."""
    match node:
        case ast.Call(func=ast.Name(id="field"), args=[], keywords=keywords):
            given = {keyword.arg: keyword.value for keyword in keywords}
            if len(given.keys() & _DEFAULTS) != 1 or len(given) != len(keywords) or None in given:
                return False
            factory = given.get("default_factory")
            makes = isinstance(factory, ast.Name) and factory.id in _FACTORIES
            rest = (value for name, value in given.items() if name != "default_factory")
            return (makes or factory is None or _makes_literal(factory)) and all(map(is_immutable, rest))
        case _:
            return is_immutable(node)


def _makes_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Lambda) and not ast.unparse(node.args) and is_literal(node.body)


class Annotations:
    """The annotations that importing one version evaluates, and what follows from their evaluating."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: set[Frozen] = set()
        if has_future_annotations(tree):
            return
        for annotation in _evaluated(tree.body):
            parts = list(walk(annotation))
            if all(isinstance(part, _PURE) for part in parts):
                self._known.update(freeze(part) for part in parts if isinstance(part, ast.expr))

    def evaluates(self, node: ast.expr) -> bool:
        """Whether an annotation evaluates without an effect, if the names in it are bound."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return True
        return self._is_type(node) or freeze(node) in self._known

    def _is_type(self, node: ast.expr) -> bool:
        match node:
            case ast.Constant(value=None):
                return True
            case ast.Name(id=name):
                return name in _TYPES
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._is_type(left) and self._is_type(right) and not _both_none(left, right)
            case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _GENERIC:
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return all(_is_ellipsis(part) or self.evaluates(part) for part in parts)
            case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
                optional = freeze(ast.Name("Optional", ast.Load())) in self._known
                return optional and not isinstance(inner, ast.Tuple) and self.evaluates(inner)
            case _:
                return False


_PURE = (
    ast.Name
    | ast.Attribute
    | ast.Subscript
    | ast.BinOp
    | ast.BitOr
    | ast.Constant
    | ast.Tuple
    | ast.List
    | ast.expr_context
)


def _both_none(left: ast.expr, right: ast.expr) -> bool:
    return isinstance(left, ast.Constant) and isinstance(right, ast.Constant)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _evaluated(body: list[ast.stmt]) -> Iterator[ast.expr]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _evaluated(node.body)
        elif isinstance(node, _Function):
            yield from annotations_of(node)
        elif isinstance(node, ast.AnnAssign):
            yield node.annotation


def annotations_of(node: _Function) -> list[ast.expr]:
    """The annotations of parameters and result."""
    arguments = node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    return [
        json
        for json in (*(parameter.annotation for parameter in every if parameter is not None), node.returns)
        if json is not None
    ]


def has_future_annotations(tree: ast.Module) -> bool:
    """Whether no annotation of a function is evaluated."""
    futures = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    return any(alias.name == "annotations" for node in futures for alias in node.names)


def names_in(nodes: list[ast.expr]) -> Iterator[str]:
    """The names that expressions read."""
    for node in nodes:
        yield from (item.id for item in walk(node) if isinstance(item, ast.Name))


def has_builtin_decorators(node: _Function) -> bool:
    """Whether a function's decorators are none, or builtins that run nothing of it."""
    plain = {"staticmethod", "classmethod", "property"}
    return all(isinstance(item, ast.Name) and dotted(item) in plain for item in node.decorator_list)
