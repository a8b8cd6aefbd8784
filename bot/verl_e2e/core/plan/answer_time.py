"""How long the jobs of a plan take until there is an answer, where those without an order run side by side."""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A job that is still to be run."""

    id: str
    # The ids of jobs that must pass first; one that is not to be run any more counts as done.
    requires: tuple[str, ...]
    # GPUs times minutes of all its runs.
    gpu_minutes: int
    gpu_count: int


def minutes_to_answer(jobs: Iterable[TimedJob], gpus: int | None = None) -> int:
    """Minutes until the last job has ended if all pass, rounded up: each starts when those before it have passed.

    `gpus` are those of all hosts together, on which a job may have to wait in the order given; None: always enough.
    """
    waiting = list(jobs)
    open_ids = {job.id for job in waiting}
    free = math.inf if gpus is None else float(gpus)
    running: list[tuple[float, str, float]] = []
    now = 0.0
    while waiting or running:
        for job in tuple(waiting):
            taken = job.gpu_count if gpus is None else min(job.gpu_count, gpus)
            if taken <= free and not open_ids.intersection(job.requires):
                waiting.remove(job)
                free -= taken
                heapq.heappush(running, (now + job.gpu_minutes / job.gpu_count, job.id, taken))
        if not running:
            # What is left requires itself: it never runs.
            break
        now, ended, released = heapq.heappop(running)
        open_ids.discard(ended)
        free += released
    return math.ceil(now - 1e-9)
