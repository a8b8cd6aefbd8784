"""Samples GPUs through NVML and memory of the host, and says when the run must give way to others.

Of many readings a bounded number become events for the record; the peak is of all.

Memory that processes share is counted once. The proportional shares of the kernel (PSS) are right for every process,
but cost 25 times as much to read as the counters that it keeps anyway. So private memory is read from these, which
count pages that a forked child still shares with its parent for both, and PSS only where a decision hangs on it.
"""

import importlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_GIB = 1 << 30
_COUNTERS = re.compile(rb"^(RssAnon|RssShmem):\s+(\d+) kB", re.MULTILINE)
_SHARE = re.compile(rb"^Pss_Anon:\s+(\d+) kB", re.MULTILINE)
# Where a cage has file systems of its own in memory.
_IN_MEMORY = ("dev/shm", "tmp", "var/tmp")
# By version of control groups: the limit, what is used, and of that the cache that the kernel gives back.
_V2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
# Below the larger of these the kernel soon ends processes, and not only those of the run that took the memory.
_SHORT_GIB, _SHORT_PART = 2.0, 0.03
# An engine may limit a run to exactly its need, and the runner itself takes some of that.
_ENOUGH_OF_GROUP = 0.9


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit of memory, that of the host or of a control group, and what is left below it."""

    # GiB below the limit, used or not.
    total_gib: float
    # GiB that processes can still have, without swap.
    available_gib: float
    # Whether it is the limit of a control group.
    of_group: bool = False

    @property
    def short(self) -> bool:
        """Whether it is nearly used up."""
        return self.available_gib < max(_SHORT_GIB, _SHORT_PART * self.total_gib)

    def missing_gib(self, need_gib: float) -> float:
        """GiB that a run with that need would miss; at most 0 where there is enough for it."""
        return need_gib * (_ENOUGH_OF_GROUP if self.of_group else 1) - self.available_gib


def exhausted_bound(bounds: Iterable[Bound], *, held_gib: float, need_gib: float | None) -> Bound | None:
    """The limit for which a run must end now: it is nearly used up, and the run holds more than it states as its need.

    None where all is well, and for a run that states no need.
    """
    if need_gib is None or held_gib <= need_gib:
        return None
    return next((bound for bound in bounds if bound.short), None)


def read_bounds(root: Path = Path("/")) -> tuple[Bound, ...]:
    """The host's memory, then that of each control group with a limit that this process is in.

    `root` is the folder that holds `proc/self/cgroup` and `sys/fs/cgroup`.
    """
    memory = psutil.virtual_memory()
    bounds = [Bound(memory.total / _GIB, memory.available / _GIB)]
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, (limit_file, used_file, cached) = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            top, (limit_file, used_file, cached) = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        own = Path(path.lstrip("/"))
        # In a container the path may be that of the host, of which only the top is mounted.
        for folder in (top / part for part in (own, *own.parents)):
            # The word `max`, and in version 1 a number beyond all memory, mean that there is no limit.
            with suppress(OSError, ValueError):
                limit, used = (int((folder / name).read_text()) for name in (limit_file, used_file))
                if limit < memory.total:
                    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    given_back = sum(int(stat.get(key, 0)) for key in cached)
                    left = max(0, limit - max(0, used - given_back))
                    bounds.append(Bound(limit / _GIB, left / _GIB, of_group=True))
    return tuple(bounds)


def held_gib(pids: Iterable[int], *, exact: bool = False) -> float:
    """GiB that these processes hold: private memory, and shared memory once.

    Shared memory is what the files in the own /tmp and /dev/shm of a cage take, or, where that is more, what one of the
    processes has mapped of it. `exact` divides pages of forked children by their owners, and takes longer. A process
    that has ended holds nothing.
    """
    private = mapped = files = 0
    seen = {os.stat(f"/{folder}").st_dev for folder in _IN_MEMORY if os.path.isdir(f"/{folder}")}
    for pid in pids:
        counters = {name: int(kib) << 10 for name, kib in _COUNTERS.findall(_read(pid, "status"))}
        share = _SHARE.search(_read(pid, "smaps_rollup")) if exact else None
        private += int(share[1]) << 10 if share else counters.get(b"RssAnon", 0)
        mapped = max(mapped, counters.get(b"RssShmem", 0))
        for folder in _IN_MEMORY:
            # A cage's first process can be read without the right to trace others, so one that cannot does no harm.
            with suppress(OSError):
                place = f"/proc/{pid}/root/{folder}"
                device = os.stat(place).st_dev
                if device not in seen:
                    seen.add(device)
                    sizes = os.statvfs(place)
                    files += (sizes.f_blocks - sizes.f_bfree) * sizes.f_frsize
    return (private + max(mapped, files)) / _GIB


def _read(pid: int, name: str) -> bytes:
    """What the kernel says of a process; nothing of one that has ended or that this user may not read."""
    with suppress(OSError), open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()
    return b""


SAMPLE_S = 5.0
KEPT_BEFORE_THINNING = 120


def becomes_event(reading: int) -> bool:
    """Whether a reading, counted from 0, becomes an event: the first 120 do, of the next 240 every second, and so on.

    A run of a day that reads every 5 s leaves about a thousand.
    """
    return reading % (1 << ((reading // KEPT_BEFORE_THINNING + 1).bit_length() - 1)) == 0


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

    def data(self) -> dict[str, object]:
        """It in an event."""
        others = {} if self.others_mib is None else {"others_mib": self.others_mib}
        return {
            "index": self.index,
            "memory_used_mib": self.memory_used_mib,
            "utilization": self.utilization,
            **others,
        }


Reader = Callable[[], Sequence[GpuReading]]
# The numbers of the run's own processes now.
OwnProcesses = Callable[[], Collection[int]]


class NoReadingError(Exception):
    """NVML is absent or a GPU cannot be read; the message says why."""


@dataclass(slots=True)
class GpuSampler:
    """Reads every `SAMPLE_S` seconds; some readings become events, and the peak is of all."""

    read: Reader
    # Why there are no readings, once that is known and until it was said.
    problem: str = ""
    _due_at: float = 0.0
    _readings: int = 0
    _peak: dict[int, GpuReading] = field(default_factory=dict)

    def tick(self, now: float) -> dict[str, object] | None:
        """The data of a `gpu` event when one is due at `now` (monotonic seconds), else None; cheap otherwise.

        When the GPUs cannot be read the first call returns `{"problem": ...}` and sampling ends.
        """
        if now < self._due_at and not self.problem:
            return None
        self._due_at = now + SAMPLE_S
        readings: Sequence[GpuReading] = ()
        try:
            readings = () if self.problem else self.read()
        except NoReadingError as error:
            self.problem = str(error)
        if self.problem:
            said, self.problem, self.read = self.problem, "", tuple
            return {"problem": said}
        if not readings:
            return None
        for reading in readings:
            before = self._peak.get(reading.index, reading)
            rates = [rate for rate in (before.utilization, reading.utilization) if rate is not None]
            known = [mib for mib in (before.others_mib, reading.others_mib) if mib is not None]
            memory = max(before.memory_used_mib, reading.memory_used_mib)
            self._peak[reading.index] = GpuReading(
                before.index, memory, max(rates, default=None), max(known, default=None)
            )
        self._readings += 1
        return {"gpus": [reading.data() for reading in readings]} if becomes_event(self._readings - 1) else None

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `gpu` event: the highest values seen of each GPU; None without any."""
        highest = [reading.data() for _, reading in sorted(self._peak.items())]
        return {"peak": highest, "readings": self._readings} if highest else None


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
        if visible is None:
            names = [str(index) for index in range(nvml.nvmlDeviceGetCount())]
        else:
            names = [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
        handles = []
        for name in names:
            by_index = name.isdigit()
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else nvml.nvmlDeviceGetHandleByUUID(name)
            handles.append((int(name) if by_index else nvml.nvmlDeviceGetIndex(handle), handle))
    except nvml.NVMLError as error:
        raise NoReadingError(str(error)) from error

    def read_one(index: int, handle: Any) -> GpuReading:
        used = nvml.nvmlDeviceGetMemoryInfo(handle).used >> 20
        utilization = others_mib = None
        with suppress(nvml.NVMLError):
            utilization = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        with suppress(nvml.NVMLError):
            processes, mine = nvml.nvmlDeviceGetComputeRunningProcesses(handle), own()
            others = [process.usedGpuMemory or 0 for process in processes if process.pid not in mine]
            # In a container the driver may count processes as the host does; then none of them can be recognized.
            if not others or len(others) < len(processes):
                others_mib = sum(others) >> 20
        return GpuReading(index, int(used), utilization, others_mib)

    def read() -> Sequence[GpuReading]:
        try:
            return tuple(read_one(index, handle) for index, handle in handles)
        except nvml.NVMLError as error:
            raise NoReadingError(str(error)) from error

    return read


@dataclass(slots=True)
class MemorySampler:
    """Looks at the host at each call, which is cheap, and at the run's processes every `SAMPLE_S` seconds.

    Where the host has nearly no memory left it looks at the processes at each call.
    """

    # The host's memory first; nothing where it is not sampled.
    read: Callable[[], Sequence[Bound]]
    # Asks how many GiB the processes of the run hold; `exact=True` takes longer.
    held: Callable[..., float]
    # GiB that the run states as its need; None: it is never ended for its memory.
    need_gib: float | None = None
    # Why the run must end now, a sentence; else empty.
    loss: str = ""
    _due_at: float = 0.0
    _exact_at: float = 0.0
    _readings: int = 0
    _most_held_gib: float = 0.0
    _least_left_gib: float = float("inf")

    def tick(self, now: float) -> dict[str, object] | None:
        """The data of a `memory` event when one is due at `now` (monotonic seconds), else None."""
        bounds, due = self.read(), now >= self._due_at
        if not bounds or not (due or any(bound.short for bound in bounds)):
            return None
        held, left = self.held(), bounds[0].available_gib
        self._most_held_gib = max(self._most_held_gib, held)
        self._least_left_gib = min(self._least_left_gib, left)
        if exhausted_bound(bounds, held_gib=held, need_gib=self.need_gib) and now >= self._exact_at:
            self._exact_at = now + SAMPLE_S
            exact = self.held(exact=True)
            if bound := exhausted_bound(bounds, held_gib=exact, need_gib=self.need_gib):
                self.loss = (
                    f"{'The control group of the run' if bound.of_group else 'The host'} has {bound.available_gib:.1f} "
                    f"of {bound.total_gib:.1f} GiB of memory left, and the run holds {exact:.1f} GiB, more than the "
                    f"{self.need_gib:g} GiB of its needs.memory_gib."
                )
        if not due:
            return None
        self._due_at = now + SAMPLE_S
        self._readings += 1
        return _memory_data(held, left) if becomes_event(self._readings - 1) else None

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `memory` event: the most that the run held, the least that was left; None without."""
        if not self._readings:
            return None
        return {"peak": _memory_data(self._most_held_gib, self._least_left_gib), "readings": self._readings}


def open_memory_sampler(
    own: OwnProcesses, need_gib: float | None, *, read: Callable[[], Sequence[Bound]] = read_bounds
) -> MemorySampler:
    """A sampler of the run's processes, whose numbers `own` looks for."""
    return MemorySampler(read, lambda **options: held_gib(own(), **options), need_gib)


def _memory_data(held: float, left: float) -> dict[str, object]:
    return {"held_mib": round(held * 1024), "available_mib": round(left * 1024)}
