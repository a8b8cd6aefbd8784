"""Which adapters a model holds, with what was asked for: read from Bridge's modules once the model is built."""

from verl_e2e_state import short_name


def adapters_of(chunks, request, tensor_size, expert_tensor_size):
    """The adapters of a model as built; `request` is Bridge's object of the fine-tuning method, None without one."""
    if request is None:
        return None
    modules = []
    for index, chunk in enumerate(chunks):
        prefix = f"chunk{index}." if len(chunks) > 1 else ""
        for path, module in chunk.named_modules():
            adapter, wrapped = getattr(module, "adapter", None), getattr(module, "to_wrap", None)
            if adapter is not None and wrapped is not None:
                sizes = (tensor_size, expert_tensor_size)
                modules += _adapters_of_module(prefix + short_name(path), wrapped, adapter, sizes)
    targets = getattr(request, "target_modules", None) or ()
    return {
        "type": type(request).__name__,
        "rank": _whole(getattr(request, "dim", 0)),
        "targets": [str(target) for target in targets],
        "modules": modules,
    }


def _adapters_of_module(name, wrapped, adapter, sizes):
    """One entry, or one for each of the several adapters of a module that computes several projections at once."""
    if hasattr(adapter, "linear_in"):
        base = _first(wrapped, ("weight", "weight0"))
        return [_adapter(name, adapter, base, sizes)]
    parts = getattr(adapter, "named_children", tuple)()
    return [_adapter(f"{name}.{key}", part, None, sizes) for key, part in parts if hasattr(part, "linear_in")]


def _adapter(name, adapter, base, sizes):
    """Its features are those of the weight that it is attached to, or its own where it adapts a part of one."""
    first, last = adapter.linear_in.weight, adapter.linear_out.weight
    size = sizes[1] if getattr(adapter, "is_expert", False) else sizes[0]
    if base is not None and not getattr(adapter, "base_linear_is_parallel", True):
        # Transformer Engine marks such a weight as divided although each rank holds all of it.
        size = 1
    return {
        "name": name,
        "features_in": _features(first if base is None else base, -1, size),
        "features_out": _features(last if base is None else base, -2, size),
        "rank": _whole(getattr(adapter, "dim", 0)),
        "parameters": sum(parameter.numel() for parameter in adapter.parameters()),
    }


def _features(weight, dimension, size):
    """The size of a dimension, all tensor-parallel ranks together."""
    split = getattr(weight, "partition_dim", None) if getattr(weight, "tensor_model_parallel", False) else None
    parallel = split is not None and split >= 0 and split - weight.dim() == dimension
    return weight.shape[dimension] * (size if parallel else 1)


def _first(module, names):
    return next((found for name in names if (found := getattr(module, name, None)) is not None), None)


def _whole(value):
    return int(value) if isinstance(value, (int, float)) else 0
