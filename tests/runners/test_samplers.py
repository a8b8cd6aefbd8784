"""Samples of GPUs and of host memory: how many are kept, what the peak is, and when a run must end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from verl_e2e.core.model.record import Gpu
from verl_e2e_runner.samplers import (
    KEPT_BEFORE_THINNING,
    SAMPLE_S,
    Bound,
    Device,
    Devices,
    GpuSampler,
    MemorySampler,
    read_devices,
)

DAY = int(86400 / SAMPLE_S)


class Growing:
    """One GPU whose memory grows by a MiB at each reading, until it is lost."""

    def __init__(self, lost_after: int = 1_000_000) -> None:
        self.readings = 0
        self.lost_after = lost_after

    def __call__(self) -> Devices:
        self.readings += 1
        if self.readings > self.lost_after:
            return Devices(problem="GPU is lost")
        gpu = Gpu(index=3, name="G", memory_total_mib=1 << 20, memory_used_mib=self.readings)
        return Devices((Device(gpu, "GPU-3", utilization=100 - self.readings if self.readings < 100 else None),))


def test_it_reads_only_when_due() -> None:
    device = Growing()
    sampler = GpuSampler(device)
    assert sampler.tick(50.0) == {"gpus": [{"index": 3, "memory_used_mib": 1, "utilization": 99}]}
    assert sampler.tick(50.0 + SAMPLE_S / 2) is None
    assert sampler.tick(50.0 + SAMPLE_S) is not None
    assert device.readings == 2


@pytest.mark.parametrize(("readings", "least", "most"), [(60, 60, 60), (DAY, KEPT_BEFORE_THINNING, 1000)])
def test_a_run_leaves_a_bounded_number_and_the_peak_of_all(readings: int, least: int, most: int) -> None:
    sampler = GpuSampler(Growing())
    events = [sample for tick in range(readings) if (sample := sampler.tick(tick * SAMPLE_S))]
    assert least <= len(events) <= most
    highest = {"index": 3, "memory_used_mib": readings, "utilization": 99}
    assert sampler.peak() == {"peak": [highest], "readings": readings}


def test_a_lost_gpu_is_said_once_and_keeps_the_peak() -> None:
    sampler = GpuSampler(Growing(lost_after=2))
    said = [sampler.tick(tick * SAMPLE_S) for tick in range(6)]
    assert said[2:] == [{"problem": "GPU memory is not sampled: GPU is lost"}, None, None, None]
    assert sampler.peak() == {"peak": [{"index": 3, "memory_used_mib": 2, "utilization": 99}], "readings": 2}


def test_without_gpus_there_is_no_sample() -> None:
    sampler = GpuSampler(Devices)
    assert (sampler.tick(0.0), sampler.peak()) == (None, None)


@dataclass
class Driver:
    """As much of NVML as is asked for: two GPUs, the second without a utilization counter."""

    works: bool = True
    # Process number to bytes, the same on each GPU; None where the driver does not tell.
    processes: dict[int, int | None] | None = None

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        if not self.works:
            raise self.NVMLError("Driver Not Loaded")

    nvmlShutdown = nvmlInit  # noqa: N815

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}a"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return f"G{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=(handle + 1) << 30, total=8 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        if self.processes is None or handle > 1:
            raise self.NVMLError("Not Supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.items()]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if handle == 1:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=55)


def gpu(index: int, used_mib: int) -> Gpu:
    return Gpu(index=index, name=f"G{index}", memory_total_mib=8192, memory_used_mib=used_mib)


def test_the_driver_is_asked_for_every_gpu() -> None:
    first, second = Device(gpu(0, 1024), "GPU-0a", {7: 0}, 55), Device(gpu(1, 2048), "GPU-1a", {7: 0})
    assert read_devices(Driver(processes={7: None})) == Devices((first, second), "580.1")
    assert read_devices(Driver()).devices[0].processes is None
    assert read_devices(Driver(works=False)) == Devices(problem="Driver Not Loaded")


@pytest.mark.parametrize(
    ("visible", "indices"), [(None, [0, 1]), ("1", [1]), (" GPU-1a, 0", [1, 0]), ("", []), ("-1", []), ("7", [])]
)
def test_the_gpus_that_the_run_sees_are_sampled(visible: str | None, indices: list[int]) -> None:
    sample = GpuSampler(lambda: read_devices(Driver()), visible).tick(0.0)
    gpus = sample["gpus"] if sample else []
    assert isinstance(gpus, list)
    assert [data["index"] for data in gpus] == indices


@pytest.mark.parametrize(
    ("processes", "others_mib"),
    [
        (None, None),
        ({}, 0),
        ({7: 9 << 30}, 0),
        ({7: 9 << 30, 8: 3 << 30, 9: None}, 3 << 10),
        # The run is there, and the driver counts processes in another way.
        ({40007: 9 << 30}, None),
    ],
)
def test_memory_of_others_is_told_from_the_runs_own(
    processes: dict[int, int | None] | None, others_mib: int | None
) -> None:
    sampler = GpuSampler(lambda: read_devices(Driver(processes=processes)), "0", lambda: {7})
    for tick in (0.0, SAMPLE_S):
        sampler.tick(tick)
    peak = sampler.peak()
    assert peak is not None
    whole = {"index": 0, "memory_used_mib": 1024, "utilization": 55}
    assert peak["peak"] == [whole if others_mib is None else {**whole, "others_mib": others_mib}]


def test_the_real_library_never_stops_a_run() -> None:
    sample = GpuSampler(read_devices).tick(0.0)
    assert sample is not None
    assert sample.keys() <= {"problem", "gpus"}


@pytest.mark.gpu
def test_a_real_gpu_has_memory() -> None:
    sampler = GpuSampler(read_devices, "0")
    sample = sampler.tick(0.0)
    assert sample is not None
    assert "problem" not in sample
    peak = sampler.peak()
    assert peak is not None


NEED = 14.0


@dataclass
class Host:
    """A host with 126 GiB and a run on it."""

    left: float = 60.0
    held: float = 10.0
    # What the run holds where forked pages are divided by their owners; None: the same.
    exact: float | None = None
    # Other runs beside it.
    others: int = 0
    looks: list[str] = field(default_factory=list)

    def read(self) -> Sequence[Bound]:
        return (Bound(126.0, self.left),)

    def ask(self, *, exact: bool = False) -> float:
        self.looks.append("exact" if exact else "quick")
        return self.exact if exact and self.exact is not None else self.held

    def sampler(self, need_gib: float | None = NEED) -> MemorySampler:
        return MemorySampler(self.read, self.ask, lambda: self.others, need_gib)


def test_it_looks_at_the_processes_only_when_due() -> None:
    host = Host()
    sampler = host.sampler()
    assert sampler.tick(50.0) == {"held_mib": 10240, "available_mib": 61440, "other_runs": 0}
    assert sampler.tick(50.0 + SAMPLE_S / 2) is None
    assert sampler.tick(50.0 + SAMPLE_S) is not None
    assert host.looks == ["quick", "quick"]


def test_the_peak_is_of_all_readings() -> None:
    host = Host()
    sampler = host.sampler()
    assert sampler.peak() is None
    for tick, (held, left, others) in enumerate([(10, 60, 1), (13, 30, 3), (12, 40, 2)]):
        host.held, host.left, host.others = held, left, others
        sampler.tick(tick * SAMPLE_S)
    peak = {"held_mib": 13 * 1024, "available_mib": 30 * 1024, "other_runs": 3}
    assert sampler.peak() == {"peak": peak, "readings": 3}


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
    assert sampler.peak() == {"peak": {"held_mib": 15872, "available_mib": 1280, "other_runs": 0}, "readings": 1}


@pytest.mark.parametrize(
    ("held", "exact", "need", "looks"),
    [
        (13.0, None, NEED, ["quick", "quick"]),
        (14.0, None, NEED, ["quick", "quick"]),
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


@pytest.mark.parametrize(
    ("bounds", "loss"),
    [
        ((Bound(126.0, 60.0),), ""),
        ((Bound(126.0, 1.0),), "The host has 1.0 of 126.0 GiB of memory left"),
        (
            (Bound(126.0, 60.0), Bound(16.0, 1.0, of_group=True)),
            "The control group of the run has 1.0 of 16.0 GiB of memory left",
        ),
        ((), ""),
    ],
)
def test_a_run_above_its_need_goes_on_as_long_as_no_limit_is_nearly_reached(
    bounds: tuple[Bound, ...], loss: str
) -> None:
    sampler = MemorySampler(lambda: bounds, Host(held=15.0).ask, lambda: 0, NEED)
    sampler.tick(0.0)
    assert sampler.loss.partition(",")[0] == loss
