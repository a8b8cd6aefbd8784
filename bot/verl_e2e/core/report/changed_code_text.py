"""What of a change must run, in which job, as people read it."""

from collections.abc import Iterable, Iterator

from verl_e2e.core.model.change import on_one_line
from verl_e2e.core.model.changed_code import ChangedFunction, Side
from verl_e2e.core.plan.plan import Plan

_SHOWN = 3


def changed_code_lines(plan: Plan) -> Iterator[str]:
    """A block of the plan text; nothing where no function of the change is known and none is unread."""
    code = plan.changed
    if not code:
        return
    if code.required:
        yield f"Changed code that at least one run must execute: {amount(code.required)}"
    yield from (
        f"  looked for in {job.id}: {amount(job.changed.required)}" for job in plan.jobs if job.changed.required
    )
    removed = [function for function in code.functions if function.side is Side.MERGE_BASE and function.reached]
    if removed:
        yield f"Removed code, looked for in runs on the merge base: {amount(removed)}"
    unreached = [function for function in code.functions if not function.reached]
    if unreached:
        yield f"Changed code that verl does not reach by its sources: {_named(map(place, unreached))}"
    for path, reason in list(code.unread.items())[:_SHOWN]:
        yield f"Which functions differ is not known for {on_one_line(path)}: {on_one_line(reason)}"
    if len(code.unread) > _SHOWN:
        yield f"  nor for {_counted(len(code.unread) - _SHOWN, 'more file')}"
    if code.left_out:
        yield f"Changed functions and files that are not listed: {code.left_out}"


def amount(functions: Iterable[ChangedFunction]) -> str:
    """How many functions and lines."""
    listed = list(functions)
    named = [function for function in listed if function.symbol]
    lines = sum(len(function.lines) for function in listed)
    return f"{_counted(len(named), 'function')}, {_counted(lines, 'line')}"


def place(function: ChangedFunction) -> str:
    """A function by its path and name."""
    name = f"{function.path}:{function.symbol}" if function.symbol else function.path
    return on_one_line(name)


def _named(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
