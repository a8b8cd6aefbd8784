"""What is asked of Ray and how its answers are read, and the parts of its back end that no other engine has."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.clocks import StoryClock
from tests.fakes.engines import order
from tests.runners.world import World
from verl_e2e.adapters.dispatch.order_folder import OrderFolder
from verl_e2e.adapters.dispatch.ray_backend import (
    KEY_OF_RUN,
    RAY_FAILURES,
    RayBackend,
    RayJob,
    RayRefusedError,
    RaySettings,
    entrypoint,
    resources,
    runtime_env,
    submission_id,
)
from verl_e2e.adapters.dispatch.shared_disk import CLAIM, JobPhase
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.core.model.needs import Needs
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.ports import BackendError


@pytest.mark.parametrize(
    ("job", "phase"),
    [
        (RayJob("PENDING"), JobPhase.WAITING),
        (RayJob("RUNNING"), JobPhase.RUNNING),
        (RayJob("SUCCEEDED"), JobPhase.ENDED),
        (RayJob("STOPPED"), JobPhase.CANCELLED),
        (RayJob("OF_A_LATER_VERSION"), None),
        (RayJob("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", exit_code=1), JobPhase.ENDED),
        (RayJob("FAILED", exit_code=4), JobPhase.ENDED),
        (RayJob("FAILED"), JobPhase.BROKEN),
        (RayJob("FAILED", "OF_A_LATER_VERSION", exit_code=1), JobPhase.BROKEN),
        *((RayJob("FAILED", error), JobPhase.BROKEN) for error in RAY_FAILURES),
    ],
)
def test_only_a_command_that_ended_by_itself_is_judged_by_its_folder(job: RayJob, phase: JobPhase | None) -> None:
    assert job.phase is phase


@pytest.mark.ray
def test_every_error_type_of_ray_has_a_meaning() -> None:
    from ray.job_submission import JobErrorType

    assert {error.value for error in JobErrorType} == {*RAY_FAILURES, "JOB_ENTRYPOINT_COMMAND_ERROR"}


@pytest.mark.parametrize(("count", "share", "gpus"), [(1, 1.0, 1.0), (1, 0.25, 0.25), (2, 1.0, 2), (2, 0.5, 2)])
def test_what_a_job_asks_of_a_node(world: World, tmp_path: Path, count: int, share: float, gpus: float) -> None:
    needs = Needs(gpu_count=count, gpu_share=share, gpu_memory_gib=20, memory_gib=1.5, cores=3)
    run = order(world.job().model_copy(update={"needs": needs}))
    asked = resources(run, RaySettings(tmp_path, resources={"h100": 0.001}))
    assert asked == {
        "entrypoint_num_gpus": gpus,
        "entrypoint_num_cpus": 3,
        "entrypoint_memory": 3 * 2**29,
        "entrypoint_resources": {"h100": 0.001},
    }
    assert "entrypoint_resources" not in resources(run, RaySettings(tmp_path))


def test_what_is_told_to_the_processes_of_a_run(world: World, tmp_path: Path) -> None:
    run = order(world.job())
    described = runtime_env(run, RaySettings(tmp_path))
    assert set(described) == {"env_vars"}
    assert described["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == "300"


SHOW = "import os, sys; print(sorted(name for name in os.environ if 'RAY' in name or name.startswith('OMP')), sys.argv)"


@pytest.fixture
def ordered(world: World, tmp_path: Path) -> tuple[Run, OrderFolder]:
    """An order below a folder whose name a shell would take for a command."""
    root = tmp_path / "with space; touch $(date) 'quoted'"
    root.mkdir()
    run = order(world.job())
    folder = OrderFolder.of(root, run.key)
    folder.write_order(run)
    return run, folder


def start(run: Run, folder: OrderFolder, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """What Ray does with an entrypoint, on a node of a cluster with tokens."""
    cluster = {"RAY_ADDRESS": "head:6379", "RAY_AUTH_TOKEN": "s3cret", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}
    cluster |= {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    settings = RaySettings(folder.path.parent, command=command)
    words = entrypoint(run, folder, settings)
    return subprocess.run(words, shell=True, env=cluster, cwd="/", capture_output=True, text=True, check=False)


def test_a_job_runs_its_order_once_and_sees_nothing_of_the_cluster(ordered: tuple[Run, OrderFolder]) -> None:
    run, folder = ordered
    assert start(run, folder, (sys.executable, "-c", SHOW)).returncode == 0
    words = ["run", "--job", f"{folder.job_file}", "--out", f"{folder.run_folder}"]
    words += ["--work", f"{folder.path.parent / 'work'}", "--follow-ups"]
    assert folder.read("runner.log") == f"[] {['-c', *words]}\n"
    begun = folder.read(CLAIM).split()
    assert (begun[0], begun[2]) == ("begun", submission_id(run))
    again = start(run, folder, (sys.executable, "-c", SHOW))
    assert (again.returncode, "another job has this order" in again.stderr) == (76, True)
    assert folder.read("runner.log").count("\n") == 1


def test_a_job_whose_order_was_changed_runs_nothing(ordered: tuple[Run, OrderFolder]) -> None:
    run, folder = ordered
    folder.job_file.write_text("{}")
    refused = start(run, folder, (sys.executable, "-c", SHOW))
    assert (refused.returncode, "not the job that was ordered" in refused.stderr) == (77, True)
    assert not folder.has("runner.log")


@dataclass(slots=True)
class ScriptedRay:
    """A cluster that holds jobs by their names, and whose answers a test can change."""

    jobs: dict[str, RayJob] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    refusal: RayRefusedError | None = None

    def submit(self, name: str, entrypoint: str, **options: Any) -> None:
        assert shlex.split(entrypoint)[0] == "exec"
        if self.refusal is not None:
            raise self.refusal
        self.jobs[name] = RayJob("PENDING", message="waits", key=options["metadata"][KEY_OF_RUN])

    def job(self, name: str) -> RayJob | None:
        return self.jobs.get(name)

    def stop(self, name: str) -> None:
        self.stopped.append(name)

    def change(self, run: Run, **values: Any) -> None:
        self.jobs[submission_id(run)] = replace(self.jobs[submission_id(run)], **values)


@dataclass(frozen=True, slots=True)
class Scene:
    """A submitted run on a scripted cluster."""

    ray: ScriptedRay
    backend: RayBackend
    clock: StoryClock
    run: Run
    folder: OrderFolder


@pytest.fixture
def scene(world: World, tmp_path: Path) -> Scene:
    ray, clock = ScriptedRay(), StoryClock()
    backend = RayBackend(RaySettings(tmp_path), ray, clock=clock, open_log=open_log)
    run = order(world.job()).model_copy(update={"created": clock.now()})
    backend.submit(run)
    return Scene(ray, backend, clock, run, OrderFolder.of(tmp_path, run.key))


def begin(scene: Scene) -> None:
    (scene.folder.path / CLAIM).write_text(f"begun 1767225600 {submission_id(scene.run)}\n")
    scene.ray.change(scene.run, state="RUNNING")


def test_a_run_that_no_node_takes_in_time_never_begins(scene: Scene) -> None:
    assert scene.backend.poll(scene.run).state is RunState.SUBMITTED
    scene.clock.pass_s(scene.run.queue_deadline_s)
    late = scene.backend.poll(scene.run)
    assert (late.state, "ray status" in late.note) == (RunState.LOST, True)
    assert start(scene.run, scene.folder, ("false",)).returncode == 76
    scene.ray.change(scene.run, state="STOPPED")
    assert scene.backend.poll(scene.run) == late
    assert scene.ray.stopped == [submission_id(scene.run)]


def test_a_run_that_begins_at_its_deadline_goes_on(scene: Scene) -> None:
    """Ray's answer may be older than the claim of the job on its node."""
    begin(scene)
    scene.ray.change(scene.run, state="PENDING")
    scene.clock.pass_s(scene.run.queue_deadline_s)
    assert scene.backend.poll(scene.run).state is RunState.RUNNING
    assert scene.ray.stopped == []


def test_a_cancelled_run_that_waits_is_cancelled_at_once_and_never_begins(scene: Scene) -> None:
    scene.backend.cancel(scene.run)
    assert scene.backend.poll(scene.run).state is RunState.CANCELLED
    assert start(scene.run, scene.folder, ("false",)).returncode == 76
    scene.ray.jobs.clear()
    assert scene.backend.poll(scene.run).state is RunState.CANCELLED
    with pytest.raises(BackendError) as refused:
        scene.backend.submit(scene.run)
    assert refused.value.final


def test_a_cancelled_run_that_began_ends_when_ray_says_so(scene: Scene) -> None:
    begin(scene)
    scene.backend.cancel(scene.run)
    assert scene.backend.poll(scene.run).state is RunState.CANCELLING
    assert scene.ray.stopped == [submission_id(scene.run)]
    scene.ray.change(scene.run, state="STOPPED")
    assert scene.backend.poll(scene.run).state is RunState.CANCELLED


@pytest.mark.parametrize(
    ("values", "state", "says"),
    [
        ({"state": "STOPPED"}, RunState.CANCELLED, "someone cancelled"),
        ({"state": "SUCCEEDED"}, RunState.LOST, "left no folder"),
        ({"state": "FAILED", "error": "JOB_ENTRYPOINT_COMMAND_ERROR"}, RunState.LOST, "left no folder"),
        *(({"state": "FAILED", "error": error}, RunState.LOST, f"as {error}: ") for error in RAY_FAILURES),
        ({"state": "FAILED", "error": "NEW"}, RunState.LOST, "as NEW: Ray gives no cause"),
    ],
)
def test_an_end_without_a_folder_is_no_verdict(
    scene: Scene, values: Mapping[str, Any], state: RunState, says: str
) -> None:
    begin(scene)
    scene.ray.change(scene.run, **values)
    progress = scene.backend.poll(scene.run)
    assert (progress.state, says in progress.note) == (state, True)


def test_a_state_that_is_not_known_is_no_end(scene: Scene) -> None:
    scene.ray.change(scene.run, state="OF_A_LATER_VERSION")
    with pytest.raises(BackendError, match="does not know") as error:
        scene.backend.poll(scene.run)
    assert not error.value.final
    assert not scene.backend.artifacts(scene.run, scene.folder.path / "home")


def test_a_job_that_ray_forgot_before_it_began_is_lost(scene: Scene) -> None:
    scene.ray.jobs.clear()
    assert "never began" in scene.backend.poll(scene.run).note
    assert scene.backend.find(scene.run) == ""


def test_a_job_of_another_program_is_not_taken_for_ours(scene: Scene) -> None:
    scene.ray.change(scene.run, key="")
    with pytest.raises(BackendError, match="not ours"):
        scene.backend.poll(scene.run)


@pytest.mark.parametrize(("code", "final", "uncertain"), [(400, True, False), (500, False, True)])
def test_a_refusal_is_final_only_where_the_order_is_at_fault(
    scene: Scene, world: World, code: int, final: bool, uncertain: bool
) -> None:
    scene.ray.refusal = RayRefusedError(code, "Traceback\nValueError: no such resource\n")
    with pytest.raises(BackendError, match=f"{code} ValueError: no such resource") as refused:
        scene.backend.submit(order(world.job(), attempt=2))
    assert (refused.value.final, refused.value.uncertain) == (final, uncertain)


def test_the_time_of_a_run_begins_when_its_node_took_it(scene: Scene) -> None:
    begin(scene)
    scene.folder.run_folder.mkdir()
    ended = '{"kind": "ended", "t_s": 1.0, "data": {"reason": "finished"}}\n'
    (scene.folder.run_folder / "events.jsonl").write_text(ended)
    end = datetime(2026, 1, 2, tzinfo=UTC)
    scene.ray.change(scene.run, state="SUCCEEDED", submitted=end - timedelta(days=9), ended=end)
    took = scene.backend.poll(scene.run).took
    assert took is not None
    assert (took.started, took.ended) == (datetime(2026, 1, 1, tzinfo=UTC), end)
