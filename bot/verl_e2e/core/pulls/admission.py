"""Which waiting runs get a slot: one decision over every run of the database.

A function of values, so that it can be taken inside one transaction: two bots that decide at once get one answer after
the other, and one that is killed leaves either the whole decision or nothing of it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from verl_e2e.core.pulls.ledger import RecordedCommand
from verl_e2e.core.pulls.pause import Pause, pauses_of
from verl_e2e.core.pulls.pools import Pool, pool_of
from verl_e2e.core.pulls.queue_entry import QueueEntry
from verl_e2e.core.pulls.queue_order import in_turn, is_strict


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the database knows of the queue at one moment."""

    # The runs that are not over, and those that were created within the last seven days.
    entries: tuple[QueueEntry, ...] = ()
    # Every `pause` and `resume` that was accepted.
    switches: tuple[RecordedCommand, ...] = ()


class HoldCause(StrEnum):
    """Why a waiting run gets no slot, whatever is free."""

    PAUSED = "paused"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True)
class Held:
    """A waiting run that gets no slot until something changes."""

    cause: HoldCause
    # The pause, for that cause.
    pause: Pause | None = None
    # The pool that is too small, for that cause.
    pool: Pool | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision."""

    # The keys of the runs that get a slot now.
    starts: tuple[str, ...] = ()
    # The runs that wait on, by the name of their pool, the next first.
    lines: Mapping[str, tuple[QueueEntry, ...]] = field(default_factory=dict)
    # The waiting runs that are held, by key.
    held: Mapping[str, Held] = field(default_factory=dict)
    # The name of the pool of each run that something limits, by key.
    pools: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Space:
    """What is free in a pool."""

    pool: Pool
    free: int
    closed: bool = False

    def take(self, entry: QueueEntry, now: datetime) -> bool:
        """Take a slot; false when there is none for this run."""
        needed = self.pool.takes(entry)
        if self.closed or needed > self.free:
            self.closed = self.closed or is_strict(entry, now)
            return False
        self.free -= needed
        return True


def admit(snapshot: Snapshot, pools: Collection[Pool], now: datetime, *, only_starts: bool = False) -> Admission:
    """The runs that start now, the order of the others, and those that are held.

    With `only_starts` no order is made of a pool where nothing is free.
    """
    pauses = pauses_of(snapshot.switches)
    of_pool: dict[Pool | None, list[QueueEntry]] = {}
    for entry in snapshot.entries:
        of_pool.setdefault(pool_of(entry, pools), []).append(entry)
    held: dict[str, Held] = {}
    starts: list[str] = []
    lines: dict[str, tuple[QueueEntry, ...]] = {}
    for pool, entries in of_pool.items():
        holds = {entry.key: hold for entry in entries if (hold := _hold(entry, pool, pauses)) is not None}
        waiting = [entry for entry in entries if entry.waits and entry.key not in holds]
        held |= holds
        space = _space_of(pool, entries, now)
        if not waiting or (only_starts and space is not None and space.free <= 0):
            continue
        turn = in_turn(waiting, snapshot.entries, now, group_was_last=_group_was_last(entries))
        left: list[QueueEntry] = []
        for entry in turn:
            if space is None or space.take(entry, now):
                starts.append(entry.key)
            else:
                left.append(entry)
        if pool is not None and left:
            lines[pool.name] = tuple(left)
    names = {entry.key: pool.name for pool, entries in of_pool.items() if pool is not None for entry in entries}
    return Admission(tuple(starts), lines, held, names)


def _hold(entry: QueueEntry, pool: Pool | None, pauses: Mapping[str, Pause]) -> Held | None:
    """Why a waiting run is held whatever its turn is, None when it is not."""
    if not entry.waits:
        return None
    if entry.repository in pauses:
        return Held(HoldCause.PAUSED, pause=pauses[entry.repository])
    if pool is not None and pool.takes(entry) > pool.limit:
        return Held(HoldCause.TOO_LARGE, pool=pool)
    return None


def _space_of(pool: Pool | None, entries: Iterable[QueueEntry], now: datetime) -> _Space | None:
    """What is free in a pool of which these are the runs, None where nothing limits them."""
    if pool is None:
        return None
    return _Space(pool, pool.limit - sum(pool.takes(entry) for entry in entries if entry.holds_slot(now)))


def _group_was_last(entries: Iterable[QueueEntry]) -> bool:
    """Whether the last slot of a pool went to a merge group."""
    got = ((entry.admitted, entry.key, entry.number) for entry in entries if entry.admitted is not None)
    last = max(((at, key, number is None) for at, key, number in got), default=None)
    return last is not None and last[2]
