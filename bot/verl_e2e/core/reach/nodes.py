"""Walking syntax trees: the nodes and the order of `ast.walk` and `ast.iter_child_nodes`, in a quarter of the time.

What only says whether a name is read, bound or deleted (`ast.expr_context`) is left out: it is asked of the name.
"""

import ast
from collections.abc import Container, Iterator

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


def walk(root: ast.AST, *, without: Container[int] = ()) -> list[ast.AST]:
    """A node and all nodes below it, level by level; a node whose `id` is in `without` is left out with all below."""
    found = [root] if id(root) not in without else []
    # The list grows while it is gone through.
    for node in found:
        for name in _PARTS[type(node)]:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST) and id(item) not in without:
                        found.append(item)  # noqa: PERF401  (a call for each list costs more)
    return found


def copied(node: ast.AST, *, without: Container[int] = ()) -> ast.AST:
    """A copy of a node and of all nodes below it; one whose `id` is in `without` is in both, with all below."""
    if id(node) in without:
        return node
    kind = type(node)
    new = kind.__new__(kind)
    fields = new.__dict__
    fields.update(node.__dict__)
    for name in _PARTS[kind]:
        value = fields.get(name)
        if isinstance(value, ast.AST):
            fields[name] = copied(value, without=without)
        elif isinstance(value, list):
            fields[name] = [copied(item, without=without) if isinstance(item, ast.AST) else item for item in value]
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
