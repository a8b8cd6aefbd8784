"""SkyRL's own trainer on a CPU: a stand-in for the GPU, and one for vLLM whose answers are drawn by a seed.

Every process of the run loads it. Megatron-Bridge, Megatron-LM, Ray, and SkyRL's loop, workers, loss and optimizer are
the real ones. With `PLANTED=no-finalize` the trainer's gradients are never finalized across ranks.
"""

import importlib
import importlib.util
import os
import random
import sys
import typing
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.append(os.path.join(REPOSITORY, "runners", "verl_e2e_runner", "rehearsal", "host_python"))
BACKEND = "skyrl.backends.skyrl_train"


class Engine:
    """What the trainer asks of SkyRL's client of its inference servers."""

    model_name = "stand-in"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.weight_version = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        async def nothing(*_: Any, **__: Any) -> dict[str, Any]:
            return {}

        return nothing

    def increment_weight_version(self) -> None:
        self.weight_version += 1

    async def get_world_size(self) -> tuple[int, int]:
        return 1, 1

    async def generate(self, given: Any, model: Any = None) -> dict[str, Any]:
        del model
        # The same answers for every layout, and others at every step.
        drawn = random.Random(self.weight_version)
        vocabulary = range(20, len(self.tokenizer) - 20)
        ids = [drawn.choices(vocabulary, k=drawn.randrange(8, 60)) for _ in given["prompt_token_ids"]]
        return {
            "responses": [self.tokenizer.decode(answer) for answer in ids],
            "response_ids": ids,
            "stop_reasons": ["stop"] * len(ids),
            "response_logprobs": None,
            "prompt_logprobs": None,
            "rollout_expert_indices": None,
        }


class NoServers:
    router = server_groups = prefill_server_groups = decode_server_groups = None


class Sender:
    """Takes the weights that would leave for the engine, and drops them."""

    handles_prefix_cache_reset = False

    async def send_chunks(self, chunks: Any, **_: Any) -> None:
        for _chunk in chunks:
            pass


def without_servers(module: Any) -> None:
    module.build_new_inference_client = lambda _config, tokenizer, **_: (Engine(tokenizer), NoServers())


def without_shared_memory(module: Any) -> None:
    module.CudaIpcTransferStrategy.create_sender = staticmethod(lambda **_: Sender())


def with_gpus(module: Any) -> None:
    """Ray counts none on this host."""
    import ray

    init = ray.init
    module.ray.init = lambda **options: init(num_gpus=4, num_cpus=12, include_dashboard=False, **options)


def at_one_place(module: Any) -> None:
    """Weights and optimizer stay where they are, and so does the process."""

    def stay(self: Any, *_: Any, **__: Any) -> None:
        pass

    # Ray sends what it does not find under its name with all that it refers to.
    stay.__module__ = "__main__"
    module.Worker.offload_to_cpu = module.Worker.backload_to_gpu = stay
    module.DistributedTorchRayActor._set_numa_affinity = stay


def unfinished(module: Any) -> None:
    if os.environ.get("PLANTED") == "no-finalize":
        module.finalize_model_grads = lambda *_, **__: None


def on_a_cpu() -> None:
    stand_in, torch = map(importlib.import_module, ("stand_in", "torch"))
    stand_in.use_cpu()
    torch.cuda.device_count = lambda: 1
    join = torch.distributed.init_process_group

    def join_by_gloo(*_: Any, backend: Any = None, **options: Any) -> Any:
        del backend
        # For the thread in which Ray runs an actor's methods.
        stand_in._NoGpu().__enter__()
        return join(backend="gloo", **options)

    torch.distributed.init_process_group = join_by_gloo


# Run in place of the module, or after it.
INSTEAD = {f"{BACKEND}.inference_servers.setup": without_servers}
AFTER = {
    "skyrl.train.utils.utils": with_gpus,
    f"{BACKEND}.weight_sync.cuda_ipc_strategy": without_shared_memory,
    f"{BACKEND}.workers.worker": at_one_place,
    f"{BACKEND}.workers.megatron.megatron_model_wrapper": unfinished,
}
BEFORE = {"megatron", f"{BACKEND}.workers.megatron"}


class Finder:
    def __init__(self) -> None:
        self.seen: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if name in self.seen or name not in {*INSTEAD, *AFTER, *BEFORE}:
            return None
        self.seen.add(name)
        if name == "megatron":
            importlib.import_module("stand_in").install()
        elif name in BEFORE:
            on_a_cpu()
        if name in BEFORE:
            return None
        spec: Any = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            if name in INSTEAD:
                INSTEAD[name](module)
            else:
                load(module)
                AFTER[name](module)

        spec.loader.exec_module = exec_module
        return spec


if sys.version_info < (3, 12):
    import typing_extensions

    # Megatron-LM and pydantic want those of 3.12.
    for name in ("TypedDict", "override"):
        setattr(typing, name, getattr(typing_extensions, name))
found: Any = Finder()
sys.meta_path.insert(0, found)
