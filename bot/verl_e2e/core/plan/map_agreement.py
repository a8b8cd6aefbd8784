"""How far static reach and execution maps agree, function by function of one tree.

Static reach says what verl may run by the sources, a map what a run did run. A function that a run enters and reach
does not have is a fault of the planner. One that reach has and no measured job enters may belong to a feature or a
family that no measured job has, or reach guessed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.model.execution_maps import ExecutionMaps
from verl_e2e.core.reach.program import Node, Program
from verl_e2e.core.reach.walk import Reach

_FUNCTIONS = frozenset({"function", "method"})
_SHOWN = 20


class Agreement(StrEnum):
    """What reach and the maps say of one function."""

    # Reach has it, and a measured job entered it.
    BOTH = "reached and entered"
    # Reach has it by a chain without a guess, and no measured job entered it.
    REACHED_SURELY = "reached surely and not entered"
    # Reach has it by a chain with a guess, and no measured job entered it.
    REACHED_PERHAPS = "reached perhaps and not entered"
    # A measured job entered it, and reach does not have it.
    ENTERED = "entered and not reached"
    # Neither.
    NEITHER = "neither reached nor entered"


@dataclass(frozen=True, slots=True)
class Compared:
    """The functions of a tree by what reach and the maps say of them."""

    # The commit of the tree.
    commit: str
    # The measured jobs.
    jobs: tuple[str, ...]
    # How many functions of each class there are.
    counts: Mapping[Agreement, int]
    # Of the functions that are reached and not entered, how many lie in each folder of the package.
    folders: Mapping[str, int]
    # Those that a job entered and reach does not have, as `path:symbol`.
    unreached: tuple[str, ...]


def compare_with_maps(program: Program, reach: Reach, maps: ExecutionMaps, commit: str) -> Compared:
    """Compare the functions and methods of a program with what the measured jobs entered."""
    entered = {(path, symbol) for found in maps.maps for path, symbols in found.files.items() for symbol in symbols}
    rows = [(place, _agreement(node, reach, entered=place in entered)) for place, node in _functions(program)]
    folders = Counter("/".join(path.split("/")[:-1]) for (path, _), agreement in rows if agreement in _NOT_ENTERED)
    counts = Counter(agreement for _, agreement in rows)
    return Compared(
        commit=commit,
        jobs=tuple(found.job for found in maps.maps),
        counts={agreement: counts[agreement] for agreement in Agreement},
        folders=dict(sorted(folders.items(), key=lambda item: (-item[1], item[0]))),
        unreached=tuple(
            sorted(f"{path}:{symbol}" for (path, symbol), agreement in rows if agreement is Agreement.ENTERED)
        ),
    )


_NOT_ENTERED = frozenset({Agreement.REACHED_SURELY, Agreement.REACHED_PERHAPS})


def render_compared(compared: Compared) -> str:
    """The comparison as text."""
    jobs = ", ".join(compared.jobs) or "no job"
    rows = [f"Static reach and execution maps at Bridge {compared.commit[:12]}, measured: {jobs}"]
    rows += [f"  {count} functions {agreement}" for agreement, count in compared.counts.items()]
    rows += [f"  reached and not entered in {folder}: {count}" for folder, count in _first(compared.folders)]
    rows += [f"  entered and not reached: {place}" for place in compared.unreached[:_SHOWN]]
    left = len(compared.unreached) - _SHOWN
    return "\n".join([*rows, *([f"  and {left} more"] if left > 0 else [])]) + "\n"


def _first(folders: Mapping[str, int]) -> list[tuple[str, int]]:
    return list(folders.items())[:_SHOWN]


def _functions(program: Program) -> Iterator[tuple[tuple[str, str], Node]]:
    """Every function and method of the program, with its path and qualified name."""
    for module, path in program.paths.items():
        view = program.view(module)
        for name, symbol in view.symbols.items() if view is not None else ():
            if symbol.kind in _FUNCTIONS and not symbol.serves:
                yield (path, name), Node(module, name)


def _agreement(node: Node, reach: Reach, *, entered: bool) -> Agreement:
    if node not in reach.steps and node not in reach.live:
        return Agreement.ENTERED if entered else Agreement.NEITHER
    if entered:
        return Agreement.BOTH
    sure = all(step.sure for step in reach.chain(node))
    return Agreement.REACHED_SURELY if sure else Agreement.REACHED_PERHAPS
