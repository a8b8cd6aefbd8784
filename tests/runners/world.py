"""Three small repositories of our own making in the shape of verl, Bridge and Megatron-LM, and jobs on them."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_e2e.core.consumer.verl import BASE_WRAPPER
from verl_e2e.core.model.jobs import Checkpoint, Data, Job, Repository, RepositoryOrigin, SiteProfile
from verl_e2e.core.model.levels import Level

SCRIPT = "tests/special_e2e/run_ppo_trainer_megatron.sh"
SUBMODULE = "3rdparty/Megatron-LM"

_WRAPPER_READS = (
    *("PROFILE_STEPS", "USE_MBRIDGE", "VALUE_VANILLA_MBRIDGE", "USE_MEGATRON_FSDP", "COMMON_PP", "COMMON_VPP"),
    *("COMMON_CP", "INFER_TP", "ALL_OFFLOAD", "SAVE_FREQ", "VAL_BEFORE_TRAIN", "TEST_FREQ", "MODEL_ID"),
)

WRAPPER = (
    """#!/usr/bin/env bash
set -xeuo pipefail
export PYTHONPATH="/workspace/Megatron-LM${PYTHONPATH:+:${PYTHONPATH}}"
NUM_GPUS=${NUM_GPUS:-8}
ENGINE=${ENGINE:-"vllm"}
START=(python3)
if [ "${VERL_USE_UV:-1}" != 0 ] && [ "$ENGINE" = vllm ]; then
    START=(uv run --frozen python3)
fi
MODEL_PATH=${MODEL_PATH:-${HOME}/models/any}
USE_DUMMY_MODEL=${USE_DUMMY_MODEL:-False}
DUMMY_MODEL_PATH=${DUMMY_MODEL_PATH:-${HOME}/dummy}
if [ "$USE_DUMMY_MODEL" = "True" ]; then
    "${START[@]}" scripts/make_model.py --config "${DUMMY_MODEL_CONFIG_PATH}" --out "${DUMMY_MODEL_PATH}"
    MODEL_PATH="${DUMMY_MODEL_PATH}"
fi
TRAIN_FILES=${TRAIN_FILES:-${HOME}/data/train.parquet}
VAL_FILES=${VAL_FILES:-${HOME}/data/test.parquet}
COMMON_TP=${COMMON_TP:-2}
TRAIN_TP=${TRAIN_TP:-$COMMON_TP}
LORA_RANK=${LORA_RANK:-0}
VANILLA_MBRIDGE=${VANILLA_MBRIDGE:-False}
RESUME_MODE=${RESUME_MODE:-disable}
TOTAL_TRAIN_STEPS=${TOTAL_TRAIN_STEPS:-1}
"""
    + "".join(f"{name}=${{{name}:-x}}\n" for name in _WRAPPER_READS)
    + """settings=(
    data.train_files="${TRAIN_FILES}"
    actor_rollout_ref.model.path="${MODEL_PATH}"
    actor_rollout_ref.model.lora.rank=${LORA_RANK}
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TRAIN_TP
    actor_rollout_ref.actor.megatron.vanilla_mbridge=${VANILLA_MBRIDGE}
    trainer.n_gpus_per_node=${NUM_GPUS}
    trainer.resume_mode=${RESUME_MODE}
    trainer.total_training_steps=${TOTAL_TRAIN_STEPS}
)
device=$("${START[@]}" - <<'EOF'
from verl.utils.device import get_device_name
print(get_device_name())
EOF
)
if [ "$device" == "cuda" ]; then
    "${START[@]}" -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' \\
        "${settings[@]}" $@
else
    echo "Unknown device: $device"
    exit 1
fi
"""
)

CONFIG = """
defaults:
  - model@actor_rollout_ref.model: hf
  - _self_
data: {train_files: null}
actor_rollout_ref:
  actor: {megatron: {tensor_model_parallel_size: 1, vanilla_mbridge: true}}
reward:
  reward_model: {enable: true, model_path: null}
trainer:
  n_gpus_per_node: 8
  resume_mode: auto
  total_training_steps: null
  project_name: checks
  default_local_dir: checkpoints/${trainer.project_name}
ray_kwargs:
  ray_init: {num_cpus: null, runtime_env: {py_executable: null}}
"""

GSM8K = """
import argparse, pathlib, verl
parser = argparse.ArgumentParser()
parser.add_argument("--local_save_dir")
out = pathlib.Path(parser.parse_args().local_save_dir)
for name in ("train", "test"):
    (out / f"{name}.parquet").write_bytes(b"PAR1" + name.encode() * 4 + b"PAR1")
"""

VERL = {
    SCRIPT: WRAPPER,
    "verl/__init__.py": "",
    "verl/trainer/__init__.py": "",
    "verl/trainer/main_ppo.py": "raise SystemExit('the real trainer was started')\n",
    "verl/trainer/config/ppo_megatron_trainer.yaml": CONFIG,
    "verl/trainer/config/model/hf.yaml": "path: null\nlora: {rank: 0}\n",
    "verl/utils/megatron_utils.py": "KIND = 'old'\n",
    "verl/models/mcore/bridge.py": "import megatron.bridge\n",
    "examples/data_preprocess/gsm8k.py": GSM8K,
    "scripts/make_model.py": "",
    "docs/guide.md": "not needed for a run\n",
    "setup.py": "",
}
# The import proof starts a Ray of its own, which takes most of a run's time. What becomes of that Ray is tested in
# test_imports.py; a run of another test gets this one, which imports in a process that it forks.
STAND_IN_RAY = """
import multiprocessing
from types import SimpleNamespace
def init(**_): pass
def shutdown(): pass
def remote(**_): return lambda function: SimpleNamespace(remote=lambda *given: (function, given))
def get(call):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(*call)
"""
MEGATRON = {"megatron/core/__init__.py": "VALUE = 1\n", "pyproject.toml": "", "tools/unused.py": ""}
BRIDGE = {
    "src/megatron/bridge/__init__.py": "import megatron.core\n",
    "tests/unit/test_good.py": "import megatron.bridge\n\ndef test_good():\n    pass\n",
    "tests/unit/test_bad.py": "def test_bad():\n    assert 1 == 2\n",
    "tests/unit/test_needs_a_package.py": "import a_package_of_the_image\n\ndef test_it():\n    pass\n",
    "tests/unit/test_broken.py": "import megatron.bridge.gone\n\ndef test_it():\n    pass\n",
    "docs/large.bin": "not needed for a run\n",
    "pyproject.toml": "",
    ".gitmodules": f'[submodule "{SUBMODULE}"]\n\tpath = {SUBMODULE}\n\turl = ../mlm\n',
}


def git(folder: Path, *arguments: str) -> str:
    """Run git for a fixture repository, independent of the machine's configuration."""
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _IDENTITY.items()},
    }
    command = ("git", "-c", "protocol.file.allow=always", *arguments)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


_IDENTITY = {"NAME": "Fixture", "EMAIL": "fixture@example.org", "DATE": "2025-01-01T00:00:00Z"}


def commit(folder: Path, files: Mapping[str, str]) -> str:
    """Write the files, commit everything, and return the commit."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=fixture")
    return git(folder, "rev-parse", "HEAD")


@dataclass(frozen=True)
class World:
    """The repositories and their commits; shared by all tests of a session, because nothing may change them."""

    root: Path
    verl_commit: str
    bridge_commit: str
    megatron_commit: str

    @property
    def verl(self) -> Path:
        return self.root / "verl"

    @property
    def bridge(self) -> Path:
        return self.root / "bridge"

    def job(self, **changes: Any) -> Job:
        """A Level 0 job on these repositories and this Python."""
        values: dict[str, Any] = {
            "id": "0-lora-ddp",
            "level": Level.SMOKE,
            "variant": "lora-ddp",
            "bridge": Repository(path=str(self.bridge), commit=self.bridge_commit),
            "verl": Repository(path=str(self.verl), commit=self.verl_commit),
            "gpu_count": 1,
            "steps": 1,
            "wrapper": dict(BASE_WRAPPER),
            "checkpoint": Checkpoint(model_id="org/tiny", model_path=str(self.root / "model")),
            "data": Data(
                train_files=str(self.root / "data/train.parquet"), val_files=str(self.root / "data/test.parquet")
            ),
            "site": self.site(),
        }
        return Job(**{**values, **changes})

    def site(self, **changes: Any) -> SiteProfile:
        """A site whose Python is the one that runs the tests."""
        values = {"name": "here", "python": sys.executable, "required_packages": ("pydantic",), "min_free_gib": 0.0}
        return SiteProfile(**{**values, **changes})


def make_world(root: Path) -> World:
    """Build the repositories; Bridge pins Megatron-LM as a submodule whose objects lie in its git folder."""
    megatron = commit(root / "mlm", MEGATRON)
    verl = commit(root / "verl", VERL)
    bridge = root / "bridge"
    commit(bridge, BRIDGE)
    git(bridge, "clone", "--quiet", "--bare", str(root / "mlm"), str(bridge / ".git/modules" / SUBMODULE))
    git(bridge, "update-index", "--add", "--cacheinfo", f"160000,{megatron},{SUBMODULE}")
    git(bridge, "commit", "--quiet", "--message=pin")
    (bridge / SUBMODULE).mkdir(parents=True)
    (root / "model").mkdir()
    (root / "model/config.json").write_text("{}")
    (root / "data").mkdir()
    for name in ("train", "test"):
        (root / f"data/{name}.parquet").write_bytes(b"PAR1 rows PAR1")
    return World(root, verl, git(bridge, "rev-parse", "HEAD"), megatron)


def bare_forge(world: World, root: Path) -> dict[int, str]:
    """Serve the repositories of a world, each head of Bridge by the ref of its pull request alone."""
    for name, source in (("bridge", world.bridge), ("verl", world.verl), ("mlm", world.root / "mlm")):
        git(world.root, "clone", "--quiet", "--bare", "--no-hardlinks", str(source), str(root / f"octo/{name}.git"))
    work, heads = root.parent / "head", {}
    for number in (7, 8):
        git(world.root, "clone", "--quiet", str(root / "octo/bridge.git"), str(work / str(number)))
        heads[number] = commit(work / str(number), {"src/megatron/bridge/new.py": f"NUMBER = {number}\n"})
        git(work / str(number), "push", "--quiet", "origin", f"HEAD:refs/pull/{number}/head")
    commit(work / "8", {"src/megatron/bridge/new.py": "NUMBER = 0\n"})
    git(work / "8", "push", "--quiet", "--force", "origin", "HEAD:main")
    return heads


def fetched(world: World, url: str, head: str, ref: str) -> Job:
    """A job as the service orders it: names of repositories, and where they are fetched from."""
    return world.job(
        bridge=Repository(path="bridge", commit=head),
        verl=Repository(path="verl", commit=world.verl_commit),
        origins={
            "bridge": RepositoryOrigin(url=f"{url}/octo/bridge.git", ref=ref),
            "verl": RepositoryOrigin(url=f"{url}/octo/verl.git"),
            "megatron_lm": RepositoryOrigin(url=f"{url}/octo/mlm.git"),
        },
    )


def fingerprint(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Every file and folder below, .git too: mode, modification time and content digest."""
    return {str(path.relative_to(folder)): _state(path) for path in sorted(folder.rglob("*"))}


def _state(path: Path) -> tuple[int, int, str]:
    status = path.lstat()
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
    return status.st_mode, status.st_mtime_ns, digest
