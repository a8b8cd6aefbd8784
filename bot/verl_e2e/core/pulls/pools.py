"""Pools: which machines a job runs on, by its number of GPUs, and how many such jobs may run at once for us."""

from collections.abc import Iterable
from dataclasses import dataclass

from verl_e2e.core.pulls.queue_entry import QueueEntry


@dataclass(frozen=True, slots=True)
class Pool:
    """Machines of one kind, with the runs or GPUs that we may have there at once."""

    # Its name, as in the setting: `1`, `2,4`, `all`, `fork:1`.
    name: str
    # The most that may be taken at once: runs, or GPUs.
    limit: int
    # The numbers of GPUs of the jobs that run there; empty: every number.
    sizes: frozenset[int] = frozenset()
    # Whether `limit` counts GPUs, and not runs.
    counts_gpus: bool = False
    # Whether it is for the jobs of forks.
    for_forks: bool = False

    def takes(self, entry: QueueEntry) -> int:
        """What a run takes of the limit."""
        return entry.gpu_count if self.counts_gpus else 1


def pool_of(entry: QueueEntry, pools: Iterable[Pool]) -> Pool | None:
    """The pool of a run, None where nothing limits it. Forks are in the common pools where no pool is for forks."""
    if not entry.gpu_count:
        # A rehearsal takes no GPU.
        return None
    known = tuple(pools)
    apart = entry.from_fork and any(pool.for_forks for pool in known)
    own = (pool for pool in known if pool.for_forks == apart)
    return next((pool for pool in own if not pool.sizes or entry.gpu_count in pool.sizes), None)
