"""Which files use changed modules, and how near they stand to what differs: by imports and by full names in texts.

A file outside the program, such as a test, is read by its own summary; the program serves the re-exports.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import assert_never

from verl_e2e.core.reach.program import Program, absolute
from verl_e2e.core.reach.summary import Import, Summary


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
    found = [*_uses_by_import(module, summary, changed, program), *_uses_by_name(summary, changed)]
    return min(found, key=lambda use: (use.rank, use.module.name, use.name), default=None)


def use_through(module: str, summary: Summary, between: Mapping[str, Use]) -> Use | None:
    """The nearest use by way of another file; `between` maps the dotted names of such files to their own uses."""
    found = [
        Use(between[name].module, Distance.THROUGH, name)
        for item in summary.imports
        for name in _imported_modules(module, item)
        if name in between
    ]
    return min(found, key=lambda use: (use.rank, use.name), default=None)


def _target(module: str, item: Import) -> str:
    return absolute(module, item.module, item.dots, package=False)


def _imported_modules(module: str, item: Import) -> tuple[str, ...]:
    target = _target(module, item)
    return (target,) if item.attribute is None else (f"{target}.{item.attribute}", target)


def _uses_by_import(module: str, summary: Summary, changed: Changed, program: Program | None) -> Iterator[Use]:
    for item in (item for item in summary.imports if not item.typing):
        target = _target(module, item)
        whole = target if item.attribute is None else f"{target}.{item.attribute}"
        if whole in changed:
            yield Use(changed[whole], Distance.MODULE)
        elif item.attribute is not None and target in changed:
            yield _by_symbol(changed[target], item.attribute)
        elif item.attribute is not None and program is not None:
            yield from _by_reexport(program, target, item.attribute, changed)


def _by_symbol(module: ChangedModule, name: str) -> Use:
    if any(symbol.partition(".")[0] == name for symbol in module.symbols):
        return Use(module, Distance.SYMBOL, name)
    return Use(module, Distance.REEXPORT if module.is_package else Distance.MODULE, name)


def _by_reexport(program: Program, target: str, name: str, changed: Changed) -> Iterator[Use]:
    found = program.lookup(target, name) if target in program else None
    if found is not None and found.node.module in changed:
        near = _by_symbol(changed[found.node.module], found.node.symbol)
        yield near if near.distance is Distance.SYMBOL else Use(near.module, Distance.REEXPORT, name)


def _uses_by_name(summary: Summary, changed: Changed) -> Iterator[Use]:
    """Full names in texts, as a test writes them to replace what they stand for."""
    for dotted in summary.texts:
        parts = dotted.split(".")
        for end in range(len(parts), 1, -1):
            module = changed.get(".".join(parts[:end]))
            if module is not None:
                yield _by_symbol(module, parts[end]) if end < len(parts) else Use(module, Distance.MODULE)
                break
