"""Ends a wrapper at its time limit from a second process, whatever the first one is busy with.

The watch looks at the clock between two pieces of the log. Should a piece take it long, nothing of it could look; this
process does nothing else. It gives the watch a margin, because the watch knows how to end a run in good order.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARGIN_S = 30.0


@contextmanager
def deadline(pid: int, seconds: float) -> Iterator[None]:
    """Kill the session of process `pid` after so many seconds, unless the block has ended before."""
    command = [sys.executable, "-I", "-S", __file__, str(pid), _started(pid), repr(seconds)]
    # It ends when its input does, so with the block and with this process, however that ends.
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def _stat(pid: int | str) -> list[str]:
    """What the kernel says of a process, from its state on; empty when there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return []


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks; a number may be used again, with another beginning."""
    found = _stat(pid)
    return found[19] if found else "gone"


def guard(pid: int, started: str, seconds: float) -> None:
    """Wait for the end of the input or of the time; in the second case kill."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if ready or _started(pid) != started:
        return
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    # The processes of the session that it leads.
    for own in (pid, *(number for number in numbers if _stat(number)[3:4] == [str(pid)])):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(own, signal.SIGKILL)


if __name__ == "__main__":
    # What is meant for the run is not meant for its guard.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
