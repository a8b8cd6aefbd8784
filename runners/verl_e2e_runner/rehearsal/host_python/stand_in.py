"""A stand-in for Transformer Engine and the kernels of GPUs, so that Bridge builds Megatron-LM's own models on a CPU.

Layers have the names and shapes of Transformer Engine's; linear layers, norms and attention also compute, in plain
PyTorch, and so does its optimizer. Everything else of these packages can be imported, and does nothing.
"""

import contextlib
import email.message
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from functools import partial

import layers
import torch
from layers import ON_CPU
from torch import nn

PACKAGES = (
    "transformer_engine",
    "transformer_engine_torch",
    "mamba_ssm",
    "causal_conv1d",
    "fla",
    "flash_attn",
    "apex",
    "datasets",
    "torch.utils.tensorboard",
    "open_clip",
    "megatron.energon",
    "nvidia_resiliency_ext",
    "triton",
)
# These modules alone: where Bridge asks for another of the package, it does without.
_MODULES = (
    "modelopt",
    "modelopt.torch",
    "modelopt.torch.distill",
    "modelopt.torch.distill.plugins",
    "modelopt.torch.distill.plugins.megatron",
    "modelopt.torch.opt",
    "modelopt.torch.opt.plugins",
    "modelopt.torch.quantization",
    "modelopt.torch.quantization.utils",
)
VERSION = "2.16.1"
# Without these Megatron-LM computes by PyTorch.
KERNELS = ("general_gemm",)


class _SplitAlongDim:
    @staticmethod
    def apply(tensor, dim, sizes):
        return torch.split(tensor, sizes, dim)


def _kernel(function=None, **_options):
    """A decorator of a kernel, with or without options: the function stays as it is, and nothing calls it."""
    return _kernel if function is None or not callable(function) else function


# By the start of a module's name: what does more than to be there.
_PARTS = {
    "transformer_engine.pytorch": {
        "DotProductAttention": layers.DotProductAttention,
        "GroupedLinear": layers.GroupedLinear,
        "LayerNorm": layers.LayerNorm,
        "LayerNormLinear": layers.LayerNormLinear,
        "Linear": layers.Linear,
        "RMSNorm": layers.RMSNorm,
        "_SplitAlongDim": _SplitAlongDim,
        "FusedAdam": layers.FusedAdam,
        "multi_tensor_applier": layers.multi_tensor_applier,
        "multi_tensor_l2norm": layers.multi_tensor_l2norm,
        "multi_tensor_scale": layers.multi_tensor_scale,
        "multi_tensor_scale_tensor": layers.multi_tensor_scale,
        "parallel_cross_entropy": layers.parallel_cross_entropy,
        "activation_recompute_forward": lambda *_values, **_options: contextlib.nullcontext(),
        "fp8_autocast": lambda *_values, **_options: contextlib.nullcontext(),
        "get_cpu_offload_context": lambda *_values, **_options: (contextlib.nullcontext(), None),
    },
    "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": layers.GatedNorm},
    "fla.modules.l2norm": {"l2norm": layers.l2norm},
    "modelopt.torch.quantization": {"is_quantized": lambda _model: False},
    "triton": dict.fromkeys(("jit", "autotune", "heuristics"), _kernel),
}


class _Anything(type):
    """A class whose every attribute is another one."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


def _anything(name):
    def start(self, *_values, **_options):
        nn.Module.__init__(self)

    return _Anything(name, (nn.Module,), {"__init__": start})


class _Package(types.ModuleType):
    __version__ = VERSION

    def __getattr__(self, name):
        if name.startswith("__") or name in KERNELS or f"{self.__name__}.{name}" in _MODULES:
            raise AttributeError(name)
        if self.__name__ == "transformer_engine" and name in ("pytorch", "common"):
            return importlib.import_module(f"{self.__name__}.{name}")
        parts = [parts for start, parts in _PARTS.items() if self.__name__.startswith(start)]
        found = parts[0].get(name) if parts else None
        value = found or _anything(name)
        setattr(self, name, value)
        return value


class _Distribution(importlib.metadata.Distribution):
    """What `importlib.metadata.version("transformer-engine")` finds."""

    metadata = email.message.Message()
    metadata["Name"], metadata["Version"] = "transformer-engine", VERSION

    def read_text(self, filename):
        return None

    def locate_file(self, path):
        return path


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_distributions(self, context):
        if (context.name or "").replace("_", "-") == "transformer-engine":
            yield _Distribution()

    def find_spec(self, name, path, target=None):
        known = name in _MODULES or any(name == package or name.startswith(package + ".") for package in PACKAGES)
        if known and name.rpartition(".")[2] not in KERNELS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Package(spec.name)

    def exec_module(self, module):
        pass


def install():
    """Make the packages importable."""
    sys.meta_path.insert(0, _Finder())


class _Stream:
    """A stream of work that is always done."""

    def __init__(self, *_values, **_options):
        pass

    def __getattr__(self, name):
        return _Stream


def _on_gpu(values):
    """Whether the first value names a device that no CPU has: by the word, or by the number of a GPU."""
    return any(type(value) is int or "cuda" in str(value) for value in values[:1] if not torch.is_tensor(value))


class _NoGpu(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, _types, values=(), options=None):
        if function is torch.device and _on_gpu(values):
            return ON_CPU
        if function is torch.Tensor.to and _on_gpu(values[1:2]):
            values = (values[0], ON_CPU, *values[2:])
        if not options:
            return function(*values)
        if _on_gpu((options.get("device"),)):
            options = {**options, "device": ON_CPU}
        if options.get("pin_memory"):
            options = {**options, "pin_memory": False}
        return function(*values, **options)


_NAMES = {
    torch.float32: "torch.cuda.FloatTensor",
    torch.float16: "torch.cuda.HalfTensor",
    torch.bfloat16: "torch.cuda.BFloat16Tensor",
}


def use_cpu():
    """Give calls that name or seed a device the CPU; torch's own registers want to see the real ones first.

    The random state of the GPU is the CPU's, so that Megatron-LM's named states (one seed for each tensor-parallel
    rank, another for experts) decide what is drawn, as on a GPU.
    """
    from megatron.core.tensor_parallel import random

    _NoGpu().__enter__()
    torch.cuda.current_device = lambda: 0
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *_values, **_options: None)
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = lambda seed: (
        torch.default_generator.manual_seed(seed) and None
    )
    torch.cuda.set_rng_state = lambda state, *_values, **_options: torch.set_rng_state(state)
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda *_values, **_options: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_values, **_options: torch.set_rng_state(state)
    random._get_cuda_rng_state = lambda *_values, **_options: torch.get_rng_state()
    # In its place Megatron-LM compiles an extension, which takes a compiler and 40 s.
    random._share_storage_ext = types.SimpleNamespace(share_storage=_copy_storage)
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *_values, **_options: None)
    torch.cuda.Stream = torch.cuda.Event = _Stream
    torch.cuda.current_stream = torch.cuda.default_stream = _Stream
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()
    torch.Tensor.record_stream = lambda self, _stream: None
    torch.Tensor.cuda = lambda self, *_values, **_options: self
    nn.Module.cuda = lambda self, *_values: self
    typed = torch.Tensor.type
    # Megatron-LM knows a tensor's type by its name on a GPU.
    torch.Tensor.type = lambda self, *values, **options: (
        typed(self, *values, **options) if values or options else _NAMES.get(self.dtype, typed(self))
    )
    all_to_all = torch.distributed.all_to_all_single
    torch.distributed.all_to_all_single = lambda output, given, *splits, **options: all_to_all(
        output,
        given,
        *map(_as_list, splits),
        **{name: _as_list(value) if name.endswith("split_sizes") else value for name, value in options.items()},
    )
    all_gather, reduce_scatter = torch.distributed.all_gather, torch.distributed.reduce_scatter
    scatter = torch.distributed.scatter
    torch.distributed.scatter = lambda output, parts=None, *values, **options: scatter(
        output,
        # A copy to a GPU makes a part of a tensor contiguous.
        [part.contiguous() for part in parts] if parts else parts,
        *values,
        **options,
    )
    torch.distributed.all_gather = partial(_gathered, all_gather)
    torch.distributed.reduce_scatter = partial(_scattered, reduce_scatter)


def _copy_storage(kept, given):
    """Give a tensor, and all views of it, the bytes of another, without autograd's notice."""
    storage = given.untyped_storage()
    kept.untyped_storage().resize_(storage.nbytes()).copy_(storage)


def _gathered(all_gather, kept, given, group=None, **options):
    """Gather parts of different lengths too, which gloo does not: it gets them filled up to the longest."""
    longest = max(len(part) for part in kept)
    if all(len(part) == longest for part in kept):
        return all_gather(kept, given, group=group, **options)
    filled = [part.new_empty(longest, *part.shape[1:]) for part in kept]
    own = given.new_zeros(longest, *given.shape[1:])
    own[: len(given)] = given
    all_gather(filled, own, group=group)
    for part, whole in zip(kept, filled, strict=True):
        part.copy_(whole[: len(part)])
    return None


def _scattered(reduce_scatter, kept, given, group=None, **options):
    """Sum and scatter parts of different lengths too: all ranks sum all of them, and each keeps its own."""
    if all(part.shape == given[0].shape for part in given):
        return reduce_scatter(kept, given, group=group, **options)
    whole = torch.cat(list(given))
    torch.distributed.all_reduce(whole, group=group)
    rank = torch.distributed.get_rank(group)
    kept.copy_(whole.split([len(part) for part in given])[rank])
    return None


def _as_list(splits):
    """Sizes as a list: gloo refuses a tensor of them."""
    return splits.tolist() if torch.is_tensor(splits) else splits
