"""The hooks of SkyRL's methods around modules laid out like SkyRL's, with real tensors on a CPU."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REHEARSAL
from verl_e2e_runner.launch.launcher import INSTRUMENTATION

pytestmark = pytest.mark.rehearsal

BACKEND = "skyrl/backends/skyrl_train"
FILES = {
    "megatron/bridge/models/conversion/model_bridge.py": """
class MegatronModelBridge:
    def load_weights_hf_to_megatron(self, hf_pretrained, megatron_model, allowed_mismatched_params=None):
        return megatron_model
""",
    f"{BACKEND}/workers/megatron/megatron_worker.py": """
import dataclasses
import torch
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge

@dataclasses.dataclass
class WeightChunk:
    names: list
    tensors: list

class MegatronPolicyWorkerBase:
    def init_model(self, model_path, num_training_steps=1):
        self.actor_module = [torch.nn.Linear(4, 3)]
        MegatronModelBridge().load_weights_hf_to_megatron(None, self.actor_module)
        self.optimizer = None
    def optim_step(self):
        with torch.no_grad():
            self.actor_module[0].weight.add_(1)
        return 0.5

class MegatronRefWorkerBase:
    def init_model(self, model_path, num_training_steps=1):
        self.actor_module = [torch.nn.Linear(4, 3)]

class MegatronWeightExtractor:
    def __init__(self, actor_module):
        self.actor_module = actor_module
    def extract_weights(self, dtype):
        weights = dict(self.actor_module[0].named_parameters())
        yield WeightChunk([*weights], [*weights.values()])
""",
    f"{BACKEND}/distributed/megatron/megatron_strategy.py": """
class MegatronStrategy:
    def save_checkpoint(self, model, ckpt_dir, node_local_rank, optimizer=None, scheduler=None, tokenizer=None):
        return ckpt_dir
    def load_checkpoint(self, model, ckpt_dir, optimizer=None, scheduler=None):
        return ckpt_dir
""",
    f"{BACKEND}/inference_servers/layerwise_reload.py": """
class LayerwiseReloadWorkerMixin:
    def skyrl_start_weight_update(self, is_checkpoint_format=True):
        pass
    def skyrl_finish_weight_update(self):
        pass
""",
    f"{BACKEND}/inference_servers/new_inference_worker_wrap.py": """
from skyrl.backends.skyrl_train.inference_servers.layerwise_reload import LayerwiseReloadWorkerMixin

class NewInferenceWorkerWrap(LayerwiseReloadWorkerMixin):
    def update_weights_ipc(self, update_info):
        return self.model_runner.model.load_weights(weights=update_info["weights"])
    def update_weights_nccl(self, update_info):
        raise RuntimeError("not in this test")
""",
}
RUN = """
import types, torch
from skyrl.backends.skyrl_train.workers.megatron import megatron_worker as workers
from skyrl.backends.skyrl_train.distributed.megatron.megatron_strategy import MegatronStrategy
from skyrl.backends.skyrl_train.inference_servers.new_inference_worker_wrap import NewInferenceWorkerWrap

policy, ref = workers.MegatronPolicyWorkerBase(), workers.MegatronRefWorkerBase()
policy.init_model("/m")
ref.init_model("/m")
chunks = list(workers.MegatronWeightExtractor(policy.actor_module).extract_weights(torch.float32))
assert chunks[0].names == ["weight", "bias"], chunks

class Served(torch.nn.Linear):
    def load_weights(self, weights):
        with torch.no_grad():
            for name, tensor in weights:
                self.get_parameter(name).copy_(tensor)
        return "loaded"

engine = NewInferenceWorkerWrap()
engine.model_runner = types.SimpleNamespace(model=Served(4, 3))
engine.skyrl_start_weight_update()
for chunk in chunks:
    assert engine.update_weights_ipc({"weights": list(zip(chunk.names, chunk.tensors))}) == "loaded"
engine.skyrl_finish_weight_update()
assert "load_weights" not in vars(engine.model_runner.model)
assert policy.optim_step() == 0.5
held = types.SimpleNamespace(actor_module=policy.actor_module)
MegatronStrategy().save_checkpoint(held, "/c/global_step_3/policy", 0)
MegatronStrategy().load_checkpoint(held, "/c/global_step_3/policy")
"""


@pytest.fixture
def snapshots(tmp_path: Path) -> list[dict[str, Any]]:
    """The lines of the run, by the process's own file."""
    for name, text in FILES.items():
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    out = tmp_path / "out"
    variables = {
        "PYTHONPATH": os.pathsep.join((str(INSTRUMENTATION), str(tmp_path / "tree"))),
        "PATH": os.environ["PATH"],
        "VERL_E2E_FINGERPRINTS": str(out),
    }
    python = str(REHEARSAL / "bin" / "python")
    done = subprocess.run([python, "-c", RUN], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_every_method_is_wrapped_and_its_hook_ends(snapshots: list[dict[str, Any]]) -> None:
    hooks = [line for line in snapshots if line["kind"] == "hook"]
    assert {line["installed"] for line in hooks} == {True}
    assert not [line for line in hooks if line["problem"]]
    assert len({line["target"] for line in hooks}) == 11


def test_each_point_of_a_step_is_read(snapshots: list[dict[str, Any]]) -> None:
    points = [(line["point"], line["model"]) for line in snapshots if line["kind"] == "snapshot"]
    assert points == [
        ("weights imported", "actor"),
        ("checkpoint file", "actor"),
        ("model built", "actor"),
        ("model built", "ref"),
        ("before export", "actor"),
        ("exported", "actor"),
        ("after export", "actor"),
        ("received", "rollout"),
        ("rollout loaded", "rollout"),
        ("optimizer step", "actor"),
        ("checkpoint saved", "actor"),
        ("checkpoint loaded", "actor"),
    ]


def test_what_left_is_what_arrived_and_a_step_moves_it(snapshots: list[dict[str, Any]]) -> None:
    def prints(point: str) -> Any:
        line = next(line for line in snapshots if line.get("point") == point)
        return {item["name"]: item["bits"] for item in line["tensors"]}

    assert prints("exported") == prints("received") == prints("rollout loaded")
    assert prints("optimizer step")["weight"] != prints("model built")["weight"]
    assert prints("checkpoint saved") == prints("checkpoint loaded")
    saved = [line.get("step") for line in snapshots if str(line.get("point")).startswith("checkpoint ")]
    assert saved[-2:] == [3, 3]
