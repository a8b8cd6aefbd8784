"""Where another program enters: what it imports of a package, and what it uses on the objects it got from there."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from verl_e2e.core.reach.program import parse
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.syntax import own_name, walk
from verl_e2e.core.reach.walk import Entry

# Raise it whenever the same sources would read differently: stored uses are then made again.
USES_VERSION = 4
_CALLS_FOLLOWED = 2
# The package of Megatron-LM that trainers import.
_CORE = "megatron.core"
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
    # What it imports of Megatron-LM itself.
    core: tuple[Entry, ...] = ()


def uses_of(sources: Mapping[str, bytes], package: str, source: str) -> Uses:
    """Every import of the package, also inside functions, and every attribute used on objects that come from it.

    An object comes from the package when it was assigned from a call of an imported name, or from a call of such an
    object's method. Names are followed across files, for an object is handed on under one name; no further than
    those two calls, for what a model or a tensor is asked for says nothing about the package.
    """
    imports = tuple(_imports(sources, package))
    names = {entry.attribute for entry in imports if entry.attribute}
    files = _Files(sources)
    holders = set(names)
    for _ in range(_CALLS_FOLLOWED):
        holders |= {target for file in files.naming(holders) for target, called in file.assigned if called & holders}
    used: dict[str, Entry] = {}
    calls: set[CallSite] = set()
    for file in files.naming(holders):
        calls.update(site for site in file.calls if site.name in names and not site.method)
        calls.update(site for owner, site in file.methods if owner in holders)
        for owner, attribute, line in file.attributes:
            if owner in holders:
                used.setdefault(attribute, Entry("", attribute, file.path, line))
    attributes = sorted(used.values(), key=lambda item: (item.file, item.line, item.attribute or ""))
    ordered = sorted(calls, key=lambda call: (call.file, call.line, call.name))
    return Uses((*imports, *attributes), tuple(ordered), source, tuple(_imports(sources, _CORE)))


def _imports(sources: Mapping[str, bytes], package: str) -> Iterator[Entry]:
    named = (package.encode(), f"from {package.partition('.')[0]} import".encode())
    for path, text in sorted(sources.items()):
        for item in summarize(text).imports if any(part in text for part in named) else ():
            module = item.module if item.attribute is None else f"{item.module}.{item.attribute}"
            if item.dots or item.typing or not f"{module}.".startswith(f"{package}."):
                continue
            below = f"{item.module}.".startswith(f"{package}.")
            name = (item.module, item.attribute) if below else (module, None)
            yield Entry(*name, path, item.line, item.guarded)


@dataclass(frozen=True, slots=True)
class _File:
    """What one file assigns from calls, which attributes it uses on what, and what it calls."""

    path: str
    assigned: tuple[tuple[str, frozenset[str]], ...]
    attributes: tuple[tuple[str, str, int], ...]
    calls: tuple[CallSite, ...]
    methods: tuple[tuple[str, CallSite], ...]


class _Files:
    """The files that mention a name, read once each."""

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        self._sources = sources
        self._files: dict[str, _File | None] = {}

    def naming(self, names: set[str]) -> Iterator[_File]:
        pattern = re.compile(rb"\b(?:" + b"|".join(sorted(name.encode() for name in names)) + rb")\b")
        for path in sorted(self._sources):
            if names and pattern.search(self._sources[path]):
                if path not in self._files:
                    self._files[path] = _read(path, self._sources[path])
                found = self._files[path]
                if found is not None:
                    yield found


def _read(path: str, source: bytes) -> _File | None:
    tree = parse(source)
    if isinstance(tree, str):
        return None
    assigned: list[tuple[str, frozenset[str]]] = []
    attributes: list[tuple[str, str, int]] = []
    calls: list[CallSite] = []
    methods: list[tuple[str, CallSite]] = []
    for node in walk(tree):
        if isinstance(node, ast.Attribute):
            attributes.append((own_name(node.value), node.attr, node.lineno))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            # The function called and, for a method, the object that it is called on.
            func = node.value.func
            called = {own_name(func), own_name(func.value)} if isinstance(func, ast.Attribute) else {own_name(func)}
            assigned.extend((own_name(target), frozenset(called)) for target in node.targets if own_name(target))
        elif isinstance(node, ast.Call):
            match node:
                case ast.Call(func=ast.Name(id=asked), args=[owner, ast.Constant(value=str(name)), *_]):
                    attributes += [(own_name(owner), name, node.lineno)] if asked in _ASKING else []
                case _:
                    pass
            if isinstance(node.func, ast.Attribute):
                methods.append((own_name(node.func.value), _site(path, node, node.func.attr, method=True)))
            elif isinstance(node.func, ast.Name):
                calls.append(_site(path, node, node.func.id, method=False))
    return _File(path, tuple(assigned), tuple(attributes), tuple(calls), tuple(methods))


def _site(path: str, node: ast.Call, name: str, *, method: bool) -> CallSite:
    open_ended = any(isinstance(item, ast.Starred) for item in node.args) or any(
        keyword.arg is None for keyword in node.keywords
    )
    keywords = tuple(sorted(keyword.arg for keyword in node.keywords if keyword.arg))
    return CallSite(name, method, len(node.args), keywords, open_ended, path, node.lineno)
