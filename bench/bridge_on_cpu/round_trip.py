"""Imports models through Bridge into Megatron-LM's and exports them again: `python round_trip.py FOLDER...`.

Runs in a Python with PyTorch and transformers, with Bridge and Megatron-LM on PYTHONPATH. For each model a line of
JSON: how many tensors of the files came back with equal bits, and which did not.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import stand_in

stand_in.install()

import torch
import yaml
from megatron.bridge import AutoBridge
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from safetensors.torch import load_file

stand_in.use_cpu()


def each_apart(folders, work):
    """Print one line for each model, each worked on in a process of its own."""
    for folder in folders:
        child = os.fork()
        if not child:
            sys.stdout.write("\n" + json.dumps({"model": Path(folder).name, **attempted(work, folder)}) + "\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


def attempted(work, folder):
    """What the work found, or the error and the last line of Bridge or Megatron-LM before it."""
    try:
        return work(folder)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(frames) if "/megatron/" in frame.filename), frames[-1])
        if os.environ.get("TRACE"):
            traceback.print_exc()
        file = f"megatron/{last.filename.rpartition('/megatron/')[2]}"
        return {"error": f"{type(error).__name__}: {error}"[:500], "at": f"{file}:{last.lineno}"}


def round_trip(folder):
    """Import and export one model."""
    bridge = AutoBridge.from_hf_pretrained(folder)
    model = build(bridge.to_megatron_provider(load_weights=False), torch.bfloat16, folder)
    bridge.load_hf_weights(model)
    return compared(folder, dict(bridge.export_hf_weights(model, cpu=True, show_progress=False)))


def build(provider, dtype, folder):
    """The model on the CPU, as verl builds it on one GPU for a job on the folder, but for kernels."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(0)
    own = {"use_cpu_initialization": True, "perform_initialization": False}
    own |= dict.fromkeys(("gradient_accumulation_fusion", "moe_permute_fusion", "apply_rope_fusion"), False)
    # What verl sets whatever the model is.
    verls = {"moe_token_dispatcher_type": "alltoall", "moe_router_load_balancing_type": "none"}
    provider.apply_overrides_and_finalize(dtype=dtype, overrides={**verls, **own, **_of_recipe(folder)})
    return provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)


def _of_recipe(folder):
    """What the model's recipe has verl set of Megatron-LM's configuration."""
    given = json.loads(Path(folder, "recipe.json").read_text())["recipe"]["overrides"]
    settings = (text.partition(".override_transformer_config.")[2].partition("=") for text in given)
    return {name: yaml.safe_load(value) for name, _, value in settings if name}


def compared(folder, exported):
    """Names of tensors, by what became of them."""
    files = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        files |= load_file(file)
    both = files.keys() & exported.keys()
    equal = {name for name in both if _same(files[name], exported[name])}
    return {
        "equal": len(equal),
        "different": sorted(f"{name} {list(files[name].shape)} {list(exported[name].shape)}" for name in both - equal),
        "lost": sorted(files.keys() - both),
        "new": sorted(exported.keys() - both),
    }


def _same(one, other):
    return one.shape == other.shape and torch.equal(one.float(), other.detach().float())


if __name__ == "__main__":
    each_apart(sys.argv[1:], round_trip)
