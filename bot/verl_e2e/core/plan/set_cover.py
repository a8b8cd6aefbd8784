"""The cheapest jobs that hold some items: each item goes into a job that is there, or into a new one.

The search is exact for the few items that a change asks for. Beyond a number of tries the best that was found counts,
which costs at most what it costs to put each item, in turn, where it adds least.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Job = TypeVar("Job")
Item = TypeVar("Item")

# Tries of one search. Five items that fit each other freely take fewer; each try may have to build a job.
MOST_TRIES = 400


@dataclass(frozen=True, slots=True)
class Choices(Generic[Job, Item]):
    """What a search may do. A job never gets cheaper by one item more."""

    # A job with one item more, None where the item does not fit; without a job, a new one with this item.
    add: Callable[[Job | None, Item], Job | None]
    # What a job costs.
    price: Callable[[Job], float]


def cheapest(jobs: Sequence[Job], items: Sequence[Item], choices: Choices[Job, Item]) -> tuple[tuple[Job, ...], bool]:
    """The jobs with all items in them, those that were there first and in their order, and whether the search ended.

    ValueError for an item that fits nowhere, not even alone.
    """
    search = _Search(choices)
    search.place(tuple(jobs), tuple(items), sum(map(choices.price, jobs)))
    if search.best is None:
        raise ValueError("an item fits into no job, not even into one of its own")
    return search.best, search.tries < MOST_TRIES


@dataclass(slots=True)
class _Search(Generic[Job, Item]):
    choices: Choices[Job, Item]
    best: tuple[Job, ...] | None = None
    cost: float = float("inf")
    tries: int = field(default=0)

    def place(self, jobs: tuple[Job, ...], items: tuple[Item, ...], cost: float) -> None:
        """Try every place of the first item, the cheapest first, then go on with the others."""
        if cost >= self.cost:
            return
        if not items:
            self.best, self.cost = jobs, cost
            return
        for added, tried in self._places(jobs, items[0]):
            # Until one way was found to its end, no number of tries stops the search.
            if self.best is not None and self.tries >= MOST_TRIES:
                return
            self.tries += 1
            self.place(tried, items[1:], cost + added)

    def _places(self, jobs: tuple[Job, ...], item: Item) -> list[tuple[float, tuple[Job, ...]]]:
        price = self.choices.price
        found: list[tuple[float, tuple[Job, ...]]] = []
        for place, job in enumerate(jobs):
            larger = self.choices.add(job, item)
            if larger is not None:
                found.append((price(larger) - price(job), (*jobs[:place], larger, *jobs[place + 1 :])))
        new = self.choices.add(None, item)
        if new is not None:
            found.append((price(new), (*jobs, new)))
        return sorted(found, key=lambda way: way[0])
