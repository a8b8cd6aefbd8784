"""What a change's jobs executed of it, for cards and checks: one line, and a row for each function."""

from collections.abc import Iterator

from verl_e2e.core.judge.execution_text import NOT_READ, and_more, not_recorded_text
from verl_e2e.core.judge.joined_execution import JoinedExecution, JoinedFunction
from verl_e2e.core.model.changed_code import Side
from verl_e2e.core.model.execution import Entered, line_ranges

TITLE = "Changed code executed"
_SHOWN_PLACES = 8
_SHOWN_JOBS = 6


def execution_line(joined: JoinedExecution, *, done: bool = True) -> str:
    """One line on all jobs together, without its title; empty where no job is planned for changed functions.

    `done` says whether no other job is still to run.
    """
    return "; ".join((*_of_head(joined, done=done), *_of_removed(joined), *_of_rest(joined)))


def _of_head(joined: JoinedExecution, *, done: bool) -> Iterator[str]:
    head = joined.of_side(Side.HEAD)
    if not head:
        return
    unknown = [item for item in head if item.unknown]
    whose = next(iter(joined.not_recorded.items()), None)
    why = f" ({whose[0]}: {not_recorded_text(whose[1])})" if whose else ""
    if len(unknown) == len(head):
        yield f"not known{why}"
        return
    ran = [item for item in head if item.jobs]
    lines_ran = sum(len(item.ran) for item in head)
    lines = lines_ran + sum(len(item.missed) for item in head)
    jobs = f" ({and_more(joined.jobs, _SHOWN_JOBS)})" if ran else ""
    yield f"{len(ran)} of {len(head)} functions, {lines_ran} of {lines} lines{jobs}"
    places = [place for item in head if item.never or item.jobs for place in _never_places(item)]
    if places:
        yield f"{'never executed' if done else 'not executed so far'}: {and_more(places, _SHOWN_PLACES)}"
    tests = [item.function.place for item in head if item.by_tests and not item.jobs]
    if tests:
        yield f"executed by Bridge tests alone: {and_more(tests, _SHOWN_PLACES)}"
    if unknown:
        yield f"{len(unknown)} not known{why}"


def _never_places(item: JoinedFunction) -> list[str]:
    """The lines that no job ran; the function itself where only its head changed."""
    path = item.function.path
    if item.missed:
        return [f"{path}:{lines}" for lines in line_ranges(item.missed)]
    return [] if item.jobs else [f"{path}:{item.function.first_line}"]


def _of_removed(joined: JoinedExecution) -> Iterator[str]:
    removed = joined.of_side(Side.MERGE_BASE)
    if not removed:
        return
    if joined.base_not_recorded:
        yield not_recorded_text(joined.base_not_recorded, base=True)
        return
    ran = sum(bool(item.jobs) for item in removed)
    yield f"of the code that the change takes out {ran} of {len(removed)} functions ran on the merge base"


def _of_rest(joined: JoinedExecution) -> Iterator[str]:
    if joined.left_out:
        yield f"{joined.left_out} more functions not compared"
    if joined.unread:
        yield f"functions not known in {and_more(joined.unread, _SHOWN_PLACES)}"


def execution_rows(joined: JoinedExecution) -> tuple[str, ...]:
    """A row for each function, as plain text: where it is, what became of it, and which lines did not run."""
    return tuple(_row(item) for item in joined.functions)


def _row(item: JoinedFunction) -> str:
    function = item.function
    lines = f"; lines not run: {', '.join(line_ranges(item.missed))}" if item.jobs and item.missed else ""
    return f"{function.place} {function.name}: {_what_became_of(item)}{lines}"


def _what_became_of(item: JoinedFunction) -> str:
    function = item.function
    base = "on the merge base " if function.side is Side.MERGE_BASE else ""
    if item.jobs:
        who = f", first in {item.process}" if item.process else ""
        when = (
            ""
            if function.first_s is None or function.entered is not Entered.IN_VERL
            else (f" after {function.first_s:.1f} s")
        )
        how = "" if function.symbol else " at import"
        return f"{base}ran{how} in {and_more(item.jobs, _SHOWN_JOBS)}{who}{when if who else ''}"
    condition = f" ({function.condition})" if function.condition else ""
    if item.by_tests:
        return f"{base}executed by Bridge tests alone{condition}"
    if item.never and function.entered is Entered.AROUND and not function.symbol:
        return f"{base}{NOT_READ}"
    return f"{base}{'never ran' if item.never else 'not known'}{condition}"
