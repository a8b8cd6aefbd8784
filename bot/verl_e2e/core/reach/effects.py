"""What a change does to what the other program runs: changed symbols that are reached, each with its chain."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from verl_e2e.core.model.change import readable
from verl_e2e.core.model.known_defects import KnownDefect
from verl_e2e.core.reach.carried import CarriedLines
from verl_e2e.core.reach.changed_functions import ReachedTree, TouchedFunction, touched_functions
from verl_e2e.core.reach.diff import IMPORT_TIME, FileDifference, SymbolChange, compare
from verl_e2e.core.reach.program import BODY, Node, Program, module_name
from verl_e2e.core.reach.walk import Entry, Reach, Step


class Idle(StrEnum):
    """Why a changed path has no effect on the other program."""

    NO_EFFECT = "no effect"
    UNREACHED = "not reached"
    IMPORT_ONLY = "imported without effect"


# The kind of an effect of which only the path is known.
UNREAD = "unread"
# The same of a file that is no source of Python.
UNPARSED = "other"
NO_EFFECT, UNREACHED, IMPORT_ONLY = Idle.NO_EFFECT, Idle.UNREACHED, Idle.IMPORT_ONLY
NO_EFFECT_REASON = "only comments, docstrings, layout, texts of messages or annotations that nothing evaluates differ"
IMPORT_ONLY_REASON = "verl imports it, which has the same effect as before, and reaches none of the changed symbols"
_SHOWN_SYMBOLS = 3


@dataclass(frozen=True, slots=True)
class Effect:
    """A symbol that differs and that the other program can run.

    `kind` and `statements` are those of `SymbolChange`. `via` is the chain, from a line of the other program to the
    symbol, `through` the names of the symbols on it and of near callers; `sure` is False when an edge of it is a guess.
    """

    path: str
    symbol: str
    kind: str
    statements: tuple[frozenset[str], ...]
    via: tuple[str, ...]
    sure: bool
    through: tuple[str, ...] = ()
    # The jobs that entered it when they were measured; known of Megatron-LM's code alone.
    jobs: tuple[str, ...] = ()
    # Whether another consumer reaches this code of Megatron-LM by an import that verl has not, or may do so.
    own: bool = False


@dataclass(frozen=True, slots=True)
class Inside:
    """What was found inside a path."""

    # The symbols that differ and that the other program can run.
    effects: tuple[Effect, ...]
    # Why the change has no effect, None when it has one.
    reason: Idle | None = None
    # Why it has none, or would have none if no rule asked for anything, for people.
    detail: str = ""
    # What differs of the code that runs when the path is imported; such an effect counts in every folder.
    at_import: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class LookedAt:
    """How much a plan rests on."""

    # Changed source files whose syntax trees were compared.
    compared: int
    # Modules that the other program's imports execute at the head, all of them read but the unknown ones.
    imported: int
    # Changed paths, and imported modules, about which nothing is known.
    unknown: int

    @property
    def sentence(self) -> str:
        """The same for people."""
        unknown = f"{self.unknown} of them unknown" if self.unknown else "none of them unknown"
        files = "1 changed source file" if self.compared == 1 else f"{self.compared} changed source files"
        return f"Looked at: {files} compared, {self.imported} modules that verl's imports execute read, {unknown}."


@dataclass(frozen=True, slots=True)
class Effects:
    """What is known of the inside of the changed paths. A path that is nowhere here is judged by its name."""

    # The paths that were judged.
    paths: Mapping[str, Inside] = field(default_factory=dict)
    # Those that could not be, with the reason: they are judged by their names.
    unread: Mapping[str, str] = field(default_factory=dict)
    # Sentences on how it was found.
    notes: tuple[str, ...] = ()
    # Those about which nothing is known and that the other program may import: no name exempts them.
    unknown: Mapping[str, str] = field(default_factory=dict)
    # How much was looked at.
    looked_at: LookedAt | None = None
    # The notes that say what could not be read.
    incomplete: tuple[str, ...] = ()
    # The functions that the change touches in the files that were compared.
    functions: tuple[TouchedFunction, ...] = ()
    # The lines of the changed files that were measured, by the path at the head.
    lines: Mapping[str, CarriedLines] = field(default_factory=dict)
    # By path the symbols that code outside takes from it, for files of families that no host can run.
    taken: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # The declared defects that the code at the head is known to have.
    defects: tuple[KnownDefect, ...] = ()
    # Whether what could not be read may be there the next time.
    passing: bool = False
    # The commits of Megatron-LM that were compared; empty where it does not move or could not be compared.
    bumped: tuple[str, ...] = ()
    # The jobs that entered each changed function of Megatron-LM when they were measured, by `path:qualified name`.
    entered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def inside(self, path: str) -> Inside | None:
        """What was found inside a path, None when it was not judged."""
        return self.paths.get(path)


@dataclass(frozen=True, slots=True)
class Version:
    """One file on one side of the change; `content` is None when the side has no such file."""

    path: str
    content: bytes | None


class Sides:
    """Base and head: the programs and what is reached in each."""

    def __init__(self, base: Program, head: Program, base_reach: Reach, head_reach: Reach) -> None:
        self.base = base
        self.head = head
        self.base_reach = base_reach
        self.head_reach = head_reach

    @cached_property
    def _import_runs(self) -> tuple[Reach, Reach]:
        """What the imports alone execute, calling nothing."""
        pairs = ((self.base, self.base_reach), (self.head, self.head_reach))
        base, head = (
            Reach(program, [Entry(module, None, "", 0) for module in reach.imported]) for program, reach in pairs
        )
        return base, head

    @cached_property
    def taken_at_head(self) -> frozenset[tuple[str, str | None]]:
        """What the imported modules of the head take from other modules; None stands for the module itself."""
        views = (self.head.view(name) for name in self.head_reach.imported)
        return frozenset(
            (view.target(item), item.attribute)
            for view in views
            if view is not None
            for scope in view.by_scope.values()
            for item in scope
        )

    def imports(self, modules: Iterable[str | None]) -> bool:
        """Whether one of the modules is imported at base or head."""
        return any(name in reach.imported for name in modules for reach in (self.base_reach, self.head_reach) if name)

    def runs_at_import(self, node: Node) -> bool:
        """Whether the imports alone execute a symbol, at base or head."""
        return any(node in reach.steps for reach in self._import_runs)


def effects_of(
    pairs: Iterable[tuple[Version, Version]],
    both: Sides,
    roots: tuple[str, ...],
    aside: Callable[[str], bool] = lambda _: False,
    compared: Callable[[bytes | None, bytes | None], FileDifference] = compare,
) -> Effects:
    """Judge pairs of versions, old and new; the names of a renamed file may differ, and both are answered for.

    `aside` are paths of which only what runs at import counts; `compared` says what differs between two contents.
    """
    paths: dict[str, Inside] = {}
    unread: dict[str, str] = {}
    functions: list[TouchedFunction] = []
    for old, new in pairs:
        difference = compared(old.content, new.content)
        if difference.problem:
            unread.update(dict.fromkeys((old.path, new.path), difference.problem))
            continue
        inside = _inside(old, new, difference, both, roots)
        set_aside = aside(new.path) and aside(old.path)
        if inside.effects and set_aside:
            # Those that the imports alone execute count as such.
            nodes = ((effect, Node(module_name(effect.path, roots) or "", effect.symbol)) for effect in inside.effects)
            ran = (replace(effect, kind=IMPORT_TIME) for effect, node in nodes if both.runs_at_import(node) and node[1])
            inside = replace(inside, at_import=(*inside.at_import, *ran))
        counts = both.runs_at_import if set_aside else None
        base = ReachedTree(both.base, both.base_reach, counts)
        trees = base, ReachedTree(both.head, both.head_reach, counts, lambda: both.taken_at_head)
        modules = (module_name(old.path, roots), module_name(new.path, roots))
        functions.extend(touched_functions(difference.functions, (old.path, new.path), modules, trees))
        paths[new.path] = inside
        paths.setdefault(old.path, inside)
    return Effects(paths, unread, functions=tuple(functions))


def _inside(old: Version, new: Version, difference: FileDifference, both: Sides, roots: tuple[str, ...]) -> Inside:
    modules = (module_name(old.path, roots), module_name(new.path, roots))
    if old.path != new.path and old.content is not None and new.content is not None:
        moved = SymbolChange(BODY, "renamed", (frozenset(filter(None, modules)),))
        came = SymbolChange(BODY, IMPORT_TIME)
        difference = replace(difference, changes=(moved, *difference.changes), import_time=(came,))
    elif not difference.changes and not difference.import_time:
        return Inside((), NO_EFFECT, NO_EFFECT_REASON)
    path = new.path if new.content is not None else old.path
    found = [effect for change in difference.changes if (effect := _effect(path, modules, change, both)) is not None]
    imported = both.imports(modules)
    at_import: list[Effect] = []
    for change in difference.import_time if imported else ():
        body = _effect(path, modules, replace(change, symbol=BODY), both)
        assert body is not None, "an imported module has a chain"
        at_import.append(replace(body, symbol=change.symbol))
    # The first symbols that differ; an import that came or went is none of them.
    names = [change.symbol or "module level" for change in difference.changes if change.kind != "imports"]
    more = ", ..." if len(names) > _SHOWN_SYMBOLS else ""
    shown = f" ({', '.join(names[:_SHOWN_SYMBOLS])}{more})" if names else ""
    idle = f"{IMPORT_ONLY_REASON}{shown}"
    if found or at_import:
        return Inside(tuple(found), detail=idle, at_import=tuple(at_import))
    if imported:
        return Inside((), IMPORT_ONLY, idle)
    return Inside((), UNREACHED, f"verl reaches none of the changed symbols{shown}")


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
    steps = (
        f"{step.source}{'' if isinstance(step.source, Entry) else f' {step.how}'}{'' if step.sure else ' (uncertain)'}"
        for step in chain
    )
    via = tuple(map(readable, (*steps, str(node))))
    above = [step.source for step in chain if isinstance(step.source, Node)] + [*reach.callers(node)]
    through = tuple(dict.fromkeys(text.symbol for text in above if text.symbol))
    return Effect(path, change.symbol, change.kind, change.statements, via, sure, through)
