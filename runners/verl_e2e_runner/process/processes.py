"""Start the wrapper and, at its end, everything that it started and nothing else.

Ray's daemons and vLLM's engines leave the wrapper's process group and its session, some rewrite their title
and with it what /proc shows of their environment. So a process is the run's own when it is in the wrapper's
session, or carries the run's nonce in its environment, or is the child of an own process; once seen, it is
remembered by number and start time, so that neither a dead parent nor a reused number deceives.

All of that can be escaped on purpose. In a cage (see `cage`) it cannot: everything descends from the cage's first
process, and the end is the kernel's word, not that of a search.

Interruptions of the runner itself are taken in order, so that the folder is whole and the host clean when it ends.
"""

import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import psutil

from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import EndReason
from verl_e2e_runner.process.cage import Cage
from verl_e2e_runner.process.confined import Confined, hand_over, launch


def utc_now() -> datetime:
    """The machine's wall clock, which anyone who may set it can set; for the record only."""
    return datetime.fromtimestamp(time.clock_gettime(time.CLOCK_REALTIME), UTC)


class Clock(Protocol):
    """A monotonic clock that can also wait."""

    def monotonic(self) -> float:
        """Seconds since an unknown start, never going back."""
        ...

    def wait(self, fd: int | None, timeout_s: float) -> bool:
        """Wait until `fd` can be read (true) or `timeout_s` has passed (false); with no `fd` just wait."""
        ...


class SystemClock:
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
                if identity not in self._own and self._is_own(process, starts, session=not reused):
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
        described = [_describe(process) for process in self._own.values()]
        return tuple(survivor for survivor in described if survivor)

    def end(
        self,
        *,
        grace_s: float,
        clock: Clock,
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
                self._signal(number, signalled)
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
        self.poll()
        self._confined.close()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def _signal(self, number: int, signalled: set[Identity]) -> None:
        # With bubblewrap's own two everything in the cage ends at once: they are spared until the grace is over.
        spared = () if number == signal.SIGKILL or self._confined.init is None else (self.pid, self._confined.init_pid)
        for identity, process in self._own.items():
            if identity not in signalled and process.pid not in spared:
                signalled.add(identity)
                # psutil compares the start time first, so a reused number is never hit.
                with suppress(psutil.Error):
                    process.send_signal(number)

    def _is_own(self, process: psutil.Process, starts: Mapping[int, Identity], *, session: bool) -> bool:
        with suppress(psutil.Error, OSError):
            if session and os.getsid(process.pid) == self.pid:
                return True
            if starts.get(process.ppid()) in self._own:
                return True
            return process.environ().get(RUN_VARIABLE) == self.nonce
        return False


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


def _describe(process: psutil.Process) -> Survivor | None:
    """The process for the record, None when it has ended (a zombie has)."""
    with suppress(psutil.Error), process.oneshot():
        if process.status() == psutil.STATUS_ZOMBIE or not process.is_running():
            return None
        name, command = process.name(), ""
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())[:200]
        return Survivor(process.pid, name, command)
    return None


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
    # The stages as they were entered, with seconds since the folder was opened.
    stages: tuple[tuple[Stage, float], ...] = ()
    # The end, in seconds since the folder was opened.
    ended_s: float = 0.0
