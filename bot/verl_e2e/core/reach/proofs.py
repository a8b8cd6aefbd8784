"""Check claims about import-time code on the programs at base and head: what is not proved here has an effect."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import assert_never

from verl_e2e.core.reach.evaluates import HARMLESS_MODULES
from verl_e2e.core.reach.import_items import LISTS_NAMES
from verl_e2e.core.reach.importing import Claim, ClaimKind
from verl_e2e.core.reach.normal import READS_DOCSTRINGS
from verl_e2e.core.reach.program import ModuleView, Program
from verl_e2e.core.reach.summary import BODY, Import
from verl_e2e.core.reach.walk import Reach

# Where classes come from that do not look at what their subclasses hold: no class of Megatron-LM 2a75ac12 below these
# packages, and none of PyTorch's modules, has a metaclass of its own, `__init_subclass__` or `__set_name__`.
_HOOKLESS_ORIGINS = ("megatron.core.", "megatron.training.", "torch.nn.", "torch.autograd.")
_HOOKLESS_NAMES = frozenset({"abc.ABC", "typing.Generic", "typing.Protocol"})
_HOOKLESS_BUILTINS = frozenset({"object", "dict", "list", "Exception", "ValueError", "RuntimeError", "TypeError"})
# Among the names that are taken of a module: a file that has it by its name may ask for any.
EVERY_NAME = "?"
_HOOKS = ("__init_subclass__", "__set_name__", "__prepare__")


class Proofs:
    """Proves claims of changed modules, by what both programs import."""

    def __init__(self, base: Program, head: Program, base_reach: Reach) -> None:
        self._base = base
        self._head = head
        self._entries = base_reach.entries
        self._asked: dict[int, dict[str, set[str | None]]] = {}
        self._listed: dict[int, set[str]] = {}
        self._below: dict[str, set[str]] = {}

    def holds(self, claim: Claim, module: str) -> bool:
        """Whether a claim of a module holds."""
        match claim.kind:
            case ClaimKind.ADDED:
                return self._is_unasked(claim.name, module, self._base) and self._is_no_submodule(claim.name, module)
            case ClaimKind.REMOVED:
                return self._is_unasked(claim.name, module, self._head)
            case ClaimKind.LISTED:
                return not any("*" in self._names_asked(module, program) for program in (self._base, self._head))
            case ClaimKind.IMPORTED:
                return self._import_succeeds(claim, module)
            case ClaimKind.LOADED:
                return self._stays_loaded(claim, module)
            case ClaimKind.UNREAD:
                return all(
                    self._reads_no_docstring(module, claim.name, program) for program in (self._base, self._head)
                )
            case ClaimKind.HOOKLESS:
                return all(self._is_hookless(module, claim.name, program) for program in (self._base, self._head))
            case kind:
                assert_never(kind)

    def _names_asked(self, module: str, program: Program) -> set[str | None]:
        """What all files of a program take from a module, by an import or by a text; None for the module itself."""
        table = self._asked.get(id(program))
        if table is None:
            table = self._asked[id(program)] = {}
            for view in _views(program):
                for target, attribute in view.taken:
                    table.setdefault(target, set()).add(attribute)
            for outer, name in _named(program):
                table.setdefault(outer, set()).add(name)
        return table.get(module, set())

    def _is_listed(self, module: str, program: Program) -> bool:
        """Whether a file that lists the names of some object has the module as an object."""
        found = self._listed.get(id(program))
        if found is None:
            found = self._listed[id(program)] = set()
            for view in _views(program):
                if any(map(view.summary.naming, LISTS_NAMES)):
                    found.update(_taken_whole(view))
        return module in found

    def _is_unasked(self, name: str, module: str, program: Program) -> bool:
        """Whether no file takes the name from the module, and none could without saying so."""
        asked = self._names_asked(module, program)
        view = program.view(module)
        outer, _, own = module.rpartition(".")
        as_object = None in asked or own in self._names_asked(outer, program)
        if any(
            entry.attribute == name or (entry.module == module and entry.attribute == "*") for entry in self._entries
        ):
            return False
        lazy = view is not None and ("__getattr__" in view.symbols or view.lazy)
        if lazy or asked & {name, "*", EVERY_NAME} or self._is_listed(module, program):
            return False
        return not as_object or not self._is_attribute_anywhere(name, program)

    def _is_attribute_anywhere(self, name: str, program: Program) -> bool:
        return any(name in view.summary.attributes for view in _views(program))

    def _is_no_submodule(self, name: str, module: str) -> bool:
        return f"{module}.{name}" not in self._base and f"{module}.{name}" not in self._head

    def _import_succeeds(self, claim: Claim, module: str) -> bool:
        """Whether something that is imported anyway takes the same name from the same module, at base and at head."""
        view = self._head.view(module)
        if view is None:
            return False
        target = view.absolute(claim.module, claim.dots)
        known = bool(self._certain_importers.get((target, claim.attribute), set()) - {module})
        if not known or target not in self._head:
            return known
        there = self._head.lookup(target, claim.attribute or "")
        return there is not None and module not in self._imports_below(target)

    def _stays_loaded(self, claim: Claim, module: str) -> bool:
        """Whether an import that is gone loads nothing by itself, or something else at the head surely does so too."""
        view = self._base.view(module)
        target = view.absolute(claim.module, claim.dots) if view is not None else claim.module
        if target in HARMLESS_MODULES:
            return True
        inner = f"{target}.{claim.attribute}"
        there = self._base.view(target)
        # Of another package nothing tells whether a name is a module.
        if target in self._base and inner not in self._base and not (there and "__getattr__" in there.symbols):
            return True
        known = self._certain_importers_at_head
        return any(
            importers - {module}
            for (name, attribute), importers in known.items()
            if (name, attribute) == (target, claim.attribute) or f"{name}.".startswith(f"{inner}.")
        )

    @cached_property
    def _certain_importers(self) -> "_Importers":
        return self._read_certain_importers(self._base)

    @cached_property
    def _certain_importers_at_head(self) -> "_Importers":
        return self._read_certain_importers(self._head)

    def _read_certain_importers(self, program: Program) -> "_Importers":
        """The modules that surely take a name from a module when the other program's entries are imported, by both."""
        found: dict[tuple[str, str | None], set[str]] = {}
        todo = [outer for entry in self._entries if entry.module for outer in _with_outer(entry.module)]
        begun = set(todo)
        while todo:
            view = program.view(todo.pop())
            for item in view.by_scope.get(BODY, ()) if view is not None else ():
                assert view is not None
                if not _is_certain(item):
                    continue
                target = view.target(item)
                found.setdefault((target, item.attribute), set()).add(view.name)
                inner = (f"{target}.{item.attribute}",) if item.attribute is not None else ()
                new = {name for name in (*_with_outer(target), *inner) if name in program.paths} - begun
                begun |= new
                todo.extend(new)
        return found

    def _imports_below(self, module: str) -> set[str]:
        """Every module that importing one begins, its own outer packages aside, which are begun before it."""
        if module not in self._below:
            self._below[module] = self._read_imports_below(module)
        return self._below[module]

    def _read_imports_below(self, module: str) -> set[str]:
        found: set[str] = set()
        todo = [module]
        while todo:
            name = todo.pop()
            view = self._head.view(name)
            for text in view.by_scope.get(BODY, ()) if view else ():
                target = view.target(text) if view else ""
                parts = target.split(".")
                ways = [".".join(parts[:end]) for end in range(1, len(parts) + 1)] + [f"{target}.{text.attribute}"]
                for way in ways:
                    if way in self._head.paths and way not in found and not f"{name}.".startswith(f"{way}."):
                        found.add(way)
                        todo.append(way)
        return found

    def _reads_no_docstring(self, module: str, decorator: str, program: Program) -> bool:
        """Whether a decorator is this program's own, and nothing in the module that defines it reads docstrings."""
        found, _ = program.dotted(module, decorator.split("."))
        view = program.view(found.node.module) if found is not None and found.node.symbol else None
        if view is None:
            return False
        refs = (ref for symbol in view.symbols.values() for ref in symbol.refs)
        return not any(part in READS_DOCSTRINGS for ref in refs for part in ref.split("."))

    def _is_hookless(self, module: str, name: str, program: Program, depth: int = 0) -> bool:
        view = program.view(module)
        symbol = view.symbols.get(name) if view else None
        if symbol is None or symbol.kind != "class" or depth > _MOST_BASES:
            return False
        if any(f"{name}.{hook}" in (view.symbols if view else ()) for hook in _HOOKS):
            return False
        return all(self._is_hookless_base(module, base, program, depth) for base in symbol.bases)

    def _is_hookless_base(self, module: str, base: str, program: Program, depth: int) -> bool:
        found, rest = program.dotted(module, base.split("."))
        if found is None:
            return _is_known_hookless(base, program.view(module))
        return not rest and self._is_hookless(found.node.module, found.node.symbol, program, depth + 1)


# By a module and a name in it the modules that surely take it.
_Importers = Mapping[tuple[str, str | None], set[str]]
_MOST_BASES = 30


def _is_known_hookless(base: str, view: ModuleView | None) -> bool:
    """Whether a base of another package is known to have no hooks, by where the file imports it from."""
    first, _, rest = base.partition(".")
    one = view.imports.get(first) if view else None
    if view is None or one is None:
        return base in _HOOKLESS_BUILTINS
    origin = ".".join(part for part in (view.target(one), one.attribute, rest) if part)
    return origin in _HOOKLESS_NAMES or origin.startswith(_HOOKLESS_ORIGINS)


def _views(program: Program) -> Iterator[ModuleView]:
    return (view for view in map(program.view, program.paths) if view is not None)


def _imports(program: Program) -> Iterator[tuple[ModuleView, Import]]:
    for module in program.paths:
        view = program.view(module)
        for scope in view.by_scope.values() if view else ():
            for item in scope:
                assert view is not None
                yield view, item


def _with_outer(module: str) -> Iterator[str]:
    """A module and the packages around it."""
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _named(program: Program) -> Iterator[tuple[str, str]]:
    """Each module that a text of a file names, with the name of it that follows; `EVERY_NAME` where none does."""
    for view in _views(program):
        for parts in (text.split(".") for text in view.summary.texts):
            for end in range(1, len(parts) + 1):
                if (outer := ".".join(parts[:end])) in program.paths:
                    yield outer, parts[end] if end < len(parts) else EVERY_NAME


def _taken_whole(view: ModuleView) -> Iterator[str]:
    """What a file may have as the object of a module."""
    for item in (item for items in view.by_scope.values() for item in items):
        target = view.target(item)
        yield from _with_outer(target) if item.attribute is None else (f"{target}.{item.attribute}",)


def _is_certain(item: Import) -> bool:
    """Whether an import is executed whenever its module is, and nothing catches its failing."""
    return item.scope == BODY and not item.guarded and not item.conditional
