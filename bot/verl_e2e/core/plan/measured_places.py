"""Which cells of a rehearsal, and which measured jobs, enter each place of a change."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from verl_e2e.core.compare.cell_map import NO_CELLS, CellMap
from verl_e2e.core.compare.rehearsal import Outcome
from verl_e2e.core.model.change import readable
from verl_e2e.core.model.changed_code import ChangedFunction, Side
from verl_e2e.core.model.execution_maps import NO_MAPS, ExecutionMaps
from verl_e2e.core.reach.carried_lines import CarriedLines
from verl_e2e.core.reach.reached_functions import TouchedFunction

NOT_ENTERED = "no cell of the rehearsal and no measured job enters it"
_MOST_LINES = 8
_NO_WORDS: Mapping[tuple[str, str], frozenset[str]] = MappingProxyType({})
NEW = "it is new, so that only a rehearsal of this head tells what enters it"


@dataclass(frozen=True)
class Measured:
    """What is known of a change by measurement."""

    # What cells entered, of the head, of the merge base or of an older commit.
    cells: CellMap
    # What jobs entered on GPUs.
    jobs: ExecutionMaps = NO_MAPS
    # Whether the cells ran the head itself, so that what became of them is the change's.
    of_head: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Lines of a changed function that the same cells enter."""

    function: ChangedFunction
    # The changed lines; empty for the whole function.
    lines: tuple[int, ...]
    # The cells that a job must be like, by their places in the map.
    cells: frozenset[int]
    # Whether these are those in which something moved, of more that entered it.
    moved: bool = False
    # The ids of the variants of measured jobs that entered the function.
    variants: frozenset[str] = frozenset()
    # The cells that entered the function at all.
    inside: frozenset[int] = NO_CELLS
    # Why nothing is known to enter it, a clause; empty where something is.
    problem: str = ""
    # The identifiers of the changed statements of its function.
    words: frozenset[str] = frozenset()

    def __str__(self) -> str:
        lines = f", lines {', '.join(map(str, self.lines[:_MOST_LINES]))}" if self.lines else ""
        more = f" and {len(self.lines) - _MOST_LINES} more" if len(self.lines) > _MOST_LINES else ""
        return f"{readable(self.function.path)}:{self.function.symbol}{lines}{more}"


def measured_places(
    functions: Iterable[TouchedFunction],
    measured: Measured,
    lines: Mapping[str, CarriedLines],
    words: Mapping[tuple[str, str], frozenset[str]] = _NO_WORDS,
) -> tuple[Place, ...]:
    """The places of the functions that a run must enter, each with what enters it.

    `lines` are the measured lines of the changed files, by the path at the head, `words` the identifiers of the changed
    statements by the path and the symbol of their effect.
    """
    touched = list(functions)
    earlier = {(item.path, item.function.symbol): item.function for item in touched if item.earlier}
    found: list[Place] = []
    for item in touched:
        function = item.function
        if not item.earlier and function.reached and function.demanded and function.symbol:
            before = earlier.get((item.path, function.symbol))
            own = words.get((item.path, item.symbol), frozenset())
            made = _places(function, before, lines.get(item.path, CarriedLines()), measured)
            found += (replace(place, words=own) for place in made)
    return tuple(found)


def _places(
    function: ChangedFunction, before: ChangedFunction | None, lines: CarriedLines, measured: Measured
) -> Iterator[Place]:
    cells = measured.cells
    paths = dict.fromkeys((function.path, before.path if before else function.path))
    inside = NO_CELLS.union(*(cells.of_function(name, function.symbol) for name in paths))
    ran = frozenset(item.variant for name in paths for item in measured.jobs.entered_by(name, function.symbol))
    if not inside:
        known = bool(ran) or before is not None or function.side is Side.MERGE_BASE or measured.of_head
        why = "" if ran else NOT_ENTERED if known else NEW
        yield Place(function, function.lines, NO_CELLS, variants=ran, problem=why)
        return
    groups = _groups(function, before, lines, measured)
    if not groups:
        yield from _judged(Place(function, (), inside, variants=ran, inside=inside), measured)
    for entered, own in groups.items():
        if not entered:
            yield Place(function, tuple(own), NO_CELLS, inside=inside, problem=NOT_ENTERED)
        # Who enters less enters the rest as well.
        elif not any(other and other < entered for other in groups):
            yield from _judged(Place(function, tuple(own), entered, inside=inside), measured)


def _groups(
    function: ChangedFunction, before: ChangedFunction | None, lines: CarriedLines, measured: Measured
) -> dict[frozenset[int], list[int]]:
    """The changed lines of which anything is known, by the cells that enter them."""
    near = lines.base.get if function.side is Side.MERGE_BASE else lines.near
    pairs = [(line, near(line), function.path) for line in function.lines]
    gone = () if before is None or measured.of_head else before.lines
    pairs += [(0, lines.base.get(line), before.path if before else "") for line in gone]
    found: dict[frozenset[int], list[int]] = {}
    for line, known, path in pairs:
        if known is not None:
            entered = found.setdefault(measured.cells.of_line(path, known), [])
            entered += [line] if line else []
    return found


def _judged(place: Place, measured: Measured) -> Iterator[Place]:
    """The place; where the cells ran the change, with those of them that failed, or else moved, if any did."""
    if not measured.of_head:
        yield place
        return
    cells = measured.cells
    moved = place.cells & cells.judged(Outcome.FAIL) or place.cells & cells.judged(Outcome.CHANGED)
    if moved:
        yield replace(place, cells=moved, moved=moved != place.cells, variants=frozenset())
