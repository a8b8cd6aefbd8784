"""Starts a program, in a cage where there is one, and knows when the last process of the cage is gone.

Programs before the wrapper have an argument list, a time limit and a process group of their own.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

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
        return Finished(tuple(argv), process.returncode, _tail(out), _tail(err), seconds, timed_out=not ended)


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
