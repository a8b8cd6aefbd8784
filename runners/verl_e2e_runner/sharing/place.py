"""A run's place on the host: with other runs where all of them are kept apart, else alone.

Runs in a cage (see `process.cage`) have their own /tmp, /dev/shm, processes, IPC and, without the host's network, ports
and abstract sockets. What is left to share are the GPUs, which `gpus` gives out, and the limits of a user number, so
each run has its own. A run that shares more has the host to itself.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from verl_e2e.core.model.jobs import MOST_RUNS_ON_A_HOST, Job, Network
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good
from verl_e2e_runner.process.memory import Bound, read_bounds
from verl_e2e_runner.sharing.devices import Devices, visible
from verl_e2e_runner.sharing.gpus import NoGpusError, take_gpus
from verl_e2e_runner.sharing.locks import has_locked, holders, make_folder, open_lock, read_note, take_lock, write_note

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
            place = replace(place, memory=_memory_finding(need_gib, memory()))
        yield place


def _memory_finding(need_gib: float, bounds: Sequence[Bound]) -> Finding:
    bound = max(bounds, key=lambda bound: bound.missing_gib(need_gib))
    of_group = " below the limit of its control group" if bound.of_group else ""
    left = f"{bound.available_gib:.1f} of {bound.total_gib:.1f} GiB{of_group} are available"
    summary = f"the job needs {need_gib:g} GiB of host memory: {left}"
    return (
        good(Check.HOST_MEMORY, summary)
        if bound.missing_gib(need_gib) <= 0
        else blocked(Check.HOST_MEMORY, summary, _MEMORY)
    )


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
            files = (folder / f"run.{number}" for number in range(MOST_RUNS_ON_A_HOST))
            others = holders(file for file in files if file.exists())
            return _refused(", ".join(others) or _holder(descriptor), why_alone)
        write_note(descriptor, str(os.getpid()))
    trainer = _trainer()
    if trainer:
        return _refused(trainer, why_alone)
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
    others = sum(item != number for item in _taken(folder))
    finding = good(Check.OTHER_RUNS, f"kept apart from other runs of this host, {others} of them now")
    if not shown:
        return Place(finding, number)
    try:
        gpus = take_gpus(held, folder, shown, job.required_of_host, note)
    except NoGpusError as error:
        return Place(blocked(Check.OTHER_RUNS, str(error), "wait until they end, or use a host with more GPUs"), number)
    return Place(finding, number, gpus)


def _taken(folder: Path) -> Iterator[int]:
    for number in range(MOST_RUNS_ON_A_HOST):
        file = folder / f"run.{number}"
        if file.exists() and holders(iter((file,))):
            yield number


def _refused(other: str, why_alone: str) -> Finding:
    summary = f"another verl run is active on this host ({other}), and this one cannot share it: {why_alone}"
    return blocked(Check.OTHER_RUNS, summary, f"{_WAIT}; {_ISOLATE}")


def _holder(descriptor: int) -> str:
    pid = read_note(descriptor).strip()
    return f"verl-e2e run, process {pid}" if pid.isdigit() else "verl-e2e run of another user"


def _trainer() -> str:
    """verl's trainer, the person who started it, where it provably shares our /tmp; empty when there is none."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if _ENTRY_POINT in words[1:] and _shares_folder(process.pid):
            return f"verl training, process {process.pid}"
    return ""


def _shares_folder(pid: int) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/root{_SHARED}", _SHARED)
    except OSError:
        return False
