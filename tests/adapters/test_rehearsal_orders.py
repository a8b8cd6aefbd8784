"""A rehearsal as the back ends take it: no GPU is asked for, no slot is taken, and its folder comes home."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fakes.clocks import BEGAN, HandClock
from tests.fakes.engines import LocalEngine, order, ready, unending, until
from tests.runners.world import World
from verl_e2e.adapters.dispatch.order_folder import OrderFolder
from verl_e2e.adapters.dispatch.ray_backend import RaySettings, resources
from verl_e2e.adapters.dispatch.slurm_backend import SlurmSettings, batch_script, sbatch_words
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.adapters.github.actions import DispatchSettings, order_inputs
from verl_e2e.app.analysis import judge_ended
from verl_e2e.core.model.jobs import REHEARSAL, RehearsalJob, Repository, RepositoryOrigin
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.related import Bands
from verl_e2e.core.pulls.job_order import megatron_lm_of, merge_base_of, placed, portable, same_job, unpack_order
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.git.repository import GitRepository
from verl_e2e.wiring.engines import verify_attestations

HEAD, BASE = "a" * 40, "b" * 40
JOB = RehearsalJob(
    kind="rehearsal",
    bridge=Repository(path="bridge", commit=HEAD),
    base=BASE,
    origins={
        "bridge": RepositoryOrigin(url="https://example.org/octo/bridge.git"),
        "megatron_lm": RepositoryOrigin(url="https://m.org/l"),
    },
)


def rehearsal(job: RehearsalJob = JOB) -> Run:
    return Run(
        key=run_key("octo/bridge", job.bridge.commit, job.digest(), 1),
        repository="octo/bridge",
        number=7,
        head_sha=job.bridge.commit,
        job_id=REHEARSAL,
        job_digest=job.digest(),
        merge_base=job.base,
        created=BEGAN,
        updated=BEGAN,
        rehearsal=job,
        nonce="c" * 32,
    )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    with ready(LocalEngine(tmp_path / "runs")) as made:
        yield made


def test_a_workflow_gets_it_without_an_image_for_a_runner_of_github() -> None:
    settings = DispatchSettings(
        branch="main", tool_repository="octo/verl-e2e", tool_sha="d" * 40, verify=verify_attestations()
    )
    inputs = order_inputs(rehearsal(), settings)
    assert (inputs["job_id"], inputs["image"], inputs["labels"]) == (REHEARSAL, "", '["ubuntu-latest"]')
    assert inputs["timeout_minutes"] == "50"
    sent = unpack_order(inputs["job"])
    assert same_job(sent, JOB)
    assert not same_job(sent, JOB.model_copy(update={"base": "e" * 40}))
    assert (merge_base_of(inputs["job"]), megatron_lm_of(sent)) == (BASE, "https://m.org/l")
    assert placed(sent, "/srv/there/").bridge.path == "/srv/there/bridge"
    assert portable(placed(sent, "/srv/there")).digest() == JOB.digest()


def test_slurm_is_asked_for_cores_and_no_gpu_and_makes_no_container(tmp_path: Path) -> None:
    settings = SlurmSettings(folder=tmp_path, gpus="--gres=gpu:N", pyxis=True)
    folder = OrderFolder.of(tmp_path, rehearsal().key)
    words = sbatch_words(rehearsal(), folder, settings)
    assert "--cpus-per-task=2" in words
    assert not any("gpu" in word for word in words)
    script = batch_script(rehearsal(), folder, settings)
    assert "--container-image" not in script
    assert " run --job " in script


def test_ray_is_asked_for_cores_and_memory_and_no_gpu(tmp_path: Path) -> None:
    asked = resources(rehearsal(), RaySettings(folder=tmp_path, resources={"big": 1.0}))
    assert asked == {
        "entrypoint_num_cpus": 2,
        "entrypoint_memory": 8 << 30,
        "entrypoint_resources": {"big": 1.0},
    }


def test_it_runs_while_a_job_has_the_whole_host(world: World, engine: LocalEngine, tmp_path: Path) -> None:
    backend, slow = engine.with_changes(clock=HandClock()), order(unending(world, tmp_path))
    backend.submit(slow)
    waiting = order(unending(world, tmp_path), at=BEGAN + timedelta(seconds=5))
    backend.submit(waiting)
    job = JOB.model_copy(update={"bridge": Repository(path=str(world.bridge), commit=HEAD), "origins": {}})
    run = rehearsal(job.model_copy(update={"python": str(tmp_path / "no-python")}))
    backend.submit(run)
    until(lambda: backend.poll(run).state is RunState.FINISHED)
    assert backend.poll(slow).state is RunState.RUNNING
    assert backend.poll(waiting).state is RunState.SUBMITTED
    assert backend.artifacts(run, tmp_path / "home")
    # Its environment is missing, so it says that, and is evidence of nothing.
    judged = judge_ended(run, tmp_path / "home", run_folders(Bands()), GitRepository(world.bridge))
    assert judged.result is Result.BLOCKED
    assert judged.rehearsed is None
    assert "make rehearsal-env" in judged.sentence
    backend.cancel(slow)
    backend.cancel(waiting)
    until(lambda: backend.poll(slow).state.final)
