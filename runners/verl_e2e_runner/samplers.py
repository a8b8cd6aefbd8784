"""Samples GPUs through NVML and memory of the host, and says when the run must give way to others.

Of many readings a bounded number become events for the record; the peak is of all.

Memory that processes share is counted once. The proportional shares of the kernel (PSS) are right for every process,
but cost 25 times as much to read as the counters that it keeps anyway. So private memory is read from these, which
count pages that a forked child still shares with its parent for both, and PSS only where a decision hangs on it.
"""

import importlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
    return (Bound(memory.total / _GIB, memory.available / _GIB), *_group_bounds(root, memory.total))


def held_gib(pids: Iterable[int], *, exact: bool = False) -> float:
    """GiB that these processes hold: private memory, and shared memory once.

    Shared memory is what the files in the own /tmp and /dev/shm of a cage take, or, where that is more, what one of the
    processes has mapped of it. `exact` divides pages of forked children by their owners, and takes longer. A process
    that has ended holds nothing.
    """
    numbers = tuple(pids)
    private, mapped = 0, 0
    for pid in numbers:
        counters = {name: int(kib) << 10 for name, kib in _COUNTERS.findall(_read(pid, "status"))}
        share = _SHARE.search(_read(pid, "smaps_rollup")) if exact else None
        private += int(share[1]) << 10 if share else counters.get(b"RssAnon", 0)
        mapped = max(mapped, counters.get(b"RssShmem", 0))
    return (private + max(mapped, _files_in_memory(numbers))) / _GIB


def _read(pid: int, name: str) -> bytes:
    """What the kernel says of a process; nothing of one that has ended or that this user may not read."""
    with suppress(OSError), open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()
    return b""


def _files_in_memory(pids: Iterable[int]) -> int:
    """Bytes of the file systems in memory that these processes have and this one does not.

    A cage's first process can be read without the right to trace others, so one that cannot be read does no harm.
    """
    seen = {os.stat(f"/{folder}").st_dev for folder in _IN_MEMORY if os.path.isdir(f"/{folder}")}
    used = 0
    for pid in pids:
        for folder in _IN_MEMORY:
            with suppress(OSError):
                place = f"/proc/{pid}/root/{folder}"
                device = os.stat(place).st_dev
                if device not in seen:
                    seen.add(device)
                    sizes = os.statvfs(place)
                    used += (sizes.f_blocks - sizes.f_bfree) * sizes.f_frsize
    return used


def _group_bounds(root: Path, host_bytes: int) -> Iterator[Bound]:
    for folder, (limit_file, used_file, cached) in _groups(root):
        with suppress(OSError, ValueError):
            # The word `max`, and in version 1 a number beyond all memory, mean that there is no limit.
            limit = int((folder / limit_file).read_text())
            used = int((folder / used_file).read_text())
            if limit >= host_bytes:
                continue
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            given_back = sum(int(stat.get(key, 0)) for key in cached)
            left = max(0, limit - max(0, used - given_back))
            yield Bound(limit / _GIB, left / _GIB, of_group=True)


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, tuple[str, ...]]]]:
    """The folders of the control groups that this process is in, with the names of their files.

    In a container the path may be that of the host, of which only the top is mounted.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, names = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        own = Path(path.lstrip("/"))
        yield from ((folder, names) for part in (own, *own.parents) if (folder := top / part).is_dir())


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
        return {"gpus": [_reading_data(reading) for reading in readings]} if self._thinning.keeps_next() else None

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `gpu` event: the highest values seen of each GPU; None without any."""
        if not self._peak:
            return None
        highest = [_reading_data(reading) for _, reading in sorted(self._peak.items())]
        return {"peak": highest, "readings": self._thinning.readings}


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

    def read() -> Sequence[GpuReading]:
        try:
            return tuple(_reading(nvml, index, handle, own) for index, handle in handles)
        except nvml.NVMLError as error:
            raise NoReadingError(str(error)) from error

    return read


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


def _reading_data(reading: GpuReading) -> dict[str, object]:
    data: dict[str, object] = {
        "index": reading.index,
        "memory_used_mib": reading.memory_used_mib,
        "utilization": reading.utilization,
    }
    return data if reading.others_mib is None else {**data, "others_mib": reading.others_mib}


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

    return MemorySampler(read, lambda **options: held_gib(own(), **options), need_gib)


def _memory_data(held: float, left: float) -> dict[str, object]:
    return {"held_mib": round(held * 1024), "available_mib": round(left * 1024)}
