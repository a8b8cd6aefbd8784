"""A run's place on its host: how code under test is kept apart, found out by trying, and what runs share.

Code in a cage (see `process.cage`) may read the trees, the job's Python, and every path that the job or its site names.

Runs in a cage have their own /tmp, /dev/shm, processes, IPC and, without the host's network, ports and abstract
sockets. What is left to share are GPUs and memory, which are given out here, and the limits of a user number, so each
run has its own. A run that shares more has the host to itself.

There is no service: everything is a lock on a file, which the system releases when the runner has ended, however it
ended. A GPU has twelve parts, each a file, of which a run locks as many as its share asks for.
"""

import fcntl
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.model.jobs import MOST_RUNS_ON_A_HOST, Isolation, Job, Network, SiteIsolation
from verl_e2e.core.model.needs import Needs
from verl_e2e.core.model.record import Check, Finding, IsolationState, Mode
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE
from verl_e2e_runner.folder.recorder import key_file
from verl_e2e_runner.launch.launcher import INSTRUMENTATION, REWARDS
from verl_e2e_runner.process.cage import USER_NAME, Cage, Tools, hub_cache
from verl_e2e_runner.process.processes import hand_path_over, let_everyone_read, run_program
from verl_e2e_runner.reporting import blocked, good, note
from verl_e2e_runner.samplers import Bound, Device, Devices, read_bounds, visible
from verl_e2e_runner.trees import Trees

_PATH_IN_TEXT = re.compile(r"(?<![^\s=:,'\"\[\](])/[^\s=:,'\"\[\]()]+")
# Variables of the host that name folders of libraries and tools.
_LISTS = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "NCCL_TOPO_FILE", "NCCL_CONF_FILE")
# What a CI runner keeps of its own: work folders, the files by which steps talk to it, its tools excepted.
_RUNNER_FOLDERS = ("RUNNER_TEMP", "RUNNER_WORKSPACE", "GITHUB_WORKSPACE")
_RUNNER_FILES = (
    "GITHUB_ENV",
    "GITHUB_OUTPUT",
    "GITHUB_PATH",
    "GITHUB_STATE",
    "GITHUB_STEP_SUMMARY",
    "GITHUB_EVENT_PATH",
)


def read_paths(job: Job, trees: Trees, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Every folder and file that the run may read, absolute; some may not exist yet."""
    variables = {**environ, **job.site.process, **job.process}
    found = [trees.bridge, trees.megatron_lm, trees.verl, INSTRUMENTATION, REWARDS, hub_cache(variables)]
    for python in filter(None, (job.site.python, job.site.bridge_python)):
        found += interpreter_folders(python, variables.get("PATH", ""))
    for name in _LISTS:
        found += [Path(part) for part in variables.get(name, "").split(os.pathsep)]
    home = Path(variables.get("HOME", "/"))
    listed = (*job.site.python_path, *job.site.bridge_python_path, *job.site.isolation.read)
    found += [home / ".local", *(Path(path).expanduser() for path in listed)]
    # Absolute paths in the job's own texts: model, data, configuration, whatever an override names.
    texts = [job.checkpoint.model_path, job.checkpoint.dummy_config, job.data.train_files, job.data.val_files]
    texts.append(job.reward_model.model_path if job.reward_model else None)
    for mapping in (job.site.wrapper, job.wrapper, job.site.process, job.process):
        texts += mapping.values()
    for text in filter(None, (*texts, *job.site.overrides, *job.overrides)):
        found += map(Path, _PATH_IN_TEXT.findall(text))
        if text.startswith("~"):
            found.append(Path(text).expanduser())
    resolved = Path("/etc/resolv.conf").resolve()
    if not resolved.is_relative_to("/etc"):
        found.append(resolved)
    # A whole home folder is never an input.
    refused = {Path("/"), Path("."), home, home.resolve(), Path("/tmp"), Path("/run"), Path("/var")}  # noqa: S108
    return tuple(dict.fromkeys(path for path in found if path.is_absolute() and path not in refused))


def hidden_paths(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders of the CI runner that started us, as far as its variables name them."""
    folders = [Path(environ[name]) for name in _RUNNER_FOLDERS if environ.get(name)]
    folders += [Path(environ[name]).parent for name in _RUNNER_FILES if environ.get(name)]
    return tuple(dict.fromkeys(path for path in folders if path.is_absolute() and len(path.parts) > 2))


def interpreter_folders(python: str, path: str) -> Iterator[Path]:
    """The folders of a Python: its environment's and, where links lead on, those of the one that it is made from."""
    place = Path(shutil.which(python, path=path) or python)
    for _ in range(8):
        if not place.is_absolute():
            return
        prefix = place.parent.parent
        # A program outside of a `bin` folder is not an environment: it may be a script of the site among other things.
        yield prefix if place.parent.name == "bin" and len(prefix.parts) > 2 else place
        if not place.is_symlink():
            return
        place = place.parent / os.readlink(place)
        place = Path(os.path.normpath(place))


_TRIAL_S = 20.0
_UTILITIES = "/usr/bin:/bin:/usr/sbin:/sbin"
ISOLATION_FIX = (
    "install bubblewrap on the host or in the image, and let the runner be root or a user who may make user namespaces"
    " (a container needs --cap-add SYS_ADMIN and a seccomp and AppArmor profile that allow mounts)"
)
# The code's own folders below the scratch folder, made by the recorder.
_FOLDERS = ("out", "home", "huggingface", "cache")


@dataclass(frozen=True, slots=True)
class Host:
    """What this host can do to isolate code under test."""

    # None where it can do nothing.
    tools: Tools | None
    # Why it can do nothing, in one sentence; else empty.
    problem: str = ""


def find_isolation(job: Job, environ: Mapping[str, str]) -> Host:
    """Try a cage around a program that does nothing; no cage of this host holds what runs on other nodes."""
    if job.node_count > 1:
        return Host(None, f"its Ray cluster runs code on {job.node_count} nodes, and a cage holds only one")
    return try_cage(job.site.isolation, environ)


def try_cage(site: SiteIsolation, environ: Mapping[str, str]) -> Host:
    """Try a cage by a site's numbers around a program that does nothing."""
    bwrap = shutil.which("bwrap", path=f"{_UTILITIES}:{environ.get('PATH', '')}")
    if bwrap is None:
        return Host(None, "bubblewrap (bwrap) is not installed")
    setpriv, prlimit = (shutil.which(name, path=_UTILITIES) or "" for name in ("setpriv", "prlimit"))
    if os.getuid() == 0 and not setpriv:
        return Host(None, "setpriv (util-linux) is not installed")
    tools = Tools(bwrap, setpriv, prlimit)
    with tempfile.TemporaryDirectory() as folder:
        cage = Cage(tools, Path(folder).resolve(), site, os.getuid())
        try:
            hand_path_over(cage.scratch, cage)
        except OSError as error:
            return Host(None, f"a folder cannot be given to user {cage.uid}: {error.strerror}")
        tried = run_program(("/bin/sh", "-c", "exec true"), env={}, cwd=cage.scratch, timeout_s=_TRIAL_S, cage=cage)
    if tried.code != 0:
        return Host(None, f"a trial of bubblewrap gave {tried.ending}: {tried.last_error}")
    return Host(tools)


def open_cage(
    job: Job, trees: Trees, tools: Tools, own: Path, out: Path, environ: Mapping[str, str], *, number: int = 0
) -> Cage:
    """The cage of one run, its scratch folder made below `own`, a folder of the run's own.

    `out` is the run folder, which stays out of sight, as do the places that `environ` names for a CI runner. `number`
    is the run's among those that share the host: it has its own user, whose limits and files no neighbour has.
    """
    token = (Path(environ[TOKEN_VARIABLE]),) if environ.get(TOKEN_VARIABLE) else ()
    kept = (out.resolve(), key_file(environ), *token)
    # A path that the job names may lead to what is the recorder's alone.
    reads = [
        path
        for path in read_paths(job, trees, environ)
        if not any(path.is_relative_to(item) or path.resolve().is_relative_to(item.resolve()) for item in kept)
    ]
    cage = Cage(
        tools,
        own / "suspect",
        job.site.isolation.model_copy(update={"user": job.site.isolation.user + number}),
        os.getuid(),
        reads=tuple(reads),
        hidden=(*kept, own, *hidden_paths(environ)),
    )
    # A tree whose commit is nowhere was not made, and a finding says so.
    roots = [root for root in (trees.root(name) for name in trees.private) if root.is_dir()]
    return furnished(cage, (*(cage.scratch / name for name in _FOLDERS), trees.cwd), roots, own / "passwd")


def furnished(cage: Cage, folders: Iterable[Path], reads: Iterable[Path], users: Path) -> Cage:
    """The cage with its code's own folders, trees to read, and a list of users that knows it, written to `users`."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        hand_path_over(folder, cage)
    # The code may not put something else in the place of its own folders.
    cage.scratch.chmod(0o755)
    if not cage.other_user:
        return cage
    for path in reads:
        let_everyone_read(path)
    known = ""
    with suppress(OSError):
        known = Path("/etc/passwd").read_text().rstrip("\n")
    own = f"{USER_NAME}:x:{cage.uid}:{cage.uid}::{cage.scratch / 'home'}:/bin/sh\n"
    users.write_text(f"{known}\n{own}" if known else own)
    users.chmod(0o644)
    return replace(cage, replaced={Path("/etc/passwd"): users})


def state_of(cage: Cage | None, host: Host) -> IsolationState:
    """How the run is isolated, for the record."""
    if cage is None:
        return IsolationState(mode="none", problem=host.problem)
    return IsolationState(mode=mode_of(host), user=cage.uid, network=cage.site.network)


def mode_of(host: Host) -> Mode:
    """How this host isolates: root can start another user, anyone else needs a user namespace."""
    return "none" if host.tools is None else current_mode()


def current_mode() -> Mode:
    """How a cage isolates that this process makes."""
    return "other_user" if os.getuid() == 0 else "user_namespace"


def isolation_finding(job: Job, host: Host) -> Finding:
    """What the card says of the isolation; it blocks where the job requires what the host cannot do."""
    if host.tools is not None:
        return good(Check.ISOLATION, "code under test runs apart from the recorder, in namespaces of its own")
    summary = f"code under test cannot be kept apart from the recorder on this host: {host.problem}"
    if job.isolation is Isolation.REQUIRED:
        return blocked(Check.ISOLATION, f"{summary}; the job requires it", ISOLATION_FIX)
    what = "what the run recorded, and what later runs load here, could have been written by the code itself"
    return note(Check.ISOLATION, f"{summary}; {what}", ISOLATION_FIX)


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


def take_first(held: ExitStack, files: Sequence[Path], note: str) -> int | None:
    """Take the first lock that no one has, and give its place among the files; None where all are taken."""
    return next((number for number, file in enumerate(files) if take_lock(held, file, note)), None)


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
_ENTRY_POINTS = frozenset(consumer.entry_point for consumer in CONSUMERS.values())
_WAIT = "wait until it ends, or end it; then run again"
_MEMORY = (
    "wait until other runs end, end what else holds memory, or use a host with more of it; "
    "if runs take less than they state, lower `needs.memory_gib` of the site profile"
)
_ISOLATE = "to let runs share the host, install bubblewrap and set `isolation.network: none` in the site profile"


@dataclass(frozen=True, slots=True)
class HostPlace:
    """What a run has of the host for its time."""

    # Whether it may be here; it blocks where it may not.
    finding: Finding
    # Its number among the runs that share the host, from 0.
    number: int = 0
    # The indices of its GPUs; None: those that CUDA_VISIBLE_DEVICES shows.
    gpus: tuple[int, ...] | None = None
    # Whether the host has the memory that its site states; None where it states none, or nothing was asked.
    memory: Finding | None = None
    # How many other runs are on the host now.
    others: Callable[[], int] = lambda: 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that was found out about the place."""
        return (self.finding,) if self.memory is None else (self.finding, self.memory)


@contextmanager
def rehearsal_number(environ: Mapping[str, str]) -> Iterator[int]:
    """Hold a number that no run and no other rehearsal of the host has: limits of a user count all of its processes.

    Where none can be had, it is the first one of rehearsals.
    """
    folder = Path(environ.get(FOLDER_VARIABLE) or _FOLDER)
    make_folder(folder)
    with ExitStack() as held:
        note = f"rehearsal in process {os.getpid()}"
        files = [folder / f"rehearsal.{number}" for number in range(MOST_RUNS_ON_A_HOST)]
        yield MOST_RUNS_ON_A_HOST + (take_first(held, files, note) or 0)


@contextmanager
def take_place(
    job: Job,
    problem: str,
    environ: Mapping[str, str],
    devices: Callable[[], Devices],
    *,
    memory: Callable[[], Sequence[Bound]] = read_bounds,
) -> Iterator[HostPlace]:
    """Hold a place on the host; the finding blocks when there is none.

    `problem` says why this host cannot keep code under test apart, empty where it can. `memory` reads the host's. Every
    lock ends with its process, so a killed process blocks no other run.
    """
    named = environ.get(FOLDER_VARIABLE)
    folder = Path(named or _FOLDER)
    usable = make_folder(folder)
    runs = [folder / f"run.{number}" for number in range(MOST_RUNS_ON_A_HOST)]
    why_alone = ""
    if problem:
        why_alone = f"this host cannot keep runs apart: {problem}"
    elif job.site.ray_address is not None:
        why_alone = "its Ray cluster is not its own"
    elif job.site.isolation.network is not Network.NONE:
        why_alone = "it uses the host's network, where fixed ports collide"
    elif not usable:
        why_alone = f"{folder} cannot hold its locks"
    with ExitStack() as held:
        holder = _hold(held, folder / "alone.lock" if named and usable else LOCK, shared=not why_alone)
        if why_alone:
            place = HostPlace(_alone(holder, runs, why_alone))
        elif holder:
            place = HostPlace(blocked(Check.OTHER_RUNS, f"another verl run has this host to itself ({holder})", _WAIT))
        else:
            place = _with_others(held, job, environ, devices, folder, runs)
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


def _hold(held: ExitStack, lock: Path, *, shared: bool) -> str:
    """Hold the lock of the host, with others or alone; who has it where it cannot be had, else empty."""
    descriptor = open_lock(lock)
    if descriptor is None:
        return ""
    held.callback(os.close, descriptor)
    if has_locked(descriptor, shared=shared):
        if not shared:
            write_note(descriptor, str(os.getpid()))
        return ""
    pid = read_note(descriptor).strip()
    return f"verl-e2e run, process {pid}" if pid.isdigit() else "verl-e2e run of another user"


def _alone(holder: str, runs: Sequence[Path], why_alone: str) -> Finding:
    """Whether a run has the host to itself: no run of ours is on it, and no training that a person started."""
    if holder:
        holder = ", ".join(holders(file for file in runs if file.exists())) or holder
    else:
        for process in psutil.process_iter(["cmdline"]):
            # It collides with us only where it provably shares our /tmp.
            with suppress(OSError):
                trains = not _ENTRY_POINTS.isdisjoint((process.info["cmdline"] or [])[1:])
                if trains and os.path.samefile(f"/proc/{process.pid}/root{_SHARED}", _SHARED):
                    holder = f"verl training, process {process.pid}"
                    break
    if holder:
        summary = f"another verl run is active on this host ({holder}), and this one cannot share it: {why_alone}"
        return blocked(Check.OTHER_RUNS, summary, f"{_WAIT}; {_ISOLATE}")
    return good(Check.OTHER_RUNS, f"no other verl run is active on this host, and none may join: {why_alone}")


def _with_others(
    held: ExitStack,
    job: Job,
    environ: Mapping[str, str],
    devices: Callable[[], Devices],
    folder: Path,
    runs: Sequence[Path],
) -> HostPlace:
    """A number among the runs that share the host, and GPUs that no other of them has."""
    note = f"job {job.id} in process {os.getpid()}"
    number = take_first(held, runs, note)
    if number is None:
        return HostPlace(blocked(Check.OTHER_RUNS, f"{len(runs)} runs share this host already", _WAIT))

    def others() -> int:
        return len(holders(file for file in runs if file != runs[number] and file.exists()))

    finding = good(Check.OTHER_RUNS, f"kept apart from other runs of this host, {others()} of them now")
    shown = visible(devices().devices, {**environ, **job.site.process, **job.process}.get("CUDA_VISIBLE_DEVICES"))
    if not shown:
        return HostPlace(finding, number, others=others)
    try:
        return HostPlace(finding, number, take_gpus(held, folder, shown, job.required_of_host, note), others=others)
    except NoGpusError as error:
        return HostPlace(
            blocked(Check.OTHER_RUNS, str(error), "wait until they end, or use a host with more GPUs"), number
        )
