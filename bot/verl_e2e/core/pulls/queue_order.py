"""In which order waiting runs start.

Merge groups come first, then the priority that a maintainer gave, then who used the least GPU time lately: first
among people, then among the pull requests of one person. A run that waited for `OVERDUE` is overdue: overdue runs and
merge groups take turns, and both come before everything else, so each run starts some time.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from verl_e2e.core.pulls.queue_entry import QueueEntry
from verl_e2e.core.pulls.queue_terms import Priority

OVERDUE = timedelta(hours=4)
# GPU time is shared fairly over this time.
FAIR = timedelta(hours=24)
Person = tuple[str, ...]
PullKey = tuple[str, int | None, str]


@dataclass(slots=True)
class Usage:
    """GPU minutes lately used, held, or in line before, by person and by pull request."""

    by_person: dict[Person, float] = field(default_factory=lambda: defaultdict(float))
    by_pull: dict[PullKey, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, entry: QueueEntry, minutes: float) -> None:
        """Count GPU minutes for the person and the pull request of a run."""
        self.by_person[entry.person] += minutes
        self.by_pull[entry.pull] += minutes


def recent_usage(entries: Iterable[QueueEntry], now: datetime) -> Usage:
    """What was used or held within `FAIR`."""
    usage = Usage()
    for entry in entries:
        if not entry.waits and (not entry.final or now - entry.updated < FAIR):
            usage.add(entry, entry.gpu_minutes(now))
    return usage


def in_turn(
    waiting: Collection[QueueEntry], entries: Collection[QueueEntry], now: datetime, *, group_was_last: bool
) -> Iterator[QueueEntry]:
    """The waiting runs of one pool, the next first; `group_was_last` says that a merge group got the last slot.

    `entries` are all runs, for what they used.
    """
    oldest = sorted(waiting, key=lambda entry: (entry.since, entry.key))
    groups = [entry for entry in oldest if entry.number is None]
    overdue = [entry for entry in oldest if entry.number is not None and is_overdue(entry, now)]
    others = [entry for entry in oldest if entry.number is not None and not is_overdue(entry, now)]
    usage = recent_usage(entries, now)
    for entry in _alternating(*((overdue, groups) if group_was_last else (groups, overdue))):
        usage.add(entry, _expected(entry))
        yield entry
    begun = frozenset(entry.head_sha for entry in entries if not entry.waits)
    for priority in Priority:
        yield from _fair([entry for entry in others if entry.terms.priority is priority], usage, begun)


def is_overdue(entry: QueueEntry, now: datetime) -> bool:
    """Whether a run waited so long that nothing but a merge group and an older one may start before it."""
    return now - entry.since >= OVERDUE


def is_strict(entry: QueueEntry, now: datetime) -> bool:
    """Whether no smaller run may start before this one while it does not fit."""
    return entry.number is None or is_overdue(entry, now)


def _alternating(first: list[QueueEntry], second: list[QueueEntry]) -> Iterator[QueueEntry]:
    for place in range(max(len(first), len(second))):
        yield from first[place : place + 1]
        yield from second[place : place + 1]


def _expected(entry: QueueEntry) -> float:
    return float(max(entry.terms.planned_minutes, 1))


def _fair(entries: list[QueueEntry], usage: Usage, begun: frozenset[str]) -> Iterator[QueueEntry]:
    """The runs of one priority: always the next one of the person who has used the least, with what is in line."""
    people: dict[Person, _Line] = {}
    for entry in entries:
        people.setdefault(entry.person, _Line(usage.by_pull, begun)).add(entry)
    heap = [(usage.by_person[person], place, person) for place, person in enumerate(people)]
    heapq.heapify(heap)
    while heap:
        _, place, person = heapq.heappop(heap)
        line = people[person]
        entry = line.take()
        usage.add(entry, _expected(entry))
        line.put_back(entry.pull)
        yield entry
        if line:
            heapq.heappush(heap, (usage.by_person[person], place, person))


class _Next(NamedTuple):
    """The first waiting run of a pull request, by what the pull request used."""

    used: float
    since: datetime
    key: str
    entry: QueueEntry


class _Line:
    """The waiting runs of one person: those of heads that have begun, and the others."""

    def __init__(self, used: Mapping[PullKey, float], begun: frozenset[str]) -> None:
        self._used, self._begun = used, begun
        self._pulls: dict[PullKey, deque[QueueEntry]] = {}
        self._heaps: tuple[list[_Next], list[_Next]] = ([], [])

    def __bool__(self) -> bool:
        return any(self._heaps)

    def add(self, entry: QueueEntry) -> None:
        """Put a run at the end of those of its pull request."""
        entries = self._pulls.setdefault(entry.pull, deque())
        entries.append(entry)
        if len(entries) == 1:
            self._push(entry)

    def take(self) -> QueueEntry:
        """The next run, which is removed; `put_back` follows once it was counted.

        A head that has begun goes first if its run ends at least as soon; else the pull request that used the least.
        """
        new, begun = self._heaps
        sooner = bool(begun) and (not new or _expected(begun[0].entry) <= _expected(new[0].entry) or begun[0] < new[0])
        taken = heapq.heappop(begun if sooner else new).entry
        self._pulls[taken.pull].popleft()
        return taken

    def put_back(self, pull: PullKey) -> None:
        """Put the rest of a pull request in line again."""
        if self._pulls[pull]:
            self._push(self._pulls[pull][0])

    def _push(self, entry: QueueEntry) -> None:
        heap = self._heaps[entry.head_sha in self._begun]
        heapq.heappush(heap, _Next(self._used[entry.pull], entry.since, entry.key, entry))
