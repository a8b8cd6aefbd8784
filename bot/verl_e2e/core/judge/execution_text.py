"""The sentences about what ran of a change: in a verdict, on a card, and of several jobs together."""

from collections.abc import Iterable, Iterator, Sequence

from verl_e2e.core.judge.left_open import Limitation
from verl_e2e.core.model.changed_code import Side
from verl_e2e.core.model.execution import ChangeExecution, Entered, FunctionRun, line_ranges

# Of code that ran at import.
NOT_READ = "it ran, but no function that reads what it binds did"
_SHOWN_FUNCTIONS = 12
_SHOWN_PLACES = 12


def listed(functions: Sequence[FunctionRun]) -> str:
    """Functions with their places, the first of them: `a.py:12 f (only with dropout), b.py:3 g and 4 more`."""
    return and_more([_described(function) for function in functions], _SHOWN_FUNCTIONS)


def _described(function: FunctionRun) -> str:
    notes = (
        "before the change" if function.side is Side.MERGE_BASE else "",
        _around(function) if function.entered is Entered.AROUND else "",
        function.condition,
    )
    shown = ", ".join(filter(None, notes))
    return f"{function.place} {function.name}{f' ({shown})' if shown else ''}"


def _around(function: FunctionRun) -> str:
    return "entered, but none of its changed lines ran" if function.symbol else NOT_READ


def and_more(rows: Sequence[str], most: int) -> str:
    """The first rows, and how many more there are."""
    more = len(rows) - most
    return f"{', '.join(rows[:most])}{f' and {more} more' if more > 0 else ''}"


def missed_places(functions: Iterable[FunctionRun]) -> list[str]:
    """The lines that did not run, as `path:12-14`."""
    return [f"{function.path}:{lines}" for function in functions for lines in line_ranges(function.missed)]


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
    never = [function for function in found.of_side(Side.HEAD) if function.entered in (Entered.NEVER, Entered.AROUND)]
    if never and found.entered:
        # Of more than are listed, no other job can be said to show them.
        aspects = tuple(map(aspect_of, never)) if len(never) <= _SHOWN_FUNCTIONS else ()
        yield Limitation(f"Changed functions that the run did not execute: {listed(never)}.", aspects)
    tests = [function for function in found.functions if function.entered is Entered.BY_TESTS]
    if tests:
        yield Limitation(f"Executed by Bridge tests alone, not in verl: {listed(tests)}.")
    places = missed_places(function for function in found.entered if function.side is Side.HEAD)
    if places:
        yield Limitation(f"Changed lines that did not run: {and_more(places, _SHOWN_PLACES)}.")
    yield from _of_merge_base(found)
    yield from _unknown(found)


def _of_merge_base(found: ChangeExecution) -> Iterator[Limitation]:
    """What is known of the code that the change removes."""
    removed = found.of_side(Side.MERGE_BASE)
    if removed and found.base_not_recorded:
        text = not_recorded_text(found.base_not_recorded, base=True)
        yield Limitation(f"{text[:1].upper()}{text[1:]}.")
    never = [function for function in removed if function.entered in (Entered.NEVER, Entered.AROUND)]
    if never and found.entered:
        yield Limitation(
            f"Code that the change takes out and that did not run on the merge base either: {listed(never)}."
        )


def _unknown(found: ChangeExecution) -> Iterator[Limitation]:
    head = found.of_side(Side.HEAD)
    unknown = [function for function in head if function.entered is Entered.UNKNOWN]
    if unknown and found.entered:
        text = f"Whether these changed functions ran is not known, {found.not_recorded}: {listed(unknown)}."
        yield Limitation(text)
    if found.unread and found.functions:
        shown = and_more(found.unread, _SHOWN_PLACES)
        yield Limitation(f"Changed files whose functions are not known: {shown}.")
    if found.left_out and found.functions:
        yield Limitation(f"{found.left_out} more changed functions were not compared with what ran.")
