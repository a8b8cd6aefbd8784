"""Execution maps: for each job the functions of the trees under test that a real run of it entered.

A map is made of the `executed.json` of a run that passed. Paths and names are as there. A map is believed for a
function by its path and qualified name, at whatever commit; who shows it says at which commit it was measured.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import ConfigDict, FailFast, Field

from verl_e2e.core.model.document import Document
from verl_e2e.core.model.executed import (
    MEGATRON_LM_FOLDER,
    MOST_FILES,
    MOST_FUNCTIONS_OF_FILE,
    Executed,
    ProcessRole,
)
from verl_e2e.core.model.wants import Axis, Value

# Bytes of a maps file, unpacked: a hundred jobs and more.
MOST_MAPS_BYTES = 64 << 20
_MOST_MAPS = 1_000

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$|^[0-9a-f]{64}$")]
# A function's qualified name, with the kinds of processes that entered it.
Entered = Annotated[dict[str, tuple[ProcessRole, ...]], Field(max_length=MOST_FUNCTIONS_OF_FILE)]


class ExecutionMap(Document):
    """Which functions one job entered, measured once."""

    # The id of the job.
    job: str
    # The level and the variant, `<level>-<variant>`.
    variant: str
    # The settings of a derived job that differ from those of level 0, by axis; empty for a job of the table of levels.
    settings: dict[Axis, Value] = Field(default_factory=dict)
    # The model that it trained.
    model: str
    # The Bridge commit that ran.
    bridge: Commit
    # The verl commit that ran.
    verl: Commit
    # The Megatron-LM commit that ran, empty where the run did not say it.
    megatron_lm: Commit | Literal[""] = ""
    # The day of the run in UTC, as YYYY-MM-DD.
    measured: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    # By file the functions that ran.
    files: Annotated[dict[str, Entered], FailFast(), Field(max_length=MOST_FILES)]

    def enters(self, path: str, symbol: str) -> tuple[ProcessRole, ...]:
        """The kinds of processes that entered a function; empty where none did."""
        return self.files.get(path, {}).get(symbol, ())

    def count(self, *, of_bridge: bool) -> int:
        """How many functions of Bridge, or of Megatron-LM, it entered."""
        return sum(
            len(entered) for path, entered in self.files.items() if path.startswith(MEGATRON_LM_FOLDER) != of_bridge
        )


class ExecutionMaps(Document):
    """A maps file."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    # One map for each job, by its id.
    maps: Annotated[tuple[ExecutionMap, ...], FailFast(), Field(max_length=_MOST_MAPS)] = ()

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

    def of(self, job: str) -> ExecutionMap | None:
        """The map of a job, None where it was never measured."""
        return next((found for found in self.maps if found.job == job), None)

    def entered_by(self, path: str, symbol: str) -> tuple[ExecutionMap, ...]:
        """The maps of the jobs that entered a function."""
        return tuple(found for found in self.maps if found.enters(path, symbol))


NO_MAPS = ExecutionMaps()


def merged_maps(older: ExecutionMaps, newer: ExecutionMaps) -> ExecutionMaps:
    """The maps of both; of one job the newer one counts."""
    by_job = {found.job: found for found in (*older.maps, *newer.maps)}
    return ExecutionMaps(maps=tuple(by_job[job] for job in sorted(by_job)))


def entered_files(executed: Executed) -> dict[str, Entered]:
    """By file the functions that processes of the run entered; a focused Bridge test is none of them."""
    found: dict[str, Entered] = {}
    for file in executed.files:
        entered = {
            function.symbol: roles for function in file.functions if (roles := _roles(executed, function.first_s))
        }
        if entered:
            found[file.path] = dict(sorted(entered.items()))
    return dict(sorted(found.items()))


def _roles(executed: Executed, processes: Iterable[int]) -> tuple[ProcessRole, ...]:
    known = {executed.processes[index].role for index in processes if 0 <= index < len(executed.processes)}
    return tuple(role for role in ProcessRole if role in known and role is not ProcessRole.BRIDGE_TEST)
