"""What a run executed of the code that a change touches: per function, as a verdict carries it.

The record itself (`verl_e2e.core.model.executed`) lies in the run folder and is large; this is what of it answers the
question for one job, small enough to travel with the verdict.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from verl_e2e.core.model.changed_code import MOST_LINES, Side

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


def line_ranges(lines: tuple[int, ...]) -> tuple[str, ...]:
    """The lines as `12-14` and `20`, in order."""
    rows = []
    for _, run in groupby(enumerate(sorted(set(lines))), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        rows.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return tuple(rows)


# Written as one text, because a document with a row for each number would be many times as long.
Lines = Annotated[
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
    # Its first line.
    first_line: int
    # Whether it was entered.
    entered: Entered
    # Whose source the lines are counted in; a function of the merge base is one that the change removes or shortens.
    side: Side = Side.HEAD
    # The changed lines that processes of verl's run executed.
    ran: Lines = ()
    # The changed lines that they did not execute, although a run must; all of them where it was not entered.
    missed: Lines = ()
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
