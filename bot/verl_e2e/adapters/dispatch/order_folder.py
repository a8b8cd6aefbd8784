"""The folder of an order, on a disk that this process and the runner share.

`root/<run key>` holds `job.json` (the order), `order-nonce`, `run` (the run folder), `runner.log` (what the runner
printed) and `cancel` (someone asked for its end). Anyone who looks reads these files, so a service that was killed and
started again knows as much as before. Where no host keeps code under test apart, that code can write here too: no link
is followed, which would lead to a file of the service's own host.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from stat import S_ISREG

from pydantic import ValidationError

from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.jobs import REHEARSAL, Job
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.model.record import (
    EVENTS_FILE,
    LOG_FILE,
    MOST_FOLDER_BYTES,
    Event,
    PhaseEvent,
    StageEvent,
    StepEvent,
    read_data,
)
from verl_e2e.core.pulls.job_order import NONCE_FILE
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.text.redact import is_secret, redactor
from verl_e2e.ports import BackendError, Progress

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe opened so does not wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_below(root: Path, *names: str) -> Iterator[int]:
    """The descriptor of a folder below `root`; OSError where it, or one on the way, is a link or no folder.

    What `root` itself is called may lead over links: it is the service's own word.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            deeper = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(folder: int, name: str) -> int:
    """The descriptor of a regular file, which the caller closes; OSError for anything else."""
    descriptor = os.open(name, _FILE, dir_fd=folder)
    if S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", name)


def read_tail(folder: int, name: str) -> bytes:
    """The last bytes of a regular file; OSError for anything else."""
    with os.fdopen(open_regular(folder, name), "rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return opened.read(_TAIL_BYTES)


_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits of a run folder; a larger one is refused as a whole."""

    # Bytes of all files together.
    total_bytes: int = MOST_FOLDER_BYTES
    # The number of files.
    files: int = 5_000
    # The number of parts of a path.
    depth: int = 8
    # The length of a path in characters.
    name_chars: int = 400


CAPS = Caps()


def copy_folder(source: Path, into: Path, caps: Caps = CAPS, *, within: int | None = None) -> bool:
    """Copy the regular files below `source` to the new folder `into`; false when there are none.

    `within` is the descriptor of the folder that a relative `source` lies in.

    Links, pipes and devices are not copied: nothing outside the folder is read. `into` appears whole or not at all;
    an existing one is kept. BackendError when a limit is exceeded.
    """
    if into.exists():
        return True
    arriving = into.with_name(f".{into.name}.arriving-{os.getpid()}")
    shutil.rmtree(arriving, ignore_errors=True)
    arriving.mkdir(parents=True)
    left, count = caps.total_bytes, 0

    def over(what: str) -> BackendError:
        fix = "so nothing was copied; look at it on the host of the run, and run the job again"
        return BackendError(f"the run folder holds {what}, {fix}", final=True)

    try:
        # `fwalk` opens every folder by itself, so that none is a link.
        for root, folders, names, opened in os.fwalk(source, follow_symlinks=False, dir_fd=within):
            folder = Path(root).relative_to(source)
            if len(folder.parts) > caps.depth:
                raise over(f"a path longer or deeper than allowed: {folder.as_posix()[:60]!r}")
            folders.sort()
            for name in sorted(names):
                if not S_ISREG(os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode):
                    continue
                count += 1
                if count > caps.files:
                    raise over(f"more than {caps.files:,} files")
                path = (folder / name).as_posix()
                if len(path) > caps.name_chars or path.count("/") >= caps.depth:
                    raise over(f"a path longer or deeper than allowed: {path[:60]!r}")
                target = arriving / path
                target.parent.mkdir(parents=True, exist_ok=True)
                # It may have become a link or a pipe since it was listed.
                with os.fdopen(open_regular(opened, name), "rb") as read, target.open("xb") as written:
                    while block := read.read(_CHUNK):
                        left -= len(block)
                        if left < 0:
                            raise over(f"more than {caps.total_bytes:,} bytes")
                        written.write(block)
        if not any(arriving.iterdir()):
            return False
        arriving.rename(into)
        return True
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


ORDER_VARIABLE = "VERL_E2E_ORDER"
RECORDER_KEY = "recorder.key"
# The public half of the key by which a recorder signs run folders, below the back end's root.
PUBLIC_KEYS = f"{RECORDER_KEY}.pub"
RUN_FOLDER = "run"
# A note: someone asked for the end of the run.
CANCEL_NOTE = "cancel"
RUNNER_LOG = "runner.log"
# A note: the exit code of the runner, where a shell of ours saw it end.
EXIT_CODE = "exit-code"
_TAIL_BYTES = 64 * 1024
# SIGKILL, as Python and as a shell tells it.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
# A job must not see the settings of the service.
_OURS = ("GITHUB_", "VERL_E2E_", "DATABASE_", "ACTIONS_")

OpenLog = Callable[[Path], Iterator[bytes]]


def follow_ups(run: Run) -> tuple[str, ...]:
    """The options of `run` for follow-up runs: those of the level, and the merge base when it is known."""
    if run.rehearsal is not None:
        return ()
    return ("--follow-ups", *(("--baseline", run.merge_base) if run.merge_base else ()))


def ordered_job(run: Run) -> Job:
    """The job of a run; BackendError, final, where there is none."""
    if run.job is None:
        raise BackendError(f"run {run.key[:12]} has no job; plan it again", final=True)
    return run.job


def safe_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job may see of the service's environment: no secrets, and none of the service's own settings."""
    return {name: value for name, value in environ.items() if not name.startswith(_OURS) and not is_secret(name, value)}


@dataclass(frozen=True, slots=True)
class OrderFolder:
    """The folder of one order."""

    path: Path
    """`root/<run key>`."""

    @classmethod
    def of(cls, root: Path, key: str) -> "OrderFolder":
        """The folder of a run's key below the root; BackendError for what is not a run key."""
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            raise BackendError(f"{key[:70]!r} is not a run key", final=True)
        return cls(root / key)

    @property
    def job_file(self) -> Path:
        """The job, written last: with it the order is whole."""
        return self.path / "job.json"

    @property
    def run_folder(self) -> Path:
        """What the runner makes."""
        return self.path / RUN_FOLDER

    @property
    def is_rehearsal(self) -> bool:
        """Whether it holds a rehearsal, which needs no GPU."""
        with suppress(ValueError, AttributeError):
            return bool(json.loads(self.read("order.json")).get("job_id") == REHEARSAL)
        return False

    @property
    def ordered(self) -> bool:
        """Whether the order is whole."""
        return self.job_file.exists()

    @property
    def cancelled(self) -> bool:
        """Whether someone asked for the end of the run."""
        return self.has(CANCEL_NOTE)

    def has(self, name: str) -> bool:
        """Whether a file or folder lies in it."""
        return (self.path / name).exists()

    def read(self, name: str) -> str:
        """The start of a small file, `NAME` or `FOLDER/NAME`; empty where there is none."""
        with suppress(OSError), self._open(name) as descriptor:
            return os.read(descriptor, _TAIL_BYTES).decode(errors="replace")
        return ""

    def exit_code(self) -> int | None:
        """What was noted of how the runner ended, None where nothing was."""
        with suppress(ValueError):
            return int(self.read(EXIT_CODE))
        return None

    def write(self, name: str, text: str, *, once: bool = False) -> None:
        """Write a file, whole or not at all; `once`: only where there is none, and no folder of that name."""
        temporary = f".{name}.{secrets.token_hex(8)}"
        with self._folder() as folder:
            with os.fdopen(os.open(temporary, _NEW, 0o666, dir_fd=folder), "w", encoding="utf-8") as opened:
                opened.write(text)
            if not once:
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                return
            try:
                with suppress(FileExistsError):
                    os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            finally:
                os.unlink(temporary, dir_fd=folder)

    def write_order(self, run: Run) -> None:
        """Write the order once; BackendError, final, for a run without a job."""
        if run.order is None:
            raise BackendError(f"run {run.key[:12]} has no job; plan it again", final=True)
        self.path.mkdir(parents=True, exist_ok=True)
        if self.ordered:
            return
        order = {"job_id": run.job_id, "arguments": [*follow_ups(run)], "at": run.created.timestamp()}
        self.write("order.json", json.dumps(order))
        if run.nonce:
            self.write(NONCE_FILE, run.nonce)
        self.write(self.job_file.name, _job_text(run))

    def digest_line(self, run: Run) -> str:
        """What `sha256sum --check` reads: the digest of `job.json` as this order writes it, and its name."""
        return f"{hashlib.sha256(_job_text(run).encode()).hexdigest()}  {self.job_file.name}"

    def call(self, command: Sequence[str], arguments: Sequence[str]) -> list[str]:
        """The words that run the order; `command` is how `verl-e2e` is called."""
        words = [*command, "run", "--job", str(self.job_file), "--out", str(self.run_folder)]
        return [*words, "--work", str(self.path.parent / "work"), *arguments]

    def ask_for_end(self, now: datetime) -> None:
        """Note when someone first asked for the end of the run."""
        if not self.cancelled:
            self.write(CANCEL_NOTE, str(now.timestamp()))

    def asked_for_s(self, now: datetime) -> float:
        """Seconds since someone asked for the end, 0 where that cannot be read."""
        with suppress(ValueError):
            return now.timestamp() - float(self.read(CANCEL_NOTE))
        return 0.0

    def log(self, open_log: OpenLog) -> Iterator[bytes]:
        """The log of the run so far, else the output of the runner before the log exists."""
        text = False
        for name in (f"{RUN_FOLDER}/{LOG_FILE}", RUNNER_LOG):
            if text:
                return
            with suppress(OSError), self._open(name) as descriptor:
                for block in open_log(Path(f"/dev/fd/{descriptor}")):
                    text = True
                    yield block

    def copy_run(self, into: Path) -> bool:
        """Copy the run folder; false when there is none. BackendError when a limit is exceeded or the disk fails."""
        if self.path.is_symlink() or not self.run_folder.is_dir():
            return False
        with disk_errors(), self._folder() as folder:
            return copy_folder(Path(RUN_FOLDER), into, within=folder)

    def has_end(self) -> bool:
        """Whether the runner wrote how the run ended."""
        return any(event.kind == "ended" for event in self._last_events())

    def where(self) -> str:
        """How far the run is, by its last events."""
        for event in self._last_events():
            if event.kind == "stage" and (entered := read_data(event, StageEvent)):
                return f"stage {entered.stage[:60]}"
            if event.kind == "step" and (trained := read_data(event, StepEvent)):
                return f"step {trained.step}"
            if event.kind == "phase" and (phase := read_data(event, PhaseEvent)):
                return f"phase {phase.name[:60]}"
        return "it has just begun"

    def lost(self, exit_code: int | None, took: BackendTimes | None = None) -> Progress:
        """What a run came to that ended without its own word; `exit_code` is its runner's, None where no one saw it.

        One that left no folder never began, unless its runner was killed.
        """
        killed = exit_code in _KILLED
        text = redactor().redact_text(self._tail(RUNNER_LOG).decode(errors="replace")).strip().splitlines()
        last = f"; its last words: {text[-1][:200]}" if text else ""
        if killed or self.run_folder.is_dir():
            what = f"the runner was killed and could not say how the run ended{last}; free memory on the host"
            end = EngineEnd.RUNNER_KILLED if killed else EngineEnd.RUNNER_ENDED
        else:
            what, end = f"the runner left no folder{last}; fix that on the host", EngineEnd.NOT_STARTED
        return Progress(RunState.LOST, f"{what}, then rerun", took=took, end=end)

    def gone(self, run: Run) -> Progress:
        """What is known of a run whose order is no longer there."""
        what = f"its folder below {self.path.parent} is gone: nothing is known of the run; run the job again"
        state = RunState.CANCELLED if run.state is RunState.CANCELLING else RunState.LOST
        return Progress(state, what, end=EngineEnd.FORGOTTEN)

    def cancelled_end(self) -> Progress:
        """How a run ended that someone cancelled."""
        if self.run_folder.is_dir():
            return Progress(RunState.CANCELLED, "it was cancelled; its folder holds the results so far")
        return Progress(RunState.CANCELLED, "it was cancelled before it began")

    def _last_events(self) -> list[Event]:
        """The events at the end of the run folder, newest first; a line that is cut is left out."""
        events = []
        for line in reversed(self._tail(EVENTS_FILE, RUN_FOLDER).splitlines()):
            with suppress(ValidationError):
                events.append(Event.model_validate_json(line))
        return events

    def _tail(self, name: str, *folders: str) -> bytes:
        with suppress(OSError), self._folder(*folders) as folder:
            return read_tail(folder, name)
        return b""

    def _folder(self, *names: str) -> AbstractContextManager[int]:
        return open_below(self.path.parent, self.path.name, *names)

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        *folders, file = name.split("/")
        with self._folder(*folders) as folder:
            descriptor = open_regular(folder, file)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _job_text(run: Run) -> str:
    return f"{run.order.model_dump_json(indent=2)}\n" if run.order else ""


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn an error of the disk into a BackendError that a person can fix."""
    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise BackendError(f"{place}{error.strerror}; free space there, or make it writable") from error
