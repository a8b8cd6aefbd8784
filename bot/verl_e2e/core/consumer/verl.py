"""verl, as a consumer of Megatron-Bridge: settings are variables of its wrapper and keys of its `trainer/config` tree.

The wrapper is `tests/special_e2e/run_ppo_trainer_megatron.sh`. The runner composes every row of the settings with
verl's real configuration before a GPU is used.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from verl_e2e.core.consumer.consumer import (
    AxisSetting,
    CheckpointForm,
    Comparing,
    ConfigKey,
    Consumer,
    Hook,
    HookPoint,
    Quantity,
    joined_settings,
)
from verl_e2e.core.consumer.verl_log import LOG
from verl_e2e.core.model.execution import ProcessRole
from verl_e2e.core.model.jobs import WITHOUT_REWARD_MODEL, WRAPPER_SCRIPT, SiteProfile
from verl_e2e.core.model.levels import OWN_FILES, Level
from verl_e2e.core.model.settings import Axis, Setting, Value, expected_of_overrides, parsed
from verl_e2e.core.model.space import JobPoint

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
# The default learning rate, 1e-6, moves no adapter in twenty steps.
PROBE_LEARNING_RATE = ("actor_rollout_ref.actor.optim.lr=0.0001",)

# Group-relative advantages need no critic: Bridge has no mapping of a value head for families whose output layer is the
# embedding. They need rewards that differ, and a small or random model answers no question of the data right.
WITHOUT_CRITIC: Mapping[str, str] = MappingProxyType({"ADV_ESTIMATOR": "grpo"})
# Copies of one response have the same reward, so relative to their group all advantages are zero and nothing trains
# (measured). REINFORCE++ has no critic either, and compares a response with the whole batch.
WITHOUT_CRITIC_OF_COPIES: Mapping[str, str] = MappingProxyType({"ADV_ESTIMATOR": "reinforce_plus_plus"})
SHARE_OF_DIGITS = (
    f"reward.custom_reward_function.path={OWN_FILES}/verl_e2e_runner/rewards.py",
    "reward.custom_reward_function.name=digit_share",
)

SETTINGS: Mapping[Axis, AxisSetting] = {
    # The wrapper gives the reward model INFER_TP too, and the rollout's weights are then spread like the trainer's.
    Axis.TENSOR: AxisSetting(variables=("COMMON_TP", "INFER_TP")),
    Axis.PIPELINE: AxisSetting(variables=("COMMON_PP",)),
    # Megatron-LM: parallel_state.initialize_model_parallel refuses any virtual size, also 1, without a pipeline.
    Axis.VIRTUAL_PIPELINE: AxisSetting(variables=("COMMON_VPP",), values={1: Setting({"COMMON_VPP": "null"})}),
    Axis.CONTEXT: AxisSetting(variables=("COMMON_CP",)),
    Axis.EXPERT: AxisSetting(variables=("COMMON_EP",)),
    Axis.EXPERT_TENSOR: AxisSetting(variables=("COMMON_ETP",)),
    Axis.DATA: AxisSetting(elsewhere="`NUM_GPUS`, with the other sizes"),
    Axis.FSDP: AxisSetting(variables=("USE_MEGATRON_FSDP",)),
    Axis.RECOMPUTE: AxisSetting(
        values={
            "full": Setting(overrides=FULL_RECOMPUTE),
            "selective": Setting(
                overrides=tuple(f"++{role}.{_CHANGED_MODEL}.recompute_granularity=selective" for role in _TRAINED_ROLES)
            ),
        }
    ),
    Axis.OFFLOAD: AxisSetting(variables=("ALL_OFFLOAD",)),
    # verl: MegatronEngine._resolve_override_ddp_config, then Megatron-Bridge: create_ddp_config. verl exports right
    # after a step and never waits for parameters that are gathered late.
    Axis.OVERLAP: AxisSetting(
        keys=tuple(f"++{key}" for key in _megatron("override_ddp_config.overlap_grad_reduce", _TRAINED_ROLES))
    ),
    Axis.FUSION: AxisSetting(keys=tuple(f"++{role}.{_CHANGED_MODEL}.gradient_accumulation_fusion" for role in _ROLES)),
    Axis.ADAPTER: AxisSetting(
        keys=tuple(f"{model}.lora.type" for model in _MODELS), values={"none": Setting({"LORA_RANK": "0"})}
    ),
    Axis.ADAPTER_TARGETS: AxisSetting(variables=("LORA_TARGET_MODULES",)),
    Axis.ADAPTER_RANK: AxisSetting(variables=("LORA_RANK",)),
    # LORA_RANK where it is not set.
    Axis.ADAPTER_ALPHA: AxisSetting(variables=("LORA_ALPHA",)),
    # Fields of Megatron-Bridge's LoRA that verl's configuration does not list, so they are added to it.
    Axis.ADAPTER_SHARING: AxisSetting(
        values={
            value: Setting(overrides=tuple(f"++{model}.lora.{added}" for model in _MODELS))
            for value, added in (
                ("per expert", "share_expert_adapters=False"),
                ("outer", "experts_shared_outer_loras=True"),
            )
        }
    ),
    Axis.ADAPTER_MERGE: AxisSetting(variables=("LORA_MERGE",)),
    # `model/hf_model.yaml`, handed on by get_peft_cls to Megatron-Bridge's create_peft.
    Axis.ADAPTER_B_START: AxisSetting(keys=("actor_rollout_ref.model.lora.lora_B_init_method",)),
    # verl publishes a model where it saves one.
    Axis.RESUME: AxisSetting(
        values={
            True: Setting({"SAVE_FREQ": "1"}, (*DETERMINISTIC, *TELLING_LEARNING_RATE)),
        }
    ),
    Axis.STEPS: AxisSetting(elsewhere="`TOTAL_TRAIN_STEPS`"),
    Axis.PARITY: AxisSetting(
        values={True: Setting(overrides=(*DETERMINISTIC, *DISTINCT_SAMPLES, *TELLING_LEARNING_RATE))}
    ),
    Axis.REWARD_MODEL: AxisSetting(
        values={
            True: Setting(
                overrides=("reward.reward_model.enable=True", "reward.reward_model.rollout.prompt_length=6144")
            )
        }
    ),
    Axis.PACKING: AxisSetting(variables=("USE_REMOVE_PADDING",)),
}

# Replayed routes would hide what the trainer's own routers do; a variable of every job that sets an expert size.
OWN_ROUTING = Setting({"ROUTING_REPLAY_MODE": "disabled"})


def level_setting(point: JobPoint, level: Level) -> Setting:
    """What a level sets so that its own evidence can show, and what its point needs beside the values of its axes."""
    parts = [OWN_ROUTING] if Axis.EXPERT in point.settings else []
    if level is Level.FEATURE:
        parts.append(Setting(WITHOUT_CRITIC, SHARE_OF_DIGITS))
    elif level is Level.LEARNING_SIGNAL:
        tested = {"SAVE_FREQ": "-1", "VAL_BEFORE_TRAIN": "True", "TEST_FREQ": "10"}
        parts.append(Setting({"TOTAL_TRAIN_STEPS": str(point.size(Axis.STEPS)), **tested}, PROBE_LEARNING_RATE))
    return joined_settings(parts)


# Megatron is what the wrapper is for; a run on another backend would prove nothing.
_ALWAYS: Mapping[str, Value] = {f"{role}.strategy": "megatron" for role in _ROLES}


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


# Of its part of a GPU the rollout may take this much: actor, critic and what the libraries hold have the rest. Four
# runs at 0.15 of one GPU passed side by side (bench/results/measurements.md).
_ROLLOUT_PART = 0.6
_ROLLOUT = "actor_rollout_ref.rollout"
# What a host sets of its rollout engine holds for the engine that serves the reward model too.
_OF_ENGINE = re.compile(
    rf"(\+{{0,2}}){re.escape(_ROLLOUT)}\.((?:gpu_memory_utilization|enforce_eager|engine_kwargs)\b.*)"
)


def host_overrides(site: SiteProfile, *, reward_model: bool, gpus_of_node: int, nodes: int = 1) -> tuple[str, ...]:
    """The Hydra overrides of every job: no reward model unless it is asked for, and what it may use of its hosts.

    verl may name the CPUs only of a cluster that it starts itself, which has one node.
    """
    given = []
    if nodes > 1:
        given.append(f"trainer.nnodes={nodes}")
    else:
        if site.ray_address is None:
            given.append(f"ray_kwargs.ray_init.num_cpus={site.ray_cpus_of(gpus_of_node)}")
        share = site.needs.gpu_share
        if share != 1:
            given.append(f"{_ROLLOUT}.gpu_memory_utilization={round(_ROLLOUT_PART * share, 3)}")
            given.append(f"+{_ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes={site.engine_cache_bytes}")
    if not reward_model:
        return (WITHOUT_REWARD_MODEL, *given)
    engine = filter(None, map(_OF_ENGINE.fullmatch, (*given, *site.overrides)))
    return (*given, *(f"{found[1]}reward.reward_model.rollout.{found[2]}" for found in engine))


def _number(text: str | None, usual: int = 1) -> int:
    """A size or a length; what is no number from 1 on is the usual one."""
    return int(text) if text is not None and text.isdecimal() and int(text) else usual


def filling(wrapper: Mapping[str, str]) -> tuple[str, ...]:
    """Overrides that fill the stages of a pipeline: micro-batches as short as verl takes them.

    verl fills a micro-batch up to a number of tokens, which must hold the longest sequence. By the wrapper's own number
    a short mini-batch is one micro-batch, and a pipeline then runs one stage after the other.
    """
    if _number(wrapper.get("COMMON_PP")) == 1:
        return ()
    # The wrapper takes its default for an empty length too.
    lengths = {name: WRAPPER[name].default for name in ("MAX_PROMPT_LENGTH", "MAX_RESPONSE_LENGTH")}
    longest = sum(_number(wrapper.get(name), _number(usual)) for name, usual in lengths.items())
    # verl's trainer takes the critic's number from one for inference, in training too, which no YAML file has.
    # TrainerBase in verl/trainer/ppo/v1/trainer_base.py; its older trainer takes it from that of training.
    names = ("actor_rollout_ref.actor.ppo_max_token", "critic.ppo_max_token", "++critic.ppo_infer_max_token")
    return tuple(f"{name}_len_per_gpu={longest}" for name in names)


def spread(wrapper: Mapping[str, str], *, parts: int, factor: int, experts: bool) -> Mapping[str, str]:
    """Variables in place of those of a job: trainers on `factor` times as many ranks, the rollout on `parts`."""
    sizes = {**BASE_WRAPPER, **wrapper}
    own = {"INFER_TP": str(max(int(sizes["INFER_TP"]), parts))}
    if sizes["USE_MEGATRON_FSDP"] != "True":
        own["COMMON_TP"] = str(int(sizes["COMMON_TP"]) * factor)
        if experts:
            # Experts are spread by their own size, not by the tensor size.
            own["COMMON_EP"] = str(int(sizes.get("COMMON_EP", "1")) * factor)
    return own


def any_model(overrides: Collection[str]) -> Setting:
    """What makes a job train on a model that can have no critic and answers no question right."""
    copies = {*DETERMINISTIC} <= {*overrides}
    return Setting(WITHOUT_CRITIC_OF_COPIES if copies else WITHOUT_CRITIC, SHARE_OF_DIGITS)


_LOADED = re.compile(r"Loaded (?P<what>.{1,60}?) checkpoint from (?P<path>\S+)")
# What the log calls each part of a model's state when it loads it.
_PARTS = {
    "weights": re.compile(r"adapter|model|fsdp", re.IGNORECASE),
    "optimizer state": re.compile(r"optimizer|fsdp", re.IGNORECASE),
}


def parts_loaded(text: str, step: int, model: str) -> frozenset[str]:
    """Which of `weights` and `optimizer state` of a model a line says were loaded at a step."""
    found = _LOADED.search(text)
    if found is None or f"global_step_{step}/{model}" not in found["path"]:
        return frozenset()
    return frozenset(part for part, shape in _PARTS.items() if shape.search(found["what"]))


# `model/dist_ckpt` holds the shards that a resume loads under PEFT (`model/huggingface` what it loads without),
# `optimizer/dist_ckpt` the optimizer; Megatron-FSDP puts both below `model/dist_ckpt`.
_CHECKPOINT = CheckpointForm(
    folders=MappingProxyType({"actor": "actor", "critic": "critic"}),
    adapters=re.compile(r"model/dist_ckpt/[^/]+\.distcp"),
    weights=re.compile(r"model/(?:dist_ckpt/[^/]+\.distcp|huggingface/[^/]+\.(?:safetensors|bin))"),
    optimizer=re.compile(r"optimizer/dist_ckpt/[^/]+\.distcp"),
    last="ckpt_contents.json",
    tracker="latest_checkpointed_iteration.txt",
    loaded=parts_loaded,
)


# The score is what the reward function said; `rewards` may have a KL penalty taken off.
_METRICS = {
    Quantity.POLICY_LOSS: ("actor/pg_loss", "actor/loss"),
    Quantity.VALUE_LOSS: ("critic/vf_loss", "critic/loss"),
    Quantity.GRADIENT_NORM: ("actor/grad_norm",),
    Quantity.CRITIC_GRADIENT_NORM: ("critic/grad_norm",),
    Quantity.ENTROPY: ("actor/entropy", "actor/entropy_loss"),
    Quantity.KL: ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"),
    Quantity.STEP_KL: ("actor/ppo_kl",),
    Quantity.SCORE: ("critic/score/mean", "critic/rewards/mean"),
    Quantity.REWARD: ("critic/rewards/mean",),
    Quantity.VALUE: ("critic/values/mean", "critic/vpred_mean"),
    Quantity.ADVANTAGE: (),
    Quantity.ADVANTAGE_MAX: ("critic/advantages/max",),
    Quantity.ADVANTAGE_MIN: ("critic/advantages/min",),
    Quantity.AGREEMENT: ("training/rollout_actor_probs_pearson_corr",),
    Quantity.LOG_PROBABILITY_DIFFERENCE: (),
    Quantity.PROBABILITY_RATIO: (),
    Quantity.ROLLOUT_KL: (),
    Quantity.TRAINER_LOG_PPL: ("rollout_corr/training_log_ppl",),
    Quantity.ROLLOUT_LOG_PPL: ("rollout_corr/rollout_log_ppl",),
    Quantity.LEARNING_RATE: ("actor/lr",),
    Quantity.CRITIC_LEARNING_RATE: ("critic/lr",),
    Quantity.RESPONSE_LENGTH: ("response_length/mean",),
    Quantity.CAP_SHARE: ("response_length/clip_ratio",),
    Quantity.PROMPT_LENGTH: ("prompt_length/mean",),
    Quantity.PROMPT_LENGTH_MAX: ("prompt_length/max",),
    Quantity.PROMPT_LENGTH_MIN: ("prompt_length/min",),
    Quantity.GLOBAL_STEP: ("training/global_step",),
    Quantity.EPOCH: ("training/epoch",),
    Quantity.STEP_TIME: ("timing_s/step",),
    Quantity.SAVE_TIME: ("timing_s/save_checkpoint",),
    Quantity.REWARD_TIME: ("timing_s/reward",),
    Quantity.GENERATION_TIME: ("timing_s/gen",),
    Quantity.THROUGHPUT: ("perf/throughput",),
    Quantity.MEMORY: ("perf/max_memory_allocated_gb",),
    Quantity.TOKENS: ("perf/total_num_tokens",),
    Quantity.TOKENS_OF_A_RANK: ("global_seqlen/mean",),
}

_NO_SAMPLES = (
    ("response_length/max", 0.0, "every response is empty"),
    ("response/aborted_ratio", 1.0, "every response was aborted"),
    ("perf/total_num_tokens", 0.0, "no tokens were trained on"),
    ("global_seqlen/max", 0.0, "no tokens were trained on"),
    ("rollout_corr/rollout_rs_masked_fraction", 1.0, "every token was rejected before the loss"),
    ("rollout_corr/rollout_rs_seq_masked_fraction", 1.0, "every sequence was rejected before the loss"),
)

# verl's classes of workers and servers: Ray names a process by the class of its actor.
_PROCESSES = (
    (
        ProcessRole.TRAINER,
        re.compile(r"ray::(WorkerDict|FusedWorker\w*|ActorRolloutRefWorker|DetachActorWorker|TrainingWorker)$"),
    ),
    (ProcessRole.CONTROLLER, re.compile(r"ray::(\w*TaskRunner\w*|main_task)$")),
    (ProcessRole.ROLLOUT, re.compile(r"ray::(\w*HttpServer|CheckpointEngineWorker)$|(?i:vllm|sglang)::")),
    (ProcessRole.DRIVER, re.compile(r"\S+ -m verl\.trainer\.\w+$")),
)

_HOOKS = (
    Hook(
        "verl.workers.engine.megatron.transformer_impl",
        "MegatronEngine",
        {
            "initialize": HookPoint.MODEL_BUILT,
            "optimizer_step": HookPoint.OPTIMIZER_STEP,
            "get_per_tensor_param": HookPoint.EXPORTED,
            "save_checkpoint": HookPoint.SAVED,
            "load_checkpoint": HookPoint.LOADED,
        },
    ),
    Hook(
        "verl.workers.rollout.vllm_rollout.utils",
        "vLLMColocateWorkerExtension",
        {"update_weights_from_ipc": HookPoint.RECEIVED, "_update_weights": HookPoint.RECEIVED_BUCKET},
    ),
)


def always(level: Level) -> Mapping[str, Value]:
    """Bridge and not verl's older one, and under which wrapper level 0 and level 3 train."""
    shown: dict[str, Value] = dict.fromkeys(_megatron("vanilla_mbridge"), False)
    shown |= dict.fromkeys(_megatron("use_mbridge"), True)
    if level in (Level.SMOKE, Level.MEGATRON_FSDP):
        shown |= dict.fromkeys(_megatron("use_megatron_fsdp"), level is Level.MEGATRON_FSDP)
    return shown


_KEYS = {
    ConfigKey.ADAPTER_RANK: "actor_rollout_ref.model.lora.rank",
    ConfigKey.CRITIC_ADAPTER_RANK: "critic.model.lora.rank",
    ConfigKey.ADAPTER_ALPHA: "actor_rollout_ref.model.lora.alpha",
    ConfigKey.ADAPTER_TARGETS: "actor_rollout_ref.model.lora.target_modules",
    ConfigKey.ADAPTER_MERGE: "actor_rollout_ref.model.lora.merge",
    ConfigKey.ADVANTAGES: "algorithm.adv_estimator",
    ConfigKey.ROLLOUT_ENGINE: f"{_ROLLOUT}.name",
    ConfigKey.ROLLOUT_TENSOR: f"{_ROLLOUT}.tensor_model_parallel_size",
    ConfigKey.ROLLOUT_EAGER: f"{_ROLLOUT}.enforce_eager",
    ConfigKey.IGNORE_END: f"{_ROLLOUT}.ignore_eos",
    ConfigKey.RESPONSE_LENGTH: f"{_ROLLOUT}.response_length",
    ConfigKey.SAVE_EVERY: "trainer.save_freq",
    ConfigKey.CHECKPOINTS: "trainer.default_local_dir",
    ConfigKey.STEPS: "trainer.total_training_steps",
    ConfigKey.RESUMES: "trainer.resume_mode",
    ConfigKey.NODES: "trainer.nnodes",
    ConfigKey.GPUS_PER_NODE: "trainer.n_gpus_per_node",
    ConfigKey.DIST_CHECKPOINT: f"{_ACTOR}.megatron.use_dist_checkpointing",
    ConfigKey.REWARD_FUNCTION: "reward.custom_reward_function.path",
    ConfigKey.REWARD_MODEL: "reward.reward_model.enable",
    ConfigKey.REWARD_MODEL_PATH: "reward.reward_model.model_path",
    ConfigKey.STRATEGY: f"{_ACTOR}.strategy",
    ConfigKey.SEQUENCE_PARALLEL: f"{_ACTOR}.megatron.sequence_parallel",
    ConfigKey.GATHERS_LATER: f"{_ACTOR}.megatron.override_ddp_config.overlap_param_gather",
    ConfigKey.MODEL_PATH: "actor_rollout_ref.model.path",
}

# Variables that come before those of the table of settings.
_ALSO = {"COMMON_TP": ("TRAIN_TP",), "INFER_TP": ("ROLLOUT_TP",)}
# verl sets these itself before it prints its configuration.
SET_BY_VERL = frozenset({"trainer.device", "transfer_queue.enable"})
# Scripts other than the wrapper use these names for something else: an override on the command line outranks them.
COMMON_NAMES = frozenset({"NUM_GPUS", "TEST_FREQ", "VAL_BEFORE_TRAIN"})


def variables_of_keys() -> Mapping[str, tuple[str, ...]]:
    """Each key of the configuration with the variables that decide it, the most particular one first."""
    found = {_KEYS[ConfigKey.MODEL_PATH]: ("MODEL_PATH",)}
    for name, variable in WRAPPER.items():
        for key in variable.keys:
            role = next((role for role in _ROLES if key.startswith(f"{role}.megatron.")), "").rpartition(".")[2]
            own = [name.replace("COMMON", role.upper())] if role and name.startswith("COMMON_") else []
            found[key] = (*own, *_ALSO.get(name, ()), name)
    return found | {_KEYS[ConfigKey.CRITIC_ADAPTER_RANK]: ("CRITIC_LORA_RANK",)}


VARIABLES_OF_KEYS = variables_of_keys()

# Where the recorder's redaction puts the files of verl-e2e itself; a run folder is redacted.
# The second is where it lay when the packages were called `bot` and `runners`: older folders are still judged.
_OWN_REWARDS = frozenset({f"{OWN_FILES}/verl_e2e_runner/rewards.py", f"{OWN_FILES}/runners/rewards.py"})


def own_reward(given: Mapping[str, str]) -> str:
    """The name of the function of ours that the overrides choose; empty where they choose another one."""
    path, name = (given.get(item.partition("=")[0], "") for item in SHARE_OF_DIGITS)
    return name if path in _OWN_REWARDS else ""


_COMPARING = Comparing(
    parity=frozenset({*DETERMINISTIC, *DISTINCT_SAMPLES}),
    sizes=((re.compile(r"[A-Z]+_(TP|PP|CP|EP|ETP)"), "1"), (re.compile(r"[A-Z]+_VPP"), "null")),
    gpus="NUM_GPUS",
    size_keys=re.compile(r"\+{0,2}([\w.]*_parallel_size|trainer\.(n_gpus_per_node|nnodes))"),
    filling=re.compile(r"\+{0,2}[\w.]+\.ppo_(infer_)?max_token_len_per_gpu"),
    places=(
        re.compile(
            r".*_(PATH|FILES|OFFLOAD)|TOTAL_TRAIN_STEPS|SAVE_FREQ|TEST_FREQ|VAL_BEFORE_TRAIN|RESUME_MODE|PROFILE_.*"
            r"|VERL_USE_UV|MODEL_ID|SKIP_SAVE_HF_MODEL"
        ),
        re.compile(
            r"\+{0,2}(trainer\.(?!n_gpus_per_node|nnodes)|ray_kwargs\.|data\.(train|val)_files|global_profiler\."
            r"|[\w.]*(_offload|gpu_memory_utilization|kv_cache_memory_bytes|num_workers|checkpoint\.[\w.]+|_path)(?==))"
        ),
    ),
    scales=(
        re.compile(r".*_(TP|PP|VPP|CP|EP|ETP)|NUM_GPUS"),
        re.compile(
            r"\+{0,2}[\w.]*(parallel_size|\.optim\.lr|n_gpus_per_node|nnodes|ppo_(?:infer_)?max_token_len_per_gpu)="
        ),
    ),
    paths=(re.compile(r".*_(PATH|FILES)|MODEL_ID"), re.compile(r"\+{0,2}(data\.(train|val)_files|[\w.]*_path)=")),
    lengths=("MAX_PROMPT_LENGTH", "MAX_RESPONSE_LENGTH"),
    older_bridge=Setting({"VANILLA_MBRIDGE": "True"}),
)

VERL = Consumer(
    name="verl",
    title="verl",
    repository="verl-project/verl",
    package="verl",
    callers="verl/",
    entry_point="verl.trainer.main_ppo",
    script=WRAPPER_SCRIPT,
    base=BASE_WRAPPER,
    settings=SETTINGS,
    level_setting=level_setting,
    counts=lambda gpus_of_node, steps: Setting({"NUM_GPUS": str(gpus_of_node), "TOTAL_TRAIN_STEPS": str(steps)}),
    spread=spread,
    trains_critic=lambda wrapper: wrapper.get("ADV_ESTIMATOR", WRAPPER["ADV_ESTIMATOR"].default) == "gae",
    filling=filling,
    host=host_overrides,
    any_model=any_model,
    own_choices=frozenset({*WITHOUT_CRITIC, "LORA_MERGE", *SHARE_OF_DIGITS}),
    refused_levels=MappingProxyType({}),
    refused=lambda _axis, _value: None,
    last_step="TOTAL_TRAIN_STEPS",
    resumed={"RESUME_MODE": "auto"},
    saves=lambda job: {**job.site.wrapper, **job.wrapper}.get("SAVE_FREQ", "-1") != "-1",
    checkpoint=_CHECKPOINT,
    expected=expected_config,
    builders=1,
    divides_sequences=False,
    models=MappingProxyType(
        {
            "actor": "actor_rollout_ref.actor.megatron",
            "ref": "actor_rollout_ref.ref.megatron",
            "critic": "critic.megatron",
        }
    ),
    keys=MappingProxyType(_KEYS),
    always=always,
    proves="vanilla_mbridge=False (actor, ref, critic)",
    shown=(
        ("adv_estimator", ConfigKey.ADVANTAGES),
        ("rollout", ConfigKey.ROLLOUT_ENGINE),
        ("response_length", ConfigKey.RESPONSE_LENGTH),
        ("save_freq", ConfigKey.SAVE_EVERY),
    ),
    comparing=_COMPARING,
    never_saves=Setting({"SAVE_FREQ": "-1", "RESUME_MODE": "disable"}),
    log=LOG,
    metrics=MappingProxyType(_METRICS),
    of_updates=("actor/pg_loss", "actor/loss", "actor/grad_norm", "actor/pg_clipfrac", "actor/ppo_kl", "actor/kl_loss"),
    of_training=(
        *("critic/grad_norm", "critic/vf_loss", "timing_s/update_critic", "timing_s/old_log_prob", "actor/entropy"),
    ),
    no_samples=_NO_SAMPLES,
    own_reward=own_reward,
    of_rl=("actor/", "critic/", "rollout", "response", "prompt_length/", "training/", "reward", "timing_s/gen"),
    roles=_PROCESSES,
    hooks=_HOOKS,
)
