"""Samples of host memory: what becomes an event, when the processes are looked at, and when a run must end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from verl_e2e.core.model.host_memory import Bound
from verl_e2e_runner.watch.samplers import SAMPLE_S, MemorySampler

NEED = 14.0


@dataclass
class Host:
    """A host with 126 GiB and a run on it."""

    left: float = 60.0
    held: float = 10.0
    # What the run holds where forked pages are divided by their owners; None: the same.
    exact: float | None = None
    looks: list[str] = field(default_factory=list)

    def read(self) -> Sequence[Bound]:
        return (Bound(126.0, self.left),)

    def ask(self, *, exact: bool = False) -> float:
        self.looks.append("exact" if exact else "quick")
        return self.exact if exact and self.exact is not None else self.held

    def sampler(self, need_gib: float | None = NEED) -> MemorySampler:
        return MemorySampler(self.read, self.ask, need_gib)


def test_it_looks_at_the_processes_only_when_due() -> None:
    host = Host()
    sampler = host.sampler()
    assert sampler.tick(50.0) == {"held_mib": 10240, "available_mib": 61440}
    assert sampler.tick(50.0 + SAMPLE_S / 2) is None
    assert sampler.tick(50.0 + SAMPLE_S) is not None
    assert host.looks == ["quick", "quick"]


def test_the_peak_is_of_all_readings() -> None:
    host = Host()
    sampler = host.sampler()
    assert sampler.peak() is None
    for tick, (held, left) in enumerate([(10, 60), (13, 30), (12, 40)]):
        host.held, host.left = held, left
        sampler.tick(tick * SAMPLE_S)
    assert sampler.peak() == {"peak": {"held_mib": 13 * 1024, "available_mib": 30 * 1024}, "readings": 3}


def test_a_long_run_leaves_a_bounded_number() -> None:
    sampler = Host().sampler()
    day = int(86400 / SAMPLE_S)
    assert 120 < sum(sampler.tick(tick * SAMPLE_S) is not None for tick in range(day)) <= 1000


def test_a_run_above_its_need_is_lost_between_two_samples_when_memory_is_short() -> None:
    host = Host(held=15.5)
    sampler = host.sampler()
    sampler.tick(0.0)
    assert sampler.loss == ""
    host.left = 1.25
    assert sampler.tick(0.5) is None
    assert sampler.loss == (
        "The host has 1.2 of 126.0 GiB of memory left, and the run holds 15.5 GiB, more than the 14 GiB of its "
        "needs.memory_gib."
    )
    assert sampler.peak() == {"peak": {"held_mib": 15872, "available_mib": 1280}, "readings": 1}


@pytest.mark.parametrize(
    ("held", "exact", "need", "looks"),
    [
        (13.0, None, NEED, ["quick", "quick"]),
        (90.0, None, None, ["quick", "quick"]),
        # A page that forked children share is not the run's five times over; asked again after a while.
        (20.0, 13.0, NEED, ["quick", "exact", "quick"]),
    ],
)
def test_a_run_within_its_need_goes_on_whatever_the_host_has(
    held: float, exact: float | None, need: float | None, looks: list[str]
) -> None:
    host = Host(left=0.5, held=held, exact=exact)
    sampler = host.sampler(need)
    sampler.tick(0.0)
    sampler.tick(0.5)
    assert (sampler.loss, host.looks) == ("", looks)


def test_the_limit_of_a_control_group_counts_too() -> None:
    sampler = MemorySampler(lambda: (Bound(126.0, 60.0), Bound(16.0, 1.0, 7)), Host(held=15.0).ask, NEED)
    sampler.tick(0.0)
    assert sampler.loss.startswith("The control group of the run has 1.0 of 16.0 GiB of memory left")
