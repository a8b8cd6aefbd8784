"""Which of the functions that a change touches the other program reaches, by the name that the reach graph has."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from verl_e2e.core.model.changed_code import MOST_READERS, ChangedFunction, Side
from verl_e2e.core.reach.changed_functions import ChangedFunctions
from verl_e2e.core.reach.program import Node, Program
from verl_e2e.core.reach.readers import ReadBy
from verl_e2e.core.reach.walk import Reach

_LOCALS = ".<locals>."
_LAMBDA = "<lambda>"


@dataclass(frozen=True, slots=True)
class TouchedFunction:
    """A function that the change touches, with the names by which its effects are found."""

    function: ChangedFunction
    # The path of its effects: that of the head, or of the base for a file that is gone.
    path: str
    # The symbol of its effects, empty for what belongs to no function.
    symbol: str
    # Whether it is the merge base's side of a function: what a run there executes in the place of the change.
    earlier: bool = False


@dataclass(frozen=True, slots=True)
class ReachedTree:
    """One tree with all that is reached in it."""

    program: Program
    reach: Reach
    # Whether a symbol counts where only the imports run the file's code; None where all that is reached counts.
    counts: Callable[[Node], bool] | None = None
    # What the imported modules take from others: pairs of a module and a name of it, None for the module itself.
    taken: Callable[[], frozenset[tuple[str, str | None]]] = frozenset

    def reaches(self, module: str | None, symbol: str) -> bool:
        """Whether a function is reached; what the graph does not have is taken for reached."""
        view = self.program.view(module or "")
        if module is None or view is None:
            return True
        if not symbol or _made_at_import(symbol):
            return module in self.reach.imported
        name = next((name for name in graph_names(symbol) if name in view.symbols), None)
        if name is None:
            return True
        node = Node(module, name)
        return (node in self.reach.steps or node in self.reach.live) and (self.counts is None or self.counts(node))

    def reading_lines(self, read_by: ReadBy, module: str | None) -> tuple[int, ...]:
        """Lines of reached functions that read what a statement binds; none where another file may be what reads it."""
        if module is None or self._is_taken(read_by.names, module):
            return ()
        reached = (reader for reader in read_by.functions if self.reaches(module, reader.symbol))
        return tuple(sorted({line for reader in reached for line in reader.lines})[:MOST_READERS])

    def _is_taken(self, names: frozenset[str], module: str) -> bool:
        """Whether another imported module takes one of the names from the module, or the module itself."""
        outer, _, own = module.rpartition(".")
        ways = {(module, name) for name in (*names, None, "*")} | {(outer, own)}
        return bool(names) and not ways.isdisjoint(self.taken())


def touched_functions(
    found: ChangedFunctions,
    names: tuple[str, str],
    modules: tuple[str | None, str | None],
    trees: tuple[ReachedTree, ReachedTree],
) -> Iterator[TouchedFunction]:
    """The functions of one file with their paths and whether they are reached; all pairs are base and head."""
    effects_path = names[1]
    for functions, earlier in ((found.changed, False), (found.earlier, True)):
        for function in functions:
            at = 1 if function.side is Side.HEAD else 0
            reached = trees[at].reaches(modules[at], function.symbol)
            read_by = found.readers.get(function.first_line) if at and function.at_import else None
            lines = trees[at].reading_lines(read_by, modules[at]) if read_by is not None else ()
            named = function.model_copy(update={"path": names[at], "reached": reached, "readers": lines})
            yield TouchedFunction(named, effects_path, symbol_of_effect(function.symbol), earlier)


def symbol_of_effect(symbol: str) -> str:
    """The symbol that a difference of a function is listed by: the function or method of the module that it is in.

    A lambda that an import makes belongs to its class, or to no symbol.
    """
    parts = symbol.partition(_LOCALS)[0].removesuffix(_LAMBDA).rstrip(".").split(".")
    return ".".join(parts) if len(parts) <= 2 else parts[0]


def _made_at_import(symbol: str) -> bool:
    """Whether it is a lambda in no function: whatever imports the module may call it."""
    return symbol.endswith(_LAMBDA) and _LOCALS not in symbol


def graph_names(symbol: str) -> Iterator[str]:
    """The names that the graph may have for a function, the nearest first."""
    outer, _, inner = symbol.partition(_LOCALS)
    own = symbol.rpartition(".")[2]
    # A function that is registered as the implementation of another has a name of its own.
    yield f"{outer if inner else ''}:{own}"
    yield outer
    yield symbol_of_effect(symbol)
