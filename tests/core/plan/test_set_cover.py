"""The cheapest jobs for items: compared with every way there is, and bounded where there are too many."""

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.plan.set_cover import MOST_TRIES, Choices, cheapest

Items = tuple[int, ...]


def add(job: Items | None, item: int) -> Items | None:
    """Items fit one job when no two of them have the same remainder; 13 fits nothing else."""
    if job and (item % 3 in {other % 3 for other in job} or 13 in (item, *job)):
        return None
    return (*(job or ()), item)


def price(job: Items) -> float:
    """A job costs as much as its largest item, and something for being there."""
    return max(job, default=0) + 2


CHOICES = Choices(add, price)


def every_way(jobs: tuple[Items, ...], items: Items) -> Iterator[tuple[Items, ...]]:
    """All ways to place the items."""
    if not items:
        yield jobs
        return
    for place in range(len(jobs) + 1):
        larger = add(jobs[place] if place < len(jobs) else None, items[0])
        if larger is not None:
            yield from every_way((*jobs[:place], larger, *jobs[place + 1 :]), items[1:])


@given(
    st.lists(st.integers(0, 15), max_size=5).map(tuple),
    st.lists(st.integers(0, 15).map(lambda item: (item,)), max_size=2).map(tuple),
)
def test_no_other_way_is_cheaper(items: Items, jobs: tuple[Items, ...]) -> None:
    found, ended = cheapest(jobs, items, CHOICES)
    assert ended
    assert sum(map(price, found)) == min(sum(map(price, way)) for way in every_way(jobs, items))
    assert sorted(item for job in found for item in job) == sorted((*items, *(item for job in jobs for item in job)))
    assert [job[:1] for job in found[: len(jobs)]] == [job[:1] for job in jobs]


def test_without_items_the_jobs_stay_as_they_are() -> None:
    assert cheapest(((1,), (2,)), (), CHOICES) == (((1,), (2,)), True)


def test_an_item_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(ValueError, match="fits into no job"):
        cheapest(((1,),), (5,), Choices(lambda *_: None, price))


def test_a_search_with_too_many_ways_ends_with_a_good_one() -> None:
    items = tuple(range(40))
    tried: list[Items] = []

    def paired(job: Items | None, item: int) -> Items | None:
        return None if job and len(job) > 1 else (*(job or ()), item)

    def counted(job: Items) -> float:
        tried.append(job)
        return price(job)

    found, ended = cheapest((), items, Choices(paired, counted))
    assert not ended
    one_by_one = sum(price((item,)) for item in items)
    assert sum(map(price, found)) < one_by_one
    assert len(tried) < MOST_TRIES * (2 * len(items) + 1)


@pytest.mark.parametrize(("first", "second"), tuple(product((1, 2), (4, 5))))
def test_the_order_of_items_changes_no_cost(first: int, second: int) -> None:
    forwards, _ = cheapest((), (first, second), CHOICES)
    backwards, _ = cheapest((), (second, first), CHOICES)
    assert sum(map(price, forwards)) == sum(map(price, backwards))
