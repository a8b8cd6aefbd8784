"""Which tensors a model or its optimizer holds on this rank, under names that are the same in each run.

Nothing here changes what it reads: attributes are looked up, no tensor is moved, and no other rank is asked.
"""

import sys
from collections import namedtuple
from hashlib import blake2b

# One tensor: its name and kind, the tensor itself, and what is known about how ranks share it.
Held = namedtuple("Held", ("name", "kind", "tensor", "requires_grad", "tensor_parallel_dim", "expert"))
Held.__new__.__defaults__ = ("parameter", None, None, None, False)

# Of a larger model about this many bytes of parameters are read.
MOST_BYTES = 2 << 30
_GROUPS = {
    "data": ("data_parallel", {"with_context_parallel": True}),
    "tensor": ("tensor_model_parallel", {}),
    "pipeline": ("pipeline_model_parallel", {}),
    "context": ("context_parallel", {}),
    "expert": ("expert_model_parallel", {}),
    "expert_tensor": ("expert_tensor_parallel", {}),
    "expert_data": ("expert_data_parallel", {}),
}


class Sample:
    """Which tensors are read: all of a small model; of a large one its adapters and those that a hash chooses.

    The choice depends on the name and on the size of the model alone, so it is the same at each point. A part of a
    parameter, as a moment of it, goes with the parameter, and so does the layer that an adapter wraps.
    """

    def __init__(self, total_bytes, budget=MOST_BYTES):
        self._share = budget / total_bytes if total_bytes > budget else 1.0

    def __contains__(self, name):
        if self._share >= 1.0 or is_adapter(name):
            return True
        whole = name.partition("/")[0].replace(".base_layer.", ".")
        digest = blake2b(whole.encode("utf-8", "replace"), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < self._share


def is_adapter(name):
    """Whether the tensor is an adapter's, by its name in Megatron or in Hugging Face's format."""
    return ".adapter." in f".{name}" or "lora_" in name


def size_of(tensors):
    """The bytes of all these tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def held_by_model(chunks):
    """The parameters and persistent buffers of a model's chunks, of which each virtual pipeline stage has one."""
    held = []
    for index, chunk in enumerate(chunks):
        prefix = f"chunk{index}." if len(chunks) > 1 else ""
        for name, parameter in chunk.named_parameters():
            split = getattr(parameter, "partition_dim", None) if _is_split(parameter) else None
            expert = not getattr(parameter, "allreduce", True)
            fields = ("parameter", parameter, bool(parameter.requires_grad), split, expert)
            held.append(Held(prefix + short_name(name), *fields))
        held += [Held(prefix + short_name(name), "buffer", buffer) for name, buffer in _persistent(chunk)]
    return held


def _is_split(parameter):
    return bool(getattr(parameter, "tensor_model_parallel", False))


def _persistent(chunk):
    for path, module in chunk.named_modules():
        transient = getattr(module, "_non_persistent_buffers_set", ())
        for name, buffer in module.named_buffers(recurse=False):
            if name not in transient and buffer is not None:
                yield (f"{path}.{name}" if path else name), buffer


def short_name(name):
    """The name of a parameter without the wrappers around its model."""
    while name.startswith("module."):
        name = name[len("module.") :]
    return name


def held_by_optimizer(optimizer, parameters):
    """What an optimizer of Megatron holds: the main copy of each parameter, its moments, and the steps made.

    `parameters` are those of the model, as `held_by_model` gives them. Names are `<parameter>/main`,
    `<parameter>/exp_avg` and so on; where this rank holds a part, `/main[START:END]`.
    """
    names = {id(held.tensor): held for held in parameters}
    held = []
    inner = getattr(optimizer, "chained_optimizers", None)
    for index, each in enumerate([optimizer] if inner is None else inner):
        base = getattr(each, "optimizer", None)
        if base is not None:
            held += _held_by_base(each, base, names, f"optimizer{index}")
    return held


def _held_by_base(optimizer, base, names, label):
    held = []
    for index, group in enumerate(base.param_groups):
        if "step" in group:
            held.append(Held(f"{label}.group{index}/step", "optimizer", group["step"]))
    for order, (parameter, main, part) in enumerate(_pairs(optimizer, base)):
        known = names.get(id(parameter))
        name = known.name if known else f"{label}.parameter{order}"
        place = f"[{part.start}:{part.end}]" if part is not None else ""
        expert = known.expert if known else not getattr(parameter, "allreduce", True)
        split = known.tensor_parallel_dim if known and part is None else None
        if main is not parameter:
            held.append(Held(f"{name}/main{place}", "optimizer", main, None, split, expert))
        # `get`, because looking a missing key up would make it.
        for key, state in (base.state.get(main) or {}).items():
            if state is not None:
                held.append(Held(f"{name}/{key}{place}", "optimizer", state, None, split, expert))
    return held


def _pairs(optimizer, base):
    """Each parameter of the model with what the base optimizer steps in its stead, and its range in a shard."""
    places = getattr(optimizer, "model_param_group_index_map", None)
    if places is not None:
        for parameter, (group, order) in places.items():
            part = optimizer._get_model_param_range_map(parameter)["param"]
            yield parameter, base.param_groups[group]["params"][order], part
        return
    mains = {}
    copies = zip(
        getattr(optimizer, "float16_groups", ()), getattr(optimizer, "fp32_from_float16_groups", ()), strict=True
    )
    for originals, main_group in copies:
        mains.update((id(main), parameter) for parameter, main in zip(originals, main_group, strict=True))
    for group in base.param_groups:
        for main in group["params"]:
            yield mains.get(id(main), main), main, None


def local(tensor, chunks):
    """What this rank holds of a tensor, where it lies; a reason where it cannot be read.

    The part of a distributed tensor; for a parameter whose storage was freed because it was offloaded, its copy.
    """
    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if hasattr(tensor, "dequantize") and type(tensor).__module__.startswith("transformer_engine"):
        return tensor.dequantize(), ""
    if tensor.numel() == 0 or tensor.untyped_storage().size():
        return tensor, ""
    for chunk in chunks:
        for buffer in _flat_buffers(chunk):
            whole = getattr(buffer, "param_data", None)
            copy = getattr(whole, "cpu_data", None)
            if copy is not None and whole.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                start = tensor.storage_offset() - whole.storage_offset()
                return copy[start : start + tensor.numel()].view(tensor.shape), ""
    return None, "its storage is freed"


def _flat_buffers(chunk):
    """The buffers in which Megatron's data-parallel wrapper holds the parameters; other modules have none."""
    lists = (getattr(chunk, "buffers", None), getattr(chunk, "expert_parallel_buffers", None))
    return [buffer for buffers in lists if isinstance(buffers, list) for buffer in buffers]


def is_sharded(tensor):
    """Whether the tensor is distributed and this rank holds a part of it."""
    placements = getattr(tensor, "placements", ()) if hasattr(tensor, "_local_tensor") else ()
    return any(placement.is_shard() for placement in placements)


def ranks_of_trainer():
    """Where this process lies in each group of Megatron's, with the sizes of the groups."""
    state = sys.modules.get("megatron.core.parallel_state")
    distributed = sys.modules["torch"].distributed
    if state is None or not distributed.is_initialized() or not state.model_parallel_is_initialized():
        return {}
    ranks = {"rank": distributed.get_rank()}
    for name, (group, options) in _GROUPS.items():
        rank, size = (getattr(state, f"get_{group}_{word}", None) for word in ("rank", "world_size"))
        if rank is not None and size is not None:
            ranks[name], ranks[f"{name}_size"] = rank(**options) or 0, size(**options) or 1
    return ranks
