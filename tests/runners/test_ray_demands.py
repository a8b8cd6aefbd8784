"""A demand that Ray can never meet ends the run with a sentence: a real Ray, the real instrumentation and watch."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.patience import HANG_S
from tests.runners.watched import watched
from tests.runners.world import World
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.core.log.scan import LogScanner, scan
from verl_e2e.core.model.needs import ray_cpus
from verl_e2e.core.model.record import LOG_FILE, EndReason
from verl_e2e.core.triage.triage import TriageVerdict, triage
from verl_e2e_runner.launch.launcher import INSTRUMENTATION
from verl_e2e_runner.launch.verl import launches
from verl_e2e_runner.process.cage import Session
from verl_e2e_runner.process.processes import Ended, start
from verl_e2e_runner.trees import planned_trees
from verl_e2e_runner.watch import WatchLimits

# What verl at the pin asks Ray for, in its order: its TaskRunner, TransferQueue's actors, the group of the GPUs, actors
# that name no number. The four GPUs exist by number alone.
VERL = """
import sys, time
import ray
from ray.util.placement_group import placement_group

@ray.remote(num_cpus=1)
class DataWorker:
    def ready(self): pass

@ray.remote
class Plain:
    def ready(self): pass

@ray.remote
def nap(seconds):
    time.sleep(seconds)

@ray.remote
class TaskRunner:
    def run(self, data_workers, tasks):
        held = [DataWorker.remote() for _ in range(data_workers + 1)]
        ray.get([worker.ready.remote() for worker in held])
        if tasks:
            # Some find no CPU until others have ended.
            naps = [nap.remote(45) for _ in range(20)]
            ended, waiting = ray.wait(naps, num_returns=8)
            assert waiting
            for task in waiting:
                ray.cancel(task, force=True)
        group = placement_group([{"CPU": 3, "GPU": 1}] * 4, strategy="STRICT_PACK")
        ray.get(group.ready())
        loops = [Plain.remote() for _ in range(4)]
        ray.get([loop.ready.remote() for loop in loops])
        return group

ray.init(num_cpus=int(sys.argv[1]), num_gpus=4, include_dashboard=False)
ray.get(TaskRunner.remote().run.remote(8, sys.argv[2:] == ["tasks"]))
print("passed", flush=True)
"""
Node = dict[str, float]
FOUR_GPUS = [{"CPU": 3.0, "GPU": 1.0}] * 4
# Starting Ray and its processes, on a machine that others keep busy.
START_S = 40.0


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("verl_e2e_demands", INSTRUMENTATION / "verl_e2e_demands.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DEMANDS = _module()


def supervised(tmp_path: Path, *words: str) -> Ended:
    """How the run ended; its folder is `run`."""
    (tmp_path / "verl.py").write_text(VERL)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(INSTRUMENTATION)}
    env |= {"VERL_E2E_IMPORTS": str(tmp_path / "imports.jsonl"), "RAY_DEDUP_LOGS": "0"}
    argv = [sys.executable, str(tmp_path / "verl.py"), *words]
    process = start(argv, env=env, cwd=tmp_path, nonce=f"ray-{tmp_path.name}")
    limits = WatchLimits(time_limit_s=HANG_S, stall_s={"default": int(HANG_S)})
    ended = watched(process, LogScanner(), tmp_path, limits)
    process.close()
    return ended


@pytest.mark.ray
def test_a_group_of_the_gpus_that_can_never_be_placed_ends_the_run_within_a_minute(tmp_path: Path) -> None:
    """Seen on four H100s: 16 CPUs are enough for the group by itself, and the data workers hold 9 of them for ever."""
    began = time.monotonic()
    ended = supervised(tmp_path, "16")
    assert time.monotonic() - began < 60 + START_S
    assert (ended.reason, ended.survivors) == (EndReason.FATAL_ERROR_HANG, ())
    assert "Ray can never place a placement group (STRICT_PACK) that asks for 12 CPU, 4 GPU" in ended.note
    assert "7 of 16 CPU free, 4 of 4 GPU free" in ended.note
    verdict = triage(scan(open_log(tmp_path / "run" / LOG_FILE)))
    assert (verdict.verdict, verdict.rule) == (TriageVerdict.BLOCKED, "ray-resources")


@pytest.mark.ray
def test_an_actor_that_can_never_be_placed_ends_the_run_too(tmp_path: Path) -> None:
    ended = supervised(tmp_path, "5")
    assert ended.reason is EndReason.FATAL_ERROR_HANG
    assert "Ray can never place an actor that asks for 1 CPU: its 1 node(s) have 0 of 5 CPU free" in ended.note


@pytest.mark.ray
def test_what_fits_runs_to_its_end_also_where_tasks_wait_for_each_other(tmp_path: Path) -> None:
    """They wait for longer than a demand may. One CPU of the formula is for a task of verl, and here all have ended."""
    ended = supervised(tmp_path, str(ray_cpus(4) - 1), "tasks")
    assert (ended.reason, ended.exit_code) == (EndReason.EXITED, 0), ended.note


@pytest.mark.ray
@pytest.mark.parametrize(("address", "watched"), [(None, True), ("10.0.0.1:6379", False)], ids=["own", "joined"])
def test_a_cluster_that_others_use_is_not_watched(
    world: World, tmp_path: Path, session: Session, address: str | None, *, watched: bool
) -> None:
    """There another job may hold what this one waits for, and another job's demand may be the one that waits."""
    job = world.job(site=world.site(ray_address=address))
    given = launches(job, planned_trees(job, tmp_path), session, base={"PATH": os.environ["PATH"]})[0].environment
    env = {**given, "PYTHONPATH": str(INSTRUMENTATION), "VERL_E2E_IMPORTS": str(tmp_path / "imports.jsonl")}
    names = "import ray, threading; print([thread.name for thread in threading.enumerate()])"
    done = subprocess.run([sys.executable, "-c", names], env=env, cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    assert (b"verl-e2e-ray-demands" in done.stdout) is watched


@pytest.mark.parametrize(
    ("strategy", "bundles", "frees", "fits"),
    [
        ("STRICT_PACK", FOUR_GPUS, [{"CPU": 12, "GPU": 4}], True),
        ("STRICT_PACK", FOUR_GPUS, [{"CPU": 7, "GPU": 4}], False),
        # Enough in all, and on no node: a group of verl lies on one.
        ("STRICT_PACK", FOUR_GPUS, [{"CPU": 8, "GPU": 4}] * 2, False),
        ("STRICT_PACK", FOUR_GPUS, [{"CPU": 2, "GPU": 0}, {"CPU": 12, "GPU": 4}], True),
        # A bundle that is larger than any node.
        ("PACK", [{"CPU": 9}], [{"CPU": 8}] * 4, False),
        ("PACK", [{"CPU": 1}, {"CPU": 8}], [{"CPU": 8}, {"CPU": 1}], True),
        ("SPREAD", [{"CPU": 4}] * 3, [{"CPU": 8}, {"CPU": 4}], True),
        ("STRICT_SPREAD", [{"CPU": 4}] * 3, [{"CPU": 8}, {"CPU": 4}], False),
        ("PACK", [{"NPU": 1}], [{"CPU": 8, "GPU": 8}], False),
        ("PACK", [{"CPU": 1}], [], False),
    ],
)
def test_what_finds_a_place_on_the_nodes(strategy: str, bundles: list[Node], frees: list[Node], fits: bool) -> None:
    assert DEMANDS.fits(bundles, strategy, frees) is fits


@pytest.mark.parametrize(
    ("gpus_of_node", "nodes", "needed"), [(1, 1, 13), (2, 1, 16), (4, 1, 22), (8, 1, 34), (8, 2, 30)]
)
def test_the_cpus_that_a_job_holds_follow_from_its_gpus_and_nodes(gpus_of_node: int, nodes: int, needed: int) -> None:
    assert ray_cpus(gpus_of_node, nodes=nodes) == needed
