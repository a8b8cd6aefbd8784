"""Small questions about syntax trees."""

import ast
import re
from collections.abc import Iterator

from verl_e2e.core.reach.nodes import walk

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception"})
_LAZY = re.compile(r"\.*[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_REGISTERING = frozenset({"impl", "register"})


def serves(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The function that a decorator such as `@function.register(...)` makes this one an implementation of."""
    for decorator in node.decorator_list:
        front, _, last = dotted(decorator).rpartition(".")
        if front and last in _REGISTERING:
            return front
    return ""


def annotations_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """The annotations of parameters and result."""
    arguments = node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    found = [*(parameter.annotation for parameter in every if parameter is not None), node.returns]
    return [annotation for annotation in found if annotation is not None]


def evaluated_parts(arguments: ast.arguments) -> list[ast.expr]:
    """The defaults of parameters, which are evaluated where the function is defined."""
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


def assigned_names(node: ast.stmt) -> tuple[str, ...]:
    """The module variables that a statement assigns, none for any other statement."""
    match node:
        case ast.Assign(targets=targets):
            return tuple(item.id for item in targets if isinstance(item, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return (name,)
        case _:
            return ()


def lazy_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names and modules of tables such as `{"Name": "package.module"}` or `{"Name": (".module", "Name")}`."""
    for table in (node for node in walk(tree) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            first = value.elts[0] if isinstance(value, ast.Tuple | ast.List) and value.elts else value
            match key, first:
                case ast.Constant(value=str(name)), ast.Constant(value=str(module)) if _LAZY.fullmatch(module):
                    yield name, module
                case _:
                    pass


def dotted(node: ast.expr) -> str:
    """The dotted name that an expression stands for, looking through calls and subscripts; empty for any other."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            front = dotted(node.value)
            return f"{front}.{node.attr}" if front else ""
        case ast.Call():
            return dotted(node.func)
        case ast.Subscript():
            return dotted(node.value)
        case _:
            return ""


def own_name(node: ast.AST) -> str:
    """A name, or the last part of an attribute; empty for any other expression."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def annotated(node: ast.expr | None) -> str:
    """The class that an annotation names, looking through Optional, unions and containers; empty when unclear."""
    match node:
        case ast.Name() | ast.Attribute():
            name = dotted(node)
            return name if name.rpartition(".")[2][:1].isupper() and name not in {"Any", "Callable"} else ""
        case ast.Constant(value=str(text)):
            return annotated(_parsed(text))
        case ast.BinOp(left=left, right=right):
            return annotated(left) or annotated(right)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return annotated(inner)
        case _:
            return ""


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def catches_import_errors(node: ast.Try) -> bool:
    """Whether a failed import inside is survived."""
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if any(kind is None or dotted(kind).rpartition(".")[2] in _IMPORT_ERRORS for kind in kinds):
            return True
    return False
