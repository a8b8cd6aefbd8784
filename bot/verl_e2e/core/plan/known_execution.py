"""Which planned job is known to enter a changed function, which is only believed to, and which is known not to.

Execution maps say what a real run of a job entered. Where a job has no map, or the function came after the commit at
which its map was measured, reading the sources is all that speaks for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from verl_e2e.core.model.changed_code import ChangedFunction, Side
from verl_e2e.core.model.execution_maps import ExecutionMap, ExecutionMaps

# Whether a function was there at the commit of a map; None where that cannot be read.
Existed = Callable[[ExecutionMap, ChangedFunction], bool | None]


class Entry(StrEnum):
    """What is known of a changed function before anything runs."""

    # A run of a planned job entered it.
    KNOWN = "known"
    # Verl reaches it by its sources, and no map says more.
    BELIEVED = "believed"
    # Verl reaches it by its sources, and each job that is planned for it ran without entering it.
    NOT_ENTERED = "not entered"
    # Verl does not reach it by its sources, and no map says otherwise.
    UNREACHED = "unreached"


@dataclass(frozen=True, slots=True)
class KnownExecution:
    """What execution maps say about one changed function."""

    # The file.
    path: str
    # The function's qualified name.
    symbol: str
    entry: Entry
    # The planned jobs that entered it, each with the Bridge commit of its map.
    known: tuple[tuple[str, str], ...] = ()
    # The planned jobs that may enter it: no map of them can tell.
    believed: tuple[str, ...] = ()
    # The planned jobs that ran without entering it, each with the Bridge commit of its map.
    not_entered: tuple[tuple[str, str], ...] = ()
    # Measured jobs that entered it and are not planned.
    elsewhere: tuple[str, ...] = ()


def known_executions(
    functions: Iterable[ChangedFunction],
    planned: Mapping[str, frozenset[tuple[str, str]]],
    maps: ExecutionMaps,
    existed: Existed,
    replaced: Mapping[str, str] = MappingProxyType({}),
) -> tuple[KnownExecution, ...]:
    """What is known of each function that a run must enter; `planned` has for each job what it is planned to enter.

    `replaced` has, for a derived job, the id of the job whose place it takes: a run of that one speaks for it until one
    of its own is known, because it has the same settings and some more.
    """
    own = {job: maps.of(job) or maps.of(replaced.get(job, "")) for job in planned}
    wanted = (function for function in functions if function.symbol and function.demanded)
    return tuple(_known(function, planned, own, maps, existed) for function in wanted if function.side is Side.HEAD)


def entered_by(maps: ExecutionMaps, path: str, symbol: str) -> tuple[str, ...]:
    """The measured jobs that entered a function, each with the kinds of processes that did."""
    found = ((measured.job, measured.enters(path, symbol)) for measured in maps.maps)
    return tuple(f"{job} ({', '.join(roles)})" for job, roles in found if roles)


def _known(
    function: ChangedFunction,
    planned: Mapping[str, frozenset[tuple[str, str]]],
    own: Mapping[str, ExecutionMap | None],
    maps: ExecutionMaps,
    existed: Existed,
) -> KnownExecution:
    place = (function.path, function.symbol)
    known, believed, missed = [], [], []
    for job, wanted in planned.items():
        measured = own[job]
        if measured is not None and measured.enters(*place):
            known.append((job, measured.bridge))
        elif place not in wanted:
            continue
        elif measured is None or not existed(measured, function):
            believed.append(job)
        else:
            missed.append((job, measured.bridge))
    elsewhere = tuple(measured.job for measured in maps.maps if measured.job not in planned and measured.enters(*place))
    entry = Entry.KNOWN if known else Entry.BELIEVED if believed else Entry.NOT_ENTERED
    if not known and not function.reached:
        entry = Entry.UNREACHED
    return KnownExecution(*place, entry, tuple(known), tuple(believed), tuple(missed), elsewhere)
