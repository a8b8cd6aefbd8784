"""Run jobs on this machine while we wait or are restarted: `verl-e2e run`, detached, one at a time.

Everything about a run lies below `root/<run key>`: `job.json` (the order), `run` (the run folder), `runner.log` (what
the runner printed), `process.json` (its number and start time), `cancel` (someone asked for its end). Anyone who looks
reads these files and the process table, so a service that was killed and started again knows as much as before.

Two locks on files, inherited by the runner and released by the system with its last breath, hold what no file can:
`root/host.lock` keeps a second run off the host, `root/<run key>/run.lock` keeps the same order from being started
twice. A run that waits for the host is started by whichever call comes first after it is free.
"""

import fcntl
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from verl_e2e.adapters.dispatch import COMMAND
from verl_e2e.adapters.dispatch.copying import CAPS, Caps, copy_folder
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.events import PhaseEvent, StageEvent, StepEvent, read_data
from verl_e2e.core.model.record import EVENTS_FILE, LOG_FILE, Event
from verl_e2e.core.pulls.job_order import NONCE_FILE
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.text.secret_names import is_secret
from verl_e2e.ports import BackendError, Clock, Progress

ORDER_VARIABLE = "VERL_E2E_ORDER"
KEY_VARIABLE = "VERL_E2E_RECORDER_KEY"
_KEY = "recorder.key"
# The public half of the key by which this machine's recorder signs run folders, below the backend's root.
PUBLIC_KEYS = f"{_KEY}.pub"
RUN_FOLDER = "run"
RUNNER_LOG = "runner.log"
_TAIL_BYTES = 64 * 1024
# A job must not see the settings of the service.
_OURS = ("GITHUB_", "VERL_E2E_", "DATABASE_", "ACTIONS_")


def follow_ups(run: Run) -> tuple[str, ...]:
    """The options of `run` for follow-up runs: those of the level, and the merge base when it is known."""
    return ("--follow-ups", *(("--baseline", run.merge_base) if run.merge_base else ()))


class LocalBackend:
    """One GPU host that is this machine.

    `environ` is the environment to hand down, without secrets and without the service's own settings; `open_log` reads
    a compressed log; `arguments` are more words for `verl-e2e run`; `command` is how `verl-e2e` is called.
    A run that does not end within `grace_s` of being asked to is ended with everything it started.
    """

    def __init__(
        self,
        root: Path,
        *,
        environ: Mapping[str, str],
        clock: Clock,
        open_log: Callable[[Path], Iterator[bytes]],
        arguments: Callable[[Run], tuple[str, ...]] = follow_ups,
        command: Sequence[str] = COMMAND,
        grace_s: float = 300.0,
        caps: Caps = CAPS,
    ) -> None:
        self._root = root.resolve()
        self._environ = {name: value for name, value in environ.items() if _may_pass(name, value)}
        self._clock = clock
        self._open_log = open_log
        self._arguments = arguments
        self._command = tuple(command)
        self._grace_s = grace_s
        self._caps = caps

    def submit(self, run: Run) -> str:
        """Write the order to disk once and start it if the host is free; the handle is the run's key."""
        if run.job is None:
            raise BackendError(f"run {run.key[:12]} has no job; plan it again", final=True)
        folder = self._folder(run.key)
        with _written():
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "job.json").exists():
                words = [*self._arguments(run)]
                order = {"job_id": run.job_id, "arguments": words, "at": run.created.timestamp()}
                _write(folder / "order.json", json.dumps(order))
                if run.nonce:
                    _write(folder / NONCE_FILE, run.nonce)
                _write(folder / "job.json", run.job.model_dump_json(indent=2) + "\n")
            self._start_next()
        return run.key

    def find(self, run: Run) -> str:
        """The run's key when its order is on this host, else empty."""
        return run.key if (self._folder(run.key) / "job.json").exists() else ""

    def end_doubles(self, run: Run) -> None:
        """Nothing to end: there is one folder for each key."""

    def poll(self, run: Run) -> Progress:
        """Where the run stands, by its files and the process table; starts what waits when the host is free."""
        folder = self._folder(run.handle or run.key)
        with _written():
            self._start_next()
            return self._progress(folder, run)

    def cancel(self, run: Run) -> None:
        """Send SIGTERM to the runner, which ends its run and completes the folder; a waiting run never starts."""
        folder = self._folder(run.handle or run.key)
        with _written():
            if not (folder / "job.json").exists() or self._ended(folder):
                return
            if not (folder / "cancel").exists():
                _write(folder / "cancel", str(self._clock.now().timestamp()))
            runner = self._runner(folder)
            if runner is not None:
                with suppress(psutil.NoSuchProcess):
                    runner.terminate()

    def log(self, run: Run) -> Iterator[bytes]:
        """The log of the run so far, else the output of the runner before the log exists."""
        folder = self._folder(run.handle or run.key)
        text = False
        for file in (folder / RUN_FOLDER / LOG_FILE, folder / RUNNER_LOG):
            if file.is_file() and not text:
                for block in self._open_log(file):
                    text = True
                    yield block

    def artifacts(self, run: Run, into: Path) -> bool:
        """Copy the run folder of a run that has ended; false while it runs and when it left none."""
        folder = self._folder(run.handle or run.key)
        source = folder / RUN_FOLDER
        if not source.is_dir() or _held(folder / "run.lock"):
            return False
        with _written():
            return copy_folder(source, into, self._caps)

    def unattested(self, run: Run) -> str:  # noqa: ARG002  (the port's signature)
        """Always empty: the recorder on this host wrote the folder itself."""
        return ""

    def _folder(self, key: str) -> Path:
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            raise BackendError(f"{key[:70]!r} is not a run key", final=True)
        return self._root / key

    def _ended(self, folder: Path) -> bool:
        begun = (folder / "process.json").exists() or (folder / RUN_FOLDER).exists()
        return begun and not _held(folder / "run.lock")

    def _progress(self, folder: Path, run: Run) -> Progress:
        cancelled = (folder / "cancel").exists()
        if not (folder / "job.json").exists():
            gone = f"its folder below {self._root} is gone: nothing is known of the run; run the job again"
            return Progress(RunState.CANCELLED if run.state is RunState.CANCELLING else RunState.LOST, gone)
        if _held(folder / "run.lock"):
            return self._alive(folder, cancelled=cancelled)
        if not self._ended(folder):
            if cancelled:
                return Progress(RunState.CANCELLED, "it was cancelled before it began")
            return Progress(RunState.SUBMITTED, "it waits for an earlier run on this host")
        _end_all(folder.name)
        if cancelled:
            return Progress(RunState.CANCELLED, "it was cancelled; its folder holds the results so far")
        if any(event.kind == "ended" for event in _last_events(folder)):
            return Progress(RunState.FINISHED, "", took=self._took(folder))
        return Progress(RunState.LOST, _why_lost(folder))

    def _took(self, folder: Path) -> BackendTimes:
        """When the runner began, by the process table, and by when it had ended."""
        with suppress(OSError, ValueError, KeyError):
            began = datetime.fromtimestamp(json.loads((folder / "process.json").read_text())["started"], UTC)
            return BackendTimes(who="the runner on this host", started=began, ended=self._clock.now())
        return BackendTimes(who="the runner on this host")

    def _alive(self, folder: Path, *, cancelled: bool) -> Progress:
        if not cancelled:
            return Progress(RunState.RUNNING, _where(_last_events(folder)))
        with suppress(ValueError, OSError):
            asked = float((folder / "cancel").read_text())
            if self._clock.now().timestamp() - asked > self._grace_s:
                self._kill(folder)
        return Progress(RunState.CANCELLING, "it is ending its run and completing the folder")

    def _kill(self, folder: Path) -> None:
        runner = self._runner(folder)
        if runner is not None:
            with suppress(psutil.NoSuchProcess):
                runner.kill()
        _end_all(folder.name)

    def _runner(self, folder: Path) -> psutil.Process | None:
        """The process of the runner, found by number and start time, else by the order in its environment."""
        with suppress(OSError, ValueError, KeyError, TypeError, psutil.Error):
            written = json.loads((folder / "process.json").read_text())
            process = psutil.Process(int(written["pid"]))
            return process if process.create_time() == written["started"] else None
        return next((item for item in _of_order(folder.name) if os.getsid(item.pid) == item.pid), None)

    def _start_next(self) -> None:
        """Start the oldest order that waits, if no run holds the host."""
        self._root.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            host = _lock(held, self._root / "host.lock")
            folder = host is not None and next(iter(self._waiting()), None)
            if not folder or host is None:
                return
            own = _lock(held, folder / "run.lock")
            if own is not None:
                self._start(folder, (host, own))

    def _waiting(self) -> list[Path]:
        """Orders that never began and that no one cancelled, oldest first."""
        orders = [path.parent for path in self._root.glob("*/job.json")]
        waiting = [order for order in orders if not (order / "cancel").exists() and not self._begun(order)]
        return sorted(waiting, key=lambda folder: (_order(folder)["at"], folder.name))

    def _begun(self, folder: Path) -> bool:
        return any((folder / name).exists() for name in ("process.json", RUN_FOLDER)) or _held(folder / "run.lock")

    def _start(self, folder: Path, locks: tuple[int, ...]) -> None:
        words = [*self._command, "run", "--job", str(folder / "job.json"), "--out", str(folder / RUN_FOLDER)]
        words += ["--work", str(self._root / "work"), *_order(folder)["arguments"]]
        with (folder / RUNNER_LOG).open("wb") as log:
            runner = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=locks,
                env={**self._environ, ORDER_VARIABLE: folder.name, KEY_VARIABLE: str(self._root / _KEY)},
            )
        # A child that no one waits for stays in the process table; the service may well outlive the run.
        threading.Thread(target=runner.wait, daemon=True).start()
        with suppress(psutil.NoSuchProcess):
            started = psutil.Process(runner.pid).create_time()
            _write(folder / "process.json", json.dumps({"pid": runner.pid, "started": started}))


def _may_pass(name: str, value: str) -> bool:
    return not name.startswith(_OURS) and not is_secret(name, value)


@contextmanager
def _written() -> Iterator[None]:
    """Turn an error of the disk into a BackendError that a person can fix."""
    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise BackendError(f"{place}{error.strerror}; free space there, or make it writable") from error


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


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


def _order(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((folder / "order.json").read_text())
        return found
    return {"at": 0.0, "arguments": []}


def _tail(file: Path) -> bytes:
    with suppress(OSError), file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return opened.read(_TAIL_BYTES)
    return b""


def _last_events(folder: Path) -> list[Event]:
    """The events at the end of the run folder, newest first; a line that is cut is left out."""
    events = []
    for line in reversed(_tail(folder / RUN_FOLDER / EVENTS_FILE).splitlines()):
        with suppress(ValidationError):
            events.append(Event.model_validate_json(line))
    return events


def _where(events: list[Event]) -> str:
    for event in events:
        if event.kind == "stage" and (entered := read_data(event, StageEvent)):
            return f"stage {entered.stage[:60]}"
        if event.kind == "step" and (trained := read_data(event, StepEvent)):
            return f"step {trained.step}"
        if event.kind == "phase" and (phase := read_data(event, PhaseEvent)):
            return f"phase {phase.name[:60]}"
    return "it has just begun"


def _why_lost(folder: Path) -> str:
    text = _tail(folder / RUNNER_LOG).decode(errors="replace").strip().splitlines()
    last = f"; its last words: {text[-1][:200]}" if text else ""
    if (folder / RUN_FOLDER).is_dir():
        return f"the runner was killed and could not say how the run ended{last}; free memory on the host, then rerun"
    return f"the runner left no folder{last}; fix that on the host, then rerun"


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
