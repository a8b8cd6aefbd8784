"""Allows one verl run on a host at a time: two runs share sockets below /tmp and hang at the first weight sync."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good

# verl names its sockets /tmp/rl-colocate-zmq-... whatever TMPDIR says, so the lock lies where they lie.
_SHARED = Path("/tmp")  # noqa: S108
LOCK = _SHARED / "verl-e2e.lock"
_ENTRY_POINT = "verl.trainer.main_ppo"


@contextmanager
def sole_run(lock: Path = LOCK) -> Iterator[Finding]:
    """Hold the lock of the host; the finding blocks when another run holds it or verl's trainer is running.

    The lock ends with its process, so a killed process blocks no other run.
    """
    descriptor = _opened(lock)
    try:
        yield _finding(_holder(descriptor) or _trainer())
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _opened(lock: Path) -> int | None:
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        # Another user's file in a sticky folder may be locked, though neither created nor written.
        with suppress(OSError):
            return os.open(lock, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    return None


def _holder(descriptor: int | None) -> str:
    """Who holds the lock; empty when this process holds it now, or when there cannot be a lock."""
    if descriptor is None:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pid = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        return f"verl-e2e run, process {pid}" if pid.isdigit() else "verl-e2e run of another user"
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return ""


def _trainer() -> str:
    """verl's trainer, the person who started it, where it provably shares our /tmp; empty when there is none."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if _ENTRY_POINT in words[1:] and _shares_folder(process.pid):
            return f"verl training, process {process.pid}"
    return ""


def _shares_folder(pid: int) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/root{_SHARED}", _SHARED)
    except OSError:
        return False


def _finding(other: str) -> Finding:
    if not other:
        return good(Check.OTHER_RUNS, "no other verl run is active on this host")
    summary = f"another verl run is active on this host ({other}): two runs would hang at the first weight sync"
    return blocked(Check.OTHER_RUNS, summary, "wait until it ends, or end it; then run again")
