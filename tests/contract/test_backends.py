"""What every back end promises, each with the real programs of its engine: this machine, and real clusters."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.engines import Engine, LocalEngine, RayEngine, SlurmEngine, order, runners_of, unending, until
from tests.fakes.ray_cluster import RayCluster, ray_cluster
from tests.fakes.slurm_cluster import SlurmCluster, slurm_cluster
from tests.runners.world import World, make_world
from verl_e2e.adapters.dispatch.copying import Caps
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import EVENTS_FILE, LOG_FILE, EndReason
from verl_e2e.core.pulls.job_order import same_job
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.ports import Backend, BackendError, Progress


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


LOCAL, SLURM = "local", pytest.param("slurm", marks=(pytest.mark.slurm, pytest.mark.cluster))
RAY = pytest.param("ray", marks=(pytest.mark.ray, pytest.mark.cluster))


@pytest.fixture(params=[LOCAL, SLURM, RAY])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    root = tmp_path / "orders"
    root.mkdir()
    made: Engine = LocalEngine(root)
    if request.param == "slurm":
        made = SlurmEngine(root, request.getfixturevalue("cluster"))
    if request.param == "ray":
        made = RayEngine(root, request.getfixturevalue("nodes"))
    yield made
    made.clear()


@pytest.fixture
def backend(engine: Engine) -> Backend:
    return engine.make()


@pytest.fixture
def slow(world: World, tmp_path: Path) -> Job:
    return unending(world, tmp_path)


def seen(backend: Backend, run: Run) -> Progress:
    return backend.poll(run)


def wait_for(backend: Backend, run: Run, state: RunState) -> Progress:
    """The progress once it has the state; one that has ended otherwise fails at once."""
    shown: list[Progress] = []

    def reached() -> bool:
        shown[:] = [seen(backend, run)]
        return shown[0].state is state or shown[0].state.final

    until(reached)
    assert shown[0].state is state, shown
    return shown[0]


def begin(backend: Backend, run: Run) -> Run:
    """The submitted run, once its runner has begun."""
    submitted = run.model_copy(update={"handle": backend.submit(run), "state": RunState.SUBMITTED})
    until(lambda: "phase" in seen(backend, submitted).note)
    return submitted


def ends_of(folder: Path) -> list[str]:
    events = [json.loads(line) for line in (folder / EVENTS_FILE).read_text().splitlines()]
    return [event["data"]["reason"] for event in events if event["kind"] == "ended"]


def test_a_run_ends_in_a_folder_of_its_order(world: World, backend: Backend, tmp_path: Path) -> None:
    run = order(world.job())
    run = run.model_copy(update={"handle": backend.submit(run)})
    took = wait_for(backend, run, RunState.FINISHED).took
    assert took is not None
    assert took.started is not None
    assert took.ended is not None
    assert backend.artifacts(run, tmp_path / "home")
    record = read_record(tmp_path / "home")
    assert record.job is not None
    assert same_job(record.job, world.job())
    assert len(ends_of(tmp_path / "home")) == 1
    assert backend.unattested(run) == ""


def test_double_submit(slow: Job, engine: Engine) -> None:
    run = order(slow)
    first, second = engine.make(), engine.make()
    handles = {first.submit(run), second.submit(run), first.submit(run)}
    assert handles == {first.find(run)}
    until(lambda: len(runners_of(run)) == 1)
    assert second.submit(run) in handles
    first.end_doubles(run)
    assert seen(second, run).state is RunState.RUNNING
    assert len(runners_of(run)) == 1


def test_lost_reply(slow: Job, engine: Engine) -> None:
    run = order(slow)
    engine.lose_reply(run)
    backend = engine.make()
    found = backend.find(run)
    assert found
    assert backend.submit(run) == found
    until(lambda: len(runners_of(run)) == 1)
    wait_for(backend, run, RunState.RUNNING)


def test_cancel_before_start(slow: Job, backend: Backend, tmp_path: Path) -> None:
    first, second = order(slow), order(slow, attempt=2)
    begin(backend, first)
    backend.submit(second)
    assert seen(backend, second).state is RunState.SUBMITTED
    backend.cancel(second)
    wait_for(backend, second, RunState.CANCELLED)
    backend.cancel(first)
    wait_for(backend, first, RunState.CANCELLED)
    backend.submit(second)
    assert seen(backend, second).state is RunState.CANCELLED
    assert runners_of(second) == []
    assert not backend.artifacts(second, tmp_path / "home")


def test_cancel_while_running(slow: Job, backend: Backend, tmp_path: Path) -> None:
    run = begin(backend, order(slow))
    assert not backend.artifacts(run, tmp_path / "early")
    backend.cancel(run)
    backend.cancel(run)
    wait_for(backend, run, RunState.CANCELLED)
    assert backend.artifacts(run, tmp_path / "home")
    assert ends_of(tmp_path / "home") == [EndReason.INTERRUPTED]
    assert runners_of(run) == []


# To a head of Ray, which keeps nothing, a restart is a crash.
@pytest.mark.parametrize("engine", [LOCAL, SLURM], indirect=True)
def test_engine_restarted(slow: Job, engine: Engine, tmp_path: Path) -> None:
    run = begin(engine.make(), order(slow))
    engine.restart()
    backend = engine.make()

    def answers() -> bool:
        with suppress(BackendError):
            return seen(backend, run).state is RunState.RUNNING
        return False

    until(answers)
    assert backend.submit(run) == run.handle
    assert len(runners_of(run)) == 1
    backend.cancel(run)
    wait_for(backend, run, RunState.CANCELLED)
    assert backend.artifacts(run, tmp_path / "home")


def submitted_again(backend: Backend, run: Run) -> str:
    """The handle, once the engine answers."""
    handles: list[str] = []

    def taken() -> bool:
        with suppress(BackendError):
            handles.append(backend.submit(run))
        return bool(handles)

    until(taken)
    return handles[0]


# Slurm's controller, killed like this, begins with a state that is up to 5 s old: runs of earlier tests, which ended,
# may then hold the node until their time limit.
@pytest.mark.parametrize("engine", [LOCAL, RAY], indirect=True)
def test_engine_killed_while_a_run_waits(slow: Job, world: World, engine: Engine) -> None:
    """Whatever the engine forgot of it, the run that waits is started once."""
    backend = engine.make()
    first, second = begin(backend, order(slow)), order(world.job())
    backend.submit(second)
    engine.crash()
    backend = engine.make()
    second = second.model_copy(update={"handle": submitted_again(backend, second)})
    if engine.remembers:
        assert runners_of(second) == []
        backend.cancel(first)
        wait_for(backend, first, RunState.CANCELLED)
    else:
        assert "rerun" in wait_for(backend, first, RunState.LOST).note
        assert runners_of(first) == []
        with pytest.raises(BackendError) as refused:
            backend.submit(first)
        assert refused.value.final
    wait_for(backend, second, RunState.FINISHED)
    events = (engine.root / second.key / "run" / EVENTS_FILE).read_text().splitlines()
    assert [json.loads(event)["kind"] for event in events].count("started") == 1


def test_node_lost(slow: Job, engine: Engine) -> None:
    backend = engine.make()
    run = begin(backend, order(slow))
    engine.lose_node(run)
    assert "rerun" in wait_for(backend, run, RunState.LOST).note


# On Ray as on Slurm the shared folder is read, by the same code.
@pytest.mark.parametrize("engine", [LOCAL, SLURM], indirect=True)
def test_log_rotated(world: World, engine: Engine) -> None:
    backend = engine.make()
    run = order(world.job())
    assert b"".join(backend.log(run)) == b""
    backend.submit(run)
    wait_for(backend, run, RunState.FINISHED)
    whole = b"".join(backend.log(run))
    assert b"preflight" in whole
    log = engine.root / run.key / "runner.log"
    os.truncate(log, 5)
    if not (engine.root / run.key / "run" / LOG_FILE).exists():
        assert b"".join(backend.log(run)) == whole[:5]
    log.rename(log.with_name("runner.log.1"))
    (log.parent / "run" / LOG_FILE).unlink(missing_ok=True)
    assert b"".join(backend.log(run)) == b""
    log.write_bytes(b"rotated\n")
    assert b"".join(backend.log(run)) == b"rotated\n"


def test_job_killed_by_the_engine_and_artifact_half_written(slow: Job, engine: Engine, tmp_path: Path) -> None:
    backend = engine.make()
    run = begin(backend, order(slow))
    engine.kill(run)
    assert "rerun" in wait_for(backend, run, RunState.LOST).note
    until(lambda: runners_of(run) == [])
    left = engine.root / run.key / "run"
    whole = (left / EVENTS_FILE).read_bytes()
    (left / EVENTS_FILE).write_bytes(whole[: len(whole) - 5] + b'\n{"kind": "end')
    (left / "outside").symlink_to("/etc/passwd")
    os.mkfifo(left / "pipe")
    assert seen(backend, run).state is RunState.LOST
    with pytest.raises(BackendError, match="more than 10 bytes"):
        engine.make(Caps(total_bytes=10)).artifacts(run, tmp_path / "home")
    assert not (tmp_path / "home").exists()
    assert backend.artifacts(run, tmp_path / "home")
    assert {"outside", "pipe"}.isdisjoint(path.name for path in (tmp_path / "home").iterdir())
    assert ends_of_whole_lines(tmp_path / "home") == []


def ends_of_whole_lines(folder: Path) -> list[str]:
    lines = (folder / EVENTS_FILE).read_text().splitlines()[:-2]
    return [line for line in lines if json.loads(line)["kind"] == "ended"]


def test_order_tampered(slow: Job, world: World, engine: Engine, tmp_path: Path) -> None:
    """Another job in the order's place never comes back as the run of the order."""
    backend = engine.make()
    first, run = order(slow), order(world.job())
    begin(backend, first)
    backend.submit(run)
    file = engine.root / run.key / "job.json"
    file.write_text(world.job(steps=2).model_dump_json())
    backend.cancel(first)
    wait_for(backend, first, RunState.CANCELLED)
    until(lambda: seen(backend, run).state.final)
    if seen(backend, run).state is RunState.FINISHED:
        assert backend.artifacts(run, tmp_path / "home")
        record = read_record(tmp_path / "home")
        assert record.job is not None
        assert not same_job(record.job, world.job())
    else:
        assert seen(backend, run).state is RunState.LOST
        assert not backend.artifacts(run, tmp_path / "home")


def test_a_run_without_a_job_and_a_key_that_leads_elsewhere_are_refused(world: World, backend: Backend) -> None:
    run = order(world.job())
    with pytest.raises(BackendError, match="has no job"):
        backend.submit(run.model_copy(update={"job": None}))
    with pytest.raises(BackendError, match="not a run key"):
        backend.poll(run.model_copy(update={"key": "../../etc", "handle": "../../etc"}))
    assert seen(backend, run).state is RunState.LOST


@pytest.mark.ray
@pytest.mark.cluster
def test_a_run_on_ray_has_its_gpus_and_no_way_to_the_cluster(world: World, nodes: RayCluster, tmp_path: Path) -> None:
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nenv > "$(dirname "$3")/environment"\n')
    show.chmod(0o755)
    engine = RayEngine(tmp_path, nodes)
    backend = engine.make(command=(str(show),))
    run = order(world.job().model_copy(update={"needs": None, "gpu_count": 2}))
    backend.submit(run)
    wait_for(backend, run, RunState.LOST)
    lines = (tmp_path / run.key / "environment").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    assert len(found["CUDA_VISIBLE_DEVICES"].split(",")) == 2
    assert nodes.token not in found.values()
    assert [name for name in found if name.startswith("RAY_") or name == "OMP_NUM_THREADS"] == []
