"""The settings of a job, one row each: what it takes, what holds without it, what it is in verl and in a job's name.

The wrapper is `tests/special_e2e/run_ppo_trainer_megatron.sh`; keys are those of verl's `trainer/config` tree. Each
row names its source; `runners` compose it with verl's real configuration before a GPU is used. Which settings go
together is in `verl_e2e.core.model.space`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from types import MappingProxyType

# A size, a switch or a name; of the model's configuration also a list of these, or null.
Value = bool | int | float | str | None
FieldValue = Value | tuple[Value, ...]

_ACTOR, _REF, _CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"
_ROLES = (_ACTOR, _REF, _CRITIC)
# The reference policy is not wrapped for data parallelism (verl: MegatronEngine._build_megatron_module).
_TRAINED_ROLES = (_ACTOR, _CRITIC)
_MODELS = ("actor_rollout_ref.model", "critic.model")


def _megatron(key: str, roles: Iterable[str] = _ROLES) -> tuple[str, ...]:
    return tuple(f"{role}.megatron.{key}" for role in roles)


@dataclass(frozen=True, slots=True)
class WrapperVariable:
    """A variable of the wrapper."""

    # The keys of the resolved configuration that it decides.
    keys: tuple[str, ...] = ()
    # What Level 0 sets; every other job overrides some of these. None: it does not set it.
    base: str | None = None
    # What the wrapper does when it is not set, where a run must show it: a changed default breaks the run's proof
    # instead of weakening the run.
    default: str | None = None


WRAPPER: Mapping[str, WrapperVariable] = {
    "VERL_USE_UV": WrapperVariable(base="0"),
    "PROFILE_STEPS": WrapperVariable(base="null"),
    "ENGINE": WrapperVariable(("actor_rollout_ref.rollout.name",), base="vllm", default="vllm"),
    "USE_MBRIDGE": WrapperVariable(_megatron("use_mbridge"), base="True"),
    "VANILLA_MBRIDGE": WrapperVariable(_megatron("vanilla_mbridge", (_ACTOR, _REF)), base="False"),
    "VALUE_VANILLA_MBRIDGE": WrapperVariable(_megatron("vanilla_mbridge", (_CRITIC,)), base="False"),
    "LORA_RANK": WrapperVariable(("actor_rollout_ref.model.lora.rank", "critic.model.lora.rank"), base="4"),
    "USE_MEGATRON_FSDP": WrapperVariable(_megatron("use_megatron_fsdp"), base="False"),
    "COMMON_PP": WrapperVariable(_megatron("pipeline_model_parallel_size"), base="1"),
    "COMMON_VPP": WrapperVariable(_megatron("virtual_pipeline_model_parallel_size"), base="null"),
    "COMMON_CP": WrapperVariable(_megatron("context_parallel_size"), base="1"),
    "COMMON_TP": WrapperVariable(_megatron("tensor_model_parallel_size"), base="1"),
    "INFER_TP": WrapperVariable(("actor_rollout_ref.rollout.tensor_model_parallel_size",), base="1"),
    "ALL_OFFLOAD": WrapperVariable(
        (
            *_megatron("param_offload"),
            *_megatron("grad_offload", _TRAINED_ROLES),
            *_megatron("optimizer_offload", _TRAINED_ROLES),
        ),
        base="False",
    ),
    "TOTAL_TRAIN_STEPS": WrapperVariable(("trainer.total_training_steps",), base="1"),
    "SAVE_FREQ": WrapperVariable(("trainer.save_freq",), base="-1"),
    "VAL_BEFORE_TRAIN": WrapperVariable(("trainer.val_before_train",), base="False"),
    "TEST_FREQ": WrapperVariable(("trainer.test_freq",), base="-1"),
    "ADV_ESTIMATOR": WrapperVariable(("algorithm.adv_estimator",), default="gae"),
    "COMMON_EP": WrapperVariable(_megatron("expert_model_parallel_size"), default="1"),
    "COMMON_ETP": WrapperVariable(_megatron("expert_tensor_parallel_size"), default="1"),
    "MAX_PROMPT_LENGTH": WrapperVariable(
        ("data.max_prompt_length", "actor_rollout_ref.rollout.prompt_length"), default="512"
    ),
    "MAX_RESPONSE_LENGTH": WrapperVariable(
        ("data.max_response_length", "actor_rollout_ref.rollout.response_length"), default="512"
    ),
    "RESUME_MODE": WrapperVariable(("trainer.resume_mode",), default="disable"),
    "LORA_ALPHA": WrapperVariable(("actor_rollout_ref.model.lora.alpha", "critic.model.lora.alpha")),
    # The wrapper leaves the critic alone here.
    "LORA_MERGE": WrapperVariable(("actor_rollout_ref.model.lora.merge",)),
    "USE_REMOVE_PADDING": WrapperVariable(("actor_rollout_ref.model.use_remove_padding",)),
    "NUM_GPUS": WrapperVariable(("trainer.n_gpus_per_node",)),
    "ROUTING_REPLAY_MODE": WrapperVariable((f"{_ACTOR}.megatron.router_replay.mode",)),
}

BASE_WRAPPER: Mapping[str, str] = MappingProxyType(
    {name: variable.base for name, variable in WRAPPER.items() if variable.base is not None}
)

_CHANGED_MODEL = "megatron.override_transformer_config"
# levels.md: full recompute is how a lost gradient hook shows, and it is off by default.
FULL_RECOMPUTE = tuple(
    f"++{role}.{_CHANGED_MODEL}.{key}"
    for role in _TRAINED_ROLES
    for key in ("recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1")
)
# Every request of the rollout gets the same seed in every run: two runs of the same weights draw the same samples.
DETERMINISTIC = ("actor_rollout_ref.rollout.full_determinism=True",)
# One step has to move the adapter so far that a lost one shows in the next; the default, 1e-6, does not.
TELLING_LEARNING_RATE = ("actor_rollout_ref.actor.optim.lr=0.001",)
# With one seed for all, the responses to a prompt are copies of each other, and verl's balancing gives every rank of
# data parallelism one of each: every rank then has the gradient of the whole batch, and one that is never averaged
# cannot show. So each prompt gets one response, as many in all as before; in one mini-batch, for which sequences share
# one is chance.
DISTINCT_SAMPLES = (
    "actor_rollout_ref.rollout.n=1",
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
)
# The median over fewer steps would be one batch of unlucky samples.
PARITY_STEPS = 3
# Megatron-Bridge: CanonicalLoRA, which refuses the fused names that the wrapper gives by default.
CANONICAL_TARGETS = "linear_q,linear_k,linear_v,linear_proj,linear_fc1_up,linear_fc1_gate,linear_fc2"


@dataclass(frozen=True, slots=True)
class Setting:
    """What one value of one axis is in verl."""

    # Variables of the wrapper.
    wrapper: Mapping[str, str] = field(default_factory=dict)
    # Hydra overrides, in order.
    overrides: tuple[str, ...] = ()


# Replayed routes would hide what the trainer's own routers do; a variable of every job that sets an expert size.
OWN_ROUTING = Setting({"ROUTING_REPLAY_MODE": "disabled"})


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
    # What a job has that does not set it: the wrapper's and the base's values, else those of verl's configuration
    # (`engine/megatron.yaml`, `model/hf_model.yaml`) and of Megatron-LM.
    default: Value
    # The values of a choice.
    choices: tuple[str, ...] = ()
    # Values to try in a check of all settings, where neither `choices` nor the kind gives any.
    tried: tuple[Value, ...] = ()
    # The wrapper's variables that take its value.
    variables: tuple[str, ...] = ()
    # The keys that take its value, where the wrapper has no variable.
    keys: tuple[str, ...] = ()
    # What single values are in verl, where that is not the value itself in `variables` and `keys`.
    in_verl: Mapping[Value, Setting] = field(default_factory=dict)
    # What carries it out, where that is neither a variable nor an override.
    elsewhere: str = ""
    # In the name of a job: before the value, or in the place of a switch that is on; empty: the value alone.
    short: str = ""
    # In the name of a job, for a switch that is off.
    short_off: str = ""
    # The fields of a rehearsal's cell that say it: one with the value, or some that switch it on.
    cell: tuple[str, ...] = ()
    hides: Hides | None = None


# The starts of an adapter's second matrix with which it changes what the model computes.
AMPLIFYING = ("xavier", "normal", "kaiming")


# A name that the wrapper and Hydra leave as it is.
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

    # COMMON_TP and INFER_TP are set together: the wrapper gives the reward model INFER_TP too, and the rollout's
    # weights are then spread like the trainer's.
    TENSOR = AxisRow(
        name="tensor",
        takes=Takes.PARALLEL_SIZE,
        default=1,
        variables=("COMMON_TP", "INFER_TP"),
        short="tp",
        cell=("tp",),
        hides=Hides(
            {"expert tensor": (2,)},
            "with equal tensor sizes the one of the experts and the one of the other layers could be swapped unseen",
            "Megatron-LM: parallel_state.initialize_model_parallel",
            value=2,
        ),
    )
    PIPELINE = AxisRow(
        name="pipeline", takes=Takes.PARALLEL_SIZE, default=1, variables=("COMMON_PP",), short="pp", cell=("pp",)
    )
    # Model chunks on each pipeline rank; 1 means none.
    VIRTUAL_PIPELINE = AxisRow(
        name="virtual pipeline",
        takes=Takes.PARALLEL_SIZE,
        default=1,
        variables=("COMMON_VPP",),
        # Megatron-LM: parallel_state.initialize_model_parallel refuses any virtual size, also 1, without a pipeline.
        in_verl={1: Setting({"COMMON_VPP": "null"})},
        short="vpp",
        cell=("vpp",),
    )
    CONTEXT = AxisRow(
        name="context", takes=Takes.PARALLEL_SIZE, default=1, variables=("COMMON_CP",), short="cp", cell=("cp",)
    )
    EXPERT = AxisRow(
        name="expert", takes=Takes.PARALLEL_SIZE, default=1, variables=("COMMON_EP",), short="ep", cell=("ep",)
    )
    EXPERT_TENSOR = AxisRow(
        name="expert tensor",
        takes=Takes.PARALLEL_SIZE,
        default=1,
        variables=("COMMON_ETP",),
        short="etp",
        cell=("etp",),
    )
    DATA = AxisRow(
        name="data",
        takes=Takes.PARALLEL_SIZE,
        default=1,
        elsewhere="`NUM_GPUS`, with the other sizes",
        short="dp",
        cell=("dp",),
    )
    # Megatron-FSDP instead of Megatron's DDP.
    FSDP = AxisRow(
        name="megatron fsdp",
        takes=Takes.SWITCH,
        default=False,
        variables=("USE_MEGATRON_FSDP",),
        short="fsdp",
        short_off="ddp",
    )
    RECOMPUTE = AxisRow(
        name="recompute",
        takes=Takes.CHOICE,
        default="none",
        # Megatron-LM: TransformerConfig.__post_init__.
        choices=("none", "full", "selective"),
        in_verl={
            "full": Setting(overrides=FULL_RECOMPUTE),
            "selective": Setting(
                overrides=tuple(f"++{role}.{_CHANGED_MODEL}.recompute_granularity=selective" for role in _TRAINED_ROLES)
            ),
        },
        short="recompute",
        cell=("settings.recompute_granularity",),
    )
    # Parameters, gradients and optimizer state leave the GPU between phases.
    OFFLOAD = AxisRow(
        name="offload",
        takes=Takes.SWITCH,
        default=False,
        variables=("ALL_OFFLOAD",),
        short="offload",
        short_off="no-offload",
    )
    # Gradients are reduced during the backward pass. verl: MegatronEngine._resolve_override_ddp_config, then
    # Megatron-Bridge: create_ddp_config. Parameters are not gathered late (overlap_param_gather): verl exports right
    # after a step and never waits for that.
    OVERLAP = AxisRow(
        name="overlap",
        takes=Takes.SWITCH,
        default=False,
        keys=tuple(f"++{key}" for key in _megatron("override_ddp_config.overlap_grad_reduce", _TRAINED_ROLES)),
        short="overlap",
        short_off="no-overlap",
        cell=("overlapped",),
    )
    # Weight gradients are accumulated by the fused kernel. Megatron-Bridge: GPTModelProvider, where it is installed.
    FUSION = AxisRow(
        name="fusion",
        takes=Takes.SWITCH,
        default=True,
        keys=tuple(f"++{role}.{_CHANGED_MODEL}.gradient_accumulation_fusion" for role in _ROLES),
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
        keys=tuple(f"{model}.lora.type" for model in _MODELS),
        in_verl={"none": Setting({"LORA_RANK": "0"})},
        short="adapter",
        cell=("adapter.type",),
    )
    ADAPTER_TARGETS = AxisRow(
        name="adapter targets",
        takes=Takes.MODULES,
        default="linear_qkv,linear_proj,linear_fc1,linear_fc2",
        tried=("linear_qkv", "*.layers.0.*.linear_qkv"),
        variables=("LORA_TARGET_MODULES",),
        short="on",
        cell=("adapter.target_modules",),
    )
    ADAPTER_RANK = AxisRow(
        name="adapter rank",
        takes=Takes.COUNT,
        default=int(BASE_WRAPPER["LORA_RANK"]),
        tried=(8,),
        variables=("LORA_RANK",),
        short="r",
    )
    # The wrapper's LORA_ALPHA is LORA_RANK where it is not set.
    ADAPTER_ALPHA = AxisRow(
        name="adapter alpha",
        takes=Takes.COUNT,
        default=int(BASE_WRAPPER["LORA_RANK"]),
        tried=(16,),
        variables=("LORA_ALPHA",),
        short="alpha",
    )
    # How experts share adapters.
    ADAPTER_SHARING = AxisRow(
        name="adapter sharing",
        takes=Takes.CHOICE,
        default="shared",
        choices=("shared", "per expert", "outer"),
        # Fields of Megatron-Bridge's LoRA that verl's configuration does not list, so they are added to it.
        in_verl={
            value: Setting(overrides=tuple(f"++{model}.lora.{added}" for model in _MODELS))
            for value, added in (
                ("per expert", "share_expert_adapters=False"),
                ("outer", "experts_shared_outer_loras=True"),
            )
        },
        short="share",
        cell=("adapter.share_expert_adapters",),
    )
    # Adapters are merged into the base weights before they leave for the rollout.
    ADAPTER_MERGE = AxisRow(
        name="adapter merge",
        takes=Takes.SWITCH,
        default=False,
        variables=("LORA_MERGE",),
        short="merged",
        short_off="not-merged",
        hides=Hides(
            {"adapter B start": AMPLIFYING, "adapter": ("canonical_lora", "dora")},
            "a merged adapter leaves as part of the base weights: its own export is not entered and not compared",
            "verl: MegatronEngine.get_per_tensor_param",
        ),
    )
    # How the adapter's second matrix starts. At zero, a fault in the adapter's export cannot show in the first step.
    # verl: `model/hf_model.yaml`, handed on by get_peft_cls to Megatron-Bridge's create_peft.
    # Megatron-Bridge: peft/utils.py, ParallelLinearAdapter._get_init_fn.
    ADAPTER_B_START = AxisRow(
        name="adapter B start",
        takes=Takes.CHOICE,
        default="zero",
        choices=("xavier", "normal", "kaiming", "zero"),
        keys=("actor_rollout_ref.model.lora.lora_B_init_method",),
        short="b",
    )
    # A checkpoint is saved and a second phase resumes from it. verl publishes a model where it saves one.
    RESUME = AxisRow(
        name="save and resume",
        takes=Takes.SWITCH,
        default=False,
        in_verl={
            True: Setting({"SAVE_FREQ": "1"}, (*DETERMINISTIC, *TELLING_LEARNING_RATE)),
        },
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
    STEPS = AxisRow(name="steps", takes=Takes.SIZE, default=1, elsewhere="`TOTAL_TRAIN_STEPS`", short="steps")
    # The run is compared with an unsharded one: the same distinct samples in both, and a rate that a step shows.
    PARITY = AxisRow(
        name="parity",
        takes=Takes.SWITCH,
        default=False,
        in_verl={True: Setting(overrides=(*DETERMINISTIC, *DISTINCT_SAMPLES, *TELLING_LEARNING_RATE))},
        short="parity",
        short_off="no-parity",
    )
    # A reward model gives the scores, and not the data's own answers. It reads text through a tokenizer of its own,
    # which may need several tokens for one of the trainer's.
    REWARD_MODEL = AxisRow(
        name="reward model",
        takes=Takes.SWITCH,
        default=False,
        in_verl={
            True: Setting(
                overrides=("reward.reward_model.enable=True", "reward.reward_model.rollout.prompt_length=6144")
            )
        },
        short="reward-model",
    )
    # Sequences are packed.
    PACKING = AxisRow(
        name="packing",
        takes=Takes.SWITCH,
        default=False,
        variables=("USE_REMOVE_PADDING",),
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

    def in_verl(self, value: Value) -> Setting:
        """What a valid value is in verl; nothing where other parts of a job carry it out."""
        if value in self.row.in_verl:
            return self.row.in_verl[value]
        text = str(value)
        if self.row.takes is Takes.MODULES:
            text = "[" + ",".join(f"'{name}'" for name in text.split(",")) + "]"
        wrapper = dict.fromkeys(self.row.variables, text)
        return Setting(wrapper, tuple(f"{key}={text}" for key in self.row.keys))


# Megatron is what the wrapper is for; a run on another backend would prove nothing.
_ALWAYS: Mapping[str, Value] = {f"{role}.strategy": "megatron" for role in _ROLES}

_OVERRIDE = re.compile(r"\+{0,2}(?P<key>[A-Za-z_][\w.]*)=(?P<value>[^\s\[\]{}()'\"$,]*)")


def expected_config(wrapper: Mapping[str, str], overrides: Iterable[str], *, phases: int = 1) -> dict[str, Value]:
    """Dotted keys and the values that the run must print.

    An override counts when its value is one plain word or number. With several `phases`, what differs between
    them (steps, resume mode) is left to the evidence of the steps themselves.
    """
    expected = dict(_ALWAYS)
    for name, variable in WRAPPER.items():
        asked = wrapper.get(name, variable.default)
        if asked is not None and not (phases > 1 and name in {"TOTAL_TRAIN_STEPS", "RESUME_MODE"}):
            expected.update(dict.fromkeys(variable.keys, parsed(asked)))
    return dict(sorted({**expected, **expected_of_overrides(overrides)}.items()))


def expected_of_overrides(overrides: Iterable[str]) -> dict[str, Value]:
    """What overrides alone decide, as for a script whose variables and defaults are not known here."""
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
    """What verl makes of the settings of one job."""

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
