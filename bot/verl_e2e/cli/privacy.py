"""Protects the secrets of a process from other processes: its files, its environment and its memory."""

import ctypes
import os
from collections.abc import Iterable

_PR_SET_DUMPABLE = 4
_OTHERS = 0o077


def be_private() -> None:
    """Create files for this user only from now on, and let no other process of the user read our memory.

    Only root can then read `/proc/PID/environ` (which keeps the environment at the start) and `/proc/PID/mem`, or
    attach a debugger. Programs that this process starts are not affected.
    """
    os.umask(_OTHERS)
    # Where the C library has no such call, as on macOS, the files alone are private.
    call = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if call is not None and call(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) was refused")


def forget(names: Iterable[str]) -> None:
    """Remove variables from the environment, so that programs started by this process do not get them."""
    for name in names:
        os.environ.pop(name, None)
