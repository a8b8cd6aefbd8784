"""What people want of a head beside the plan, read off the entries in their order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.commands import LEVEL
from verl_e2e.core.pulls.ledger import Approval, Asked, Override, Run, RunState

Entry = Asked | Approval | Override
# At most so many different wishes for one head are served; each may be several jobs.
MAX_WISHES = 20
_BEGINS_AGAIN = frozenset({"run", "rerun", LEVEL})


@dataclass(frozen=True, slots=True)
class Wish:
    """Levels that one entry asks for, with its options."""

    source: str
    levels: tuple[Level, ...]
    options: Mapping[str, str]


def in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Entries in the order in which they were written, whatever order they were delivered in.

    A label or a button tells no time: it counts from when it was heard.
    """
    return tuple(sorted(entries, key=_when))


def _when(entry: Entry) -> tuple[datetime, int]:
    if not isinstance(entry, Asked) or entry.written is None:
        return entry.at, 0
    number = entry.source.split(":")[1]
    # GitHub's times have whole seconds, and its ids grow.
    return entry.written, int(number) if number.isdigit() else 0


def asked_for(entries: Iterable[Entry], head_sha: str) -> tuple[Asked, ...]:
    """The commands given on this very head, in order."""
    return tuple(one for one in entries if isinstance(one, Asked) and one.head_sha == head_sha)


def wishes(entries: Iterable[Entry], head_sha: str) -> tuple[Wish, ...]:
    """The levels asked for on this head; the same wish twice counts once."""
    found: dict[tuple[object, ...], Wish] = {}
    for one in asked_for(entries, head_sha):
        if one.verb == LEVEL:
            key = (one.arguments, tuple(sorted(one.options.items())))
            levels = tuple(Level(int(number)) for number in one.arguments)
            found.setdefault(key, Wish(one.source, levels, one.options))
    return tuple(found.values())[:MAX_WISHES]


def was_begun(entries: Iterable[Entry], head_sha: str) -> bool:
    """Whether somebody asked for the plan's levels on this head."""
    return any(one.verb in {"run", "rerun"} for one in asked_for(entries, head_sha))


def cancelled_by(entries: Iterable[Entry], head_sha: str) -> Asked | None:
    """The `cancel` that still holds: nothing was asked to run after it."""
    held: Asked | None = None
    for one in asked_for(entries, head_sha):
        if one.verb == "cancel":
            held = one
        elif one.verb in _BEGINS_AGAIN:
            held = None
    return held


def asked_again(last: Run, runs: Iterable[Run], entries: Iterable[Entry]) -> str:
    """The source of the entry that wants this ended run once more, empty for none.

    An entry counts once for each job, and only for a run that was over when it was written, or that was cancelled
    later.
    """
    served = {one.asked_by for one in runs if one.job_id == last.job_id and one.head_sha == last.head_sha}
    wanting = (one for one in asked_for(entries, last.head_sha) if one.source not in served)
    return next((one.source for one in wanting if _means(one, last) and _came_after(one, last)), "")


def _means(asked: Asked, last: Run) -> bool:
    failed = last.state is RunState.FINISHED and last.result is Result.FAIL
    passed = last.state is RunState.FINISHED and last.result is Result.PASS
    if passed or not last.state.final:
        return False
    match (asked.verb, *asked.arguments):
        case ("run",):
            return last.state is RunState.CANCELLED
        case ("rerun",):
            return True
        case ("rerun", "failed"):
            return failed
        case ("rerun", "blocked"):
            return not failed
        case ("rerun", job_id):
            return job_id == last.job_id
        case _:
            return False


def _came_after(asked: Asked, last: Run) -> bool:
    return asked.at >= (last.created if last.state is RunState.CANCELLED else last.updated)
