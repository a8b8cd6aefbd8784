"""What people request for a head in addition to the plan, read from the entries in their order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.rehearsal_job import REHEARSAL
from verl_e2e.core.pulls.commands import LEVEL
from verl_e2e.core.pulls.ledger import Approval, Override, RecordedCommand, Run, RunState

Entry = RecordedCommand | Approval | Override
# How many different requests for one head are served; each may be several jobs.
MAX_REQUESTS = 20
_BEGINS_AGAIN = frozenset({"run", "rerun", LEVEL})


@dataclass(frozen=True, slots=True)
class LevelRequest:
    """Levels that one entry asks for, with its options."""

    source: str
    levels: tuple[Level, ...]
    options: Mapping[str, str]


def in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Entries in the order in which they were written, whatever order they were delivered in.

    A label or a button has no time of its own: it counts from when its webhook was processed.
    """
    return tuple(sorted(entries, key=_when))


def _when(entry: Entry) -> tuple[datetime, int]:
    if not isinstance(entry, RecordedCommand) or entry.written is None:
        return entry.at, 0
    number = entry.source.split(":")[1]
    # GitHub's times have whole seconds, and its ids grow.
    return entry.written, int(number) if number.isdigit() else 0


def asked_for(entries: Iterable[Entry], head_sha: str) -> tuple[RecordedCommand, ...]:
    """The commands given on this very head, in order."""
    return tuple(entry for entry in entries if isinstance(entry, RecordedCommand) and entry.head_sha == head_sha)


def level_requests(entries: Iterable[Entry], head_sha: str) -> tuple[LevelRequest, ...]:
    """The levels requested for this head; the same request twice counts once."""
    found: dict[tuple[object, ...], LevelRequest] = {}
    for asked in asked_for(entries, head_sha):
        if asked.verb == LEVEL:
            key = (asked.arguments, tuple(sorted(asked.options.items())))
            levels = tuple(Level(int(number)) for number in asked.arguments)
            found.setdefault(key, LevelRequest(asked.source, levels, asked.options))
    return tuple(found.values())[:MAX_REQUESTS]


def was_begun(entries: Iterable[Entry], head_sha: str) -> bool:
    """Whether someone asked for the plan's levels on this head."""
    return any(asked.verb in {"run", "rerun"} for asked in asked_for(entries, head_sha))


def cancelled_by(entries: Iterable[Entry], head_sha: str) -> RecordedCommand | None:
    """The `cancel` that still holds: nothing was asked to run after it."""
    held: RecordedCommand | None = None
    for asked in asked_for(entries, head_sha):
        if asked.verb == "cancel":
            held = asked
        elif asked.verb in _BEGINS_AGAIN:
            held = None
    return held


def asked_again(last: Run, runs: Iterable[Run], entries: Iterable[Entry]) -> str:
    """The source of the entry that wants this ended run once more, empty for none.

    An entry counts once for each job, and only for a run that was over when it was written, or that was cancelled
    later.
    """
    served = {run.asked_by for run in runs if run.job_id == last.job_id and run.head_sha == last.head_sha}
    wanting = (asked for asked in asked_for(entries, last.head_sha) if asked.source not in served)
    return next((asked.source for asked in wanting if _means(asked, last) and _came_after(asked, last)), "")


def _means(asked: RecordedCommand, last: Run) -> bool:
    failed = last.state is RunState.FINISHED and last.result is Result.FAIL
    passed = last.state is RunState.FINISHED and last.result is Result.PASS
    reused = bool(last.carried_from)
    if (passed and not reused) or not last.state.final:
        return False
    match (asked.verb, *asked.arguments):
        case ("rerun", "failed" | "blocked") if reused:
            return False
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
        case ("rehearse",):
            return last.job_id == REHEARSAL
        case _:
            return False


def _came_after(asked: RecordedCommand, last: Run) -> bool:
    return asked.at >= (last.created if last.state is RunState.CANCELLED else last.updated)
