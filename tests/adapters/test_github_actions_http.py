"""Dispatch with the real workflow file over real HTTP: order, poll, cancel, and the folder that comes home."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bot.adapters.dispatch.github_actions import ActionsSettings, GitHubActionsBackend, artifact_name
from bot.adapters.github.workflows import GithubWorkflows
from bot.core.jobs import Repository
from bot.core.pulls.job_order import portable, unpack
from bot.core.pulls.ledger import Run, RunState, run_key
from bot.ports import BackendError
from tests.adapters.clocks import Hand
from tests.adapters.github_rooms import REPOSITORY, Room, room
from tests.core.builders import make_job

WORKFLOW = ".github/workflows/verl-e2e.yml"
SOURCE = (Path(__file__).resolve().parents[2] / WORKFLOW).read_bytes()
SETTINGS = ActionsSettings("main", "octo/verl-e2e", "c" * 40, image="verlai/verl:pinned")


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Room]:
    with room(tmp_path) as made:
        made.world.commit({WORKFLOW: SOURCE})
        yield made


@pytest.fixture
def clock(at: Room) -> Hand:
    made = Hand()
    made.time = at.world.state.now()
    return made


@pytest.fixture
def backend(at: Room, clock: Hand) -> GitHubActionsBackend:
    return GitHubActionsBackend(GithubWorkflows(at.github), SETTINGS, clock)


def order(at: Room) -> Run:
    head = at.world.head(1)
    job = make_job(bridge=Repository(path="/mirror/bridge", commit=head))
    now = at.world.state.now()
    key = run_key(REPOSITORY, head, job.digest(), 1)
    digest = job.digest()
    return Run(
        key=key,
        repository=REPOSITORY,
        number=1,
        head_sha=head,
        job_id=job.id,
        job_digest=digest,
        created=now,
        updated=now,
        job=job,
    )


def test_the_real_workflow_takes_the_order_once(at: Room, backend: GitHubActionsBackend) -> None:
    run = order(at)
    assert backend.submit(run) == backend.submit(run)
    (started,) = at.world.runs()
    assert run.job is not None
    assert unpack(started.inputs["job"]) == portable(run.job)
    assert run.key in started.title


def test_a_whole_run(at: Room, backend: GitHubActionsBackend, tmp_path: Path) -> None:
    run = order(at)
    run = run.model_copy(update={"handle": backend.submit(run), "state": RunState.SUBMITTED})
    assert backend.poll(run).state is RunState.SUBMITTED
    at.world.start_run(log=b"it begins\n")
    assert backend.poll(run).state is RunState.RUNNING
    assert not backend.artifacts(run, tmp_path / "home")
    at.world.finish_run({"job.json": b"{}", "related/base/events.jsonl": b""}, artifact=artifact_name(run.key))
    progress = backend.poll(run)
    assert progress.state is RunState.FINISHED
    assert "/actions/runs/" in progress.url
    assert backend.artifacts(run, tmp_path / "home")
    assert (tmp_path / "home/related/base/events.jsonl").is_file()
    assert b"it begins" in b"".join(backend.log(run))


def test_a_cancelled_run_ends(at: Room, backend: GitHubActionsBackend) -> None:
    run = order(at)
    run = run.model_copy(update={"handle": backend.submit(run), "state": RunState.CANCELLING})
    at.world.start_run()
    backend.cancel(run)
    backend.cancel(run)
    assert backend.poll(run).state is RunState.CANCELLED


def test_a_run_without_a_runner_is_given_up(at: Room, backend: GitHubActionsBackend, clock: Hand) -> None:
    run = order(at)
    run = run.model_copy(update={"handle": backend.submit(run), "state": RunState.SUBMITTED})
    clock.time += timedelta(minutes=121)
    backend.poll(run)
    progress = backend.poll(run)
    assert progress.state is RunState.LOST
    assert "gpu-x1" in progress.note


def test_a_repository_without_the_workflow_says_what_to_do(tmp_path: Path, clock: Hand) -> None:
    with room(tmp_path / "another") as bare:
        backend = GitHubActionsBackend(GithubWorkflows(bare.github), SETTINGS, clock)
        with pytest.raises(BackendError, match=r"verl-e2e\.yml.*verl-e2e doctor") as refused:
            backend.submit(order(bare))
    assert refused.value.final
