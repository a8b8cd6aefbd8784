"""Where another program enters: what it imports of a package, and which attributes it uses on what it got from there."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bot.core.reach.summary import parse, summarize
from bot.core.reach.walk import Entry

_CALLS_FOLLOWED = 2
_ASKING = frozenset({"getattr", "hasattr", "setattr"})


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call of an imported name, or of a method on an object that came from the package (`method` True).

    `open_ended` says that the call passes `*` or `**` arguments, which may be anything.
    """

    name: str
    method: bool
    positional: int
    keywords: tuple[str, ...]
    open_ended: bool
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Uses:
    """All that another program uses of a package; `source` tells people which program, and from where it was read."""

    entries: tuple[Entry, ...]
    calls: tuple[CallSite, ...]
    source: str


def uses_of(sources: Mapping[str, bytes], package: str, source: str) -> Uses:
    """Every import of the package, also inside functions, and every attribute used on objects that come from it.

    An object comes from the package when it was assigned from a call of an imported name, or from a call of such an
    object's method. Names are followed across files, for an object is handed on under one name; no further than
    those two calls, for what a model or a tensor is asked for says nothing about the package.
    """
    imports = [entry for path, text in sorted(sources.items()) for entry in _imports(path, text, package)]
    names = {entry.attribute for entry in imports if entry.attribute}
    trees = _Trees(sources)
    holders = set(names)
    for _ in range(_CALLS_FOLLOWED):
        holders |= {
            target for _, tree in trees.naming(holders) for target, called in _assigned_calls(tree) if called & holders
        }
    used: dict[str, Entry] = {}
    calls: list[CallSite] = []
    for path, tree in trees.naming(holders):
        calls.extend(_calls(path, tree, names, holders))
        for attribute, line in _attributes(tree, holders):
            used.setdefault(attribute, Entry("", attribute, path, line))
    attributes = sorted(used.values(), key=lambda one: (one.file, one.line, one.attribute or ""))
    return Uses((*imports, *attributes), tuple(sorted(set(calls), key=lambda one: (one.file, one.line, one.name))), source)


class _Trees:
    """Syntax trees of the files that mention a name, made once each."""

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        self._sources = sources
        self._trees: dict[str, ast.Module | str] = {}

    def naming(self, names: set[str]) -> Iterator[tuple[str, ast.Module]]:
        wanted = [name.encode() for name in names]
        for path in sorted(self._sources):
            source = self._sources[path]
            if not any(name in source for name in wanted):
                continue
            tree = self._trees.get(path)
            if tree is None:
                tree = self._trees[path] = parse(source)
            if isinstance(tree, ast.Module):
                yield path, tree


def _imports(path: str, source: bytes, package: str) -> Iterator[Entry]:
    if package.encode() not in source and package.rpartition(".")[2].encode() not in source:
        return
    for one in summarize(source).imports:
        module = one.module if one.attribute is None else f"{one.module}.{one.attribute}"
        if one.dots or one.typing or not f"{module}.".startswith(f"{package}."):
            continue
        if f"{one.module}.".startswith(f"{package}."):
            yield Entry(one.module, one.attribute, path, one.line, one.guarded)
        else:
            yield Entry(module, None, path, one.line, one.guarded)


def _assigned_calls(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                if isinstance(target, ast.Name | ast.Attribute):
                    yield _last(target), _called(node.value.func)


def _attributes(tree: ast.Module, holders: set[str]) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name) if _last(owner) in holders:
                yield name, node.lineno
            case ast.Call(func=ast.Name(id=asked), args=[owner, ast.Constant(value=str(name)), *_]) if (
                asked in _ASKING and _last(owner) in holders
            ):
                yield name, node.lineno
            case _:
                pass


def _calls(path: str, tree: ast.Module, names: set[str], holders: set[str]) -> Iterator[CallSite]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in names:
                yield _site(path, node, name, method=False)
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if _last(owner) in holders:
                yield _site(path, node, name, method=True)
            case _:
                pass


def _site(path: str, node: ast.Call, name: str, *, method: bool) -> CallSite:
    open_ended = any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords)
    keywords = tuple(sorted(one.arg for one in node.keywords if one.arg))
    return CallSite(name, method, len(node.args), keywords, open_ended, path, node.lineno)


def _called(node: ast.expr) -> set[str]:
    """The function called and, for a method, the object that it is called on."""
    return {_last(node), _last(node.value)} if isinstance(node, ast.Attribute) else {_last(node)}


def _last(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
