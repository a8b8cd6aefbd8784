"""Runs the driver of a rehearsal apart from the recorder: in a cage where the host can make one, always within limits.

The driver executes a pull request's code. In the cage it has no network and none of our variables, reads the trees, the
models and its Python, and writes one folder. What it left is copied from there afterwards: regular files of the names
that are expected, of a bounded size. Without a cage the limits of memory, disk and time hold all the same.
"""

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from verl_e2e.core.compare.rehearsal import MOST_RECORD_BYTES, RunNote
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Network, SiteIsolation
from verl_e2e_runner.place import ISOLATION_FIX, Host, furnished, hidden_paths, interpreter_folders, try_cage
from verl_e2e_runner.process.cage import Cage, read_below
from verl_e2e_runner.process.processes import FinishedProgram, run_program
from verl_e2e_runner.samplers import held_gib

REQUEST = "request.json"
_FOLDERS = ("out", "home", "cache", "huggingface", "tmp")
_LOOK_S = 1.0
_MOST_FILES = 100_000
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """What the code of one tree may take; a driver that takes more is ended."""

    # GiB of memory of all its processes together, and of each.
    memory_gib: float
    # GiB of files that it may have at a time.
    disk_gib: float
    # Processes and threads.
    processes: int
    # Seconds of wall time.
    seconds: float


def limits_of(workers: int, seconds: float = 1_800.0) -> DriverLimits:
    """What a driver with so many processes that train at a time may take.

    Each holds up to 0.6 GiB and has some 65 threads, most of them of gloo's groups.
    """
    return DriverLimits(4.0 + workers, 3.0 + workers / 2, 768 + 128 * workers, seconds)


@dataclass(frozen=True, slots=True)
class Apart:
    """Where the driver of one tree runs."""

    # The folder that its code may write.
    scratch: Path
    # None where the host can make none.
    cage: Cage | None
    # How the code is kept apart, as a sentence.
    described: str = "The code ran in a cage: no network, no secrets, and one folder to write in."


def open_apart(
    own: Path,
    python: Path,
    reads: Iterable[Path],
    environ: Mapping[str, str],
    limits: DriverLimits,
    *,
    require_cage: bool,
    number: int = 0,
) -> Apart:
    """Make the folder of one driver below `own`, new, and its cage; UserError where a required one cannot be made.

    `number` is the driver's among all that runs code on the host: it has its own user, whose limits no other reaches.
    """
    shutil.rmtree(own, ignore_errors=True)
    scratch = own / "code"
    site = SiteIsolation(network=Network.NONE, shm_gib=1.0, tmp_gib=1.0, processes=limits.processes)
    site = site.model_copy(update={"user": site.user + number})
    host: Host = try_cage(site, environ)
    if host.tools is None and require_cage:
        raise UserError(f"--require-cage: no cage can be made on this host: {host.problem}; {ISOLATION_FIX}")
    scratch.mkdir(parents=True)
    for name in _FOLDERS:
        (scratch / name).mkdir()
    if host.tools is None:
        reason = f"The code could not be kept apart from the recorder on this host ({host.problem})"
        return Apart(scratch, None, f"{reason}, so these records could have been written by it.")
    size = int(limits.memory_gib * _GIB)
    cage = Cage(
        host.tools,
        scratch,
        site,
        os.getuid(),
        reads=(*interpreter_folders(str(python), environ.get("PATH", os.defpath)), *reads),
        hidden=hidden_paths(environ),
        limits=(f"--data={size}", f"--fsize={int(limits.disk_gib * _GIB)}"),
    )
    return Apart(scratch, furnished(cage, (scratch / name for name in _FOLDERS), reads, own / "passwd"))


def run_apart(
    apart: Apart, argv: tuple[str, ...], variables: Mapping[str, str], limits: DriverLimits
) -> tuple[FinishedProgram, RunNote]:
    """Run a driver to its end; how it ended, and the note on it."""
    watch = _Watch(apart.scratch, limits)
    moved = {"HOME": str(apart.scratch / "home"), "TMPDIR": str(apart.scratch / "tmp")}
    if apart.cage is not None:
        moved = apart.cage.variables(variables)
    finished = run_program(
        argv,
        env={**variables, **moved},
        cwd=apart.scratch / "out",
        timeout_s=limits.seconds,
        cage=apart.cage,
        watch=watch,
    )
    # Cells have sessions of their own, and so outlive a driver; in a cage none is left.
    for process in watch.family:
        with suppress(psutil.Error):
            # It asks whether the number is still that of the same process.
            process.kill()
    ended = watch.loss
    if not ended and finished.timed_out:
        ended = f"it did not end within {limits.seconds:g} s"
    elif not ended and finished.code != 0:
        ended = f"the driver ended with {finished.ending}: {finished.last_error}"
    note = RunNote(
        isolation=apart.described,
        isolated=apart.cage is not None,
        ended=ended,
        peak_mib=round(watch.peak_gib * 1024),
        seconds=round(finished.seconds, 1),
    )
    return finished, note


def collect_records(apart: Apart, names: Iterable[str], out: Path) -> None:
    """Copy what the driver left under these names; one that is not a regular file, or too long, is left out."""
    for name in names:
        data = read_below(apart.scratch / "out", name, limit=MOST_RECORD_BYTES + 1)
        if data is not None and len(data) <= MOST_RECORD_BYTES:
            (out / name).write_bytes(data)


@dataclass(slots=True)
class _Watch:
    """Looks at a driver's processes and files once a second, and says when it must be ended."""

    scratch: Path
    limits: DriverLimits
    # Why it must be ended, a clause; else empty.
    loss: str = ""
    # The most that its processes held at a time.
    peak_gib: float = 0.0
    # The processes that were there at the last look.
    family: list[psutil.Process] = field(default_factory=list)
    _due: float = field(default_factory=time.monotonic)

    def __call__(self, pid: int) -> bool:
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + _LOOK_S
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            self.family = [process, *process.children(recursive=True)]
        held = held_gib((process.pid for process in self.family), exact=True)
        self.peak_gib = max(self.peak_gib, held)
        if held > self.limits.memory_gib:
            self.loss = f"its processes held {held:.1f} GiB of memory, more than {self.limits.memory_gib:g}"
        elif _size(self.scratch) > self.limits.disk_gib * _GIB:
            self.loss = f"its files took more than {self.limits.disk_gib:g} GiB"
        return bool(self.loss)


def _size(folder: Path) -> float:
    """The bytes of the files and folders in a folder; more than any limit where there are too many to count."""
    total = 0
    files = (Path(root, name) for root, folders, names in os.walk(folder) for name in (*folders, *names))
    for number, file in enumerate(files):
        if number >= _MOST_FILES:
            return float("inf")
        with suppress(OSError):
            total += file.lstat().st_blocks * 512
    return total
