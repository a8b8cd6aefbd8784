"""Whether a run notices what differs between two trees: a function that it never entered may have another body.

A run of the other tree does the same, step by step, until it enters code that differs or asks for something that is
not the same. So all but the bodies of functions must be equal or be proved to have no effect, and the functions whose
bodies differ must be among those that the run did not enter. In doubt it notices.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping

from verl_e2e.core.reach.changes import FileDifference, SymbolChange, compare
from verl_e2e.core.reach.effects import Sides, Version
from verl_e2e.core.reach.importing import ClaimKind
from verl_e2e.core.reach.program import module_name
from verl_e2e.core.reach.summary import parse

# What the program proves of names by all files that could ask for them.
_OF_NAMES = frozenset({ClaimKind.ADDED, ClaimKind.REMOVED, ClaimKind.LISTED, ClaimKind.IMPORTED})
_Function = ast.FunctionDef | ast.AsyncFunctionDef
# How each function of a file is made and called, by its symbol; several definitions of one name are one entry.
_Heads = Mapping[str, tuple[str, ...]]


def noticed(
    pairs: Iterable[tuple[Version, Version]],
    both: Sides,
    entered: Mapping[str, Collection[str]],
    roots: tuple[str, ...],
    *,
    by_tests: bool = False,
) -> str:
    """What a run of the older tree notices of the newer one, as `PATH: REASON`; empty for nothing.

    `pairs` are the older and the newer version of each source that a run of either tree can read and that differs;
    `both` are the trees. `entered` has by path the qualified names of all functions that the run entered.
    With `by_tests` the run has tests, which the trees do not hold and which may ask for any name: none comes or goes.
    """
    for old, new in pairs:
        reason = _noticed_of(old, new, both, entered.get(new.path, ()), roots, by_tests=by_tests)
        if reason:
            return f"{new.path}: {reason}"
    return ""


def _noticed_of(
    old: Version, new: Version, both: Sides, entered: Collection[str], roots: tuple[str, ...], *, by_tests: bool
) -> str:
    if old.content is None or new.content is None:
        return "the file came or went"
    difference = compare(old.content, new.content)
    if difference.problem:
        return difference.problem
    module = module_name(new.path, roots) or ""
    if difference.import_time or not all(both.proofs.holds(claim, module) for claim in difference.claims):
        return "what runs when it is imported differs"
    names = sorted(claim.name for claim in difference.claims if by_tests and claim.kind in _OF_NAMES)
    if names:
        return f"{names[0]} came or went, and tests may ask for it"
    before, after = _heads(old.content), _heads(new.content)
    reason = _noticed_names(before, after, entered)
    return reason or next(
        filter(None, (_noticed_change(item, before, after, entered) for item in _listed(difference))), ""
    )


def _noticed_names(before: _Heads, after: _Heads, entered: Collection[str]) -> str:
    """What is noticed of the functions' names, and of how they are made and called."""
    came, gone = after.keys() - before.keys(), before.keys() - after.keys()
    # A method that comes or goes may take another one's place, and both at once may be a new name for one.
    if (came and gone) or any("." in name for name in came | gone):
        return f"{min(came | gone)} came or went"
    other = [name for name in before.keys() & after.keys() if before[name] != after[name]]
    if other:
        return f"{min(other)} is called in another way"
    ran = [name for name in gone if _was_entered(name, entered)]
    return f"{min(ran)} was entered and went" if ran else ""


def _listed(difference: FileDifference) -> Iterator[SymbolChange]:
    # A newly imported name is import-time code, which was compared.
    return (change for change in difference.changes if change.kind != "imports")


def _noticed_change(change: SymbolChange, before: _Heads, after: _Heads, entered: Collection[str]) -> str:
    symbol, there = change.symbol, (change.symbol in before, change.symbol in after)
    if _was_entered(symbol, entered):
        return f"{symbol} was entered"
    match change.kind, there:
        case "changed", (True, True):
            return ""
        # What comes or goes at module level was proved to be asked for by no file.
        case "added" | "removed", _ if symbol and "." not in symbol:
            return ""
        case kind, _:
            return f"{symbol or 'module level'} {kind}"


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
