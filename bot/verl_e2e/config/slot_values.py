"""Reader for the slots of an installation: how many jobs may run at once, by the machines that they need."""

import re

from verl_e2e.core.model.document import UnfitError
from verl_e2e.core.pulls.queue import Pool

_ALL, _FORK = "all", "fork:"
_WORD = re.compile(r"(fork:)?(all|[1-9][0-9]{0,3}(?:,[1-9][0-9]{0,3})*)=([1-9][0-9]{0,4})(gpus)?")


def slots(text: str) -> tuple[Pool, ...]:
    """Pools, separated by spaces: `1=4 2,4=2`, `all=16gpus`, and for forks `fork:all=1`."""
    pools: list[Pool] = []
    for word in text.split():
        pool = _pool(word)
        if any(pool.for_forks == other.for_forks and _overlap(pool, other) for other in pools):
            raise UnfitError(f"{_quoted(word)} names a number of GPUs that a word before it names", "name each once")
        pools.append(pool)
    return tuple(pools)


def _pool(word: str) -> Pool:
    found = _WORD.fullmatch(word)
    if found is None:
        fix = "write GPUS=RUNS as in 1=4 2,4=2, all=8, or GPUS=Ngpus as in all=16gpus; fork: in front for forks"
        raise UnfitError(f"{_quoted(word)} does not have the form GPUS=RUNS", fix)
    fork, sizes, limit, gpus = found.groups()
    numbers = frozenset() if sizes == _ALL else frozenset(map(int, sizes.split(",")))
    pool = Pool(f"{fork or ''}{sizes}", int(limit), numbers, counts_gpus=bool(gpus), for_forks=bool(fork))
    largest = max(numbers, default=0)
    if pool.counts_gpus and largest > pool.limit:
        raise UnfitError(f"{_quoted(word)} is less than one job of {largest} GPUs", "raise the number of GPUs")
    return pool


def _overlap(first: Pool, second: Pool) -> bool:
    return not first.sizes or not second.sizes or bool(first.sizes & second.sizes)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
