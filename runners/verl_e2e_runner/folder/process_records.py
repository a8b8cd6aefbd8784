"""Reads what one process left of its execution record; the code under test may have written anything there."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

# The instrumentation stops at 8 MiB, and its last line may lie beyond that.
MOST_BYTES = 9 << 20
_LONGEST_LINE = 8_192

_Path = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
_Text = Annotated[str, StringConstraints(max_length=200)]
_Symbol = Annotated[str, StringConstraints(min_length=1, max_length=500)]
_Number = Annotated[int, Field(ge=1, le=10_000_000)]
_Pid = Annotated[int, Field(ge=0, le=2**31)]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]

# As the docstring of `instrumentation/verl_e2e_executed.py` describes them.
_Process = tuple[Literal["process"], _Pid, _Text, _Text, _Text, _Text, _Seconds]
_Title = tuple[Literal["title"], _Text, _Text, _Seconds]
_Function = tuple[Literal["function"], _Path, _Number, _Symbol, _Seconds]
_Module = tuple[Literal["module"], _Path, _Seconds]
_Line = tuple[Literal["line"], _Path, _Number, _Seconds]
_Full = tuple[Literal["full"], _Seconds]
_Known = _Function | _Module | _Line | _Title | _Process | _Full
_ENTRY: TypeAdapter[_Known] = TypeAdapter(Annotated[_Known, Field(union_mode="left_to_right")])


@dataclass(slots=True)
class ProcessRecord:
    """What one process left; its paths and times are its own word."""

    # Its process id, and the version of its Python.
    pid: int
    python: str
    # Why it recorded nothing, empty where it did.
    problem: str
    # When its record began, on the monotonic clock.
    began: float
    # What it called itself, in order, each with its rank as a text.
    titles: list[tuple[str, str]]
    # Path, first line and qualified name of each function that ran, with when that was first.
    functions: dict[tuple[str, int, str], float] = field(default_factory=dict)
    # Path of each module that was imported.
    modules: set[str] = field(default_factory=set)
    # Path and line of each line that ran.
    lines: set[tuple[str, int]] = field(default_factory=set)
    # Whether it recorded no more, because it had written its most bytes.
    full: bool = False
    # Lines of its file that are none of these.
    unreadable: int = 0


def read_process(raw: bytes) -> ProcessRecord | None:
    """The record in a process's file, as far as it can be read; None where its first line is not what begins one."""
    first, *rest = raw.split(b"\n")
    begin = _parse(first)
    if begin is None or begin[0] != "process":
        return None
    _, pid, python, title, rank, problem, began = begin
    record = ProcessRecord(pid, python, problem, began, [(title, rank)], full=len(raw) >= MOST_BYTES)
    for line in rest:
        if line:
            _take(record, _parse(line))
    return record


def _parse(line: bytes) -> _Known | None:
    try:
        return _ENTRY.validate_json(line[:_LONGEST_LINE], strict=True)
    except ValidationError:
        return None


def _take(record: ProcessRecord, entry: _Known | None) -> None:
    if entry is None:
        record.unreadable += 1
    elif entry[0] == "function":
        _, path, line, symbol, seconds = entry
        key = (path, line, symbol)
        record.functions[key] = min(seconds, record.functions.get(key, seconds))
    elif entry[0] == "module":
        record.modules.add(entry[1])
    elif entry[0] == "line":
        record.lines.add(entry[1:3])
    elif entry[0] == "title":
        record.titles.append(entry[1:3])
    elif entry[0] == "full":
        record.full = True
    else:
        record.unreadable += 1
