"""A fatal error in the log ends a run that hangs within 10 s of its appearance: real processes, the real scanner."""

import os
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.patience import slowness
from tests.runners.watched import watched
from verl_e2e.core.log.scan import LogScanner
from verl_e2e.core.model.record import EndReason
from verl_e2e_runner.process.processes import start
from verl_e2e_runner.watch import FATAL_END_S, WatchLimits

pytestmark = pytest.mark.host

ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
FATAL = """\
Error executing job with overrides: ['a=b']
Traceback (most recent call last):
  File "/verl/trainer/main_ppo.py", line 9, in main
    ray.get(runner.run.remote(config))
ray.exceptions.RayTaskError(ValueError): ray::TaskRunner.run() (pid=5, ip=192.0.2.2, actor_id=2)
  File "/verl/workers/engine_workers.py", line 7, in init_model
ValueError: no such layer
"""
WATCHDOG = (
    "[rank1]:[E1120 14:10:32.3 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=4, OpType=ALLREDUCE)\n"
)
# The driver, a worker that ignores SIGTERM as one inside a collective does, and a daemon in a session of its own.
HANGING = """
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
subprocess.Popen([sys.executable, "-c", deaf])
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
time.sleep(0.3)
print("ray init kwargs: {}", flush=True)
sys.stdout.write(open(sys.argv[1]).read())
sys.stdout.flush()
open(sys.argv[2], "w").write(repr(time.monotonic()))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(300)
"""


def seconds_to_end(tmp_path: Path, text: str, limits: WatchLimits) -> float:
    """Seconds between the error's appearance and the end of every process of the run."""
    (tmp_path / "fatal").write_text(text)
    appeared = tmp_path / "appeared"
    argv = [sys.executable, "-c", HANGING, str(tmp_path / "fatal"), str(appeared)]
    process = start(argv, env=ENVIRONMENT, cwd=tmp_path, nonce=f"fatal-{tmp_path.name}")
    ended = watched(process, LogScanner(), tmp_path, limits)
    took = time.monotonic() - float(appeared.read_text())
    alive = process.alive()
    process.close()
    assert (ended.reason, ended.survivors, alive) == (EndReason.FATAL_ERROR_HANG, (), ())
    return took


@pytest.mark.parametrize("text", [FATAL, WATCHDOG], ids=["driver", "watchdog"])
def test_what_hangs_after_a_fatal_error_is_gone_soon_after_its_grace(tmp_path: Path, text: str) -> None:
    grace = 0.3
    limits = WatchLimits(time_limit_s=60, stall_s={"default": 60}, hang_grace_s=grace, end_grace_s=0.4)
    over = (seconds_to_end(tmp_path, text, limits) - grace - 0.4) / slowness()
    # What the watch adds to its graces must leave the default ones below the figure.
    default = WatchLimits(time_limit_s=60, stall_s={})
    assert default.hang_grace_s + default.kill_grace_s(default.hang_grace_s) + over <= FATAL_END_S


@pytest.mark.parametrize(("fatal_for_s", "expected"), [(0.0, 9.3), (8.0, 1.3), (8.6, 0.7), (30.0, 0.5)])
def test_the_last_words_get_shorter_the_older_the_error(fatal_for_s: float, expected: float) -> None:
    limits = WatchLimits(time_limit_s=60, stall_s={}, end_grace_s=10)
    assert limits.kill_grace_s(fatal_for_s) == pytest.approx(expected)
    assert WatchLimits(time_limit_s=60, stall_s={}, end_grace_s=0.2).kill_grace_s(fatal_for_s) == 0.2
