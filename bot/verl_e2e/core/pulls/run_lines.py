"""Runs in one line each, as pages list them: small, so that thousands are read without their documents."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from pydantic import AwareDatetime

from verl_e2e.core.model.document import filled
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.commands import Pause
from verl_e2e.core.pulls.ledger import JobStatus, Run, RunOfHead, RunState, status_of_run
from verl_e2e.core.pulls.queue import Admission, Pool, QueueSnapshot, admit, pool_of

_MOST_OF_SENTENCE = 300


class RunLine(RunOfHead):
    """A run as a list shows it."""

    # The id of its job.
    job_id: str
    # From 1 for each job of a head.
    attempt: int = 1
    # Whether the plan asks for it.
    required: bool = True
    # The state of the run.
    state: RunState
    # What it comes to.
    status: JobStatus
    # What its verdict says, or why it has none; the beginning of it.
    sentence: str = ""
    # What it used, in minutes of one GPU.
    gpu_minutes: float = 0.0
    # When it was created.
    created: AwareDatetime
    # When it last changed.
    updated: AwareDatetime


def line_of(run: Run) -> RunLine:
    """A run in one line."""
    return filled(RunLine, run, status=status_of_run(run), sentence=(run.sentence or run.reason)[:_MOST_OF_SENTENCE])


@dataclass(frozen=True, slots=True)
class Glance:
    """A look at a run under way, for pages."""

    # How far it is, in a few words; empty where only its end is told.
    where: str = ""
    # The end of what it has printed, oldest first.
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotUse:
    """How much of a pool is taken: runs, or GPUs."""

    pool: Pool
    taken: int


def slots_in_use(snapshot: QueueSnapshot, pools: Collection[Pool], now: datetime) -> tuple[SlotUse, ...]:
    """What the runs of all repositories take of each pool."""
    taken: dict[str, int] = defaultdict(int)
    for entry in snapshot.entries:
        pool = pool_of(entry, pools)
        if pool is not None and entry.holds_slot(now):
            taken[pool.name] += pool.takes(entry)
    return tuple(SlotUse(pool, taken[pool.name]) for pool in pools)


def waiting_reasons(snapshot: QueueSnapshot, pools: Collection[Pool], now: datetime) -> Mapping[str, str]:
    """Why each run of our own queue waits, by key."""
    decision: Admission = admit(snapshot, pools, now)
    reasons = dict.fromkeys(decision.starts, "it starts with the next look")
    for name, line in decision.lines.items():
        reasons |= {entry.key: f"{place} of {len(line)} for slots {name}" for place, entry in enumerate(line, 1)}
    for key, why in decision.held.items():
        too_small = "" if isinstance(why, Pause) else f"slots {why.name} are fewer than it takes"
        reasons[key] = why.in_short if isinstance(why, Pause) else too_small
    return reasons


def counted_result(run: Run) -> Result | None:
    """What an ended run counts as in a history; one that was lost or refused is Blocked.

    None for one that is not over, was cancelled, or took its verdict from another run.
    """
    if not run.state.final or run.state is RunState.CANCELLED or run.carried_from:
        return None
    return {JobStatus.PASSED: Result.PASS, JobStatus.FAILED: Result.FAIL}.get(status_of_run(run), Result.BLOCKED)


@dataclass(frozen=True, slots=True)
class RunCount:
    """Ended runs that are alike."""

    # The day on which they were created, in UTC.
    day: date
    # The level of their job, None for rehearsals, what is only shown, and where the job is not kept.
    level: Level | None
    # The model family that their job is for, or empty.
    family: str
    # What kept them from a pass, as identifiers.
    causes: tuple[str, ...]
    # What they count as.
    result: Result | None
    # How many they are.
    runs: int
    # What they used together, in minutes of one GPU.
    gpu_minutes: float


@dataclass(frozen=True, slots=True)
class Tally:
    """What ended runs came to, those of one week, level, family or cause."""

    title: str
    # How many came to each result.
    results: Mapping[Result, int]
    # What they used, those that count for nothing too.
    gpu_minutes: float

    @property
    def total(self) -> int:
        """How many ended with a result, or were lost or refused."""
        return sum(self.results.values())

    @property
    def pass_percent(self) -> int:
        """The share that passed, rounded down, so that 100 means all."""
        return 100 * self.results[Result.PASS] // self.total if self.total else 0


def tallies(counts: Iterable[RunCount], titles: Callable[[RunCount], Iterable[str]]) -> tuple[Tally, ...]:
    """A tally for each title, of the runs to which `titles` gives it; most runs first."""
    found: dict[str, list[RunCount]] = defaultdict(list)
    for count in counts:
        for title in titles(count):
            found[title].append(count)
    made = [
        Tally(
            title,
            {result: sum(count.runs for count in alike if count.result is result) for result in Result},
            sum(count.gpu_minutes for count in alike),
        )
        for title, alike in found.items()
    ]
    return tuple(sorted(made, key=lambda tally: (-tally.total, tally.title)))


def week_of(day: date) -> str:
    """The Monday of a week, `2026-11-23`."""
    return f"{day - timedelta(days=day.weekday()):%Y-%m-%d}"
