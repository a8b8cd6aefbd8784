"""What a run must have switched on to do what a change needs.

A job is a point in a space of settings. What a change needs fixes a few of them (a tensor size of two or more) and
leaves the rest open; several wants that do not exclude each other fit one job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

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
