"""Run jobs on this machine while we wait or are restarted: `verl-e2e run`, detached, as many as the host has slots.

Everything about a run lies below `root/<run key>`: `job.json` (the order), `run` (the run folder), `runner.log` (what
the runner printed), `process.json` (its number and start time), `ended` (when it ended, if the service lived then),
`cancel` (someone asked for its end). Anyone who looks reads these files and the process table, so a service that was
killed and started again knows as much as before.

Locks on files, inherited by the runner and released by the system with its last breath, hold what no file can:
`root/host.lock` and `root/slot-N.lock` are the slots of the host, `root/<run key>/run.lock` keeps the same order from
being started twice. A rehearsal, which needs no GPU, takes no slot. A run that waits for the host is started by
whichever call comes first after it is free. Runs begin in the order of their orders: one that needs more slots than are
free keeps later ones waiting, so its turn comes.
"""

import fcntl
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from pydantic import ValidationError

from verl_e2e.adapters.dispatch import COMMAND
from verl_e2e.adapters.dispatch.order_folder import (
    EXIT_CODE,
    ORDER_VARIABLE,
    RECORDER_KEY,
    RUN_FOLDER,
    RUNNER_LOG,
    OpenLog,
    OrderFolder,
    disk_errors,
    safe_environment,
)
from verl_e2e.adapters.dispatch.shared_disk import GRACE_S, SharedDiskBackend
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.needs import ONE_RUN, Capacity, Needs
from verl_e2e.core.model.record import EVENTS_FILE
from verl_e2e.core.pulls.job_order import RECORDER_KEY_VARIABLE, TOKEN_VARIABLE
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.ports import Clock, DispatchError, Progress


@dataclass(slots=True)
class _Received:
    """The signals that this process received; each is passed on when the runner has started."""

    numbers: list[int] = field(default_factory=list)
    runner: subprocess.Popen[bytes] | None = None

    def take(self, number: int, _: FrameType | None) -> None:
        self.numbers.append(number)
        if self.runner is not None:
            self.runner.send_signal(number)

    def hand_to(self, runner: subprocess.Popen[bytes]) -> None:
        self.runner = runner
        for number in tuple(self.numbers):
            runner.send_signal(number)


@contextmanager
def _held_signals() -> Iterator[_Received]:
    received = _Received()
    numbers = [
        item for item in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(item) != signal.SIG_IGN
    ]
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, received.take) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LocalDispatcher:
    """Runs jobs on this machine, one after the other. `work` keeps worktrees and caches between runs."""

    def __init__(self, work: Path | None = None, *, quiet: bool = False) -> None:
        self._work = work
        self._command = (*COMMAND, "--quiet") if quiet else COMMAND

    def run(self, job: Job, out: Path) -> int:
        """Run a job to its end in the run folder `out`; the file of the job lies next to it. Returns the exit code.

        An interruption is passed to the runner, which ends its run and completes the folder; then
        KeyboardInterrupt is raised. DispatchError when the runner left no folder.
        """
        out.parent.mkdir(parents=True, exist_ok=True)
        file = out.with_name(f"{out.name}.job.json")
        file.write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")
        work = ["--work", str(self._work)] if self._work else []
        command = [*self._command, "run", "--job", str(file), "--out", str(out), *work]
        with _held_signals() as received:
            # Its own process group: Ctrl-C would otherwise reach it twice, and the second one skips the clean end.
            runner = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0)
            received.hand_to(runner)
            code = runner.wait()
        if received.numbers:
            raise KeyboardInterrupt
        if not (out / EVENTS_FILE).exists():
            raise DispatchError(f"{out}: the runner left no folder (exit code {code}); see its message above")
        return code


# A note: when the runner ended.
_ENDED = "ended"
# By how much the process table may be wrong about a start: it counts from a boot that it knows to the second.
_UNSURE = timedelta(seconds=1)
# Names the folder that the runs of this host share; a runner that did not know it would take another host's place.
HOST_VARIABLE = "VERL_E2E_HOST_FOLDER"


class LocalBackend(SharedDiskBackend):
    """One GPU host that is this machine.

    `environ` is the environment to hand down, without secrets and without the service's own settings; `command` is how
    `verl-e2e` is called. `capacity` says how many runs the host takes at the same time.
    """

    def __init__(
        self,
        root: Path,
        *,
        environ: Mapping[str, str],
        clock: Clock,
        open_log: OpenLog,
        command: Sequence[str] = COMMAND,
        capacity: Capacity = ONE_RUN,
    ) -> None:
        super().__init__(root.resolve(), clock=clock, open_log=open_log)
        kept = {name: value for name, value in environ.items() if name in (HOST_VARIABLE, TOKEN_VARIABLE)}
        self._environ = {**safe_environment(environ), **kept}
        self._command = tuple(command)
        self._capacity = capacity
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, run: Run) -> str:
        """Write the order to disk once and start it if the host is free; the handle is the run's key."""
        folder = self._folder(run)
        with disk_errors():
            folder.write_order(run)
            self._start_next()
        return run.key

    def find(self, run: Run) -> str:
        """The run's key when its order is on this host, else empty."""
        return run.key if self._folder(run).ordered else ""

    def poll(self, run: Run) -> Progress:
        """Where the run stands, by its files and the process table; starts what waits when the host is free."""
        folder = self._folder(run)
        with disk_errors():
            self._start_next()
            if not folder.ordered:
                return folder.gone(run)
            if self._is_live(run):
                if not folder.cancelled:
                    return Progress(RunState.RUNNING, folder.where())
                if folder.asked_for_s(self._clock.now()) > GRACE_S:
                    # A runner that does not end is killed, with all that it started.
                    process = self._runner(folder)
                    if process is not None:
                        with suppress(psutil.NoSuchProcess):
                            process.kill()
                    _end_all(folder.path.name)
                return Progress(RunState.CANCELLING, "it is ending its run and completing the folder")
            if not _began(folder) and not folder.cancelled:
                return Progress(RunState.SUBMITTED, "it waits for an earlier run on this host")
            _end_all(folder.path.name)
            if folder.cancelled:
                return folder.cancelled_end()
            if folder.has_end():
                return Progress(RunState.FINISHED, "", took=self._took(folder))
            runner = self._started.get(folder.path.name)
            # Its lock is free a moment before the other thread has noted how it ended.
            return folder.lost(runner.wait() if runner else folder.exit_code(), self._took(folder))

    def cancel(self, run: Run) -> None:
        """Send SIGTERM to the runner, which ends its run and completes the folder; a waiting run never starts."""
        folder = self._folder(run)
        with disk_errors():
            if not folder.ordered or (_began(folder) and not self._is_live(run)):
                return
            folder.ask_for_end(self._clock.now())
            runner = self._runner(folder)
            if runner is not None:
                with suppress(psutil.NoSuchProcess):
                    runner.terminate()

    def _is_live(self, run: Run) -> bool:
        return _held(self._folder(run).path / "run.lock")

    def _took(self, folder: OrderFolder) -> BackendTimes:
        """When the runner began, by the process table, and when it ended; by when, where no one waited for its end."""
        with suppress(OSError, ValueError, KeyError):
            began = datetime.fromtimestamp(json.loads(folder.read("process.json"))["started"], UTC)
            ended = self._clock.now()
            with suppress(OSError, ValueError, OverflowError):
                noted = datetime.fromtimestamp(float(folder.read(_ENDED)), UTC)
                ended = max(began, noted) if began - _UNSURE <= noted <= ended else ended
            return BackendTimes(who="the runner on this host", started=began, ended=ended)
        return BackendTimes(who="the runner on this host")

    def _runner(self, folder: OrderFolder) -> psutil.Process | None:
        """The process of the runner, found by number and start time, else by the order in its environment."""
        with suppress(OSError, ValueError, KeyError, TypeError, psutil.Error):
            written = json.loads(folder.read("process.json"))
            process = psutil.Process(int(written["pid"]))
            return process if process.create_time() == written["started"] else None
        return next((item for item in _of_order(folder.path.name) if os.getsid(item.pid) == item.pid), None)

    def _start_next(self) -> None:
        """Start the orders that wait, rehearsals and then the oldest, as long as the host has slots for the next."""
        self._root.mkdir(parents=True, exist_ok=True)
        while True:
            with ExitStack() as held:
                if _lock(held, self._root / "start.lock") is None:
                    return
                orders = [OrderFolder(path.parent) for path in self._root.glob("*/job.json")]
                waiting = [
                    order
                    for order in orders
                    if not order.cancelled and not _began(order) and not _held(order.path / "run.lock")
                ]
                folder = min(
                    waiting,
                    key=lambda order: (not order.is_rehearsal, _order(order)["at"], order.path.name),
                    default=None,
                )
                if folder is None:
                    return
                slots = () if folder.is_rehearsal else self._free_slots(held, folder)
                own = _lock(held, folder.path / "run.lock") if slots is not None else None
                if slots is None or own is None:
                    return
                self._start(folder, (*slots, own))

    def _free_slots(self, held: ExitStack, folder: OrderFolder) -> tuple[int, ...] | None:
        """Slots of the host for an order, locked; None where too few are free."""
        needs: Needs | None = None
        with suppress(OSError, ValidationError):
            needs = Job.model_validate_json(folder.job_file.read_bytes()).required_of_host
        count = self._capacity.slots_of(needs)
        found: list[int] = []
        for name in ("host.lock", *(f"slot-{number}.lock" for number in range(1, self._capacity.slots))):
            slot = _lock(held, self._root / name) if len(found) < count else None
            found += [] if slot is None else [slot]
        return tuple(found) if found and len(found) == count else None

    def _start(self, folder: OrderFolder, locks: tuple[int, ...]) -> None:
        words = folder.call(self._command, _order(folder)["arguments"])
        key = folder.path.name
        with (folder.path / RUNNER_LOG).open("wb") as log:
            runner = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=locks,
                env={**self._environ, ORDER_VARIABLE: key, RECORDER_KEY_VARIABLE: str(self._root / RECORDER_KEY)},
            )
        self._started[key] = runner

        def await_end() -> None:
            """Note when the runner ended, where the service outlives it, and take it out of the process table."""
            code = runner.wait()
            with suppress(OSError):
                folder.write(EXIT_CODE, str(code))
                folder.write(_ENDED, str(self._clock.now().timestamp()))
            self._started.pop(key, None)

        # Only then is its end awaited: a runner that ended at once and was awaited is in no process table, and without
        # a note of its process the order would seem never to have begun.
        try:
            started = psutil.Process(runner.pid).create_time()
            folder.write("process.json", json.dumps({"pid": runner.pid, "started": started}))
        finally:
            threading.Thread(target=await_end, daemon=True).start()


def _began(folder: OrderFolder) -> bool:
    """Whether a runner of the order was started."""
    return folder.has("process.json") or folder.has(RUN_FOLDER)


def _lock(held: ExitStack, file: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """Take a lock without waiting, for as long as `held` or a process that inherits it lives; None when it is taken."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    held.callback(os.close, descriptor)
    return descriptor


def _held(file: Path) -> bool:
    """Whether a living process holds the lock; two that ask at once do not deceive each other."""
    with ExitStack() as stack:
        return file.exists() and _lock(stack, file, fcntl.LOCK_SH) is None


def _order(folder: OrderFolder) -> dict[str, Any]:
    with suppress(ValueError):
        found: dict[str, Any] = json.loads(folder.read("order.json"))
        return found
    return {"at": 0.0, "arguments": []}


def _of_order(key: str) -> Iterator[psutil.Process]:
    """Every process of a run: they carry its key in their environment."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(ORDER_VARIABLE) == key:
                yield process


def _end_all(key: str) -> None:
    """End what a killed runner left behind; none of it may hold the GPUs of the next run."""
    for process in _of_order(key):
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
