"""How the runner starts a program before the wrapper: argument list, time limit, own process group."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from verl_e2e_runner.process.cage import Cage
from verl_e2e_runner.process.confined import Confined, hand_over, launch

KEPT_BYTES = 1 << 20
_GONE_S = 10.0
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Finished:
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


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_s: float,
    stdin: str = "",
    cage: Cage | None = None,
    watch: Callable[[int], bool] | None = None,
) -> Finished:
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
            return Finished(tuple(argv), 127, "", str(error), time.monotonic() - started)
        timed_out = not _ends_within(confined, timeout_s, watch)
        process = confined.process
        seconds = time.monotonic() - started
        return Finished(tuple(argv), process.returncode, _tail(out), _tail(err), seconds, timed_out)


def _ends_within(confined: Confined, timeout_s: float, watch: Callable[[int], bool] | None) -> bool:
    """Whether the program ends by itself in time; nothing of its group or its cage is left either way."""
    process = confined.process
    try:
        return _waited(process, timeout_s, watch)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        confined.kill()
        confined.gone(_GONE_S)
        confined.close()


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
            if poll.poll(1000 * (left_s if watch is None else min(left_s, _LOOK_S))):
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
