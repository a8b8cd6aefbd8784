"""The hooks of SkyRL's methods: a worker seen as the engine that the hooks of `verl_e2e_hooks` read.

SkyRL's own update of the rollout begins once, loads one packed chunk after another, and ends once. What a chunk holds
is unpacked inside of the method that loads it, so the model's `load_weights` is watched meanwhile. Adapters that are
synchronized by files are read as they leave the trainer and not in the engine.
"""

import sys
import weakref

import verl_e2e_hooks as common
from verl_e2e_snapshots import Held, Sample, Snapshot, is_read, size_of

_engines = weakref.WeakKeyDictionary()


class Engine:
    """What is read of a worker, under the names of verl's engine."""

    is_value_model = False

    def __init__(self, worker):
        self._worker = weakref.ref(worker)
        self.engine_config = self
        self.forward_only = "Ref" in type(worker).__name__

    @property
    def module(self):
        """The chunks of its model."""
        return self._worker().actor_module

    @property
    def optimizer(self):
        """The optimizer, None for a reference model."""
        return getattr(self._worker(), "optimizer", None)

    @property
    def peft_cls(self):
        """Bridge's object of the fine-tuning method, None without one."""
        return getattr(self._worker(), "lora_cls", None)


class _Given:
    """A model and its optimizer as they are given to a method that is none of the worker's."""

    def __init__(self, chunks, optimizer=None):
        self.module, self.optimizer = chunks, optimizer
        self.engine_config, self.forward_only, self.is_value_model = self, False, False


def _as_engine(call, engine=None, **others):
    if engine is None:
        worker = call.arguments["self"]
        engine = _engines.setdefault(worker, Engine(worker))
    own = {"self": engine, **others}
    return call._replace(arguments={**call.arguments, **own})


def initialize(call):
    """The model with its weights, once the worker has built it."""
    yield from common.initialize(_as_engine(call))


def load_hf_weights(call):
    """The weights that the provider imports while a worker builds its model."""
    pretrained = call.arguments["hf_pretrained"]
    chunks = call.arguments["megatron_model"]
    chunks = chunks if isinstance(chunks, (list, tuple)) else [chunks]
    path = getattr(pretrained, "model_name_or_path", None)
    yield from common.load_hf_weights(_as_engine(call, call.arguments["self"], model=chunks, hf_path=path))


def optimizer_step(call):
    """Weights and optimizer state after a step."""
    yield from common.optimizer_step(_as_engine(call))


def _of_strategy(call, **others):
    given = _Given(call.arguments["model"].actor_module, call.arguments.get("optimizer"))
    return _as_engine(call, given, **others)


def save_checkpoint(call):
    """What was just saved; the step is in the name of the folder."""
    found = common.STEP.search(str(call.arguments["ckpt_dir"]))
    yield from common.save_checkpoint(_of_strategy(call, global_step=int(found[1]) if found else None))


def load_checkpoint(call):
    """What was just loaded."""
    yield from common.load_checkpoint(_of_strategy(call, local_path=call.arguments["ckpt_dir"]))


def get_per_tensor_param(call):
    """The weights that leave for the rollout, chunk by chunk."""
    result = yield
    saved = _of_chunks(call.arguments["self"].actor_module)

    def parts(chunk):
        return zip(chunk.names, chunk.tensors, strict=True)

    return common.exported(call.folder, saved, result, adapter_only=False, parts=parts)


# Adapters that leave for the rollout by a file.
common.readers["export_adapter_weights"] = lambda call, tensors: common.exported(
    call.folder, _of_chunks(call.arguments["model"]), iter(tensors), adapter_only=True
)


def _of_chunks(chunks):
    found = (engine for engine in _engines.values() if engine.module is chunks)
    return next(found, None) or _Given(chunks)


def begin_update(call):
    """The size of the engine's model, before its layers are taken apart for the update."""
    worker = call.arguments["self"]
    number = next(common.passed["rollout", "received"])
    common.inside.received = None
    if is_read(number):
        ranks = common.rollout_ranks()
        size = size_of(parameter for _, parameter in worker.model_runner.model.named_parameters())
        sample = Sample(size * ranks.get("tensor_size", 1))
        common.inside.received = Snapshot(sys.modules["torch"], sample)
        common.inside.update = sample, {"model": "rollout", "ranks": ranks, "number": number, "adapter_only": False}
    yield


def update_weights(call):
    """The weights of one chunk, as they are handed to the engine's model."""
    model, received = call.arguments["self"].model_runner.model, getattr(common.inside, "received", None)
    if received is None:
        yield
        return
    load = model.load_weights

    def load_weights(weights, *args, **kwargs):
        weights = list(weights)
        received.add_all(Held(str(name), "parameter", tensor) for name, tensor in weights)
        return load(weights, *args, **kwargs)

    model.load_weights = load_weights
    try:
        yield
    finally:
        del model.load_weights


def update_weights_from_ipc(call):
    """All weights of one update, and the engine's model after it."""
    yield
    received = getattr(common.inside, "received", None)
    common.inside.received = None
    if received is None:
        return
    sample, header = common.inside.update
    received.close(call.folder, {"point": "received", **header})
    loaded = Snapshot(sys.modules["torch"], sample)
    model = call.arguments["self"].model_runner.model
    loaded.add_all(Held(name, "parameter", tensor) for name, tensor in model.named_parameters())
    loaded.close(call.folder, {"point": "rollout loaded", **header})
