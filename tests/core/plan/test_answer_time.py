"""Level 0 first and the rest side by side: the time to an answer is that of the longest way, not of the sum."""

import pytest

from verl_e2e.core.plan.outline import TimedJob, minutes_to_answer


def job(name: str, minutes: int, *requires: str, gpus: int = 1) -> TimedJob:
    return TimedJob(name, requires, minutes * gpus, gpus)


SMOKE = job("0", 7)
WAVE = (SMOKE, job("1", 18, "0"), job("2", 7, "0", gpus=2), job("3", 10, "0"))


@pytest.mark.parametrize(
    ("jobs", "gpus", "minutes"),
    [
        ((), None, 0),
        ((SMOKE,), None, 7),
        (WAVE, None, 25),
        (WAVE, 4, 25),
        # 1 and 3 at once, then 2 when both GPUs are free.
        (WAVE, 2, 7 + 18 + 7),
        # A job that is larger than the host takes all of it.
        (WAVE, 1, 7 + 18 + 7 + 10),
        # What must pass first and is not to be run any more is done.
        (WAVE[1:], None, 18),
        ((SMOKE, job("1", 5, "0"), job("4", 3, "1")), None, 15),
        ((SMOKE, job("a", 5, "b"), job("b", 5, "a")), None, 7),
    ],
)
def test_jobs_without_an_order_run_side_by_side(jobs: tuple[TimedJob, ...], gpus: int | None, minutes: int) -> None:
    assert minutes_to_answer(jobs, gpus) == minutes
