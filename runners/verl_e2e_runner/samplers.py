"""Reads the GPUs and the memory of the host, samples them for a run, and says when the run must give way to others.

Of many readings a bounded number become events for the record; the peak is of all.

Memory that processes share is counted once. The proportional shares of the kernel (PSS) are right for every process,
but cost 25 times as much to read as the counters that it keeps anyway. So private memory is read from these, which
count pages that a forked child still shares with its parent for both, and PSS only where a decision hangs on it.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pynvml

from verl_e2e.core.model.record import Gpu

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
class Device:
    """A GPU of the host at one moment."""

    gpu: Gpu
    # CUDA_VISIBLE_DEVICES may name a GPU by its index or by this.
    uuid: str
    # What processes that compute on it hold, in bytes by their number in the host's count; None: the driver does not
    # tell.
    processes: Mapping[int, int] | None = None
    # Percent; None where the device does not support it.
    utilization: int | None = None


@dataclass(frozen=True, slots=True)
class Devices:
    """What the driver reports."""

    devices: tuple[Device, ...] = ()
    # The driver's version.
    driver: str = ""
    # Why nothing is reported; else empty.
    problem: str = ""


def read_devices(nvml: Any = pynvml) -> Devices:
    """Ask NVML for the host's GPUs; needs no CUDA context and costs milliseconds."""
    devices = []
    try:
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory, name = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetName(handle)
            processes = utilization = None
            with suppress(nvml.NVMLError):
                computing = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                processes = {process.pid: process.usedGpuMemory or 0 for process in computing}
            with suppress(nvml.NVMLError):
                utilization = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            total, used = memory.total >> 20, memory.used >> 20
            gpu = Gpu(index=index, name=name, memory_total_mib=total, memory_used_mib=used)
            devices.append(Device(gpu, nvml.nvmlDeviceGetUUID(handle), processes, utilization))
        return Devices(tuple(devices), nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        return Devices(problem=str(error))
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def visible(devices: Sequence[Device], setting: str | None) -> tuple[Device, ...]:
    """The devices that CUDA shows under CUDA_VISIBLE_DEVICES (None: all); it stops at the first unknown entry."""
    if setting is None:
        return tuple(devices)
    shown: list[Device] = []
    for entry in (part.strip() for part in setting.split(",")):
        by_index, long_enough = entry.isdigit(), len(entry) > len("GPU-")
        match = [
            device
            for device in devices
            if (device.gpu.index == int(entry) if by_index else long_enough and device.uuid.startswith(entry))
        ]
        if len(match) != 1 or match[0] in shown:
            break
        shown.append(match[0])
    return tuple(shown)


# The numbers of the run's own processes now.
OwnProcesses = Callable[[], Collection[int]]


@dataclass(slots=True)
class GpuSampler:
    """Reads every `SAMPLE_S` seconds; some readings become events, and the peak is of all."""

    read: Callable[[], Devices]
    # The run's CUDA_VISIBLE_DEVICES; None: it sees all.
    setting: str | None = None
    # Tells the run's processes from those of others.
    own: OwnProcesses = frozenset
    _due_at: float = 0.0
    _readings: int = 0
    # By GPU the highest value of each key of an event.
    _peak: dict[int, dict[str, int | None]] = field(default_factory=dict)

    def tick(self, now: float) -> dict[str, object] | None:
        """The data of a `gpu` event when one is due at `now` (monotonic seconds), else None; cheap otherwise.

        When the GPUs cannot be read it returns `{"problem": ...}` once, and sampling ends.
        """
        if now < self._due_at:
            return None
        self._due_at = now + SAMPLE_S
        found = self.read()
        if found.problem:
            self._due_at = float("inf")
            return {"problem": f"GPU memory is not sampled: {found.problem}"}
        gpus = []
        shown = visible(found.devices, self.setting)
        mine = self.own() if any(device.processes for device in shown) else ()
        for device in shown:
            index, used = device.gpu.index, device.gpu.memory_used_mib
            data = {"index": index, "memory_used_mib": used, "utilization": device.utilization}
            if device.processes is not None:
                others = [size for pid, size in device.processes.items() if pid not in mine]
                # In a container the driver may count processes as the host does; then none of them can be recognized.
                if not others or len(others) < len(device.processes):
                    data["others_mib"] = sum(others) >> 20
            gpus.append(data)
            highest = self._peak.setdefault(index, {})
            for key, value in data.items():
                highest[key] = max((known for known in (highest.get(key), value) if known is not None), default=None)
        if not gpus:
            return None
        self._readings += 1
        return {"gpus": gpus} if becomes_event(self._readings - 1) else None

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `gpu` event: the highest values seen of each GPU; None without any."""
        highest = [data for _, data in sorted(self._peak.items())]
        return {"peak": highest, "readings": self._readings} if highest else None


@dataclass(slots=True)
class MemorySampler:
    """Looks at the host at each call, which is cheap, and at the run's processes every `SAMPLE_S` seconds.

    Where the host has nearly no memory left it looks at the processes at each call: a run that then holds more than it
    states as its need must end.
    """

    # The host's memory first; nothing where it is not sampled.
    read: Callable[[], Sequence[Bound]]
    # Asks how many GiB the processes of the run hold; `exact=True` takes longer.
    held: Callable[..., float]
    # How many other runs are on the host now.
    others: Callable[[], int]
    # GiB that the run states as its need; None: it is never ended for its memory.
    need_gib: float | None = None
    # Why the run must end now, a sentence; else empty.
    loss: str = ""
    _due_at: float = 0.0
    _exact_at: float = 0.0
    _readings: int = 0
    _most_held_gib: float = 0.0
    _least_left_gib: float = float("inf")
    _most_others: int = 0

    def tick(self, now: float) -> dict[str, object] | None:
        """The data of a `memory` event when one is due at `now` (monotonic seconds), else None."""
        bounds, due = self.read(), now >= self._due_at
        short = next((bound for bound in bounds if bound.short), None)
        if not bounds or not (due or short):
            return None
        held, left = self.held(), bounds[0].available_gib
        self._most_held_gib = max(self._most_held_gib, held)
        self._least_left_gib = min(self._least_left_gib, left)
        need = self.need_gib
        if short and need is not None and held > need and now >= self._exact_at:
            self._exact_at = now + SAMPLE_S
            if (exact := self.held(exact=True)) > need:
                where = "The control group of the run" if short.of_group else "The host"
                rest = f"{where} has {short.available_gib:.1f} of {short.total_gib:.1f} GiB of memory left"
                more = f"more than the {need:g} GiB of its needs.memory_gib"
                self.loss = f"{rest}, and the run holds {exact:.1f} GiB, {more}."
        if not due:
            return None
        self._due_at = now + SAMPLE_S
        self._readings += 1
        others = self.others()
        self._most_others = max(self._most_others, others)
        return _memory_data(held, left, others) if becomes_event(self._readings - 1) else None

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `memory` event: the most held, the least left, the most other runs; None without."""
        if not self._readings:
            return None
        peak = _memory_data(self._most_held_gib, self._least_left_gib, self._most_others)
        return {"peak": peak, "readings": self._readings}


def open_memory_sampler(
    own: OwnProcesses,
    others: Callable[[], int],
    need_gib: float | None,
    *,
    read: Callable[[], Sequence[Bound]] = read_bounds,
) -> MemorySampler:
    """A sampler of the run's processes, whose numbers `own` looks for."""
    return MemorySampler(read, lambda **options: held_gib(own(), **options), others, need_gib)


def _memory_data(held: float, left: float, others: int) -> dict[str, object]:
    return {"held_mib": round(held * 1024), "available_mib": round(left * 1024), "other_runs": others}
