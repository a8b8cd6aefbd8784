"""The driver's own loop over cells that sleep, spin or are merely slow, and on a host without a process left."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REHEARSAL
from verl_e2e_runner.rehearsal.rehearse import PROGRAMS

pytestmark = pytest.mark.rehearsal

SCRIPT = """
import json, os, sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import driver

def sleeps(task):
    time.sleep(600)

def spins(task):
    if not os.fork():
        while True:
            pass
    time.sleep(600)

def slow(task):
    # It computes a little again and again, for longer than the limit of a cell that rests.
    for _ in range(16):
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        time.sleep(0.25)
    driver.put(task.put, {"cell": task.cell, "error": None})

driver.run_cell = lambda task, _request: {"sleeps": sleeps, "spins": spins, "slow": slow}[task.label](task)
out = Path(sys.argv[2])
tasks = [driver.Task(label, "qwen3-plain", out / f"{label}.json") for label in ("sleeps", "spins", "slow")]
driver.run_cells(tasks, {"workers": 3, "limit_s": 2})
"""


def test_a_cell_hangs_when_it_rests_or_computes_too_long_and_not_when_it_is_slow(tmp_path: Path) -> None:
    argv = (str(REHEARSAL / "bin/python"), "-c", SCRIPT, str(PROGRAMS), str(tmp_path))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": os.defpath})
    assert done.returncode == 0, done.stderr
    errors = {file.stem: json.loads(file.read_text())["error"] for file in tmp_path.glob("*.json")}
    assert {label: error and error["type"] for label, error in errors.items()} == {
        "sleeps": "Hang",
        "spins": "Hang",
        "slow": None,
    }


FULL_HOST = """
import errno, os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import driver

refused, fork = int(sys.argv[3]), os.fork
def fork_of_a_full_host():
    global refused
    refused -= 1
    if refused >= 0:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()

os.fork, driver._FORK_S = fork_of_a_full_host, 1.2
driver.run_cell = lambda task, _request: driver.put(task.put, {"cell": task.cell, "error": None})
driver.run_cells([driver.Task("a", "qwen3-plain", Path(sys.argv[2], "a.json"))], {"workers": 1, "limit_s": 2})
"""


@pytest.mark.parametrize(("refused", "expected"), [(2, None), (50, "Exhausted")])
def test_a_full_host_is_asked_again_and_then_named(tmp_path: Path, refused: int, expected: str | None) -> None:
    argv = (str(REHEARSAL / "bin/python"), "-c", FULL_HOST, str(PROGRAMS), str(tmp_path), str(refused))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": os.defpath})
    assert done.returncode == 0, done.stderr
    error = json.loads((tmp_path / "a.json").read_text())["error"]
    assert (error and error["type"]) == expected
