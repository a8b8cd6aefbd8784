"""What prepare makes, once, where it is missing: data, a model snapshot, cache folders."""

from pathlib import Path
from typing import Any

import pytest

from tests.runners.world import World
from verl_e2e.core.model.jobs import Checkpoint, Data, Job
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check
from verl_e2e_runner.launch.verl import wrapper_map
from verl_e2e_runner.preflight.preflight import cache_variables, prepare
from verl_e2e_runner.process.cage import cached_snapshot, hub_cache, hub_home, is_offline
from verl_e2e_runner.trees import Trees, prepare_trees


def data(folder: Path) -> Data:
    return Data(train_files=str(folder / "train.parquet"), val_files=str(folder / "eval/small.parquet"))


def test_gsm8k_is_made_by_verls_script_and_only_where_it_is_missing(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.parquet").write_bytes(b"the user's own")
    job = world.job(data=data(tmp_path))
    (finding,) = prepare(job, shared_trees, base, base, tmp_path / "work")
    assert finding.ok
    assert (tmp_path / "eval/small.parquet").read_bytes() == b"PAR1" + b"test" * 4 + b"PAR1"
    assert (tmp_path / "train.parquet").read_bytes() == b"the user's own"
    assert prepare(job, shared_trees, base, base, tmp_path / "work") == ()


def test_the_script_reads_the_raw_data_that_the_job_names(world: World, base: dict[str, str], tmp_path: Path) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    script = "import sys\nraise OSError(' '.join(sys.argv[3:]))"
    (trees.verl / "examples/data_preprocess/gsm8k.py").write_text(script)
    named = data(tmp_path).model_copy(update={"local_dataset": "/srv/gsm8k"})
    (finding,) = prepare(world.job(data=named), trees, base, base, tmp_path / "work")
    assert "OSError: --local_dataset_path /srv/gsm8k" in finding.summary


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise ConnectionError('no route to the hub')", "no route to the hub"),
        ("raise OSError(28, 'No space left on device')", "failed: No space left on device"),
        ("print('nothing written')", "exit code 0"),
    ],
)
def test_a_script_that_fails_blocks_at_the_data_stage(
    script: str, words: str, world: World, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    (trees.verl / "examples/data_preprocess/gsm8k.py").write_text(script)
    (finding,) = prepare(world.job(data=data(tmp_path)), trees, base, base, tmp_path / "work")
    assert (finding.ok, finding.check, finding.stage) == (False, Check.DATA, Stage.DATA)
    assert words in finding.summary


HUB = """
import os, pathlib
def snapshot_download(model, ignore_patterns=None):
    {body}
    assert os.environ.get("HF_TOKEN") == "hf_secret"
    folder = pathlib.Path(os.environ["HF_HOME"], "hub", "models--" + model.replace("/", "--"))
    for name, text in (("refs/main", "abc"), ("snapshots/abc/config.json", str(ignore_patterns))):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    return str(folder / "snapshots/abc")
"""


def with_hub(world: World, folder: Path, body: str = "pass", **checkpoint: Any) -> Job:
    """A job whose Python has a hub client of our own making."""
    (folder / "hub_client").mkdir()
    (folder / "hub_client/huggingface_hub.py").write_text(HUB.format(body=body))
    site = world.site(python_path=(str(folder / "hub_client"),))
    return world.job(site=site, checkpoint=Checkpoint(model_id="org/tiny", **checkpoint))


def test_a_hub_model_is_downloaded_once_with_the_token_that_the_run_never_sees(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    job = with_hub(world, tmp_path)
    variables = {**base, "HF_HOME": str(tmp_path / "hf")}
    token = {**base, "HF_TOKEN": "hf_secret"}
    (finding,) = prepare(job, shared_trees, variables, token, tmp_path)
    assert finding.ok, finding
    snapshot = cached_snapshot("org/tiny", variables)
    assert snapshot is not None
    assert (snapshot / "config.json").read_text() == "None"
    assert prepare(job, shared_trees, variables, token, tmp_path) == ()


def test_the_reward_model_is_downloaded_too_and_named_to_the_wrapper(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    job = with_hub(world, tmp_path).model_copy(update={"reward_model": Checkpoint(model_id="org/scores")})
    variables = {**base, "HF_HOME": str(tmp_path / "hf")}
    assert wrapper_map(job, shared_trees, base=variables)["RM_MODEL_PATH"] == "org/scores"
    found = prepare(job, shared_trees, variables, {**base, "HF_TOKEN": "hf_secret"}, tmp_path)
    assert [finding.summary.partition(" downloaded")[0] for finding in found] == ["org/tiny", "org/scores"]
    place = str(cached_snapshot("org/scores", variables))
    assert wrapper_map(job, shared_trees, base=variables)["RM_MODEL_PATH"] == place
    local = job.model_copy(update={"reward_model": Checkpoint(model_id="org/scores", model_path="/kit/scores")})
    assert wrapper_map(local, shared_trees, base=variables)["RM_MODEL_PATH"] == "/kit/scores"


def test_a_dummy_checkpoint_needs_no_weights(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    job = with_hub(world, tmp_path, dummy_config="/configs/tiny.json")
    variables = {**base, "HF_HOME": str(tmp_path / "hf")}
    prepare(job, shared_trees, variables, {**base, "HF_TOKEN": "hf_secret"}, tmp_path)
    snapshot = cached_snapshot("org/tiny", variables)
    assert snapshot is not None
    assert "*.safetensors" in (snapshot / "config.json").read_text()


def test_a_failed_download_blocks_at_its_stage(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    job = with_hub(world, tmp_path, body="raise OSError(28, 'No space left on device')")
    (finding,) = prepare(job, shared_trees, {**base, "HF_HOME": str(tmp_path)}, base, tmp_path)
    assert (finding.ok, finding.stage) == (False, Stage.MODEL_DOWNLOAD)
    assert "No space left on device" in finding.summary


def test_offline_or_local_nothing_is_downloaded(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    job = with_hub(world, tmp_path, body="raise AssertionError('asked the hub')")
    assert prepare(job, shared_trees, {**base, "HF_HUB_OFFLINE": "1"}, base, tmp_path) == ()
    assert prepare(world.job(), shared_trees, base, base, tmp_path) == ()


@pytest.mark.parametrize(
    ("variables", "home", "cache"),
    [
        ({"HOME": "/h"}, "/h/.cache/huggingface", "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/huggingface", "/c/huggingface/hub"),
        ({"HOME": "/h", "HF_HOME": "/d"}, "/d", "/d/hub"),
        ({"HF_HOME": "/d", "HF_HUB_CACHE": "/e"}, "/d", "/e"),
    ],
)
def test_where_the_hub_keeps_things(variables: dict[str, str], home: str, cache: str) -> None:
    assert (str(hub_home(variables)), str(hub_cache(variables))) == (home, cache)


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_offline(value: str, offline: bool) -> None:
    assert is_offline({"HF_HUB_OFFLINE": value}) is offline


@pytest.mark.parametrize(("home", "scratch", "moved"), [(30.0, 500.0, False), (19.0, 500.0, True), (19.0, 18.0, False)])
def test_a_full_home_moves_the_caches_to_the_sites_scratch(
    home: float, scratch: float, moved: bool, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.job(site=world.site(min_free_gib=20.0, scratch="/scratch"))

    def free(path: Path) -> float:
        return scratch if path == Path("/scratch") else home

    monkeypatch.setattr("verl_e2e_runner.preflight.preflight.free_gib", free)
    variables = {"HOME": "/h", "TRITON_CACHE_DIR": "/mine"}
    chosen = cache_variables(job, variables, tmp_path)
    offline = cache_variables(job, {**variables, "HF_HUB_OFFLINE": "1"}, tmp_path)
    assert chosen.get("HF_HOME") == ("/scratch/huggingface" if moved else None)
    assert ("VLLM_CACHE_ROOT" in offline) is moved
    assert "TRITON_CACHE_DIR" not in chosen
    assert "HF_HOME" not in offline
