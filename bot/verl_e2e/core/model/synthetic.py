"""A synthetic model: what the runner needs to make a small model of a family on the host, with random weights.

The runner derives the small configuration from the family's own configuration class by rules on names of fields;
a recipe states the class and what the rules cannot know.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from verl_e2e.core.model.document import DescribedDocument
from verl_e2e.core.model.settings import FieldValue

# A file or a module of the host must never be named by a recipe.
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=80)]
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
# How the rollout engine reads the model's configuration, and what Bridge should have set of Megatron-LM's; nothing else
# is the model's to say.
ModelOverride = Annotated[
    str,
    StringConstraints(
        pattern=r"^(\+actor_rollout_ref\.rollout\.engine_kwargs\.vllm\.hf_overrides\.[a-z_]+=[A-Za-z0-9_\[\]]+"
        r"|\+\+actor_rollout_ref\.(actor|ref)\.megatron\.override_transformer_config\.[a-z_]+=[A-Za-z0-9_]+)$",
        max_length=200,
    ),
]
# A part of the name of a tensor.
TensorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length=80)]
# The name of a tensor, or of one for each number, which stands in the place of `*`.
TensorPattern = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*(\.\*(\.[A-Za-z0-9_]+)+)?$", max_length=120)
]
# Numbers and fields of the configuration, multiplied.
_FACTOR = r"([0-9]+|[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*)"
Dimension = Size | Annotated[str, StringConstraints(pattern=rf"^{_FACTOR}(\*{_FACTOR})*$", max_length=120)]


# How checkpoints name MTP layers, and what these have.
MtpNames = Literal[
    "appended", "appended_dense", "appended_final", "appended_shared", "apart", "apart_dense", "hybrid", "mimo"
]


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


class WrittenTensor(DescribedDocument):
    """Tensors of a family's checkpoints that the class does not have, or has in another shape."""

    names: tuple[TensorPattern, ...]
    """Their names in the checkpoint; `*` is the number of a layer."""
    shape: tuple[Dimension, ...]
    """Numbers, or fields of the configuration, or products of both: `num_attention_heads*v_head_dim`."""
    each: FieldName = "num_hidden_layers"
    """The field with the number of layers, where a name has a `*`."""
    among: FieldName | None = None
    """The field with an entry for each layer that is 0 for those without such a tensor; null: each layer has one."""
    around: float = 0.0
    """What the numbers of a vector are near to: 1 for the weight of a norm. Of a matrix it is not read."""


class Outer(DescribedDocument):
    """The configuration of a family whose text model alone is made by the class; that one's becomes `text_config`."""

    architecture: Identifier
    """The entry of its `architectures`."""
    model_type: Identifier
    """The `model_type` of transformers that keeps every field as it is written."""
    fields: dict[FieldName, FieldValue] = Field(default_factory=dict)
    """Its other fields and their values; a dot leads into an inner one."""


class Published(DescribedDocument):
    """How a family's checkpoints differ from those of the class of transformers whose layers they have."""

    architecture: Identifier
    """The entry of `architectures` by which Bridge, and the rollout engine, know the family."""
    model_type: Identifier | None = None
    """The `model_type` of transformers that keeps every field as it is written; null: the class's own."""
    aliases: dict[FieldName, FieldName] = Field(default_factory=dict)
    """Fields of the published configuration, and the field of the class with the same value; a dot leads inside."""
    patterns: dict[FieldName, tuple[str | int, ...]] = Field(default_factory=dict)
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
    left_out: tuple[TensorName, ...] = ()
    """Parts of the names, as they are then, of tensors that the class has and the family's checkpoints do not."""
    written: tuple[WrittenTensor, ...] = ()
    """Tensors that are made by name and shape, in the place of the class's own where it has the name."""
    outer: Outer | None = None
    """The family's configuration around that of the class, where the class is one of text alone; null: none."""


class Recipe(DescribedDocument):
    """What a family's synthetic model is made from, whatever its sizes."""

    model_type: Identifier
    """The family's `model_type` in transformers, by which its configuration class is found."""
    architecture: Identifier
    """The class of transformers that holds the weights."""
    fields: dict[FieldName, FieldValue] = Field(default_factory=dict)
    """Fields of the configuration and their values, which win over the rules; a dot leads into an inner one."""
    sized_fields: dict[FieldName, SizeName] = Field(default_factory=dict)
    """Fields that hold a size, where the rules do not know it by the field's name, and that size."""
    published: Published | None = None
    """Where transformers has but a class with the same layers, or saves other names; null: all is the family's own."""
    mtp: MtpNames | None = None
    """How checkpoints name MTP layers, made where the configuration has a number of them; null: none can be."""
    tokens: dict[Identifier, Token] = Field(default_factory=dict)
    """Fields that hold the id of a special token, and that token; the tokenizer gets it."""
    named_tokens: tuple[Token, ...] = ()
    """Other tokens that verl or the rollout engine looks up by their text, for the family's `model_type`."""
    texts: dict[Identifier, Annotated[str, StringConstraints(max_length=200)]] = Field(default_factory=dict)
    """What stands in a chat for an `image`, a `video` or an `audio`; empty for a family that reads text alone."""
    processor: dict[FieldName, FieldValue] = Field(default_factory=dict)
    """Arguments of what prepares images and sounds; those of its parts begin with the part's name and a dot."""
    head_size: Literal[64, 128, 192, 256] = 64
    """Width of one head, where the family's rope or kernels ask for more than the least."""
    least_layers: Size = 4
    """The fewest layers in which every kind of layer of the family is found."""
    experts: bool = False
    """Whether its layers have routed experts."""
    overrides: tuple[ModelOverride, ...] = ()
    """Hydra overrides by which verl's rollout engine and Megatron-LM know the model, for each job on it."""
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
