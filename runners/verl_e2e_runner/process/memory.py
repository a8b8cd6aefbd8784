"""How much memory the host has left, and how much of it the processes of a run hold.

Memory that processes share is counted once. The proportional shares of the kernel (PSS) are right for every process,
but cost 25 times as much to read as the counters that it keeps anyway. So private memory is read from these, which
count pages that a forked child still shares with its parent for both, and PSS only where a decision hangs on it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
