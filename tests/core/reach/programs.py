"""Small programs as {path: source}, what another program reaches in them, and what a change of them does."""

from collections.abc import Mapping
from textwrap import dedent

from verl_e2e.core.reach.effects import Effects, Sides, Version, effects_of
from verl_e2e.core.reach.program import Node, Program, module_name
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.walk import Entry, Reach

ROOTS = ("src/", "more/")
Files = Mapping[str, str]


def program(files: Files) -> Program:
    """The program of these files."""
    paths = {name: path for path in files if (name := module_name(path, ROOTS)) is not None}
    return Program(paths, lambda path: summarize(dedent(files[path]).encode()))


def entries_of(*entries: tuple[str, str | None]) -> tuple[Entry, ...]:
    """Imports of (module, name) at caller.py:7; the use of an attribute where the module is empty."""
    return tuple(Entry(module, name, "caller.py", 7) for module, name in entries)


def reach(files: Files, *entries: tuple[str, str | None]) -> Reach:
    """What the entries reach."""
    return Reach(program(files), entries_of(*entries))


def runs(found: Reach, module: str, *symbols: str) -> list[bool]:
    """Whether each symbol of a module is executed."""
    return [Node(module, symbol) in found.steps for symbol in symbols]


def effects(
    base: Files, changed: Mapping[str, str | None], *entries: tuple[str, str | None], aside: str = "no folder"
) -> Effects:
    """What a change of some files does to a caller with these entries; None deletes a file."""
    head = {path: text for path, text in {**base, **changed}.items() if text is not None}
    both = Sides(program(base), program(head), reach(base, *entries), reach(head, *entries))
    pairs = [(version(path, base.get(path)), version(path, head.get(path))) for path in changed]
    return effects_of(pairs, both, ROOTS, lambda path: path.startswith(aside))


def version(path: str, text: str | None) -> Version:
    """One side of a changed file."""
    return Version(path, None if text is None else dedent(text).encode())


def renamed(base: Files, old: str, new: str, *entries: tuple[str, str | None]) -> Effects:
    """What a rename does whose importers are renamed with it."""
    before, after = (module_name(path, ROOTS) or "" for path in (old, new))
    head = {path: text.replace(before, after) for path, text in base.items() if path != old} | {new: base[old]}
    both = Sides(program(base), program(head), reach(base, *entries), reach(head, *entries))
    return effects_of([(version(old, base[old]), version(new, base[old]))], both, ROOTS)
