"""What a run executed of the code that a change touches: per function, as a verdict carries it.

The record itself (`executed.json`) lies in the run folder and is large; a `ChangeExecution` is what of it answers the
question for one job, small enough to travel with the verdict. Execution maps hold what measured runs entered. A
purpose is a place of the changed code that a job was made for, with the condition that leads into it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Literal

from pydantic import BeforeValidator, FailFast, Field, PlainSerializer

from verl_e2e.core.model.document import Document, NumberedDocument
from verl_e2e.core.model.settings import Axis, Value

EXECUTED_FILE = "executed.json"
# Where Megatron-LM lies in Bridge's checkout; the paths of its files begin so.
MEGATRON_LM_FOLDER = "3rdparty/Megatron-LM"


def in_megatron_lm(path: str) -> bool:
    """Whether a path of Bridge's tree is one of a file of Megatron-LM."""
    return path.startswith(f"{MEGATRON_LM_FOLDER}/")


# Far beyond any real run; more is left out, and `cut` says so.
MOST_PROCESSES, MOST_EXECUTED_FILES, MOST_FUNCTIONS_OF_FILE, MOST_LINES_OF_FILE = 512, 8_000, 5_000, 50_000


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
    role: ProcessRole
    # What it called itself, without arguments.
    title: str
    pid: int
    # Its rank among the trainers, None for any other process.
    rank: int | None = None
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

    path: str
    # The functions that ran, by line.
    functions: Annotated[tuple[ExecutedFunction, ...], FailFast(), Field(max_length=MOST_FUNCTIONS_OF_FILE)] = ()
    # For a file that the change touches: each line that ran, with the indices of the processes that ran it.
    lines: Annotated[dict[int, tuple[int, ...]], Field(max_length=MOST_LINES_OF_FILE)] = Field(default_factory=dict)


class Executed(NumberedDocument):
    """`executed.json`."""

    # The Bridge commit that ran.
    bridge_commit: str = ""
    # The processes; other entries name them by their index here.
    processes: Annotated[tuple[ExecutedProcess, ...], FailFast(), Field(max_length=MOST_PROCESSES)] = ()
    # The files of which something ran, by path: a function, or of Bridge's the body that runs at import.
    files: Annotated[tuple[ExecutedFile, ...], FailFast(), Field(max_length=MOST_EXECUTED_FILES)] = ()
    # What was left out because there was too much of it, as sentences.
    cut: tuple[str, ...] = ()
    # Why nothing was recorded at all, empty where something was.
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it names all that ran in every process of the run."""
        return not (self.problem or self.cut or any(process.problem for process in self.processes))


# More than any change that a person reads; what lies beyond is counted and named, never dropped without a word.
MOST_FUNCTIONS, MOST_LINES = 2_000, 20_000
# One of them is enough, so the first ones are.
MOST_READERS = 100


class Side(StrEnum):
    """Whose source a function is named by: what a change removes is there on the merge base alone."""

    HEAD = "head"
    MERGE_BASE = "merge_base"


class Excuse(StrEnum):
    """Why a changed line need not be executed."""

    # A docstring, an annotation, a `pass`: nothing that does anything.
    IDLE = "idle"
    # It raises, or is reached only to raise: an error path.
    ERROR_PATH = "error path"
    # A call of a logger, or `print`.
    LOGGING = "logging"
    # Only a type checker runs it.
    TYPE_CHECKING = "type checking"
    # The body of an abstract method or of a protocol.
    ABSTRACT = "abstract"


class ExcusedLines(Document):
    """Changed lines that need not be executed, with the reason."""

    excuse: Excuse
    lines: tuple[int, ...]


class ChangedFunction(Document):
    """One function, or what belongs to no function of one file, with its changed lines."""

    path: str
    # The function's qualified name; empty for the statements of a module or a class body, which run at import.
    symbol: str
    # Whose source the lines are counted in.
    side: Side = Side.HEAD
    # The first line of the function, that of its first decorator. For what belongs to no function that of the statement
    # where it has `readers`, and 1 for all other statements together.
    first_line: Annotated[int, Field(ge=1)]
    last_line: Annotated[int, Field(ge=1)]
    # The changed lines that a run must execute; empty where only its signature or only excused lines differ.
    lines: tuple[int, ...] = ()
    # The changed lines that need not be executed.
    excused: tuple[ExcusedLines, ...] = ()
    # Whether verl reaches it, as far as reading the sources can tell.
    reached: bool = True
    # What keeps a run out of it, where that is known, as a clause; empty where it is not.
    condition: str = ""
    # The model families that alone run it, with commas between, where no host can run any of them; empty elsewhere.
    uncoverable: str = ""
    # For what runs at import: lines of functions that read what it binds; a run must execute one of them too. Empty
    # where no function of the file that verl reaches reads it.
    readers: Annotated[tuple[int, ...], Field(max_length=MOST_READERS)] = ()

    @property
    def demanded(self) -> bool:
        """Whether a run must enter it: a function whose changed lines are all excused need not be."""
        return bool(self.lines) or not self.excused

    @property
    def at_import(self) -> bool:
        """Whether it runs when its module is imported."""
        return not self.symbol


class ChangedCode(Document):
    """What a job is planned to execute."""

    # The functions, by path and line.
    functions: Annotated[tuple[ChangedFunction, ...], FailFast(), Field(max_length=MOST_FUNCTIONS)] = ()
    # The merge base's side of these functions: what is gone, and what was exchanged. A run on the merge base is planned
    # to execute it, so it tells whether code that the head does not have any more would have run.
    earlier: Annotated[tuple[ChangedFunction, ...], FailFast(), Field(max_length=MOST_FUNCTIONS)] = ()
    # Changed files under test whose functions are not known, each with the reason.
    unread: dict[str, str] = Field(default_factory=dict)
    # How many functions more there were than are listed; a source that verl imports and that is unread counts as one.
    left_out: Annotated[int, Field(ge=0)] = 0

    @property
    def required(self) -> tuple[ChangedFunction, ...]:
        """The functions of the head that a run must enter, or whose lines it must execute, as verl reaches them."""
        return tuple(item for item in self.functions if item.reached and item.demanded and item.side is Side.HEAD)

    def on_merge_base(self) -> "ChangedCode":
        """What a run on the merge base is planned to execute in its place."""
        return ChangedCode(functions=self.earlier, unread=self.unread if self.earlier else {})

    def __bool__(self) -> bool:
        return bool(self.functions or self.unread or self.left_out)


# For what is planned to execute nothing in particular.
NO_CODE = ChangedCode()


# Bytes of a maps file, unpacked: a hundred jobs and more.
MOST_MAPS_BYTES = 64 << 20
_MOST_MAPS = 1_000

CommitId = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$|^[0-9a-f]{64}$")]
# A function's qualified name, with the kinds of processes that entered it.
EnteredBy = Annotated[dict[str, tuple[ProcessRole, ...]], Field(max_length=MOST_FUNCTIONS_OF_FILE)]


class ExecutionMap(Document):
    """Which functions one job entered, measured once."""

    job: str
    # The level and the variant, `<level>-<variant>`.
    variant: str
    # The settings of a derived job that differ from those of level 0, by axis; empty for a job of the table of levels.
    settings: dict[Axis, Value] = Field(default_factory=dict)
    model: str
    bridge: CommitId
    verl: CommitId
    # The Megatron-LM commit that ran, empty where the run did not say it.
    megatron_lm: CommitId | Literal[""] = ""
    # The day of the run in UTC, as YYYY-MM-DD.
    measured: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    # By file the functions that ran.
    files: Annotated[dict[str, EnteredBy], FailFast(), Field(max_length=MOST_EXECUTED_FILES)]

    def enters(self, path: str, symbol: str) -> tuple[ProcessRole, ...]:
        """The kinds of processes that entered a function; empty where none did."""
        return self.files.get(path, {}).get(symbol, ())

    def count(self, *, of_bridge: bool) -> int:
        """How many functions of Bridge, or of Megatron-LM, it entered."""
        return sum(
            len(entered) for path, entered in self.files.items() if path.startswith(MEGATRON_LM_FOLDER) != of_bridge
        )


class ExecutionMaps(NumberedDocument):
    """A maps file."""

    # One map for each job, by its id.
    maps: Annotated[tuple[ExecutionMap, ...], FailFast(), Field(max_length=_MOST_MAPS)] = ()

    def entered_by(self, path: str, symbol: str) -> tuple[ExecutionMap, ...]:
        """The maps of the jobs that entered a function."""
        return tuple(found for found in self.maps if found.enters(path, symbol))


NO_MAPS = ExecutionMaps()


def merged_maps(older: ExecutionMaps, newer: ExecutionMaps) -> ExecutionMaps:
    """The maps of both; of one job the newer one counts."""
    by_job = {found.job: found for found in (*older.maps, *newer.maps)}
    return ExecutionMaps(maps=tuple(by_job[job] for job in sorted(by_job)))


def entered_files(executed: Executed) -> dict[str, EnteredBy]:
    """By file the functions that processes of the run entered; a focused Bridge test is none of them."""
    found: dict[str, EnteredBy] = {}
    for file in executed.files:
        entered: dict[str, tuple[ProcessRole, ...]] = {}
        for function in file.functions:
            known = {executed.processes[at].role for at in function.first_s if 0 <= at < len(executed.processes)}
            roles = tuple(role for role in ProcessRole if role in known and role is not ProcessRole.BRIDGE_TEST)
            if roles:
                entered[function.symbol] = roles
        if entered:
            found[file.path] = dict(sorted(entered.items()))
    return dict(sorted(found.items()))


# What a verdict carries; further functions are counted. In the order of path and line, so that the verdicts of
# several jobs leave out the same ones.
MOST_JUDGED = 600
_MOST_DIGITS = 9


class Entered(StrEnum):
    """Whether the changed code of a function was entered, and by what."""

    # A process of verl's run entered it, and ran a changed line where lines of it are changed.
    IN_VERL = "in verl"
    # Only a Bridge test did.
    BY_TESTS = "by Bridge tests"
    # It was entered, and no changed line of it ran: a branch that the run did not take.
    AROUND = "around its changed lines"
    # Nothing entered it.
    NEVER = "never"
    # The record does not say.
    UNKNOWN = "not known"


def _unfolded(value: object) -> object:
    """The numbers of `12-14, 20`; what has another form is left to the check of the type."""
    if not isinstance(value, str):
        return value
    ends = [part.strip().partition("-") for part in value.split(",") if part.strip()]
    pairs = [(first, last if dash else first) for first, dash, last in ends]
    if not all(text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS for pair in pairs for text in pair):
        raise ValueError("lines are written as `12-14, 20`")
    ranges = [range(int(first), int(last) + 1) for first, last in pairs]
    if sum(map(len, ranges)) > MOST_LINES:
        raise ValueError(f"more than {MOST_LINES} lines")
    return tuple(number for numbers in ranges for number in numbers)


def line_pairs(lines: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The lines as pairs of a first and a last one, in order."""
    runs = groupby(enumerate(sorted(set(lines))), key=lambda pair: pair[1] - pair[0])
    numbers = ([number for _, number in run] for _, run in runs)
    return tuple((run[0], run[-1]) for run in numbers)


def line_ranges(lines: tuple[int, ...]) -> tuple[str, ...]:
    """The lines as `12-14` and `20`, in order."""
    return tuple(str(first) if first == last else f"{first}-{last}" for first, last in line_pairs(lines))


# Written as one text, because a document with a row for each number would be many times as long.
LineNumbers = Annotated[
    tuple[int, ...],
    BeforeValidator(_unfolded),
    PlainSerializer(lambda lines: ", ".join(line_ranges(lines)), return_type=str),
]


@dataclass(frozen=True, slots=True)
class FunctionRun:
    """One changed function that verl reaches, and what a run executed of it."""

    # The file, relative to the Bridge checkout.
    path: str
    # The function's qualified name; empty for what belongs to no function and runs at import.
    symbol: str
    first_line: int
    # Whether it was entered.
    entered: Entered
    # Whose source the lines are counted in; a function of the merge base is one that the change removes or shortens.
    side: Side = Side.HEAD
    # The changed lines that processes of verl's run executed.
    ran: LineNumbers = ()
    # The changed lines that they did not execute, although a run must; all of them where it was not entered.
    missed: LineNumbers = ()
    # Which processes of verl's run entered it, the first of them, as `trainer 0 (train)`.
    processes: tuple[str, ...] = ()
    # How many did.
    process_count: int = 0
    # When it was first entered, in seconds since the folder was opened; None where that is not known.
    first_s: float | None = None
    # What keeps a run out of it, as a clause; empty where that is not known.
    condition: str = ""
    # The model families that alone run it, with commas between, where no host can run any of them; empty elsewhere.
    uncoverable: str = ""

    @property
    def key(self) -> tuple[Side, str, str, int]:
        """What tells it from every other function."""
        return self.side, self.path, self.symbol, self.first_line

    @property
    def name(self) -> str:
        """The function for people."""
        return self.symbol or "code at import"

    @property
    def place(self) -> str:
        """Where it is, as `path:line`; where it runs at import, its changed lines."""
        lines = (*self.ran, *self.missed) if not self.symbol else ()
        return f"{self.path}:{', '.join(line_ranges(lines)) or self.first_line}"


@dataclass(frozen=True, slots=True)
class ChangeExecution:
    """What one job executed of the code that it was planned for."""

    # The changed functions that it must enter, by side, path and line.
    functions: tuple[FunctionRun, ...] = ()
    # Why the record does not tell of all functions of the head; empty where it does.
    not_recorded: str = ""
    # The same of the merge base, for what the change removes.
    base_not_recorded: str = ""
    # Changed files whose functions are not known, as `path: reason`.
    unread: tuple[str, ...] = ()
    # How many functions more there are than are listed.
    left_out: int = 0

    def of_side(self, side: Side) -> tuple[FunctionRun, ...]:
        """The functions of one side."""
        return tuple(function for function in self.functions if function.side is side)

    @property
    def telling(self) -> tuple[FunctionRun, ...]:
        """The functions that say whether the change ran: code at import does only where nothing else is changed."""
        return tuple(function for function in self.functions if function.symbol) or self.functions

    @property
    def entered(self) -> tuple[FunctionRun, ...]:
        """The functions whose changed code verl's run entered."""
        return tuple(function for function in self.functions if function.entered is Entered.IN_VERL)


# What a job carries: it travels in the inputs of a workflow.
MOST_PURPOSES = 15
_MOST_LINES = 40
_MOST_CHARACTERS = 200


class Purpose(Document):
    """One place that a job is there for."""

    path: str
    # The function's qualified name; empty for what belongs to no function.
    symbol: str = ""
    # The changed lines, ascending; empty for the whole symbol.
    lines: Annotated[tuple[int, ...], Field(max_length=_MOST_LINES)] = ()
    # By what it is known to be entered, or what is wanted of a run besides.
    condition: str
    # The settings that this asks for, by axis.
    settings: dict[Axis, Value] = Field(default_factory=dict)
    # Whose source the lines are counted in: what the change removes is there on the merge base alone.
    side: Side = Side.HEAD

    @property
    def place(self) -> str:
        """The place as people name it."""
        return f"{self.path}:{self.symbol}" if self.symbol else self.path


# What a run that is made from a job's own one does not take over: it is there to be compared with.
NO_PURPOSES: dict[str, object] = {"purposes": (), "settings": {}}


def purpose_of(
    function: ChangedFunction, lines: Iterable[int], condition: str, settings: Mapping[Axis, Value]
) -> Purpose:
    """The purpose of a job for lines of a function; long texts are cut."""
    return Purpose(
        path=_shown(function.path),
        symbol=_shown(function.symbol),
        lines=tuple(lines)[:_MOST_LINES],
        condition=_shown(condition),
        settings=dict(settings),
        side=function.side,
    )


def _shown(text: str) -> str:
    """A text of the code on one line, not longer than people read."""
    line = " ".join(text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 3]}..."
