"""What is read in a process of the rollout engine: the hooks of verl's vLLM worker, for what arrived and was loaded."""

import os
import sys
import threading

import verl_e2e_state
from verl_e2e_snapshots import Counter, Snapshot, is_read
from verl_e2e_state import Held

_MODEL = "rollout"
_counter = Counter()
_inside = threading.local()


def update_weights_from_ipc(call):
    """All weights of one update as they arrived, and the engine's model after it."""
    worker = call.arguments["self"]
    number = _counter.next(_MODEL, "received")
    if not is_read(number):
        yield
        return
    torch, sample = sys.modules["torch"], _sample(worker)
    _inside.received = Snapshot(torch, sample)
    try:
        yield
        received = _inside.received
    finally:
        _inside.received = None
    adapter_only = bool(call.arguments.get("peft_config") and call.arguments.get("base_sync_done"))
    header = {"model": _MODEL, "ranks": _ranks(), "number": number, "adapter_only": adapter_only}
    received.close(call.folder, {"point": "received", **header})
    loaded = Snapshot(torch, sample)
    model = worker.model_runner.model
    loaded.add_all(Held(name, "parameter", tensor) for name, tensor in model.named_parameters())
    if adapter_only:
        _add_adapters(loaded, worker)
    loaded.close(call.folder, {"point": "rollout loaded", **header})


def _update_weights(call):
    """The weights of one bucket, before its memory is used for the next."""
    received, weights = getattr(_inside, "received", None), call.arguments["weights"]
    if received is not None and isinstance(weights, (list, tuple)):
        received.add_all(Held(str(name), "parameter", tensor) for name, tensor in weights)
    elif received is not None:
        received.note(f"weights arrived as a {type(weights).__name__}, which can be read only once")
    yield


HOOKS = {"update_weights_from_ipc": update_weights_from_ipc, "_update_weights": _update_weights}


def _sample(worker):
    """The choice of the whole model, all tensor-parallel ranks of the engine together."""
    total = verl_e2e_state.size_of(parameter for _, parameter in worker.model_runner.model.named_parameters())
    return verl_e2e_state.Sample(total * _ranks().get("tensor_size", 1))


def _ranks():
    """Its replica, and where it lies in the engine's tensor-parallel group."""
    state = sys.modules.get("vllm.distributed.parallel_state")
    replica = os.environ.get("VERL_REPLICA_RANK", "0")
    ranks = {"data": int(replica) if replica.isdecimal() else 0}
    try:
        ranks["tensor"] = state.get_tensor_model_parallel_rank()
        ranks["tensor_size"] = state.get_tensor_model_parallel_world_size()
    except (AttributeError, AssertionError):
        # Another version of the engine, or one without groups: the first rank of one.
        pass
    return ranks


def _add_adapters(snapshot, worker):
    """The adapters that the engine has registered, under the engine's names of the modules that they belong to."""
    manager = getattr(getattr(worker.model_runner, "lora_manager", None), "_adapter_manager", None)
    if manager is None:
        snapshot.note("the engine's adapters were not found")
        return
    for adapter in manager.list_adapters().values():
        for module, layer in adapter.loras.items():
            for part in ("lora_a", "lora_b"):
                weights = getattr(layer, part, None)
                several = isinstance(weights, (list, tuple))
                for index, weight in enumerate(weights if several else [weights]):
                    if weight is not None:
                        place = f"[{index}]" if several else ""
                        snapshot.add(Held(f"{module}.{part}{place}", "parameter", weight))
