"""What each setting of a job is in verl: variables of its wrapper and Hydra overrides, and what holds without them.

The wrapper is `tests/special_e2e/run_ppo_trainer_megatron.sh`; keys are those of verl's `trainer/config` tree. Each
mapping names its source; `runners` compose it with verl's real configuration before a GPU is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from verl_e2e.core.model.variant import (
    BASE_WRAPPER,
    DETERMINISTIC,
    FULL_RECOMPUTE,
    FUSION_ROOTS,
    TELLING_LEARNING_RATE,
)

# A size, a switch or a name; of the model's configuration also a list of these, or null.
Value = bool | int | float | str | None
FieldValue = Value | tuple[Value, ...]


class Axis(StrEnum):
    """One setting of a job. A wanted size is a least value; of every other axis the value itself is wanted."""

    TENSOR = "tensor"
    PIPELINE = "pipeline"
    # Model chunks on each pipeline rank; 1 means none.
    VIRTUAL_PIPELINE = "virtual pipeline"
    CONTEXT = "context"
    EXPERT = "expert"
    EXPERT_TENSOR = "expert tensor"
    DATA = "data"
    # Megatron-FSDP instead of Megatron's DDP, a switch.
    FSDP = "megatron fsdp"
    # "none", "full" or "selective".
    RECOMPUTE = "recompute"
    # Parameters, gradients and optimizer state leave the GPU between phases, a switch.
    OFFLOAD = "offload"
    # Gradients are reduced during the backward pass, a switch.
    OVERLAP = "overlap"
    # Weight gradients are accumulated by the fused kernel, a switch.
    FUSION = "fusion"
    # "bf16", "fp16" or "fp32".
    PRECISION = "precision"
    # "lora", "canonical_lora", "dora", "vlm_lora", or "none" for training of the whole model.
    ADAPTER = "adapter"
    # The modules that get adapters, joined by a comma, in Megatron's names.
    ADAPTER_TARGETS = "adapter targets"
    ADAPTER_RANK = "adapter rank"
    ADAPTER_ALPHA = "adapter alpha"
    ADAPTER_DROPOUT = "adapter dropout"
    # How experts share adapters: "shared", "per expert" or "outer".
    ADAPTER_SHARING = "adapter sharing"
    # Adapters are merged into the base weights before they leave for the rollout, a switch.
    ADAPTER_MERGE = "adapter merge"
    # How the adapter's first and second matrix start: the name of an initialization of Bridge.
    ADAPTER_A_START = "adapter A start"
    ADAPTER_B_START = "adapter B start"
    # A checkpoint is saved and a second phase resumes from it, a switch.
    RESUME = "save and resume"
    STEPS = "steps"
    # Times that weights leave for the rollout engine.
    SYNCS = "weight syncs"
    # Sequences are packed, a switch.
    PACKING = "packing"
    # "text", "images" or "audio".
    CONTENT = "content"


# The axes whose wanted value is a least one.
SIZES = frozenset(
    {
        *(Axis.TENSOR, Axis.PIPELINE, Axis.VIRTUAL_PIPELINE, Axis.CONTEXT, Axis.EXPERT, Axis.EXPERT_TENSOR, Axis.DATA),
        *(Axis.STEPS, Axis.SYNCS),
    }
)


@dataclass(frozen=True, slots=True)
class ModelWant:
    """What the model of a job has to be."""

    # The policy's family; empty where any will do.
    family: str = ""
    # Fields of the Hugging Face configuration, and the values that the condition needs.
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    # Features that the policy knows: moe, mla, ssm, mtp, vlm, audio, ...
    features: frozenset[str] = frozenset()

    @property
    def is_any(self) -> bool:
        """Whether the default model will do."""
        return not (self.family or self.fields or self.features)


@dataclass(frozen=True, slots=True)
class Want:
    """Settings and a model that a job should have, and in words why."""

    condition: str = ""
    # The wanted settings. An axis that is not named is open.
    axes: Mapping[Axis, Value] = field(default_factory=dict)
    model: ModelWant = ModelWant()


_MEGATRON_ROLES = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
# The reference policy is not wrapped for data parallelism (verl: MegatronEngine._build_megatron_module).
_TRAINED_ROLES = ("actor_rollout_ref.actor", "critic")
_MODELS = ("actor_rollout_ref.model", "critic.model")

# Megatron-Bridge: CanonicalLoRA, which refuses the fused names that the wrapper gives by default.
CANONICAL_TARGETS = "linear_q,linear_k,linear_v,linear_proj,linear_fc1_up,linear_fc1_gate,linear_fc2"

# What a job has on an axis that it does not set: the wrapper's and the base's values, else those of verl's
# configuration (`engine/megatron.yaml`, `model/hf_model.yaml`) and of Megatron-LM.
DEFAULTS: Mapping[Axis, Value] = MappingProxyType(
    {
        **dict.fromkeys(
            (Axis.TENSOR, Axis.PIPELINE, Axis.VIRTUAL_PIPELINE, Axis.CONTEXT, Axis.EXPERT, Axis.EXPERT_TENSOR), 1
        ),
        Axis.DATA: 1,
        Axis.FSDP: False,
        Axis.RECOMPUTE: "none",
        Axis.OFFLOAD: False,
        Axis.OVERLAP: False,
        # Megatron-Bridge: GPTModelProvider, where the fused kernel is installed.
        Axis.FUSION: True,
        Axis.PRECISION: "bf16",
        Axis.ADAPTER: "lora",
        Axis.ADAPTER_TARGETS: "linear_qkv,linear_proj,linear_fc1,linear_fc2",
        Axis.ADAPTER_RANK: int(BASE_WRAPPER["LORA_RANK"]),
        # The wrapper's LORA_ALPHA is LORA_RANK where it is not set.
        Axis.ADAPTER_ALPHA: int(BASE_WRAPPER["LORA_RANK"]),
        Axis.ADAPTER_DROPOUT: 0.0,
        Axis.ADAPTER_SHARING: "shared",
        Axis.ADAPTER_MERGE: False,
        Axis.ADAPTER_A_START: "xavier",
        Axis.ADAPTER_B_START: "zero",
        Axis.RESUME: False,
        Axis.STEPS: 1,
        # verl: PPOTrainerSync, once before training and once after each step.
        Axis.SYNCS: 2,
        Axis.PACKING: False,
        Axis.CONTENT: "text",
    }
)

_SWITCHES = frozenset(axis for axis, value in DEFAULTS.items() if isinstance(value, bool))

# The values of an axis that is neither a size nor a switch; an axis without an entry takes any of the same type.
_STARTS = ("xavier", "normal", "kaiming", "zero")
CHOICES: Mapping[Axis, tuple[str, ...]] = MappingProxyType(
    {
        # Megatron-LM: TransformerConfig.__post_init__.
        Axis.RECOMPUTE: ("none", "full", "selective"),
        Axis.PRECISION: ("bf16", "fp16", "fp32"),
        # Megatron-Bridge: peft/utils.py, _import_peft_class.
        Axis.ADAPTER: ("lora", "canonical_lora", "dora", "vlm_lora", "none"),
        Axis.ADAPTER_SHARING: ("shared", "per expert", "outer"),
        # Megatron-Bridge: peft/utils.py, ParallelLinearAdapter._get_init_fn.
        Axis.ADAPTER_A_START: _STARTS,
        Axis.ADAPTER_B_START: _STARTS,
        Axis.CONTENT: ("text", "images", "audio"),
    }
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What one value of one axis is in verl."""

    # Variables of the wrapper.
    wrapper: Mapping[str, str] = field(default_factory=dict)
    # Hydra overrides, in order.
    overrides: tuple[str, ...] = ()


# Axis -> the wrapper's variables that take its value. COMMON_TP and INFER_TP are set together: the wrapper gives the
# reward model INFER_TP too, and the rollout's weights are then spread like the trainer's.
_VARIABLES: Mapping[Axis, tuple[str, ...]] = {
    Axis.TENSOR: ("COMMON_TP", "INFER_TP"),
    Axis.PIPELINE: ("COMMON_PP",),
    Axis.VIRTUAL_PIPELINE: ("COMMON_VPP",),
    Axis.CONTEXT: ("COMMON_CP",),
    Axis.EXPERT: ("COMMON_EP",),
    Axis.EXPERT_TENSOR: ("COMMON_ETP",),
    Axis.FSDP: ("USE_MEGATRON_FSDP",),
    Axis.OFFLOAD: ("ALL_OFFLOAD",),
    Axis.ADAPTER_RANK: ("LORA_RANK",),
    Axis.ADAPTER_ALPHA: ("LORA_ALPHA",),
    Axis.ADAPTER_MERGE: ("LORA_MERGE",),
    Axis.PACKING: ("USE_REMOVE_PADDING",),
}

# Axis -> the keys that take its value, where the wrapper has no variable.
_KEYS: Mapping[Axis, tuple[str, ...]] = {
    Axis.FUSION: tuple(
        f"++{root}.megatron.override_transformer_config.gradient_accumulation_fusion" for root in FUSION_ROOTS
    ),
    # verl: MegatronEngine._resolve_override_ddp_config, then Megatron-Bridge: create_ddp_config. Parameters are not
    # gathered late (overlap_param_gather): verl exports right after a step and never waits for that.
    Axis.OVERLAP: tuple(f"++{root}.megatron.override_ddp_config.overlap_grad_reduce" for root in _TRAINED_ROLES),
    # verl: `model/hf_model.yaml`, handed on by get_peft_cls to Megatron-Bridge's create_peft.
    Axis.ADAPTER_DROPOUT: tuple(f"{model}.lora.dropout" for model in _MODELS),
    Axis.ADAPTER_A_START: ("actor_rollout_ref.model.lora.lora_A_init_method",),
    Axis.ADAPTER_B_START: ("actor_rollout_ref.model.lora.lora_B_init_method",),
}

_SELECTIVE_RECOMPUTE = tuple(
    f"++{role}.megatron.override_transformer_config.recompute_granularity=selective" for role in _TRAINED_ROLES
)
# verl: McoreEngineConfig.dtype and RolloutConfig.dtype.
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Fields of Megatron-Bridge's LoRA that verl's configuration does not list, so they are added to it.
_SHARING = {
    "shared": (),
    "per expert": ("share_expert_adapters=False",),
    "outer": ("experts_shared_outer_loras=True",),
}


# Replayed routes would hide what the trainer's own routers do; a variable of every job that sets an expert size.
OWN_ROUTING = Setting({"ROUTING_REPLAY_MODE": "disabled"})


def invalid_value(axis: Axis, value: Value) -> str:
    """Why no job can have this value on this axis, a clause; empty when one can."""
    if axis in SIZES or axis in {Axis.ADAPTER_RANK, Axis.ADAPTER_ALPHA}:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        return "" if whole else f"{axis} is a whole number of 1 or more, not {value!r}"
    if axis in _SWITCHES:
        return "" if isinstance(value, bool) else f"{axis} is a switch, not {value!r}"
    if axis in CHOICES:
        return "" if value in CHOICES[axis] else f"{axis} is one of {', '.join(CHOICES[axis])}, not {value!r}"
    if axis is Axis.ADAPTER_DROPOUT:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
        return "" if fits else f"{axis} is a number from 0 to below 1, not {value!r}"
    return "" if isinstance(value, str) and _module_names(value) else f"{axis} are names of modules, not {value!r}"


def _module_names(text: str) -> bool:
    """Whether a text is names of modules, joined by a comma, that the wrapper and Hydra leave as they are."""
    return all(name and name.replace("*", "").replace(".", "").isidentifier() for name in text.split(","))


def setting_of(axis: Axis, value: Value) -> Setting:
    """What a valid value of an axis is in verl; nothing for an axis that other parts of a job carry out.

    Those are the sizes that follow from the number of GPUs, the steps, and what the data contain.
    """
    wrapper = dict.fromkeys(_VARIABLES.get(axis, ()), _variable_text(axis, value))
    overrides = tuple(f"{key}={value}" for key in _KEYS.get(axis, ()))
    match axis:
        case Axis.RECOMPUTE:
            overrides = {"full": FULL_RECOMPUTE, "selective": _SELECTIVE_RECOMPUTE}.get(str(value), ())
        case Axis.PRECISION:
            keys = (*(f"{role}.megatron.dtype" for role in _MEGATRON_ROLES), "actor_rollout_ref.rollout.dtype")
            overrides = tuple(f"{key}={_DTYPES[str(value)]}" for key in keys)
        case Axis.ADAPTER if value == "none":
            wrapper["LORA_RANK"] = "0"
        case Axis.ADAPTER:
            overrides = tuple(f"{model}.lora.type={value}" for model in _MODELS)
        case Axis.ADAPTER_TARGETS:
            wrapper["LORA_TARGET_MODULES"] = "[" + ",".join(f"'{name}'" for name in str(value).split(",")) + "]"
        case Axis.ADAPTER_SHARING:
            overrides = tuple(f"++{model}.lora.{text}" for model in _MODELS for text in _SHARING[str(value)])
        case Axis.RESUME if value:
            wrapper["SAVE_FREQ"] = "1"
            overrides = (*DETERMINISTIC, *TELLING_LEARNING_RATE)
        case _:
            pass
    return Setting(wrapper, overrides)


def _variable_text(axis: Axis, value: Value) -> str:
    # Megatron-LM: parallel_state.initialize_model_parallel refuses any virtual size, also 1, without a pipeline.
    return "null" if axis is Axis.VIRTUAL_PIPELINE and value == 1 else str(value)


@dataclass(frozen=True, slots=True)
class SettingsCheck:
    """What verl makes of the settings of one job."""

    # The job.
    job_id: str
    # Why the wrapper, Hydra or verl refuses them; empty when they are accepted.
    refused: str = ""
    # What the composed configuration has that the job does not expect, a sentence each.
    mismatches: tuple[str, ...] = ()
    # What of verl's own checks was not made, and why; empty when all were.
    unchecked: str = ""

    @property
    def accepted(self) -> bool:
        """Whether verl takes the settings as the job means them."""
        return not self.refused and not self.mismatches
