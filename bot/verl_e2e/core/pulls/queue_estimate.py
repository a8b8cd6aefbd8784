"""When a waiting run may start and when its target may be answered, from how long such runs took lately.

The line is played through twice: once with the median time of each job, once with the time that nine of ten runs kept.
What arrives later, and may come first, is not known, so the estimate is given again as time goes by. A job of which
too few runs ended has no estimate, and neither has anything behind it.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from pydantic import AwareDatetime

from verl_e2e.core.model.document import Document
from verl_e2e.core.pulls.pools import Pool
from verl_e2e.core.pulls.queue_entry import QueueEntry

# Fewer say nothing.
MIN_RUNS = 3


class Quantile(Enum):
    """Which share of runs took at most so long."""

    P50 = 0.5
    P90 = 0.9


class Span(Document):
    """From when it is likely to when it is nearly certain, as far as past runs tell."""

    # With the median times.
    p50: AwareDatetime
    # With the times that nine of ten runs kept.
    p90: AwareDatetime


Times = Mapping[str, tuple[float, ...]]


def past_times(entries: Iterable[QueueEntry]) -> Times:
    """Seconds from the slot to the verdict, in order, by the id of the job and by its level, `0` to `5`."""
    found: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        if entry.judged and entry.admitted is not None:
            took = (entry.updated - entry.admitted).total_seconds()
            for name in (entry.job_id, entry.job_id[:1]):
                found[name].append(took)
    return {name: tuple(sorted(times)) for name, times in found.items()}


def expected_s(job_id: str, times: Times, quantile: Quantile) -> float | None:
    """How long a job takes, by its own runs, else by those of its level; None where too few ended."""
    for name in (job_id, job_id[:1]):
        known = times.get(name, ())
        if len(known) >= MIN_RUNS:
            return known[math.ceil(quantile.value * len(known)) - 1]
    return None


@dataclass(frozen=True, slots=True)
class Line:
    """A pool with what runs there and what waits, the next first; no pool: nothing waits."""

    pool: Pool | None
    live: tuple[QueueEntry, ...]
    waiting: tuple[QueueEntry, ...]


Ends = Mapping[str, tuple[datetime, datetime]]


def ends_of(lines: Iterable[Line], times: Times, now: datetime, quantile: Quantile) -> Ends:
    """When each run starts and ends, by its key; those without an estimate and those behind them are left out."""
    found: dict[str, tuple[datetime, datetime]] = {}
    for line in lines:
        found |= _ends_in(line, times, now, quantile)
    return found


def _ends_in(line: Line, times: Times, now: datetime, quantile: Quantile) -> Ends:
    live = {entry.key: _end_of_live(entry, times, now, quantile) for entry in line.live}
    found = {entry.key: (entry.admitted or entry.created, end) for entry in line.live if (end := live[entry.key])}
    if line.pool is None or len(found) < len(live):
        return found
    busy = [(end, line.pool.takes(entry)) for entry in line.live if (end := live[entry.key])]
    heapq.heapify(busy)
    free, at = line.pool.limit - sum(taken for _, taken in busy), now
    for entry in line.waiting:
        took, needed = expected_s(entry.job_id, times, quantile), line.pool.takes(entry)
        while free < needed and busy:
            at, freed = heapq.heappop(busy)
            free += freed
        if took is None:
            break
        found[entry.key] = (at, at + timedelta(seconds=took))
        heapq.heappush(busy, (found[entry.key][1], needed))
        free -= needed
    return found


def _end_of_live(entry: QueueEntry, times: Times, now: datetime, quantile: Quantile) -> datetime | None:
    took = expected_s(entry.job_id, times, quantile)
    return None if took is None else max(now, (entry.admitted or entry.created) + timedelta(seconds=took))


def answered_at(
    own: Iterable[str], later: Iterable[str], ends: Ends, times: Times, quantile: Quantile
) -> datetime | None:
    """When the last of some runs has ended, and after it the longest of the jobs that start later; None: not known."""
    keys = tuple(own)
    took = [expected_s(job_id, times, quantile) for job_id in later]
    known = [seconds for seconds in took if seconds is not None]
    if len(known) < len(took) or not all(key in ends for key in keys):
        return None
    return max(ends[key][1] for key in keys) + timedelta(seconds=max(known, default=0.0))


def span(of: Mapping[Quantile, datetime | None]) -> Span | None:
    """The two times of an estimate, None where one is not known."""
    p50, p90 = of[Quantile.P50], of[Quantile.P90]
    return None if p50 is None or p90 is None else Span(p50=p50, p90=max(p50, p90))
