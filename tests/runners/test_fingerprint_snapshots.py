"""What the hooks read, in real processes over stand-ins of PyTorch (backed by NumPy), verl, Bridge and vLLM."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_e2e.core.model.fingerprints import HookState, ModelInputs, Point, Snapshot
from verl_e2e_runner.folder.process_records import FingerprintLines
from verl_e2e_runner.launch.launcher import INSTRUMENTATION

STAND_INS = Path(__file__).parent.parent / "fixtures" / "fingerprints"
TRAINER = """
from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead
engine = MegatronEngineWithLMHead()
"""
ROLLOUT = """
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
worker = vLLMColocateWorkerExtension()
"""
QKV, NORM = "linear_qkv", "norm"
FIRST, LAST = f"{QKV}.adapter.linear_in.weight", f"{QKV}.adapter.linear_out.weight"


def process(code: str, out: Path | None, **variables: str) -> str:
    """Run the code with the hooks, or without them where there is no folder; what it printed."""
    path = os.pathsep.join((str(INSTRUMENTATION), str(STAND_INS)))
    environment = {"PYTHONPATH": path, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **variables}
    if out is not None:
        environment["VERL_E2E_FINGERPRINTS"] = str(out)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "fingerprints"


def read(out: Path) -> tuple[list[Snapshot], dict[str, HookState]]:
    """The snapshots and the last state of each hook, each line as the runner would take it."""
    raw = [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]
    lines = FingerprintLines(out)
    lines.take("train")
    assert lines.unreadable == lines.left_out == 0
    hooks = [HookState.model_validate(line) for line in raw if line["kind"] == "hook"]
    snapshots = [Snapshot.model_validate(line) for line in raw if line["kind"] == "snapshot"]
    assert not [hook for hook in hooks if hook.problem]
    assert not [snapshot for snapshot in snapshots if snapshot.problem]
    return snapshots, {hook.target.rpartition(".")[2]: hook for hook in hooks}


def figures(snapshot: Snapshot) -> dict[str, float]:
    return {tensor.name: tensor.sum for tensor in snapshot.tensors}


SEEING = (
    "import torch; from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead\n"
    "engine = MegatronEngineWithLMHead(); engine.towers = ('vision_model', 'audio_tower'); engine.initialize()\n"
    "pixels = torch.Tensor([[1.0, 2.0]])\n"
)


def inputs(out: Path) -> list[ModelInputs]:
    raw = [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return [ModelInputs.model_validate(line) for line in raw if line["kind"] == "inputs"]


def test_what_a_model_is_given_besides_text_is_counted_with_its_towers(out: Path) -> None:
    asked = "engine.module[0](input_ids=1, pixel_values=pixels, input_features=None)\n"
    process(f"{SEEING}with torch.no_grad():\n    {asked}engine.optimizer_step()\n{asked}engine.optimizer_step()\n", out)
    first, second = inputs(out)
    read(out)
    (given,) = first.inputs
    assert (given.name, given.shape, given.calls, given.training_calls) == ("pixel_values", (1, 2), 1, 0)
    assert [(item.calls, item.training_calls) for item in second.inputs] == [(2, 1)]
    # What lies inside of a tower belongs to it.
    assert [(tower.name, tower.type) for tower in first.towers] == [
        ("vision_model", "Module"),
        ("audio_tower", "Module"),
    ]
    assert [(tower.calls, tower.training_calls) for tower in second.towers] == [(2, 1), (2, 1)]
    assert (second.model, second.number, second.ranks.rank) == ("actor", 1, 3)


def test_a_model_of_text_alone_leaves_no_line_about_inputs_and_one_that_never_saw_says_so(out: Path) -> None:
    process(TRAINER + "engine.initialize(); engine.optimizer_step()", out)
    assert inputs(out) == []
    process(f"{SEEING}engine.module[0](input_ids=1, pixel_values=torch.Tensor([]))\nengine.optimizer_step()\n", out)
    (line,) = inputs(out)
    assert (line.inputs, [tower.training_calls for tower in line.towers]) == ((), [1, 1])


PIPELINED = """
from megatron.core.pipeline_parallel import schedules
ref = MegatronEngineWithLMHead(forward_only=True)
for each in engine, ref:
    each.initialize()
def step(*micro_batches):
    ref.forward_backward_batch(1, forward_only=True)
    engine.forward_backward_batch(9, forward_only=True)
    print([engine.forward_backward_batch(count) for count in micro_batches])
    engine.optimizer_step()
"""


def test_the_schedule_of_each_model_is_counted_with_its_micro_batches(out: Path) -> None:
    code = f"{TRAINER}{PIPELINED}step(3, 2)\nschedules.STAGES = 2\nstep(4)\nschedules.CHUNKS = 2\nstep(6)"
    assert process(code, out) == process(code, None) == "[[0.5, 0.5, 0.5], [0.5, 0.5]]\n[[]]\n[[]]\n"
    read(out)
    rows = [
        {(use.name.removeprefix("forward_backward_"), use.training): use for use in line.schedules}
        for line in inputs(out)
    ]
    assert [len(row) for row in rows] == [2, 4, 6]
    first = rows[-1]["no_pipelining", True]
    assert (first.calls, first.least, first.most) == (2, 2, 3)
    ahead = rows[-1]["no_pipelining", False]
    assert (ahead.calls, ahead.least, ahead.most) == (1, 9, 9)
    assert rows[1]["pipelining_without_interleaving", True].least == 4
    assert rows[2]["pipelining_with_interleaving", True].most == 6
    assert {line.model for line in inputs(out)} == {"actor"}


def points(snapshots: list[Snapshot]) -> list[tuple[Point, int]]:
    return [(snapshot.point, snapshot.number) for snapshot in snapshots]


def test_a_model_is_read_when_its_weights_are_there(out: Path) -> None:
    process(TRAINER + "engine.initialize()", out)
    (imported, built), hooks = read(out)
    assert points([imported, built]) == [(Point.WEIGHTS_IMPORTED, 0), (Point.MODEL_BUILT, 0)]
    # The stand-in of Bridge adds one to each element when it loads: 0 to 11 become 1 to 12.
    assert figures(built)[f"{QKV}.to_wrap.weight"] == 78
    assert figures(built) == figures(imported)
    assert list(figures(built)) == [f"{QKV}.to_wrap.weight", FIRST, LAST, f"{NORM}.weight", f"{NORM}.bias"]
    assert built.model == "actor"
    assert (built.ranks.rank, built.ranks.data, built.ranks.data_size, built.ranks.tensor_size) == (3, 1, 2, 2)
    assert hooks["initialize"].calls == hooks["load_hf_weights"].calls == 1


def test_what_is_known_of_a_tensor_is_said(out: Path) -> None:
    process(TRAINER + "engine.initialize()", out)
    built = {tensor.name: tensor for tensor in read(out)[0][1].tensors}
    base, adapter, bias = built[f"{QKV}.to_wrap.weight"], built[LAST], built[f"{NORM}.bias"]
    assert (base.shape, base.dtype, base.requires_grad, base.tensor_parallel_dim) == ((3, 4), "float32", False, 0)
    assert (adapter.requires_grad, adapter.kind, adapter.expert, adapter.sharded) == (True, "parameter", False, False)
    assert (built[f"{NORM}.weight"].tensor_parallel_dim, bias.kind, bias.requires_grad) == (None, "buffer", None)


def test_adapters_are_listed_with_the_features_of_their_module_and_what_was_asked_for(out: Path) -> None:
    process(TRAINER + "engine.initialize()", out)
    adapters = read(out)[0][1].adapters
    assert adapters is not None
    assert (adapters.type, adapters.rank, adapters.targets) == ("LoRA", 2, ("linear_qkv", "linear_proj"))
    (module,) = adapters.modules
    # The weight of the module is divided by two ranks in its first dimension.
    assert module.model_dump() == {"name": QKV, "features_in": 4, "features_out": 6, "rank": 2, "parameters": 10}


def test_a_step_shows_in_weights_main_copies_and_the_number_of_steps(out: Path) -> None:
    printed = process(TRAINER + "engine.initialize(); print(engine.optimizer_step(), engine.optimizer_step())", out)
    assert printed == "0.25 0.25\n"
    snapshots, hooks = read(out)
    built, first, second = snapshots[1:]
    assert points([first, second]) == [(Point.OPTIMIZER_STEP, 0), (Point.OPTIMIZER_STEP, 1)]
    assert figures(second)[FIRST] == figures(first)[FIRST] + 2 == figures(built)[FIRST] + 4
    assert figures(first)[f"{NORM}.weight"] == figures(built)[f"{NORM}.weight"]
    assert figures(first)[f"{FIRST}/main"] == figures(first)[FIRST]
    assert figures(first)[f"{FIRST}/exp_avg"] == 0
    assert [figures(step)["optimizer0.group0/step"] for step in (first, second)] == [1, 2]
    assert hooks["optimizer_step"].calls == 2


def test_a_checkpoint_is_read_with_its_step_and_without_the_exports_that_save_it(out: Path) -> None:
    code = "engine.initialize(); engine.save_checkpoint('/c/global_step_7/actor', global_step=7)\n"
    code += "engine.load_checkpoint('/c/global_step_7/actor')"
    process(TRAINER + code, out)
    snapshots, hooks = read(out)
    saved, loaded = snapshots[2:]
    assert points([saved, loaded]) == [(Point.CHECKPOINT_SAVED, 0), (Point.CHECKPOINT_LOADED, 0)]
    assert saved.step == loaded.step == 7
    assert f"{LAST}/exp_avg" in figures(saved)
    # The stand-in loads other weights than it saved.
    assert figures(loaded)[LAST] == figures(saved)[LAST] + 6
    assert (hooks["export_hf_weights"].calls, hooks["load_hf_weights"].calls) == (1, 2)


@pytest.mark.parametrize(("adapter_only", "names"), [(False, 4), (True, 2)])
def test_an_export_is_read_as_it_is_yielded_between_the_model_before_and_after(
    adapter_only: bool, names: int, out: Path
) -> None:
    code = f"engine.initialize(); tensors, peft = engine.get_per_tensor_param(base_sync_done={adapter_only})\n"
    code += "print([(name, tensor.tolist()) for name, tensor in tensors], peft)"
    assert process(TRAINER + code, out) == process(TRAINER + code, None)
    snapshots, hooks = read(out)
    before, exported, after = snapshots[2:]
    assert points([before, exported, after]) == [
        (Point.BEFORE_EXPORT, 0),
        (Point.EXPORTED, 0),
        (Point.AFTER_EXPORT, 0),
    ]
    assert before.tensors == after.tensors == snapshots[1].tensors
    assert len(exported.tensors) == names
    assert {snapshot.adapter_only for snapshot in (before, exported, after)} == {adapter_only}
    method = "export_adapter_weights" if adapter_only else "export_hf_weights"
    assert hooks[method].calls == 1


def test_an_export_that_writes_into_the_live_weight_shows_after_it(out: Path) -> None:
    code = "engine.initialize(); tensors, _ = engine.get_per_tensor_param()\n"
    code += f"next(tensors); engine.module[0].module.{NORM}.weight.array[0] = 99\nlist(tensors)"
    process(TRAINER + code, out)
    before, _, after = read(out)[0][2:]
    changed = {tensor.name for tensor, other in zip(before.tensors, after.tensors, strict=True) if tensor != other}
    assert changed == {f"{NORM}.weight"}


def test_an_export_that_is_not_read_to_its_end_says_so(out: Path) -> None:
    code = "engine.initialize(); tensors, _ = engine.get_per_tensor_param(); next(tensors); tensors.close()"
    process(TRAINER + code, out)
    lines = [json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]
    (exported,) = (line for line in lines if line.get("point") == "exported")
    assert exported["problem"] == "the export was not read to its end"
    assert len(exported["tensors"]) == 1


def test_a_fault_while_an_export_is_read_is_written_and_the_export_goes_on(out: Path) -> None:
    code = "import verl_e2e_hooks\nengine.initialize(); tensors, _ = engine.get_per_tensor_param()\n"
    code += "verl_e2e_hooks.held_by_model = None\nprint(len(list(tensors)))"
    assert process(TRAINER + code, out) == "4\n"
    lines = [json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]
    (exported,) = (line for line in lines if line.get("point") == "exported")
    assert exported["problem"] == "TypeError: 'NoneType' object is not callable"


@pytest.mark.parametrize(
    ("setting", "model"),
    [("engine.engine_config.forward_only = True", "ref"), ("engine.is_value_model = True", "critic")],
)
def test_a_model_is_named_by_its_role(setting: str, model: str, out: Path) -> None:
    process(TRAINER + f"{setting}\nengine.initialize()", out)
    assert {snapshot.model for snapshot in read(out)[0]} == {model}


def test_an_offloaded_parameter_is_read_from_its_copy_and_a_freed_one_is_named(out: Path) -> None:
    code = """
import numpy as np
from types import SimpleNamespace
from torch import Tensor
engine.initialize()
whole = np.arange(8, dtype=np.float32)
weight = engine.module[0].module.norm.weight
weight.array, weight.freed = whole[:0].reshape(0), True
weight.array = np.zeros(4, np.float32)
weight.storage_offset = lambda: 3
data = Tensor(weight.array, storage_offset=lambda: 0, cpu_data=Tensor(whole))
engine.module[0].buffers = [SimpleNamespace(param_data=data)] if FOUND else []
engine.save_checkpoint("/c", global_step=1)
"""
    view = "import torch\ntorch.Tensor.view = lambda self, kind, v=torch.Tensor.view: "
    view += "self if isinstance(kind, tuple) else v(self, kind)\n"
    detach = "torch.Tensor.detach = lambda self: self\n"
    process(TRAINER + view + detach + code.replace("FOUND", "True"), out)
    saved = read(out)[0][-1]
    assert figures(saved)["norm.weight"] == 3 + 4 + 5 + 6
    process(TRAINER + view + detach + code.replace("FOUND", "False"), out.with_name("freed"))
    lines = [json.loads(line) for file in out.with_name("freed").glob("*") for line in file.read_text().splitlines()]
    saved_line = next(line for line in lines if line.get("point") == "checkpoint saved")
    assert (saved_line["left_out"], saved_line["problem"]) == (1, "norm.weight: ValueError: its storage is freed")


def test_values_are_transferred_once_for_each_kind_of_sum(out: Path) -> None:
    code = "import torch\nengine.initialize(); torch.READS.clear(); engine.optimizer_step(); print(torch.READS)"
    numbers = json.loads(process(TRAINER + code, out))
    step = read(out)[0][-1]
    assert numbers == [3 * len(step.tensors), len(step.tensors)]


def test_what_arrived_and_what_was_loaded_is_read_in_the_rollout(out: Path) -> None:
    assert process(ROLLOUT + "print(worker.update_weights_from_ipc())", out, VERL_REPLICA_RANK="2") == "updated\n"
    (received, loaded), hooks = read(out)
    assert points([received, loaded]) == [(Point.RECEIVED, 0), (Point.ROLLOUT_LOADED, 0)]
    # Both buckets used the same memory.
    assert figures(received) == {"q": 3, "k": 7}
    assert figures(loaded) == {"qkv_proj.weight": 10}
    assert (received.model, received.ranks.data, received.adapter_only) == ("rollout", 2, False)
    assert (hooks["update_weights_from_ipc"].calls, hooks["_update_weights"].calls) == (1, 2)


def test_adapters_that_the_engine_registered_are_read(out: Path) -> None:
    process(ROLLOUT + "worker.update_weights_from_ipc({'r': 1}, base_sync_done=True)", out)
    received, loaded = read(out)[0]
    assert received.adapter_only
    assert loaded.adapter_only
    assert figures(loaded) == {
        "qkv_proj.weight": 0,
        "layers.q.lora_a[0]": 3,
        "layers.q.lora_b": 3,
        "layers.k.lora_a[0]": 7,
        "layers.k.lora_b": 7,
    }


def test_a_point_that_is_passed_often_is_read_less_often(out: Path) -> None:
    process(TRAINER + "engine.initialize()\nfor _ in range(40): engine.optimizer_step()", out)
    snapshots, hooks = read(out)
    numbers = [snapshot.number for snapshot in snapshots if snapshot.point is Point.OPTIMIZER_STEP]
    assert numbers == [*range(16), *range(16, 32, 2), 32, 36]
    assert hooks["optimizer_step"].calls == 40


def test_a_large_model_is_sampled_by_name_alike_at_each_point(out: Path) -> None:
    code = "import verl_e2e_snapshots\nverl_e2e_snapshots.Sample.__init__.__defaults__ = (60,)\nengine.initialize()\n"
    code += "engine.optimizer_step()"
    process(TRAINER + code, out)
    _, built, step = read(out)[0]
    names = set(figures(built))
    assert {FIRST, LAST} <= names
    assert len(names) == 5 - built.left_out < 5
    assert {name for name in figures(step) if "/" not in name} == names
    assert f"{LAST}/exp_avg" in figures(step)


def test_a_process_stops_at_its_limit_and_says_so(out: Path) -> None:
    code = "import verl_e2e_snapshots\nverl_e2e_snapshots.MOST_BYTES = 4_000\n"
    code += "engine.initialize()\nengine.optimizer_step()"
    process(TRAINER + code, out)
    raw: list[dict[str, Any]] = [json.loads(line) for file in out.glob("*") for line in file.read_text().splitlines()]
    snapshots = [line for line in raw if line["kind"] == "snapshot"]
    assert sum(len(json.dumps(line)) for line in raw) <= 4_000
    assert snapshots[-1]["problem"] == "the limit of what one process writes is reached"
    assert snapshots[-1]["left_out"] > 0
