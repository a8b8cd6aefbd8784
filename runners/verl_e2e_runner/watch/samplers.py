"""Samples GPUs through NVML and the host's memory, and says when the run must give way to others.

Of many readings a bounded number become events for the record; the peak is of all.
"""

import importlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from verl_e2e_runner.process.memory import Bound, exhausted_bound, held_gib, read_bounds

KEPT_BEFORE_THINNING = 120


@dataclass(slots=True)
class Thinning:
    """After `KEPT_BEFORE_THINNING` events only every second reading becomes one, after as many again every fourth.

    A run of a day that reads every 5 s leaves about a thousand.
    """

    # How many readings there were.
    readings: int = 0
    _every: int = 1
    _left: int = KEPT_BEFORE_THINNING

    def keeps_next(self) -> bool:
        """Count a reading; whether it becomes an event."""
        self.readings += 1
        if (self.readings - 1) % self._every:
            return False
        self._left -= 1
        if self._left == 0:
            self._every, self._left = self._every * 2, KEPT_BEFORE_THINNING
        return True


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
        highest = [_reading_data(reading) for _, reading in sorted(self._peak.items())]
        return {"peak": highest, "readings": self._thinning.readings}

    def _take(self, readings: Sequence[GpuReading]) -> dict[str, object] | None:
        if not readings:
            return None
        for reading in readings:
            self._peak[reading.index] = _higher(self._peak.get(reading.index, reading), reading)
        return {"gpus": [_reading_data(reading) for reading in readings]} if self._thinning.keeps_next() else None


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


def _reading_data(reading: GpuReading) -> dict[str, object]:
    data: dict[str, object] = {
        "index": reading.index,
        "memory_used_mib": reading.memory_used_mib,
        "utilization": reading.utilization,
    }
    return data if reading.others_mib is None else {**data, "others_mib": reading.others_mib}


class Held(Protocol):
    """Asks how many GiB the processes of the run hold."""

    def __call__(self, *, exact: bool = False) -> float:
        """The GiB now; `exact` takes longer."""
        ...


@dataclass(slots=True)
class MemorySampler:
    """Looks at the host at each call, which is cheap, and at the run's processes every `SAMPLE_S` seconds.

    Where the host has nearly no memory left it looks at the processes at each call.
    """

    # The host's memory first; nothing where it is not sampled.
    read: Callable[[], Sequence[Bound]]
    held: Held
    # GiB that the run states as its need; None: it is never ended for its memory.
    need_gib: float | None = None
    # Why the run must end now, a sentence; else empty.
    loss: str = ""
    _due_at: float = 0.0
    _exact_at: float = 0.0
    _thinning: Thinning = field(default_factory=Thinning)
    _most_held_gib: float = 0.0
    _least_left_gib: float = float("inf")

    def tick(self, now: float) -> dict[str, object] | None:
        """The data of a `memory` event when one is due at `now` (monotonic seconds), else None."""
        bounds, due = self.read(), now >= self._due_at
        if not bounds or not (due or any(bound.short for bound in bounds)):
            return None
        held = self.held()
        self._most_held_gib = max(self._most_held_gib, held)
        self._least_left_gib = min(self._least_left_gib, bounds[0].available_gib)
        if exhausted_bound(bounds, held_gib=held, need_gib=self.need_gib) and now >= self._exact_at:
            self._exact_at = now + SAMPLE_S
            self.loss = self._loss(bounds)
        if not due:
            return None
        self._due_at = now + SAMPLE_S
        return _memory_data(held, bounds[0].available_gib) if self._thinning.keeps_next() else None

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `memory` event: the most that the run held, the least that was left; None without."""
        if not self._thinning.readings:
            return None
        return {"peak": _memory_data(self._most_held_gib, self._least_left_gib), "readings": self._thinning.readings}

    def _loss(self, bounds: Sequence[Bound]) -> str:
        """The reason to end the run, by an exact look at what it holds."""
        held = self.held(exact=True)
        bound = exhausted_bound(bounds, held_gib=held, need_gib=self.need_gib)
        if bound is None or self.need_gib is None:
            return ""
        where = "The control group of the run" if bound.of_group else "The host"
        left = f"{where} has {bound.available_gib:.1f} of {bound.total_gib:.1f} GiB of memory left"
        return f"{left}, and the run holds {held:.1f} GiB, more than the {self.need_gib:g} GiB of its needs.memory_gib."


def open_memory_sampler(
    own: Callable[[], Collection[int]], need_gib: float | None, *, read: Callable[[], Sequence[Bound]] = read_bounds
) -> MemorySampler:
    """A sampler of the run's processes, whose numbers `own` looks for."""

    def held(*, exact: bool = False) -> float:
        return held_gib(own(), exact=exact)

    return MemorySampler(read, held, need_gib)


def _memory_data(held: float, left: float) -> dict[str, object]:
    return {"held_mib": round(held * 1024), "available_mib": round(left * 1024)}
