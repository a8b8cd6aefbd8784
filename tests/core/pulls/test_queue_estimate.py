"""When runs start and end, from how long such runs took; and nothing where too little is known."""

from datetime import timedelta

import pytest

from tests.core.pulls.entries import NOW
from tests.core.pulls.queue_cases import ended, entry, live
from verl_e2e.core.pulls.pools import Pool
from verl_e2e.core.pulls.queue_entry import QueueEntry
from verl_e2e.core.pulls.queue_estimate import Line, Quantile, Span, answered_at, ends_of, expected_s, past_times, span

ONE, TWO, GPUS = Pool("all", 1), Pool("all", 2), Pool("all", 8, counts_gpus=True)
JOB, OTHER, RARE = "0-lora-ddp", "2-dense", "3-fsdp"
# Nine runs of ten minutes and one of forty, in any order.
PAST = (ended(900, used=40), *(ended(name, used=10) for name in range(901, 910)))
TIMES = past_times((*PAST, *(ended(name, used=30, job_id=OTHER) for name in range(910, 913)), entry(1), live(2)))
FIFTY, NINETY = Quantile.P50, Quantile.P90


def at(minute: float) -> object:
    return NOW + timedelta(minutes=minute)


@pytest.mark.parametrize(
    ("job_id", "quantile", "minutes"),
    (
        (JOB, FIFTY, 10),
        (JOB, NINETY, 10),
        (OTHER, FIFTY, 30),
        # By the runs of its level, where it has too few of its own.
        ("0-recompute", FIFTY, 10),
        ("2-vpp", NINETY, 30),
        (RARE, FIFTY, None),
    ),
)
def test_how_long_a_job_takes(job_id: str, quantile: Quantile, minutes: float | None) -> None:
    found = expected_s(job_id, TIMES, quantile)
    assert (found and found / 60) == minutes


def test_nine_of_ten_runs_kept_the_second_time() -> None:
    slow = past_times((*PAST, ended(890, used=30)))
    assert (expected_s(JOB, slow, FIFTY), expected_s(JOB, slow, NINETY)) == (600, 1_800)


def test_two_runs_say_nothing_and_neither_do_those_that_were_not_judged() -> None:
    few = [ended(name) for name in (1, 2)] + [ended(name, judged=False) for name in (3, 4)]
    assert expected_s(JOB, past_times(few), FIFTY) is None
    old = [item.model_copy(update={"admitted": None}) for item in PAST]
    assert past_times(old) == {}


@pytest.mark.parametrize(
    ("pool", "running", "waiting", "starts"),
    (
        (ONE, (live(1, minute=4),), (entry(2), entry(3)), [6, 16]),
        (TWO, (live(1, minute=4), live(2, minute=1)), (entry(3), entry(4), entry(5)), [6, 9, 16]),
        (TWO, (), (entry(3), entry(4), entry(5)), [0, 0, 10]),
        # One that runs for longer than it should may end at any moment.
        (ONE, (live(1, minute=99),), (entry(2),), [0]),
        (ONE, (live(1, job_id=OTHER),), (entry(2), entry(3, job_id=OTHER), entry(4)), [30, 40, 70]),
        (GPUS, (live(1, gpu_count=4), live(2, gpu_count=2, job_id=OTHER)), (entry(3, gpu_count=8), entry(4)), [30, 40]),
        # Nothing is known behind a job of which nothing is known.
        (ONE, (live(1),), (entry(2), entry(3, job_id=RARE), entry(4)), [10]),
        (ONE, (live(1, job_id=RARE),), (entry(2),), []),
        (None, (live(1),), (), []),
    ),
)
def test_when_what_waits_starts(
    pool: Pool | None, running: tuple[QueueEntry, ...], waiting: tuple[QueueEntry, ...], starts: list[float]
) -> None:
    found = ends_of([Line(pool, running, waiting)], TIMES, NOW, FIFTY)
    assert [found[item.key][0] for item in waiting if item.key in found] == [at(minute) for minute in starts]
    assert all(end >= start for start, end in found.values())


def test_the_answer_is_the_last_end_and_the_longest_of_what_follows() -> None:
    first, second = live(1), live(2, job_id=OTHER)
    ends = ends_of([Line(None, (first, second), ())], TIMES, NOW, FIFTY)
    assert answered_at([first.key], (), ends, TIMES, FIFTY) == at(10)
    assert answered_at([first.key, second.key], (), ends, TIMES, FIFTY) == at(30)
    assert answered_at([first.key], (JOB, OTHER), ends, TIMES, FIFTY) == at(40)
    assert answered_at([first.key], (RARE,), ends, TIMES, FIFTY) is None
    assert answered_at(["f" * 64], (), ends, TIMES, FIFTY) is None


def test_a_span_needs_both_times_in_their_order() -> None:
    assert span({FIFTY: NOW, NINETY: NOW + timedelta(hours=1)}) == Span(p50=NOW, p90=NOW + timedelta(hours=1))
    assert span({FIFTY: NOW, NINETY: NOW - timedelta(hours=1)}) == Span(p50=NOW, p90=NOW)
    assert span({FIFTY: NOW, NINETY: None}) is None
