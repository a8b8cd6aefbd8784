"""`verl-e2e init` as a user types it, in clones of a repository with Megatron-Bridge's layout."""

import html
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

from tests.fakes.command_server import verl_e2e
from tests.fakes.github_standin.world import APP_ID, World, living
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from verl_e2e.config import load_policy, load_profile, packaged_policy
from verl_e2e.config.policy import workflow_text
from verl_e2e.config.settings import load_settings

TOOL = "octo/verl-e2e@v0.1.0"
NOWHERE = "http://127.0.0.1:1"
ADDRESS = "https://verl-e2e.example.org"
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


def init(clone: Path, *words: str, api: str = NOWHERE, answers: str = "") -> subprocess.CompletedProcess[str]:
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
    done = init(clone, "--yes", "--mode", "app")
    assert done.stderr.endswith("Where GitHub reaches the service, https://HOST; give --address\n")
    git(clone, "remote", "remove", "origin")
    done = init(clone, "--yes")
    assert done.returncode == 2
    assert "has no remote `origin` on GitHub; run `git remote add origin" in done.stderr


@pytest.mark.parametrize("before", [("checkout", "--quiet", "-b", "verl-e2e"), ("branch", "verl-e2e/other")])
def test_a_branch_that_cannot_be_written_is_told_with_the_fix(clone: Path, before: tuple[str, ...]) -> None:
    git(clone, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "One")
    git(clone, *before)
    refs = git(clone, "show-ref")
    done = init(clone, "--yes", "--force")
    assert done.returncode == 2
    assert "the branch verl-e2e cannot be written (fatal: " in done.stderr
    assert "go to another branch, or remove the one that is in its way" in done.stderr
    assert git(clone, "show-ref") == refs


def test_a_folder_in_the_place_of_a_file_is_told_with_the_fix(clone: Path) -> None:
    (clone / ".github/verl-e2e.yml").mkdir(parents=True)
    done = init(clone, "--yes", "--force")
    assert done.returncode == 2
    assert ".github/verl-e2e.yml: Is a directory; remove that folder" in done.stderr


def app(clone: Path, folder: Path, api: str) -> subprocess.Popen[str]:
    """`init` for the App, as it begins to wait for a browser."""
    words = ["--yes", "--mode", "app", "--tool", f"octo/verl-e2e@{'a' * 40}", "--address", f"{ADDRESS}/"]
    words += ["--runners", "1=mine", "--image", "own/verl:two", "--service", str(folder)]
    env = {"PATH": os.environ["PATH"], "GITHUB_API_URL": api, "PYTHONUNBUFFERED": "1"}
    command = [*verl_e2e(), "init", *words]
    return subprocess.Popen(command, cwd=clone, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def page_of(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    line = started.stdout.readline()
    found = re.match(r"Open (http://127\.0\.0\.1:\d+/) in a browser on this machine", line)
    assert found, line + started.communicate(timeout=HANG_S)[1]
    return found[1]


def test_the_app_is_registered_by_a_page_of_this_machine(world: World, clone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "service"
    started = app(clone, folder, f"{world.url}/api/v3")
    page = page_of(started)
    shown = requests.get(page, timeout=HANG_S).text
    new_app = html.unescape(re.findall(r'action="([^"]+)"', shown)[0])
    assert new_app.startswith("https://github.com/organizations/octo/settings/apps/new?state=")
    manifest = json.loads(html.unescape(re.findall(r'value="([^"]+)"', shown)[0]))
    packaged = json.loads((ROOT / "docs/app-manifest.json").read_text())
    own = {
        "url": ADDRESS,
        "redirect_url": f"{page}done",
        "hook_attributes": {"url": f"{ADDRESS}/webhook", "active": True},
    }
    assert manifest == {**packaged, **own}
    # A code that another page made up, and a page under another name, are refused.
    world.state.app_codes["right"] = world.private_key
    assert requests.get(f"{page}done?code=wrong&state=x", timeout=HANG_S).status_code == 404
    assert requests.get(page, headers={"Host": "evil.example"}, timeout=HANG_S).status_code == 403
    state = new_app.partition("state=")[2]
    assert requests.get(f"{page}done?code=right&state={state}", timeout=HANG_S).status_code == 200
    out, errors = started.communicate(timeout=HANG_S)
    assert (started.returncode, errors) == (0, "")
    assert world.state.app_codes == {}
    # The secrets stand in one file of this user, and nowhere else.
    secrets = folder / "verl-e2e.env"
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in folder.iterdir()} == {"verl-e2e.env", "site.yml"}
    assert world.private_key.splitlines()[1] not in out + "".join(files(clone).values())
    assert load_profile(str(folder / "site.yml"), {}, {"home": "/root"}).image == "own/verl:two"
    # A shell that reads it has settings that the service takes.
    read = ["sh", "-c", f"set -a; . {secrets}; set +a; exec env -0"]
    words = subprocess.run(read, env={}, capture_output=True, text=True, check=True).stdout.split("\0")
    settings = load_settings(
        dict(word.split("=", 1) for word in words if "=" in word and word.startswith(("GITH", "VERL")))
    )
    assert settings.app_id == APP_ID
    assert settings.private_key.strip() == world.private_key.strip()
    assert (settings.public_url, settings.repositories) == (ADDRESS, ("octo/bridge",))
    assert (settings.tool, settings.runners) == (("octo/verl-e2e", "a" * 40), {1: ("mine",)})
    assert files(clone)[".github/workflows/verl-e2e.yml"].encode() == workflow_text()
    assert set(files(clone)) == {".github/workflows/verl-e2e.yml", ".github/verl-e2e.yml"}
    assert "verl-e2e doctor octo/bridge" in out
    # A second time it registers nothing.
    again = app(clone, folder, NOWHERE)
    out, errors = again.communicate(timeout=HANG_S)
    assert (again.returncode, errors) == (0, "")
    assert "wrote" not in out


def test_a_code_that_github_refuses_is_told_and_leaves_no_secrets(world: World, clone: Path, tmp_path: Path) -> None:
    started = app(clone, tmp_path / "service", f"{world.url}/api/v3")
    page = page_of(started)
    state = re.findall(r"state=([\w-]+)", requests.get(page, timeout=HANG_S).text)[0]
    requests.get(f"{page}done?code=used&state={state}", timeout=HANG_S)
    _, errors = started.communicate(timeout=HANG_S)
    assert started.returncode == 2
    assert "GitHub refused: POST /app-manifests/used/conversions: 404" in errors
    assert not (tmp_path / "service/verl-e2e.env").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--tool", TOOL), "give --tool octo/verl-e2e@SHA with all 40 digits"),
        (("--address", "verl.example"), "init: --address: it is not an address of the form https://HOST/PATH"),
        (("--service", "inside"), "is in the clone, where secrets could be committed; name another"),
    ],
)
def test_a_wrong_answer_for_the_app_names_the_option_and_the_fix(
    clone: Path, words: tuple[str, ...], named: str
) -> None:
    usual = ("--tool", f"octo/verl-e2e@{'a' * 40}", "--address", ADDRESS)
    done = init(clone, "--yes", "--mode", "app", *usual, *words)
    assert done.returncode == 2
    assert named in done.stderr
