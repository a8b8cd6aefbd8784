"""Syntax trees: how much of a source is parsed, walking in order, and small questions."""

import ast
import re
from collections.abc import Iterator
from typing import Final

MAX_BYTES: Final = 1 << 20
MAX_STATEMENTS: Final = 50_000
MAX_NAME_PARTS: Final = 64

_BLANK = rb"(?:[ \t\f]|\\\r?\n)*+"
# The parser joins a dotted name part by part, so each part costs as much as all before it together.
_DOTTED = re.compile(rb"(?<![\w.\x80-\xff])(?:[\w\x80-\xff]++" + _BLANK + rb"\." + _BLANK + rb"){%d}" % MAX_NAME_PARTS)

# What each such name holds, and hardly any other text: looked for first, as it takes a seventh of the time.
_DOTS = re.compile(rb"\.(?:[\w\x80-\xff \t\f\\\r\n]*+\.){%d}" % (MAX_NAME_PARTS - 1))


def beyond_limits(source: bytes) -> str:
    """Why a file is not parsed, one clause; empty for one that may be."""
    if len(source) > MAX_BYTES:
        return f"it is larger than {MAX_BYTES:,} bytes"
    if source.count(b"\n") + source.count(b"\r") + source.count(b";") > MAX_STATEMENTS:
        return f"it has more than {MAX_STATEMENTS:,} statements"
    if _DOTS.search(source) and _DOTTED.search(source):
        return f"a dotted name in it has more than {MAX_NAME_PARTS} parts"
    return ""


# Fields that never hold nodes, but for `ctx`, whose nodes are left out.
_PLAIN = frozenset(
    {"arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "level", "module", "simple"}
    | {"type_comment"}
)


class _Parts(dict[type[ast.AST], tuple[str, ...]]):
    """The fields that may hold nodes, by the type of node."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = tuple(name for name in kind._fields if name not in _PLAIN)
        return self[kind]


_PARTS = _Parts({ast.Constant: ()})


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below a node, in the order of its fields."""
    found: list[ast.AST] = []
    for name in _PARTS[type(node)]:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    found.append(item)  # noqa: PERF401  (a generator for each list costs more)
    return found


def walk(root: ast.AST) -> list[ast.AST]:
    """A node and all nodes below it, level by level."""
    found = [root]
    # The list grows while it is gone through.
    for node in found:
        for name in _PARTS[type(node)]:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        found.append(item)  # noqa: PERF401  (a call for each list costs more)
    return found


def copied(node: ast.AST) -> ast.AST:
    """A copy of a node and of all nodes below it."""
    kind = type(node)
    new = kind.__new__(kind)
    fields = new.__dict__
    fields.update(node.__dict__)
    for name in _PARTS[kind]:
        value = fields.get(name)
        if isinstance(value, ast.AST):
            fields[name] = copied(value)
        elif isinstance(value, list):
            fields[name] = [copied(item) if isinstance(item, ast.AST) else item for item in value]
    return new


def stored_names(root: ast.AST) -> set[str]:
    """The names that a node and those below it assign, and those that handlers give to errors.

    Names and constants, half of all nodes, have nothing below them and are not gone through.
    """
    found: set[str] = set()
    todo = [root]
    # The list grows while it is gone through.
    for node in todo:
        if isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        for name in _PARTS[type(node)]:
            value = getattr(node, name, None)
            for item in value if isinstance(value, list) else (value,):
                if isinstance(item, ast.Name):
                    if isinstance(item.ctx, ast.Store):
                        found.add(item.id)
                elif isinstance(item, ast.AST) and not isinstance(item, ast.Constant):
                    todo.append(item)
    return found


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement but for those in the functions and classes that it defines."""
    todo = [node]
    while todo:
        here = todo.pop()
        yield here
        if not isinstance(here, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(children(here))


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
            try:
                inside = ast.parse(text.strip(), mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return ""
            return annotated(inside)
        case ast.BinOp(left=left, right=right):
            return annotated(left) or annotated(right)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return annotated(inner)
        case _:
            return ""


def catches_import_errors(node: ast.Try) -> bool:
    """Whether a failed import inside is survived."""
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if any(kind is None or dotted(kind).rpartition(".")[2] in _IMPORT_ERRORS for kind in kinds):
            return True
    return False
