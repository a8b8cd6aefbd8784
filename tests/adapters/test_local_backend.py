"""What the local back end has that no other engine has: the slots of one host, and processes of its own."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from tests.fakes.clocks import BEGAN, HandClock
from tests.fakes.engines import LocalEngine, order, ready, runners_of, unending, until
from tests.runners.world import World
from verl_e2e.adapters.dispatch.local_backend import LocalBackend
from verl_e2e.adapters.dispatch.shared_disk import GRACE_S
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.needs import Capacity, SiteNeeds
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.ports import Backend


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    with ready(LocalEngine(tmp_path / "runs")) as made:
        yield made


@pytest.fixture
def backend(engine: LocalEngine, clock: HandClock) -> LocalBackend:
    return engine.with_changes(clock=clock)


@pytest.fixture
def slow(world: World, tmp_path: Path) -> Job:
    return unending(world, tmp_path)


def state(backend: Backend, run: Run) -> RunState:
    return backend.poll(run).state


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.002, 0.004, 0.008, 0.016])
def test_a_service_killed_at_any_moment_leaves_one_run(slow: Job, engine: LocalEngine, delay_s: float) -> None:
    run = order(slow)
    with engine.submitting_elsewhere(run) as printed:
        printed.readline()
        time.sleep(delay_s)
    backends = [engine.make() for _ in range(3)]
    for backend in backends:
        backend.submit(run)
    until(lambda: state(backends[0], run) is RunState.RUNNING)
    until(lambda: len(runners_of(run)) == 1)
    assert {state(backend, run) for backend in backends} == {RunState.RUNNING}


def test_one_run_at_a_time_in_the_order_of_their_asking(slow: Job, backend: LocalBackend) -> None:
    first, second, third = (order(slow, at=BEGAN + timedelta(seconds=later)) for later in (0, 5, 9))
    backend.submit(first)
    for waiting in (third, second):
        backend.submit(waiting)
    assert [state(backend, run) for run in (first, second, third)] == [
        RunState.RUNNING,
        RunState.SUBMITTED,
        RunState.SUBMITTED,
    ]
    backend.cancel(first)
    until(lambda: state(backend, first) is RunState.CANCELLED)
    until(lambda: state(backend, second) is RunState.RUNNING)
    assert state(backend, third) is RunState.SUBMITTED


def test_a_host_with_slots_runs_jobs_side_by_side_and_lets_a_large_one_have_its_turn(
    slow: Job, engine: LocalEngine, tmp_path: Path
) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    site = slow.site.model_copy(update={"needs": SiteNeeds(gpu_share=0.25)})
    quarter = slow.model_copy(update={"site": site})
    jobs = (quarter, quarter, quarter, slow, quarter)
    runs = [order(job, at=BEGAN + timedelta(seconds=later)) for later, job in enumerate(jobs)]
    backend = engine.with_changes(command=(str(sleeper),), capacity=Capacity(slots=4, gpu_count=1))
    for run in runs:
        backend.submit(run)
    running, waiting = RunState.RUNNING, RunState.SUBMITTED
    assert [state(backend, run) for run in runs] == [running] * 3 + [waiting] * 2
    for run in runs[:3]:
        backend.cancel(run)
    until(lambda: state(backend, runs[3]) is running)
    assert state(backend, runs[4]) is waiting, "the whole GPU is taken"
    backend.cancel(runs[3])
    until(lambda: state(backend, runs[4]) is running)


def test_a_killed_runner_is_lost_and_leaves_nothing_behind(slow: Job, backend: LocalBackend) -> None:
    run = order(slow)
    backend.submit(run)
    until(lambda: "phase" in backend.poll(run).note)
    (runner,) = runners_of(run)
    below = psutil.Process(runner).children(recursive=True)
    os.kill(runner, signal.SIGKILL)
    until(lambda: state(backend, run) is RunState.LOST)
    assert "rerun" in backend.poll(run).note
    until(lambda: not any(process.is_running() and process.status() != "zombie" for process in below))


def test_a_runner_that_will_not_end_is_ended(slow: Job, engine: LocalEngine, clock: HandClock, tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn"
    stubborn.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.1; done\n")
    stubborn.chmod(0o755)
    backend = engine.with_changes(clock=clock, command=(str(stubborn),))
    run = order(slow)
    backend.submit(run)
    time.sleep(0.3)
    backend.cancel(run)
    assert state(backend, run) is RunState.CANCELLING
    clock.time += timedelta(seconds=GRACE_S + 1)
    until(lambda: state(backend, run) is RunState.CANCELLED)


def test_a_runner_that_cannot_begin_is_lost_with_its_own_words(world: World, engine: LocalEngine) -> None:
    backend = engine.with_changes(command=("/bin/sh", "-c", "echo no such verb >&2; exit 2", "sh"))
    run = order(world.job())
    backend.submit(run)
    until(lambda: state(backend, run) is RunState.LOST)
    assert "no such verb" in backend.poll(run).note


def test_the_end_of_a_run_is_that_of_its_runner_however_late_the_look_is(world: World, engine: LocalEngine) -> None:
    began = datetime.now(UTC)
    backend = engine.with_changes(command=("/bin/sh", "-c", "exit 2", "sh"))
    run = order(world.job())
    backend.submit(run)
    note = engine.root / run.key / "ended"
    until(lambda: note.exists() and note.read_text() != "")
    engine.clock.ahead = timedelta(hours=2)
    took = backend.poll(run).took
    assert took is not None
    assert took.ended is not None
    assert took.ended - began < timedelta(hours=1)
    # A time that cannot be true, as a run that is not isolated may write it, and none at all: by now.
    for written in (str((began - timedelta(hours=9)).timestamp()), "1e300", "soon"):
        note.write_text(written)
        assert (took := backend.poll(run).took) is not None
        assert took.ended is not None
        assert took.ended - began > timedelta(hours=1)


def test_a_runner_that_ends_at_once_has_begun(
    world: World, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = psutil.Process

    def find_late(pid: int) -> psutil.Process:
        """Look when the runner has ended, and anyone who awaited it had the time to hear of it."""
        until(lambda: not psutil.pid_exists(pid) or find(pid).status() == psutil.STATUS_ZOMBIE)
        time.sleep(0.5)
        return find(pid)

    backend = engine.with_changes(command=("/bin/sh", "-c", "exit 2", "sh"))
    run = order(world.job())
    with monkeypatch.context() as late:
        late.setattr(psutil, "Process", find_late)
        backend.submit(run)
    assert state(backend, run) is RunState.LOST
    assert (took := backend.poll(run).took) is not None
    assert took.started is not None


def test_a_runner_knows_its_host_and_no_secret_of_the_service(world: World, engine: LocalEngine) -> None:
    secrets = ("GITHUB_WEBHOOK_SECRET", "GITHUB_APP_PRIVATE_KEY", "DATABASE_URL", "HF_TOKEN")
    environ = {"PATH": os.environ["PATH"], "CUDA_HOME": "/cuda", "VERL_E2E_HOST_FOLDER": "/host"}
    environ |= dict.fromkeys(secrets, "not-for-jobs")
    backend = engine.with_changes(environ=environ, command=("/usr/bin/env", "-u", "PATH", "sh", "-c", "env", "sh"))
    run = order(world.job())
    backend.submit(run)
    until(lambda: state(backend, run) is RunState.LOST)
    lines = b"".join(backend.log(run)).decode().splitlines()
    assert not [line for line in lines if "not-for-jobs" in line]
    assert {"CUDA_HOME=/cuda", "VERL_E2E_HOST_FOLDER=/host"} <= set(lines)
