"""A run's place on the host: with other runs where all of them are kept apart, else alone.

Runs in a cage (see `process.cage`) have their own /tmp, /dev/shm, processes, IPC and, without the host's network, ports
and abstract sockets. What is left to share are GPUs and memory, which are given out here, and the limits of a user
number, so each run has its own. A run that shares more has the host to itself.

There is no service: everything is a lock on a file, which the system releases when the runner has ended, however it
ended. A GPU has twelve parts, each a file, of which a run locks as many as its share asks for. A run that states how
much host memory it needs leaves a note in a locked file, of what it may have and what it holds now. What it has not
taken yet counts as taken for those that begin after it, so runs that begin together do not count on the same memory.
"""

import fcntl
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pynvml

from verl_e2e.core.model.jobs import MOST_RUNS_ON_A_HOST, Job, Network
from verl_e2e.core.model.needs import Needs
from verl_e2e.core.model.record import Check, Finding, Gpu
from verl_e2e_runner.findings import blocked, good
from verl_e2e_runner.samplers import Bound, read_bounds

_NOTE_BYTES = 400
_LOOK_S = 0.01


def make_folder(folder: Path) -> bool:
    """Make a folder in which every user of the host may have locks; false where there cannot be one."""
    with suppress(OSError):
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    return folder.is_dir() and not folder.is_symlink() and os.access(folder, os.W_OK)


def open_lock(file: Path) -> int | None:
    """The descriptor of a file to lock, None where there cannot be one; a link is never followed."""
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        # Another user's file in a sticky folder may be locked, though neither created nor written.
        with suppress(OSError):
            descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            # The service makes files private; a lock that no other user can open keeps no one out.
            with suppress(OSError):
                os.fchmod(descriptor, 0o644)
            return descriptor
    return None


def has_locked(descriptor: int, *, shared: bool = False) -> bool:
    """Take a lock without waiting; whether this process has it now."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def take_lock(held: ExitStack, file: Path, note: str) -> bool:
    """Take a lock without waiting and keep it as long as `held`; `note` says who has it."""
    descriptor = open_lock(file)
    if descriptor is None:
        return False
    if not has_locked(descriptor):
        os.close(descriptor)
        return False
    held.callback(os.close, descriptor)
    write_note(descriptor, note)
    return True


def write_note(descriptor: int, note: str) -> None:
    """Say in a locked file who holds it."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode()[:_NOTE_BYTES], 0)


def read_note(descriptor: int) -> str:
    """What the holder of a lock wrote: text of anyone on the host, on one line."""
    raw = os.pread(descriptor, _NOTE_BYTES, 0).decode(errors="replace")
    return "".join(letter for letter in raw if letter.isprintable())


def holders(files: Iterable[Path]) -> tuple[str, ...]:
    """The notes of those locks that another process holds, each once."""
    notes: list[str] = []
    for file in files:
        descriptor = open_lock(file)
        if descriptor is None:
            continue
        try:
            if not has_locked(descriptor, shared=True):
                notes.append(read_note(descriptor))
        finally:
            os.close(descriptor)
    return tuple(dict.fromkeys(notes))


@contextmanager
def lock_within(file: Path, limit_s: float) -> Iterator[bool]:
    """Wait for a lock that others hold for a moment only; false when it did not come in time."""
    descriptor = open_lock(file)
    deadline = time.monotonic() + limit_s
    try:
        taken = descriptor is not None and has_locked(descriptor)
        while descriptor is not None and not taken and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            taken = has_locked(descriptor)
        yield taken
    finally:
        if descriptor is not None:
            os.close(descriptor)


_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the host."""

    gpu: Gpu
    # CUDA_VISIBLE_DEVICES may name a GPU by its index or by this.
    uuid: str
    # The numbers of the processes that compute on it, in the host's count.
    processes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Devices:
    """What the driver reports."""

    devices: tuple[Device, ...] = ()
    # The driver's version.
    driver: str = ""
    # Why nothing is reported; else empty.
    problem: str = ""


def read_devices() -> Devices:
    """Ask NVML for the host's GPUs; needs no CUDA context and costs milliseconds."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Devices(problem=str(error))
    try:
        devices = tuple(_device(index) for index in range(pynvml.nvmlDeviceGetCount()))
        return Devices(devices, pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return Devices(problem=str(error))
    finally:
        pynvml.nvmlShutdown()


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


def _device(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    gpu = Gpu(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        memory_total_mib=memory.total // _MIB,
        memory_used_mib=memory.used // _MIB,
    )
    processes: tuple[int, ...] = ()
    with suppress(pynvml.NVMLError):
        processes = tuple(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return Device(gpu, pynvml.nvmlDeviceGetUUID(handle), processes)


# A half, a third, a quarter and a sixth of a GPU are whole numbers of them.
_PARTS = 12
_TURN_S = 10.0
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9-]")


class NoGpusError(Exception):
    """The host has not enough free GPUs now; the message says who has them."""


def take_gpus(held: ExitStack, folder: Path, devices: Sequence[Device], needs: Needs, note: str) -> tuple[int, ...]:
    """The indices of GPUs that belong to this process as long as `held`; NoGpusError when too few are free.

    A GPU that others use already comes first where a part of it is enough, so that whole ones stay whole.
    """
    wanted = math.ceil(needs.gpu_share * _PARTS - 1e-9)
    with lock_within(folder / "gpus.lock", _TURN_S) as turn:
        if not turn:
            raise NoGpusError(f"{folder}: its lock cannot be had")
        found: dict[int, list[Path]] = {device.gpu.index: [] for device in devices}
        for device in devices:
            for part in _parts(folder, device):
                with ExitStack() as probe:
                    if take_lock(probe, part, ""):
                        found[device.gpu.index].append(part)
        fitting = [device for device in devices if len(found[device.gpu.index]) >= wanted]
        fitting.sort(key=lambda device: (len(found[device.gpu.index]), device.gpu.memory_used_mib, device.gpu.index))
        if len(fitting) < needs.gpu_count:
            share = "" if needs.gpu_share == 1 else f" (a share of {needs.gpu_share:g} of each)"
            by = ", ".join(holders(part for device in devices for part in _parts(folder, device))) or "other runs"
            free = f"{len(fitting)} of {len(devices)} are free; the others belong to {by}"
            raise NoGpusError(f"the job needs {needs.gpu_count} GPUs{share}, and {free}")
        chosen = sorted(fitting[: needs.gpu_count], key=lambda device: device.gpu.index)
        parts = [part for device in chosen for part in found[device.gpu.index][:wanted]]
        if not all(take_lock(held, part, note) for part in parts):
            raise NoGpusError(f"{folder}: someone takes locks out of turn")
    return tuple(device.gpu.index for device in chosen)


def _parts(folder: Path, device: Device) -> Iterator[Path]:
    name = _NOT_IN_NAMES.sub("-", device.uuid)
    yield from (folder / f"gpu-{name}.{part}" for part in range(_PARTS))


# verl names its sockets /tmp/rl-colocate-zmq-... whatever TMPDIR says, so the lock lies where they lie.
_SHARED = Path("/tmp")  # noqa: S108
LOCK = _SHARED / "verl-e2e.lock"
# Names a folder that all runs of a host share, where containers of one host have a /tmp of their own.
FOLDER_VARIABLE = "VERL_E2E_HOST_FOLDER"
_FOLDER = _SHARED / "verl-e2e-host"
_ENTRY_POINT = "verl.trainer.main_ppo"
_WAIT = "wait until it ends, or end it; then run again"
_MEMORY = (
    "wait until other runs end, end what else holds memory, or use a host with more of it; "
    "if runs take less than they state, lower `needs.memory_gib` of the site profile"
)
_ISOLATE = "to let runs share the host, install bubblewrap and set `isolation.network: none` in the site profile"


@dataclass(frozen=True, slots=True)
class Place:
    """What a run has of the host for its time."""

    # Whether it may be here; it blocks where it may not.
    finding: Finding
    # Its number among the runs that share the host, from 0.
    number: int = 0
    # The indices of its GPUs; None: those that CUDA_VISIBLE_DEVICES shows.
    gpus: tuple[int, ...] | None = None
    # Whether the host has the memory that its site states; None where it states none, or nothing was asked.
    memory: Finding | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that was found out about the place."""
        return (self.finding,) if self.memory is None else (self.finding, self.memory)


@contextmanager
def take_place(
    job: Job,
    problem: str,
    environ: Mapping[str, str],
    devices: Callable[[], Devices],
    *,
    memory: Callable[[], Sequence[Bound]] = read_bounds,
) -> Iterator[Place]:
    """Hold a place on the host; the finding blocks when there is none.

    `problem` says why this host cannot keep code under test apart, empty where it can. `memory` reads the host's. Every
    lock ends with its process, so a killed process blocks no other run.
    """
    named = environ.get(FOLDER_VARIABLE)
    folder = Path(named or _FOLDER)
    usable = make_folder(folder)
    lock = folder / "alone.lock" if named and usable else LOCK
    with ExitStack() as held:
        why_alone = _why_alone(job, problem) or ("" if usable else f"{folder} cannot hold its locks")
        if why_alone:
            place = Place(_alone(held, lock, folder, why_alone))
        else:
            place = _with_others(held, job, environ, devices, lock, folder)
        need_gib = job.site.needs.memory_gib
        if place.finding.ok and need_gib is not None:
            bound = max(memory(), key=lambda bound: bound.missing_gib(need_gib))
            of_group = " below the limit of its control group" if bound.of_group else ""
            left = f"{bound.available_gib:.1f} of {bound.total_gib:.1f} GiB{of_group} are available"
            summary = f"the job needs {need_gib:g} GiB of host memory: {left}"
            enough = bound.missing_gib(need_gib) <= 0
            found = good(Check.HOST_MEMORY, summary) if enough else blocked(Check.HOST_MEMORY, summary, _MEMORY)
            place = replace(place, memory=found)
        yield place


def _why_alone(job: Job, problem: str) -> str:
    """Why a run cannot share the host, a clause; empty when it can."""
    if problem:
        return f"this host cannot keep runs apart: {problem}"
    if job.site.ray_address is not None:
        return "its Ray cluster is not its own"
    if job.site.isolation.network is not Network.NONE:
        return "it uses the host's network, where fixed ports collide"
    return ""


def _alone(held: ExitStack, lock: Path, folder: Path, why_alone: str) -> Finding:
    descriptor = open_lock(lock)
    if descriptor is not None:
        held.callback(os.close, descriptor)
        if not has_locked(descriptor):
            return _refused(", ".join(_others(folder)) or _holder(descriptor), why_alone)
        write_note(descriptor, str(os.getpid()))
    for process in psutil.process_iter(["cmdline"]):
        # verl's trainer, the person who started it, where it provably shares our /tmp.
        if _ENTRY_POINT in (process.info["cmdline"] or [])[1:] and _shares_folder(process.pid):
            return _refused(f"verl training, process {process.pid}", why_alone)
    return good(Check.OTHER_RUNS, f"no other verl run is active on this host, and none may join: {why_alone}")


def _with_others(
    held: ExitStack,
    job: Job,
    environ: Mapping[str, str],
    devices: Callable[[], Devices],
    lock: Path,
    folder: Path,
) -> Place:
    descriptor = open_lock(lock)
    if descriptor is not None:
        held.callback(os.close, descriptor)
        if not has_locked(descriptor, shared=True):
            summary = f"another verl run has this host to itself ({_holder(descriptor)})"
            return Place(blocked(Check.OTHER_RUNS, summary, _WAIT))
    note = f"job {job.id} in process {os.getpid()}"
    numbers = range(MOST_RUNS_ON_A_HOST)
    number = next((item for item in numbers if take_lock(held, folder / f"run.{item}", note)), None)
    if number is None:
        return Place(blocked(Check.OTHER_RUNS, f"{len(numbers)} runs share this host already", _WAIT))
    shown = visible(devices().devices, {**environ, **job.site.process, **job.process}.get("CUDA_VISIBLE_DEVICES"))
    others = len(_others(folder, own=number))
    finding = good(Check.OTHER_RUNS, f"kept apart from other runs of this host, {others} of them now")
    if not shown:
        return Place(finding, number)
    try:
        gpus = take_gpus(held, folder, shown, job.required_of_host, note)
    except NoGpusError as error:
        return Place(blocked(Check.OTHER_RUNS, str(error), "wait until they end, or use a host with more GPUs"), number)
    return Place(finding, number, gpus)


def _others(folder: Path, *, own: int | None = None) -> tuple[str, ...]:
    """The notes of the runs that share the host now, but for the one with this number."""
    files = (folder / f"run.{number}" for number in range(MOST_RUNS_ON_A_HOST) if number != own)
    return holders(file for file in files if file.exists())


def _refused(other: str, why_alone: str) -> Finding:
    summary = f"another verl run is active on this host ({other}), and this one cannot share it: {why_alone}"
    return blocked(Check.OTHER_RUNS, summary, f"{_WAIT}; {_ISOLATE}")


def _holder(descriptor: int) -> str:
    pid = read_note(descriptor).strip()
    return f"verl-e2e run, process {pid}" if pid.isdigit() else "verl-e2e run of another user"


def _shares_folder(pid: int) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/root{_SHARED}", _SHARED)
    except OSError:
        return False
