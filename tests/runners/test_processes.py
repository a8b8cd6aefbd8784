"""Ending a run: its daemonised grandchildren die, a bystander lives. Real processes, no stand-ins."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.fakes.patience import HANG_S
from verl_e2e_runner.process.processes import (
    RUN_VARIABLE,
    HostClock,
    WrapperProcess,
    start,
)

CLOCK = HostClock()
ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


Launch = Callable[[str], WrapperProcess]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started: list[WrapperProcess] = []

    def one(script: str) -> WrapperProcess:
        started.append(start(["sh", "-c", script], env=ENVIRONMENT, cwd=tmp_path, nonce="nonce-1"))
        return started[-1]

    yield one
    for process in started:
        assert process.end(grace_s=1, clock=CLOCK) == ()
        process.close()


def pids_in(path: Path, count: int) -> list[int]:
    """Process numbers that a script wrote, one a line, once all have arrived."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        lines = path.read_text().split() if path.exists() else []
        if len(lines) >= count:
            return [int(line) for line in lines]
        time.sleep(0.01)
    raise AssertionError(f"{path.name} never held {count} process numbers")


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def bystander() -> Iterator[int]:
    """A daemon of another run on the same host: same command, other nonce, no relation."""
    process = subprocess.Popen(["sleep", "300"], env=ENVIRONMENT | {RUN_VARIABLE: "nonce-2"}, start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


DAEMONS = """
( setsid sh -c 'echo $$ >> pids; exec sleep 300' & )
( setsid sh -c 'echo $$ >> pids; setsid sh -c "echo \\$\\$ >> pids; exec sleep 300" & wait' & )
"""
CHILD = "sh -c 'echo $$ >> pids; exec sleep 300' &\n"


def test_daemonised_grandchildren_die_and_the_bystander_lives(launch: Launch, tmp_path: Path, bystander: int) -> None:
    process = launch(DAEMONS + CHILD + "wait")
    daemons = pids_in(tmp_path / "pids", 4)
    assert len({os.getsid(pid) for pid in daemons}) == 4, "they left the wrapper's session"
    assert {survivor.pid for survivor in process.alive()} >= {*daemons, process.pid}
    assert process.end(grace_s=5, clock=CLOCK) == ()
    assert not any(runs(pid) for pid in daemons)
    assert process.poll() is not None
    assert runs(bystander)


def test_what_a_normal_exit_leaves_is_swept(launch: Launch, tmp_path: Path, bystander: int) -> None:
    process = launch(DAEMONS + "exit 3")
    daemons = pids_in(tmp_path / "pids", 3)
    while process.poll() is None:
        time.sleep(0.01)
    assert {survivor.pid for survivor in process.alive()} == set(daemons)
    assert process.end(grace_s=5, clock=CLOCK) == ()
    assert not any(runs(pid) for pid in daemons)
    assert process.poll() == 3
    assert runs(bystander)


def test_deaf_ones_are_killed_after_the_grace(launch: Launch, tmp_path: Path) -> None:
    script = "trap '' TERM; setsid sh -c 'echo $$ >> pids; while :; do sleep 0.05; done'"
    process = launch(script)
    deaf = pids_in(tmp_path / "pids", 1)
    began = time.monotonic()
    assert process.end(grace_s=0.3, clock=CLOCK) == ()
    assert 0.3 <= time.monotonic() - began < HANG_S
    assert not runs(deaf[0])


def test_a_second_interruption_cuts_the_grace_short(launch: Launch, tmp_path: Path) -> None:
    process = launch("trap '' TERM; echo $$ >> pids; while :; do sleep 0.05; done")
    pids_in(tmp_path / "pids", 1)
    began = time.monotonic()
    assert process.end(grace_s=HANG_S, clock=CLOCK, hurry=lambda: True) == ()
    assert time.monotonic() - began < HANG_S / 2


def test_a_process_with_an_emptied_environment_is_known_by_its_parent_even_after_that_died(
    launch: Launch, tmp_path: Path
) -> None:
    script = "env -i setsid sh -c 'echo $$ >> pids; exec sleep 300' & sleep 300 & echo $! >> pids; wait"
    process = launch(script)
    children = pids_in(tmp_path / "pids", 2)
    process.observe()
    os.kill(process.pid, 9)
    while process.poll() is None:
        time.sleep(0.01)
    assert {survivor.pid for survivor in process.alive()} == set(children)
    assert process.end(grace_s=5, clock=CLOCK) == ()
    assert not any(runs(pid) for pid in children)


def test_processes_that_die_in_between_do_no_harm(launch: Launch) -> None:
    process = launch("for i in 1 2 3 4 5 6 7 8 9; do sleep 0.01 & done; wait")
    for _ in range(20):
        process.observe()
    assert process.end(grace_s=1, clock=CLOCK) == ()


def test_a_reused_number_is_not_the_process_that_was_seen(launch: Launch, bystander: int) -> None:
    process = launch("sleep 300")
    stranger = psutil.Process(bystander)
    process._own[bystander, stranger.create_time() - 10] = stranger
    assert bystander not in {survivor.pid for survivor in process.alive()}
    process.end(grace_s=1, clock=CLOCK)
    assert runs(bystander)


def test_output_and_errors_come_through_one_pipe(launch: Launch) -> None:
    process = launch(f"echo out; echo err >&2; echo ${RUN_VARIABLE}; cat")
    text = b""
    while chunk := os.read(process.output, 4096):
        text += chunk
    assert text == b"out\nerr\nnonce-1\n"
    process.end(grace_s=1, clock=CLOCK)


def test_a_program_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        start([str(tmp_path / "none")], env=ENVIRONMENT, cwd=tmp_path, nonce="n")


def test_python_daemons_that_fork_twice_die_too(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "daemon.py"
    script.write_text(
        "import os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "open('pids', 'a').write(f'{os.getpid()}\\n')\n"
        "time.sleep(300)\n"
    )
    process = launch(f"{sys.executable} -S {script}; sleep 300")
    (daemon,) = pids_in(tmp_path / "pids", 1)
    assert psutil.Process(daemon).ppid() != process.pid
    assert process.end(grace_s=2, clock=CLOCK) == ()
    assert not runs(daemon)


def test_a_child_that_is_about_to_end_is_buried_at_the_close(tmp_path: Path) -> None:
    # A lot of memory takes the kernel a moment to free, and until then the child can be waited for only.
    script = "import time; held = bytearray(300_000_000); print('ready', flush=True); time.sleep(300)"
    process = start([sys.executable, "-c", script], env=ENVIRONMENT, cwd=tmp_path, nonce="nonce-3")
    assert os.read(process.output, 10) == b"ready\n"
    os.kill(process.pid, signal.SIGKILL)
    process.close()
    assert not Path(f"/proc/{process.pid}").exists()
