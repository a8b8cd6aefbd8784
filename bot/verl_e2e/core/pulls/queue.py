"""The queue: the pool of a run, which waiting runs get a slot, and the place of a target.

Merge groups come first, then the priority that a maintainer gave, then who asked first. Nothing overtakes a run that
does not fit, so a large job starts some time.
Each decision is a function of values, so that it can be taken inside one transaction: two bots that decide at once get
one answer after the other, and one that is killed leaves either the whole decision or nothing of it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from pydantic import AwareDatetime

from verl_e2e.core.model.document import Document, filled
from verl_e2e.core.pulls.commands import Pause, pauses_of
from verl_e2e.core.pulls.job_order import minutes_of
from verl_e2e.core.pulls.ledger import Note, Priority, RecordedCommand, Run, RunOfHead, RunState

# What got a slot is submitted within seconds; after this the service cannot reach its pull request.
_SUBMITTED_WITHIN = timedelta(hours=1)
_PRIORITIES = tuple(Priority)
# The place of one target is shown again after so many seconds at the earliest, and those of all targets together
# every so many seconds: each time costs an edit of the card and of the gate.
LOOK_S, _EACH_S = 300.0, 10.0
# Up to this place each step counts; after it only a change by this part.
_EXACT, _PART = 5, 0.2


class QueueEntry(RunOfHead):
    """A run that is not over, as the queue sees it: small, because one decision reads those of all repositories."""

    # GPUs that it takes; a rehearsal takes none.
    gpu_count: int = 1
    # Whether the head lies in a fork, which has runners of its own.
    from_fork: bool = False
    # Whether a schedule asked for it, so that it waits behind all that people wait for.
    scheduled: bool = False
    # Whether it waits for a slot: the back end does not know of it.
    waits: bool = False
    # How urgent it is.
    priority: Priority = Priority.NORMAL
    # Since when it waits, or its pull request does for this job.
    since: AwareDatetime
    # Until when it holds its slot at most, None while it waits: what no one looks at any more must free it.
    holds_until: AwareDatetime | None = None

    def holds_slot(self, now: datetime) -> bool:
        """Whether it takes a part of its pool."""
        return self.holds_until is not None and now < self.holds_until


def entry_of(run: Run) -> QueueEntry:
    """A run in short."""
    # Twice the time that the back end gives it, after which no one looks at it, as in a repository that is gone.
    minutes = minutes_of(run.order) if run.order is not None else 0
    longest = 2 * timedelta(minutes=minutes, seconds=run.queue_deadline_s)
    if run.state is RunState.QUEUED:
        longest = _SUBMITTED_WITHIN
    return filled(
        QueueEntry,
        run,
        gpu_count=run.job.gpu_count if run.job is not None else 0 if run.rehearsal is not None else 1,
        scheduled=bool(run.branch),
        waits=run.waits_for_slot,
        priority=run.terms.priority,
        since=run.terms.since or run.created,
        holds_until=None if run.waits_for_slot or run.state.final else run.ordered + longest,
    )


@dataclass(frozen=True, slots=True)
class Pool:
    """Machines of one kind, with the runs or GPUs that we may have there at once."""

    # Its name, as in the setting: `1`, `2,4`, `all`, `fork:1`.
    name: str
    # The most that may be taken at once: runs, or GPUs.
    limit: int
    # The numbers of GPUs of the jobs that run there; empty: every number.
    sizes: frozenset[int] = frozenset()
    # Whether `limit` counts GPUs, and not runs.
    counts_gpus: bool = False
    # Whether it is for the jobs of forks.
    for_forks: bool = False

    def takes(self, entry: QueueEntry) -> int:
        """What a run takes of the limit."""
        return entry.gpu_count if self.counts_gpus else 1


def pool_of(entry: QueueEntry, pools: Collection[Pool]) -> Pool | None:
    """The pool of a run, None where nothing limits it. Forks are in the common pools where no pool is for forks."""
    if not entry.gpu_count:
        # A rehearsal takes no GPU.
        return None
    apart = entry.from_fork and any(pool.for_forks for pool in pools)
    own = (pool for pool in pools if pool.for_forks == apart)
    return next((pool for pool in own if not pool.sizes or entry.gpu_count in pool.sizes), None)


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """What the database knows of the queue at one moment."""

    # The runs that are not over.
    entries: tuple[QueueEntry, ...] = ()
    # Every `pause` and `resume` that was accepted.
    switches: tuple[RecordedCommand, ...] = ()


# Why a waiting run gets no slot, whatever is free: the pause of its repository, or a pool that is too small for it.
Held = Pause | Pool


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision."""

    # The keys of the runs that get a slot now.
    starts: tuple[str, ...] = ()
    # The runs that wait on, by the name of their pool, the next first.
    lines: Mapping[str, tuple[QueueEntry, ...]] = field(default_factory=dict)
    # The waiting runs that are held, by key.
    held: Mapping[str, Held] = field(default_factory=dict)


def admit(snapshot: QueueSnapshot, pools: Collection[Pool], now: datetime) -> Admission:
    """The runs that start now, the order of the others, and those that are held."""

    def turn(entry: QueueEntry) -> tuple[bool, bool, int, datetime, int, str]:
        urgency = (entry.scheduled, entry.number is not None, _PRIORITIES.index(entry.priority))
        return *urgency, entry.since, entry.number or 0, entry.key

    pauses = pauses_of(snapshot.switches)
    of_pool: dict[Pool | None, list[QueueEntry]] = defaultdict(list)
    for entry in snapshot.entries:
        of_pool[pool_of(entry, pools)].append(entry)
    starts: list[str] = []
    lines: dict[str, tuple[QueueEntry, ...]] = {}
    held: dict[str, Held] = {}
    for pool, entries in of_pool.items():
        free = 0 if pool is None else pool.limit - sum(pool.takes(entry) for entry in entries if entry.holds_slot(now))
        line: list[QueueEntry] = []
        for entry in sorted((entry for entry in entries if entry.waits), key=turn):
            if entry.repository in pauses:
                held[entry.key] = pauses[entry.repository]
            elif pool is None:
                starts.append(entry.key)
            elif pool.takes(entry) > pool.limit:
                held[entry.key] = pool
            elif not line and pool.takes(entry) <= free:
                free -= pool.takes(entry)
                starts.append(entry.key)
            else:
                line.append(entry)
        if pool is not None and line:
            lines[pool.name] = tuple(line)
    return Admission(tuple(starts), lines, held)


class QueuePlace(Document):
    """Where the first waiting run of a target is in its line."""

    # The name of its pool.
    pool: str
    # From 1.
    position: int
    # How many runs wait in the line.
    waiting: int
    # How many pull requests and merge groups wait, in all lines.
    targets: int

    @property
    def again_s(self) -> float:
        """In how many seconds it may be shown again."""
        return max(LOOK_S, _EACH_S * self.targets)

    def is_news_after(self, shown: "QueuePlace") -> bool:
        """Whether it differs from the place that is shown by so much that it is worth an edit."""
        moved = abs(shown.position - self.position)
        near = min(shown.position, self.position) <= _EXACT
        return shown.pool != self.pool or (moved > 0 and near) or moved > _PART * shown.position


class ShownPlace(Note):
    """The place of a target on a head as it is shown."""

    kind: Literal["place"] = "place"
    place: QueuePlace


def place_of(waiting: Collection[str], decision: Admission) -> QueuePlace | None:
    """The place of a target by the keys of its waiting runs, None where no run of it is in a line."""
    found = (
        (position, name)
        for name, line in decision.lines.items()
        for position, entry in enumerate(line, 1)
        if entry.key in waiting
    )
    position, name = min(found, default=(0, ""))
    if not position:
        return None
    entries = (entry for line in decision.lines.values() for entry in line)
    targets = {(entry.repository, entry.number or entry.head_sha) for entry in entries}
    return QueuePlace(pool=name, position=position, waiting=len(decision.lines[name]), targets=len(targets))


@dataclass(frozen=True, slots=True)
class QueueView:
    """The queue as one target sees it; the default is that of a queue that lets everything start."""

    # Whether a waiting run may have to wait, so that it is shown as waiting before its place is known.
    limited: bool = False
    # What holds waiting runs of the target, by key.
    held: Mapping[str, Held] = field(default_factory=dict)
    # Its place, as it is shown now; None where nothing of it is in a line.
    place: QueuePlace | None = None
    # The pause of its repository, None for none.
    pause: Pause | None = None
    # In how many seconds its place may be shown again, 0 where nothing of it waits.
    again_s: float = 0.0
