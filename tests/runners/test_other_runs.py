"""Two runs on one host hang each other: the second one is refused before it costs a GPU hour."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.patience import HANG_S
from verl_e2e_runner.preflight import other_runs
from verl_e2e_runner.preflight.other_runs import sole_run

pytestmark = pytest.mark.host


@pytest.fixture(autouse=True)
def _no_trainer_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of the tests may be at work for someone else; each test that means a trainer names its own."""
    monkeypatch.setattr(other_runs, "_ENTRY_POINT", f"verl.trainer.of_test_{os.getpid()}")


def test_the_first_run_is_alone_and_the_second_is_blocked_with_its_number(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with sole_run(lock) as first, sole_run(lock) as second:
        assert first.ok
        assert (second.ok, second.blocking) == (False, True)
        assert f"process {os.getpid()}" in second.summary
        assert second.fix
    with sole_run(lock) as third:
        assert third.ok


def test_a_killed_holder_keeps_nobody_out(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = (
        "import pathlib, time\nfrom verl_e2e_runner.preflight.other_runs import sole_run\n"
        f"with sole_run(pathlib.Path({str(lock)!r})):\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code + "    print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with sole_run(lock) as during:
        assert f"process {holder.pid}" in during.summary
    holder.kill()
    holder.communicate()
    with sole_run(lock) as after:
        assert after.ok


def test_a_trainer_that_others_started_blocks(tmp_path: Path) -> None:
    word = other_runs._ENTRY_POINT
    trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "-m", word])
    try:
        deadline = time.monotonic() + HANG_S
        found = ""
        while not found and time.monotonic() < deadline:
            with sole_run(tmp_path / "lock") as finding:
                found = "" if finding.ok else finding.summary
        assert f"verl training, process {trainer.pid}" in found
    finally:
        trainer.kill()
        trainer.wait()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_a_lock_that_cannot_be_had_is_no_reason_to_stop(tmp_path: Path, make: object) -> None:
    lock = tmp_path / "lock"
    make(lock)  # type: ignore[operator]
    with sole_run(lock) as finding:
        assert finding.ok
    assert not (tmp_path / "elsewhere").exists()
