"""What Transformer Engine has, with its names and shapes, in plain PyTorch on a CPU: layers, fused Adam, operations.

Layers talk to their tensor-parallel peers by Megatron-LM's own mappings, as those that they stand for do.
"""

import contextlib

import torch
from torch import nn

ON_CPU = torch.device("cpu")


def _parameter(owner, name, shape, dtype, value=None):
    tensor = torch.empty(shape, dtype=dtype, device=ON_CPU)
    owner.register_parameter(name, nn.Parameter(tensor if value is None else tensor.fill_(value)))


def _initialize(tensor, init_method, get_rng_state_tracker, rng_tracker_name):
    """Draw the numbers of a weight as Transformer Engine does, in the tracker's named random state."""
    if init_method is None:
        return
    state = contextlib.nullcontext()
    if get_rng_state_tracker is not None:
        state = get_rng_state_tracker().fork(*([rng_tracker_name] if rng_tracker_name else []))
    with state:
        init_method(tensor)


def _normed(hidden, weight, bias, eps, kind, zero_centered):
    wide = hidden.float()
    if kind == "LayerNorm":
        wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    wide = wide * (weight.float() + 1 if zero_centered else weight.float())
    return (wide if bias is None else wide + bias.float()).to(hidden.dtype)


class _Layer(nn.Module):
    def set_tensor_parallel_group(self, group):
        pass

    def init_fp8_metadata(self, **_options):
        pass


class _Stateful(_Layer):
    """What keeps a state besides its weights: nothing of it where FP8 is off."""

    fp8 = fp8_calibration = False

    @property
    def fp8_meta(self):
        return {"fp8_checkpoint": False}

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        pass


class _Norm(_Layer):
    kind = "RMSNorm"

    def __init__(
        self,
        normalized_shape=None,
        eps=1e-5,
        zero_centered_gamma=False,
        params_dtype=None,
        sequence_parallel=False,
        hidden_size=None,
        **_options,
    ):
        super().__init__()
        # The name of the first argument in older versions.
        normalized_shape = hidden_size if normalized_shape is None else normalized_shape
        shape = normalized_shape if isinstance(normalized_shape, (tuple, list, torch.Size)) else (normalized_shape,)
        self.eps, self.zero_centered_gamma, self.bias = eps, zero_centered_gamma, None
        _parameter(self, "weight", tuple(shape), params_dtype, 0 if zero_centered_gamma else 1)
        # By it Megatron-LM sums the gradients of norms over tensor-parallel ranks.
        self.weight.sequence_parallel = sequence_parallel

    def forward(self, hidden):
        return _normed(hidden, self.weight, self.bias, self.eps, self.kind, self.zero_centered_gamma)


class RMSNorm(_Norm):
    pass


class LayerNorm(_Norm):
    kind = "LayerNorm"

    def __init__(self, normalized_shape=None, params_dtype=None, **options):
        super().__init__(normalized_shape, params_dtype=params_dtype, **options)
        del self.bias
        _parameter(self, "bias", self.weight.shape, params_dtype, 0)
        self.bias.sequence_parallel = self.weight.sequence_parallel


class Linear(_Stateful):
    def __init__(
        self,
        in_features,
        out_features,
        *,
        bias=True,
        return_bias=False,
        params_dtype=None,
        tp_size=1,
        tp_group=None,
        parallel_mode=None,
        sequence_parallel=False,
        init_method=None,
        get_rng_state_tracker=None,
        rng_tracker_name=None,
        **_options,
    ):
        super().__init__()
        out_features //= tp_size if parallel_mode == "column" else 1
        in_features //= tp_size if parallel_mode == "row" else 1
        self.in_features, self.out_features, self.tp_size = in_features, out_features, tp_size
        self.use_bias, self.return_bias, self.parallel_mode = bias, return_bias, parallel_mode
        self.tp_group, self.sequence_parallel = tp_group, sequence_parallel and tp_size > 1
        _parameter(self, "weight", (out_features, in_features), params_dtype)
        _initialize(self.weight, init_method, get_rng_state_tracker, rng_tracker_name)
        self.bias = None
        if bias:
            del self.bias
            _parameter(self, "bias", (out_features,), params_dtype, 0)
        if parallel_mode in ("column", "row"):
            _mark_as_cut(self.weight, 0 if parallel_mode == "column" else 1)
        if bias and parallel_mode == "column":
            _mark_as_cut(self.bias, 0)
        elif bias and parallel_mode == "row":
            self.bias.sequence_parallel = self.sequence_parallel

    def forward(self, hidden, is_first_microbatch=None, **_options):
        """The product, between what comes from tensor-parallel peers and what goes to them."""
        peers = self.tp_size > 1
        if peers and self.parallel_mode == "column":
            # The one with `sequence_parallel` sums the gradient over the peers by scattering it.
            enter = (
                mappings().gather_from_sequence_parallel_region
                if self.sequence_parallel
                else mappings().copy_to_tensor_model_parallel_region
            )
            hidden = enter(hidden, group=self.tp_group)
        after = self.return_bias or self.parallel_mode == "row"
        given = torch.nn.functional.linear(hidden, self.weight, None if after else self.bias)
        if peers and self.parallel_mode == "row":
            leave = (
                mappings().reduce_scatter_to_sequence_parallel_region
                if self.sequence_parallel
                else mappings().reduce_from_tensor_model_parallel_region
            )
            given = leave(given, group=self.tp_group)
        if self.parallel_mode == "row" and not self.return_bias and self.bias is not None:
            given = given + self.bias
        return (given, self.bias) if self.return_bias else given


class LayerNormLinear(Linear):
    def __init__(
        self,
        in_features,
        out_features,
        *,
        eps=1e-5,
        normalization="LayerNorm",
        zero_centered_gamma=False,
        params_dtype=None,
        return_layernorm_output=False,
        return_layernorm_output_gathered=False,
        **options,
    ):
        super().__init__(in_features, out_features, params_dtype=params_dtype, **options)
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        _parameter(self, "layer_norm_weight", (in_features,), params_dtype, 0 if zero_centered_gamma else 1)
        self.layer_norm_weight.sequence_parallel = self.sequence_parallel
        self.layer_norm_bias = None
        if normalization == "LayerNorm":
            del self.layer_norm_bias
            _parameter(self, "layer_norm_bias", (in_features,), params_dtype, 0)
            self.layer_norm_bias.sequence_parallel = self.sequence_parallel

    def forward(self, hidden, is_first_microbatch=None, **_options):
        weights = (self.layer_norm_weight, self.layer_norm_bias)
        normed = _normed(hidden, *weights, self.eps, self.normalization, self.zero_centered_gamma)
        given = super().forward(normed)
        if not self.return_layernorm_output:
            return given
        if self.return_layernorm_output_gathered and self.sequence_parallel:
            normed = mappings().gather_from_sequence_parallel_region(normed, group=self.tp_group)
        return (*given, normed) if self.return_bias else (given, normed)


def mappings():
    """Megatron-LM's operations between tensor-parallel ranks, which need a stand-in to be imported."""
    from megatron.core.tensor_parallel import mappings as found

    return found


def _mark_as_cut(parameter, dimension):
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dimension, 1


class GroupedLinear(_Stateful):
    def __init__(
        self,
        num_gemms,
        in_features,
        out_features,
        *,
        bias=True,
        return_bias=False,
        params_dtype=None,
        init_method=None,
        get_rng_state_tracker=None,
        rng_tracker_name=None,
        **_options,
    ):
        super().__init__()
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        self.use_bias, self.return_bias, self.tp_size = bias, return_bias, 1
        for index in range(num_gemms):
            _parameter(self, f"weight{index}", (out_features, in_features), params_dtype)
            _initialize(getattr(self, f"weight{index}"), init_method, get_rng_state_tracker, rng_tracker_name)
            if bias:
                _parameter(self, f"bias{index}", (out_features,), params_dtype, 0)

    def forward(self, hidden, m_splits, is_first_microbatch=None, **_options):
        splits = m_splits.tolist() if torch.is_tensor(m_splits) else list(m_splits)
        parts = torch.split(hidden, splits)
        biases = [getattr(self, f"bias{index}") if self.use_bias else None for index in range(self.num_gemms)]
        added = [None] * self.num_gemms if self.return_bias else biases
        given = torch.cat(
            [
                torch.nn.functional.linear(part, getattr(self, f"weight{index}"), added[index])
                for index, part in enumerate(parts)
            ]
        )
        return (given, biases if self.use_bias else None) if self.return_bias else given


class DotProductAttention(_Layer):
    def __init__(
        self,
        num_attention_heads,
        kv_channels,
        *,
        softmax_scale=None,
        window_size=None,
        softmax_type="vanilla",
        attn_mask_type="causal",
        tp_size=1,
        cp_group=None,
        **_options,
    ):
        super().__init__()
        num_attention_heads //= tp_size
        self.cp_group = cp_group
        keys = kv_channels[0] if isinstance(kv_channels, tuple) else kv_channels
        self.scale = keys**-0.5 if softmax_scale is None else softmax_scale
        self.window, self.softmax_type, self.mask_type = window_size, softmax_type, attn_mask_type
        if softmax_type == "learnable":
            _parameter(self, "softmax_offset", (num_attention_heads,), torch.float32, 0)

    def forward(self, query, key, value, attention_mask=None, attn_mask_type=None, core_attention_bias=0, **_options):
        repeat, kept = query.shape[2] // key.shape[2], query.dtype
        places = torch.arange(len(query))
        known = torch.arange(len(key))
        if self.cp_group is not None and torch.distributed.get_world_size(self.cp_group) > 1:
            # Each rank has a piece from the start of the sequence and one from its end, and sees the keys of all.
            size, rank = torch.distributed.get_world_size(self.cp_group), torch.distributed.get_rank(self.cp_group)
            pieces = torch.arange(size * len(query)).chunk(2 * size)
            held = [torch.cat([pieces[number], pieces[-1 - number]]) for number in range(size)]
            places, known = held[rank], torch.cat(held)
            gather = mappings().gather_from_sequence_parallel_region
            key, value = gather(key, group=self.cp_group), gather(value, group=self.cp_group)
        query, key, value = (part.float().permute(1, 2, 0, 3) for part in (query, key, value))
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        scores = query @ key.transpose(-1, -2) * self.scale + core_attention_bias
        ages = places[:, None] - known[None]
        hidden = torch.zeros_like(ages, dtype=torch.bool)
        if "causal" in (attn_mask_type or self.mask_type):
            hidden = ages < 0
        if self.window and self.window[0] >= 0:
            hidden = hidden | (ages > self.window[0])
        if self.window and self.window[1] >= 0:
            hidden = hidden | (ages < -self.window[1])
        scores = scores.masked_fill(hidden, float("-inf"))
        if self.softmax_type == "vanilla":
            weights = scores.softmax(-1)
        else:
            sink = self.softmax_offset if self.softmax_type == "learnable" else torch.zeros(scores.shape[1])
            weights = torch.cat([scores, sink.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], -1).softmax(-1)[
                ..., :-1
            ]
        seen = (weights @ value).permute(2, 0, 1, 3)
        return seen.reshape(*seen.shape[:2], -1).to(kept)


def parallel_cross_entropy(logits, targets, *_options):
    """The loss of each token, whose logits lie on all tensor-parallel ranks."""
    from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy

    return vocab_parallel_cross_entropy(logits.clone(), targets)


def l2norm(tensor, eps=1e-6):
    """A tensor whose last dimension has length one."""
    return (tensor.float() * torch.rsqrt(tensor.float().pow(2).sum(-1, keepdim=True) + eps)).to(tensor.dtype)


class GatedNorm(nn.Module):
    def __init__(self, hidden_size, dtype=None, **_options):
        super().__init__()
        _parameter(self, "weight", (hidden_size,), dtype)


class FusedAdam(torch.optim.Optimizer):
    """Adam that counts its steps in the group, as the fused one does: what is saved of it has the same form."""

    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        adam_w_mode=True,
        weight_decay=0.0,
        **_options,
    ):
        settings = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, {**settings, "weight_decay": weight_decay})
        self.adam_w_mode, self.master_weights = adam_w_mode, False

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, gradient = self.state[parameter], parameter.grad
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                first, second = group["betas"]
                decay = group["weight_decay"] * parameter
                if not self.adam_w_mode:
                    gradient = gradient + decay
                state["exp_avg"].lerp_(gradient, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
                counted = group["step"] if group["bias_correction"] else float("inf")
                size = (state["exp_avg_sq"] / (1 - second**counted)).sqrt_().add_(group["eps"])
                update = state["exp_avg"] / (1 - first**counted) / size
                parameter.sub_(group["lr"] * (update + decay if self.adam_w_mode else update))


def multi_tensor_applier(operation, overflow, lists, *values):
    return operation(None, overflow, lists, *values)


def multi_tensor_l2norm(_chunk, _overflow, lists, per_tensor=False):
    norms = torch.stack([tensor.float().norm() for tensor in lists[0]])
    return norms.norm().reshape(1), norms if per_tensor else None


def multi_tensor_scale(_chunk, _overflow, lists, scale):
    for given, kept in zip(*lists, strict=True):
        kept.copy_(given * scale)
