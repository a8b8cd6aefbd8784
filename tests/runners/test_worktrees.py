"""Private worktrees: the right commit, only what is needed, and not a byte of the user's repositories touched."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.fakes.places import ROOT
from tests.runners.world import BRIDGE, MEGATRON, SUBMODULE, VERL, World, commit, fingerprint, git, make_world
from verl_e2e.core.model.jobs import Repository
from verl_e2e.core.model.record import Check, Finding
from verl_e2e.core.model.stages import Stage
from verl_e2e_runner.findings import stops
from verl_e2e_runner.trees import Trees, prepare_trees


def blocking(trees: Trees) -> list[Finding]:
    return [finding for finding in trees.findings if finding.blocking and not finding.ok]


def test_trees_hold_the_needed_files_of_the_commits(world: World, shared_trees: Trees) -> None:
    trees = shared_trees
    assert not stops(trees.findings)
    assert {state.name: (state.root, state.commit, state.dirty) for state in trees.states} == {
        "verl": (str(trees.verl), world.verl_commit, ()),
        "bridge": (str(trees.bridge), world.bridge_commit, ()),
        "megatron_lm": (str(trees.bridge / SUBMODULE), world.megatron_commit, ()),
    }
    assert (trees.verl / "verl/__init__.py").is_file()
    assert (trees.bridge / "src/megatron/bridge/__init__.py").read_text() == BRIDGE["src/megatron/bridge/__init__.py"]
    assert (trees.megatron_lm / "megatron/core/__init__.py").is_file()
    assert not (trees.bridge / "docs").exists()
    assert not (trees.verl / "docs").exists()
    assert not (trees.megatron_lm / "tools").exists()
    assert trees.cwd == trees.verl


def test_a_private_tree_knows_its_commit_and_shows_only_what_changed_in_it(
    world: World, tmp_path: Path, base: dict[str, str]
) -> None:
    trees = prepare_trees(world.job(), tmp_path, base=base)
    assert git(trees.verl, "rev-parse", "HEAD") == world.verl_commit
    assert git(trees.verl, "status", "--porcelain") == ""
    (trees.verl / "verl/__init__.py").write_text("changed = 1\n")
    assert git(trees.verl, "status", "--porcelain") == "M verl/__init__.py"


@pytest.mark.parametrize("form", ["checkout", "bare", "linked worktree"])
def test_preparing_leaves_the_source_as_it_was(form: str, tmp_path: Path, base: dict[str, str]) -> None:
    world = make_world(tmp_path / "sources")
    hooks = world.verl / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    (hooks / "post-checkout").chmod(0o755)
    path = world.verl
    if form == "bare":
        path = tmp_path / "sources/verl.git"
        git(world.verl, "clone", "--quiet", "--bare", str(world.verl), str(path))
    if form == "linked worktree":
        path = tmp_path / "sources/linked"
        git(world.verl, "worktree", "add", "--quiet", "--detach", str(path))
        (tmp_path / "hook-ran").unlink()
    (world.verl / "verl/__init__.py").write_text("the user is at work here\n")
    before = fingerprint(tmp_path / "sources")
    job = world.job(verl=Repository(path=str(path), commit=world.verl_commit))
    trees = prepare_trees(job, tmp_path / "work", base=base)
    assert not blocking(trees)
    assert (trees.verl / "verl/__init__.py").read_text() == VERL["verl/__init__.py"]
    assert fingerprint(tmp_path / "sources") == before
    assert not (tmp_path / "hook-ran").exists()


def test_uncommitted_work_of_the_user_is_named_as_not_part_of_the_run(tmp_path: Path, base: dict[str, str]) -> None:
    world = make_world(tmp_path / "sources")
    (world.verl / "verl/__init__.py").write_text("x = 1\n")
    trees = prepare_trees(world.job(), tmp_path / "work", base=base)
    notes = [finding for finding in trees.findings if not finding.ok]
    assert len(notes) == 1
    assert not notes[0].blocking
    assert "verl/__init__.py" in notes[0].summary


def test_a_commit_that_does_not_exist_blocks_with_the_command_that_fetches_it(
    world: World, tmp_path: Path, base: dict[str, str]
) -> None:
    job = world.job(bridge=Repository(path=str(world.bridge), commit="f" * 40))
    first, second = blocking(prepare_trees(job, tmp_path, base=base))
    assert first.check is Check.REPOSITORIES
    assert "f" * 40 in first.summary
    assert f"git -C {world.bridge} fetch origin {'f' * 40}" in first.fix
    assert second.summary.startswith("megatron_lm: ")


def test_a_submodule_commit_that_is_nowhere_blocks_with_the_fix(tmp_path: Path, base: dict[str, str]) -> None:
    world = make_world(tmp_path / "sources")
    shutil.rmtree(world.bridge / ".git/modules")
    (finding,) = blocking(prepare_trees(world.job(), tmp_path / "work", base=base))
    assert finding.stage is Stage.IMPORT
    assert world.megatron_commit in finding.summary
    assert "git submodule update --init 3rdparty/Megatron-LM" in finding.fix


def test_megatron_lm_comes_from_the_given_address_whatever_the_head_says(tmp_path: Path, base: dict[str, str]) -> None:
    """As the workflow does it: an own address in the head, and links where a submodule would be checked out."""
    world = make_world(tmp_path / "sources")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    newer = commit(tmp_path / "sources/mlm", {"megatron/core/__init__.py": "VALUE = 2\n"})
    shutil.rmtree(world.bridge / ".git/modules")
    module = f'[submodule "{SUBMODULE}"]\n\tpath = {SUBMODULE}\n\turl = {tmp_path}/of-the-head\n'
    (world.bridge / ".gitmodules").write_text(module)
    git(world.bridge, "add", ".gitmodules")
    git(world.bridge, "update-index", "--cacheinfo", f"160000,{newer},{SUBMODULE}")
    git(world.bridge, "commit", "--quiet", "--message=head")
    head = git(world.bridge, "rev-parse", "HEAD")
    shutil.rmtree(world.bridge / "3rdparty")
    (world.bridge / "3rdparty").symlink_to(elsewhere)
    script = (str(ROOT / "scripts/fetch-megatron-lm.sh"), "bridge", str(tmp_path / "sources/mlm"))
    subprocess.run((*script, head, world.bridge_commit), cwd=tmp_path / "sources", env=base, check=True)
    for bridge_commit, value in ((head, 2), (world.bridge_commit, 1)):
        job = world.job(bridge=Repository(path=str(world.bridge), commit=bridge_commit))
        trees = prepare_trees(job, tmp_path / f"work-{value}", base=base)
        assert not blocking(trees)
        assert (trees.megatron_lm / "megatron/core/__init__.py").read_text() == f"VALUE = {value}\n"
    assert list(elsewhere.iterdir()) == []


def test_a_commit_of_bridge_without_the_submodule_fetches_nothing(world: World, tmp_path: Path) -> None:
    git(world.verl, "clone", "--quiet", str(world.verl), str(tmp_path / "bridge"))
    script = (str(ROOT / "scripts/fetch-megatron-lm.sh"), "bridge", str(tmp_path / "nowhere"), world.verl_commit)
    subprocess.run(script, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, check=True)


def test_what_a_commit_holds_is_never_taken_for_a_git_directory(tmp_path: Path, base: dict[str, str]) -> None:
    world = make_world(tmp_path / "sources")
    # As a checkout of another commit leaves it, which has files in the place of the submodule.
    (world.bridge / SUBMODULE).rmdir()
    (world.bridge / ".git/modules" / SUBMODULE).rename(world.bridge / SUBMODULE)
    (finding,) = blocking(prepare_trees(world.job(), tmp_path / "work", base=base))
    assert world.megatron_commit in finding.summary


@pytest.mark.parametrize(
    "file", [*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("docs/workflows/*.yml")], ids=lambda file: file.name
)
def test_no_workflow_fetches_the_submodules_of_a_checkout(file: Path) -> None:
    steps = [step for job in yaml.safe_load(file.read_text())["jobs"].values() for step in job.get("steps", ())]
    assert not [step for step in steps if "submodules" in step.get("with", {})]
    assert not [step for step in steps if "submodule" in step.get("run", "")]


def test_a_named_megatron_lm_wins_over_the_submodule(tmp_path: Path, base: dict[str, str]) -> None:
    world = make_world(tmp_path / "sources")
    other = commit(tmp_path / "other", {**MEGATRON, "megatron/core/__init__.py": "VALUE = 2\n"})
    job = world.job(megatron_lm=Repository(path=str(tmp_path / "other"), commit=other))
    trees = prepare_trees(job, tmp_path / "work", base=base)
    assert not blocking(trees)
    assert (trees.megatron_lm / "megatron/core/__init__.py").read_text() == "VALUE = 2\n"
    assert trees.megatron_lm == trees.bridge / SUBMODULE


@pytest.mark.parametrize(("path", "words"), [("gone", "is not a folder"), ("empty", "is not a git repository")])
def test_a_path_that_is_no_repository_blocks(
    path: str, words: str, world: World, tmp_path: Path, base: dict[str, str]
) -> None:
    (tmp_path / "empty").mkdir()
    job = world.job(verl=Repository(path=str(tmp_path / path), commit=world.verl_commit))
    (finding,) = blocking(prepare_trees(job, tmp_path / "work", base=base))
    assert words in finding.summary


def drop_blob(repository: Path, commit_id: str, path: str) -> None:
    """Make the repository a partial one: the blob's object disappears."""
    blob = git(repository, "rev-parse", f"{commit_id}:{path}")
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()


def test_a_partial_clone_serves_as_long_as_the_needed_blobs_are_there(tmp_path: Path, base: dict[str, str]) -> None:
    world = make_world(tmp_path / "sources")
    drop_blob(world.bridge, world.bridge_commit, "docs/large.bin")
    drop_blob(world.bridge, world.bridge_commit, "tests/unit/test_bad.py")
    trees = prepare_trees(world.job(), tmp_path / "work", base=base)
    assert not blocking(trees)
    assert (trees.bridge / "tests/unit/test_good.py").is_file()
    assert not (trees.bridge / "tests/unit/test_bad.py").exists()


def test_a_partial_clone_without_a_needed_blob_blocks(tmp_path: Path, base: dict[str, str]) -> None:
    world = make_world(tmp_path / "sources")
    drop_blob(world.bridge, world.bridge_commit, "src/megatron/bridge/__init__.py")
    first = blocking(prepare_trees(world.job(), tmp_path / "work", base=base))[0]
    assert "1 files below src" in first.summary
    assert "partial clone" in first.summary


def test_a_folder_that_the_runner_did_not_make_is_never_removed(
    world: World, tmp_path: Path, base: dict[str, str]
) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl/thesis.tex").write_text("years of work")
    (finding,) = blocking(prepare_trees(world.job(), tmp_path, base=base))
    assert "was not made by the runner" in finding.summary
    assert (tmp_path / "verl/thesis.tex").read_text() == "years of work"


def test_preparing_twice_in_the_same_folder_starts_afresh(world: World, tmp_path: Path, base: dict[str, str]) -> None:
    trees = prepare_trees(world.job(), tmp_path, base=base)
    (trees.verl / "checkpoints").mkdir()
    assert not stops(prepare_trees(world.job(), tmp_path, base=base).findings)
    assert not (trees.verl / "checkpoints").exists()


def test_in_place_uses_the_checkout_records_dirty_files_and_gives_a_folder_of_links(
    tmp_path: Path, base: dict[str, str]
) -> None:
    world = make_world(tmp_path / "sources")
    (world.verl / "verl/__init__.py").write_text("x = 1\n")
    (world.verl / "new file.py").write_text("")
    (world.verl / "checkpoints").mkdir()
    before = fingerprint(world.verl)
    job = world.job(verl=Repository(path=str(world.verl), commit=world.verl_commit, in_place=True))
    trees = prepare_trees(job, tmp_path / "work", base=base)
    state = next(state for state in trees.states if state.name == "verl")
    assert (state.root, state.dirty) == (str(world.verl), ("new file.py", "verl/__init__.py"))
    assert trees.cwd == tmp_path / "work/verl-cwd"
    assert (trees.cwd / "scripts").resolve() == world.verl / "scripts"
    assert not (trees.cwd / "checkpoints").exists()
    assert fingerprint(world.verl) == before


def test_in_place_at_another_commit_blocks(tmp_path: Path, base: dict[str, str]) -> None:
    world = make_world(tmp_path / "sources")
    newer = commit(world.verl, {"more.py": ""})
    job = world.job(verl=Repository(path=str(world.verl), commit=world.verl_commit, in_place=True))
    (finding,) = blocking(prepare_trees(job, tmp_path / "work", base=base))
    assert newer in finding.summary
    assert world.verl_commit in finding.summary


def test_a_link_of_the_head_leads_no_tree_out_of_its_place(world: World, tmp_path: Path, base: dict[str, str]) -> None:
    bridge, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    shutil.copytree(world.bridge, bridge)
    elsewhere.mkdir()
    git(bridge, "rm", "-q", "--cached", SUBMODULE)
    shutil.rmtree(bridge / "3rdparty")
    (bridge / "3rdparty").symlink_to(elsewhere)
    git(bridge, "add", "3rdparty")
    git(bridge, "commit", "-qm", "link")
    head = git(bridge, "rev-parse", "HEAD")
    megatron = Repository(path=str(world.root / "mlm"), commit=world.megatron_commit)
    job = world.job(bridge=Repository(path=str(bridge), commit=head), megatron_lm=megatron)
    trees = prepare_trees(job, tmp_path / "work", base=base)
    assert list(elsewhere.iterdir()) == []
    (finding,) = blocking(trees)
    assert "megatron_lm" in finding.summary
    assert "link" in finding.summary
