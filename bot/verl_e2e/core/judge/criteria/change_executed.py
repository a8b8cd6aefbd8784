"""Whether the run executed the change: of the functions that the job is planned for, which ones it entered.

None of them: the run shows nothing about the change, however green the rest. What only Bridge tests entered did not
run in verl. Without a record nothing is known, and that is a limitation; the policy says what the gate makes of it.
"""

from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.execution import BASE_NOT_RUN, NO_RECORD, Recorded, execution_of
from verl_e2e.core.judge.execution_text import listed, not_recorded_text
from verl_e2e.core.model.changed_code import Side
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.executed import EXECUTED_FILE
from verl_e2e.core.model.execution import ChangeExecution, Entered, FunctionRun
from verl_e2e.core.model.related import Role


def execution(case: Case) -> ChangeExecution | None:
    """What the run executed of the change; None for a job that is for no change."""
    if not case.job.changed:
        return None
    patched = frozenset(patch.file for patch in case.job.patches if patch.repository == "bridge")
    head = Recorded(case.record.executed, case.job.bridge.commit, patched=patched)
    bases = case.related(Role.MERGE_BASE)
    commit = bases[0].bridge_commit if bases else ""
    why_none = NO_RECORD if bases else BASE_NOT_RUN
    return execution_of(case.job.changed, head, Recorded(case.record.base_executed, commit, why_none, patched))


def change_executed(case: Case) -> Evidence:
    """The criterion: met by one function whose changed code ran, broken where the record shows that none did.

    Code at import runs in every process, so it is enough only where the change touches no function.
    """
    found = execution(case) or ChangeExecution()
    entered = found.entered
    if any(function.entered is Entered.IN_VERL for function in found.telling):
        summary = f"{len(entered)} of {len(found.functions)} changed functions ran: {listed(entered)}"
        return Evidence(Criterion.CHANGE_EXECUTED, State.MET, summary, EXECUTED_FILE, 0, _seen(entered[0]))
    if not found.functions:
        return _nothing_demanded(found)
    asked = found.of_side(Side.HEAD)
    why = found.not_recorded if asked else found.base_not_recorded
    if why:
        summary = not_recorded_text(why, base=not asked)
        return Evidence(Criterion.CHANGE_EXECUTED, State.WAIVED, summary, EXECUTED_FILE)
    summary = f"the run never entered the changed code: {listed(found.telling)}"
    return Evidence(Criterion.CHANGE_EXECUTED, State.BROKEN, summary, EXECUTED_FILE, 0, _unseen(case, found))


def _nothing_demanded(found: ChangeExecution) -> Evidence:
    """A change that asks for no execution, or of which no function is known."""
    if found.unread or found.left_out:
        first = found.unread[0] if found.unread else f"{found.left_out} functions are not listed"
        summary = f"which functions the change touches is not known: {first}"
        return Evidence(Criterion.CHANGE_EXECUTED, State.WAIVED, summary)
    summary = "nothing of the change has to be executed: verl reaches none of it, or no changed line does anything"
    return Evidence(Criterion.CHANGE_EXECUTED, State.MET, summary)


def _seen(function: FunctionRun) -> str:
    """Where and when the first of the entered functions ran."""
    more = function.process_count - len(function.processes)
    who = ", ".join(function.processes) + (f" and {more} more" if more else "")
    when = "" if function.first_s is None else f", first after {function.first_s:.1f} s"
    how = "" if function.symbol else ", at import"
    return f"{function.place} {function.name}: entered by {who}{when}{how}"


def _unseen(case: Case, found: ChangeExecution) -> str:
    """What the record holds instead."""
    executed = case.record.executed
    files = {function.path for function in found.functions}
    count = len(executed.processes) if executed else 0
    others = sum(len(file.functions) for file in executed.files if file.path in files) if executed else 0
    tests = sum(function.entered is Entered.BY_TESTS for function in found.functions)
    by_tests = f", {tests} of the changed ones only by Bridge tests" if tests else ""
    first = found.telling[0]
    around = "none of its changed lines" if first.symbol else "no function that reads it"
    where = f"{around} in {count} processes" if first.processes else f"in none of {count} processes"
    return f"{first.place} {first.name}: {where}; {others} functions of the files ran{by_tests}"
