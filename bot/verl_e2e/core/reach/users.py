"""Who uses what differs: files that take a name of it, files that name another one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import assert_never

from verl_e2e.core.reach.program import BODY, ModuleView, Program, Summary, absolute
from verl_e2e.core.reach.walk import Reach

# Every byte that is not part of a file's path becomes a blank, and either quote the same one.
_PATHS_ALONE = bytes(
    byte if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_./-") else 34 if byte in b"'\"" else 32
    for byte in range(256)
)


def named_files(source: bytes) -> tuple[str, ...]:
    """The names of files with which a text in a source ends, each with the folder that it is in where that is named.

    Comments and what documentation says of a file are left out: there no quote follows the name.
    """
    words = set(source.translate(_PATHS_ALONE).split())
    quoted = (part for word in words if b'"' in word and b"." in word for part in word.split(b'"')[:-1])
    names = (name.decode("ascii").strip("./") for name in quoted if b"." in name)
    return tuple(sorted({"/".join(name.rsplit("/", 2)[-2:]) for name in names}))


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
        # The `__init__` of a package hands on what it does nothing with itself.
        refs = (ref.lstrip("^=").partition(".")[0] for symbol in view.symbols.values() for ref in symbol.refs)
        if view.package and item.scope == BODY and item.name not in refs:
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


class Distance(IntEnum):
    """How a file uses a changed module, nearest first: a symbol that differs, the module, a re-export, another file."""

    SYMBOL = 0
    MODULE = 1
    REEXPORT = 2
    THROUGH = 3


@dataclass(frozen=True, slots=True)
class ChangedModule:
    """A module that differs: its dotted name, its file, and the symbols that differ where they are known.

    `reached` says that the other program runs something of what differs.
    """

    name: str
    path: str
    symbols: frozenset[str] = frozenset()
    reached: bool = True

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__` of a package: every import of something below imports it too."""
        return self.path.endswith("__init__.py")


@dataclass(frozen=True, slots=True)
class Use:
    """How one file uses one changed module; `name` is the symbol or the file between, where there is one."""

    module: ChangedModule
    distance: Distance
    name: str = ""

    @property
    def rank(self) -> tuple[bool, int]:
        """Sorts the nearest use first; what the other program runs comes before the rest."""
        return (not self.module.reached, self.distance)

    def __str__(self) -> str:
        match self.distance:
            case Distance.SYMBOL:
                return f"it uses {self.name} of {self.module.name}, which differs"
            case Distance.MODULE:
                return f"it imports {self.module.name}, which differs"
            case Distance.REEXPORT:
                return f"it imports {self.name}, which {self.module.name} defines, and that module differs"
            case Distance.THROUGH:
                return f"it imports {self.name}, which uses {self.module.name}, and that module differs"
            case distance:
                assert_never(distance)


Changed = Mapping[str, ChangedModule]


def nearest_use(module: str, summary: Summary, changed: Changed, program: Program | None) -> Use | None:
    """The nearest use of changed modules in a file, by its dotted name and its summary; None when it uses none."""
    found: list[Use] = []
    for item in (item for item in summary.imports if not item.typing):
        target = absolute(module, item.module, item.dots, package=False)
        whole = target if item.attribute is None else f"{target}.{item.attribute}"
        if whole in changed:
            found.append(Use(changed[whole], Distance.MODULE))
        elif item.attribute is not None and target in changed:
            found.append(_by_symbol(changed[target], item.attribute))
        elif item.attribute is not None and program is not None and target in program:
            meant = program.lookup(target, item.attribute)
            if meant is not None and meant.node.module in changed:
                near = _by_symbol(changed[meant.node.module], meant.node.symbol)
                reexport = Use(near.module, Distance.REEXPORT, item.attribute)
                found.append(near if near.distance is Distance.SYMBOL else reexport)
    # Full names in texts, as a test writes them to replace what they stand for.
    for dotted in summary.texts:
        parts = dotted.split(".")
        for end in range(len(parts), 1, -1):
            known = changed.get(".".join(parts[:end]))
            if known is not None:
                found.append(_by_symbol(known, parts[end]) if end < len(parts) else Use(known, Distance.MODULE))
                break
    return min(found, key=lambda use: (use.rank, use.module.name, use.name), default=None)


def use_through(module: str, summary: Summary, between: Mapping[str, Use]) -> Use | None:
    """The nearest use by way of another file; `between` maps the dotted names of such files to their own uses."""
    found = []
    for item in summary.imports:
        target = absolute(module, item.module, item.dots, package=False)
        names = [target] if item.attribute is None else [f"{target}.{item.attribute}", target]
        found += [Use(between[name].module, Distance.THROUGH, name) for name in names if name in between]
    return min(found, key=lambda use: (use.rank, use.name), default=None)


def _by_symbol(module: ChangedModule, name: str) -> Use:
    if any(symbol.partition(".")[0] == name for symbol in module.symbols):
        return Use(module, Distance.SYMBOL, name)
    return Use(module, Distance.REEXPORT if module.is_package else Distance.MODULE, name)
