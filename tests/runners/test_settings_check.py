"""Settings of jobs held against a checkout of verl: its wrapper's real call, its configuration, its own checks."""

import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runners.world import VERL
from verl_e2e.core.consumer.consumers import VARIANTS, setting_probes, variant_named, variant_of
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.settings import Axis, SettingsCheck, Value
from verl_e2e.core.model.space import JobPoint
from verl_e2e_runner.launch.verl import check_settings

pytestmark = pytest.mark.host

CHECKS = "verl/utils/config.py"
NEEDS = "def need_critic(config): return True\ndef need_reference_policy(config): return True\n"


@pytest.fixture
def verl(tmp_path: Path) -> Path:
    """A small verl with a configuration that refuses what it does not know, and no checks of its own."""
    for name, text in VERL.items():
        file = tmp_path / "verl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "verl"


def checked(verl: Path, *variants: Variant, python: str = sys.executable) -> tuple[SettingsCheck, ...]:
    return check_settings(variants, tree=verl, python=python, work=verl.parent / "work", base=dict(os.environ))


def smoke() -> Variant:
    made = variant_named("0-lora-ddp")
    assert made is not None
    return made


def write(verl: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = verl / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.ray
def test_each_job_gets_the_answer_to_its_own_settings(verl: Path) -> None:
    refused = variant_of(JobPoint.default().with_axes({Axis.ADAPTER: "dora"}), Level.SMOKE, "dora")
    split = replace(smoke(), name="split", overrides=("note='two words'",))
    broken, plain, taken_apart = checked(verl, refused, smoke(), split)
    assert "Key 'type' is not in struct" in broken.refused
    assert not broken.accepted
    assert taken_apart.refused == "the wrapper changes the override note='two words'"
    # The small configuration has one size and no critic.
    assert (plain.refused, plain.accepted) == ("", False)
    assert any(text.startswith("critic.megatron.tensor_model_parallel_size is missing") for text in plain.mismatches)
    assert not any("actor.megatron.tensor_model_parallel_size" in text for text in plain.mismatches)
    assert plain.unchecked.startswith("verl cannot be imported: No module named 'verl.trainer.ppo'")


@pytest.mark.ray
@pytest.mark.parametrize(
    ("body", "refused"),
    (
        ("print('all good')", ""),
        ("raise ValueError(f'no {config.trainer.n_gpus_per_node} GPUs')", "no 1 GPUs"),
        ("assert False", "AssertionError"),
    ),
)
def test_verls_own_checks_are_made_where_it_can_be_imported(body: str, refused: str, verl: Path) -> None:
    checks = f"def validate_config(config, use_reference_policy, use_critic):\n    {body}\n"
    empty = dict.fromkeys(("verl/trainer/ppo/__init__.py", "verl/utils/__init__.py"), "")
    write(verl, {**empty, "verl/trainer/ppo/utils.py": NEEDS, CHECKS: checks})
    config = verl / "verl/trainer/config/ppo_megatron_trainer.yaml"
    config.write_text(config.read_text().replace("reward:", "  rollout: {name: vllm}\nreward:", 1))
    (found,) = checked(verl, smoke())
    assert found.refused == refused
    assert bool(found.unchecked) == (not refused)


def test_more_jobs_than_are_asked_together_get_their_own_answers(verl: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/answer.py\n")
    python.chmod(0o755)
    (tmp_path / "answer.py").write_text(
        "import json, sys\n"
        "steps = [next(o for o in r['overrides'] if 'total_training_steps' in o) for r in json.load(sys.stdin)]\n"
        "assert len(steps) <= 50\n"
        "print(json.dumps([{'error': text.partition('=')[2]} for text in steps]))\n"
    )
    made = checked(verl, *(replace(smoke(), name=f"of-{n}", steps=n) for n in range(1, 121)), python=str(python))
    assert [check.refused for check in made] == [str(n) for n in range(1, 121)]


def test_a_folder_without_the_wrapper_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no tests/special_e2e/.*: give a checkout of verl"):
        checked(tmp_path, smoke())


def test_a_wrapper_that_ends_early_refuses_the_job(verl: Path) -> None:
    wrapper = verl / "tests/special_e2e/run_ppo_trainer_megatron.sh"
    wrapper.write_text("#!/usr/bin/env bash\necho '[ERROR] no model'\nexit 1\n")
    (found,) = checked(verl, smoke(), python=shutil.which("true") or "true")
    assert "[ERROR] no model" in found.refused


@pytest.mark.parametrize(
    ("code", "words"), ((3, "has no hydra-core: install it there"), (1, "could not compose the configuration"))
)
def test_a_python_that_cannot_compose_is_named(code: int, words: str, verl: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexit {code}\n")
    python.chmod(0o755)
    with pytest.raises(UserError, match=words):
        checked(verl, smoke(), python=str(python))


def any_value(axis: Axis, choose: random.Random) -> Value:
    if axis.is_size:
        return choose.choice((1, 2, 2, 4))
    if axis.row.choices:
        return choose.choice(axis.row.choices)
    if isinstance(axis.default, bool):
        return choose.choice((True, False))
    return choose.choice(("linear_qkv", "*.layers.0.*.linear_qkv") if axis is Axis.ADAPTER_TARGETS else (4, 16))


@pytest.mark.ray
@pytest.mark.labelled
def test_a_real_verl_takes_each_named_job_each_setting_and_any_point_without_a_conflict(tmp_path: Path) -> None:
    repository = os.environ["VERL_REPO"]
    tree = subprocess.run(("git", "-C", repository, "archive", "HEAD"), capture_output=True, check=True).stdout
    (tmp_path / "verl").mkdir()
    subprocess.run(("tar", "x", "-C", str(tmp_path / "verl")), input=tree, check=True)
    choose = random.Random(14)
    points = (
        JobPoint.default().with_axes({axis: any_value(axis, choose) for axis in choose.sample(tuple(Axis), 5)})
        for _ in range(200)
    )
    sound = [point for point in points if not point.conflict and point.gpu_count <= 8][:60]
    assert len(sound) == 60
    derived = [variant_of(point, point.levels[0], f"any-{number}") for number, point in enumerate(sound)]
    made = checked(tmp_path / "verl", *VARIANTS, *setting_probes(), *derived)
    assert [check for check in made if not check.accepted] == []


def test_a_python_may_be_named_from_the_folder_that_the_command_runs_in(verl: Path) -> None:
    (verl.parent / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (verl.parent / "python").chmod(0o755)
    argv = [sys.executable, "-m", "verl_e2e", "policy", "settings", "--verl", "verl", "--python", "./python"]
    done = subprocess.run(argv, cwd=verl.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, "No such file" in done.stderr) == (0, False), done.stderr
    assert "accepted" in done.stdout
