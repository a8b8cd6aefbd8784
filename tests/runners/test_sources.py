"""The runner fetches the commits of a job itself: from a real git server, into clones that begin empty."""

import base64
import multiprocessing
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.smart_http import GitServer, serving
from tests.runners.conftest import BASE
from tests.runners.world import World, bare_forge, fetched, git
from verl_e2e.core.model.jobs import Job, Origin
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE, portable, same_job
from verl_e2e_runner.isolation import open_cage
from verl_e2e_runner.process.cage import Tools
from verl_e2e_runner.trees import Trees, fetch_baseline, prepare_trees, with_clones


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


def test_a_job_of_folders_is_left_as_it_is(world: World, tmp_path: Path) -> None:
    assert with_clones(world.job(), tmp_path) == world.job()
    assert "origins" not in world.job().model_dump_json()


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
    gone = Origin(url="http://127.0.0.1:9/octo/gone.git")
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
        elsewhere = ordered.origins | {"verl": Origin(url=f"{other.url}/octo/verl.git")}
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
        Origin(url=url)
