"""`verl-e2e action order` as the job on the GPU host calls it: a real process against GitHub over HTTP."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.github_adapters import REPOSITORY, GithubAdapters, github_adapters
from tests.core.builders import make_job
from tests.fakes.command_server import verl_e2e
from tests.fakes.patience import HANG_S
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.model.jobs import Job, Repository, RepositoryOrigin
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.job_order import OrderTarget, pack_order, same_job

TOKEN = "ghs_that-may-only-read"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[GithubAdapters]:
    with github_adapters(tmp_path / "github") as made:
        made.world.actions_token(TOKEN, {"contents": "read", "pull_requests": "read"})
        yield made


def job_for(at: GithubAdapters) -> Job:
    return make_job(bridge=Repository(path="/of/the/bot", commit=at.world.head(1)))


class Step:
    """One step of a workflow, as its runner starts it."""

    def __init__(self, at: GithubAdapters, folder: Path, verb: str = "order", **changes: str) -> None:
        self.output = folder / "output"
        folder.mkdir(exist_ok=True)
        variables = {
            "PATH": os.environ["PATH"],
            "GITHUB_API_URL": at.world.url,
            "GITHUB_REPOSITORY": REPOSITORY,
            "GITHUB_WORKSPACE": str(folder / "workspace"),
            "GITHUB_OUTPUT": str(self.output),
            "RUNNER_TEMP": str(folder / "temp"),
            "VERL_E2E_TOKEN": TOKEN,
            "VERL_E2E_JOB_ID": "0-lora-ddp",
            "VERL_E2E_JOB": pack_order(job_for(at)),
            "VERL_E2E_TARGET": str(OrderTarget(at.world.head(1), 1)),
        }
        command = [*verl_e2e(), "action", verb]
        self.done = subprocess.run(
            command, env=variables | changes, cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S
        )

    @property
    def outputs(self) -> dict[str, str]:
        lines = self.output.read_text().splitlines() if self.output.exists() else []
        return dict(line.partition("=")[::2] for line in lines)


def test_the_job_is_laid_down_for_the_checkouts_of_this_machine(at: GithubAdapters, tmp_path: Path) -> None:
    step = Step(at, tmp_path / "step")
    assert step.done.returncode == 0, step.done.stderr
    assert step.outputs["go"] == "true"
    job = Job.model_validate_json(Path(step.outputs["job-file"]).read_bytes())
    assert same_job(job, job_for(at))
    assert job.bridge.path == str(tmp_path / "step/workspace/bridge")
    assert (step.outputs["bridge-sha"], step.outputs["verl-sha"]) == (at.world.head(1), job.verl.commit)
    assert not Path(step.outputs["folder"]).exists()


def test_another_trainer_is_checked_out_from_its_own_repository(at: GithubAdapters, tmp_path: Path) -> None:
    assert Step(at, tmp_path / "verl").outputs["consumer-repository"] == ""
    job = job_for(at).model_copy(update={"consumer": "skyrl"})
    outputs = Step(at, tmp_path / "skyrl", VERL_E2E_JOB=pack_order(job)).outputs
    assert outputs["consumer-repository"] == "NovaSky-AI/SkyRL"


def test_megatron_lm_comes_from_where_the_policy_of_the_base_says(at: GithubAdapters, tmp_path: Path) -> None:
    address = "https://forge.example/o/mlm"
    job = job_for(at).model_copy(update={"origins": {"megatron_lm": RepositoryOrigin(url=address)}})
    assert Step(at, tmp_path / "step", VERL_E2E_JOB=pack_order(job)).outputs["megatron-lm"] == address
    assert Step(at, tmp_path / "other").outputs["megatron-lm"] == ""


def test_a_head_that_moved_is_blocked_and_nothing_runs(at: GithubAdapters, tmp_path: Path) -> None:
    old, packed = at.world.head(1), pack_order(job_for(at))
    new = at.world.push(1, {"src/a.py": b"a = 2\n"})
    step = Step(at, tmp_path / "step", VERL_E2E_TARGET=str(OrderTarget(old, 1)), VERL_E2E_JOB=packed)
    assert step.done.returncode == 0
    assert (step.outputs["go"], new in step.outputs["why"]) == ("false", True)
    record = read_record(Path(step.outputs["folder"]))
    verdict = judge(record, None)
    assert verdict.result is Result.BLOCKED
    assert new in verdict.sentence + verdict.cause
    assert record.job is not None
    assert record.job.bridge.commit == old


def test_a_closed_pull_request_is_blocked(at: GithubAdapters, tmp_path: Path) -> None:
    at.world.close(1)
    assert Step(at, tmp_path / "step").outputs["why"] == "the pull request is closed"


@pytest.mark.parametrize("changes", [{"VERL_E2E_TOKEN": "ghs_of-nobody"}, {"GITHUB_REPOSITORY": "octo/gone"}])
def test_a_head_that_cannot_be_read_is_blocked(at: GithubAdapters, tmp_path: Path, changes: dict[str, str]) -> None:
    step = Step(at, tmp_path / "step", **changes)
    assert step.outputs["go"] == "false"
    assert "could not be read again" in step.outputs["why"]


def test_a_merge_group_has_no_pull_request_to_read(at: GithubAdapters, tmp_path: Path) -> None:
    target = str(OrderTarget(at.world.head(1), None))
    assert Step(at, tmp_path / "step", VERL_E2E_TARGET=target).outputs["go"] == "true"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"VERL_E2E_JOB": "forged"}, "not one that verl-e2e packed"),
        ({"VERL_E2E_JOB_ID": "5-learning"}, "the order is called '5-learning' and holds 0-lora-ddp"),
        ({"VERL_E2E_TARGET": "1@main"}, "not NUMBER@SHA"),
        ({"RUNNER_TEMP": ""}, "RUNNER_TEMP: it is empty"),
    ],
)
def test_what_is_no_order_is_one_sentence(
    at: GithubAdapters, tmp_path: Path, changes: dict[str, str], text: str
) -> None:
    step = Step(at, tmp_path / "step", **changes)
    assert step.done.returncode == 2
    assert text in step.done.stderr
    assert step.done.stderr.count("\n") == 1
    assert "go" not in step.outputs


def handed_over(at: GithubAdapters, folder: Path) -> tuple[Path, dict[str, str]]:
    """A run folder with its digest as the GPU job reports it, and what the second job gets."""
    moved = at.world.head(1)[::-1]
    taken = Step(at, folder / "gpu", VERL_E2E_TARGET=str(OrderTarget(moved, 1)))
    run = Path(taken.outputs["folder"])
    taken = Step(at, folder / "digest", "digest", VERL_E2E_FOLDER=str(run))
    assert taken.done.returncode == 0, taken.done.stderr
    return run, {
        "VERL_E2E_FOLDER": str(run),
        "VERL_E2E_DIGEST": taken.outputs["digest"],
        "RUNNER_ENVIRONMENT": "github-hosted",
    }


def test_a_folder_that_is_as_the_job_left_it_is_handed_over(at: GithubAdapters, tmp_path: Path) -> None:
    _, message = handed_over(at, tmp_path)
    assert len(message["VERL_E2E_DIGEST"]) == 64
    checked = Step(at, tmp_path / "attest", "check-digest", **message)
    assert checked.done.returncode == 0, checked.done.stderr


def test_the_summary_of_the_job_has_the_card(at: GithubAdapters, tmp_path: Path) -> None:
    run, _ = handed_over(at, tmp_path)
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    (run / "card.md").write_text("### Fail - it broke\n")
    done = Step(at, tmp_path / "again", "digest", VERL_E2E_FOLDER=str(run), GITHUB_STEP_SUMMARY=str(summary)).done
    assert (done.returncode, summary.read_text()) == (0, "before\n### Fail - it broke\n"), done.stderr


@pytest.mark.parametrize("what", ["content", "added", "removed", "link"])
def test_a_folder_that_was_changed_after_the_job_is_not(at: GithubAdapters, tmp_path: Path, what: str) -> None:
    run, message = handed_over(at, tmp_path)
    match what:
        case "content":
            (run / "events.jsonl").write_text("")
        case "added":
            (run / "metrics.jsonl").write_text("")
        case "removed":
            (run / "environment.json").unlink()
        case _:
            (run / "log.txt").symlink_to("/etc/passwd")
    checked = Step(at, tmp_path / "attest", "check-digest", **message)
    assert checked.done.returncode == 2
    assert "was changed after the job ended" in checked.done.stderr or "is a link" in checked.done.stderr


def test_the_folder_of_another_job_is_not_handed_over(at: GithubAdapters, tmp_path: Path) -> None:
    _, message = handed_over(at, tmp_path)
    other = make_job(bridge=Repository(path="/of/the/bot", commit="e" * 40))
    checked = Step(at, tmp_path / "attest", "check-digest", **message, VERL_E2E_JOB=pack_order(other))
    assert checked.done.returncode == 2
    assert "not of the job '0-lora-ddp' that was ordered" in checked.done.stderr


def test_a_machine_of_ours_hands_nothing_over(at: GithubAdapters, tmp_path: Path) -> None:
    _, message = handed_over(at, tmp_path)
    checked = Step(at, tmp_path / "attest", "check-digest", **(message | {"RUNNER_ENVIRONMENT": "self-hosted"}))
    assert checked.done.returncode == 2
    assert "not a GitHub-hosted runner" in checked.done.stderr
