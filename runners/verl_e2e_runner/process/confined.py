"""Starts a program, in a cage where there is one, and knows when the last process of the cage is gone."""

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

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
    if cage is None:
        plain = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            start_new_session=True,
        )
        return Confined(plain)
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            cage.command(tuple(argv), env=env, cwd=cwd, info=write_end),
            env={},
            cwd="/",
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            start_new_session=True,
            pass_fds=(write_end,),
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        return _known(process, file)


def hand_over(stream: int | IO[bytes], cage: Cage | None) -> None:
    """Let the code in the cage open its own output by name, as `echo > /dev/stderr` does."""
    if cage is not None and cage.other_user:
        os.fchown(stream if isinstance(stream, int) else stream.fileno(), cage.uid, cage.uid)


def hand_folder_over(folder: Path, cage: Cage) -> None:
    """Give a folder that the recorder just made to the code under test."""
    if cage.other_user:
        os.chown(folder, cage.uid, cage.uid)
    folder.chmod(0o700)


def hand_file_over(file: Path, cage: Cage) -> None:
    """Give a file that the recorder just made to the code under test."""
    if cage.other_user:
        os.chown(file, cage.uid, cage.uid)
    file.chmod(0o600)


def let_everyone_read(root: Path) -> None:
    """Let the user of a cage read a file, or a folder with all in it, whatever the umask of the runner was.

    Programs stay programs. Links, and what another user owns, stay as they are.
    """
    with suppress(OSError):
        for place in _with_all_below(root):
            mode = place.stat().st_mode
            wanted = mode | (0o555 if place.is_dir() or mode & 0o100 else 0o444)
            if wanted != mode:
                place.chmod(wanted)


def _with_all_below(root: Path) -> Iterator[Path]:
    yield root
    for folder, folders, files in os.walk(root):
        yield from (path for name in (*folders, *files) if not (path := Path(folder, name)).is_symlink())


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
            hand_folder_over(own / made.relative_to(cage.scratch), cage)
    return replace(cage, own_scratch=own)


def _known(process: subprocess.Popen[bytes], info: IO[bytes]) -> Confined:
    if not select.select([info], [], [], _INFO_S)[0]:
        process.kill()
        return Confined(process)
    text = info.read(_INFO_BYTES)
    try:
        pid = int(json.loads(text)["child-pid"])
        return Confined(process, pid, os.pidfd_open(pid))
    except (ValueError, KeyError, OSError):
        # bubblewrap gave up before it had a child, or all of the cage has ended by now.
        return Confined(process)
