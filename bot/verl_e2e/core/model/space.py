"""A job as a point in the space of settings: a value on each axis and a model, joined with what a change wants.

The rules say which settings go together, each with the code that it comes from. The named jobs of each level are points
that people know by name; their source is Megatron-Bridge's guide to verl end-to-end testing.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from verl_e2e.core.model.document import DescribedDocument
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import (
    AMPLIFYING,
    CANONICAL_TARGETS,
    PARITY_STEPS,
    Axis,
    FieldValue,
    Takes,
    Value,
)

AxisValues = Mapping[Axis, Value]


@dataclass(frozen=True, slots=True)
class ModelWant:
    """What the model of a job has to be."""

    # The policy's family; empty where any will do.
    family: str = ""
    # Fields of the Hugging Face configuration, and the values that the condition needs.
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    # Features that the policy knows: moe, mla, ssm, mtp, vlm, audio, ...
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Want:
    """Settings and a model that a job should have, and in words why."""

    condition: str = ""
    # The wanted settings. An axis that is not named is open.
    axes: AxisValues = field(default_factory=dict)
    model: ModelWant = ModelWant()


@dataclass(frozen=True, slots=True)
class Trait:
    """A value on one axis that a rule is about: of a size at least `value`, of every other axis `value` itself."""

    axis: Axis
    value: Value = True

    def holds(self, settings: AxisValues) -> bool:
        """Whether a job with these settings has it."""
        has = settings.get(self.axis, self.axis.default)
        if self.axis.is_size:
            return int(has or 0) >= int(self.value or 0)
        return has == self.value

    def __str__(self) -> str:
        if self.axis.is_size:
            return f"{self.axis} of {self.value} or more"
        return str(self.axis) if self.value is True else f"{self.axis} {self.value}"


@dataclass(frozen=True, slots=True)
class AdaptedModel:
    """A feature of the model that a rule is about, in a run with adapters."""

    # The policy's name of it.
    name: str

    def __str__(self) -> str:
        return f"adapters on a model with `{self.name}`"


@dataclass(frozen=True, slots=True)
class Implication:
    """A setting that needs others: they are added where a job does not set them."""

    # What needs them.
    trait: Trait | AdaptedModel
    # The settings that it needs.
    axes: AxisValues = field(default_factory=dict)
    # Features that the model needs.
    features: frozenset[str] = frozenset()
    # Where that is decided.
    source: str = ""

    def holds(self, settings: AxisValues, features: frozenset[str]) -> bool:
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

    def holds(self, settings: AxisValues) -> bool:
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
    # On one rank every part of a parameter is the whole.
    Implication(_FSDP, {Axis.DATA: 2}, source="Megatron-LM: FullyShardedDataParallelV1 (the data-parallel group)"),
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
    Implication(Trait(Axis.PARITY), {Axis.STEPS: PARITY_STEPS}, source="docs/parity.md"),
    # After all that bring experts with them.
    Implication(
        AdaptedModel("moe"),
        {Axis.ADAPTER_MERGE: True},
        source="verl: .github/workflows/e2e_ppo_trainer_megatron_vllm_2.yml",
    ),
)

PARALLEL = tuple(axis for axis in Axis if axis.is_parallel)
# Hosts have 1, 2, 4 or 8 GPUs, and verl's batch of 64 sequences is split over the data-parallel ranks.
_POWERS_OF_TWO = frozenset(PARALLEL) - {Axis.VIRTUAL_PIPELINE}

# What an adapter would have, where there is none.
_OF_ADAPTERS = (
    *(Trait(Axis.ADAPTER_SHARING, value) for value in ("per expert", "outer")),
    Trait(Axis.ADAPTER_MERGE),
    *(Trait(Axis.ADAPTER_B_START, value) for value in AMPLIFYING),
)

EXCLUSIONS: tuple[Exclusion, ...] = (
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
        for start in AMPLIFYING
    ),
    *(
        Exclusion(
            (Trait(Axis.ADAPTER, adapter), Trait(Axis.ADAPTER_SHARING, sharing)),
            Refused.IGNORED,
            f"{adapter} has no such option, and create_peft drops what its class does not have",
            "Megatron-Bridge: create_peft",
        )
        for adapter, sharing in (("canonical_lora", "outer"), ("dora", "outer"), ("dora", "per expert"))
    ),
)


# The parts of fused modules, which only canonical_lora knows.
SPLIT_TARGETS = ("linear_q", "linear_k", "linear_v", "linear_fc1_up", "linear_fc1_gate")


def with_needs(settings: AxisValues, features: frozenset[str]) -> tuple[dict[Axis, Value], frozenset[str]]:
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
    return whole, frozenset(wanted)


def larger(axis: Axis, first: Value, second: Value) -> Value:
    """Of two values of a size the larger one; of every other axis the first."""
    if axis.is_size and isinstance(first, int) and isinstance(second, int):
        return max(first, second)
    return first


def names_any(targets: Value, names: tuple[str, ...]) -> bool:
    """Whether one of an adapter's targets ends with one of these names."""
    return isinstance(targets, str) and any(target.endswith(names) for target in targets.split(","))


def joined_models(first: ModelWant, second: ModelWant) -> ModelWant | str:
    """The model that is what both want, or why there is none, a clause; True and 1 differ."""
    if first.family and second.family and first.family != second.family:
        return f"a model of {first.family} cannot be one of {second.family}"
    fields = dict(first.fields)
    for name, value in second.fields.items():
        mine = fields.setdefault(name, value)
        if type(mine) is not type(value) or mine != value:
            return f"the model's {name} cannot be {mine!r} and {value!r}"
    return ModelWant(first.family or second.family, fields, first.features | second.features)


# Of fused modules, whose parts alone canonical_lora knows.
_FUSED_TARGETS = ("linear_qkv", "linear_fc1")


def exclusion_of(settings: AxisValues, features: frozenset[str]) -> Exclusion | None:
    """The first rule that these settings break on a model with these features."""
    broken = next((exclusion for exclusion in EXCLUSIONS if exclusion.holds(settings)), None)
    if broken is not None:
        return broken
    adapter, targets, rank = (
        settings.get(axis, axis.default) for axis in (Axis.ADAPTER, Axis.ADAPTER_TARGETS, Axis.ADAPTER_RANK)
    )
    named = (Trait(Axis.ADAPTER, adapter), Trait(Axis.ADAPTER_TARGETS, targets))
    if adapter == "canonical_lora" and names_any(targets, _FUSED_TARGETS):
        source = "Megatron-Bridge: CanonicalLoRA._init_target_match_state"
        return Exclusion(named, Refused.ERROR, "it adapts the parts of a fused module, by their names", source)
    if adapter not in ("canonical_lora", "none") and names_any(targets, SPLIT_TARGETS):
        source = "Megatron-Bridge: ModuleMatcher.match"
        return Exclusion(named, Refused.IGNORED, "only canonical_lora knows the parts of a fused module", source)
    unmerged = Trait(Axis.ADAPTER_MERGE, value=False)
    if "moe" in features and adapter != "none" and unmerged.holds(settings):
        reason = (
            "with adapters of their own on experts vLLM 0.24.0 computes other probabilities than the trainer at the"
            " first step (correlation 0.385 to 0.730, merged 0.998), although both hold the same weights"
        )
        return Exclusion((unmerged,), Refused.IGNORED, reason, "docs/space.md: adapters of experts")
    outer = Trait(Axis.ADAPTER_SHARING, "outer")
    if outer.holds(settings) and isinstance(rank, int) and rank % OUTER_RANK:
        reason = f"torch's grouped matrix product takes bfloat16 matrices of a multiple of {OUTER_RANK} alone"
        source = "Megatron-Bridge: PackedPerExpertLinear.forward (torch._grouped_mm)"
        return Exclusion((outer, Trait(Axis.ADAPTER_RANK, rank)), Refused.ERROR, reason, source)
    return None


@dataclass(frozen=True, slots=True)
class Mask:
    """Settings that two wants may not bring into one job, because what one is for would not show under the other."""

    # The setting that hides.
    hiding: Trait
    # The settings of which one is wanted for what is hidden.
    hidden: tuple[Trait, ...]
    # What would not show, a clause.
    reason: str
    # Where that is decided.
    source: str


_BY_NAME = {axis.value: axis for axis in Axis}
MASKS: tuple[Mask, ...] = tuple(
    Mask(
        Trait(axis, hides.value),
        tuple(Trait(_BY_NAME[name], value) for name, values in hides.hidden.items() for value in values),
        hides.reason,
        hides.source,
    )
    for axis in Axis
    if (hides := axis.row.hides) is not None
)


def mask_of(first: AxisValues, second: AxisValues) -> Mask | None:
    """The first reason why the settings of two wants should not be in one job; a want that sets both means it so."""
    for mask in MASKS:
        for hiding, hidden in ((first, second), (second, first)):
            found = any(trait.holds(hidden) for trait in mask.hidden)
            if found and mask.hiding.holds(hiding) and not mask.hiding.holds(hidden):
                return mask
    return None


# What every job of a level sets; a job of level 4 differs by its model.
_OF_LEVEL: Mapping[Level, AxisValues] = {
    Level.SAVE_RESUME: {Axis.RESUME: True},
    Level.MEGATRON_FSDP: {Axis.FSDP: True},
    Level.LEARNING_SIGNAL: {Axis.STEPS: 20},
}


@dataclass(frozen=True, slots=True)
class JobPoint:
    """The settings of one job and its model. Build one by `default` or `of_level`, and join wants to it."""

    # The values that are set; every other axis is open and has its default.
    settings: AxisValues = field(default_factory=dict)
    # What the model has to be.
    model: ModelWant = field(default_factory=ModelWant)
    # The axes that are set only because another setting needs them.
    implied: frozenset[Axis] = frozenset()

    @classmethod
    def default(cls) -> "JobPoint":
        """The point of level 0: nothing set."""
        return cls(MappingProxyType({}))

    @classmethod
    def of_level(cls, level: Level) -> "JobPoint":
        """What every job of a level has, with what it needs."""
        return cls.default().with_axes(_OF_LEVEL.get(level, {}))

    def with_axes(self, axes: AxisValues) -> "JobPoint":
        """This point with these values in place of its own, and with what they need. It is not checked: see `joined`.

        Raises ValueError for a value that no job can have.
        """
        for axis, value in axes.items():
            if problem := axis.invalid(value):
                raise ValueError(problem)
        asked = {**self.asked, **axes}
        settings, features = with_needs(asked, self.model.features)
        return replace(
            self,
            settings=MappingProxyType({axis: settings[axis] for axis in Axis if axis in settings}),
            model=replace(self.model, features=features),
            implied=frozenset(settings.keys() - asked.keys()),
        )

    @property
    def asked(self) -> dict[Axis, Value]:
        """The settings without those that only another setting needs."""
        return {axis: value for axis, value in self.settings.items() if axis not in self.implied}

    def with_model(self, model: ModelWant) -> "JobPoint":
        """This point with another model, and with the features that its settings need."""
        return replace(self, model=model).with_axes({})

    def __getitem__(self, axis: Axis) -> Value:
        return self.settings.get(axis, axis.default)

    def size(self, axis: Axis) -> int:
        """The value of a size."""
        value = self[axis]
        return value if isinstance(value, int) else 1

    def joined(self, want: Want) -> "JobPoint | str":
        """The point that has both, or why there is none, a clause.

        Sizes join by the larger one, all else must agree or be open, and nothing is masked.
        """
        if mask := mask_of(self.settings, with_needs(want.axes, want.model.features)[0]):
            return f"{mask.hiding}: {mask.reason}"
        settings = self.asked
        for axis, value in want.axes.items():
            if problem := axis.invalid(value):
                return problem
            mine = settings.get(axis, value)
            if not axis.is_size and mine != value:
                return f"{axis} is {mine!r} and {value!r} is wanted"
            settings[axis] = larger(axis, mine, value)
        model = joined_models(self.model, want.model)
        if isinstance(model, str):
            return model
        point = JobPoint(settings, model).with_axes({})
        return point.conflict or point

    @property
    def conflict(self) -> str:
        """Why no job can be this point, a clause; empty where one can."""
        rule = exclusion_of(self.settings, self.model.features)
        return "" if rule is None else f"{' with '.join(map(str, rule.traits))}: {rule.reason}"

    def holds(self, want: Want) -> bool:
        """Whether a run of this point, open axes at their defaults, gives what is wanted but the model."""
        return all(Trait(axis, value).holds(self.settings) for axis, value in want.axes.items())

    @property
    def differing(self) -> dict[Axis, Value]:
        """The settings that differ from those of level 0, without what every job on a model with experts has."""
        merged = "moe" in self.model.features and self[Axis.ADAPTER_MERGE] is True
        return {
            axis: value
            for axis, value in self.settings.items()
            if value != axis.default and not (merged and axis is Axis.ADAPTER_MERGE)
        }

    @property
    def own_level(self) -> Level | None:
        """The level of a job that is there for these settings alone; None where no level has such a job."""
        levels = self.levels
        # The strongest first; fields of a model alone leave no trace in a run.
        meanings = (
            (Level.SAVE_RESUME, self[Axis.RESUME] is True),
            (Level.MEGATRON_FSDP, self[Axis.FSDP] is True),
            (Level.PARALLELISM, any(self.size(axis) > 1 for axis in PARALLEL)),
            (Level.LEARNING_SIGNAL, Level.LEARNING_SIGNAL in levels),
            (Level.FEATURE, bool(self.model.family or self.model.features)),
        )
        found = next((level for level, meant in meanings if meant), Level.SMOKE)
        return found if found in levels else None

    @property
    def data_size(self) -> int:
        """The data-parallel ranks: as many as are wanted, and as the experts' own sizes need.

        Megatron-LM (parallel_state.initialize_model_parallel) gives experts the same ranks, divided by their own
        tensor, expert and data size. All of these sizes are powers of two, so the smaller product divides the larger.
        """
        dense = self.size(Axis.TENSOR) * self.size(Axis.CONTEXT)
        experts = self.size(Axis.EXPERT) * self.size(Axis.EXPERT_TENSOR)
        data = 1
        while data < self.size(Axis.DATA) or dense * data < experts:
            data *= 2
        return data

    @property
    def gpu_count(self) -> int:
        """Tensor x pipeline x context x data size; the experts' own sizes are within it."""
        sizes = (self.size(axis) for axis in (Axis.TENSOR, Axis.PIPELINE, Axis.CONTEXT))
        return math.prod(sizes) * self.data_size

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels whose criteria a job of this point can meet, ascending."""
        if self[Axis.RESUME]:
            return (Level.SAVE_RESUME,)
        # A job of level 4 has a reward function of its own, and with one verl never asks the reward model.
        found = [] if self[Axis.REWARD_MODEL] else [Level.FEATURE]
        if self[Axis.FSDP]:
            found.append(Level.MEGATRON_FSDP)
        elif self[Axis.ADAPTER] != "none":
            found.append(Level.SMOKE)
        if any(self.size(axis) > 1 for axis in PARALLEL):
            found.append(Level.PARALLELISM)
        if self.size(Axis.STEPS) >= self.of_level(Level.LEARNING_SIGNAL).size(Axis.STEPS):
            found.append(Level.LEARNING_SIGNAL)
        return tuple(sorted(found))


_Count = Annotated[int, Field(strict=True, ge=1)]


class ModelShape(DescribedDocument):
    """The counts of a model that parallel sizes divide."""

    layers: _Count
    """Transformer layers."""
    heads: _Count
    """Query heads of an attention layer."""
    kv_heads: _Count
    """Key and value heads of an attention layer; as many as `heads` without groups."""
    experts: Annotated[int, Field(strict=True, ge=0)] = 0
    """Routed experts of a layer; 0 for a dense model."""
    biases: bool = False
    """Whether the linear layers have a bias."""


def misfits(point: JobPoint, shape: ModelShape) -> tuple[str, ...]:
    """Why a model of this shape cannot run with the sizes of a point, a clause each."""
    tensor, expert, expert_tensor = map(point.size, (Axis.TENSOR, Axis.EXPERT, Axis.EXPERT_TENSOR))
    chunks = point.size(Axis.PIPELINE) * point.size(Axis.VIRTUAL_PIPELINE)
    dense = not shape.experts
    # Megatron-LM: TransformerConfig.__post_init__, and for the number of experts moe_layer.BaseMoELayer.__init__.
    clauses = (
        (shape.layers % chunks, f"{shape.layers} layers cannot be divided into {chunks} pipeline chunks"),
        (shape.heads % tensor, f"{shape.heads} heads cannot be divided among {tensor} tensor ranks"),
        (
            shape.kv_heads % tensor and tensor % shape.kv_heads,
            f"{shape.kv_heads} key-value heads neither divide {tensor} tensor ranks nor are divided by them",
        ),
        (dense and (expert > 1 or expert_tensor > 1), "a dense model has no experts to divide"),
        (shape.experts % expert, f"{shape.experts} experts cannot be divided among {expert} expert ranks"),
        (
            not dense and shape.biases and expert_tensor > 1,
            "experts with biases cannot be divided among expert tensor ranks",
        ),
    )
    return tuple(clause for holds, clause in clauses if holds)


MOST_CHARACTERS = 48
_DIGEST = 6
# Fields of a model's configuration that a name can say in a word.
_OF_MODEL: Mapping[tuple[str, object], str] = {
    ("tie_word_embeddings", True): "tied",
    ("tie_word_embeddings", False): "untied",
}
# A level whose own purpose no setting names, and what always comes with a level's own setting.
_PURPOSE = {Level.FEATURE: ("feature",), Level.LEARNING_SIGNAL: ("signal",)}
_IMPLIED: Mapping[Level, AxisValues] = {
    Level.SAVE_RESUME: {Axis.STEPS: 2},
    Level.MEGATRON_FSDP: {Axis.FUSION: False, Axis.DATA: 2},
    Level.LEARNING_SIGNAL: {Axis.STEPS: 20},
}


def name_of(level: Level, point: JobPoint, model: str = "") -> str:
    """The name of a derived job without its level, never empty; `model` names one that the settings do not."""
    words = [*_PURPOSE.get(level, ())]
    implied, differing = _IMPLIED.get(level, {}), point.differing
    for axis in Axis:
        if axis in differing and implied.get(axis) != differing[axis]:
            row, value = axis.row, differing[axis]
            if row.takes is Takes.SWITCH:
                words.append(row.short if value else row.short_off)
            else:
                words.append(f"{row.short}{'' if isinstance(value, int) else '-'}{name_word(value)}")
    fields = dict(point.model.fields)
    for (key, known), word in _OF_MODEL.items():
        if fields.get(key) is known:
            del fields[key]
            words.append(word)
    if fields:
        # It may be any text of the code.
        words.append(f"model-{_digest(repr(sorted(fields.items(), key=str)))}")
    if model:
        words.append(name_word(model))
    name = "-".join(words) or "plain"
    if len(name) <= MOST_CHARACTERS:
        return name
    return f"{name[: MOST_CHARACTERS - _DIGEST - 1].rstrip('-')}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def name_word(value: Value) -> str:
    """A value in the letters of a name, never empty."""
    return "-".join(re.findall("[a-z0-9]+", str(value).lower())) or _digest(str(value))


# By level and name, the default of a level first. With tensor size 1 as well, expert and dense tensor sizes would be
# equal and could be swapped unseen.
NAMED_JOBS: dict[tuple[Level, str], dict[Axis, Value]] = {
    (Level.SMOKE, "lora-ddp"): {},
    (Level.SMOKE, "amplified-lora"): {Axis.ADAPTER_B_START: "xavier"},
    (Level.SMOKE, "recompute"): {Axis.RECOMPUTE: "full"},
    (Level.SMOKE, "reward-model"): {Axis.REWARD_MODEL: True},
    (Level.SAVE_RESUME, "resume"): {},
    (Level.SAVE_RESUME, "fsdp"): {Axis.FSDP: True},
    (Level.PARALLELISM, "dense"): {
        Axis.TENSOR: 2,
        Axis.PIPELINE: 2,
        Axis.VIRTUAL_PIPELINE: 1,
        Axis.CONTEXT: 1,
    },
    (Level.PARALLELISM, "vpp"): {Axis.PIPELINE: 2, Axis.VIRTUAL_PIPELINE: 2},
    (Level.PARALLELISM, "cp"): {Axis.CONTEXT: 2},
    (Level.PARALLELISM, "expert"): {Axis.TENSOR: 2, Axis.EXPERT: 2, Axis.EXPERT_TENSOR: 1},
    (Level.PARALLELISM, "dp2-parity"): {Axis.DATA: 2, Axis.ADAPTER: "none", Axis.PARITY: True},
    (Level.PARALLELISM, "tp2-parity"): {Axis.TENSOR: 2, Axis.ADAPTER: "none", Axis.PARITY: True},
    (Level.PARALLELISM, "pp2-tied-parity"): {Axis.PIPELINE: 2, Axis.ADAPTER: "none", Axis.PARITY: True},
    (Level.MEGATRON_FSDP, "fsdp"): {},
    (Level.FEATURE, "feature"): {},
    (Level.LEARNING_SIGNAL, "signal"): {},
}

# One model for all jobs of parity, so that the unsharded run of one is that of the others. A tied embedding has a copy
# on the first and on the last stage.
_TIED = ModelWant(fields=MappingProxyType({"tie_word_embeddings": True}))

# The named jobs as points, by job id.
POINTS: dict[str, JobPoint] = {
    f"{int(level)}-{name}": replace(
        JobPoint.of_level(level), model=_TIED if Axis.PARITY in axes else ModelWant()
    ).with_axes(axes)
    for (level, name), axes in NAMED_JOBS.items()
}
