"""What a change touches, function by function and line by line, and which of it a job is planned to execute.

Paths are relative to the Bridge checkout; a file of Megatron-LM has its submodule's folder in front. Symbols are
Python's qualified names (`Class.method`, `outer.<locals>.inner`), empty for what belongs to no function. Lines are
counted from 1 and name where a statement begins.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import FailFast, Field

from verl_e2e.core.model.document import Document

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

    # Why.
    excuse: Excuse
    # The lines.
    lines: tuple[int, ...]


class ChangedFunction(Document):
    """One function, or what belongs to no function of one file, with its changed lines."""

    # The file.
    path: str
    # The function's qualified name; empty for the statements of a module or a class body, which run at import.
    symbol: str
    # Whose source the lines are counted in.
    side: Side = Side.HEAD
    # The first line of the function, that of its first decorator. For what belongs to no function that of the statement
    # where it has `readers`, and 1 for all other statements together.
    first_line: Annotated[int, Field(ge=1)]
    # Its last line.
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
