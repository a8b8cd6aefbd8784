"""What the jobs of one change executed of it together, and whether that is enough for a policy.

A function counts as executed when any job of the change entered its changed code, and a Bridge test is enough to know
that it runs at all. So a job that never entered its part is made up for by another one that passed and did.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verl_e2e.core.judge.execution import BASE_NOT_RUN, Recorded, execution_of
from verl_e2e.core.judge.execution_text import and_more, listed
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.changed_code import ChangedCode, Side
from verl_e2e.core.model.execution import ChangeExecution, Entered, FunctionRun

VERDICT_NOT_KEPT = "the verdict of the run is no longer kept"
_SHOWN_JOBS = 4
# What a record tells of changed code that did not run.
_UNENTERED = (Entered.NEVER, Entered.AROUND)


@dataclass(frozen=True, slots=True)
class JoinedFunction:
    """One changed function, and what all jobs together executed of it."""

    # As the first job has it that was planned for it.
    function: FunctionRun
    # The jobs that were planned for it.
    planned: tuple[str, ...]
    # The jobs whose run of verl entered it.
    jobs: tuple[str, ...] = ()
    # Whether a Bridge test entered it.
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
    functions = sorted(found.items(), key=lambda item: (item[0][0], item[0][1], item[0][3], item[0][2]))
    with_removed = [execution for execution in executions.values() if execution.of_side(Side.MERGE_BASE)]
    gaps = [execution.base_not_recorded for execution in with_removed]
    return JoinedExecution(
        functions=tuple(_joined(rows) for _, rows in functions),
        not_recorded={job: execution.not_recorded for job, execution in executions.items() if execution.not_recorded},
        base_not_recorded=gaps[0] if gaps and all(gaps) else "",
        unread=tuple(dict.fromkeys(text for execution in executions.values() for text in execution.unread)),
        cut_off={job: execution.left_out for job, execution in executions.items() if execution.left_out},
    )


def _joined(rows: list[tuple[str, FunctionRun]]) -> JoinedFunction:
    entered = [(job, function) for job, function in rows if function.entered is Entered.IN_VERL]
    ran = {line for _, function in entered for line in function.ran}
    lines = ran.union(*(function.missed for _, function in entered or rows))
    process = next((function.processes[0] for _, function in entered if function.processes), "")
    return JoinedFunction(
        function=rows[0][1],
        planned=tuple(job for job, _ in rows),
        jobs=tuple(job for job, _ in entered),
        by_tests=any(function.entered is Entered.BY_TESTS for _, function in rows),
        seen_unentered=any(function.entered in _UNENTERED for _, function in rows),
        ran=tuple(sorted(ran)),
        missed=tuple(sorted(lines - ran)),
        process=process,
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
    return execution_of(changed, Recorded(None, why_none=VERDICT_NOT_KEPT), Recorded(None, why_none=BASE_NOT_RUN))


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

    # What keeps the gate closed.
    closing: str = ""
    # What the policy allows.
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
    cut_off = max((count for job, count in joined.cut_off.items() if job not in waived), default=0)
    rows = (
        (rules.unexecuted, _never_text(never)),
        (rules.unrecorded, _unknown_text(len(unknown), cut_off, joined)),
        (rules.uncoverable, _uncoverable_text(uncoverable)),
    )
    closing = "; ".join(text for demand, text in rows if text and demand is Demand.BLOCK)
    return Shortfall(closing, "; ".join(text for demand, text in rows if text and demand is Demand.ALLOW))


def _never_text(never: list[FunctionRun]) -> str:
    if not never:
        return ""
    count = (
        "1 changed function that verl reaches"
        if len(never) == 1
        else (f"{len(never)} changed functions that verl reaches")
    )
    return f"{count} never ran: {listed(never)}"


def _uncoverable_text(functions: list[FunctionRun]) -> str:
    if not functions:
        return ""
    families = ", ".join(dict.fromkeys(function.uncoverable for function in functions))
    what = "1 changed function belongs" if len(functions) == 1 else f"{len(functions)} changed functions belong"
    return f"{what} to {families}, which no host can run: {listed(functions)}"


def _unknown_text(unknown: int, cut_off: int, joined: JoinedExecution) -> str:
    count = unknown + cut_off
    if not count:
        return ""
    whose = next(((job, why) for job, why in joined.not_recorded.items()), None)
    why = f" ({whose[0]}: {whose[1]})" if unknown and whose else ""
    what = "1 changed function" if count == 1 else f"{count} changed functions"
    return f"whether {what} ran is not known{why}"
