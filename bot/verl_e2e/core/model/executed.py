"""`executed.json`: which functions of the trees under test ran in which process of a run.

Our instrumentation writes it in every Python process of a run; the runner joins what the processes left. Paths are
relative to the Bridge checkout; a file of Megatron-LM has its submodule's folder in front. Only functions count: that
a module's body ran at import says nothing about the functions in it.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, FailFast, Field

from verl_e2e.core.model.document import Document

EXECUTED_FILE = "executed.json"
# Where Megatron-LM lies in Bridge's checkout; the paths of its files begin so.
MEGATRON_LM_FOLDER = "3rdparty/Megatron-LM"
# Far beyond any real run; more is left out, and `cut` says so.
MOST_PROCESSES, MOST_FILES, MOST_FUNCTIONS_OF_FILE, MOST_LINES_OF_FILE = 512, 8_000, 5_000, 50_000


class ProcessRole(StrEnum):
    """What a process of a run is for."""

    # The wrapper's own process, which starts Ray.
    DRIVER = "driver"
    # The process that runs verl's training loop.
    CONTROLLER = "controller"
    # A rank of actor, reference or critic.
    TRAINER = "trainer"
    # A process of the rollout engine.
    ROLLOUT = "rollout"
    # A focused Bridge test.
    BRIDGE_TEST = "Bridge test"
    # Anything else: data loaders, reward workers, helpers.
    OTHER = "other"


class ExecutedProcess(Document):
    """One process that was recorded."""

    # The phase of the run: the name of a start of the wrapper, or `bridge_tests`.
    phase: str
    # What it is for.
    role: ProcessRole
    # What it called itself, without arguments.
    title: str
    # Its process id.
    pid: int
    # Its rank among the trainers, None for any other process.
    rank: int | None = None
    # The version of its Python.
    python: str
    # When its record began, in seconds since the folder was opened.
    began_s: float
    # Why its record holds nothing or is cut off, empty where it is whole.
    problem: str = ""


class ExecutedFunction(Document):
    """One function that ran."""

    # Its qualified name, as Python has it.
    symbol: str
    # Its first line, that of its first decorator.
    line: int
    # The index of each process that entered it, with when that was first, in seconds since the folder was opened.
    first_s: dict[int, float]


class ExecutedFile(Document):
    """What ran of one file."""

    # The file.
    path: str
    # The functions that ran, by line.
    functions: Annotated[tuple[ExecutedFunction, ...], FailFast(), Field(max_length=MOST_FUNCTIONS_OF_FILE)] = ()
    # For a file that the change touches: each line that ran, with the indices of the processes that ran it.
    lines: Annotated[dict[int, tuple[int, ...]], Field(max_length=MOST_LINES_OF_FILE)] = Field(default_factory=dict)


class Executed(Document):
    """`executed.json`."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    # The Bridge commit that ran.
    bridge_commit: str = ""
    # The processes; other entries name them by their index here.
    processes: Annotated[tuple[ExecutedProcess, ...], FailFast(), Field(max_length=MOST_PROCESSES)] = ()
    # The files of which something ran, by path: a function, or of Bridge's the body that runs at import.
    files: Annotated[tuple[ExecutedFile, ...], FailFast(), Field(max_length=MOST_FILES)] = ()
    # What was left out because there was too much of it, as sentences.
    cut: tuple[str, ...] = ()
    # Why nothing was recorded at all, empty where something was.
    problem: str = ""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

    @property
    def is_whole(self) -> bool:
        """Whether it names all that ran in every process of the run."""
        return not (self.problem or self.cut or any(process.problem for process in self.processes))
