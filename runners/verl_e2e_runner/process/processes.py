"""Starts programs, in a cage where there is one, and ends them with everything that they started and nothing else.

Programs before the wrapper have an argument list, a time limit and a process group of their own.

Of the wrapper, Ray's daemons and vLLM's engines leave the process group and the session, some rewrite their title
and with it what /proc shows of their environment. So a process is the run's own when it is in the wrapper's
session, or carries the run's nonce in its environment, or is the child of an own process; once seen, it is
remembered by number and start time, so that neither a dead parent nor a reused number deceives.

All of that can be escaped on purpose. In a cage (see `cage`) it cannot: everything descends from the cage's first
process, and the end is the kernel's word, not that of a search.

Interruptions of the runner itself are taken in order, so that the folder is whole and the host clean when it ends.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

import psutil

from verl_e2e.core.model.record import EndReason
from verl_e2e_runner.process.cage import Cage

# bubblewrap writes its process number before it mounts anything.
_INFO_S = 10.0
_INFO_BYTES = 4096


@dataclass(slots=True)
class Confined:
    """A started program; the fields on `init` are None without a cage."""

    process: subprocess.Popen[bytes]
    # The cage's first process.
    init_pid: int | None = None
    # A file descriptor of that process, which stays true when its number is used again.
    init: int | None = None

    def gone(self, timeout_s: float) -> bool:
        """Whether no process of the cage is left, waiting at most `timeout_s` for it; always true without a cage.

        The kernel reports the end of a process namespace's first process only after all others of it have ended.
        """
        if self.init is None:
            return True
        poll = select.poll()
        poll.register(self.init, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return False
        self.close()
        return True

    def kill(self) -> None:
        """End every process of the cage at once; nothing without one."""
        if self.init is None:
            return
        with suppress(OSError):
            signal.pidfd_send_signal(self.init, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptor of the cage; a second call does nothing."""
        if self.init is not None:
            os.close(self.init)
            self.init = None


def launch(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    cage: Cage | None,
    stdin: int | IO[bytes],
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
) -> Confined:
    """Start `argv` in a session of its own, in the cage if there is one; OSError when it cannot be started."""
    options: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    options |= {"bufsize": 0, "start_new_session": True}
    if cage is None:
        return Confined(subprocess.Popen(list(argv), env=dict(env), cwd=cwd, **options))
    read_end, write_end = os.pipe()
    try:
        command = cage.command(tuple(argv), env=env, cwd=cwd, info=write_end)
        process = subprocess.Popen(command, env={}, cwd="/", pass_fds=(write_end,), **options)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        if not select.select([file], [], [], _INFO_S)[0]:
            process.kill()
            return Confined(process)
        text = file.read(_INFO_BYTES)
    try:
        pid = int(json.loads(text)["child-pid"])
        return Confined(process, pid, os.pidfd_open(pid))
    except (ValueError, KeyError, OSError):
        # bubblewrap gave up before it had a child, or all of the cage has ended by now.
        return Confined(process)


def hand_over(stream: int | IO[bytes], cage: Cage | None) -> None:
    """Let the code in the cage open its own output by name, as `echo > /dev/stderr` does."""
    if cage is not None and cage.other_user:
        os.fchown(stream if isinstance(stream, int) else stream.fileno(), cage.uid, cage.uid)


def hand_path_over(path: Path, cage: Cage) -> None:
    """Give a folder or a file that the recorder just made to the code under test."""
    if cage.other_user:
        os.chown(path, cage.uid, cage.uid)
    path.chmod(0o700 if path.is_dir() else 0o600)


def let_everyone_read(root: Path) -> None:
    """Let the user of a cage read a file, or a folder with all in it, whatever the umask of the runner was.

    Programs stay programs. Links, and what another user owns, stay as they are.
    """
    with suppress(OSError):
        places = [root]
        for folder, folders, files in os.walk(root):
            places += [path for name in (*folders, *files) if not (path := Path(folder, name)).is_symlink()]
        for place in places:
            mode = place.stat().st_mode
            wanted = mode | (0o555 if place.is_dir() or mode & 0o100 else 0o444)
            if wanted != mode:
                place.chmod(wanted)


def with_own_scratch(cage: Cage | None, name: str) -> Cage | None:
    """The cage for one program of a run: all that it writes lies in a folder of its own, which no other program sees.

    The folder begins as a copy of the run's, which holds nothing but what the recorder made while only programs with
    one of their own have run. A second call with the same name begins again. Where there is no cage there is none.
    """
    if cage is None:
        return None
    own = cage.scratch.with_name(f"{cage.scratch.name}-{name}")
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(cage.scratch, own, symlinks=True)
    for made in cage.scratch.rglob("*"):
        if made.is_dir() and not made.is_symlink() and made.stat().st_uid == cage.uid:
            hand_path_over(own / made.relative_to(cage.scratch), cage)
    return replace(cage, own_scratch=own)


KEPT_BYTES = 1 << 20
_GONE_S = 10.0
_WATCH_S = 0.2


@dataclass(frozen=True, slots=True)
class FinishedProgram:
    """A program that ended: exit code (negative: a signal), the last MiB of its output, and its wall time.

    `timed_out` is true when the time limit ended it; `code` is 127 when it could not be started at all.
    """

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    @property
    def last_error(self) -> str:
        """The last line of stderr (of stdout when that is empty) with anything on it, at most 400 characters."""
        for text in (self.stderr, self.stdout):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1][:400]
        return "no output"

    @property
    def ending(self) -> str:
        """How it ended, for a sentence: `exit code 2`, `signal 9`, `no end within 30 s`."""
        if self.timed_out:
            return f"no end within {self.seconds:.0f} s"
        return f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"


def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_s: float,
    stdin: str = "",
    cage: Cage | None = None,
    watch: Callable[[int], bool] | None = None,
) -> FinishedProgram:
    """Run `argv` to its end in a process group of its own; at the time limit the whole group is killed.

    With a `cage` it runs in there, and no process of it is left when this returns. `watch` is asked again and again
    with the number of the process that was started, and ends it, as the time limit would, when it answers true.
    """
    started = time.monotonic()
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        for stream in (given, out, err):
            hand_over(stream, cage)
        try:
            confined = launch(argv, env=env, cwd=cwd, cage=cage, stdin=given, stdout=out, stderr=err)
        except OSError as error:
            return FinishedProgram(tuple(argv), 127, "", str(error), time.monotonic() - started)
        process, ended = confined.process, False
        try:
            ended = _waited(process, timeout_s, watch)
        finally:
            # Nothing of its group or its cage is left either way.
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            confined.kill()
            confined.gone(_GONE_S)
            confined.close()
        seconds = time.monotonic() - started
        return FinishedProgram(tuple(argv), process.returncode, _tail(out), _tail(err), seconds, timed_out=not ended)


def _waited(process: subprocess.Popen[bytes], timeout_s: float, watch: Callable[[int], bool] | None) -> bool:
    """Whether the process ends in time, and before it is to be stopped."""
    # Not `process.wait(timeout)`: where a signal's exception comes between its lock and its `try`, the lock is held for
    # ever, and the wait for the killed process never ends.
    ended = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while watch is None or not watch(process.pid):
            left_s = max(0.0, deadline - time.monotonic())
            if poll.poll(1000 * (left_s if watch is None else min(left_s, _WATCH_S))):
                process.wait()
                return True
            if time.monotonic() >= deadline:
                break
        return False
    finally:
        os.close(ended)


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - KEPT_BYTES))
    return file.read().decode(errors="replace")


def utc_now() -> datetime:
    """The machine's wall clock, which anyone who may set it can set; for the record only."""
    return datetime.fromtimestamp(time.clock_gettime(time.CLOCK_REALTIME), UTC)


class MonotonicClock(Protocol):
    """A monotonic clock that can also wait."""

    def monotonic(self) -> float:
        """Seconds since an unknown start, never going back."""
        ...

    def wait(self, fd: int | None, timeout_s: float) -> bool:
        """Wait until `fd` can be read (true) or `timeout_s` has passed (false); with no `fd` just wait."""
        ...


class HostClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.monotonic()

    def wait(self, fd: int | None, timeout_s: float) -> bool:
        """Sleep in `poll`, at no cost of processor time."""
        timeout_s = max(0.0, timeout_s)
        if fd is None:
            time.sleep(timeout_s)
            return False
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))


# A terminal that goes away sends SIGHUP; a runner started with nohup ignores it and goes on.
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def received_signals() -> Iterator[list[str]]:
    """Names of the SIGINT, SIGTERM and SIGHUP that this process gets meanwhile, instead of being ended by them."""
    received: list[str] = []
    with _handled(received.append):
        yield received


@contextmanager
def interruptible() -> Iterator[None]:
    """The first of these signals raises KeyboardInterrupt with its name; later ones do not cut the clean-up short."""
    received: list[str] = []

    def interrupt(name: str) -> None:
        received.append(name)
        if len(received) == 1:
            raise KeyboardInterrupt(name)

    with _handled(interrupt):
        yield


@contextmanager
def _handled(take: Callable[[str], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    ours = [number for number in _NUMBERS if number != signal.SIGHUP or before[number] is not signal.SIG_IGN]
    for number in ours:
        signal.signal(number, lambda got, _: take(signal.Signals(got).name))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


RUN_VARIABLE = "VERL_E2E_RUN"

_PIPE_BYTES = 1 << 20
_LOOK_S = 0.1
_KILL_S = 5.0
_BURIED_S = 1.0

Identity = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process of the run that did not end."""

    pid: int
    name: str
    # The start of its command line.
    command: str


@dataclass(slots=True)
class WrapperProcess:
    """The wrapper and all that it started; made by `start`."""

    nonce: str
    output: int
    _confined: Confined
    _own: dict[Identity, psutil.Process] = field(default_factory=dict)
    _foreign: set[Identity] = field(default_factory=set)
    _started: float | None = None

    @property
    def pid(self) -> int:
        """The wrapper's process number, also that of its session."""
        return self._confined.process.pid

    def poll(self) -> int | None:
        """The wrapper's exit code (negative: a signal), None while it runs; never waits."""
        return self._confined.process.poll()

    def observe(self) -> None:
        """Look for processes of the run and remember them; call it every few seconds."""
        alive: dict[Identity, psutil.Process] = {}
        for pid in psutil.pids():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                alive[pid, process.create_time()] = process
        self._own = {identity: process for identity, process in self._own.items() if identity in alive}
        self._foreign &= alive.keys()
        starts = {pid: (pid, started) for pid, started in alive}
        fresh = {identity: process for identity, process in alive.items() if identity not in self._foreign}
        reused = starts.get(self.pid, (0, self._started))[1] != self._started
        found = True
        while found:
            found = False
            for identity, process in fresh.items():
                if identity in self._own:
                    continue
                with suppress(psutil.Error, OSError):
                    if (
                        (not reused and os.getsid(process.pid) == self.pid)
                        or starts.get(process.ppid()) in self._own
                        or process.environ().get(RUN_VARIABLE) == self.nonce
                    ):
                        self._own[identity] = process
                        found = True
        self._foreign |= fresh.keys() - self._own.keys()

    def numbers(self) -> frozenset[int]:
        """The process numbers of the run now."""
        self.observe()
        return frozenset(pid for pid, _ in self._own)

    def alive(self) -> tuple[Survivor, ...]:
        """Those processes of the run that are running now."""
        self.poll()
        self.observe()
        found = []
        for process in self._own.values():
            # One that has ended is not there: a zombie has.
            with suppress(psutil.Error), process.oneshot():
                if process.status() != psutil.STATUS_ZOMBIE and process.is_running():
                    name, command = process.name(), ""
                    with suppress(psutil.Error):
                        command = " ".join(process.cmdline())[:200]
                    found.append(Survivor(process.pid, name, command))
        return tuple(found)

    def end(
        self,
        *,
        grace_s: float,
        clock: MonotonicClock,
        wait: Callable[[float], object] | None = None,
        hurry: Callable[[], bool] = lambda: False,
    ) -> tuple[Survivor, ...]:
        """SIGTERM to every process of the run, after `grace_s` SIGKILL; what is left after that comes back.

        `wait(seconds)` lets time pass (the watch reads the output meanwhile); `hurry` cuts the grace short.
        """
        wait = wait or (lambda seconds: clock.wait(None, seconds))
        signalled: set[Identity] = set()
        for number, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
            deadline = clock.monotonic() + seconds
            while self.alive():
                # With bubblewrap's own two all in the cage ends at once: they are spared until the grace is over.
                caged = number == signal.SIGTERM and self._confined.init is not None
                spared = (self.pid, self._confined.init_pid) if caged else ()
                for identity, process in self._own.items():
                    if identity not in signalled and process.pid not in spared:
                        signalled.add(identity)
                        # psutil compares the start time first, so a reused number is never hit.
                        with suppress(psutil.Error):
                            process.send_signal(number)
                if clock.monotonic() >= deadline or (number == signal.SIGTERM and hurry()):
                    break
                wait(_LOOK_S)
            signalled.clear()
        self._confined.kill()
        if not self._confined.gone(_KILL_S):
            return self.alive() or (Survivor(self.pid, "bwrap", "the cage did not end"),)
        return self.alive()

    def close(self) -> None:
        """Close our end of the pipe, after the end; a child that ended since the last look is buried."""
        if self.poll() is None:
            # One that is about to end has no name any more, and cannot be buried yet.
            _waited(self._confined.process, _BURIED_S, None)
        self._confined.close()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1


def start(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, nonce: str, cage: Cage | None = None
) -> WrapperProcess:
    """Start `argv` in a session of its own, its output and errors in one pipe; OSError when it cannot start.

    `nonce` marks the environment of everything that the run starts and must be unlike that of any other run.
    """
    # Ray and vLLM rename their processes over the environment that /proc shows, unless they are set not to.
    marked = {**env, RUN_VARIABLE: nonce, "SPT_NOENV": "1"}
    output, write_end = os.pipe()
    hand_over(write_end, cage)
    with suppress(OSError):
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    try:
        confined = launch(
            argv, env=marked, cwd=cwd, cage=cage, stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.STDOUT
        )
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(write_end)
    process = WrapperProcess(nonce, output, confined)
    with suppress(psutil.Error):
        process._started = psutil.Process(confined.process.pid).create_time()
    process.observe()
    return process


@dataclass(frozen=True, slots=True)
class Ended:
    """How the wrapper ended."""

    reason: EndReason
    # Of a wrapper that ended by itself, negative for a signal. None for a run that we ended, whose code says nothing.
    exit_code: int | None
    # One sentence, empty for an ordinary exit.
    note: str = ""
    # Processes that could not be ended.
    survivors: tuple[Survivor, ...] = ()
