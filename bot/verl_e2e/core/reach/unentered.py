"""Whether a run notices what differs between two trees: a function that it never entered may have another body.

A run of the other tree does the same, step by step, until it enters code that differs or asks for something that is
not the same. So all but the bodies of functions must be equal, and the functions whose bodies differ must be among
those that the run did not enter. In doubt it notices.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping

from verl_e2e.core.reach.changes import compare
from verl_e2e.core.reach.effects import Version
from verl_e2e.core.reach.summary import parse

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# How each function of a file is made and called, by its symbol; several definitions of one name are one entry.
_Heads = Mapping[str, tuple[str, ...]]


def noticed(pairs: Iterable[tuple[Version, Version]], entered: Mapping[str, Collection[str]]) -> str:
    """What a run of the older tree notices of the newer one, as `PATH: REASON`; empty for nothing.

    `pairs` are the older and the newer version of each source that a run of either tree can read and that differs.
    `entered` has by path the qualified names of all functions that the run entered.
    """
    for old, new in pairs:
        reason = _noticed_of(old, new, entered.get(new.path, ()))
        if reason:
            return f"{new.path}: {reason}"
    return ""


def _noticed_of(old: Version, new: Version, entered: Collection[str]) -> str:
    if old.content is None or new.content is None:
        return "the file came or went"
    difference = compare(old.content, new.content)
    if difference.problem:
        return difference.problem
    if difference.import_time:
        return "what runs when it is imported differs"
    # The same definitions are left, with other bodies and other parameters.
    before, after = _heads(old.content), _heads(new.content)
    other = [name for name in after if before.get(name) != after[name]]
    if other:
        return f"{min(other)} is called in another way"
    for change in difference.changes:
        if change.kind != "changed" or change.symbol not in after:
            return f"{change.symbol or 'module level'} {change.kind}"
        if _was_entered(change.symbol, entered):
            return f"{change.symbol} was entered"
    return ""


def _was_entered(symbol: str, entered: Collection[str]) -> bool:
    """Whether a function was entered, or one that it makes."""
    return any(name == symbol or name.startswith(f"{symbol}.") for name in entered)


def _heads(content: bytes) -> _Heads:
    tree = parse(content)
    found: dict[str, tuple[str, ...]] = {}
    for symbol, node in _functions(tree.body, "") if isinstance(tree, ast.Module) else ():
        found[symbol] = (*found.get(symbol, ()), _head(node))
    return found


def _functions(body: Iterable[ast.AST], owner: str) -> Iterator[tuple[str, _Function]]:
    """The functions of a module or a class by the names that differences are listed by."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield f"{owner}{node.name}", node
            case ast.ClassDef():
                yield from _functions(node.body, f"{owner}{node.name}.")
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While() | ast.ExceptHandler():
                yield from _functions(ast.iter_child_nodes(node), owner)
            case _:
                pass


def _head(node: _Function) -> str:
    own = [inner for item in node.body for inner in _own_nodes(item)]
    yields = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in own)
    parts = (node.args, node.returns, *node.decorator_list, *getattr(node, "type_params", ()))
    return " ".join((type(node).__name__, str(yields), *(ast.dump(part) if part else "" for part in parts)))


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement but for those of functions in it."""
    if isinstance(node, _Function | ast.Lambda):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own_nodes(child)
