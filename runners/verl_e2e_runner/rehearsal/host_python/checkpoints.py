"""Saves and loads a rank's state as verl's checkpoint manager does: Megatron-LM's distributed checkpoints.

The whole model, or its adapters alone where it has any; the optimizer with its scheduler in another folder.
"""

import queue

import torch
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelLoadStrategyWrapper,
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.dist_checkpointing.strategies.torch import (
    TorchDistLoadShardedStrategy,
    TorchDistSaveShardedStrategy,
)

# What verl writes for the distributed optimizer.
METADATA = {
    "distrib_optim_sharding_type": "dp_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


def save(rank, folder):
    """Save the rank's part of the model and of the optimizer."""
    # In its place Megatron-LM starts a process that imports everything again and outlives the rank.
    filesystem_async._results_queue = queue.Queue()
    model = model_state(rank)
    for name, state in (("model", filtered(rank, model)), ("optimizer", optimizer_state(rank, model))):
        place = folder / name
        if torch.distributed.get_rank() == 0:
            place.mkdir(parents=True)
        torch.distributed.barrier()
        strategy = TorchDistSaveShardedStrategy(backend="torch_dist", version=1)
        strategy = FullyParallelSaveStrategyWrapper(strategy, mpu.get_data_parallel_group(with_context_parallel=True))
        dist_checkpointing.save(state, str(place), sharded_strategy=strategy, content_metadata=METADATA)
    torch.distributed.barrier()


@torch.no_grad()
def load_model(rank, folder):
    """Load the model, or its adapters, that `save` left."""
    loaded = read(filtered(rank, model_state(rank)), folder / "model")
    for number, chunk in enumerate(rank.model):
        name = "model" if len(rank.model) == 1 else f"model{number}"
        mpu.set_virtual_pipeline_model_parallel_rank(number)
        chunk.load_state_dict(loaded[name], strict=rank.adapters is None)


@torch.no_grad()
def load_optimizer(rank, folder):
    """Load the optimizer, which sets the model's parameters to its own copy of them."""
    found = read(optimizer_state(rank, model_state(rank), is_loading=True), folder / "optimizer")
    rank.optimizer.load_state_dict(found["optimizer"])
    rank.scheduler.load_state_dict(found["lr_scheduler"])


def read(state, place):
    strategy = TorchDistLoadShardedStrategy()
    strategy = FullyParallelLoadStrategyWrapper(strategy, mpu.get_data_parallel_group(with_context_parallel=True))
    return dist_checkpointing.load(state, str(place), sharded_strategy=strategy)


def model_state(rank):
    """The sharded state of each virtual stage."""
    metadata = {**METADATA, "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True)}
    found = {}
    for number, chunk in enumerate(rank.model):
        mpu.set_virtual_pipeline_model_parallel_rank(number)
        name = "model" if len(rank.model) == 1 else f"model{number}"
        found[name] = chunk.module.sharded_state_dict(metadata=metadata)
    return found


def filtered(rank, state):
    """The adapters alone, by Bridge's own filter, where there are any."""
    if rank.adapters is None:
        return dict(state)
    from megatron.bridge.training.checkpointing import apply_peft_adapter_filter_to_state_dict

    return apply_peft_adapter_filter_to_state_dict(dict(state), rank.adapters)


def optimizer_state(rank, model, **options):
    state = rank.optimizer.sharded_state_dict(model, metadata=dict(METADATA), **options)
    return {"optimizer": state, "lr_scheduler": rank.scheduler.state_dict()}
