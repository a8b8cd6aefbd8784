"""Starts child processes ahead of need, gives each one piece of work, and ends it with everything that it started."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from verl_e2e.adapters.limited.limits import MessageKind, StepError, StepRefusedError, WorkLimits, dumps, loads
from verl_e2e.core.model.errors import LimitError

AnswerQuestion = Callable[[Any], object]
_START_S = 60.0
_INSTALLATION = str(Path(__file__).resolve().parents[3])
_CHILD = "verl_e2e.adapters.limited.child"
# Nothing of the service's environment: its secrets are there.
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


class LimitedProcesses:
    """Runs work by name in child processes, `at_once` at a time; others wait their turn.

    `entry` is `module:function`, called in the child with a name, an argument and a function that asks the parent. A
    child is started before it is needed, does one piece of work and is ended: what a hostile input did to it is gone.
    """

    def __init__(self, entry: str, *, at_once: int = 2) -> None:
        self._entry = entry
        self._at_once = at_once
        self._turns = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        self._idle: deque[_Child] = deque()
        # An owner that is dropped without being closed leaves no child behind.
        weakref.finalize(self, _end_all, self._idle)

    def run(self, name: str, argument: object, limits: WorkLimits, answer: AnswerQuestion) -> Any:
        """What the entry gives for `name` and `argument`; `answer` answers what the child asks meanwhile.

        Raises LimitError when a limit was exceeded, StepError when the work failed, and what `answer` raised if the
        work could not go on without it.
        """
        with self._turns:
            with self._lock:
                child = None
                while self._idle and child is None:
                    child = self._idle.popleft()
                    if not child.alive():
                        child.end()
                        child = None
            child = child or _Child(self._entry)
            try:
                return child.work(name, argument, limits, answer)
            finally:
                child.end()
                with self._lock:
                    if len(self._idle) < self._at_once:
                        self._idle.append(_Child(self._entry))


def _end_all(idle: "deque[_Child]") -> None:
    while idle:
        idle.pop().end()


class _Child:
    """One child process, from its start to its end."""

    def __init__(self, entry: str) -> None:
        self._expired = False
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD, str(theirs.fileno()), entry],
                env={**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, (_INSTALLATION, *sys.path)))},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # A parser's warnings quote its input, which must not appear in our log.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Of its own session, so that ending it ends what it started.
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self._process.poll() is None

    def work(self, name: str, argument: object, limits: WorkLimits, answer: AnswerQuestion) -> Any:
        try:
            ready, _ = self._receive(_START_S, 1024)
        except (EOFError, OSError):
            ready = MessageKind.FAILED
        if ready is not MessageKind.READY:
            raise StepError("a child process did not start; see that memory and processes are left")
        left_s = limits.wall_s
        failure: Exception | None = None
        try:
            self._pipe.send_bytes(dumps((name, argument, limits)))
            while True:
                started = time.monotonic()
                kind, value = self._receive(left_s, limits.message_bytes)
                left_s -= time.monotonic() - started
                if kind is not MessageKind.QUESTION:
                    break
                # What the parent does has limits of its own, and does not count.
                try:
                    reply, failure = dumps((True, answer(value))), None
                except Exception as error:
                    reply, failure = dumps((False, error)), error
                self._pipe.send_bytes(reply)
            match kind:
                case MessageKind.VALUE:
                    return value
                case MessageKind.LIMIT:
                    raise LimitError(str(value[0]), str(value[1]))
                case MessageKind.ASKED if failure is not None:
                    raise failure
                case MessageKind.REFUSED:
                    raise StepRefusedError(str(value))
                case _:
                    text, where = value if isinstance(value, tuple) else (value, "")
                    raise StepError(str(text), str(where))
        except (EOFError, OSError, ValueError, TypeError, pickle.UnpicklingError) as error:
            raise self._death(limits, error) from None

    def end(self) -> None:
        """Kill the child with all that it started, unless it waits: that one ends when its pipe does."""
        self._kill()
        self._pipe.close()
        self._process.wait()

    def _receive(self, within_s: float, most_bytes: int) -> tuple[MessageKind, Any]:
        def expire() -> None:
            self._expired = True
            self._kill()

        timer = threading.Timer(max(within_s, 0.0), expire)
        timer.daemon = True
        timer.start()
        try:
            kind, value = loads(self._pipe.recv_bytes(most_bytes))
            return MessageKind(kind), value
        finally:
            timer.cancel()

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _death(self, limits: WorkLimits, error: Exception) -> Exception:
        """Why the child gave no answer."""
        if self._expired:
            return LimitError("the time that it takes", f"{limits.wall_s:g} s")
        if not isinstance(error, EOFError | ConnectionError):
            return LimitError("its answer", f"{limits.message_bytes >> 20} MiB, or is not an answer")
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            return LimitError("the processor time that it takes", f"{limits.cpu_s} s")
        if code < 0:
            return LimitError("what it needs", f"what a process may take (signal {-code})")
        return StepError(f"a child process ended with {code} and no answer")
