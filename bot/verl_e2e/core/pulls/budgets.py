"""Budgets of GPU minutes in seven days: of a pull request, a person and a repository."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from verl_e2e.core.pulls.queue_entry import QueueEntry
from verl_e2e.core.pulls.queue_order import Person, PullKey

WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Overspent:
    """A budget that a run would exceed."""

    # Whose budget it is, as in a sentence.
    whose: str
    # GPU minutes that are used or held.
    used: float
    # GPU minutes that the run is expected to take.
    planned: int
    # GPU minutes of the budget.
    limit: int

    @property
    def sentence(self) -> str:
        """What is used up, as a clause."""
        used = f"{self.used:.0f} of {self.limit} GPU minutes of the last seven days are used or held"
        return f"the budget of {self.whose}: {used}, and this job is expected to take {self.planned}"


@dataclass(slots=True)
class Spending:
    """GPU minutes used or held in seven days; merge groups count for the repository alone."""

    by_pull: dict[PullKey, float] = field(default_factory=lambda: defaultdict(float))
    by_person: dict[tuple[str, Person], float] = field(default_factory=lambda: defaultdict(float))
    by_repository: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    # What each pull request used by runs that got their slot at a time.
    slots: dict[PullKey, list[tuple[datetime, float]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, entries: Iterable[QueueEntry], now: datetime) -> "Spending":
        """What runs used or hold."""
        made = cls()
        for entry in entries:
            if not entry.waits and (not entry.final or now - entry.updated < WEEK):
                made.add(entry, entry.gpu_minutes(now), entry.admitted or entry.created)
        return made

    def add(self, entry: QueueEntry, minutes: float, at: datetime) -> None:
        """Count GPU minutes of a run that got its slot at a time."""
        self.by_pull[entry.pull] += minutes
        self.by_person[entry.repository, entry.person] += minutes
        self.by_repository[entry.repository] += minutes
        self.slots[entry.pull].append((at, minutes))

    def overspent(self, entry: QueueEntry) -> Overspent | None:
        """The first budget that a run would exceed, None for none."""
        limits, planned = entry.terms.limits, entry.terms.planned_minutes
        if limits is None:
            return None
        if limits.granted_at is not None and self._since(entry, limits.granted_at) + planned <= limits.granted:
            return None
        budgets = (
            ("this pull request", self.by_pull[entry.pull], limits.pull_request),
            (entry.terms.person, self.by_person[entry.repository, entry.person], limits.person),
            (entry.repository, self.by_repository[entry.repository], limits.repository),
        )
        for whose, used, limit in budgets:
            if limit is not None and used + planned > limit:
                return Overspent(whose, used, planned, limit)
        return None

    def _since(self, entry: QueueEntry, granted_at: datetime) -> float:
        return sum(minutes for at, minutes in self.slots[entry.pull] if at >= granted_at)
