"""A time limit holds while the process that set it is busy with something that no thread interrupts."""

import os
import re
import subprocess
import threading
import time

import psutil

from tests.fakes.patience import HANG_S
from verl_e2e_runner.process.deadline import deadline


def sleeper() -> "subprocess.Popen[bytes]":
    """A session of two processes, as a wrapper and its child."""
    command = ["sh", "-c", "sleep 600 & echo $!; wait"]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)


def child_of(process: "subprocess.Popen[bytes]") -> psutil.Process:
    assert process.stdout is not None
    return psutil.Process(int(process.stdout.readline()))


def gone(process: psutil.Process) -> bool:
    deadline_s = time.monotonic() + HANG_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def test_a_wrapper_is_ended_while_its_watch_reads_one_line_for_long() -> None:
    with sleeper() as process:
        child, ended = child_of(process), threading.Event()

        def wait() -> None:
            process.wait()
            ended.set()

        seen = threading.Thread(target=wait)
        with deadline(process.pid, 1.0):
            seen.start()
            # One call that holds the interpreter for seconds, as a costly pattern does.
            while not ended.is_set():
                re.search(r"(a+)+b", "a" * 24)
        seen.join()
        assert process.returncode == -9
        assert gone(child)


def test_a_wrapper_whose_watch_has_ended_is_left_alone() -> None:
    with sleeper() as process:
        child = child_of(process)
        with deadline(process.pid, 600.0):
            pass
        time.sleep(0.2)
        assert process.poll() is None
        assert child.is_running()
        os.killpg(process.pid, 9)


def test_nothing_is_left_of_the_guard() -> None:
    with sleeper() as process:
        before = {child.pid for child in psutil.Process().children()}
        with deadline(process.pid, 600.0):
            assert {child.pid for child in psutil.Process().children()} - before
        assert {child.pid for child in psutil.Process().children()} <= before
        os.killpg(process.pid, 9)


def test_a_wrapper_that_is_gone_is_no_trouble() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with deadline(process.pid, 0.0):
        time.sleep(0.3)
