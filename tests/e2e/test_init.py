"""`verl-e2e init` as a user types it, in clones of a repository with Megatron-Bridge's layout."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.fakes.command_server import verl_e2e
from tests.fakes.github_standin.world import World, living
from tests.fakes.patience import HANG_S
from verl_e2e.config import load_policy, packaged_policy

TOOL = "octo/verl-e2e@v0.1.0"
ACTION = {"verl-e2e-plan.yml", "verl-e2e-comment.yml", "verl-e2e.yml", "verl-e2e-report.yml"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with living(tmp_path / "github", "octo/bridge") as world:
        yield world


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    (folder / "src/megatron/bridge").mkdir(parents=True)
    (folder / "src/megatron/bridge/__init__.py").write_text("x = 1\n")
    git(folder.parent, "init", "--quiet", "--initial-branch=main", str(folder))
    git(folder, "remote", "add", "origin", "git@github.com:octo/bridge.git")
    return folder


def init(
    clone: Path, *words: str, api: str = "http://127.0.0.1:1", answers: str = ""
) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "GITHUB_API_URL": api}
    command = [*verl_e2e(), "init", *words]
    return subprocess.run(
        command, cwd=clone, env=env, input=answers, capture_output=True, text=True, timeout=HANG_S, check=False
    )


def files(clone: Path) -> dict[str, str]:
    return {str(path.relative_to(clone)): path.read_text() for path in clone.glob(".github/**/*.yml")}


def test_the_defaults_install_action_mode_at_the_commit_of_the_release(world: World, clone: Path) -> None:
    commit = world.state.add_repository("octo/verl-e2e").git.commit("refs/tags/v0.1.0", {"action.yml": "x\n"}, "One")
    done = init(clone, "--yes", "--tool", TOOL, api=f"{world.url}/api/v3")
    assert (done.returncode, done.stderr) == (0, "")
    written = files(clone)
    assert set(written) == {".github/verl-e2e.yml", *(f".github/workflows/{name}" for name in ACTION)}
    for path, text in written.items():
        assert "0000000" not in text
        assert "OWNER/" not in text
        assert path == ".github/verl-e2e.yml" or f"@{commit} # v0.1.0\n" in text
    policy = load_policy(written[".github/verl-e2e.yml"], "p.yml")
    assert (policy.image, policy.rules) == (packaged_policy().image, packaged_policy().rules)
    # The branch of the jobs holds that one workflow, and the work tree is untouched.
    job = ".github/workflows/verl-e2e.yml"
    assert git(clone, "ls-tree", "-r", "--name-only", "verl-e2e") == job
    assert f"{git(clone, 'show', f'verl-e2e:{job}')}\n" == written[job]
    assert git(clone, "symbolic-ref", "HEAD") == "refs/heads/main"
    # What it says to type works.
    git(clone, "config", "user.name", "a")
    git(clone, "config", "user.email", "a@b")
    typed = [line.strip() for line in done.stdout.splitlines() if line.startswith("  git ")]
    for line in typed[:2]:
        subprocess.run(["bash", "-c", line], cwd=clone, check=True, capture_output=True)
    assert typed[2] == "git push origin HEAD verl-e2e"
    assert set(git(clone, "ls-tree", "-r", "--name-only", "HEAD").splitlines()) == set(written)


def test_answers_are_asked_for_and_stand_in_the_files(clone: Path) -> None:
    done = init(clone, answers="action\nocto/verl-e2e@v0.1.0\n1=mine,big\nown/verl:two\ny\n")
    assert done.returncode == 0, done.stderr
    assert "the workflows name the tag" in done.stderr
    written = files(clone)
    assert ".github/workflows/verl-e2e-gate.yml" in written
    steps = [
        step["with"]
        for text in written.values()
        for job in yaml.safe_load(text).get("jobs", {}).values()
        for step in job.get("steps", ())
    ]
    assert len(steps) == 5
    assert {(step["runners"], step["image"]) for step in steps} == {("1=mine,big", "own/verl:two")}
    assert str(load_policy(written[".github/verl-e2e.yml"], "p.yml").image) == "own/verl:two"
    assert "octo/verl-e2e/.github/workflows/verl-e2e.yml@v0.1.0" in written[".github/workflows/verl-e2e.yml"]


def test_a_second_time_changes_nothing_and_other_answers_replace_nothing(clone: Path) -> None:
    assert init(clone, "--yes").returncode == 0
    before, branch = files(clone), git(clone, "rev-parse", "verl-e2e")
    again = init(clone, "--yes")
    assert again.returncode == 0
    assert "wrote" not in again.stdout
    assert (files(clone), git(clone, "rev-parse", "verl-e2e")) == (before, branch)
    other = init(clone, "--yes", "--image", "own/verl:two")
    assert other.returncode == 2
    assert other.stderr.count("exists and holds something else; compare, then remove it or use --force") == 5
    assert (files(clone), git(clone, "rev-parse", "verl-e2e")) == (before, branch)
    assert init(clone, "--yes", "--image", "own/verl:two", "--force").returncode == 0
    assert "own/verl" in files(clone)[".github/verl-e2e.yml"]
    assert git(clone, "rev-parse", "verl-e2e~") == branch


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--tool", "x"), "init: --tool: 'x' is not a commit of a repository; write owner/name@SHA"),
        (("--runners", "1:a"), "init: --runners: '1:a' does not have the form GPUS=LABEL,LABEL; write for example"),
        (("--image", "verl"), "--image 'verl' names no image with a tag; write NAME:TAG"),
        (("--repo", ".."), "has no src/megatron/bridge; go to a clone of Megatron-Bridge, or name it: --repo DIR"),
    ],
)
def test_a_wrong_answer_names_the_option_and_the_fix_and_writes_nothing(
    clone: Path, words: tuple[str, ...], named: str
) -> None:
    if words[0] == "--repo":
        git(clone.parent, "init", "--quiet")
    done = init(clone, "--yes", *words)
    assert done.returncode == 2
    assert named in done.stderr
    assert not files(clone)


def test_without_an_origin_or_an_answer_it_says_what_to_do(clone: Path) -> None:
    done = init(clone)
    assert done.returncode == 2
    assert "give --mode, or --yes for the defaults" in done.stderr
    git(clone, "remote", "remove", "origin")
    done = init(clone, "--yes")
    assert done.returncode == 2
    assert "has no remote `origin` on GitHub; run `git remote add origin" in done.stderr
