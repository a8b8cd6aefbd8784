"""The local back end with real processes: the real runner on repositories of our own, killed starters among them."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes.clocks import BEGAN, HandClock, StoryClock
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.runners.world import World, make_world
from verl_e2e.adapters.dispatch.copying import Caps
from verl_e2e.adapters.dispatch.local_backend import LocalBackend
from verl_e2e.adapters.dispatch.order_folder import ORDER_VARIABLE
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.judge.verdict import Result, judge
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.needs import Capacity, SiteNeeds
from verl_e2e.core.model.record import EndReason
from verl_e2e.core.pulls.job_order import same_job
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.ports import BackendError

pytestmark = pytest.mark.host

SOON_S = HANG_S


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "runs"
    for process in psutil.process_iter():
        try:
            if process.environ().get(ORDER_VARIABLE) and str(tmp_path) in " ".join(process.cmdline()):
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture
def backend(root: Path, clock: HandClock) -> LocalBackend:
    return make_backend(root, clock)


def make_backend(root: Path, clock: HandClock | StoryClock, **changes: Any) -> LocalBackend:
    environ = {"PATH": os.environ["PATH"], "HOME": str(root.parent)}
    return LocalBackend(root, **{"environ": environ, "clock": clock, "open_log": open_log, **changes})


@pytest.fixture
def slow(world: World, tmp_path: Path) -> Job:
    """A job whose interpreter never answers: the runner waits for it in preflight until it is ended."""
    python = tmp_path / "python-that-never-answers"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    return world.job(site=world.site(python=str(python)))


def order(job: Job, *, attempt: int = 1, after_s: float = 0.0) -> Run:
    key = run_key("o/r", job.bridge.commit, job.digest(), attempt)
    at = BEGAN + timedelta(seconds=after_s)
    return Run(
        key=key,
        repository="o/r",
        number=1,
        head_sha=job.bridge.commit,
        job_id=job.id,
        job_digest=job.digest(),
        attempt=attempt,
        created=at,
        updated=at,
        job=job,
    )


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def state(backend: LocalBackend, run: Run) -> RunState:
    return backend.poll(run).state


def runners_of(run: Run) -> list[int]:
    """The runners of an order: what names its job file, less the copies that live between fork and exec."""
    named = [item.info for item in psutil.process_iter(["pid", "ppid", "cmdline"]) if item.info["cmdline"]]
    ours = {item["pid"]: item["ppid"] for item in named if run.key in " ".join(item["cmdline"])}
    return [pid for pid, parent in ours.items() if parent not in ours]


def test_a_run_ends_in_a_folder_that_is_judged(world: World, backend: LocalBackend, tmp_path: Path) -> None:
    run = order(world.job())
    assert backend.submit(run) == run.key
    until(lambda: state(backend, run) is RunState.FINISHED)
    into = tmp_path / "home"
    assert backend.artifacts(run, into)
    record = read_record(into)
    assert judge(record, None).result is Result.BLOCKED
    assert record.job is not None
    assert same_job(record.job, world.job())
    assert not same_job(record.job, world.job(steps=2))
    assert b"preflight" in b"".join(backend.log(run))


def test_an_order_given_twice_is_one_run(slow: Job, backend: LocalBackend) -> None:
    run = order(slow)
    handles = {backend.submit(run), backend.submit(run)}
    until(lambda: len(runners_of(run)) == 1)
    backend.submit(run)
    assert (handles, len(runners_of(run))) == ({run.key}, 1)
    assert state(backend, run) is RunState.RUNNING


STARTER = """
import os, sys, threading
from pathlib import Path
sys.path[:0] = [{root!r}]
from tests.fakes.clocks import HandClock
from tests.adapters.test_local_backend import make_backend
from verl_e2e.core.pulls.ledger import Run
backend = make_backend(Path(sys.argv[1]), HandClock())
run = Run.model_validate_json(sys.stdin.read())
print("ready", flush=True)
backend.submit(run)
print("submitted", flush=True)
threading.Event().wait()
"""


def start_elsewhere(root: Path, run: Run) -> subprocess.Popen[bytes]:
    """Another process that submits the order and then lives until it is killed."""
    script = STARTER.format(root=str(ROOT))
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert other.stdin is not None
    other.stdin.write(run.model_dump_json().encode())
    other.stdin.close()
    return other


def test_a_run_survives_the_service_that_started_it(slow: Job, root: Path, clock: HandClock, tmp_path: Path) -> None:
    run = order(slow)
    with start_elsewhere(root, run) as other:
        assert other.stdout is not None
        assert other.stdout.read(16) == b"ready\nsubmitted\n"
        other.kill()
    restarted = make_backend(root, clock)
    assert state(restarted, run) is RunState.RUNNING
    assert restarted.submit(run) == run.key
    assert len(runners_of(run)) == 1
    until(lambda: "phase" in restarted.poll(run).note)
    restarted.cancel(run)
    until(lambda: state(restarted, run) is RunState.CANCELLED)
    assert restarted.artifacts(run, tmp_path / "home")


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.002, 0.004, 0.008, 0.016])
def test_a_service_killed_at_any_moment_leaves_one_run(slow: Job, root: Path, clock: HandClock, delay_s: float) -> None:
    run = order(slow)
    with start_elsewhere(root, run) as other:
        assert other.stdout is not None
        other.stdout.readline()
        time.sleep(delay_s)
        other.kill()
    backends = [make_backend(root, clock) for _ in range(3)]
    for backend in backends:
        backend.submit(run)
    until(lambda: state(backends[0], run) is RunState.RUNNING)
    until(lambda: len(runners_of(run)) == 1)
    assert {state(backend, run) for backend in backends} == {RunState.RUNNING}


def test_cancelling_leaves_a_whole_folder(slow: Job, backend: LocalBackend, tmp_path: Path) -> None:
    run = order(slow)
    backend.submit(run)
    until(lambda: "phase" in backend.poll(run).note)
    backend.cancel(run)
    backend.cancel(run)
    until(lambda: state(backend, run) is RunState.CANCELLED)
    assert backend.artifacts(run, tmp_path / "home")
    events = [json.loads(line) for line in (tmp_path / "home/events.jsonl").read_text().splitlines()]
    assert [event["data"]["reason"] for event in events if event["kind"] == "ended"] == [EndReason.INTERRUPTED]


def test_one_run_at_a_time_in_the_order_of_their_asking(slow: Job, backend: LocalBackend) -> None:
    second, first = order(slow, attempt=2, after_s=5), order(slow)
    third = order(slow, attempt=3, after_s=9)
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
    slow: Job, root: Path, clock: HandClock, tmp_path: Path
) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    site = slow.site.model_copy(update={"needs": SiteNeeds(gpu_share=0.25)})
    quarter = slow.model_copy(update={"site": site})
    jobs = (quarter, quarter, quarter, slow, quarter)
    runs = [order(job, attempt=number, after_s=number) for number, job in enumerate(jobs, 1)]
    backend = make_backend(root, clock, command=(str(sleeper),), capacity=Capacity(slots=4, gpu_count=1))
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


def test_an_order_cancelled_while_it_waits_never_begins(slow: Job, backend: LocalBackend, tmp_path: Path) -> None:
    first, second = order(slow), order(slow, attempt=2)
    backend.submit(first)
    backend.submit(second)
    backend.cancel(second)
    backend.cancel(first)
    until(lambda: state(backend, first) is RunState.CANCELLED)
    assert state(backend, second) is RunState.CANCELLED
    assert backend.submit(second) == second.key
    assert runners_of(second) == []
    assert not backend.artifacts(second, tmp_path / "home")


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


def test_a_runner_that_will_not_end_is_ended(slow: Job, root: Path, clock: HandClock, tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn"
    stubborn.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.1; done\n")
    stubborn.chmod(0o755)
    backend = make_backend(root, clock, command=(str(stubborn),), grace_s=30.0)
    run = order(slow)
    backend.submit(run)
    time.sleep(0.3)
    backend.cancel(run)
    assert state(backend, run) is RunState.CANCELLING
    clock.time += timedelta(seconds=31)
    until(lambda: state(backend, run) is RunState.CANCELLED)


def test_a_runner_that_cannot_begin_is_lost_with_its_own_words(world: World, root: Path, clock: HandClock) -> None:
    backend = make_backend(root, clock, command=("/bin/sh", "-c", "echo no such verb >&2; exit 2", "sh"))
    run = order(world.job())
    backend.submit(run)
    until(lambda: state(backend, run) is RunState.LOST)
    assert "no such verb" in backend.poll(run).note


def test_the_end_of_a_run_is_that_of_its_runner_however_late_the_look_is(world: World, root: Path) -> None:
    clock, began = StoryClock(), datetime.now(UTC)
    backend = make_backend(root, clock, command=("/bin/sh", "-c", "exit 2", "sh"))
    run = order(world.job())
    backend.submit(run)
    until((root / run.key / "ended").exists)
    clock.ahead = timedelta(hours=2)
    took = backend.poll(run).took
    assert took is not None
    assert took.ended is not None
    assert took.ended - began < timedelta(hours=1)
    # A time that cannot be true, as a run that is not isolated may write it, and none at all: by now.
    for written in (str((began - timedelta(hours=9)).timestamp()), "1e300", "soon"):
        (root / run.key / "ended").write_text(written)
        assert (took := backend.poll(run).took) is not None
        assert took.ended is not None
        assert took.ended - began > timedelta(hours=1)


def test_a_run_that_nobody_knows_is_lost(world: World, backend: LocalBackend) -> None:
    assert state(backend, order(world.job())) is RunState.LOST


@pytest.mark.parametrize("name", ["GITHUB_WEBHOOK_SECRET", "GITHUB_APP_PRIVATE_KEY", "DATABASE_URL", "HF_TOKEN"])
def test_the_service_keeps_its_secrets_to_itself(world: World, root: Path, clock: HandClock, name: str) -> None:
    environ = {"PATH": os.environ["PATH"], name: "not-for-jobs", "CUDA_HOME": "/cuda"}
    backend = make_backend(
        root, clock, environ=environ, command=("/usr/bin/env", "-u", "PATH", "sh", "-c", "env", "sh")
    )
    backend.submit(order(world.job()))
    until(lambda: state(backend, order(world.job())) is RunState.LOST)
    text = b"".join(backend.log(order(world.job()))).decode()
    assert "not-for-jobs" not in text
    assert "CUDA_HOME=/cuda" in text


def test_a_folder_over_the_cap_is_refused_whole(world: World, root: Path, clock: HandClock, tmp_path: Path) -> None:
    backend = make_backend(root, clock, caps=Caps(total_bytes=1000))
    run = order(world.job())
    backend.submit(run)
    until(lambda: state(backend, run) is RunState.FINISHED)
    with pytest.raises(BackendError, match="more than 1,000 bytes") as refused:
        backend.artifacts(run, tmp_path / "home")
    assert refused.value.final
    assert not (tmp_path / "home").exists()


def test_an_order_without_a_job_is_refused(world: World, backend: LocalBackend) -> None:
    run = order(world.job()).model_copy(update={"job": None})
    with pytest.raises(BackendError, match="has no job"):
        backend.submit(run)


def test_a_handle_that_leads_elsewhere_is_refused(world: World, backend: LocalBackend) -> None:
    run = order(world.job()).model_copy(update={"handle": "../../etc"})
    with pytest.raises(BackendError, match="not a run key"):
        backend.poll(run)


def test_a_log_that_does_not_exist_yet_is_empty(world: World, backend: LocalBackend) -> None:
    assert io.BytesIO(b"".join(backend.log(order(world.job())))).read() == b""
