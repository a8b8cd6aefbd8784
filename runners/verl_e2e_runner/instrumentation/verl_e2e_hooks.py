"""What is read in a trainer and in the rollout engine: the hooks of the methods that `verl_e2e_fingerprints` wraps.

In a trainer, of verl's Megatron engine and of Megatron-Bridge's `AutoBridge`. Of the model as built it is read which
adapters Bridge's modules hold, with what was asked for. It is counted what the model is given besides text, and how
often its towers for images and sound run: a tower is the outermost part of the model whose name says so. Nothing is
read for that but shapes, and nothing is changed. A call counts as training where gradients are recorded, so that a pass
for log-probabilities alone does not. Of Megatron-LM's schedules it is counted which ran, and with how many
micro-batches.

In the rollout engine, of verl's vLLM worker, for what arrived and was loaded.
"""

import itertools
import math
import os
import re
import sys
import threading
import weakref
from collections import defaultdict
from contextlib import contextmanager, suppress

from verl_e2e_snapshots import (
    Held,
    Sample,
    Snapshot,
    explained,
    held_by_model,
    held_by_optimizer,
    is_read,
    now,
    ranks_of_trainer,
    short_name,
    size_of,
    write_files,
    write_line,
)

_ROLLOUT = "rollout"
# Names of arguments of the models of Megatron-Bridge and transformers.
INPUTS = (
    *("pixel_values", "pixel_values_videos", "images", "imgs"),
    *("input_features", "input_audio_features", "sound_clips"),
)
_TOWERS = ("vision", "visual", "image", "video", "audio", "sound")
# Far beyond any model.
MOST_TOWERS = 16

_watched = weakref.WeakKeyDictionary()


def watch_inputs(engine):
    """Count from now on; once for an engine."""
    if engine not in _watched:
        _watched[engine] = _Counts(engine.module)


class _Counts:
    """The counts of one engine's model, all its chunks together."""

    def __init__(self, chunks):
        self.chunks = chunks
        self.inputs = {}
        self.towers = {}
        self.schedules = {}
        for chunk in chunks:
            model = _unwrapped(chunk)
            model.register_forward_pre_hook(self._given, with_kwargs=True)
            for name, tower in list(_towers(model))[:MOST_TOWERS]:
                self.towers[name] = {"name": name, "type": type(tower).__name__, **_NEVER}
                tower.register_forward_pre_hook(lambda _tower, _args, name=name: _count(self.towers[name]))

    def _given(self, _model, _args, kwargs):
        for name in INPUTS:
            tensor = kwargs.get(name)
            if sys.modules["torch"].is_tensor(tensor) and tensor.numel():
                _count(self.inputs.setdefault(name, {"name": name, "shape": list(tensor.shape)[:8], **_NEVER}))

    def ran(self, name, micro_batches, training):
        never = {"name": name, "training": training, "calls": 0, "least": micro_batches, "most": micro_batches}
        use = self.schedules.setdefault((name, training), never)
        use["calls"] += 1
        use["least"], use["most"] = min(use["least"], micro_batches), max(use["most"], micro_batches)


_NEVER = {"calls": 0, "training_calls": 0}


def _count(entry):
    entry["calls"] += 1
    entry["training_calls"] += sys.modules["torch"].is_grad_enabled()


def _unwrapped(model):
    """The model itself, below the wrappers for precision and data parallelism."""
    for _ in range(8):
        inner = getattr(model, "module", None)
        if inner is None:
            break
        model = inner
    return model


def _towers(model, prefix=""):
    """The outermost parts whose name is that of a tower, with their names."""
    for name, part in model.named_children():
        if any(word in name.lower() for word in _TOWERS):
            yield f"{prefix}{name}", part
        else:
            yield from _towers(part, f"{prefix}{name}.")


def _adapters(chunks, request, sizes):
    """The adapters of a model as built; `request` is Bridge's object of the fine-tuning method, None without one.

    `sizes` are those of the tensor-parallel groups, of other weights and of experts.
    """
    if request is None:
        return None
    modules = []
    for index, chunk in enumerate(chunks):
        prefix = f"chunk{index}." if len(chunks) > 1 else ""
        for path, module in chunk.named_modules():
            adapter, wrapped = getattr(module, "adapter", None), getattr(module, "to_wrap", None)
            if adapter is None or wrapped is None:
                continue
            name = prefix + short_name(path)
            if hasattr(adapter, "linear_in"):
                base = getattr(wrapped, "weight", None)
                base = getattr(wrapped, "weight0", None) if base is None else base
                modules.append(_adapter(name, adapter, base, sizes))
            else:
                # A module that computes several projections at once has an adapter for each.
                parts = getattr(adapter, "named_children", tuple)()
                with_matrices = [(key, part) for key, part in parts if hasattr(part, "linear_in")]
                modules += [_adapter(f"{name}.{key}", part, None, sizes) for key, part in with_matrices]
    targets = getattr(request, "target_modules", None) or ()
    return {
        "type": type(request).__name__,
        "rank": _whole(getattr(request, "dim", 0)),
        "targets": [str(target) for target in targets],
        "modules": modules,
    }


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


def _whole(value):
    return int(value) if isinstance(value, (int, float)) else 0


# How many times each point of a model was passed in this process.
passed = defaultdict(itertools.count)
inside = threading.local()
# What reads an export that is not a part of `get_per_tensor_param`, by the method of Bridge.
readers = {}
STEP = re.compile(r"global_step_(\d{1,9})(?:/|$)")


def initialize(call):
    """The model with its weights, once the engine is ready."""
    engine = call.arguments["self"]
    with pushed("engines", engine):
        yield
    model = Model(engine)
    sizes = model.ranks.get("tensor_size", 1), model.ranks.get("expert_tensor_size", 1)
    request = _adapters(engine.module, getattr(engine, "peft_cls", None), sizes)
    model.write(call.folder, "model built", header={"adapters": request} if request else {})
    watch_inputs(engine)


def load_hf_weights(call):
    """The weights that the engine imports while it is built; in a checkpoint's loading the checkpoint is read.

    The first rank reads for the actor what the files hold too.
    """
    yield
    engine = top("engines")
    if engine is not None:
        model = Model(engine, call.arguments["model"])
        model.write(call.folder, "weights imported")
        first_rank = model.name == "actor" and not model.ranks.get("rank", 0)
        # What the files hold, once in a process.
        if first_rank and not (number := next(passed[model.name, "checkpoint file"])):
            header = model.header("checkpoint file", number)
            try:
                write_files(call.folder, call.arguments["hf_path"], header)
            except Exception as error:
                problem = explained(error)
                write_line(call.folder, {"kind": "snapshot", **header, "t_s": now(), "problem": problem})


def optimizer_step(call):
    """Weights and optimizer state after a step."""
    yield
    engine = call.arguments["self"]
    model = Model(engine)
    if any(getattr(getattr(chunk, "ddp_config", None), "overlap_param_gather", False) for chunk in engine.module):
        model.problem = "parameters are gathered after the step (overlap_param_gather): only the optimizer is read"
        model.without_parameters = True
    model.write(call.folder, "optimizer step", optimizer=engine.optimizer)
    # What the model was given besides text until now, and how it was run.
    counts, number = _watched.get(engine), next(passed[model.name, "inputs"])
    if counts is not None and is_read(number):
        lists = {key: list(getattr(counts, key).values()) for key in ("inputs", "towers", "schedules")}
        line = {"kind": "inputs", "model": model.name, "ranks": model.ranks, "number": number, "t_s": now()}
        if any(lists.values()):
            write_line(call.folder, {**line, **lists})


def schedule(call):
    """Which schedule of Megatron-LM goes over an engine's model, and with how many micro-batches."""
    chunks, forward_only = call.arguments["model"], call.arguments["forward_only"]
    counts = next((counts for counts in _watched.values() if counts.chunks[0] is chunks[0]), None)
    if counts is not None:
        counts.ran(call.method, call.arguments["num_microbatches"], training=not forward_only)
    yield


def save_checkpoint(call):
    """What was just saved."""
    yield
    engine, step = call.arguments["self"], call.arguments.get("global_step")
    header = {"step": step} if isinstance(step, int) else {}
    Model(engine).write(call.folder, "checkpoint saved", optimizer=engine.optimizer, header=header)


def load_checkpoint(call):
    """What was just loaded; the step is in the name of the checkpoint's folder."""
    yield
    engine, found = call.arguments["self"], STEP.search(str(call.arguments.get("local_path")))
    header = {"step": int(found[1])} if found else {}
    Model(engine).write(call.folder, "checkpoint loaded", optimizer=engine.optimizer, header=header)


def get_per_tensor_param(call):
    """The weights that are exported for the rollout, as they are yielded, and the model before and after that."""
    methods = []
    with pushed("exports", methods):
        result = yield
    tensors, request = result
    adapter_only = "export_adapter_weights" in methods if methods else None
    return exported(call.folder, call.arguments["self"], iter(tensors), adapter_only=adapter_only), request


def export(call):
    """Tells the export that is being made which method of Bridge makes it; one that none asked for may be read."""
    result = yield
    methods = top("exports")
    if methods is not None:
        methods.append(call.method)
        return None
    reader = readers.get(call.method)
    return None if reader is None else reader(call, result)


def update_weights_from_ipc(call):
    """All weights of one update as they arrived, and the engine's model after it."""
    worker = call.arguments["self"]
    number = next(passed[_ROLLOUT, "received"])
    if not is_read(number):
        yield
        return
    torch, ranks = sys.modules["torch"], rollout_ranks()
    # All tensor-parallel ranks of the engine together make the choice of the whole model.
    size = size_of(parameter for _, parameter in worker.model_runner.model.named_parameters())
    sample = Sample(size * ranks.get("tensor_size", 1))
    received = inside.received = Snapshot(torch, sample)
    try:
        yield
    finally:
        inside.received = None
    adapter_only = bool(call.arguments.get("peft_config") and call.arguments.get("base_sync_done"))
    header = {"model": _ROLLOUT, "ranks": ranks, "number": number, "adapter_only": adapter_only}
    received.close(call.folder, {"point": "received", **header})
    loaded = Snapshot(torch, sample)
    # The update may have put another model in its place.
    model = worker.model_runner.model
    loaded.add_all(Held(name, "parameter", tensor) for name, tensor in model.named_parameters())
    if adapter_only:
        _add_adapters(loaded, worker)
    loaded.close(call.folder, {"point": "rollout loaded", **header})


def update_weights(call):
    """The weights of one bucket, before its memory is used for the next."""
    received, weights = getattr(inside, "received", None), call.arguments["weights"]
    if received is not None and isinstance(weights, (list, tuple)):
        received.add_all(Held(str(name), "parameter", tensor) for name, tensor in weights)
    elif received is not None:
        received.note(f"weights arrived as a {type(weights).__name__}, which can be read only once")
    yield


class Model:
    """A model of an engine: what of it is read, and where it lies among the ranks."""

    def __init__(self, engine, chunks=None):
        self._torch = sys.modules["torch"]
        self._chunks = list(engine.module if chunks is None else chunks)
        self._held = held_by_model(self._chunks)
        self._bytes = size_of(held.tensor for held in self._held)
        self.name = _role(engine)
        self.ranks = ranks_of_trainer()
        self.problem = ""
        self.without_parameters = False

    def write(self, folder, point, optimizer=None, header=None, number=None):
        """Take a snapshot and write it, unless this pass is one of the many that are not read."""
        number = next(passed[self.name, point]) if number is None else number
        if not is_read(number):
            return
        snapshot = Snapshot(self._torch, Sample(self._bytes), self._chunks)
        snapshot.note(self.problem)
        snapshot.add_all(() if self.without_parameters else self._held)
        if optimizer is not None:
            snapshot.add_all(held_by_optimizer(optimizer, self._held))
        snapshot.close(folder, {**self.header(point, number), **(header or {})})

    def header(self, point, number):
        """What every snapshot of this model says."""
        return {"point": point, "model": self.name, "ranks": self.ranks, "number": number}

    def export(self):
        """A snapshot for the tensors of the whole model, all ranks together, as an export yields them."""
        parts = [self.ranks.get(f"{group}_size", 1) for group in ("tensor", "pipeline", "expert")]
        return Snapshot(self._torch, Sample(self._bytes * math.prod(parts)))


def exported(folder, engine, tensors, *, adapter_only, parts=lambda item: (item,)):
    """The tensors, each read before it is passed on and none of them held; `parts` are the named ones of an item.

    A fault of ours ends the reading alone, and is written down.
    """
    header = {} if adapter_only is None else {"adapter_only": adapter_only}
    role, number, snapshot = _role(engine), 0, None

    @contextmanager
    def guarded():
        nonlocal snapshot
        try:
            yield
        except Exception as error:
            snapshot, problem = None, explained(error)
            line = {"kind": "snapshot", "point": "exported", "model": role, "number": number, "t_s": now()}
            with suppress(Exception):
                write_line(folder, {**line, "problem": problem})

    with guarded():
        number = next(passed[role, "exported"])
        if is_read(number):
            model = Model(engine)
            model.write(folder, "before export", header=header, number=number)
            snapshot = model.export()
    ended = False
    try:
        for item in tensors:
            if snapshot is not None:
                with guarded():
                    for part in parts(item):
                        snapshot.add(Held(str(part[0]), "parameter", part[1]))
            yield item
        ended = True
    finally:
        with guarded():
            if snapshot is not None:
                if not ended:
                    snapshot.note("the export was not read to its end")
                model = Model(engine)
                snapshot.close(folder, {**model.header("exported", number), **header})
                model.write(folder, "after export", header=header, number=number)


def _role(engine):
    if getattr(engine.engine_config, "forward_only", False):
        return "ref"
    return "critic" if getattr(engine, "is_value_model", False) else "actor"


@contextmanager
def pushed(stack, value):
    """With the value on top of a stack of this thread."""
    values = inside.__dict__.setdefault(stack, [])
    values.append(value)
    try:
        yield
    finally:
        values.pop()


def top(stack):
    """What lies on top of a stack of this thread, None for an empty one."""
    values = inside.__dict__.get(stack)
    return values[-1] if values else None


def rollout_ranks():
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
