"""The wrapper's real command line without a GPU, and what verl's configuration makes of it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.places import ROOT
from tests.runners.world import SCRIPT, WRAPPER, World
from verl_e2e.core.consumer.verl import BASE_WRAPPER
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.launch.launcher import Config, Launch, python_path
from verl_e2e_runner.launch.verl import DryCall, check_dry_call, compose, dry_call, launches
from verl_e2e_runner.process.cage import Session
from verl_e2e_runner.trees import Trees, prepare_trees

pytestmark = pytest.mark.host


def start(job: Job, trees: Trees, session: Session, base: dict[str, str]) -> Launch:
    return launches(job, trees, session, base=base)[0]


def called(job: Job, trees: Trees, session: Session, base: dict[str, str], work: Path) -> DryCall:
    result = dry_call(start(job, trees, session, base), work)
    assert isinstance(result, DryCall)
    return result


def test_the_recorded_call_is_what_the_entry_point_would_get(
    world: World, shared_trees: Trees, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    job = world.job(overrides=("x=1",))
    call = called(job, shared_trees, session, base, tmp_path)
    assert call.program == "python3"
    assert (call.option("config-path"), call.option("config-name")) == ("config", "ppo_megatron_trainer.yaml")
    assert call.overrides[0] == f"data.train_files={job.data.train_files}"
    assert "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1" in call.overrides
    assert "x=1" in call.overrides
    assert call.environment["PYTHONPATH"] == f"/workspace/Megatron-LM:{python_path(job, shared_trees)}"
    assert "dry-call" not in call.environment["PATH"]
    assert check_dry_call(call, start(job, shared_trees, session, base)) == ()


def test_a_wrapper_that_would_launch_through_uv_fails_closed(
    world: World, shared_trees: Trees, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    job = world.job(wrapper={**BASE_WRAPPER, "VERL_USE_UV": "1"})
    call = called(job, shared_trees, session, base, tmp_path)
    (finding,) = check_dry_call(call, start(job, shared_trees, session, base))
    assert finding.blocking
    assert "uv run" in finding.summary
    assert "VERL_USE_UV=0" in finding.fix


def test_an_override_that_bash_takes_apart_blocks(
    world: World, shared_trees: Trees, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    job = world.job(overrides=("note='two words'",))
    call = called(job, shared_trees, session, base, tmp_path)
    (finding,) = check_dry_call(call, start(job, shared_trees, session, base))
    assert "note='two words'" in finding.summary


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (WRAPPER.replace("verl.trainer.main_ppo", "verl.trainer.main_other"), "without starting verl.trainer.main_ppo"),
        ("#!/usr/bin/env bash\necho '[ERROR] no dummy config'\nexit 1\n", "[ERROR] no dummy config"),
        ("#!/usr/bin/env bash\nexec sleep 60\n", "no end within"),
    ],
)
def test_a_wrapper_that_never_calls_the_entry_point_blocks(
    wrapper: str, words: str, world: World, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    (trees.verl / SCRIPT).write_text(wrapper)
    finding = dry_call(start(world.job(), trees, session, base), tmp_path, timeout_s=2)
    assert isinstance(finding, Finding)
    assert finding.check is Check.WRAPPER
    assert finding.blocking
    assert words in finding.summary


def composed(
    world: World, trees: Trees, session: Session, base: dict[str, str], work: Path, **changes: Any
) -> tuple[tuple[Config, ...], tuple[Finding, ...]]:
    job = world.job(**changes)
    return compose(job, trees, [called(job, trees, session, base, work)])


@pytest.mark.ray
def test_the_configuration_is_composed_and_resolved(
    world: World, shared_trees: Trees, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    expected = {
        "actor_rollout_ref.actor.megatron.vanilla_mbridge": False,
        "actor_rollout_ref.model.lora.rank": 4,
        "trainer.default_local_dir": "checkpoints/checks",
        "reward.reward_model.model_path": None,
    }
    (config,), findings = composed(world, shared_trees, session, base, tmp_path, expected=expected)
    assert [finding.ok for finding in findings] == [True]
    variables = lookup(config, "ray_kwargs.ray_init.runtime_env.env_vars")
    assert variables["PYTHONPATH"] == python_path(world.job(), shared_trees)
    assert lookup(config, "no.such.key") is None


@pytest.mark.ray
def test_an_override_that_does_not_compose_blocks_with_hydras_words(
    world: World, shared_trees: Trees, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    overrides = ("trainer.no_such_key=1",)
    _, (finding,) = composed(world, shared_trees, session, base, tmp_path, overrides=overrides)
    assert finding.blocking
    assert "Key 'no_such_key' is not in struct" in finding.summary


@pytest.mark.ray
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("actor_rollout_ref.actor.megatron.vanilla_mbridge", True, "is False in the composed configuration"),
        ("actor_rollout_ref.model.lora.rank", 8, "is 4 in the composed configuration, the job expects 8"),
        ("trainer.total_training_steps", True, "is 1 in"),
        ("trainer.gone", 1, "is missing in"),
    ],
)
def test_a_value_that_the_job_does_not_expect_blocks(
    key: str,
    value: object,
    words: str,
    world: World,
    shared_trees: Trees,
    session: Session,
    base: dict[str, str],
    tmp_path: Path,
) -> None:
    _, (finding,) = composed(world, shared_trees, session, base, tmp_path, expected={key: value})
    assert finding.blocking
    assert finding.summary.startswith(key)
    assert words in finding.summary


def test_a_python_without_hydra_blocks(
    world: World, shared_trees: Trees, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    bare = tmp_path / "hydra"
    bare.mkdir()
    (bare / "__init__.py").write_text("raise ImportError('No module named hydra')\n")
    path = f"{ROOT}/runners/verl_e2e_runner/instrumentation:{tmp_path}"
    _, (finding,) = composed(world, shared_trees, session, base, tmp_path, process={"PYTHONPATH": path})
    assert "Hydra cannot be imported" in finding.summary
    assert shutil.which("python3")
