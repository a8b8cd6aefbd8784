"""What ran of a change: matched with the record of one run, joined over several, and said on a verdict and a card.

A function counts as executed when any job of the change entered its changed code, and a Bridge test is enough to know
that it runs at all. So a job that never entered its part is made up for by another one that passed and did.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.verdict_document import Limitation
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.execution import (
    EXECUTED_FILE,
    MOST_JUDGED,
    ChangedCode,
    ChangedFunction,
    ChangeExecution,
    Entered,
    Executed,
    ExecutedFile,
    ExecutedProcess,
    FunctionRun,
    ProcessRole,
    Side,
    line_ranges,
)
from verl_e2e.core.model.related import Role
from verl_e2e.core.text.escape import count_of

# Of code that ran at import.
NOT_READ = "it ran, but no function that reads what it binds did"
_SHOWN_FUNCTIONS = 12
_SHOWN_PLACES = 12
# The line about all jobs, on a card.
EXECUTED_TITLE = "Changed code executed"
_LINE_PLACES, _LINE_JOBS = 8, 6
# What a record tells of changed code that did not run.
_UNENTERED = (Entered.NEVER, Entered.AROUND)


def listed(functions: Sequence[FunctionRun]) -> str:
    """Functions with their places, the first of them: `a.py:12 f (only with dropout), b.py:3 g and 4 more`."""
    rows = []
    for function in functions:
        around = "entered, but none of its changed lines ran" if function.symbol else NOT_READ
        notes = (
            "before the change" if function.side is Side.MERGE_BASE else "",
            around if function.entered is Entered.AROUND else "",
            function.condition,
        )
        shown = ", ".join(filter(None, notes))
        rows.append(f"{aspect_of(function)}{f' ({shown})' if shown else ''}")
    return and_more(rows, _SHOWN_FUNCTIONS)


def and_more(rows: Sequence[str], most: int) -> str:
    """The first rows, and how many more there are."""
    more = len(rows) - most
    return f"{', '.join(rows[:most])}{f' and {more} more' if more > 0 else ''}"


def not_recorded_text(why: str, *, base: bool = False) -> str:
    """That nothing is known of what ran, with the reason."""
    if base:
        return f"whether the removed code ran is not known: {why}"
    return f"execution not recorded: {why}"


def aspect_of(function: FunctionRun) -> str:
    """What another job may show of a function that this one did not enter."""
    return f"{function.place} {function.name}"


def execution_limitations(found: ChangeExecution | None) -> Iterator[Limitation]:
    """What a run leaves open of the change: functions, then lines, then what is not known."""
    if found is None:
        return
    head, removed = found.of_side(Side.HEAD), found.of_side(Side.MERGE_BASE)
    never = [function for function in head if function.entered in _UNENTERED]
    if never and found.entered:
        # Of more than are listed, no other job can be said to show them.
        aspects = tuple(map(aspect_of, never)) if len(never) <= _SHOWN_FUNCTIONS else ()
        yield Limitation(f"Changed functions that the run did not execute: {listed(never)}.", aspects)
    tests = [function for function in found.functions if function.entered is Entered.BY_TESTS]
    if tests:
        yield Limitation(f"Executed by Bridge tests alone, not in verl: {listed(tests)}.")
    entered = [function for function in found.entered if function.side is Side.HEAD]
    places = [f"{function.path}:{lines}" for function in entered for lines in line_ranges(function.missed)]
    if places:
        yield Limitation(f"Changed lines that did not run: {and_more(places, _SHOWN_PLACES)}.")
    if removed and found.base_not_recorded:
        text = not_recorded_text(found.base_not_recorded, base=True)
        yield Limitation(f"{text[:1].upper()}{text[1:]}.")
    gone = [function for function in removed if function.entered in _UNENTERED]
    if gone and found.entered:
        text = f"Code that the change takes out and that did not run on the merge base either: {listed(gone)}."
        yield Limitation(text)
    unknown = [function for function in head if function.entered is Entered.UNKNOWN]
    if unknown and found.entered:
        text = f"Whether these changed functions ran is not known, {found.not_recorded}: {listed(unknown)}."
        yield Limitation(text)
    if found.unread and found.functions:
        yield Limitation(f"Changed files whose functions are not known: {and_more(found.unread, _SHOWN_PLACES)}.")
    if found.left_out and found.functions:
        yield Limitation(f"{found.left_out} more changed functions were not compared with what ran.")


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
    why_none: str = NO_RECORD
    # Files that a declared patch changes, so that their lines are not those of the commit.
    patched: frozenset[str] = frozenset()


def match_execution(changed: ChangedCode, head: Recorded, base: Recorded) -> ChangeExecution:
    """Match what a job must execute with the records of the head and of the merge base."""
    sides = {Side.HEAD: _index(head), Side.MERGE_BASE: _index(base)}
    # What the change only replaces is looked for on the merge base where a run there was recorded.
    earlier = () if sides[Side.MERGE_BASE].gap else changed.earlier
    asked = dict.fromkeys((*changed.functions, *earlier))
    demanded = sorted(
        (function for function in asked if function.demanded and function.reached),
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
    executed, commit = recorded.executed, recorded.commit
    if executed is None:
        return _Index({}, (), frozenset(), frozenset(), recorded.why_none)
    unusable = _bounded(executed.problem)
    if not executed.problem and executed.bridge_commit and commit and executed.bridge_commit != commit:
        unusable = f"{EXECUTED_FILE} is of {executed.bridge_commit[:_SHORT_ID]}, and the run of {commit[:_SHORT_ID]}"
    if unusable:
        return _Index({}, (), frozenset(), frozenset(), unusable)
    tests = frozenset(
        index
        for index, process in enumerate(executed.processes)
        if process.role is ProcessRole.BRIDGE_TEST or process.phase == _TESTS_PHASE
    )
    in_verl = frozenset(range(len(executed.processes))) - tests
    # Why a function that is not in the record may have run all the same; empty where it did not.
    gap = ""
    processes = [executed.processes[index] for index in sorted(in_verl)]
    broken = next((process for process in processes if process.problem and process.role in _TELLING), None)
    if not any(process.role is ProcessRole.TRAINER for process in processes):
        gap = "no process of a trainer was recorded"
    elif broken is not None:
        gap = f"the record of {describe_process(broken)} is not whole: {_bounded(broken.problem)}"
    cut = f"the record is not whole: {_bounded(executed.cut[0])}" if executed.cut else ""
    files = {file.path: file for file in reversed(executed.files)}
    return _Index(files, executed.processes, in_verl, tests, gap, cut, recorded.patched)


def describe_process(process: ExecutedProcess) -> str:
    """A process for people, as `trainer 0 (train)`."""
    rank = "" if process.rank is None else f" {process.rank}"
    return f"{process.role}{rank} ({_bounded(process.phase) or 'no phase'})"


def _bounded(text: str) -> str:
    """Text of the record, which code under test may have written."""
    stripped = text.strip().rstrip(".")
    return stripped if len(stripped) <= _MOST_TEXT else f"{stripped[: _MOST_TEXT - 4]} ..."


def _function_run(function: ChangedFunction, index: _Index) -> FunctionRun:
    file, patched = index.files.get(function.path), function.path in index.patched
    times = _entered_at(function, file, index)
    lines = {} if file is None else file.lines

    def ran_any(asked: Iterable[int], kind: frozenset[int]) -> bool:
        return any(not kind.isdisjoint(lines.get(line, ())) for line in asked)

    entered = Entered.AROUND if times else Entered.NEVER
    if index.gap or (index.cut and file is None) or (times and function.lines and not lines):
        entered = Entered.UNKNOWN
    for kind, by in ((index.by_tests, Entered.BY_TESTS), (index.in_verl, Entered.IN_VERL)):
        # To have entered it is enough where no line of it must run, and where lines are not those of the commit. What
        # reads it may run in another process: a large record names the first processes of each entry alone, and one
        # forked after an import has not run that.
        read = not function.readers or ran_any(function.readers, kind)
        ran_change = patched or (read and (not function.lines or ran_any(function.lines, kind)))
        if not kind.isdisjoint(times) and ran_change:
            entered = by
    verl = {process: first for process, first in times.items() if process in index.in_verl}
    order = sorted(verl, key=lambda process: (verl[process], process))
    known = [verl[process] for process in order if math.isfinite(verl[process])]
    in_verl = entered is Entered.IN_VERL
    ran = tuple(line for line in function.lines if in_verl and ran_any((line,), index.in_verl))
    return FunctionRun(
        path=function.path,
        symbol=function.symbol,
        first_line=function.first_line,
        side=function.side,
        entered=entered,
        ran=ran,
        # Under a patch lines are counted otherwise, so an entered function misses none.
        missed=() if in_verl and patched else tuple(line for line in function.lines if line not in ran),
        processes=tuple(describe_process(index.processes[process]) for process in order[:_SHOWN_PROCESSES]),
        process_count=len(order),
        first_s=known[0] if known else None,
        condition=function.condition,
        uncoverable=function.uncoverable,
    )


def _entered_at(function: ChangedFunction, file: ExecutedFile | None, index: _Index) -> dict[int, float]:
    """Each process that entered the function, with when; infinite where that is not known."""
    if file is None:
        return {}
    if function.at_import:
        # Any line of the file where none is demanded.
        lines = function.lines or tuple(file.lines)
        ran = {process for line in lines for process in file.lines.get(line, ())}
        return dict.fromkeys((process for process in ran if 0 <= process < len(index.processes)), math.inf)
    # One name may belong to several entries, as those of a property, so the line decides too.
    named = [entry for entry in file.functions if entry.symbol == function.symbol]
    here = [entry for entry in named if function.first_line <= entry.line <= function.last_line]
    alone = named if len(named) == 1 and function.path in index.patched else []
    found: dict[int, float] = {}
    for entry in here or alone:
        for process, first in entry.first_s.items():
            if 0 <= process < len(index.processes):
                when = first if math.isfinite(first) and first >= 0 else math.inf
                found[process] = min(found.get(process, math.inf), when)
    return found


def execution(case: Case) -> ChangeExecution | None:
    """What the run executed of the change; None for a job that is for no change."""
    if not case.job.changed:
        return None
    patched = frozenset(patch.file for patch in case.job.patches if patch.repository == "bridge")
    head = Recorded(case.record.executed, case.job.bridge.commit, patched=patched)
    bases = case.related(Role.MERGE_BASE)
    commit = bases[0].bridge_commit if bases else ""
    why_none = NO_RECORD if bases else BASE_NOT_RUN
    return match_execution(case.job.changed, head, Recorded(case.record.base_executed, commit, why_none, patched))


def change_executed(case: Case) -> Evidence:
    """The criterion: met by one function whose changed code ran, broken where the record shows that none did.

    Code at import runs in every process, so it is enough only where the change touches no function.
    """
    found = execution(case) or ChangeExecution()
    entered = found.entered
    if any(function.entered is Entered.IN_VERL for function in found.telling):
        summary = f"{len(entered)} of {len(found.functions)} changed functions ran: {listed(entered)}"
        # Where and when the first of them ran.
        first = entered[0]
        more = first.process_count - len(first.processes)
        who = ", ".join(first.processes) + (f" and {more} more" if more else "")
        when = "" if first.first_s is None else f", first after {first.first_s:.1f} s"
        how = "" if first.symbol else ", at import"
        excerpt = f"{first.place} {first.name}: entered by {who}{when}{how}"
        return Evidence(State.MET, summary, EXECUTED_FILE, 0, excerpt)
    if not found.functions:
        # No function of the change is known, or none has to run.
        if found.unread or found.left_out:
            why = found.unread[0] if found.unread else f"{found.left_out} functions are not listed"
            return Evidence(State.WAIVED, f"which functions the change touches is not known: {why}")
        summary = "nothing of the change has to be executed: nothing reaches it, or no changed line does anything"
        return Evidence(State.MET, summary)
    asked = found.of_side(Side.HEAD)
    why = found.not_recorded if asked else found.base_not_recorded
    if why:
        summary = not_recorded_text(why, base=not asked)
        return Evidence(State.WAIVED, summary, EXECUTED_FILE)
    summary = f"the run never entered the changed code: {listed(found.telling)}"
    # What the record holds instead.
    executed, first = case.record.executed, found.telling[0]
    files = {function.path for function in found.functions}
    count = len(executed.processes) if executed else 0
    others = sum(len(file.functions) for file in executed.files if file.path in files) if executed else 0
    tests = sum(function.entered is Entered.BY_TESTS for function in found.functions)
    by_tests = f", {tests} of the changed ones only by Bridge tests" if tests else ""
    around = "none of its changed lines" if first.symbol else "no function that reads it"
    where = f"{around} in {count} processes" if first.processes else f"in none of {count} processes"
    excerpt = f"{first.place} {first.name}: {where}; {others} functions of the files ran{by_tests}"
    return Evidence(State.BROKEN, summary, EXECUTED_FILE, 0, excerpt)


VERDICT_NOT_KEPT = "the verdict of the run is no longer kept"
_SHOWN_JOBS = 4


@dataclass(frozen=True, slots=True)
class JoinedFunction:
    """One changed function, and what all jobs together executed of it."""

    # As the first job has it that was planned for it.
    function: FunctionRun
    planned: tuple[str, ...]
    # The jobs whose run of verl entered it.
    jobs: tuple[str, ...] = ()
    by_tests: bool = False
    # Whether a record tells that nothing entered it.
    seen_unentered: bool = False
    # The changed lines that some job executed, and those that none did.
    ran: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    # Where it was first entered, as `trainer 0 (train)` of the first job; empty where it was not.
    process: str = ""

    @property
    def never(self) -> bool:
        """Whether it is known that nothing entered it, neither verl nor a Bridge test."""
        return self.seen_unentered and not self.jobs and not self.by_tests

    @property
    def unknown(self) -> bool:
        """Whether no record tells anything of it."""
        return not (self.jobs or self.by_tests or self.seen_unentered)


@dataclass(frozen=True, slots=True)
class JoinedExecution:
    """What the jobs of a change executed of it."""

    # The functions that jobs are planned for, by side, path and line.
    functions: tuple[JoinedFunction, ...] = ()
    # By job: why its record does not tell of everything.
    not_recorded: Mapping[str, str] = field(default_factory=dict)
    # Why nothing is known of the merge base, where that is so in every job.
    base_not_recorded: str = ""
    # Changed files whose functions are not known, as `path: reason`.
    unread: tuple[str, ...] = ()
    # By job: how many functions more it is planned for than are listed.
    cut_off: Mapping[str, int] = field(default_factory=dict)

    @property
    def left_out(self) -> int:
        """How many functions more there are than are listed, at least."""
        return max(self.cut_off.values(), default=0)

    def of_side(self, side: Side) -> tuple[JoinedFunction, ...]:
        """The functions of one side."""
        return tuple(joined for joined in self.functions if joined.function.side is side)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that entered anything, in their order."""
        return tuple(dict.fromkeys(job for joined in self.functions for job in joined.jobs))


def join(executions: Mapping[str, ChangeExecution]) -> JoinedExecution:
    """What these jobs executed together; the order of the mapping is that of the jobs."""
    found: dict[tuple[Side, str, str, int], list[tuple[str, FunctionRun]]] = {}
    for job_id, execution in executions.items():
        for function in execution.functions:
            found.setdefault(function.key, []).append((job_id, function))
    functions = []
    for _, rows in sorted(found.items(), key=lambda item: (item[0][0], item[0][1], item[0][3], item[0][2])):
        entered = [(job, function) for job, function in rows if function.entered is Entered.IN_VERL]
        ran = {line for _, function in entered for line in function.ran}
        lines = ran.union(*(function.missed for _, function in entered or rows))
        joined = JoinedFunction(
            function=rows[0][1],
            planned=tuple(job for job, _ in rows),
            jobs=tuple(job for job, _ in entered),
            by_tests=any(function.entered is Entered.BY_TESTS for _, function in rows),
            seen_unentered=any(function.entered in _UNENTERED for _, function in rows),
            ran=tuple(sorted(ran)),
            missed=tuple(sorted(lines - ran)),
            process=next((function.processes[0] for _, function in entered if function.processes), ""),
        )
        functions.append(joined)
    with_removed = [execution for execution in executions.values() if execution.of_side(Side.MERGE_BASE)]
    gaps = [execution.base_not_recorded for execution in with_removed]
    return JoinedExecution(
        functions=tuple(functions),
        not_recorded={job: execution.not_recorded for job, execution in executions.items() if execution.not_recorded},
        base_not_recorded=gaps[0] if gaps and all(gaps) else "",
        unread=tuple(dict.fromkeys(text for execution in executions.values() for text in execution.unread)),
        cut_off={job: execution.left_out for job, execution in executions.items() if execution.left_out},
    )


def in_tests_alone(joined: JoinedExecution) -> str:
    """What of a change Bridge tests executed and no run of verl did, as a clause; empty where there is nothing."""
    head = joined.of_side(Side.HEAD)
    alone = sum(item.by_tests and not item.jobs for item in head)
    if not alone:
        return ""
    if not any(item.jobs for item in head):
        return "the change was executed by Bridge tests alone, by no verl run"
    return f"{alone} of {len(head)} changed functions ran in Bridge tests alone"


def unknown_execution(changed: ChangedCode) -> ChangeExecution:
    """What is known of a run whose verdict is not there any more: nothing."""
    return match_execution(changed, Recorded(None, why_none=VERDICT_NOT_KEPT), Recorded(None, why_none=BASE_NOT_RUN))


def accepted(own: ChangeExecution, passed: Mapping[str, ChangeExecution], rules: ExecutionRules) -> str:
    """Why a job that never entered its part of the change is enough all the same, empty where it is not.

    `passed` is what other jobs executed that passed: each function that the job missed has to be entered there, or by
    a Bridge test.
    """
    if rules.unexecuted is Demand.ALLOW:
        return "the policy allows that (gate.unexecuted)"
    if own.left_out or not own.functions:
        return ""
    missed = [function for function in own.functions if function.entered in (*_UNENTERED, Entered.BY_TESTS)]
    elsewhere = {joined.function.key: joined for joined in join(passed).functions}
    jobs: dict[str, None] = {}
    families: dict[str, None] = {}
    by_tests = False
    for function in missed:
        joined = elsewhere.get(function.key)
        if joined is not None and joined.jobs:
            jobs |= dict.fromkeys(joined.jobs)
        elif function.entered is Entered.BY_TESTS or (joined is not None and joined.by_tests):
            by_tests = True
        elif function.uncoverable and rules.uncoverable is Demand.ALLOW:
            families[function.uncoverable] = None
        else:
            return ""
    where = [f"in {and_more(tuple(jobs), _SHOWN_JOBS)}"] * bool(jobs) + ["by Bridge tests alone"] * by_tests
    ran = [f"what it missed ran {' and '.join(where)}"] * bool(where)
    left = [f"no host can run {and_more(tuple(families), _SHOWN_JOBS)} (gate.uncoverable)"] * bool(families)
    return "; ".join((*ran, *left)) or "what it missed is not known"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What of a change no job executed, as a policy sees it; both are empty where there is nothing."""

    closing: str = ""
    allowed: str = ""


def shortfall(joined: JoinedExecution, rules: ExecutionRules, excused: Iterable[str] = ()) -> Shortfall:
    """What no job executed; `excused` are jobs whose part a person takes the responsibility for.

    Code that the change removes cannot run on the head, so it keeps no gate closed.
    """
    waived = frozenset(excused)
    left = [item for item in joined.of_side(Side.HEAD) if waived.isdisjoint(item.planned)]
    never = [item.function for item in left if item.never and not item.function.uncoverable]
    unknown = [item.function for item in left if item.unknown and not item.function.uncoverable]
    uncoverable = [item.function for item in left if item.function.uncoverable and (item.never or item.unknown)]
    rows: list[tuple[Demand, str]] = []
    if never:
        text = f"{count_of(len(never), 'changed function')} in reach never ran: {listed(never)}"
        rows.append((rules.unexecuted, text))
    cut_off = max((count for job, count in joined.cut_off.items() if job not in waived), default=0)
    if unknown or cut_off:
        whose = next(iter(joined.not_recorded.items()), None)
        why = f" ({whose[0]}: {whose[1]})" if unknown and whose else ""
        rows.append(
            (rules.unrecorded, f"whether {count_of(len(unknown) + cut_off, 'changed function')} ran is not known{why}")
        )
    if uncoverable:
        families = ", ".join(dict.fromkeys(function.uncoverable for function in uncoverable))
        belong = "belongs" if len(uncoverable) == 1 else "belong"
        amount = count_of(len(uncoverable), "changed function")
        text = f"{amount} {belong} to {families}, which no host can run: {listed(uncoverable)}"
        rows.append((rules.uncoverable, text))
    closing = "; ".join(text for demand, text in rows if demand is Demand.BLOCK)
    return Shortfall(closing, "; ".join(text for demand, text in rows if demand is Demand.ALLOW))


def execution_line(joined: JoinedExecution, *, done: bool = True) -> str:
    """One line on all jobs together, without its title; empty where no job is planned for changed functions.

    `done` says whether no other job is still to run.
    """
    rows: list[str] = []
    head, removed = joined.of_side(Side.HEAD), joined.of_side(Side.MERGE_BASE)
    unknown = [item for item in head if item.unknown]
    whose = next(iter(joined.not_recorded.items()), None)
    why = f" ({whose[0]}: {not_recorded_text(whose[1])})" if whose else ""
    if len(unknown) < len(head):
        ran = sum(bool(item.jobs) for item in head)
        lines_ran, missed = sum(len(item.ran) for item in head), sum(len(item.missed) for item in head)
        jobs = f" ({and_more(joined.jobs, _LINE_JOBS)})" if ran else ""
        rows.append(f"{ran} of {len(head)} functions, {lines_ran} of {lines_ran + missed} lines{jobs}")
        places: list[str] = []
        for item in head:
            if item.missed and (item.never or item.jobs):
                places += [f"{item.function.path}:{lines}" for lines in line_ranges(item.missed)]
            elif item.never:
                # Only its head changed.
                places.append(f"{item.function.path}:{item.function.first_line}")
        tests = [item.function.place for item in head if item.by_tests and not item.jobs]
        never = "never executed" if done else "not executed so far"
        named = ((never, places), ("executed by Bridge tests alone", tests))
        rows += [f"{title}: {and_more(found, _LINE_PLACES)}" for title, found in named if found]
        rows += [f"{len(unknown)} not known{why}"] * bool(unknown)
    elif head:
        rows.append(f"not known{why}")
    if removed and joined.base_not_recorded:
        rows.append(not_recorded_text(joined.base_not_recorded, base=True))
    elif removed:
        count = sum(bool(item.jobs) for item in removed)
        rows.append(f"of the code that the change takes out {count} of {len(removed)} functions ran on the merge base")
    rows += [f"{joined.left_out} more functions not compared"] * bool(joined.left_out)
    rows += [f"functions not known in {and_more(joined.unread, _LINE_PLACES)}"] * bool(joined.unread)
    return "; ".join(rows)


def execution_rows(joined: JoinedExecution) -> tuple[str, ...]:
    """A row for each function, as plain text: where it is, what became of it, and which lines did not run."""
    rows = []
    for item in joined.functions:
        function = item.function
        condition = f" ({function.condition})" if function.condition else ""
        lines = ""
        if item.jobs:
            timed = item.process and function.first_s is not None and function.entered is Entered.IN_VERL
            when = f" after {function.first_s:.1f} s" if timed else ""
            who = f", first in {item.process}{when}" if item.process else ""
            what = f"ran{'' if function.symbol else ' at import'} in {and_more(item.jobs, _LINE_JOBS)}{who}"
            lines = f"; lines not run: {', '.join(line_ranges(item.missed))}" if item.missed else ""
        elif item.by_tests:
            what = f"executed by Bridge tests alone{condition}"
        elif item.never and function.entered is Entered.AROUND and not function.symbol:
            what = NOT_READ
        else:
            what = f"{'never ran' if item.never else 'not known'}{condition}"
        base = "on the merge base " if function.side is Side.MERGE_BASE else ""
        rows.append(f"{function.place} {function.name}: {base}{what}{lines}")
    return tuple(rows)
