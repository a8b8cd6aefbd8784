"""What a change does to what the other program runs: changed symbols that are reached, each with its chain."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bot.core.reach.changes import FileDifference, SymbolChange, compare
from bot.core.reach.program import Node, Program, module_name
from bot.core.reach.summary import BODY
from bot.core.reach.walk import Entry, Reach, Step

NO_EFFECT = "no effect"
NO_EFFECT_BECAUSE = "only comments, docstrings, annotations, layout or log texts differ"
UNREACHED = "not reached"
IMPORT_ONLY = "import alone"
IMPORT_ONLY_BECAUSE = "the module is imported, and nothing that differs in it runs beyond that"
_SHOWN_SYMBOLS = 3


@dataclass(frozen=True, slots=True)
class Effect:
    """A symbol that differs and that the other program can run.

    `kind` and `statements` are those of `SymbolChange`. `via` is the chain, from a line of the other program to the
    symbol, `through` the names of the symbols on it; `sure` is False when an edge of it is a guess.
    """

    path: str
    symbol: str
    kind: str
    line: int
    statements: tuple[frozenset[str], ...]
    via: tuple[str, ...]
    sure: bool
    through: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inside:
    """What was found inside a path: its effects, or the reason why there is none, with a detail for people."""

    effects: tuple[Effect, ...]
    because: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Effects:
    """What is known of the inside of the changed paths.

    `paths` holds those that were judged; `unread` those that could not be, with the reason. `remarks` are sentences
    on how it was found. A path in neither is judged by its name.
    """

    paths: Mapping[str, Inside] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def inside(self, path: str) -> Inside | None:
        """What was found inside a path, None when it was not judged."""
        return self.paths.get(path)


@dataclass(frozen=True, slots=True)
class Version:
    """One file on one side of the change; `content` is None when the side has no such file."""

    path: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Sides:
    """Base and head: the programs and what is reached in each."""

    base: Program
    head: Program
    base_reach: Reach
    head_reach: Reach


def effects_of(pairs: Iterable[tuple[Version, Version]], both: Sides, roots: tuple[str, ...]) -> Effects:
    """Judge pairs of versions, old and new; the names of a renamed file may differ, and both are answered for."""
    paths: dict[str, Inside] = {}
    unread: dict[str, str] = {}
    for old, new in pairs:
        difference = compare(old.content, new.content)
        if difference.problem:
            unread.update(dict.fromkeys((old.path, new.path), difference.problem))
            continue
        inside = _inside(old, new, difference, both, roots)
        paths[new.path] = inside
        paths.setdefault(old.path, inside)
    return Effects(paths, unread)


def _inside(old: Version, new: Version, difference: FileDifference, both: Sides, roots: tuple[str, ...]) -> Inside:
    modules = (module_name(old.path, roots), module_name(new.path, roots))
    if old.path != new.path and old.content is not None and new.content is not None:
        moved = SymbolChange(BODY, "renamed", 1, (frozenset(filter(None, modules)),))
        difference = FileDifference((moved, *difference.changes))
    if not difference.changes:
        return Inside((), NO_EFFECT, NO_EFFECT_BECAUSE)
    found = [
        effect
        for change in difference.changes
        if (effect := _effect(new.path if new.content is not None else old.path, modules, change, both)) is not None
    ]
    if found:
        return Inside(tuple(found))
    names = [change.symbol or "module level" for change in difference.changes]
    shown = ", ".join(names[:_SHOWN_SYMBOLS]) + (", ..." if len(names) > _SHOWN_SYMBOLS else "")
    return Inside((), UNREACHED, f"verl reaches none of the changed symbols ({shown})")


def _effect(path: str, modules: tuple[str | None, str | None], change: SymbolChange, both: Sides) -> Effect | None:
    chain: tuple[Step, ...] = ()
    node = Node("", change.symbol)
    for module, reach in ((modules[1], both.head_reach), (modules[0], both.base_reach)):
        if module is not None:
            node = Node(module, change.symbol)
            chain = reach.chain(node)
        if chain:
            break
    if not chain:
        return None
    sure = all(step.sure for step in chain)
    via = (*(_step_text(step) for step in chain), str(node))
    through = tuple(step.source.symbol for step in chain if isinstance(step.source, Node) and step.source.symbol)
    return Effect(path, change.symbol, change.kind, change.line, change.statements, via, sure, through)


def _step_text(step: Step) -> str:
    doubt = "" if step.sure else " (uncertain)"
    if isinstance(step.source, Entry):
        return f"{step.source}{doubt}"
    return f"{step.source} {step.how}{doubt}"
