"""Which settings bring others with them, and which cannot be in one job; each rule with the code that it comes from.

Sources are named as `repository: symbol`; verl at 9097cc4d, Megatron-Bridge at 067f987d, Megatron-LM at 2a75ac12.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from verl_e2e.core.model.settings import CANONICAL_TARGETS, DEFAULTS
from verl_e2e.core.model.wants import SIZES, Axis, Value

Settings = Mapping[Axis, Value]


@dataclass(frozen=True, slots=True)
class Trait:
    """A value on one axis that a rule is about: of a size at least `value`, of every other axis `value` itself."""

    # The axis.
    axis: Axis
    # The value.
    value: Value = True

    def holds(self, settings: Settings) -> bool:
        """Whether a job with these settings has it."""
        has = settings.get(self.axis, DEFAULTS[self.axis])
        if self.axis in SIZES:
            return int(has or 0) >= int(self.value or 0)
        return has == self.value

    def __str__(self) -> str:
        if self.axis in SIZES:
            return f"{self.axis} of {self.value} or more"
        return str(self.axis) if self.value is True else f"{self.axis} {self.value}"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the model that a rule is about, in a run with adapters."""

    # The policy's name of it.
    name: str

    def __str__(self) -> str:
        return f"adapters on a model with `{self.name}`"


@dataclass(frozen=True, slots=True)
class Implication:
    """A setting that needs others: they are added where a job does not set them."""

    # What needs them.
    trait: Trait | Feature
    # The settings that it needs.
    axes: Mapping[Axis, Value] = field(default_factory=dict)
    # Features that the model needs.
    features: frozenset[str] = frozenset()
    # Where that is decided.
    source: str = ""

    def holds(self, settings: Settings, features: frozenset[str]) -> bool:
        """Whether a job with these settings, on a model with these features, has what needs them."""
        if isinstance(self.trait, Trait):
            return self.trait.holds(settings)
        return self.trait.name in features and not NO_ADAPTER.holds(settings)


class Refused(StrEnum):
    """Why settings are not combined."""

    # The code refuses them or ends with an error.
    ERROR = "error"
    # The code accepts them and does not do what one of them asks for.
    IGNORED = "ignored"
    # Neither the code nor a script of the repositories says that they work together.
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Settings that are not put into one job."""

    # All of them hold in a job that is excluded.
    traits: tuple[Trait, ...]
    # What kind of obstacle it is.
    kind: Refused
    # Why, a clause.
    reason: str
    # Where that is decided.
    source: str

    def holds(self, settings: Settings) -> bool:
        """Whether a job with these settings is excluded."""
        return all(trait.holds(settings) for trait in self.traits)


_PIPELINED = Trait(Axis.PIPELINE, 2)
_FSDP = Trait(Axis.FSDP)
NO_ADAPTER = Trait(Axis.ADAPTER, "none")
_MOE = frozenset({"moe"})
# The row of a bfloat16 matrix of this rank has 16 bytes, which torch's grouped matrix product asks of strides.
OUTER_RANK = 8
_EXPERT_ADAPTERS = "Megatron-Bridge: LoRA.transform (is_grouped_expert_linear)"

IMPLICATIONS: tuple[Implication, ...] = (
    Implication(
        Trait(Axis.VIRTUAL_PIPELINE, 2),
        {Axis.PIPELINE: 2},
        source="Megatron-LM: parallel_state.initialize_model_parallel",
    ),
    Implication(
        Trait(Axis.EXPERT, 2), features=_MOE, source="Megatron-LM: TransformerConfig.__post_init__ (num_moe_experts)"
    ),
    Implication(Trait(Axis.EXPERT_TENSOR, 2), features=_MOE, source="Megatron-LM: TransformerConfig.__post_init__"),
    # The kernel accumulates into a buffer of DDP that Megatron-FSDP does not have.
    Implication(
        _FSDP,
        {Axis.FUSION: False, Axis.OFFLOAD: False},
        source="verl: .github/workflows/e2e_ppo_trainer_megatron_vllm.yml",
    ),
    Implication(
        Trait(Axis.ADAPTER, "canonical_lora"),
        {Axis.ADAPTER_TARGETS: CANONICAL_TARGETS},
        source="Megatron-Bridge: CanonicalLoRA._init_target_match_state",
    ),
    Implication(
        Trait(Axis.ADAPTER, "vlm_lora"),
        features=frozenset({"vlm"}),
        source="Megatron-Bridge: VLMLoRA.freeze_model (vision_model)",
    ),
    Implication(Trait(Axis.ADAPTER_SHARING, "per expert"), features=_MOE, source=_EXPERT_ADAPTERS),
    Implication(Trait(Axis.ADAPTER_SHARING, "outer"), features=_MOE, source=_EXPERT_ADAPTERS),
    # Alpha with it, so that the adapters count as much as those of another rank.
    Implication(
        Trait(Axis.ADAPTER_SHARING, "outer"),
        {Axis.ADAPTER_RANK: OUTER_RANK, Axis.ADAPTER_ALPHA: OUTER_RANK},
        source="Megatron-Bridge: PackedPerExpertLinear.forward (torch._grouped_mm)",
    ),
    Implication(Trait(Axis.RESUME), {Axis.STEPS: 2}, source="docs/levels.md: save after one step, resume to the next"),
    Implication(Trait(Axis.CONTENT, "images"), features=frozenset({"vlm"}), source="verl: RLHFDataset (image_key)"),
    Implication(Trait(Axis.CONTENT, "audio"), features=frozenset({"audio"}), source="verl: RLHFDataset (audio_key)"),
    # After all that bring experts with them.
    Implication(
        Feature("moe"),
        {Axis.ADAPTER_MERGE: True},
        source="verl: .github/workflows/e2e_ppo_trainer_megatron_vllm_2.yml",
    ),
)

# Hosts have 1, 2, 4 or 8 GPUs, and verl's batch of 64 sequences is split over the data-parallel ranks.
_POWERS_OF_TWO = frozenset(
    {Axis.TENSOR, Axis.PIPELINE, Axis.CONTEXT, Axis.EXPERT, Axis.EXPERT_TENSOR, Axis.DATA},
)

# What an adapter would have, where there is none.
_OF_ADAPTERS = (
    *(Trait(Axis.ADAPTER_SHARING, value) for value in ("per expert", "outer")),
    Trait(Axis.ADAPTER_MERGE),
    *(Trait(Axis.ADAPTER_B_START, value) for value in ("xavier", "normal", "kaiming")),
    *(Trait(Axis.ADAPTER_A_START, value) for value in ("normal", "kaiming", "zero")),
)

EXCLUSIONS: tuple[Exclusion, ...] = (
    Exclusion(
        (Trait(Axis.PRECISION, "fp32"),),
        Refused.ERROR,
        "verl trains in bfloat16 or float16 only",
        "verl: McoreEngineConfig.__post_init__",
    ),
    Exclusion(
        (_FSDP, _PIPELINED),
        Refused.UNPROVEN,
        "Megatron-FSDP 2 refuses a pipeline, version 1 does not check it, and no script of verl combines them",
        "Megatron-LM: mcore_fsdp_adapter (unsupported_parallelisms)",
    ),
    Exclusion(
        (_FSDP, Trait(Axis.FUSION)),
        Refused.UNPROVEN,
        "the fused kernel adds into a buffer of Megatron's DDP; Megatron-LM warns, and verl's CI switches it off",
        "Megatron-LM: training/arguments.py (use_megatron_fsdp)",
    ),
    Exclusion(
        (_FSDP, Trait(Axis.OFFLOAD)),
        Refused.UNPROVEN,
        "verl's CI runs Megatron-FSDP without offloading alone",
        "verl: .github/workflows/e2e_ppo_trainer_megatron_vllm.yml",
    ),
    *(
        Exclusion(
            (NO_ADAPTER, trait),
            Refused.IGNORED,
            "without an adapter nothing reads it",
            "verl: get_peft_cls",
        )
        for trait in _OF_ADAPTERS
    ),
    *(
        Exclusion(
            (Trait(Axis.ADAPTER, "dora"), Trait(Axis.ADAPTER_B_START, start)),
            Refused.IGNORED,
            "no export has the magnitudes, so the rollout agrees only as long as the adapter is zero",
            "Megatron-Bridge: models/conversion/peft_bridge.py",
        )
        for start in ("xavier", "normal", "kaiming")
    ),
    *(
        Exclusion(
            (Trait(Axis.ADAPTER, adapter), Trait(Axis.ADAPTER_SHARING, "outer")),
            Refused.IGNORED,
            f"{adapter} has no such option, and create_peft drops what its class does not have",
            "Megatron-Bridge: create_peft",
        )
        for adapter in ("canonical_lora", "dora")
    ),
    Exclusion(
        (Trait(Axis.ADAPTER, "dora"), Trait(Axis.ADAPTER_SHARING, "per expert")),
        Refused.IGNORED,
        "dora has no such option, and create_peft drops what its class does not have",
        "Megatron-Bridge: create_peft",
    ),
)


# The parts of fused modules, which only canonical_lora knows.
SPLIT_TARGETS = ("linear_q", "linear_k", "linear_v", "linear_fc1_up", "linear_fc1_gate")


def completed(settings: Settings, features: frozenset[str]) -> tuple[dict[Axis, Value], frozenset[str]]:
    """The settings, and the features of the model, with what they need; what is set already stays, a size is raised."""
    whole = dict(settings)
    wanted = set(features)
    if names_any(whole.get(Axis.ADAPTER_TARGETS), SPLIT_TARGETS):
        whole.setdefault(Axis.ADAPTER, "canonical_lora")
    for implication in IMPLICATIONS:
        if implication.holds(whole, frozenset(wanted)):
            wanted |= implication.features
            for axis, value in implication.axes.items():
                whole[axis] = larger(axis, whole.get(axis, value), value)
    for axis in _POWERS_OF_TWO & whole.keys():
        whole[axis] = 1 << (int(whole[axis] or 1) - 1).bit_length()
    syncs = whole.get(Axis.SYNCS)
    if isinstance(syncs, int):
        # verl: PPOTrainerSync.on_init_end and on_step_end.
        whole[Axis.STEPS] = larger(Axis.STEPS, whole.get(Axis.STEPS, 1), syncs - 1)
    return whole, frozenset(wanted)


def larger(axis: Axis, first: Value, second: Value) -> Value:
    """Of two values of a size the larger one; of every other axis the first."""
    if axis in SIZES and isinstance(first, int) and isinstance(second, int):
        return max(first, second)
    return first


def names_any(targets: Value, names: tuple[str, ...]) -> bool:
    """Whether one of an adapter's targets ends with one of these names."""
    return isinstance(targets, str) and any(target.endswith(names) for target in targets.split(","))
