"""What a run executed of the code that a change touches: what is planned for it, matched with what was recorded."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verl_e2e.core.model.changed_code import ChangedCode, ChangedFunction, Side
from verl_e2e.core.model.executed import (
    EXECUTED_FILE,
    Executed,
    ExecutedFile,
    ExecutedFunction,
    ExecutedProcess,
    ProcessRole,
)
from verl_e2e.core.model.execution import MOST_JUDGED, ChangeExecution, Entered, FunctionRun

BASE_NOT_RUN = "the job was not run on the merge base"
NO_RECORD = f"the folder holds no {EXECUTED_FILE}"
_PATCHED = "a declared patch changes it as well, so its lines were not compared"
_TESTS_PHASE = "bridge_tests"
_SHOWN_PROCESSES = 3
_MOST_TEXT = 300
_SHORT_ID = 12
# Helpers end in many ways and enter no code of interest; of these a record that is cut off may miss something.
_TELLING = frozenset({ProcessRole.DRIVER, ProcessRole.CONTROLLER, ProcessRole.TRAINER, ProcessRole.ROLLOUT})


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded of one commit: the record, or why there is none."""

    executed: Executed | None
    # The Bridge commit that it must be of; empty where any will do.
    commit: str = ""
    # Why there is no record, where there is none.
    why_none: str = NO_RECORD
    # Files that a declared patch changes, so that their lines are not those of the commit.
    patched: frozenset[str] = frozenset()


def execution_of(changed: ChangedCode, head: Recorded, base: Recorded) -> ChangeExecution:
    """Match what a job must execute with the records of the head and of the merge base."""
    sides = {Side.HEAD: _index(head), Side.MERGE_BASE: _index(base)}
    demanded = sorted(
        (function for function in _asked(changed, sides[Side.MERGE_BASE]) if function.demanded and function.reached),
        key=lambda function: (function.side, function.path, function.first_line, function.symbol),
    )
    functions = tuple(_function_run(function, sides[function.side]) for function in demanded[:MOST_JUDGED])
    patched = {item.path: _PATCHED for item in functions if item.path in head.patched and item.side is Side.HEAD}
    unknown: dict[Side, str] = {}
    for function in functions:
        if function.entered is Entered.UNKNOWN:
            unknown.setdefault(function.side, function.path)
    gaps = {
        side: index.gap or (index.cut or f"it holds no line of {unknown[side]}" if side in unknown else "")
        for side, index in sides.items()
    }
    return ChangeExecution(
        functions=functions,
        not_recorded=gaps[Side.HEAD],
        base_not_recorded=gaps[Side.MERGE_BASE],
        unread=tuple(f"{path}: {reason}" for path, reason in sorted({**changed.unread, **patched}.items())),
        left_out=changed.left_out + max(0, len(demanded) - MOST_JUDGED),
    )


def _asked(changed: ChangedCode, base: "_Index") -> tuple[ChangedFunction, ...]:
    """The functions to look for; what the change only replaces on the merge base where a run there was recorded."""
    if base.gap:
        return changed.functions
    return tuple(dict.fromkeys((*changed.functions, *changed.earlier)))


@dataclass(frozen=True, slots=True)
class _Index:
    """A record, made ready to be asked."""

    files: Mapping[str, ExecutedFile]
    processes: tuple[ExecutedProcess, ...]
    # The indices of the processes of verl's run, and of those of Bridge tests.
    in_verl: frozenset[int]
    by_tests: frozenset[int]
    # Why it does not tell of everything; empty where it does.
    gap: str
    # Why it may not tell of a file that is not in it; empty where it does. Files of the change are recorded first.
    cut: str = ""
    patched: frozenset[str] = field(default=frozenset())


def _index(recorded: Recorded) -> _Index:
    executed = recorded.executed
    if executed is None or (unusable := _unusable(executed, recorded.commit)):
        return _Index({}, (), frozenset(), frozenset(), recorded.why_none if executed is None else unusable)
    tests = frozenset(index for index, process in enumerate(executed.processes) if _is_test(process))
    in_verl = frozenset(range(len(executed.processes))) - tests
    gap = _gap(tuple(executed.processes[index] for index in sorted(in_verl)))
    cut = f"the record is not whole: {_bounded(executed.cut[0])}" if executed.cut else ""
    files = {file.path: file for file in reversed(executed.files)}
    return _Index(files, executed.processes, in_verl, tests, gap, cut, recorded.patched)


def _is_test(process: ExecutedProcess) -> bool:
    return process.role is ProcessRole.BRIDGE_TEST or process.phase == _TESTS_PHASE


def _unusable(executed: Executed, commit: str) -> str:
    """Why nothing in a record counts, empty where it does."""
    if executed.problem:
        return _bounded(executed.problem)
    stated = executed.bridge_commit
    if stated and commit and stated != commit:
        return f"{EXECUTED_FILE} is of {stated[:_SHORT_ID]}, and the run of {commit[:_SHORT_ID]}"
    return ""


def _gap(processes: tuple[ExecutedProcess, ...]) -> str:
    """Why a function that is not in the record may have run all the same; empty where it did not."""
    if not any(process.role is ProcessRole.TRAINER for process in processes):
        return "no process of a trainer was recorded"
    broken = next((process for process in processes if process.problem and process.role in _TELLING), None)
    if broken is None:
        return ""
    return f"the record of {describe_process(broken)} is not whole: {_bounded(broken.problem)}"


def describe_process(process: ExecutedProcess) -> str:
    """A process for people, as `trainer 0 (train)`."""
    rank = "" if process.rank is None else f" {process.rank}"
    return f"{process.role}{rank} ({_bounded(process.phase) or 'no phase'})"


def _bounded(text: str) -> str:
    """Text of the record, which code under test may have written."""
    stripped = text.strip().rstrip(".")
    return stripped if len(stripped) <= _MOST_TEXT else f"{stripped[: _MOST_TEXT - 4]} ..."


def _function_run(function: ChangedFunction, index: _Index) -> FunctionRun:
    file = index.files.get(function.path)
    ran = _lines(function, file, index.in_verl)
    times = _entered_at(function, file, index)
    verl = {process: first for process, first in times.items() if process in index.in_verl}
    entered = _entered(function, file, times, index)
    order = sorted(verl, key=lambda process: (verl[process], process))
    known = [verl[process] for process in order if math.isfinite(verl[process])]
    return FunctionRun(
        path=function.path,
        symbol=function.symbol,
        first_line=function.first_line,
        side=function.side,
        entered=entered,
        ran=ran if entered is Entered.IN_VERL else (),
        missed=_missed(function, ran, entered, index),
        processes=tuple(describe_process(index.processes[process]) for process in order[:_SHOWN_PROCESSES]),
        process_count=len(order),
        first_s=known[0] if known else None,
        condition=function.condition,
        uncoverable=function.uncoverable,
    )


def _entered(
    function: ChangedFunction, file: ExecutedFile | None, times: Mapping[int, float], index: _Index
) -> Entered:
    patched = function.path in index.patched
    if file is not None and _ran_change(function, file, times, index.in_verl, patched=patched):
        return Entered.IN_VERL
    if file is not None and _ran_change(function, file, times, index.by_tests, patched=patched):
        return Entered.BY_TESTS
    if index.gap or (index.cut and file is None) or (times and function.lines and file and not file.lines):
        return Entered.UNKNOWN
    return Entered.AROUND if times else Entered.NEVER


def _ran_change(
    function: ChangedFunction, file: ExecutedFile, times: Mapping[int, float], kind: frozenset[int], *, patched: bool
) -> bool:
    """Whether processes of a kind that entered a function ran a changed line of it, and some of the kind what reads it.

    To have entered it is enough where no line of it must run, and where lines are not those of the commit.
    """
    if patched or kind.isdisjoint(times):
        return not kind.isdisjoint(times)
    # A large record names the first processes of each entry alone, and one forked after an import has not run that.
    if function.readers and not _ran_one(function.readers, file, kind):
        return False
    return not function.lines or _ran_one(function.lines, file, kind)


def _ran_one(lines: Iterable[int], file: ExecutedFile, processes: frozenset[int]) -> bool:
    return any(not processes.isdisjoint(file.lines.get(line, ())) for line in lines)


def _missed(function: ChangedFunction, ran: tuple[int, ...], entered: Entered, index: _Index) -> tuple[int, ...]:
    """The lines that did not run. Under a patch lines are counted otherwise, so an entered function misses none."""
    if entered is Entered.IN_VERL and function.path in index.patched:
        return ()
    executed = frozenset(ran) if entered is Entered.IN_VERL else frozenset()
    return tuple(line for line in function.lines if line not in executed)


def _lines(function: ChangedFunction, file: ExecutedFile | None, processes: frozenset[int]) -> tuple[int, ...]:
    if file is None:
        return ()
    return tuple(line for line in function.lines if not processes.isdisjoint(file.lines.get(line, ())))


def _entered_at(function: ChangedFunction, file: ExecutedFile | None, index: _Index) -> dict[int, float]:
    """Each process that entered the function, with when; infinite where that is not known."""
    if file is None:
        return {}
    if function.at_import:
        return dict.fromkeys(_importing(function, file, index), math.inf)
    found: dict[int, float] = {}
    for entry in _entries(function, file, index):
        for process, first in entry.first_s.items():
            if 0 <= process < len(index.processes):
                when = first if math.isfinite(first) and first >= 0 else math.inf
                found[process] = min(found.get(process, math.inf), when)
    return found


def _importing(function: ChangedFunction, file: ExecutedFile, index: _Index) -> Iterable[int]:
    """The processes that ran a changed line at import; any line of the file where none is demanded."""
    lines = function.lines or tuple(file.lines)
    return {process for line in lines for process in file.lines.get(line, ()) if 0 <= process < len(index.processes)}


def _entries(function: ChangedFunction, file: ExecutedFile, index: _Index) -> tuple[ExecutedFunction, ...]:
    """The entries of a function: one name may belong to several, as those of a property, so the line decides too."""
    named = tuple(entry for entry in file.functions if entry.symbol == function.symbol)
    here = tuple(entry for entry in named if function.first_line <= entry.line <= function.last_line)
    return here or (named if len(named) == 1 and function.path in index.patched else ())
