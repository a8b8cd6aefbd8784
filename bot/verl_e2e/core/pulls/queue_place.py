"""The place of a target in our queue, and when what is shown of it is shown again."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from verl_e2e.core.model.document import Document
from verl_e2e.core.pulls.admission import Admission, Snapshot
from verl_e2e.core.pulls.pools import Pool
from verl_e2e.core.pulls.queue_entry import QueueEntry
from verl_e2e.core.pulls.queue_estimate import Line, Quantile, Span, answered_at, ends_of, past_times, span

# The place of one target is shown again after so many seconds at the earliest, and those of all targets together
# every so many seconds: each time costs an edit of the card and of the gate.
LOOK_S, _EACH_S = 300.0, 10.0
# Below this place each step counts; above it, and for times, only larger changes do.
_EXACT, _PART, _LEAST = 5, 0.2, timedelta(minutes=15)


class Place(Document):
    """Where the first waiting run of a target is in its line."""

    # The name of its pool.
    pool: str
    # From 1.
    position: int
    # How many runs wait in the line.
    waiting: int
    # How many pull requests and merge groups wait, in all lines.
    targets: int
    # When the first of its waiting runs may start, None where too little is known.
    start: Span | None = None
    # When its required jobs may all have ended, None where too little is known.
    answer: Span | None = None

    @property
    def again_s(self) -> float:
        """In how many seconds it may be shown again."""
        return max(LOOK_S, _EACH_S * self.targets)


@dataclass(frozen=True, slots=True)
class Own:
    """What a target waits for."""

    # The keys of its waiting runs.
    waiting: frozenset[str]
    # The keys of its required runs that are not over, waiting or not.
    required: frozenset[str]
    # The ids of its required jobs that start when these have ended.
    later: tuple[str, ...] = ()


def place_of(own: Own, snapshot: Snapshot, decision: Admission, pools: Iterable[Pool], now: datetime) -> Place | None:
    """The place of a target, None where no run of it is in a line."""
    found = (
        (position, name)
        for name, line in decision.lines.items()
        for position, entry in enumerate(line, 1)
        if entry.key in own.waiting
    )
    position, name = min(found, default=(0, ""))
    if not position:
        return None
    lines, times = tuple(_lines(snapshot, decision, pools, now)), past_times(snapshot.entries)
    ends = {quantile: ends_of(lines, times, now, quantile) for quantile in Quantile}
    first = decision.lines[name][position - 1].key
    starts = {quantile: ends[quantile][first][0] if first in ends[quantile] else None for quantile in Quantile}
    answers = {
        quantile: answered_at(own.required, own.later, ends[quantile], times, quantile) if own.required else None
        for quantile in Quantile
    }
    return Place(
        pool=name,
        position=position,
        waiting=len(decision.lines[name]),
        targets=len({entry.pull for entries in decision.lines.values() for entry in entries}),
        start=span(starts),
        answer=span(answers),
    )


def _lines(snapshot: Snapshot, decision: Admission, pools: Iterable[Pool], now: datetime) -> Iterator[Line]:
    """What runs and what waits by pool, and last what no pool limits."""
    known, starts = {pool.name: pool for pool in pools}, frozenset(decision.starts)
    live: dict[Pool | None, list[QueueEntry]] = defaultdict(list)
    for entry in snapshot.entries:
        pool = known.get(decision.pools.get(entry.key, ""))
        if entry.key in starts:
            live[pool].append(entry.model_copy(update={"admitted": now}))
        elif entry.holds_slot(now):
            live[pool].append(entry)
    for pool in (*known.values(), None):
        waiting = decision.lines.get(pool.name, ()) if pool is not None else ()
        yield Line(pool, tuple(live[pool]), waiting)


def is_news(shown: Place, now_known: Place, now: datetime) -> bool:
    """Whether a place differs from the one that is shown by so much that it is worth an edit."""
    if shown.pool != now_known.pool or (shown.start is not None and shown.start.p90 < now):
        return True
    moved = abs(shown.position - now_known.position)
    if moved and (min(shown.position, now_known.position) <= _EXACT or moved > _PART * shown.position):
        return True
    spans = ((shown.start, now_known.start), (shown.answer, now_known.answer))
    return any(_differs(before, after, now) for before, after in spans)


def _differs(before: Span | None, after: Span | None, now: datetime) -> bool:
    if before is None or after is None:
        return before is not after
    pairs = ((before.p50, after.p50), (before.p90, after.p90))
    return any(abs(old - new) > max(_LEAST, _PART * (new - now)) for old, new in pairs)
