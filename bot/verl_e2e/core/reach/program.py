"""A tree of modules, each read into a summary of its references, in which names can be looked up."""

import ast
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from verl_e2e.core.reach.syntax import beyond_limits

BODY = ""
# What a later Python alone can read, an import in a run cannot, whichever Python this is.
_PYTHON_OF_RUNS = (3, 12)
# Raise it whenever a summary of the same text would read differently: stored ones are then made again.
SUMMARY_VERSION = 10


# Tables of a file are tuples, because a tree has some ten thousand of them: they are made in a quarter of the time.
class Import(NamedTuple):
    """One imported name: `module` (with `dots` in front when relative), `attribute` (None: the module itself).

    `scope` is the symbol that executes the import, `guarded` whether an ImportError is caught, `typing` whether
    only a type checker sees it.
    """

    name: str
    module: str
    dots: int
    attribute: str | None
    line: int
    scope: str
    guarded: bool = False
    typing: bool = False


class Symbol(NamedTuple):
    """A function, a class, a method (`Class.method`), a module variable, or the module's body (`""`).

    `bases` and `decorated` are set for classes; `decorated` says that a decorator may register the class. `serves` is
    set for a function that is registered as the implementation of another: it runs when that one is called.
    """

    name: str
    kind: str
    line: int
    refs: tuple[str, ...]
    bases: tuple[str, ...] = ()
    decorated: bool = False
    serves: str = ""


@dataclass(frozen=True)
class Summary:
    """One file. `problem` tells why nothing could be read, empty when all was.

    `lazy` pairs names with the modules that a table of the file says they come from: a module's `__getattr__`
    serves them.
    """

    symbols: tuple[Symbol, ...]
    imports: tuple[Import, ...]
    problem: str = ""
    lazy: tuple[tuple[str, str], ...] = ()
    # The files that texts name, each with its folder where the text has one.
    files: tuple[str, ...] = ()

    # Kept with the summary, which is there as long as its file's content is in use.
    @cached_property
    def texts(self) -> tuple[str, ...]:
        """What reads like a full name in texts."""
        return tuple(dict.fromkeys(ref[1:] for symbol in self.symbols for ref in symbol.refs if ref[0] == "!"))


def encoding_of(source: bytes | None) -> str:
    """The encoding that a source declares, by a mark or by its first lines; empty for one that Python refuses."""
    try:
        return tokenize.detect_encoding(iter((source or b"").splitlines(keepends=True)[:2]).__next__)[0]
    except SyntaxError:
        return ""


def parse(source: bytes) -> ast.Module | str:
    """The syntax tree, or one clause that says why there is none."""
    if problem := beyond_limits(source):
        return problem
    try:
        # Not every version of Python decodes comments, but what reads the sources of a run does.
        if encoding_of(source) in {"", "utf-8", "utf-8-sig"}:
            source.decode()
        return ast.parse(source, feature_version=_PYTHON_OF_RUNS)
    except SyntaxError as error:
        return f"line {error.lineno or 1} is not Python ({error.msg})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"it is not Python ({type(error).__name__})"


# What `parse` says of the contents that were asked for last; no one may change such a tree. A tree takes about thirty
# times as much memory as its content.
parse_to_read = lru_cache(maxsize=4)(parse)


_MOST_REEXPORTS = 12


class Node(NamedTuple):
    """A symbol of a module; the symbol `""` is the module's body, run when it is imported."""

    module: str
    symbol: str

    def __str__(self) -> str:
        return f"{self.module}.{self.symbol}" if self.symbol else self.module


@dataclass(frozen=True, slots=True)
class Found:
    """What a name means: a symbol of the program, or a module (then `node.symbol` is the body's)."""

    node: Node
    kind: str


class ModuleView:
    """One module with its names in a table."""

    def __init__(self, name: str, summary: Summary, *, package: bool) -> None:
        self.name = name
        self.package = package
        self.summary = summary
        self.lazy = dict(summary.lazy)
        self.symbols: dict[str, Symbol] = {}
        # By the name of a class its methods and what they are called in `symbols`, in that order.
        self.methods: dict[str, dict[str, str]] = {}
        for symbol in summary.symbols:
            self.symbols[symbol.name] = symbol
            owner, _, method = symbol.name.partition(".")
            if method:
                self.methods.setdefault(owner, {})[method] = symbol.name
        self.imports: dict[str, Import] = {}
        self.by_scope: dict[str, list[Import]] = {}
        self.stars: list[Import] = []
        for item in summary.imports:
            if not item.typing:
                self.by_scope.setdefault(item.scope, []).append(item)
            if item.attribute == "*":
                self.stars.append(item)
            elif item.name:
                self.imports.setdefault(item.name, item)

    def target(self, item: Import) -> str:
        """The absolute name of the module that an import names."""
        return self.absolute(item.module, item.dots)

    def absolute(self, module: str, dots: int) -> str:
        """A module's name with as many dots in front, seen from this module."""
        return absolute(self.name, module, dots, package=self.package)


def absolute(importer: str, module: str, dots: int, *, package: bool) -> str:
    """A module's name with as many dots in front, seen from another one; `package` says that this is a package."""
    if not dots:
        return module
    parts = importer.split(".")
    kept = parts[: len(parts) - dots + (1 if package else 0)]
    return ".".join([*kept, module] if module else kept)


def module_name(path: str, roots: Iterable[str]) -> str | None:
    """The dotted name of a source file below one of the import roots, None for any other file."""
    for root in roots:
        if path.startswith(root) and path.endswith(".py"):
            parts = path[len(root) : -3].strip("/").split("/")
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


class Program:
    """All modules of one tree, read when first asked for; `paths` gives each module's file."""

    def __init__(self, paths: Mapping[str, str], load: Callable[[str], Summary]) -> None:
        self.paths = paths
        self._load = load
        self._views: dict[str, ModuleView] = {}
        self._names: dict[tuple[str, str], Found | None] = {}
        parts = (name.split(".") for name in paths)
        self._packages = {".".join(name[:end]) for name in parts for end in range(1, len(name))}

    def __contains__(self, module: str) -> bool:
        return module in self.paths or module in self._packages

    def all_views(self) -> Iterator[ModuleView]:
        """Every module of the tree."""
        return (view for module in self.paths if (view := self.view(module)) is not None)

    def view(self, module: str) -> ModuleView | None:
        """A module's table; None for a namespace package, which has no file, and for a foreign module."""
        path = self.paths.get(module)
        if path is not None and module not in self._views:
            self._views[module] = ModuleView(module, self._load(path), package=path.endswith("__init__.py"))
        return self._views.get(module)

    def symbol(self, node: Node) -> Symbol | None:
        """The symbol that a node stands for, None when the tree has no such symbol."""
        view = self.view(node.module)
        return None if view is None else view.symbols.get(node.symbol)

    def lookup(self, module: str, name: str, depth: int = 0) -> Found | None:
        """What a name means inside a module, through imports and re-exports; None when it is foreign or unknown."""
        key = (module, name)
        if key in self._names:
            return self._names[key]
        found = self._lookup(module, name, depth)
        if depth == 0 or found is not None:
            self._names[key] = found
        return found

    def _lookup(self, module: str, name: str, depth: int) -> Found | None:
        view = self.view(module)
        if depth > _MOST_REEXPORTS:
            return None
        imported = view.imports.get(name) if view is not None else None
        if view is not None:
            symbol = view.symbols.get(name)
            if symbol is not None and name:
                return Found(Node(module, name), symbol.kind)
            if imported is not None:
                target = view.target(imported)
                if target not in self:
                    return None
                if imported.attribute is None:
                    return Found(Node(target, BODY), "module")
                if (target, imported.attribute) != (module, name):
                    return self.lookup(target, imported.attribute, depth + 1)
            for star in view.stars if imported is None else ():
                found = self.lookup(view.target(star), name, depth + 1) if view.target(star) in self else None
                if found is not None:
                    return found
            if name in view.lazy and imported is None:
                bare = view.lazy[name].lstrip(".")
                source = view.absolute(bare, len(view.lazy[name]) - len(bare))
                return self.lookup(source, name, depth + 1) if source in self and source != module else None
        inner = f"{module}.{name}"
        return Found(Node(inner, BODY), "module") if inner in self else None

    def full_name(self, dotted: str) -> Found | None:
        """What a full dotted name means, or the longest beginning of it that is a module."""
        parts = dotted.split(".")
        for end in range(len(parts), 1, -1):
            module = ".".join(parts[:end])
            if module in self:
                found = self.lookup(module, parts[end]) if end < len(parts) else None
                return found or Found(Node(module, BODY), "module")
        return None

    def dotted(self, module: str, parts: list[str]) -> tuple[Found | None, list[str]]:
        """The longest beginning of a dotted name that the program knows, and what is left of it."""
        found = self.lookup(module, parts[0])
        rest = parts[1:]
        while found is not None and found.kind == "module" and rest:
            deeper = self.lookup(found.node.module, rest[0])
            if deeper is None:
                break
            found, rest = deeper, rest[1:]
        return found, rest
