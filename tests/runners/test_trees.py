"""Private trees: the right commit, only what is needed, and not a byte of the user's repositories touched.

Commits that a job names by an address are fetched from a real git server. Declared patches are exact, proved by digest.
"""

import base64
import hashlib
import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.places import ROOT
from tests.fakes.smart_http import GitServer, serving
from tests.runners.conftest import BASE
from tests.runners.world import (
    BRIDGE,
    MEGATRON,
    SUBMODULE,
    VERL,
    World,
    bare_forge,
    commit,
    fetched,
    fingerprint,
    git,
    make_world,
)
from verl_e2e.core.model.jobs import Job, Patch, Repository, RepositoryOrigin, Substitution
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check, Finding
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE, portable, same_job
from verl_e2e_runner.place import open_cage
from verl_e2e_runner.process.cage import Tools
from verl_e2e_runner.reporting import stops
from verl_e2e_runner.trees import Trees, apply_patches, fetch_baseline, prepare_trees, with_clones


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


def test_another_commit_of_megatron_lm_than_the_pinned_one_is_fetched(tmp_path: Path, base: dict[str, str]) -> None:
    """As the workflow does it for a command with `mcore_ref=`."""
    world = make_world(tmp_path / "sources")
    other = commit(tmp_path / "sources/mlm", {"megatron/core/__init__.py": "VALUE = 3\n"})
    shutil.rmtree(world.bridge / ".git/modules")
    script = (str(ROOT / "scripts/fetch-megatron-lm.sh"), "bridge", str(tmp_path / "sources/mlm"))
    subprocess.run((*script, world.bridge_commit, f"={other}"), cwd=tmp_path / "sources", env=base, check=True)
    core = Repository(path=f"{world.bridge}/{SUBMODULE}", commit=other)
    for job, value in ((world.job(megatron_lm=core), 3), (world.job(), 1)):
        trees = prepare_trees(job, tmp_path / f"work-{value}", base=base)
        assert not blocking(trees)
        assert (trees.megatron_lm / "megatron/core/__init__.py").read_text() == f"VALUE = {value}\n"


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


@pytest.fixture
def heads(world: World, tmp_path: Path) -> dict[int, str]:
    return bare_forge(world, tmp_path / "forge")


@pytest.fixture
def server(heads: dict[int, str], tmp_path: Path) -> Iterator[GitServer]:
    assert heads
    with serving(tmp_path / "forge") as running:
        yield running


@pytest.fixture
def ordered(world: World, server: GitServer, heads: dict[int, str]) -> Job:
    """The job of pull request 7."""
    return fetched(world, server.url, heads[7], "refs/pull/7/head")


def prepared(job: Job, folder: Path, **base: str) -> Trees:
    return prepare_trees(with_clones(job, folder / "cache"), folder / "run", base={**BASE, **base})


def problems(trees: Trees) -> str:
    return " | ".join(f"{finding.summary}; {finding.fix}" for finding in trees.findings if not finding.ok)


def test_the_document_of_an_order_means_the_same_wherever_its_repositories_lie(ordered: Job, tmp_path: Path) -> None:
    placed = with_clones(ordered, tmp_path)
    assert Path(placed.bridge.path).is_absolute()
    assert same_job(placed, ordered)
    assert (
        portable(placed).digest()
        == portable(ordered).digest()
        == portable(ordered.model_copy(update={"origins": {}})).digest()
    )


def test_a_host_that_fetches_takes_another_commit_of_megatron_lm(ordered: Job, world: World, tmp_path: Path) -> None:
    core = Repository(path=f"{ordered.bridge.path}/{SUBMODULE}", commit=world.megatron_commit)
    job = ordered.model_copy(update={"megatron_lm": core})
    placed = with_clones(job, tmp_path / "cache")
    assert placed.has_core_of_bridge
    assert same_job(placed, job)
    trees = prepared(job, tmp_path)
    assert problems(trees) == ""
    assert (trees.megatron_lm / "megatron/core/__init__.py").is_file()
    lost = job.model_copy(update={"megatron_lm": core.model_copy(update={"commit": "1" * 40})})
    assert f"commit {'1' * 40} could not be fetched" in problems(prepared(lost, tmp_path / "lost"))


def test_a_job_of_folders_is_left_as_it_is(world: World, tmp_path: Path) -> None:
    assert with_clones(world.job(), tmp_path) == world.job()


@pytest.mark.parametrize("name", ["bridge", "verl"])
def test_nothing_is_fetched_into_a_repository_that_the_job_names_by_its_place(
    world: World, ordered: Job, tmp_path: Path, name: str
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(getattr(world.job(), name).path, mine)
    # A commit can hold a folder that looks like a git directory with a configuration.
    planted = mine / "modules/3rdparty/Megatron-LM"
    git(mine, "init", "--quiet", "--bare", str(planted))
    before = sorted(mine.rglob("*"))
    repository = getattr(ordered, name).model_copy(update={"path": str(mine), "commit": "1" * 40})
    message = problems(prepared(ordered.model_copy(update={name: repository}), tmp_path))
    assert "1" * 40 in message
    assert sorted(mine.rglob("*")) == before


def test_a_server_that_gives_the_tips_of_refs_alone_is_asked_for_the_pull_request(
    server: GitServer, ordered: Job, tmp_path: Path
) -> None:
    server.tips_only = True
    assert problems(prepared(ordered, tmp_path)) == ""


def test_runs_that_begin_at_once_share_one_clone(server: GitServer, ordered: Job, tmp_path: Path) -> None:
    server.pause_s = 0.05
    job = with_clones(ordered, tmp_path / "cache")
    with multiprocessing.get_context("fork").Pool(3) as pool:
        done = pool.starmap(_problems_of, [(job, tmp_path / f"run-{number}") for number in range(3)])
    assert done == ["", "", ""]
    clones = [path for path in (tmp_path / "cache").rglob("*.git") if path.is_dir()]
    assert sorted(path.name for path in clones) == ["bridge.git", "verl.git"]


def _problems_of(job: Job, folder: Path) -> str:
    return problems(prepare_trees(job, folder, base=BASE))


def test_a_clone_that_was_removed_or_damaged_is_made_again(ordered: Job, tmp_path: Path) -> None:
    prepared(ordered, tmp_path / "first")
    clone = Path(with_clones(ordered, tmp_path / "first/cache").bridge.path)
    (clone / "HEAD").write_text("nothing that git knows")
    shutil.rmtree(clone.with_name("verl.git"))
    assert problems(prepare_trees(with_clones(ordered, tmp_path / "first/cache"), tmp_path / "again", base=BASE)) == ""


@pytest.mark.parametrize("name", ["bridge.git", "verl.git", "modules/3rdparty/Megatron-LM"])
@pytest.mark.parametrize("damage", ["gone", "other bytes"])
def test_a_clone_whose_objects_cannot_be_read_is_fetched_again(
    ordered: Job, tmp_path: Path, name: str, damage: str
) -> None:
    prepared(ordered, tmp_path)
    (clone,) = (path for path in (tmp_path / "cache").rglob(name) if path.is_dir())
    objects = git(clone, "cat-file", "--batch-all-objects", "--batch-check").splitlines()
    for line in objects:
        object_id, kind, _ = line.split()
        file = clone / "objects" / object_id[:2] / object_id[2:]
        if kind == "blob" and damage == "gone":
            file.unlink()
        elif kind == "blob":
            file.chmod(0o600)
            file.write_bytes(b"not what git wrote")
    assert problems(prepare_trees(with_clones(ordered, tmp_path / "cache"), tmp_path / "again", base=BASE)) == ""


def test_a_comparison_has_the_merge_base_too(world: World, ordered: Job, tmp_path: Path) -> None:
    job = with_clones(ordered, tmp_path)
    assert fetch_baseline(job, world.bridge_commit, base=BASE) == ""
    held = git(Path(job.bridge.path), "for-each-ref", "--format=%(objectname)").split()
    assert {*held} == {world.bridge_commit, job.bridge.commit}
    assert "could not be fetched" in fetch_baseline(job, "1" * 40, base=BASE)


@pytest.mark.parametrize("name", ["bridge", "verl", "megatron_lm"])
def test_what_cannot_be_fetched_blocks_with_its_address(ordered: Job, tmp_path: Path, name: str) -> None:
    gone = RepositoryOrigin(url="http://127.0.0.1:9/octo/gone.git")
    origins = {known: gone if known == name else origin for known, origin in ordered.origins.items()}
    message = problems(prepared(ordered.model_copy(update={"origins": origins}), tmp_path))
    assert f"{name}: commit" in message
    assert "could not be fetched from http://127.0.0.1:9/octo/gone.git" in message
    assert TOKEN_VARIABLE in message


def test_a_commit_that_the_server_has_no_more_blocks(ordered: Job, tmp_path: Path) -> None:
    gone = ordered.model_copy(update={"bridge": ordered.bridge.model_copy(update={"commit": "1" * 40})})
    assert "1111" in problems(prepared(gone, tmp_path))


def test_a_token_goes_to_the_server_of_the_repository_under_test_alone(
    server: GitServer, ordered: Job, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    variables = {TOKEN_VARIABLE: str(tmp_path / "token")}
    basic = base64.b64encode(b"x-access-token:s3cret").decode()
    with serving(tmp_path / "forge") as other:
        elsewhere = ordered.origins | {"verl": RepositoryOrigin(url=f"{other.url}/octo/verl.git")}
        assert problems(prepared(ordered.model_copy(update={"origins": elsewhere}), tmp_path, **variables)) == ""
        assert all("Authorization" not in headers for headers in other.headers)
    assert {headers.get("Authorization") for headers in server.headers} == {f"Basic {basic}"}


def test_a_token_that_is_missing_or_refused_is_named(server: GitServer, ordered: Job, tmp_path: Path) -> None:
    server.authorization = "Basic other"
    assert TOKEN_VARIABLE in problems(prepared(ordered, tmp_path / "without"))
    message = problems(prepared(ordered, tmp_path / "gone", **{TOKEN_VARIABLE: str(tmp_path / "no-token")}))
    assert "No such file" in message


def test_the_token_is_out_of_sight_of_code_under_test(world: World, shared_trees: Trees, tmp_path: Path) -> None:
    """Even where the job or its site names the folder that it lies in, or the file itself."""
    token = tmp_path / "keys/token"
    token.parent.mkdir()
    token.write_text("s3cret")
    read = world.site().isolation.model_copy(update={"read": (str(token.parent), str(token))})
    job = world.job(site=world.site(isolation=read))
    trees = replace(shared_trees, private=frozenset())
    (tmp_path / "own").mkdir()
    cage = open_cage(
        job, trees, Tools("bwrap"), tmp_path / "own", tmp_path / "out", {**BASE, TOKEN_VARIABLE: str(token)}
    )
    assert token in cage.hidden
    assert token not in cage.reads


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c id",
        "file:///etc",
        "http://example.org/o/n",
        "https://user:word@example.org/o/n",
        "git@example.org:o/n",
        "--upload-pack=id",
        "https://example.org",
        "https://example.org/o n",
    ],
)
def test_no_address_starts_a_program_or_holds_a_password(url: str) -> None:
    with pytest.raises(ValueError, match="is not an address of a repository"):
        RepositoryOrigin(url=url)


FILE = "verl/utils/megatron_utils.py"
OLD, NEW = VERL[FILE], "KIND = 'new'\n"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def patch(**changes: Any) -> Patch:
    values: dict[str, Any] = {
        "name": "newer-class",
        "repository": "verl",
        "file": FILE,
        "substitutions": (Substitution(old="old", new="new"),),
        "before": digest(OLD),
        "after": digest(NEW),
        "reason": "the class has another name",
    }
    return Patch(**{**values, **changes})


def applied(world: World, tmp_path: Path, base: dict[str, str], *patches: Patch, **job: Any) -> tuple[Trees, Finding]:
    made = world.job(patches=patches, **job)
    trees = apply_patches(made, prepare_trees(made, tmp_path, base=base))
    return trees, next(finding for finding in trees.findings if finding.check is Check.PATCHES)


def test_a_patch_changes_the_private_tree_and_is_named(world: World, tmp_path: Path, base: dict[str, str]) -> None:
    trees, finding = applied(world, tmp_path, base, patch())
    assert finding.ok
    assert (trees.verl / FILE).read_text() == NEW
    assert next(state for state in trees.states if state.name == "verl").patches == ("newer-class",)
    assert (world.verl / FILE).read_text() == OLD


def test_a_file_that_is_already_as_after_needs_nothing(world: World, tmp_path: Path, base: dict[str, str]) -> None:
    trees, finding = applied(world, tmp_path, base, patch(before=digest("something else"), after=digest(OLD)))
    assert finding.ok
    assert (trees.verl / FILE).read_text() == OLD


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"before": "0" * 64}, ("neither", digest(OLD), "0" * 64, digest(NEW))),
        ({"after": "0" * 64}, ("the substitutions give", digest(NEW))),
        ({"substitutions": (Substitution(old="old", new="new", count=2),)}, ("occurs 1 times, 2 declared",)),
        ({"substitutions": (Substitution(old="absent", new="new"),)}, ("occurs 0 times",)),
        ({"file": "../outside.py"}, ("no such file",)),
    ],
)
def test_anything_else_blocks_and_leaves_the_file(
    changes: dict[str, Any], words: tuple[str, ...], world: World, tmp_path: Path, base: dict[str, str]
) -> None:
    made = world.job()
    trees = prepare_trees(made, tmp_path / "work", base=base)
    (tmp_path / "work/outside.py").write_text("old")
    bad = world.job(patches=(patch(**changes),))
    finding = apply_patches(bad, trees).findings[-1]
    assert finding.blocking
    assert not finding.ok
    assert "newer-class" in finding.summary
    assert all(word in finding.summary for word in words)
    assert (trees.verl / FILE).read_text() == OLD


def test_a_checkout_in_place_is_never_patched(world: World, tmp_path: Path, base: dict[str, str]) -> None:
    verl = Repository(path=str(world.verl), commit=world.verl_commit, in_place=True)
    trees, finding = applied(world, tmp_path, base, patch(), verl=verl)
    assert not finding.ok
    assert "in place" in finding.summary
    assert (trees.verl / FILE).read_text() == OLD
