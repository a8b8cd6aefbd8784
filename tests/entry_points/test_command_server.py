"""A command that was forked is to its starter what a command is that Python started."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.fakes.command_server import verl_e2e
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.fakes.service_process import until

STARTED = (sys.executable, "-m", "verl_e2e")
RUN = ROOT / "tests" / "fixtures" / "runs" / "level4-llama"


@pytest.mark.parametrize(
    "words",
    [("--version",), ("card", str(RUN)), ("judge", "nowhere"), ("policy", "check", "-"), ("triage", "-", "--json"), ()],
)
def test_output_and_end_are_those_of_a_process_that_python_started(words: tuple[str, ...], tmp_path: Path) -> None:
    def ended(command: tuple[str, ...]) -> tuple[int, str, str]:
        done = subprocess.run(
            (*command, *words),
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1"},
            input="RuntimeError: größer\n",
            encoding="utf-8",
            capture_output=True,
            check=False,
            timeout=HANG_S,
        )
        return done.returncode, done.stdout, done.stderr

    assert ended(verl_e2e()) == ended(STARTED)


@contextmanager
def _waiting(command: tuple[str, ...], cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    """A command that has begun to wait for its input."""
    with subprocess.Popen((*command, "triage", "-"), cwd=cwd, stdin=subprocess.PIPE, text=True) as waits:
        assert waits.stdin is not None
        waits.stdin.write("a line\n")
        waits.stdin.flush()
        pipe = waits.stdin.fileno()
        # It has read the line, so it waits for the next.
        until(lambda: int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder) == 0)
        yield waits


def _in_folder(folder: Path) -> list[int]:
    """The processes that a folder is the working folder of."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


# A command answers SIGINT itself, with an exit code.
@pytest.mark.parametrize(("number", "end"), [(signal.SIGTERM, -15), (signal.SIGINT, 130), (signal.SIGHUP, -1)])
def test_a_signal_ends_the_command_and_is_its_end(number: signal.Signals, end: int, tmp_path: Path) -> None:
    with _waiting(verl_e2e(), tmp_path) as waits:
        waits.send_signal(number)
        assert waits.wait(HANG_S) == end
    assert _in_folder(tmp_path) == []


def test_the_command_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    with _waiting(verl_e2e(), tmp_path) as waits:
        waits.kill()
        until(lambda: not _in_folder(tmp_path))
