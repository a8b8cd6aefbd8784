"""The hooks of the fingerprints in real Python processes, around modules laid out like verl's and Megatron-Bridge's."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from verl_e2e_runner.launch.launcher import INSTRUMENTATION

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
ENGINE_SOURCE = """
class MegatronEngine:
    def initialize(self):
        self.module = []
    def optimizer_step(self):
        return 0.5
    def get_per_tensor_param(self, base_sync_done=False, **kwargs):
        return iter([]), None
    def save_checkpoint(self, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None, **kwargs):
        raise OSError(f"no space for {local_path} of step {global_step}")
    async def load_checkpoint(self, local_path):
        return local_path


class WithHead(MegatronEngine):
    pass
"""
IMPORT = "from verl.workers.engine.megatron.transformer_impl import MegatronEngine, WithHead\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A verl that holds the engine alone; it has no torch."""
    file = tmp_path / "tree" / ENGINE
    file.parent.mkdir(parents=True)
    file.write_text(ENGINE_SOURCE)
    return tmp_path / "tree"


def python(code: str, tree: Path, out: Path | None) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": os.pathsep.join((str(INSTRUMENTATION), str(tree))), "PATH": os.environ["PATH"]}
    if out is not None:
        variables["VERL_E2E_FINGERPRINTS"] = str(out)
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]


def hooks(out: Path) -> Mapping[str, dict[str, Any]]:
    """The last line about each method."""
    return {line["target"].rpartition(".")[2]: line for line in lines(out) if line["kind"] == "hook"}


def test_methods_are_wrapped_when_their_module_is_imported(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert python("import json", tree, out).returncode == 0
    assert not out.exists()
    done = python(IMPORT, tree, out)
    assert done.returncode == 0, done.stderr
    found = hooks(out)
    assert {name: line["installed"] for name, line in found.items()} == {
        "initialize": True,
        "optimizer_step": True,
        "get_per_tensor_param": True,
        "save_checkpoint": True,
        "load_checkpoint": False,
    }
    assert found["initialize"]["target"] == ("verl.workers.engine.megatron.transformer_impl:MegatronEngine.initialize")
    assert found["load_checkpoint"]["problem"] == "it is not a plain method"


def test_a_method_that_is_not_there_is_said(tree: Path, tmp_path: Path) -> None:
    (tree / ENGINE).write_text("class MegatronEngine:\n    def initialize(self): pass\n")
    assert python("import verl.workers.engine.megatron.transformer_impl", tree, tmp_path / "out").returncode == 0
    found = hooks(tmp_path / "out")
    assert found["initialize"]["installed"]
    assert (found["optimizer_step"]["installed"], found["optimizer_step"]["problem"]) == (False, "it is not there")


def test_a_module_without_the_class_is_said_too(tree: Path, tmp_path: Path) -> None:
    (tree / ENGINE).write_text("")
    assert python("import verl.workers.engine.megatron.transformer_impl", tree, tmp_path / "out").returncode == 0
    assert {line["problem"] for line in hooks(tmp_path / "out").values()} == {"it is not there"}


def test_a_subclass_is_wrapped_and_what_a_method_returns_stays(tree: Path, tmp_path: Path) -> None:
    code = IMPORT + "import inspect\nprint(WithHead().optimizer_step(), inspect.signature(WithHead.save_checkpoint))"
    done = python(code, tree, tmp_path / "out")
    assert done.stdout == python(code, tree, None).stdout
    assert done.stdout.startswith("0.5 (self, local_path, hdfs_path=None, global_step=0")
    assert hooks(tmp_path / "out")["optimizer_step"]["calls"] == 1


def test_a_fault_of_ours_is_written_down_and_changes_nothing(tree: Path, tmp_path: Path) -> None:
    """Here torch is not there at all, which no hook expects."""
    code = IMPORT + "engine = WithHead(); engine.initialize(); print(engine.optimizer_step())"
    done = python(code, tree, tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, "0.5\n"), done.stderr
    found = hooks(tmp_path / "out")
    assert found["initialize"]["problem"] == "KeyError: 'torch'"
    assert found["optimizer_step"]["problem"] == "KeyError: 'torch'"


def test_an_error_of_the_method_comes_through_as_it_was(tree: Path, tmp_path: Path) -> None:
    code = IMPORT + "WithHead().save_checkpoint('/x', global_step=3)"
    done = python(code, tree, tmp_path / "out")
    assert done.stderr.splitlines()[-1] == "OSError: no space for /x of step 3"
    assert hooks(tmp_path / "out")["save_checkpoint"]["calls"] == 1


def test_a_wrong_call_fails_as_without_us(tree: Path, tmp_path: Path) -> None:
    code = IMPORT + "WithHead().save_checkpoint()"
    done, plain = (python(code, tree, out) for out in (tmp_path / "out", None))
    assert done.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


def test_a_folder_that_cannot_be_written_changes_nothing(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    done = python(IMPORT + "print(WithHead().optimizer_step())", tree, tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, "0.5\n"), done.stderr


def test_what_was_written_survives_a_kill(tree: Path, tmp_path: Path) -> None:
    code = IMPORT + "import os\nWithHead().optimizer_step()\nos.kill(os.getpid(), 9)"
    assert python(code, tree, tmp_path / "out").returncode == -signal.SIGKILL
    assert hooks(tmp_path / "out")["optimizer_step"]["calls"] == 1


def test_nothing_is_installed_without_the_variable(tree: Path) -> None:
    done = python(IMPORT + "print(hasattr(MegatronEngine.initialize, '__wrapped__'))", tree, None)
    assert done.stdout == "False\n"


# As in SkyRL: Ray takes the class as its module ends, and the loop's process has a queue that does not leave it.
SKYRL = {
    "skyrl/backends/skyrl_train/workers/megatron/megatron_worker.py": """
import multiprocessing
import ray

class MegatronPolicyWorkerBase:
    def init_model(self):
        return queue

queue = "none here"

def log():
    global queue
    queue = multiprocessing.SimpleQueue()

PolicyWorker = ray.remote(MegatronPolicyWorkerBase)
""",
    "skyrl/train/entrypoints/main_base.py": """
from pathlib import Path
import ray.cloudpickle

class BasePPOExp:
    def __init__(self, config):
        self.sent = Path(config)
    def run(self):
        from skyrl.backends.skyrl_train.workers.megatron import megatron_worker
        megatron_worker.log()
        sent = megatron_worker.PolicyWorker.__ray_metadata__.modified_class
        self.sent.write_bytes(ray.cloudpickle.dumps(sent))
""",
    "skyrl_gym/__init__.py": "from skyrl_gym.envs import registration",
    "skyrl_gym/envs/registration.py": "registry = ('digit_share',)",
    "skyrl_gym/envs/base_text_env.py": "BaseTextEnv = BaseTextEnvStepOutput = object",
}


def test_the_loop_of_skyrl_sends_workers_a_class_whose_methods_they_wrap(tmp_path: Path) -> None:
    for name, text in SKYRL.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    sent = tmp_path / "sent"
    loop = python(f"import verl_e2e_skyrl; verl_e2e_skyrl.skyrl_entrypoint({str(sent)!r})", tmp_path, tmp_path / "loop")
    assert loop.returncode == 0, loop.stderr
    code = f"import pickle; worker = pickle.load(open({str(sent)!r}, 'rb'))(); print(worker.init_model())"
    worker = python(code, tmp_path, tmp_path / "worker")
    assert (worker.returncode, worker.stdout.strip()) == (0, "none here"), worker.stderr
    assert hooks(tmp_path / "worker")["init_model"]["calls"] == 1
