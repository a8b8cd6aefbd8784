"""The planning verbs on the wrong repository: a clear error, never a plan that says that nothing is required."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_planning import BRIDGE, GIT, MAPPING, VERL, repository, verl_e2e
from tests.fakes.places import ROOT


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """A Bridge and a verl, each with two commits."""
    bridge, verl = tmp_path / "renamed-fork", tmp_path / "trainer"
    repository(bridge, BRIDGE)
    repository(bridge, {MAPPING: BRIDGE[MAPPING].replace("return []", "return [model]")})
    repository(verl, VERL)
    repository(verl, {"README.md": "# verl\n"})
    return bridge, verl


CHANGE = ("--base", "HEAD~1", "--head", "HEAD")
# Each verb that takes --repo, with what else it needs.
VERBS = {
    "plan": CHANGE,
    "check": (*CHANGE, "--out", "new"),
    "explain": ("README.md",),
    "backtest": ("--history", "1"),
    "policy check": (),
}


@pytest.mark.parametrize("verb", VERBS)
def test_another_repository_is_an_error_and_names_its_remote(
    verb: str, both: tuple[Path, Path], tmp_path: Path
) -> None:
    _, verl = both
    remote = ("remote", "add", "origin", "https://someone:secret@example.org/people/trainer.git")
    subprocess.run(["git", *remote], cwd=verl, env=GIT, check=True)
    done = verl_e2e(*verb.split(), "--repo", verl, "--verl", verl, *VERBS[verb])
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--repo {verl} (its remote is example.org/people/trainer.git): this is not the repository" in done.stderr
    assert "no package megatron.bridge below src/" in done.stderr
    assert "secret" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_of_a_checkout_stands_for_the_checkout(both: tuple[Path, Path], tmp_path: Path) -> None:
    bridge, _ = both
    plan = verl_e2e("plan", *CHANGE, cwd=bridge / Path(MAPPING).parent)
    assert (plan.returncode, plan.stdout) == (0, verl_e2e("plan", "--repo", bridge, *CHANGE).stdout), plan.stderr
    explained = verl_e2e("explain", MAPPING, cwd=bridge / "src")
    assert (explained.returncode, explained.stdout) == (0, verl_e2e("explain", "--repo", bridge, MAPPING).stdout)
    # A bare repository that lies in a checkout is its own.
    subprocess.run(["git", "clone", "-q", "--bare", bridge, bridge / "mirror"], env=GIT, check=True)
    (bridge / ".git" / "HEAD").write_text("ref: refs/heads/gone\n")
    assert verl_e2e("plan", *CHANGE, cwd=bridge / "mirror").stdout == plan.stdout
    assert verl_e2e("plan", cwd=tmp_path).returncode == 2


def test_swapped_repositories_are_reported(both: tuple[Path, Path]) -> None:
    bridge, verl = both
    done = verl_e2e("plan", "--repo", verl, "--verl", bridge, *CHANGE)
    assert (done.returncode, "--repo and --verl seem to be swapped" in done.stderr) == (2, True)
    twice = verl_e2e("plan", "--repo", bridge, "--verl", bridge, *CHANGE)
    assert (twice.returncode, "It holds megatron.bridge: give it as --repo" in twice.stderr) == (2, True)


@pytest.mark.parametrize("git", (True, False))
def test_a_verl_that_is_not_verl_is_an_error(both: tuple[Path, Path], tmp_path: Path, *, git: bool) -> None:
    bridge, _ = both
    other = tmp_path / "other"
    repository(other, {"verl/__init__.py": "import torch\n"})
    if not git:
        (other / ".git").rename(tmp_path / "elsewhere")
    done = verl_e2e("plan", "--repo", bridge, "--verl", other, *CHANGE)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing below verl/ imports megatron.bridge" in done.stderr


def test_a_bare_fork_under_another_name_is_known_by_its_package(both: tuple[Path, Path], tmp_path: Path) -> None:
    bridge, verl = both
    subprocess.run(["git", "clone", "-q", "--bare", bridge, tmp_path / "x.git"], env=GIT, check=True)
    done = verl_e2e("plan", "--repo", tmp_path / "x.git", "--verl", verl, *CHANGE)
    assert (done.returncode, "level 0" in done.stdout) == (0, True)


def test_a_policy_file_is_checked_by_its_name_alone(both: tuple[Path, Path], tmp_path: Path) -> None:
    bridge, _ = both
    policy = bridge / ".github" / "verl-e2e.yml"
    policy.parent.mkdir()
    policy.write_bytes((ROOT / "bot/verl_e2e/policy/megatron-bridge.yml").read_bytes())
    inside = verl_e2e("policy", "check", policy)
    assert (inside.returncode, f"Held against {bridge}" in inside.stderr) == (0, True)
    assert "multi-LoRA: its paths meet no file" in inside.stdout
    alone = tmp_path / "policy.yml"
    alone.write_bytes(policy.read_bytes())
    outside = verl_e2e("policy", "check", alone)
    assert (outside.returncode, "The file alone was checked" in outside.stderr) == (0, True)
    assert "multi-LoRA" not in outside.stdout
    alone.write_text("schema: 2\n")
    wrong = verl_e2e("policy", "check", alone)
    assert (wrong.returncode, "schema" in wrong.stderr) == (2, True)
    assert verl_e2e("policy", "check").returncode == 2
    assert verl_e2e("policy", "check", alone, "--policy", alone).returncode == 2


def test_a_list_of_imports_comes_from_verl(both: tuple[Path, Path]) -> None:
    bridge, _ = both
    done = verl_e2e("policy", "imports", "--verl", bridge)
    assert (done.returncode, "give a verl checkout" in done.stderr) == (2, True)
