"""The commands on a system that is not Linux, simulated: what exists on Linux alone is taken from Python's modules."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.runners.world import World, make_world

RUN = ROOT / "tests/fixtures/runs/level2-dense"
NEEDED = "jobs run on Linux alone, for they need namespaces of bubblewrap"
# psutil and sysconfig look at the system once, when they are first used, and have no other one here; nor has the ctypes
# of Debian's Python.
ELSEWHERE = """
import fcntl, os, platform, resource, select, signal, sys, sysconfig
import ctypes.util, psutil, subprocess
sysconfig.get_config_vars()
for module, names in (
    (os, ("pidfd_open", "sched_getaffinity", "memfd_create", "eventfd", "getxattr", "copy_file_range", "setns")),
    (select, ("epoll",)),
    (signal, ("pidfd_send_signal", "SIGRTMIN")),
    (resource, ("prlimit",)),
    (fcntl, ("F_SETPIPE_SZ", "F_GETPIPE_SZ")),
    (psutil.Process, ("cpu_affinity", "io_counters", "ionice", "rlimit")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
platform.system = lambda: "Darwin"
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def elsewhere(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    (tmp_path / "mac").mkdir(exist_ok=True)
    (tmp_path / "mac/sitecustomize.py").write_text(ELSEWHERE)
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(tmp_path / "mac")}
    command = [sys.executable, "-m", "verl_e2e", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=HANG_S, check=False)
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    return done


def test_what_runs_nothing_works(world: World, tmp_path: Path) -> None:
    sha = world.bridge_commit
    planned = elsewhere(tmp_path, "plan", "--repo", world.bridge, "--base", f"{sha}~1", "--head", sha, "--json")
    # The submodule comes to the repository, and nothing of it is at hand.
    assert json.loads(planned.stdout)["levels"] == [0, 1, 2, 3, 4, 5]
    explained = elsewhere(tmp_path, "explain", "--repo", world.bridge, "src/megatron/bridge/__init__.py")
    assert explained.returncode == 0, explained.stderr
    folder = shutil.copytree(RUN, tmp_path / "run")
    assert elsewhere(tmp_path, "judge", folder).stdout.startswith("2-dense: Pass")
    triaged = elsewhere(tmp_path, "triage", ROOT / "tests/fixtures/logs/level0-pass.log.xz")
    assert json.loads(triaged.stdout)["verdict"] == "pass"
    assert elsewhere(tmp_path, "demo").returncode == 0


def test_a_run_says_first_what_it_needs(world: World, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(world.job().model_dump_json(by_alias=True))
    done = elsewhere(tmp_path, "run", "--job", job, "--out", tmp_path / "out")
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)
    assert NEEDED in done.stderr
    assert "this system is darwin" in done.stderr


def test_a_check_makes_the_plan_and_says_first_why_nothing_runs(world: World, tmp_path: Path) -> None:
    sha = world.bridge_commit
    site = tmp_path / "site.yml"
    site.write_text("name: here\ndata: {train_files: /a.parquet, val_files: /b.parquet, prepare: none}\n")
    done = elsewhere(
        tmp_path,
        *("check", "--repo", world.bridge, "--base", sha, "--head", sha, "--verl", world.verl, "--level", 0),
        *("--site", site, "--out", tmp_path / "out"),
    )
    assert done.returncode == 4
    assert done.stderr.splitlines()[0].startswith(f"No job is run: {NEEDED}")
    assert NEEDED in done.stdout.splitlines()[0]
    assert json.loads((tmp_path / "out/plan.json").read_text())["levels"] == [0]
