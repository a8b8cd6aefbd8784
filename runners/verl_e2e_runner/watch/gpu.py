"""Samples GPU memory and utilization through NVML: a bounded number for the record, and the peak of all."""

import importlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_e2e_runner.watch.thinning import Thinning

SAMPLE_S = 5.0


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment."""

    index: int
    # Of the whole device, by all processes.
    memory_used_mib: int
    # Percent; None where the device does not support it.
    utilization: int | None
    # Of its memory what processes of others hold; None where the driver does not tell whose a process is.
    others_mib: int | None = None


Reader = Callable[[], Sequence[GpuReading]]
# The numbers of the run's own processes now.
OwnProcesses = Callable[[], Collection[int]]


class NoReadingError(Exception):
    """NVML is absent or a GPU cannot be read; the message says why."""


@dataclass(slots=True)
class GpuSampler:
    """Reads every `SAMPLE_S` seconds; `Thinning` says which readings become events. The peak is of all readings."""

    read: Reader
    # The reason for missing readings; it becomes the data of one event.
    problem: str = ""
    _due_at: float = 0.0
    _thinning: Thinning = field(default_factory=Thinning)
    _peak: dict[int, GpuReading] = field(default_factory=dict)
    _problem_reported: bool = False

    def tick(self, now: float) -> dict[str, object] | None:
        """The data of a `gpu` event when one is due at `now` (monotonic seconds), else None; cheap otherwise.

        When the GPUs cannot be read the first call returns `{"problem": ...}` and sampling ends.
        """
        if self.problem:
            first, self._problem_reported = not self._problem_reported, True
            return {"problem": self.problem} if first else None
        if now < self._due_at:
            return None
        self._due_at = now + SAMPLE_S
        try:
            readings = self.read()
        except NoReadingError as error:
            self.problem = str(error)
            return self.tick(now)
        return self._take(readings)

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `gpu` event: the highest values seen of each GPU; None without any."""
        if not self._peak:
            return None
        highest = [_data(reading) for _, reading in sorted(self._peak.items())]
        return {"peak": highest, "readings": self._thinning.readings}

    def _take(self, readings: Sequence[GpuReading]) -> dict[str, object] | None:
        if not readings:
            return None
        for reading in readings:
            self._peak[reading.index] = _higher(self._peak.get(reading.index, reading), reading)
        return {"gpus": [_data(reading) for reading in readings]} if self._thinning.keeps_next() else None


def open_sampler(visible: str | None = None, *, own: OwnProcesses = frozenset, library: str = "pynvml") -> GpuSampler:
    """A sampler of the GPUs that `visible` (the run's CUDA_VISIBLE_DEVICES) names, of all when it is None.

    `own` tells the run's processes from those of others. Never fails: without NVML the sampler says so once and samples
    nothing.
    """
    try:
        return GpuSampler(nvml_reader(importlib.import_module(library), visible, own))
    except (ImportError, NoReadingError) as error:
        return GpuSampler(tuple, problem=f"GPU memory is not sampled: {error}")


def nvml_reader(nvml: Any, visible: str | None, own: OwnProcesses = frozenset) -> Reader:
    """A reader through the module `pynvml`; `NoReadingError` when the driver or a named GPU is not there."""
    try:
        nvml.nvmlInit()
        handles = _handles(nvml, visible)
    except nvml.NVMLError as error:
        raise NoReadingError(str(error)) from error

    def read() -> Sequence[GpuReading]:
        try:
            return tuple(_reading(nvml, index, handle, own) for index, handle in handles)
        except nvml.NVMLError as error:
            raise NoReadingError(str(error)) from error

    return read


def _handles(nvml: Any, visible: str | None) -> list[tuple[int, Any]]:
    if visible is None:
        names = [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    else:
        names = [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    handles = []
    for name in names:
        by_index = name.isdigit()
        handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else nvml.nvmlDeviceGetHandleByUUID(name)
        handles.append((int(name) if by_index else nvml.nvmlDeviceGetIndex(handle), handle))
    return handles


def _reading(nvml: Any, index: int, handle: Any, own: OwnProcesses) -> GpuReading:
    used = nvml.nvmlDeviceGetMemoryInfo(handle).used >> 20
    try:
        utilization = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:
        utilization = None
    return GpuReading(index, int(used), utilization, _of_others(nvml, handle, own))


def _of_others(nvml: Any, handle: Any, own: OwnProcesses) -> int | None:
    """MiB that processes of others hold; None where no process of the run is seen on a GPU that others use.

    In a container the driver may count processes as the host does, and then none of them can be recognized.
    """
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return None
    mine = own()
    others = [process.usedGpuMemory or 0 for process in processes if process.pid not in mine]
    if others and len(others) == len(processes):
        return None
    return sum(others) >> 20


def _higher(gpu_reading: GpuReading, other: GpuReading) -> GpuReading:
    rates = [rate for rate in (gpu_reading.utilization, other.utilization) if rate is not None]
    known = [mib for mib in (gpu_reading.others_mib, other.others_mib) if mib is not None]
    memory = max(gpu_reading.memory_used_mib, other.memory_used_mib)
    return GpuReading(gpu_reading.index, memory, max(rates, default=None), max(known, default=None))


def _data(reading: GpuReading) -> dict[str, object]:
    data: dict[str, object] = {
        "index": reading.index,
        "memory_used_mib": reading.memory_used_mib,
        "utilization": reading.utilization,
    }
    return data if reading.others_mib is None else {**data, "others_mib": reading.others_mib}
