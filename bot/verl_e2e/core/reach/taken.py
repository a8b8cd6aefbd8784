"""What other files run of a module: the names that they take from it, and what these use inside it."""

from collections.abc import Callable, Iterable, Iterator

from verl_e2e.core.reach.program import ModuleView, Program
from verl_e2e.core.reach.summary import BODY, Import
from verl_e2e.core.reach.walk import Reach


def taken_elsewhere(module: str, program: Program, reach: Reach, counts: Callable[[str], bool]) -> frozenset[str]:
    """The symbols of a module that reached files run for which `counts` is true of their path.

    A class that is only registered, or handed on by the `__init__` of a package, is run by none of them.
    """
    own = program.view(module)
    if own is None:
        return frozenset()
    reached = {*reach.imported, *(node.module for node in reach.steps)}
    users = (name for name, path in program.paths.items() if name in reached and name != module and counts(path))
    views = filter(None, map(program.view, users))
    names = {name for view in views for name in _taken(view, module, program)}
    return frozenset(own.symbols) if None in names else _used_by(own, (name for name in names if name is not None))


def _taken(view: ModuleView, module: str, program: Program) -> Iterator[str | None]:
    """The names that one file takes from a module; None for the module itself."""
    for item in (item for items in view.by_scope.values() for item in items):
        if view.package and item.scope == BODY and not _is_used(view, item):
            continue
        target = view.target(item)
        if module in {target, f"{target}.{item.attribute}"}:
            yield item.attribute if target == module and item.attribute != "*" else None
        elif item.attribute is not None and target in program:
            found = program.lookup(target, item.attribute)
            if found is not None and found.node.module == module:
                yield found.node.symbol or None
    for text in view.summary.texts:
        if text == module or text.startswith(f"{module}."):
            yield text.removeprefix(module)[1:].partition(".")[0] or None


def _is_used(view: ModuleView, item: Import) -> bool:
    """Whether the file itself does anything with an imported name."""
    return any(
        ref.lstrip("^=").partition(".")[0] == item.name for symbol in view.symbols.values() for ref in symbol.refs
    )


def _used_by(view: ModuleView, names: Iterable[str]) -> frozenset[str]:
    """The symbols of a module with these names, methods of classes among them, and all that these name in turn."""
    found: set[str] = set()
    waiting = [name for name in names if name in view.symbols]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        waiting.extend(view.methods.get(name, {}).values())
        owner = name.partition(".")[0]
        for ref in view.symbols[name].refs:
            first, _, rest = ref.lstrip("^=").partition(".")
            first = first.removesuffix("()")
            inner = f"{owner if first in {'self', 'super'} else first}.{rest.partition('.')[0]}"
            waiting.extend(symbol for symbol in (first, inner) if symbol in view.symbols)
    return frozenset(found)
