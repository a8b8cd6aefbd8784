"""The settings of a job, one row each: what it takes, what holds without it, and what it is in a job's name.

What each is in a consumer's words is in `verl_e2e.core.consumer`; which go together in `verl_e2e.core.model.space`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

# A size, a switch or a name; of the model's configuration also a list of these, or null.
Value = bool | int | float | str | None
FieldValue = Value | tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """What values of axes are for a consumer."""

    # Its variables.
    wrapper: Mapping[str, str] = field(default_factory=dict)
    # Its overrides, in order.
    overrides: tuple[str, ...] = ()


# The median over fewer steps would be one batch of unlucky samples.
PARITY_STEPS = 3
# Megatron-Bridge: CanonicalLoRA, which refuses the fused names.
CANONICAL_TARGETS = "linear_q,linear_k,linear_v,linear_proj,linear_fc1_up,linear_fc1_gate,linear_fc2"


class Takes(Enum):
    """What values a setting takes, and how a wanted one is compared with that of a job."""

    # A size of at least the wanted one, by which the training is spread over GPUs.
    PARALLEL_SIZE = auto()
    # Another size of at least the wanted one.
    SIZE = auto()
    # The wanted value itself, for all of these.
    SWITCH = auto()
    CHOICE = auto()
    # A whole number of 1 or more.
    COUNT = auto()
    # Names of modules, joined by a comma, in Megatron's names.
    MODULES = auto()


@dataclass(frozen=True, slots=True)
class Hides:
    """What would not show of other settings in a job that has this one: two wants bring them into different jobs."""

    # The settings of which one is wanted for what is hidden, by the name of the axis; of a size the least one.
    hidden: Mapping[str, tuple[Value, ...]]
    # What would not show, a clause.
    reason: str
    # Where that is decided.
    source: str
    # The value that hides; of a size the least one.
    value: Value = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRow:
    """All that is known of one setting."""

    # Its name in policies, plans and documents.
    name: str
    takes: Takes
    # What a job has that does not set it, whichever consumer runs it.
    default: Value
    # The values of a choice.
    choices: tuple[str, ...] = ()
    # Values to try in a check of all settings, where neither `choices` nor the kind gives any.
    tried: tuple[Value, ...] = ()
    # In the name of a job: before the value, or in the place of a switch that is on; empty: the value alone.
    short: str = ""
    # In the name of a job, for a switch that is off.
    short_off: str = ""
    # The fields of a rehearsal's cell that say it: one with the value, or some that switch it on.
    cell: tuple[str, ...] = ()
    hides: Hides | None = None


# The starts of an adapter's second matrix with which it changes what the model computes.
AMPLIFYING = ("xavier", "normal", "kaiming")


# A name that shells and Hydra leave as it is.
_MODULE = re.compile(r"[*.]*[A-Za-z_][\w*.]*", re.ASCII)


class Axis(StrEnum):
    """One setting of a job, with its row. A new setting is one row more."""

    row: AxisRow

    def __new__(cls, row: AxisRow) -> "Axis":
        """The name of the row is the member's value."""
        member = str.__new__(cls, row.name)
        member._value_ = row.name
        member.row = row
        return member

    # Of trainer and rollout alike.
    TENSOR = AxisRow(
        name="tensor",
        takes=Takes.PARALLEL_SIZE,
        default=1,
        short="tp",
        cell=("tp",),
        hides=Hides(
            {"expert tensor": (2,)},
            "with equal tensor sizes the one of the experts and the one of the other layers could be swapped unseen",
            "Megatron-LM: parallel_state.initialize_model_parallel",
            value=2,
        ),
    )
    PIPELINE = AxisRow(name="pipeline", takes=Takes.PARALLEL_SIZE, default=1, short="pp", cell=("pp",))
    # Model chunks on each pipeline rank; 1 means none.
    VIRTUAL_PIPELINE = AxisRow(
        name="virtual pipeline",
        takes=Takes.PARALLEL_SIZE,
        default=1,
        short="vpp",
        cell=("vpp",),
    )
    CONTEXT = AxisRow(name="context", takes=Takes.PARALLEL_SIZE, default=1, short="cp", cell=("cp",))
    EXPERT = AxisRow(name="expert", takes=Takes.PARALLEL_SIZE, default=1, short="ep", cell=("ep",))
    EXPERT_TENSOR = AxisRow(
        name="expert tensor",
        takes=Takes.PARALLEL_SIZE,
        default=1,
        short="etp",
        cell=("etp",),
    )
    DATA = AxisRow(
        name="data",
        takes=Takes.PARALLEL_SIZE,
        default=1,
        short="dp",
        cell=("dp",),
    )
    # Megatron-FSDP instead of Megatron's DDP.
    FSDP = AxisRow(
        name="megatron fsdp",
        takes=Takes.SWITCH,
        default=False,
        short="fsdp",
        short_off="ddp",
    )
    RECOMPUTE = AxisRow(
        name="recompute",
        takes=Takes.CHOICE,
        default="none",
        # Megatron-LM: TransformerConfig.__post_init__.
        choices=("none", "full", "selective"),
        short="recompute",
        cell=("settings.recompute_granularity",),
    )
    # Parameters, gradients and optimizer state leave the GPU between phases.
    OFFLOAD = AxisRow(
        name="offload",
        takes=Takes.SWITCH,
        default=False,
        short="offload",
        short_off="no-offload",
    )
    # Gradients are reduced during the backward pass. Parameters are not gathered late.
    OVERLAP = AxisRow(
        name="overlap",
        takes=Takes.SWITCH,
        default=False,
        short="overlap",
        short_off="no-overlap",
        cell=("overlapped",),
    )
    # Weight gradients are accumulated by the fused kernel. Megatron-Bridge: GPTModelProvider, where it is installed.
    FUSION = AxisRow(
        name="fusion",
        takes=Takes.SWITCH,
        default=True,
        short="fusion",
        short_off="no-fusion",
    )
    # "none" for training of the whole model.
    ADAPTER = AxisRow(
        name="adapter",
        takes=Takes.CHOICE,
        default="lora",
        # Megatron-Bridge: peft/utils.py, _import_peft_class.
        choices=("lora", "canonical_lora", "dora", "vlm_lora", "none"),
        short="adapter",
        cell=("adapter.type",),
    )
    ADAPTER_TARGETS = AxisRow(
        name="adapter targets",
        takes=Takes.MODULES,
        default="linear_qkv,linear_proj,linear_fc1,linear_fc2",
        tried=("linear_qkv", "*.layers.0.*.linear_qkv"),
        short="on",
        cell=("adapter.target_modules",),
    )
    ADAPTER_RANK = AxisRow(
        name="adapter rank",
        takes=Takes.COUNT,
        default=4,
        tried=(8,),
        short="r",
    )
    ADAPTER_ALPHA = AxisRow(
        name="adapter alpha",
        takes=Takes.COUNT,
        default=4,
        tried=(16,),
        short="alpha",
    )
    # How experts share adapters.
    ADAPTER_SHARING = AxisRow(
        name="adapter sharing",
        takes=Takes.CHOICE,
        default="shared",
        choices=("shared", "per expert", "outer"),
        short="share",
        cell=("adapter.share_expert_adapters",),
    )
    # Adapters are merged into the base weights before they leave for the rollout.
    ADAPTER_MERGE = AxisRow(
        name="adapter merge",
        takes=Takes.SWITCH,
        default=False,
        short="merged",
        short_off="not-merged",
        hides=Hides(
            {"adapter B start": AMPLIFYING, "adapter": ("canonical_lora", "dora")},
            "a merged adapter leaves as part of the base weights: its own export is not entered and not compared",
            "verl: MegatronEngine.get_per_tensor_param",
        ),
    )
    # How the adapter's second matrix starts. At zero, a fault in the adapter's export cannot show in the first step.
    # Megatron-Bridge: peft/utils.py, ParallelLinearAdapter._get_init_fn.
    ADAPTER_B_START = AxisRow(
        name="adapter B start",
        takes=Takes.CHOICE,
        default="zero",
        choices=("xavier", "normal", "kaiming", "zero"),
        short="b",
    )
    # A checkpoint is saved and a second phase resumes from it.
    RESUME = AxisRow(
        name="save and resume",
        takes=Takes.SWITCH,
        default=False,
        short="resume",
        short_off="no-resume",
        cell=("resumed", "written"),
        hides=Hides(
            {"data": (2,), "overlap": (True,)},
            "with one seed for all samples every rank has the gradient of the whole batch, so one that is never"
            " averaged does not show",
            "docs/parity.md",
        ),
    )
    STEPS = AxisRow(name="steps", takes=Takes.SIZE, default=1, short="steps")
    # The run is compared with an unsharded one: the same distinct samples in both, and a rate that a step shows.
    PARITY = AxisRow(
        name="parity",
        takes=Takes.SWITCH,
        default=False,
        short="parity",
        short_off="no-parity",
    )
    # A reward model gives the scores, and not the data's own answers. It reads text through a tokenizer of its own,
    # which may need several tokens for one of the trainer's.
    REWARD_MODEL = AxisRow(
        name="reward model",
        takes=Takes.SWITCH,
        default=False,
        short="reward-model",
    )
    # Sequences are packed.
    PACKING = AxisRow(
        name="packing",
        takes=Takes.SWITCH,
        default=False,
        short="packed",
        short_off="not-packed",
    )

    @property
    def default(self) -> Value:
        """What a job has that does not set it."""
        return self.row.default

    @property
    def is_size(self) -> bool:
        """Whether a wanted value is a least one."""
        return self.row.takes in (Takes.PARALLEL_SIZE, Takes.SIZE)

    @property
    def is_parallel(self) -> bool:
        """Whether it is a size that spreads the training over GPUs."""
        return self.row.takes is Takes.PARALLEL_SIZE

    @property
    def tried(self) -> tuple[Value, ...]:
        """Values to try in a check of all settings; of a size two."""
        if self.is_size:
            return (2,)
        return self.row.tried or self.row.choices or (not self.default,)

    def invalid(self, value: Value) -> str:
        """Why no job can have this value, a clause; empty when one can."""
        match self.row.takes:
            case Takes.PARALLEL_SIZE | Takes.SIZE | Takes.COUNT:
                fits = isinstance(value, int) and not isinstance(value, bool) and value >= 1
                return "" if fits else f"{self} is a whole number of 1 or more, not {value!r}"
            case Takes.SWITCH:
                return "" if isinstance(value, bool) else f"{self} is a switch, not {value!r}"
            case Takes.CHOICE:
                choices = self.row.choices
                return "" if value in choices else f"{self} is one of {', '.join(choices)}, not {value!r}"
            case Takes.MODULES:
                fits = isinstance(value, str) and all(map(_MODULE.fullmatch, value.split(",")))
                return "" if fits else f"{self} are names of modules, not {value!r}"


_OVERRIDE = re.compile(r"\+{0,2}(?P<key>[A-Za-z_][\w.]*)=(?P<value>[^\s\[\]{}()'\"$,]*)")


def expected_of_overrides(overrides: Iterable[str]) -> dict[str, Value]:
    """What overrides alone decide, as for a script whose variables and defaults are not known here.

    An override counts when its value is one plain word or number.
    """
    found = (_OVERRIDE.fullmatch(override) for override in overrides)
    return {match["key"]: parsed(match["value"]) for match in found if match is not None}


def parsed(text: str) -> Value:
    """A word as Hydra reads it: `null`, a truth value, a number, or text."""
    if text.lower() == "null":
        return None
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def same_value(found: object, wanted: Value) -> bool:
    """Equality without Python's True == 1; 1 and 1.0 are the same number."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return bool(found == wanted)


@dataclass(frozen=True, slots=True)
class SettingsCheck:
    """What the consumer makes of the settings of one job."""

    job_id: str
    # Why it refuses them; empty when they are accepted.
    refused: str = ""
    # What the composed configuration has that the job does not expect, a sentence each.
    mismatches: tuple[str, ...] = ()
    # What of its own checks was not made, and why; empty when all were.
    unchecked: str = ""

    @property
    def accepted(self) -> bool:
        """Whether it takes the settings as the job means them."""
        return not self.refused and not self.mismatches
