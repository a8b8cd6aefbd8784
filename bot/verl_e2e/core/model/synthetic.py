"""A synthetic model: what the runner needs to make a small model of a family on the host, with random weights.

The runner derives the small configuration from the family's own configuration class by rules on names of fields;
a recipe states the class and what the rules cannot know.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from verl_e2e.core.model.document import DescribedDocument
from verl_e2e.core.model.wants import FieldValue

# A file or a module of the host must never be named by a recipe.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=80)]
FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]
Token = Annotated[str, StringConstraints(min_length=1, max_length=40)]
Size = Annotated[int, Field(ge=1, le=65536)]
SizeName = Literal[
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_size",
    "ffn",
    "expert_ffn",
    "experts",
    "experts_per_token",
    "positions",
    "vocabulary",
    "window",
]
# A setting of the rollout engine's own, for a model's configuration; nothing else is the model's to say.
Override = Annotated[
    str,
    StringConstraints(
        pattern=r"^\+actor_rollout_ref\.rollout\.engine_kwargs\.vllm\.hf_overrides\.[a-z_]+=[A-Za-z0-9_\[\]]+$",
        max_length=200,
    ),
]
# A part of the name of a tensor.
TensorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length=80)]


class ModelSizes(DescribedDocument):
    """The sizes of a synthetic text model."""

    layers: Size
    """Transformer layers, of all pipeline ranks together."""
    hidden: Size
    """Width of the residual stream."""
    heads: Size
    """Query heads."""
    kv_heads: Size
    """Heads of keys and values."""
    head_size: Size
    """Width of one head."""
    ffn: Size
    """Width of a dense MLP."""
    expert_ffn: Size
    """Width of one expert."""
    experts: Size
    """Routed experts of a layer, where the family has any."""
    experts_per_token: Size
    """Routed experts that one token goes to."""
    positions: Size
    """Positions that the model knows."""
    vocabulary: Size
    """Tokens, the same number in model and tokenizer."""
    window: Size
    """Positions that attention with a window sees, where the family has one."""


class Published(DescribedDocument):
    """How a family's checkpoints differ from those of the class of transformers whose layers they have."""

    architecture: Name
    """The entry of `architectures` by which Bridge, and the rollout engine, know the family."""
    model_type: Name | None = None
    """The `model_type` of transformers that keeps every field as it is written; null: the class's own."""
    aliases: dict[FieldName, FieldName] = Field(default_factory=dict)
    """Fields of the published configuration, and the field of the class with the same value; a dot leads inside."""
    patterns: dict[FieldName, tuple[str, ...]] = Field(default_factory=dict)
    """Fields with an entry for each layer, and the entries that follow one another, again and again."""
    renamed: dict[TensorName, TensorName] = Field(default_factory=dict)
    """Parts of the names of the class's tensors, and what they are called instead."""
    joined: dict[TensorName, tuple[TensorName, ...]] = Field(default_factory=dict)
    """Ends of names, and the ends of the renamed tensors that lie in this one, in order along the first dimension."""
    stacked: tuple[TensorName, ...] = ()
    """What holds numbered tensors, experts for example, that lie in one, along a new first dimension."""
    head_gates: TensorName | None = None
    """The matrix with a row for each query head, next to `q_proj`; null: there is none."""
    norms_add_one: bool = False
    """Whether a norm multiplies by one more than its weight."""


class Recipe(DescribedDocument):
    """What a family's synthetic model is made from, whatever its sizes."""

    model_type: Name
    """The family's `model_type` in transformers, by which its configuration class is found."""
    architecture: Name
    """The class of transformers that holds the weights."""
    fields: dict[FieldName, FieldValue] = Field(default_factory=dict)
    """Fields of the configuration and their values, which win over the rules; a dot leads into an inner one."""
    sized_fields: dict[FieldName, SizeName] = Field(default_factory=dict)
    """Fields that hold a size, where the rules do not know it by the field's name, and that size."""
    published: Published | None = None
    """Where transformers has but a class with the same layers, or saves other names; null: all is the family's own."""
    mtp: Literal["appended", "mimo"] | None = None
    """How checkpoints name MTP layers, made where `num_nextn_predict_layers` asks for them; null: none can be."""
    tokens: dict[Name, Token] = Field(default_factory=dict)
    """Fields that hold the id of a special token, and that token; the tokenizer gets it."""
    named_tokens: tuple[Token, ...] = ()
    """Other tokens that verl or the rollout engine looks up by their text, for the family's `model_type`."""
    texts: dict[Name, Annotated[str, StringConstraints(max_length=200)]] = Field(default_factory=dict)
    """What stands in a chat for an `image`, a `video` or an `audio`; empty for a family that reads text alone."""
    processor: dict[FieldName, FieldValue] = Field(default_factory=dict)
    """Arguments of what prepares images and sounds; those of its parts begin with the part's name and a dot."""
    head_size: Literal[64, 128, 256] = 64
    """Width of one head, where the family's rope or kernels ask for more than the least."""
    least_layers: Size = 4
    """The fewest layers in which every kind of layer of the family is found."""
    experts: bool = False
    """Whether its layers have routed experts."""
    overrides: tuple[Override, ...] = ()
    """Hydra overrides by which verl's rollout engine knows the model, for each job on it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """The number that all weights follow from."""

    def __hash__(self) -> int:
        return hash((self.model_type, self.architecture, self.seed))


class Synthetic(Recipe):
    """The recipe of a job's synthetic model."""

    family: str
    """The family that it stands for, as the policy names it."""
    wanted: dict[FieldName, FieldValue] = Field(default_factory=dict)
    """Fields of the configuration that the job's condition asks for, which win over `fields`."""
    sizes: ModelSizes | None = None
    """The sizes; null: those that fit the job's parallel sizes."""

    @property
    def what(self) -> str:
        """What the model is and is not, for a card: `synthetic qwen3_moe: 4 layers, 8 experts, random weights`."""
        numbers = [] if self.sizes is None else [f"{self.sizes.layers} layers"]
        if self.sizes is not None and self.experts:
            numbers.append(f"{self.sizes.experts} experts")
        asked = [f"{name} = {value!r}" for name, value in sorted(self.wanted.items())]
        return f"synthetic {self.family}: {', '.join((*numbers, 'random weights', *asked))}"
