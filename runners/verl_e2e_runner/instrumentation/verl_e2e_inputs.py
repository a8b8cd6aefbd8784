"""Counts what a trainer's model is given besides text, and how often its towers for images and sound run.

A tower is the outermost part of the model whose name says so. Nothing is read but shapes, and nothing is changed. A
call counts as training where gradients are recorded, so that a pass for log-probabilities alone does not.
"""

import sys
import time
import weakref

# Names of arguments of the models of Megatron-Bridge and transformers.
INPUTS = (
    *("pixel_values", "pixel_values_videos", "images", "imgs"),
    *("input_features", "input_audio_features", "sound_clips"),
)
TOWERS = ("vision", "visual", "image", "video", "audio", "sound")
# Far beyond any model.
MOST = 16

_watched = weakref.WeakKeyDictionary()


def watch(engine):
    """Count from now on; once for an engine."""
    if engine not in _watched:
        _watched[engine] = _Counts(engine.module)


def counted(engine):
    """What was counted so far, as the fields of a line; None for a model that has no tower and got text alone."""
    counts = _watched.get(engine)
    if counts is None or not (counts.inputs or counts.towers):
        return None
    return {
        "t_s": time.monotonic(),
        "inputs": list(counts.inputs.values()),
        "towers": list(counts.towers.values()),
    }


class _Counts:
    """The counts of one engine's model, all its chunks together."""

    def __init__(self, chunks):
        self._torch = sys.modules["torch"]
        self.inputs = {}
        self.towers = {}
        for chunk in chunks:
            model = _unwrapped(chunk)
            model.register_forward_pre_hook(self._given, with_kwargs=True)
            for name, tower in list(_towers(model))[:MOST]:
                self.towers[name] = {"name": name, "type": type(tower).__name__, **_NEVER}
                tower.register_forward_pre_hook(self._ran(name))

    def _given(self, _model, _args, kwargs):
        for name in INPUTS:
            tensor = kwargs.get(name)
            if self._torch.is_tensor(tensor) and tensor.numel():
                self._count(self.inputs.setdefault(name, {"name": name, "shape": list(tensor.shape)[:8], **_NEVER}))

    def _ran(self, name):
        def count(_tower, _args):
            self._count(self.towers[name])

        return count

    def _count(self, entry):
        entry["calls"] += 1
        entry["training_calls"] += self._torch.is_grad_enabled()


_NEVER = {"calls": 0, "training_calls": 0}


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
        if any(word in name.lower() for word in TOWERS):
            yield f"{prefix}{name}", part
        else:
            yield from _towers(part, f"{prefix}{name}.")
