"""Dispatch to GitHub Actions: once for each key, bounded, given up in time, and what comes back."""

import json
import random
import string
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.core.builders import make_job
from tests.fakes.clocks import BEGAN, HandClock
from tests.fakes.places import ROOT
from tests.fakes.workflow_runs import FakeWorkflows
from verl_e2e.adapters.github.actions import (
    CHECKOUT_STEP,
    RUN_STEP,
    DispatchSettings,
    GitHubActionsBackend,
    artifact_name,
    order_inputs,
)
from verl_e2e.core.model.jobs import Job, Repository, SiteProfile
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.pulls.forge import HOSTED, ISSUER, PREDICATE, Attested, WorkflowJob, WorkflowStep
from verl_e2e.core.pulls.job_order import MAX_INPUT_CHARS, MAX_INPUTS, merge_base_of, placed, portable, unpack_order
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.ports import BackendError, ForgeError
from verl_e2e.wiring.engines import verify_attestations

SETTINGS = DispatchSettings("main", "o/verl-e2e", "c" * 40, verify_attestations())


def order(job: Job | None = None, **changes: Any) -> Run:
    job = job or make_job()
    if not job.site.image:
        job = job.model_copy(update={"site": job.site.model_copy(update={"image": "verlai/verl:pinned"})})
    head = job.bridge.commit
    return Run(
        key=run_key("o/r", head, job.digest(), 1),
        repository="o/r",
        number=7,
        head_sha=head,
        job_id=job.id,
        job_digest=job.digest(),
        created=BEGAN,
        updated=BEGAN,
        job=job,
    ).model_copy(update=changes)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def forge() -> FakeWorkflows:
    return FakeWorkflows(now=BEGAN)


@pytest.fixture
def backend(forge: FakeWorkflows, clock: HandClock) -> GitHubActionsBackend:
    return GitHubActionsBackend(forge, SETTINGS, clock)


def submitted(backend: GitHubActionsBackend, **changes: Any) -> Run:
    run = order(**changes)
    return run.model_copy(update={"handle": backend.submit(run), "state": RunState.SUBMITTED})


def test_an_order_given_twice_is_one_run(backend: GitHubActionsBackend, forge: FakeWorkflows) -> None:
    assert {backend.submit(order()), backend.submit(order())} == {"1"}
    assert list(forge.runs) == [1]


def test_an_answer_that_was_lost_starts_nothing_twice(backend: GitHubActionsBackend, forge: FakeWorkflows) -> None:
    forge.refuse, forge.lost_answer = ForgeError("GitHub did not answer", passing=True), True
    with pytest.raises(BackendError) as refused:
        backend.submit(order())
    assert not refused.value.final
    assert backend.submit(order()) == "1"
    assert list(forge.runs) == [1]


def test_a_workflow_that_is_not_there_is_for_people_to_fix(backend: GitHubActionsBackend, forge: FakeWorkflows) -> None:
    forge.refuse = ForgeError("no workflow verl-e2e.yml")
    with pytest.raises(BackendError, match=r"did not accept the dispatch.*verl-e2e doctor") as refused:
        backend.submit(order())
    assert refused.value.final


def test_the_inputs_carry_the_whole_job_and_no_path_of_ours() -> None:
    site = SiteProfile(name="hopper", image="verlai/verl:pinned")
    job = make_job(megatron_lm=Repository(path="/srv/mirror/mlm", commit="d" * 40), site=site)
    inputs = order_inputs(order(job), SETTINGS)
    sent = unpack_order(inputs["job"])
    assert sent == portable(job)
    assert [sent.bridge.path, sent.verl.path] == ["bridge", "verl"]
    assert sent.megatron_lm is not None
    there = placed(sent, "/__w/r/r/")
    assert (there.bridge.path, there.verl.commit) == ("/__w/r/r/bridge", job.verl.commit)
    assert json.loads(inputs["labels"]) == ["self-hosted", "linux", f"gpu-x{job.gpu_count}"]
    assert (inputs["pull"], inputs["head_sha"]) == ("7", job.bridge.commit)
    based = order_inputs(order(job).model_copy(update={"merge_base": "e" * 40}), SETTINGS)
    assert merge_base_of(based["job"]) == "e" * 40
    # Older servers take ten.
    assert len(inputs) <= 10 <= MAX_INPUTS
    assert sum(len(name) + len(value) for name, value in inputs.items()) < MAX_INPUT_CHARS / 8


def test_the_workflow_declares_exactly_the_inputs_that_are_sent() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/verl-e2e.yml").read_text())
    # YAML 1.1 reads the key `on` as true.
    events = workflow[True]
    for event in ("workflow_dispatch", "workflow_call"):
        assert set(events[event]["inputs"]) == set(order_inputs(order(), SETTINGS))
    assert "inputs.key" in workflow["run-name"]


@pytest.mark.parametrize(
    ("gpu_count", "label"), [(1, "gpu-x1"), (2, "gpu-x2"), (3, "gpu-x4"), (4, "gpu-x4"), (6, "gpu-x8"), (8, "gpu-x8")]
)
def test_the_smallest_runner_that_is_large_enough_is_asked_for(gpu_count: int, label: str) -> None:
    assert label in order_inputs(order(make_job(gpu_count=gpu_count)), SETTINGS)["labels"]


def test_a_run_of_a_fork_goes_to_the_pool_of_forks_and_to_no_other() -> None:
    pool = {1: ("self-hosted", "forks-x1")}
    settings = replace(SETTINGS, fork_runners=pool)
    assert json.loads(order_inputs(order(from_fork=True), settings)["labels"]) == ["self-hosted", "forks-x1"]
    assert "forks" not in order_inputs(order(), settings)["labels"]
    assert "gpu-x1" in order_inputs(order(from_fork=True), SETTINGS)["labels"]
    with pytest.raises(BackendError, match="largest runner that is named has 1"):
        order_inputs(order(make_job(gpu_count=8), from_fork=True), settings)


def noise(length: int) -> str:
    chosen = random.Random(1)
    return "".join(chosen.choice(string.printable.strip()) for _ in range(length))


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (make_job(gpu_count=16), "largest runner that is named has 8"),
        (make_job(overrides=(noise(80_000),)), "GitHub takes 65,535; `job` alone"),
    ],
)
def test_an_order_that_cannot_be_sent_is_refused_before_it_is(
    backend: GitHubActionsBackend, forge: FakeWorkflows, job: Job, text: str
) -> None:
    with pytest.raises(BackendError, match=text) as refused:
        backend.submit(order(job))
    assert refused.value.final
    assert forge.runs == {}


@pytest.mark.parametrize(
    ("status", "conclusion", "state"),
    [
        ("queued", "", RunState.SUBMITTED),
        ("waiting", "", RunState.SUBMITTED),
        ("pending", "", RunState.SUBMITTED),
        ("requested", "", RunState.SUBMITTED),
        ("a word of tomorrow", "", RunState.SUBMITTED),
        ("in_progress", "", RunState.RUNNING),
        ("completed", "success", RunState.FINISHED),
        ("completed", "failure", RunState.FINISHED),
        ("completed", "timed_out", RunState.FINISHED),
        ("completed", "a word of tomorrow", RunState.FINISHED),
        ("completed", "startup_failure", RunState.LOST),
        ("completed", "cancelled", RunState.CANCELLED),
    ],
)
def test_what_github_says_of_a_run(
    backend: GitHubActionsBackend, forge: FakeWorkflows, status: str, conclusion: str, state: RunState
) -> None:
    run = submitted(backend)
    forge.becomes(1, status, conclusion)
    progress = backend.poll(run)
    assert (progress.state, progress.url) == (state, forge.runs[1].url)


@pytest.mark.parametrize("name", ["0-lora-ddp", "run / 0-lora-ddp"])
@pytest.mark.parametrize(
    ("status", "conclusion", "of_job", "state"),
    [
        # In a repository without a server the report is a job of the same workflow run, and looks from inside it.
        ("in_progress", "", ("completed", "success"), RunState.FINISHED),
        ("in_progress", "", ("completed", "failure"), RunState.FINISHED),
        ("in_progress", "", ("completed", "cancelled"), RunState.CANCELLED),
        ("in_progress", "", ("in_progress", ""), RunState.RUNNING),
        ("queued", "", ("completed", "success"), RunState.FINISHED),
        ("queued", "", ("queued", ""), RunState.SUBMITTED),
        # A report that waits in its group is dropped when another one comes, and the whole is called cancelled.
        ("completed", "cancelled", ("completed", "success"), RunState.FINISHED),
        ("completed", "cancelled", ("completed", "cancelled"), RunState.CANCELLED),
    ],
)
def test_a_run_has_ended_when_its_job_has_whatever_follows_it(
    clock: HandClock,
    forge: FakeWorkflows,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    status: str,
    conclusion: str,
    of_job: tuple[str, str],
    state: RunState,
) -> None:
    backend = GitHubActionsBackend(forge, replace(SETTINGS, followed=True), clock)
    run = submitted(backend, job_id="0-lora-ddp")
    forge.becomes(1, status, conclusion)
    rows = (WorkflowJob(10, name, *of_job, "a-host"), WorkflowJob(11, "report", status, conclusion, "another"))
    monkeypatch.setattr(forge, "jobs", lambda *_: rows)
    assert backend.poll(run).state is state


RAN, NOT_REACHED = ("completed", "failure"), ("completed", "skipped")


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        # An image that could not be fetched, a machine that was lost before the job began.
        ({"Initialize containers": RAN, CHECKOUT_STEP: NOT_REACHED, RUN_STEP: NOT_REACHED}, EngineEnd.NODE_NOT_READY),
        ({"Check verl-e2e out": ("in_progress", ""), CHECKOUT_STEP: ("queued", ""), RUN_STEP: ("queued", "")},
         EngineEnd.NODE_NOT_READY),
        # A machine that was lost meanwhile, which no longer says how its step ended.
        ({CHECKOUT_STEP: ("completed", "success"), RUN_STEP: ("in_progress", "")}, EngineEnd.NODE_FAILED),
        # A change may name a submodule that cannot be checked out, and its code may end the step.
        ({CHECKOUT_STEP: RAN, RUN_STEP: NOT_REACHED}, None),
        ({CHECKOUT_STEP: ("completed", "success"), RUN_STEP: RAN}, None),
        # Nothing is known of a workflow with other steps.
        ({"Start": RAN}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_a_run_whose_machine_failed_says_so(
    clock: HandClock,
    forge: FakeWorkflows,
    monkeypatch: pytest.MonkeyPatch,
    steps: dict[str, tuple[str, str]],
    end: EngineEnd | None,
) -> None:
    backend = GitHubActionsBackend(forge, SETTINGS, clock)
    run = submitted(backend, job_id="0-lora-ddp")
    forge.becomes(1, "completed", "failure")
    rows = tuple(WorkflowStep(name, *state) for name, state in steps.items())
    job = WorkflowJob(10, "run / 0-lora-ddp", "completed", "failure", "a-host", steps=rows)
    monkeypatch.setattr(forge, "jobs", lambda *_: (job,))
    assert (backend.poll(run).state, backend.poll(run).end) == (RunState.FINISHED, end)
    monkeypatch.setattr(forge, "jobs", lambda *_: (replace(job, conclusion="success"),))
    assert backend.poll(run).end is None


def test_the_workflow_has_the_steps_that_say_how_far_a_run_came() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/verl-e2e.yml").read_text())
    names = [step.get("name") for step in workflow["jobs"]["run"]["steps"]]
    assert names.index(CHECKOUT_STEP) < names.index(RUN_STEP)


def test_what_followed_a_job_that_never_was_says_nothing_of_it(
    clock: HandClock, forge: FakeWorkflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = GitHubActionsBackend(forge, replace(SETTINGS, followed=True), clock)
    run = submitted(backend, job_id="0-lora-ddp").model_copy(update={"state": RunState.CANCELLING})
    forge.becomes(1, "completed", "cancelled")
    rows = (WorkflowJob(10, "run", "completed", "skipped"), WorkflowJob(11, "report", "completed", "success", "there"))
    monkeypatch.setattr(forge, "jobs", lambda *_: rows)
    assert backend.poll(run).state is RunState.CANCELLED


def test_a_run_that_no_runner_takes_is_given_up(
    backend: GitHubActionsBackend, forge: FakeWorkflows, clock: HandClock
) -> None:
    run = submitted(backend, queue_deadline_s=7_200)
    clock.time += timedelta(minutes=119)
    assert backend.poll(run).state is RunState.SUBMITTED
    clock.time += timedelta(minutes=2)
    forge.obeys = False
    progress = backend.poll(run)
    assert progress.state is RunState.CANCELLING, "nothing is lost before GitHub says that it ended"
    assert "took the job within 120 minutes" in progress.note
    assert forge.orders == [(1, False)]
    run = run.model_copy(update={"state": progress.state, "reason": progress.note})
    forge.becomes(1, "completed", "cancelled")
    progress = backend.poll(run)
    assert progress.state is RunState.LOST
    assert "no runner with the labels self-hosted, linux, gpu-x1 took the job within 120 minutes" in progress.note
    assert "doctor" in progress.note


def test_a_run_that_a_runner_took_is_not_given_up(
    backend: GitHubActionsBackend, forge: FakeWorkflows, clock: HandClock
) -> None:
    run = submitted(backend)
    forge.becomes(1, "in_progress")
    clock.time += timedelta(days=2)
    assert backend.poll(run).state is RunState.RUNNING
    assert forge.orders == []


def test_a_run_that_does_not_end_is_forced(
    backend: GitHubActionsBackend, forge: FakeWorkflows, clock: HandClock
) -> None:
    run = submitted(backend)
    forge.becomes(1, "in_progress")
    forge.obeys = False
    backend.cancel(run)
    run = run.model_copy(update={"state": RunState.CANCELLING})
    clock.time += timedelta(seconds=299)
    assert backend.poll(run).state is RunState.CANCELLING
    assert forge.orders == [(1, False)]
    clock.time += timedelta(seconds=1)
    backend.poll(run)
    assert forge.orders == [(1, False), (1, True)]
    assert backend.poll(run).state is RunState.CANCELLED


def test_a_process_that_comes_by_once_an_hour_forces_as_well(forge: FakeWorkflows, clock: HandClock) -> None:
    forge.obeys = False
    run = submitted(GitHubActionsBackend(forge, SETTINGS, clock))
    forge.becomes(1, "in_progress")
    run = run.model_copy(update={"state": RunState.CANCELLING, "updated": clock.now()})
    clock.time += timedelta(seconds=299)
    GitHubActionsBackend(forge, SETTINGS, clock).poll(run)
    assert forge.orders == []
    clock.time += timedelta(hours=1)
    GitHubActionsBackend(forge, SETTINGS, clock).poll(run)
    assert forge.orders == [(1, True)]


def test_a_run_that_github_forgot_is_lost(backend: GitHubActionsBackend, forge: FakeWorkflows) -> None:
    run = submitted(backend)
    forge.runs.clear()
    assert backend.poll(run).state is RunState.LOST
    assert backend.poll(run.model_copy(update={"state": RunState.CANCELLING})).state is RunState.CANCELLED


def test_a_run_without_a_handle_is_found_by_its_key(backend: GitHubActionsBackend, forge: FakeWorkflows) -> None:
    submitted(backend)
    forge.becomes(1, "in_progress")
    assert backend.poll(order()).state is RunState.RUNNING


def test_the_folder_of_the_key_is_brought_home(
    backend: GitHubActionsBackend, forge: FakeWorkflows, tmp_path: Path
) -> None:
    run = submitted(backend)
    assert not backend.artifacts(run, tmp_path / "home")
    name = artifact_name(run.key)
    forge.leave(1, "something-else", {"job.json": "forged"})
    forge.leave(1, name, {"job.json": "gone"}, expired=True)
    forge.leave(1, name, {"job.json": "first"})
    forge.leave(1, name, {"job.json": "of a rerun"})
    assert backend.artifacts(run, tmp_path / "home")
    assert (tmp_path / "home/job.json").read_text() == "of a rerun"


@pytest.mark.parametrize(
    ("tag", "signed_at", "refused"),
    [("", "c" * 40, False), ("", "refs/tags/v0.1", True), ("v0.1", "refs/tags/v0.1", False), ("v0.1", "x", True)],
)
def test_the_workflow_that_is_called_by_a_tag_may_sign_where_the_tag_is_what_was_chosen(
    forge: FakeWorkflows, clock: HandClock, tag: str, signed_at: str, refused: bool
) -> None:
    def verify(bundle: str) -> Attested:
        found = forge.runs[1]
        web, _, _ = found.url.partition("/actions/runs/")
        signer = f"{web.removesuffix('/o/r')}/o/verl-e2e/.github/workflows/verl-e2e.yml@{signed_at}"
        dispatched = f"{web}/.github/workflows/verl-e2e.yml@refs/heads/main"
        run = f"{found.url}/attempts/{found.attempt}"
        digests = frozenset({bundle})
        return Attested(PREDICATE, digests, ISSUER, web, dispatched, signer, found.head_sha, run, HOSTED)

    backend = GitHubActionsBackend(forge, replace(SETTINGS, verify=verify, tool_tag=tag), clock)
    run = submitted(backend)
    forge.leave(1, artifact_name(run.key), {"job.json": "first"}, sha256="e" * 64)
    forge.attested["e" * 64] = ("e" * 64,)
    assert ("its signer is" in backend.unattested(run)) is refused


def test_an_artifact_over_the_cap_is_refused(
    backend: GitHubActionsBackend, forge: FakeWorkflows, tmp_path: Path
) -> None:
    run = submitted(backend)
    forge.leave(1, artifact_name(run.key), {"job.json": ""}, size=10**12)
    with pytest.raises(BackendError, match="1,000,000,000,000 bytes") as refused:
        backend.artifacts(run, tmp_path / "home")
    assert refused.value.final
