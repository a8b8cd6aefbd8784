"""`verl-e2e plan PULL` as a user types it, against the stand-in: its API for the facts, its git for the objects."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.command_server import verl_e2e
from tests.fakes.github_standin.faults import server_error, used_up
from tests.fakes.github_standin.repository import Edit, Moved, Submodule
from tests.fakes.github_standin.world import World, living
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT

MAPPING = "src/megatron/bridge/models/conversion/auto_bridge.py"
BRIDGE: dict[str, Edit] = {
    "src/megatron/bridge/__init__.py": "from megatron.bridge.models.conversion.auto_bridge import AutoBridge\n",
    MAPPING: "class AutoBridge:\n    @classmethod\n    def from_hf_pretrained(cls, path):\n        return cls()\n\n"
    "    def export_hf_weights(self, model):\n        return []\n\n    def push(self):\n        return 0\n",
    "docs/page.md": "# Page\n",
}
CHANGED = str(BRIDGE[MAPPING]).replace("return []", "return [model]")
NAME = "octo/bridge"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with living(tmp_path / "github", NAME) as world:
        world.commit(BRIDGE)
        yield world


def plan(world: World, *arguments: object, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*verl_e2e(), "plan", "--cache", str(cache), *map(str, arguments)]
    clean = {"PATH": os.environ["PATH"], "GITHUB_API_URL": f"{world.standin.url}/api/v3"}
    return subprocess.run(
        command, capture_output=True, text=True, env={**clean, **environment}, timeout=HANG_S, check=False
    )


def test_a_pull_request_is_planned_as_its_commits_are_without_a_token(world: World, tmp_path: Path) -> None:
    number = world.open_pull("ada", {MAPPING: CHANGED, "docs/page.md": Moved("docs/other.md")}, fork=True)
    cache = tmp_path / "cache"
    by_address = plan(world, f"{world.standin.url}/{NAME}/pull/{number}", "--json", cache=cache)
    by_number = plan(world, f"{NAME}#{number}", "--json", cache=cache)
    pull = world.pull(number)
    bare = world.repository.git.path
    command = ["plan", "--repo", bare, "--base", pull.base_sha, "--head", pull.head_sha, "--json"]
    by_commits = plan(world, *command[1:], cache=tmp_path / "other")
    assert by_address.returncode == 0, by_address.stderr
    assert by_address.stdout == by_number.stdout == by_commits.stdout
    assert json.loads(by_address.stdout)["levels"] == [0, 1]
    assert {item.caller for item in world.standin.traffic} == {""}


def test_it_takes_three_calls_and_a_second_time_fetches_only_what_is_nowhere(world: World, tmp_path: Path) -> None:
    number = world.open_pull("ada", {MAPPING: CHANGED})
    text = plan(world, f"{NAME}#{number}", cache=tmp_path / "cache").stdout
    asked = [f"/repos/{NAME}/pulls/{number}", f"/repos/{NAME}/git/ref/heads%2Fmain"]
    asked.append(f"/repos/{NAME}/contents/.github/verl-e2e.yml")
    fetches = world.standin.git.fetches
    assert plan(world, f"{NAME}#{number}", cache=tmp_path / "cache").stdout == text
    assert [item.path for item in world.standin.traffic] == asked * 2
    # The packaged cells entered the file of another repository, whose content this one does not have.
    assert world.standin.git.fetches == fetches + 1
    world.push(number, {MAPPING: str(BRIDGE[MAPPING])})
    assert "no level is required" in plan(world, f"{NAME}#{number}", cache=tmp_path / "cache").stdout


def test_a_token_is_used_when_set_and_goes_nowhere_else(world: World, tmp_path: Path) -> None:
    world.user_token("a-token-of-bob", "bob")
    number = world.open_pull("ada", {MAPPING: CHANGED})
    assert plan(world, f"{NAME}#{number}", cache=tmp_path / "a", GITHUB_TOKEN="a-token-of-bob").returncode == 0
    assert {item.caller for item in world.standin.traffic} == {"bob"}
    address = f"{world.standin.url}/{NAME}/pull/{number}"
    done = plan(world, address, cache=tmp_path / "b", GITHUB_TOKEN="a-token-of-bob", GITHUB_API_URL="")
    assert done.returncode == 0, done.stderr
    assert world.standin.traffic[-1].caller == ""
    assert not [header for header in world.standin.git.headers[-2:] if "Authorization" in header]


def test_the_policy_is_that_of_the_base(world: World, tmp_path: Path) -> None:
    packaged = (ROOT / "bot" / "verl_e2e" / "policy" / "megatron-bridge.yml").read_text()
    number = world.open_pull("ada", {MAPPING: CHANGED, ".github/verl-e2e.yml": "no policy"})
    assert plan(world, f"{NAME}#{number}", cache=tmp_path / "cache").returncode == 0
    world.commit({".github/verl-e2e.yml": packaged + "nonsense: 1\n"})
    number = world.open_pull("ada", {MAPPING: CHANGED})
    done = plan(world, f"{NAME}#{number}", cache=tmp_path / "cache")
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def bumped(
    world: World,
    address: str,
    module: str = "optimizer/clip_grads",
    function: str = "clip_grad_by_total_norm_fp32",
) -> tuple[int, str]:
    """A pull request that moves Megatron-LM to a commit where one function differs, and a folder of it with both."""
    packaged = (ROOT / "bot" / "verl_e2e" / "policy" / "megatron-bridge.yml").read_text()
    policy = packaged.replace("https://github.com/NVIDIA/Megatron-LM", address)
    core, file = world.state.add_repository("nvidia/megatron-lm").git, f"megatron/core/{module}.py"
    body = f"def {function}(x):\n    return {{}}\n"
    old, new = (core.commit("refs/heads/main", {file: body.format(value)}, "c") for value in ("x", "x + 1"))
    world.commit({".github/verl-e2e.yml": policy, "3rdparty/Megatron-LM": Submodule(old)})
    return world.open_pull("ada", {"3rdparty/Megatron-LM": Submodule(new)}), str(core.path)


def test_a_bump_of_megatron_lm_is_compared_function_by_function(world: World, tmp_path: Path) -> None:
    number, core = bumped(world, f"{world.standin.url}/nvidia/megatron-lm")
    arguments = (f"{NAME}#{number}", "--json")
    fetched = plan(world, *arguments, cache=tmp_path / "a")
    document = json.loads(fetched.stdout)
    assert (document["levels"], document["incomplete"]) == ([0, 2, 5], []), fetched.stderr
    assert {item["path"] for item in document["changed"]["functions"]} == {
        "3rdparty/Megatron-LM/megatron/core/optimizer/clip_grads.py"
    }
    named = plan(world, *arguments, "--megatron-lm", core, cache=tmp_path / "b")
    pull = world.pull(number)
    ends = ("--repo", world.repository.git.path, "--base", pull.base_sha, "--head", pull.head_sha, "--json")
    of_checkout = plan(world, *ends, cache=tmp_path / "c")
    assert fetched.stdout == named.stdout == of_checkout.stdout
    asked = len(world.standin.git.asked)
    assert plan(world, *ends, cache=tmp_path / "c").stdout == fetched.stdout
    assert len(world.standin.git.asked) == asked


@pytest.mark.parametrize(
    ("module", "function", "jobs"),
    [
        ("distributed/finalize_model_grads", "finalize_model_grads", ["dp2", "tp2", "pp2-tied"]),
        ("distributed/param_and_grad_buffer", "shard_buffer", ["dp2"]),
        ("tensor_parallel/mappings", "_reduce", ["tp2"]),
        ("pipeline_parallel/schedules", "forward_step", ["pp2-tied"]),
        ("optimizer/clip_grads", "clip_grad_by_total_norm_fp32", []),
    ],
)
def test_what_reduces_gradients_in_megatron_lm_is_compared_with_an_unsharded_run(
    world: World, tmp_path: Path, module: str, function: str, jobs: list[str]
) -> None:
    number, _ = bumped(world, f"{world.standin.url}/nvidia/megatron-lm", module, function)
    document = json.loads(plan(world, f"{NAME}#{number}", "--json", cache=tmp_path / "a").stdout)
    found = [job["id"] for job in document["jobs"] if job["id"].endswith("-parity")]
    assert found == [f"2-{name}-parity" for name in jobs]
    assert all(job["gpu_count"] == 2 for job in document["jobs"] if job["id"] in found)


def test_parity_is_planned_for_a_checkout_alone(world: World, tmp_path: Path) -> None:
    number = world.open_pull("ada", {"docs/guide.md": "other\n"})
    pull = world.pull(number)
    ends = ("--repo", str(world.repository.git.path), "--base", pull.base_sha, "--head", pull.head_sha, "--json")
    document = json.loads(plan(world, *ends, "--parity", cache=tmp_path / "a").stdout)
    assert document["levels"] == [0, 2]
    assert [job["id"] for job in document["jobs"]][1:] == ["2-dp2-parity", "2-tp2-parity", "2-pp2-tied-parity"]
    done = plan(world, f"{NAME}#{number}", "--parity", cache=tmp_path / "a")
    assert (done.returncode, "say `/verl-e2e level2 parity`" in done.stderr) == (2, True)


def test_a_bump_whose_commits_cannot_be_fetched_asks_for_every_level_that_a_rule_names(
    world: World, tmp_path: Path
) -> None:
    number, _ = bumped(world, "http://127.0.0.1:9/nvidia/megatron-lm")
    done = plan(world, f"{NAME}#{number}", "--json", cache=tmp_path / "a")
    assert json.loads(done.stdout)["levels"] == [0, 1, 2, 3, 4, 5]
    assert "could not be read: nvidia/megatron-lm could not be fetched from 127.0.0.1" in done.stderr
    pull = world.pull(number)
    ends = ("--repo", world.repository.git.path, "--base", pull.base_sha, "--head", pull.head_sha)
    assert "could not be fetched from 127.0.0.1" in plan(world, "--full", *ends, cache=tmp_path / "b").stdout


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("octo/bridge#99", "octo/bridge#99: there is no such pull request"),
        ("octo/none#1", "if it is private, set GITHUB_TOKEN"),
        ("not an address", "names no pull request"),
    ],
)
def test_a_mistake_is_one_sentence(world: World, tmp_path: Path, address: str, message: str) -> None:
    done = plan(world, address, cache=tmp_path / "cache")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_used_up_limit_says_when_it_ends(world: World, tmp_path: Path) -> None:
    number = world.open_pull("ada", {MAPPING: CHANGED})
    ends = int(time.time()) + 1800
    world.standin.faults.add(used_up(ends), times=9)
    done = plan(world, f"{NAME}#{number}", cache=tmp_path / "cache", TZ="UTC")
    assert done.returncode == 2
    shown = {time.strftime("until %Y-%m-%d %H:%M", time.gmtime(ends + apart)) for apart in (-60, -2, 0, 2, 60)}
    assert any(text in done.stderr for text in shown), done.stderr
    assert "GITHUB_TOKEN" in done.stderr


def test_without_git_the_list_of_files_is_planned_by_names_and_said(world: World, tmp_path: Path) -> None:
    number = world.open_pull("ada", {MAPPING: CHANGED, "docs/page.md": Moved("docs/other.md")})
    done = plan(world, f"{NAME}#{number}", cache=tmp_path / "c", GITHUB_SERVER_URL="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert "could not be fetched from 127.0.0.1" in done.stdout
    assert "by the names of the changed paths alone" in done.stdout
    assert "every level is planned" not in done.stdout


def test_a_list_that_is_cut_and_no_git_asks_for_everything(world: World, tmp_path: Path) -> None:
    many: dict[str, Edit] = {f"docs/{at}.md": f"{at}\n" for at in range(3010)}
    number = world.open_pull("ada", many)
    arguments = (f"{NAME}#{number}", "--json")
    whole = plan(world, *arguments, cache=tmp_path / "c")
    assert json.loads(whole.stdout)["levels"] == []
    assert len(world.standin.traffic) == 3
    cut = plan(world, *arguments, cache=tmp_path / "d", GITHUB_SERVER_URL="http://127.0.0.1:9")
    assert json.loads(cut.stdout)["levels"] == [0, 1, 2, 3, 4, 5]
    assert "GitHub counts 3010 changed files and 3000 are known: every level is planned" in cut.stderr


def test_a_server_that_errs_is_asked_again(world: World, tmp_path: Path) -> None:
    number = world.open_pull("ada", {MAPPING: CHANGED})
    world.standin.faults.add(server_error(), times=1)
    assert plan(world, f"{NAME}#{number}", cache=tmp_path / "cache").returncode == 0


@pytest.mark.parametrize("arguments", [("o/r#1", "--head", "x"), ("o/r#1", "--repo", ".")])
def test_a_pull_request_or_commits_but_not_half_of_each(arguments: tuple[str, ...]) -> None:
    command = [*verl_e2e(), "plan", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=HANG_S, check=False)
    assert done.returncode == 2
    assert "--repo, --base and --head" in done.stderr


@pytest.mark.online
def test_a_public_pull_request_on_github_is_planned(tmp_path: Path) -> None:
    address = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5232"
    command = [*verl_e2e(), "plan", address, "--json", "--cache", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["levels"] == [0, 3]
