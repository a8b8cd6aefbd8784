"""One Ray cluster over the nodes of a Slurm job: two nodes of a real cluster, both this machine, and a real Ray."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.engines import SlurmEngine, engine, order, until
from tests.fakes.slurm_cluster import SlurmCluster, slurm_cluster
from tests.runners.world import World
from verl_e2e.adapters.dispatch.slurm_backend import SlurmBackend, SlurmCommands, SlurmSettings
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.core.model.jobs import Isolation, Job
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.ports import BackendError

# In the place of `verl-e2e`: a machine without GPUs would refuse the job before verl is started. It does with the
# cluster what verl does: it joins it, counts its GPUs, and puts a worker on each node.
STAND_IN = """
import json, os, sys
from pathlib import Path
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl_e2e.core.model.jobs import Job
from verl_e2e_runner.launch.launcher import cluster_of

words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
job = Job.model_validate_json(Path(words["--job"]).read_text())
ray.init(address=cluster_of(job, os.environ), log_to_driver=False)
group = placement_group([{"GPU": job.gpus_of_node, "CPU": 1}] * job.node_count, strategy="STRICT_SPREAD")
ray.get(group.ready())

@ray.remote(num_gpus=1)
def where():
    return ray.get_runtime_context().get_node_id(), os.environ["OF_THE_JOB"], os.environ["SLURM_PROCID"]

at = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index) for index in range(job.node_count)]
seen = ray.get([where.options(scheduling_strategy=place).remote() for place in at])
out = Path(words["--out"])
out.mkdir()
(out / "seen.json").write_text(json.dumps([seen, ray.cluster_resources()["GPU"]]))
(out / "events.jsonl").write_text('{"kind": "ended", "t_s": 1.0, "data": {"reason": "exited"}}\\n')
"""

__all__ = ["engine"]

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), ("n1", "n2")) as running:
        yield running


@pytest.fixture
def backend(engine: SlurmEngine, tmp_path: Path) -> SlurmBackend:
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    settings = SlurmSettings(engine.root, command=(sys.executable, str(program)))
    commands = SlurmCommands(environ={**engine.cluster.environ, "HOME": str(tmp_path)})
    return SlurmBackend(settings, commands, clock=engine.clock, open_log=open_log)


def job_of_two_nodes(world: World, **changes: object) -> Job:
    site = world.site(gpus_per_node=1, ray_cpus=1, process={"OF_THE_JOB": "it's set"}, **changes)
    return world.job(site=site, gpu_count=2)


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_finds_the_gpus_of_all_nodes_in_one_ray_cluster(
    world: World, backend: SlurmBackend, engine: SlurmEngine
) -> None:
    run = order(job_of_two_nodes(world))
    backend.submit(run)
    until(lambda: backend.poll(run).state.final)
    printed = b"".join(backend.log(run)).decode()
    assert backend.poll(run).state is RunState.FINISHED, (backend.poll(run), printed)
    seen, gpus = json.loads((engine.root / run.key / "run" / "seen.json").read_text())
    assert gpus == 2
    assert len({node for node, _, _ in seen}) == 2
    assert {process for _, _, process in seen} == {"0", "1"}
    assert {value for _, value, _ in seen} == {"it's set"}


def test_a_node_that_cannot_start_ray_ends_the_run_and_is_no_fail(world: World, backend: SlurmBackend) -> None:
    run = order(job_of_two_nodes(world, python="/nowhere/python"))
    backend.submit(run)
    until(lambda: backend.poll(run).state.final)
    assert backend.poll(run).state is RunState.LOST
    assert "could not join its Ray cluster" in backend.poll(run).note
    assert b"node 0: the Ray cluster did not start" in b"".join(backend.log(run))


def test_a_job_that_must_be_isolated_takes_no_gpu_of_several_nodes(world: World, backend: SlurmBackend) -> None:
    job = job_of_two_nodes(world).model_copy(update={"isolation": Isolation.REQUIRED})
    with pytest.raises(BackendError, match="needs 2 nodes, and code under test can be isolated on one node only") as no:
        backend.submit(order(job))
    assert no.value.final
