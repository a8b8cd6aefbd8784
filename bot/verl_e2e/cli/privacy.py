"""What a process that holds secrets keeps to itself: its files, its environment and its memory."""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

_PR_SET_DUMPABLE = 4
_OTHERS = 0o077


def be_private() -> None:
    """From now on files are made for this user alone, and no other process of the user reads our memory.

    `/proc/PID/environ`, which shows the environment as the process was started with, `/proc/PID/mem` and a debugger
    are shut to all but root. Programs that are started from here are not affected.
    """
    os.umask(_OTHERS)
    # Where the C library has no such call, as on macOS, the files alone are private.
    call = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if call is not None and call(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) was refused")


def forget(names: Iterable[str]) -> None:
    """Take variables out of the environment, so that nothing that is started from here gets them."""
    for name in names:
        os.environ.pop(name, None)


def close_to_others(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Take the rights of group and others from what is ours; gives what was open to them."""
    return tuple(path for path in paths if _close(path))


def _close(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    if found.st_uid != os.geteuid() or path.is_symlink() or not found.st_mode & _OTHERS:
        return False
    path.chmod(found.st_mode & 0o7700)
    return True
