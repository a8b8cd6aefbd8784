"""The script of `--dry-run`: it makes nothing when it is printed, and runs as it is printed.

The wrapper is the fixture's, in the shape of verl's; the trainer that it starts is a stand-in that prints its own log.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.patience import HANG_S
from tests.runners.world import SCRIPT, World, commit, fingerprint
from verl_e2e.adapters.dispatch import COMMAND
from verl_e2e.core.consumer.verl import BASE_WRAPPER
from verl_e2e.core.model.jobs import Job, Patch, Repository, Substitution
from verl_e2e.core.model.levels import Level
from verl_e2e_runner.by_hand import dry_run

PREPARE = ("verl-e2e", "run", "--prepare")
TRAINER = """
import os
import megatron.bridge
from verl.utils.megatron_utils import KIND
here = os.path.realpath(os.getcwd())
inside = os.path.realpath(megatron.bridge.__file__).startswith(os.path.dirname(here))
print("trained until", os.environ["TOTAL_TRAIN_STEPS"], "rank", os.environ["LORA_RANK"], KIND, inside)
print("secrets", sorted(name for name in os.environ if "TOKEN" in name))
"""
KIND = "KIND = 'old'\n"
PATCHED = "KIND = 'patched'\n"


@pytest.fixture
def environ() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "GITHUB_TOKEN": "ghp_" + "a" * 36}


def _job(world: World, tmp_path: Path, trainer: str = TRAINER, **changes: Any) -> Job:
    """The standard job on a private copy of verl with a stand-in for the trainer."""
    verl = tmp_path / "user" / "verl"
    shutil.copytree(world.verl, verl)
    device = "def get_device_name():\n    return 'cuda'\n"
    files = {"verl/trainer/main_ppo.py": trainer, "verl/utils/device.py": device, "verl/utils/__init__.py": ""}
    sha = commit(verl, files)
    return world.job(verl=Repository(path=str(verl), commit=sha), **changes)


def _print(job: Job, tmp_path: Path, environ: dict[str, str], *words: str) -> Path:
    """The script in a file, printed by the command in another folder than that of the job."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job.json").write_text(job.model_dump_json())
    command = (*COMMAND, "run", "--job", "../job.json", "--out", "../out", "--dry-run", *words)
    done = subprocess.run(
        command, cwd=tmp_path / "elsewhere", env=environ, capture_output=True, text=True, check=True, timeout=HANG_S
    )
    script = tmp_path / "dry.sh"
    script.write_text(done.stdout)
    return script


def _bash(script: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ("bash", str(script))
    return subprocess.run(command, cwd="/", env=environ, capture_output=True, text=True, check=False, timeout=HANG_S)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("words", [(), ("--work", "../work")], ids=["next to out", "with --work"])
def test_the_printed_script_runs_as_it_is(
    world: World, tmp_path: Path, environ: dict[str, str], words: tuple[str, ...]
) -> None:
    patch = Patch(
        name="kind",
        repository="verl",
        file="verl/utils/megatron_utils.py",
        substitutions=(Substitution(old="old", new="patched", count=1),),
        before=_digest(KIND),
        after=_digest(PATCHED),
        reason="a stand-in for a declared patch",
    )
    tests = ("tests/unit/test_good.py", "tests/unit/test_that_is_not_in_this_commit.py")
    job = _job(world, tmp_path, patches=(patch,), bridge_tests=tests, require_bridge_checks=True)
    before = fingerprint(tmp_path / "user")
    script = _print(job, tmp_path, environ, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dry.sh", "elsewhere", "job.json", "user"]
    # Once more in one of the two places, for the person who looks for a cause runs it again.
    for done in [_bash(script, environ) for _ in range(1 if words else 2)]:
        assert done.returncode == 0, done.stderr
        assert "1 passed" in done.stdout
        assert "trained until 1 rank 4 patched True" in done.stdout
        assert "secrets []" in done.stdout
    assert fingerprint(tmp_path / "user") == before


def test_save_and_resume_are_run_one_after_the_other(world: World, tmp_path: Path, environ: dict[str, str]) -> None:
    wrapper = {**BASE_WRAPPER, "SAVE_FREQ": "1"}
    job = _job(world, tmp_path, id="1-resume", level=Level.SAVE_RESUME, steps=2, wrapper=wrapper)
    done = _bash(_print(job, tmp_path, environ), environ)
    assert (done.returncode, done.stdout.count("trained until")) == (0, 2), done.stderr
    assert done.stdout.index("trained until 1") < done.stdout.index("trained until 2")


@pytest.mark.parametrize(
    ("tests", "required", "goes_on"),
    [("test_needs_a_package.py", False, True), ("test_bad.py", True, False), ("test_broken.py", True, False)],
)
def test_a_script_ends_where_a_run_would(
    world: World, tmp_path: Path, environ: dict[str, str], tests: str, required: bool, goes_on: bool
) -> None:
    job = _job(world, tmp_path, bridge_tests=(f"tests/unit/{tests}",), require_bridge_checks=required)
    done = _bash(_print(job, tmp_path, environ), environ)
    assert (done.returncode == 0, "trained until" in done.stdout) == (goes_on, goes_on), done.stderr


def test_a_failed_phase_ends_the_script(world: World, tmp_path: Path, environ: dict[str, str]) -> None:
    wrapper = {**BASE_WRAPPER, "SAVE_FREQ": "1"}
    trainer = "print('began'); raise SystemExit(7)\n"
    job = _job(world, tmp_path, trainer, id="1-resume", level=Level.SAVE_RESUME, steps=2, wrapper=wrapper)
    done = _bash(_print(job, tmp_path, environ), environ)
    assert (done.returncode, done.stdout.count("began")) == (7, 1), done.stderr


@pytest.mark.parametrize("name", ["verl", "bridge"])
def test_a_commit_that_is_not_there_ends_the_script_with_its_fix(
    world: World, tmp_path: Path, environ: dict[str, str], name: str
) -> None:
    job = _job(world, tmp_path)
    lost = getattr(job, name).model_copy(update={"commit": "e" * 40})
    done = _bash(_print(job.model_copy(update={name: lost}), tmp_path, environ), environ)
    assert done.returncode == 2
    assert f"fetch origin {'e' * 40}" in done.stderr
    assert "Traceback" not in done.stderr
    assert "trained" not in done.stdout


def test_what_a_killed_runner_left_beside_the_folder_is_not_taken_for_evidence(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    left = tmp_path / ".out.work"
    left.mkdir()
    (left / "imports.jsonl").write_text('{"module": "megatron.bridge", "file": "/x", "role": "run", "pid": 1}\n')
    text = dry_run(world.job(), tmp_path / "out", environ=environ, work=None, prepare=PREPARE)
    assert f"{left}/" not in text


def test_a_dry_run_prints_what_would_be_started_and_makes_nothing(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    text = dry_run(world.job(), tmp_path / "out", environ=environ, work=None, prepare=PREPARE)
    assert "export VANILLA_MBRIDGE=False" in text
    assert "run_ppo_trainer_megatron.sh" in text
    assert "ghp_" not in text
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_several_nodes_joins_their_ray_cluster(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    job = world.job(gpu_count=8, site=world.site(gpus_per_node=4))
    text = dry_run(job, tmp_path / "out", environ=environ, work=None, prepare=PREPARE)
    assert "# They need a Ray cluster of 2 nodes with 4 GPUs each. Set VERL_E2E_RAY_CLUSTER" in text
    environ |= {"VERL_E2E_RAY_CLUSTER": "192.0.2.1:6400"}
    text = dry_run(job, tmp_path / "out", environ=environ, work=None, prepare=PREPARE)
    assert "# They need a Ray cluster of 2 nodes with 4 GPUs each. They join the Ray cluster at 192.0.2.1:6400." in text
    assert "export RAY_ADDRESS=192.0.2.1:6400" in text
    assert "trainer.nnodes=2" in text


def test_a_dry_run_shows_the_bridge_tests_and_drops_what_the_wrapper_does_not_read(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    verl = tmp_path / "ve rl"
    shutil.copytree(world.verl, verl)
    script = verl / SCRIPT
    sha = commit(verl, {SCRIPT: script.read_text().replace("VERL_USE_UV", "ANOTHER_NAME")})
    job = world.job(bridge_tests=("tests/unit/test_good.py",), wrapper={**world.job().wrapper, "VERL_USE_UV": "0"})
    other = job.model_copy(update={"verl": Repository(path=str(verl), commit=sha)})
    before = fingerprint(verl)
    shown = [dry_run(each, tmp_path / "o ut", environ=environ, work=None, prepare=PREPARE) for each in (job, other)]
    assert ["export VERL_USE_UV=0" in text for text in shown] == [True, False]
    for text in shown:
        assert "-m \\\n  pytest" in text
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert fingerprint(verl) == before
