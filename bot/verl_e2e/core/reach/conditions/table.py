"""Which settings give a name of the code its values: the table by which tests become settings.

Sources: verl's `McoreEngineConfig`, its `hf_model.yaml` (`lora`) and `transformer_impl.py`, which hands settings on to
Bridge's providers; Bridge's `LoRA`; Megatron-LM's `TransformerConfig` and `parallel_state`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from verl_e2e.core.model.settings import CHOICES, DEFAULTS
from verl_e2e.core.model.variant import BASE_WRAPPER
from verl_e2e.core.model.wants import Axis, Value
from verl_e2e.core.reach.conditions.settings import ANY_RUN, Settings

_TRANSFORMER = "actor_rollout_ref.actor.megatron.override_transformer_config"
_LORA = "actor_rollout_ref.model.lora"
_FREEZE_ROUTER = "actor_rollout_ref.actor.megatron.override_mcore_model_config.moe_config.freeze_moe_router"
_PEFT = "/peft/"
# The name of the other program's files, whatever they are called.
CALLERS = "callers/"
# Functions of the other program that run only where a run saves and resumes.
PARTS_OF_A_RUN = frozenset({"save_checkpoint", "load_checkpoint"})
# Adapters that change what the model computes, so that what is done with them shows.
AMPLIFIED: Mapping[Axis, Value] = MappingProxyType(
    {Axis.ADAPTER_B_START: "xavier", Axis.ADAPTER_ALPHA: 4 * int(BASE_WRAPPER["LORA_RANK"])}
)
CONVERSION = "/models/conversion/"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that code tests: the values that it takes, and the settings that give it each."""

    # How reports name the row.
    name: str
    # The names that it has in code.
    names: frozenset[str]
    # Its values with their settings, that of the default run first; None where no setting is known.
    values: tuple[tuple[Value, Settings | None], ...]
    # The settings for any other value that code compares it with; None where only the listed values are known.
    free: Callable[[Value], Settings] | None = None
    # The row counts only in files with this in their path; empty for all.
    under: str = ""


def _row(
    names: str,
    *values: tuple[Value, Settings | None],
    free: Callable[[Value], Settings] | None = None,
    under: str = "",
) -> Row:
    every = names.split()
    return Row(every[0], frozenset(every), values, free, under)


def _axis(axis: Axis, value: Value) -> Settings:
    return Settings(axes={axis: value})


def _feature(*features: str) -> Settings:
    return Settings(features=frozenset(features))


def _without(feature: str) -> Settings:
    return Settings(absent=frozenset({feature}))


def _switch(names: str, axis: Axis, *, default: bool, under: str = "") -> Row:
    return _row(names, *((value, _axis(axis, value)) for value in (default, not default)), under=under)


def _has(names: str, *features: str) -> Row:
    """A feature that a flag or a class stands for; a model that has it may also have parts without it."""
    return _row(names, (False, ANY_RUN), (True, _feature(*features)))


def _is(names: str, feature: str) -> Row:
    """A feature of the whole model that a flag or a class stands for."""
    return _row(names, (False, _without(feature)), (True, _feature(feature)))


def _counts(names: str, feature: str) -> Row:
    """A feature of the whole model that a number stands for, absent without it."""
    return _row(names, (None, _without(feature)), (8, _feature(feature)))


def _field(names: str, values: tuple[Value, Value], feature: str = "") -> Row:
    """A field of the model's configuration, without it and with it; only a model with the feature can have it."""
    name = names.split()[0]
    without, with_it = (Settings(fields={name: value}) for value in values)
    features = frozenset(feature.split())
    return _row(names, (values[0], without), (values[1], replace(with_it, features=features)))


def _option(names: str, values: tuple[Value, ...]) -> Row:
    """An option of Megatron's transformer configuration, by its own name."""
    key = f"{_TRANSFORMER}.{names.split()[0]}"
    return _row(names, *((value, Settings(overrides={key: value})) for value in values))


def _lora(names: str, values: tuple[Value, ...], *, key: str = "", under: str = "") -> Row:
    """An option of verl's `lora` section."""
    name = f"{_LORA}.{key or names.split()[0]}"
    adapters = {Axis.ADAPTER: "lora"}
    found = ((value, Settings(axes=adapters, overrides={name: value})) for value in values)
    return _row(names, *found, under=under)


def _starts(names: str, axis: Axis) -> Row:
    """How a matrix of the adapters starts, from its default on."""
    values = sorted(CHOICES[axis], key=lambda value: value != DEFAULTS[axis])
    return _row(names, *((value, _axis(axis, value)) for value in values))


def _recompute(value: Value) -> Settings:
    return _axis(Axis.RECOMPUTE, "none" if value is None else value)


def _rope(value: Value) -> Settings:
    return Settings(fields={"rope_scaling.rope_type": value})


# verl leaves routers out unless they are named.
_ROUTER = f"{DEFAULTS[Axis.ADAPTER_TARGETS]},router"
_FSDP_NAMES = "use_megatron_fsdp _module_uses_fsdp uses_fsdp is_fsdp is_megatron_fsdp DTensor MegatronFSDP"
_EXPERT_NAMES = "is_expert is_moe is_moe_layer is_expert_linear"
_ADAPTER_NAMES = "is_adapter _is_adapter_param_name adapter_tasks AdapterWrapper"

ROWS: tuple[Row, ...] = (
    _switch(f"{_FSDP_NAMES} FullyShardedDataParallel", Axis.FSDP, default=False),
    _row(
        "recompute_granularity",
        (None, _recompute(None)),
        ("full", _recompute("full")),
        ("selective", _recompute("selective")),
    ),
    _row("recompute_method", (None, _recompute(None)), ("uniform", _recompute("full"))),
    _switch("overlap_grad_reduce", Axis.OVERLAP, default=False),
    _row("bf16", (True, _axis(Axis.PRECISION, "bf16")), (False, None)),
    _row("fp16", (False, _axis(Axis.PRECISION, "bf16")), (True, _axis(Axis.PRECISION, "fp16"))),
    # verl switches it off for a tensor size of 1, and on for any other.
    _row(
        "sequence_parallel",
        (False, Settings(limits={Axis.TENSOR: 1})),
        (True, _axis(Axis.TENSOR, 2)),
    ),
    _row(
        "disable_sequence_parallel_comm",
        (True, Settings(limits={Axis.TENSOR: 1})),
        (False, _axis(Axis.TENSOR, 2)),
        under=_PEFT,
    ),
    # Both kinds of layers have adapters by default.
    _row("input_is_parallel", (True, ANY_RUN), (False, ANY_RUN), under=_PEFT),
    # Both a training step and the log-probabilities before it run the model.
    _row("training is_grad_enabled", (True, ANY_RUN), (False, ANY_RUN)),
    _row("wrap_with_ddp use_distributed_optimizer load_weights", (True, ANY_RUN), (False, None)),
    # What every run on GPUs has, and what every model's configuration says.
    _row("is_available is_initialized HAVE_TE HAVE_MEGATRON_FSDP", (True, ANY_RUN), (False, None)),
    # What other ranks than the first do is mostly to wait.
    _row("get_rank get_rank_safe", (0, ANY_RUN)),
    _row("vocab_size", (2048, ANY_RUN), (None, None)),
    _row("input_ids", (True, ANY_RUN), (None, None)),
    # The rollout engine generates, the model under test never does.
    _row("inference_context inference_params", (None, ANY_RUN), (True, None)),
    # A rank does not have the modules of another pipeline stage.
    _row("megatron_module", (True, ANY_RUN), (None, _axis(Axis.PIPELINE, 2))),
    # Where activations are recomputed, the forward pass runs in such a block.
    _row("is_checkpointing", (False, ANY_RUN), (True, _recompute("full"))),
    # Some parameter is always exported by itself; which models export several as one is not known.
    _row("is_grouped_export", (False, ANY_RUN), (True, None)),
    # Merged adapters that add nothing change no weight.
    _row(
        "merge_adapter_weights",
        (False, _axis(Axis.ADAPTER_MERGE, value=False)),
        (True, Settings({Axis.ADAPTER_MERGE: True, **AMPLIFIED})),
    ),
    # Whether the reference runs through the actor with its adapters off depends on more than the adapters.
    _row("_adapter_enabled", (True, _axis(Axis.ADAPTER, "lora")), (False, None)),
    _row(_ADAPTER_NAMES, (True, _axis(Axis.ADAPTER, "lora")), (False, ANY_RUN)),
    _row(
        "share_expert_adapters",
        (True, Settings(axes={Axis.ADAPTER: "lora", Axis.ADAPTER_SHARING: "shared"})),
        (False, Settings(axes={Axis.ADAPTER: "lora", Axis.ADAPTER_SHARING: "per expert"}, features=frozenset({"moe"}))),
    ),
    _row(
        "experts_shared_outer_loras is_shared_outer_lora",
        (False, ANY_RUN),
        (True, Settings(axes={Axis.ADAPTER: "lora", Axis.ADAPTER_SHARING: "outer"}, features=frozenset({"moe"}))),
    ),
    _row(
        "requires_expert_splits",
        (False, ANY_RUN),
        (True, Settings(axes={Axis.ADAPTER: "lora", Axis.ADAPTER_SHARING: "per expert"}, features=frozenset({"moe"}))),
    ),
    _starts("lora_A_init_method column_init_method", Axis.ADAPTER_A_START),
    _starts("lora_B_init_method row_init_method", Axis.ADAPTER_B_START),
    _row(
        "TopKRouter",
        (False, ANY_RUN),
        (True, Settings({Axis.ADAPTER: "lora", Axis.ADAPTER_TARGETS: _ROUTER}, features=frozenset({"moe"}))),
        under=_PEFT,
    ),
    _row("dropout", (0.0, _axis(Axis.ADAPTER_DROPOUT, 0.0)), (0.1, _axis(Axis.ADAPTER_DROPOUT, 0.1)), under=_PEFT),
    _lora("dropout_position", ("pre", "post"), under=_PEFT),
    _lora("use_a2a a2a_experimental", (False, True), key="a2a_experimental"),
    _lora("normalize_moe_lora", (False, True)),
    _lora("sequence_parallel_input_regather", (False, True)),
    _lora("freeze_vision_model", (True, False), under=_PEFT),
    _lora("freeze_vision_projection", (True, False), under=_PEFT),
    # Of the other program's code around its calls, by verl's configuration; `None` where a setting needs more than
    # itself, as a path or another package.
    _row("save_checkpoint load_checkpoint", (False, ANY_RUN), (True, _axis(Axis.RESUME, value=True)), under=CALLERS),
    _switch("merge", Axis.ADAPTER_MERGE, default=False, under=CALLERS),
    _row("rank", (4, _axis(Axis.ADAPTER, "lora")), (0, _axis(Axis.ADAPTER, "none")), under=CALLERS),
    _row("peft_cls", (True, _axis(Axis.ADAPTER, "lora")), (None, _axis(Axis.ADAPTER, "none"))),
    _row("base_sync_done", (True, _axis(Axis.SYNCS, 2)), (False, ANY_RUN), under=CALLERS),
    _switch("param_offload _is_offload_param", Axis.OFFLOAD, default=False, under=CALLERS),
    _switch("use_remove_padding", Axis.PACKING, default=False, under=CALLERS),
    _row("is_value_model forward_only", (True, ANY_RUN), (False, ANY_RUN), under=CALLERS),
    _row("provider bridge", (True, ANY_RUN), (None, None), under=CALLERS),
    _row("should_save_hf_model should_load_hf_model", (True, ANY_RUN), (False, None), under=CALLERS),
    _row("should_save_model should_save_optimizer should_save_extra", (True, ANY_RUN), (False, None), under=CALLERS),
    _row("should_load_model should_load_optimizer should_load_extra", (True, ANY_RUN), (False, None), under=CALLERS),
    _row("use_dist_checkpointing vanilla_bridge vanilla_mbridge", (False, ANY_RUN), (True, None), under=CALLERS),
    _row("_qat_enabled enable_routing_replay", (False, ANY_RUN), (True, None), under=CALLERS),
    _row(
        "freeze_moe_router",
        (False, Settings(overrides={_FREEZE_ROUTER: False})),
        (True, Settings(overrides={_FREEZE_ROUTER: True}, features=frozenset({"moe"}))),
        under=CALLERS,
    ),
    # Of a feature of the model.
    _has(_EXPERT_NAMES, "moe"),
    _counts("num_moe_experts num_experts n_routed_experts", "moe"),
    _has("is_grouped_expert is_grouped_expert_linear is_grouped_expert_name TEGroupedLinear", "moe"),
    _has("TEColumnParallelGroupedLinear TERowParallelGroupedLinear GroupedMLP TEGroupedMLP SequentialMLP", "moe"),
    _is("multi_latent_attention is_mla is_mla_provider use_mla MLATransformerConfig MLASelfAttention", "mla"),
    _is("has_mtp mtp_process", "mtp"),
    _counts("mtp_num_layers num_nextn_predict_layers", "mtp"),
    _has("MambaModel MambaMixer MambaLayer is_mamba is_hybrid_model", "ssm"),
    # Of a field of the model's configuration.
    _field(
        "tie_word_embeddings share_embeddings_and_output_weights embeddings_are_tied share_embeddings", (True, False)
    ),
    _field("sliding_window window_size", (None, 32)),
    _field("use_sliding_window", (False, True)),
    _field("q_lora_rank", (None, 32), "mla"),
    _field("attention_bias", (False, True)),
    _field("mlp_bias", (False, True)),
    _field("norm_topk_prob", (False, True), "moe"),
    _field("n_shared_experts", (None, 1), "moe"),
    _row("rope_type", ("default", _rope("default")), free=_rope),
    # Of the data.
    _row(
        "pixel_values image_grid_thw vision_grid_thw has_images images imgs_sizes",
        (None, _axis(Axis.CONTENT, "text")),
        (True, _axis(Axis.CONTENT, "images")),
    ),
    _row(
        "input_features input_audio_features has_sound_inputs",
        (None, _axis(Axis.CONTENT, "text")),
        (True, _axis(Axis.CONTENT, "audio")),
    ),
    _row("packed_seq_params", (None, Settings(axes={Axis.PACKING: False})), (1, Settings(axes={Axis.PACKING: True}))),
    _row("qkv_format", ("bshd", _axis(Axis.PACKING, value=False)), ("thd", _axis(Axis.PACKING, value=True))),
    # Options of the transformer's configuration that the default run leaves off.
    _option("cpu_offloading", (False, True)),
    _option("moe_shared_expert_overlap", (False, True)),
    _option("moe_token_dispatcher_type", ("alltoall", "allgather", "flex")),
    _option("apply_rope_fusion", (False, True)),
    _option("moe_permute_fusion", (False, True)),
    _option("use_transformer_engine_op_fuser", (False, True)),
    _row("fp8 fp4 fp8_param", (None, ANY_RUN), (True, None)),
)

# The rows by which code is known to be about an expert's layer.
EXPERT_ROWS = frozenset(
    {"is_expert", "is_grouped_expert", "share_expert_adapters", "experts_shared_outer_loras", "requires_expert_splits"}
)
# Parts of parameter and module names, with the models and adapters that have such names; the first that fits counts.
# None where it is not known which models have them; every model has other names.
NAME_PARTS: tuple[tuple[str, Settings | None], ...] = (
    ("_extra_state", None),
    ("_scale_inv", None),
    (".bias", None),
    ("adapter", _axis(Axis.ADAPTER, "lora")),
    ("lora_", _axis(Axis.ADAPTER, "lora")),
    ("to_wrap", _axis(Axis.ADAPTER, "lora")),
    ("linear_in", _axis(Axis.ADAPTER, "lora")),
    ("linear_out", _axis(Axis.ADAPTER, "lora")),
    ("shared_expert", Settings(fields={"n_shared_experts": 1}, features=frozenset({"moe"}))),
    ("experts", _feature("moe")),
    ("router", _feature("moe")),
    ("mtp", _feature("mtp")),
    ("mamba", _feature("ssm")),
    ("linear_q_down_proj", _feature("mla")),
    ("linear_q_up_proj", _feature("mla")),
    ("linear_kv_down_proj", _feature("mla")),
    ("linear_kv_up_proj", _feature("mla")),
    ("kv_a_proj", _feature("mla")),
    ("vision", _feature("vlm")),
    ("visual", _feature("vlm")),
    ("audio", _feature("audio")),
    ("output_layer", Settings(fields={"tie_word_embeddings": False})),
    ("lm_head", Settings(fields={"tie_word_embeddings": False})),
    ("decoder.layers", ANY_RUN),
    ("layernorm", ANY_RUN),
    ("word_embeddings", ANY_RUN),
    ("embed_tokens", ANY_RUN),
    ("linear_qkv", ANY_RUN),
    ("linear_proj", ANY_RUN),
    ("linear_fc1", ANY_RUN),
    ("linear_fc2", ANY_RUN),
)
# What the subject of a test of such a name is called, or ends with.
NAME_SUBJECTS = ("name", "prefix", "param", "key", "fqn")


@dataclass(frozen=True, slots=True)
class Special:
    """A class that a run makes, or a method that it calls, under certain settings alone."""

    # The same for people.
    text: str
    axes: Mapping[Axis, Value]


# A class for each type of adapters; the default one is named too, for a run with another type never enters it.
_ADAPTERS = {"LoRA": "lora", "CanonicalLoRA": "canonical_lora", "DoRA": "dora", "VLMLoRA": "vlm_lora"}
# By name. What merges is made by others too, where a merged weight is read, but that is no way of a run with verl.
SPECIAL_CLASSES: Mapping[str, Special] = MappingProxyType(
    {
        "LoRAMerge": Special(
            "adapters that are merged on export", {Axis.ADAPTER: "lora", Axis.ADAPTER_MERGE: True, **AMPLIFIED}
        ),
        **{
            name: Special(f"an adapter of type {adapter}", {Axis.ADAPTER: adapter})
            for name, adapter in _ADAPTERS.items()
        },
    }
)
# Of methods that Megatron-LM calls wherever they are: those that a run enters under certain settings alone, by name. In
# nine recorded jobs only the one that saves entered any of the 17 functions of this name.
SPECIAL_METHODS: Mapping[str, Special] = MappingProxyType(
    {"sharded_state_dict": Special("a checkpoint is written or read", {Axis.RESUME: True})}
)


# The settings of verl that no axis has, each with the value of a run that does not set it.
DEFAULT_OVERRIDES = frozenset(
    item for row in ROWS if row.values[0][1] is not None for item in row.values[0][1].overrides.items()
)


def distance(settings: Settings) -> int:
    """How many settings differ from those of the default run, which of several ways into code takes the nearest."""
    axes = sum(DEFAULTS.get(axis) != value for axis, value in settings.axes.items())
    overrides = len(settings.overrides.items() - DEFAULT_OVERRIDES)
    return axes + overrides + len(settings.fields) + len(settings.features)


def rows_by_name() -> Mapping[str, Row]:
    """The rows by each name that they have in code."""
    return MappingProxyType({name: row for row in ROWS for name in row.names})
