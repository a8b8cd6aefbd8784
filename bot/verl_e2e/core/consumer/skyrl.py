"""SkyRL, as a consumer of Megatron-Bridge: settings are keys of its configuration, `skyrl/train/config/config.py`.

SkyRL has no script that reads variables. The variables of a job are the last parts of keys in capitals, each for one or
more keys, and its command is `KEY=VALUE` for every one of them and for the overrides of the job. Keys that SkyRL does
not know end its start; the runner's preflight asks its own parser before a GPU is used.
"""

import re
from collections.abc import Iterable, Mapping
from functools import partial
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
    Refusal,
    joined_settings,
    on_more_ranks,
)
from verl_e2e.core.consumer.skyrl_log import SKYRL_LOG
from verl_e2e.core.model.execution import ProcessRole
from verl_e2e.core.model.jobs import Job, Patch, SiteProfile, Substitution
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis, Setting, Value, expected_of_overrides, parsed
from verl_e2e.core.model.space import JobPoint

_POLICY, _REF = "trainer.policy.megatron_config", "trainer.ref.megatron_config"
_ENGINE = "generator.inference_engine"
_KWARGS = f"{_POLICY}.transformer_config_kwargs"


def _both(key: str) -> tuple[str, ...]:
    return (f"{_POLICY}.{key}", f"{_REF}.{key}")


# The variables of a job: the keys that take the value of each, and what Level 0 sets.
_VARIABLES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "TENSOR_MODEL_PARALLEL_SIZE": (_both("tensor_model_parallel_size"), "1"),
    "PIPELINE_MODEL_PARALLEL_SIZE": (_both("pipeline_model_parallel_size"), "1"),
    "CONTEXT_PARALLEL_SIZE": (_both("context_parallel_size"), "1"),
    "EXPERT_MODEL_PARALLEL_SIZE": (_both("expert_model_parallel_size"), "1"),
    "EXPERT_TENSOR_PARALLEL_SIZE": (_both("expert_tensor_parallel_size"), "1"),
    "ENGINE_TENSOR_PARALLEL_SIZE": ((f"{_ENGINE}.tensor_parallel_size",), "1"),
    "NUM_GPUS_PER_NODE": (tuple(f"trainer.placement.{model}_num_gpus_per_node" for model in ("policy", "ref")), "1"),
    "MAX_TRAINING_STEPS": (("trainer.max_training_steps",), "1"),
    "CKPT_INTERVAL": (("trainer.ckpt_interval",), "-1"),
    "RESUME_MODE": (("trainer.resume_mode",), "none"),
    "LORA_TYPE": ((f"{_POLICY}.lora_config.lora_type",), "lora"),
    # Unmerged it goes to vLLM as it is, whose least rank, after 1, is 8 (LoRAConfig.max_lora_rank).
    "LORA_RANK": (("trainer.policy.model.lora.rank",), "8"),
    "LORA_ALPHA": (("trainer.policy.model.lora.alpha",), "8"),
    # SkyRL's own default: the adapter leaves as a part of the base weights.
    "MERGE_LORA": ((f"{_POLICY}.lora_config.merge_lora",), "true"),
    # With adapters in the engine SkyRL switches it off itself (SkyRLTrainConfig.__post_init__).
    "ENFORCE_EAGER": ((f"{_ENGINE}.enforce_eager",), "true"),
    "GRADIENT_CHECKPOINTING": (("trainer.gradient_checkpointing",), "false"),
    # SkyRL's own default, and what context parallelism asks for (validate_megatron_cfg).
    "REMOVE_MICROBATCH_PADDING": (("trainer.remove_microbatch_padding",), "true"),
    "OVERLAP_GRAD_REDUCE": ((f"{_POLICY}.ddp_config.overlap_grad_reduce",), "false"),
    "GRADIENT_ACCUMULATION_FUSION": ((f"{_KWARGS}.gradient_accumulation_fusion",), "false"),
    "EVAL_BEFORE_TRAIN": (("trainer.eval_before_train",), "false"),
    "EVAL_INTERVAL": (("trainer.eval_interval",), "-1"),
}
_BASE: Mapping[str, str] = MappingProxyType({name: base for name, (_, base) in _VARIABLES.items()})

# An environment of ours, registered by the entry module that SkyRL hands over to: see the runner's instrumentation.
ENTRY_KEY = "trainer.override_entrypoint"
REWARD_ENVIRONMENT = "digit_share"
# What every job sets. One mini-batch is one optimizer step of a training step.
EVERY_JOB = (
    "trainer.strategy=megatron",
    "trainer.algorithm.advantage_estimator=grpo",
    "trainer.algorithm.use_kl_loss=true",
    f"environment.env_class={REWARD_ENVIRONMENT}",
    "trainer.placement.colocate_all=true",
    f"{_ENGINE}.backend=vllm",
    f"{_ENGINE}.weight_sync_backend=nccl",
    f"{_ENGINE}.enable_ray_prometheus_stats=false",
    f"{_ENGINE}.engine_init_kwargs.attention_backend=TRITON_ATTN",
    f"{_ENGINE}.engine_init_kwargs.disable_custom_all_reduce=true",
    "generator.batched=true",
    "generator.n_samples_per_prompt=4",
    "generator.sampling_params.max_generate_length=64",
    "trainer.max_prompt_length=256",
    "trainer.flash_attn=false",
    "trainer.train_batch_size=16",
    "trainer.policy_mini_batch_size=16",
    "trainer.micro_forward_batch_size_per_gpu=4",
    "trainer.micro_train_batch_size_per_gpu=4",
    "trainer.epochs=20",
    "trainer.hf_save_interval=-1",
    "trainer.logger=console",
    "trainer.seed=42",
    "trainer.enable_ray_gpu_monitor=false",
)
# Of a whole GPU the engine may take this part.
_ENGINE_PART = 0.3
# One step has to move the weights so far that a lost one shows in the next; the default, 1e-6, does not.
_TELLING_LEARNING_RATE = ("trainer.policy.optimizer_config.lr=0.001",)
_PROBE_LEARNING_RATE = ("trainer.policy.optimizer_config.lr=0.0001",)

_SETTINGS: Mapping[Axis, AxisSetting] = {
    Axis.TENSOR: AxisSetting(variables=("TENSOR_MODEL_PARALLEL_SIZE", "ENGINE_TENSOR_PARALLEL_SIZE")),
    Axis.PIPELINE: AxisSetting(variables=("PIPELINE_MODEL_PARALLEL_SIZE",)),
    Axis.VIRTUAL_PIPELINE: AxisSetting(elsewhere="always 1"),
    Axis.CONTEXT: AxisSetting(variables=("CONTEXT_PARALLEL_SIZE",)),
    Axis.EXPERT: AxisSetting(variables=("EXPERT_MODEL_PARALLEL_SIZE",)),
    Axis.EXPERT_TENSOR: AxisSetting(variables=("EXPERT_TENSOR_PARALLEL_SIZE",)),
    Axis.DATA: AxisSetting(elsewhere="`NUM_GPUS_PER_NODE`, with the other sizes"),
    Axis.FSDP: AxisSetting(elsewhere="never"),
    Axis.RECOMPUTE: AxisSetting(
        values={
            "none": Setting({"GRADIENT_CHECKPOINTING": "false"}),
            "full": Setting({"GRADIENT_CHECKPOINTING": "true"}),
            "selective": Setting(
                {"GRADIENT_CHECKPOINTING": "true"},
                (
                    f"{_KWARGS}.recompute_granularity=selective",
                    f"{_KWARGS}.recompute_method=null",
                    f"{_KWARGS}.recompute_num_layers=null",
                ),
            ),
        }
    ),
    # Models that share GPUs with the engine always leave them between phases (WorkerDispatch).
    Axis.OFFLOAD: AxisSetting(keys=("trainer.placement.colocate_all",), values={True: Setting()}, elsewhere="always"),
    Axis.OVERLAP: AxisSetting(variables=("OVERLAP_GRAD_REDUCE",)),
    Axis.FUSION: AxisSetting(variables=("GRADIENT_ACCUMULATION_FUSION",)),
    Axis.ADAPTER: AxisSetting(variables=("LORA_TYPE",), values={"none": Setting({"LORA_RANK": "0"})}),
    Axis.ADAPTER_TARGETS: AxisSetting(keys=("trainer.policy.model.lora.target_modules",)),
    Axis.ADAPTER_RANK: AxisSetting(variables=("LORA_RANK",)),
    Axis.ADAPTER_ALPHA: AxisSetting(variables=("LORA_ALPHA",)),
    Axis.ADAPTER_SHARING: AxisSetting(elsewhere="always shared"),
    Axis.ADAPTER_MERGE: AxisSetting(
        values={
            True: Setting({"MERGE_LORA": "true", "ENFORCE_EAGER": "true"}),
            False: Setting({"MERGE_LORA": "false", "ENFORCE_EAGER": "false"}),
        }
    ),
    Axis.ADAPTER_B_START: AxisSetting(elsewhere="always zero"),
    Axis.RESUME: AxisSetting(values={True: Setting({"CKPT_INTERVAL": "1"}, _TELLING_LEARNING_RATE)}),
    Axis.STEPS: AxisSetting(elsewhere="`MAX_TRAINING_STEPS`"),
    # The batch that was trained is written too, so that another layout can train the same one.
    Axis.PARITY: AxisSetting(
        values={True: Setting(overrides=("trainer.dump_data_batch=true", *_TELLING_LEARNING_RATE))}
    ),
    Axis.REWARD_MODEL: AxisSetting(elsewhere="never"),
    Axis.PACKING: AxisSetting(variables=("REMOVE_MICROBATCH_PADDING",)),
}

_CONFIG = "skyrl/train/config/config.py: validate_dict_keys_against_dataclass"
_LORA = "skyrl/backends/skyrl_train/workers/megatron/megatron_worker.py: configure_lora"
# What SkyRL's own code says of what it does not do.
_WITHOUT_FSDP = Refusal(
    "SkyRL refuses it: Invalid fields {'use_megatron_fsdp'} for MegatronDDPConfig", f"{_CONFIG} (MegatronDDPConfig)"
)
_REFUSED_LEVELS: Mapping[Level, Refusal] = MappingProxyType({Level.MEGATRON_FSDP: _WITHOUT_FSDP})
AllowedValues = Mapping[Axis, tuple[tuple[Value, ...], Refusal]]
_ALLOWED: AllowedValues = {
    Axis.VIRTUAL_PIPELINE: (
        (1,),
        Refusal(
            "SkyRL refuses it: Invalid fields {'virtual_pipeline_model_parallel_size'} for MegatronConfig; its"
            " checkpoints say `Megatron virtual pipeline parallel is not yet supported`",
            f"{_CONFIG}; megatron_strategy.py: save_checkpoint",
        ),
    ),
    Axis.FSDP: ((False,), _WITHOUT_FSDP),
    Axis.ADAPTER: (
        ("lora", "canonical_lora", "none"),
        Refusal("SkyRL's configure_lora makes no adapter of this type, and its parser does not say so", _LORA),
    ),
    Axis.ADAPTER_SHARING: (
        ("shared",),
        Refusal("SkyRL refuses it: Invalid fields {'share_expert_adapters'} for SkyRLLoraConfig", _CONFIG),
    ),
    Axis.ADAPTER_B_START: (
        ("zero",),
        Refusal("SkyRL refuses it: Invalid fields {'lora_B_init_method'} for SkyRLLoraConfig", _LORA),
    ),
    Axis.REWARD_MODEL: (
        (False,),
        Refusal("SkyRL refuses it: Invalid fields {'reward'} for SkyRLTrainConfig; environments score", _CONFIG),
    ),
}


def refusal_of(table: AllowedValues, axis: Axis, value: Value) -> Refusal | None:
    """Why a consumer does not take this value of an axis; None where it does."""
    allowed = table.get(axis)
    return None if allowed is None or value in allowed[0] else allowed[1]


def setting_of_level(point: JobPoint, level: Level) -> Setting:
    """What a level sets so that its own evidence can show."""
    parts = []
    if point.size(Axis.CONTEXT) > 1:
        parts.append(Setting({"REMOVE_MICROBATCH_PADDING": "true"}))
    if level is Level.LEARNING_SIGNAL:
        evaluated = {"CKPT_INTERVAL": "-1", "EVAL_BEFORE_TRAIN": "true", "EVAL_INTERVAL": "10"}
        parts.append(Setting({"MAX_TRAINING_STEPS": str(point.size(Axis.STEPS)), **evaluated}, _PROBE_LEARNING_RATE))
    return joined_settings(parts)


def for_every_job(site: SiteProfile, *, reward_model: bool, gpus_of_node: int, nodes: int = 1) -> tuple[str, ...]:
    """What every job sets, and which part of a GPU its engine may take."""
    del reward_model, gpus_of_node, nodes
    share = site.needs.gpu_share
    taken = [f"{_ENGINE}.gpu_memory_utilization={round(_ENGINE_PART * share, 3)}"]
    if share != 1:
        taken.append(f"{_ENGINE}.engine_init_kwargs.kv_cache_memory_bytes={site.engine_cache_bytes}")
    return (*EVERY_JOB, *taken)


def command(wrapper: Mapping[str, str], overrides: Iterable[str]) -> tuple[str, ...]:
    """`KEY=VALUE` for all variables, then for the overrides; a later value takes the place of an earlier one."""
    values = {key: text for name, text in wrapper.items() for key in _VARIABLES[name][0]}
    engines = int(wrapper["NUM_GPUS_PER_NODE"]) // int(wrapper["ENGINE_TENSOR_PARALLEL_SIZE"])
    values[f"{_ENGINE}.num_engines"] = str(engines)
    for override in overrides:
        key, _, text = override.partition("=")
        values[key] = text
    return tuple(f"{key}={text}" for key, text in values.items())


def printed_config(wrapper: Mapping[str, str], overrides: Iterable[str], *, phases: int = 1) -> dict[str, Value]:
    """Dotted keys and the values that the run must print; between several phases steps and resume mode differ."""
    expected: dict[str, Value] = {}
    for name, (keys, base) in _VARIABLES.items():
        if phases == 1 or name not in {"MAX_TRAINING_STEPS", "RESUME_MODE"}:
            expected.update(dict.fromkeys(keys, parsed(wrapper.get(name, base))))
    given = expected_of_overrides(item for item in (*EVERY_JOB, *overrides) if not item.startswith(ENTRY_KEY))
    return dict(sorted({**expected, **given}.items()))


def saves_checkpoints(job: Job) -> bool:
    """Whether a job writes checkpoints."""
    return job.wrapper.get("CKPT_INTERVAL", "-1") != "-1"


_LOADS = {
    "weights": re.compile(r"Loaded (?:model state dict|[1-9]\d* LoRA adapters from (?P<path>\S+))"),
    "optimizer state": re.compile(r"Loaded optimizer state dict"),
}


def loaded_parts(text: str, step: int, model: str) -> frozenset[str]:
    """Which parts a line says were loaded; one model trains, and only adapters are loaded with their path."""
    del model
    found = {part: shape.search(text) for part, shape in _LOADS.items()}
    return frozenset(
        part
        for part, match in found.items()
        if match and f"global_step_{step}/" in (match.groupdict().get("path") or f"global_step_{step}/")
    )


# Shards of `torch_dist` with the optimizer, and of the weights without adapters; adapters of each rank beside them.
_CHECKPOINT = CheckpointForm(
    folders=MappingProxyType({"actor": "policy"}),
    adapters=re.compile(r"adapter_tp\d[\w.]*\.pt"),
    weights=re.compile(r"[^/]+\.distcp"),
    optimizer=re.compile(r"[^/]+\.distcp"),
    last="metadata.json",
    tracker="latest_ckpt_global_step.txt",
    loaded=loaded_parts,
)

# What it prints nothing of is not watched. Its trainer compares log-probabilities, it has no correlation.
_METRICS = {
    **dict.fromkeys(Quantity, ()),
    Quantity.POLICY_LOSS: ("policy/policy_loss", "policy/final_loss"),
    Quantity.GRADIENT_NORM: ("policy/grad_norm",),
    Quantity.ENTROPY: ("policy/policy_entropy",),
    Quantity.KL: ("policy/policy_kl", "loss/avg_kl"),
    Quantity.SCORE: ("reward/avg_raw_reward",),
    Quantity.REWARD: ("loss/avg_final_rewards",),
    Quantity.ADVANTAGE: ("loss/avg_raw_advantages_abs",),
    Quantity.LOG_PROBABILITY_DIFFERENCE: ("policy/rollout_train_logprobs_abs_diff_mean",),
    Quantity.LEARNING_RATE: ("policy/policy_lr",),
    Quantity.RESPONSE_LENGTH: ("generate/avg_num_tokens",),
    Quantity.GLOBAL_STEP: ("trainer/global_step",),
    Quantity.EPOCH: ("trainer/epoch",),
    Quantity.STEP_TIME: ("timing/step",),
    Quantity.SAVE_TIME: ("timing/save_checkpoints",),
    Quantity.GENERATION_TIME: ("timing/generate",),
    Quantity.THROUGHPUT: ("trainer/tokens_per_second_per_gpu",),
}

_ROLES = (
    (ProcessRole.TRAINER, re.compile(r"ray::Megatron(Policy|Ref)WorkerBase$")),
    (ProcessRole.CONTROLLER, re.compile(r"ray::skyrl_entrypoint$")),
    (ProcessRole.ROLLOUT, re.compile(r"ray::VLLMServerActor$|(?i:vllm)::")),
    (ProcessRole.DRIVER, re.compile(r"\S+ -m skyrl\.train\.entrypoints\.\w+$")),
)

_BACKEND = "skyrl.backends.skyrl_train"
_WORKER = f"{_BACKEND}.workers.megatron.megatron_worker"
_RELOAD = f"{_BACKEND}.inference_servers.layerwise_reload"
_HOOKS = (
    Hook(
        _WORKER,
        "MegatronPolicyWorkerBase",
        {"init_model": HookPoint.MODEL_BUILT, "optim_step": HookPoint.OPTIMIZER_STEP},
    ),
    Hook(_WORKER, "MegatronRefWorkerBase", {"init_model": HookPoint.MODEL_BUILT}),
    Hook(_WORKER, "MegatronWeightExtractor", {"extract_weights": HookPoint.EXPORTED}),
    Hook(
        f"{_BACKEND}.distributed.megatron.megatron_strategy",
        "MegatronStrategy",
        {"save_checkpoint": HookPoint.SAVED, "load_checkpoint": HookPoint.LOADED},
    ),
    # One update of the rollout is all that comes between these two.
    Hook(
        _RELOAD,
        "LayerwiseReloadWorkerMixin",
        {
            "skyrl_start_weight_update": HookPoint.UPDATE_BEGINS,
            "skyrl_finish_weight_update": HookPoint.RECEIVED,
        },
    ),
    Hook(
        f"{_BACKEND}.inference_servers.new_inference_worker_wrap",
        "NewInferenceWorkerWrap",
        {"update_weights_ipc": HookPoint.RECEIVED_BUCKET, "update_weights_nccl": HookPoint.RECEIVED_BUCKET},
    ),
)

_ASYNC_CALLS = Patch(
    name="skyrl-async-calls",
    repository="verl",
    file="skyrl/backends/skyrl_train/distributed/megatron/megatron_strategy.py",
    substitutions=(
        Substitution(
            old="from megatron.core.dist_checkpointing.strategies import base as ckpt_base\n",
            new="import types as _types\nckpt_base = _types.SimpleNamespace()\n",
        ),
    ),
    before="c2cbc6d55107b4ab57a12fd73830279caf4b521a6668d3b62cd98cced388530f",
    after="b8d07a7f5e5526cd93a49ce7b211c071bc70ed2f657151c59cffbb61cfaa541e",
    reason="Megatron-LM removed `strategies.base` (a2496aa175); SkyRL only keeps its own queue of saves there.",
)

_COMPARING = Comparing(
    parity=frozenset({"trainer.dump_data_batch=true"}),
    sizes=((re.compile(r"[A-Z_]+_PARALLEL_SIZE"), "1"),),
    gpus="NUM_GPUS_PER_NODE",
    size_keys=re.compile(r"[\w.]*(_parallel_size|_num_gpus_per_node|_num_nodes|\.num_engines)"),
    filling=re.compile(r"(?!)"),
    places=(
        re.compile(r"MAX_TRAINING_STEPS|CKPT_INTERVAL|RESUME_MODE|EVAL_.*"),
        re.compile(
            r"trainer\.(?:(?:ckpt|export|log)_path|logger|dump_data_batch|hf_save_interval|epochs|enable_ray_gpu_monitor)="
            r"|data\.(?:train|val)_data=|[\w.]*(?:gpu_memory_utilization|kv_cache_memory_bytes|\.path)="
        ),
    ),
    scales=(
        re.compile(r"[A-Z_]+_PARALLEL_SIZE|NUM_GPUS_PER_NODE"),
        re.compile(
            r"[\w.]*(?:_parallel_size|_num_gpus_per_node|_num_nodes|\.num_engines|optimizer_config\.lr"
            r"|micro_(?:train|forward)_batch_size_per_gpu)="
        ),
    ),
    paths=(re.compile(r"(?!)"), re.compile(r"trainer\.(?:ckpt|export|log)_path=|data\.\w+=|[\w.]*\.path=")),
    lengths=("MAX_PROMPT_LENGTH", "MAX_GENERATE_LENGTH"),
)

SKYRL = Consumer(
    name="skyrl",
    title="SkyRL",
    repository="NovaSky-AI/SkyRL",
    package="skyrl",
    import_folders=("", "skyrl-gym"),
    callers="skyrl/",
    script="skyrl/train/entrypoints/main_base.py",
    entry_point="skyrl.train.entrypoints.main_base",
    # Its parent moves to an engine that the Hopper packages do not have.
    pin="21a1e6ef76edc6e948eb4f43216f1a3fbde2e775",
    patches=(_ASYNC_CALLS,),
    own_jobs=MappingProxyType(
        {
            (Level.SMOKE, "adapters"): {Axis.ADAPTER_MERGE: False},
            (Level.PARALLELISM, "tensor"): {Axis.TENSOR: 2},
            (Level.PARALLELISM, "data"): {Axis.DATA: 2},
            (Level.FEATURE, "recompute"): {Axis.RECOMPUTE: "full"},
            (Level.FEATURE, "canonical"): {Axis.ADAPTER: "canonical_lora"},
        }
    ),
    base=_BASE,
    settings=_SETTINGS,
    level_setting=setting_of_level,
    counts=lambda gpus_of_node, steps: Setting(
        {"NUM_GPUS_PER_NODE": str(gpus_of_node), "MAX_TRAINING_STEPS": str(steps)}
    ),
    spread=partial(on_more_ranks, _BASE),
    host=for_every_job,
    own_choices=frozenset({"MERGE_LORA", "ENFORCE_EAGER"}),
    refused_levels=_REFUSED_LEVELS,
    refused=partial(refusal_of, _ALLOWED),
    last_step="MAX_TRAINING_STEPS",
    resumed={"RESUME_MODE": "latest"},
    saves=saves_checkpoints,
    checkpoint=_CHECKPOINT,
    expected=printed_config,
    # MegatronPolicyWorkerBase and MegatronRefWorkerBase; the loss of every job has a reference.
    builders=2,
    # MegatronWorker.init_configs.
    divides_sequences=True,
    # The first is called as in the records of the instrumentation.
    models=MappingProxyType({"actor": "trainer.policy.megatron_config", "ref": "trainer.ref.megatron_config"}),
    keys=MappingProxyType(
        {
            ConfigKey.ADAPTER_RANK: "trainer.policy.model.lora.rank",
            ConfigKey.ADAPTER_ALPHA: "trainer.policy.model.lora.alpha",
            ConfigKey.ADAPTER_TARGETS: "trainer.policy.model.lora.target_modules",
            ConfigKey.ADAPTER_MERGE: f"{_POLICY}.lora_config.merge_lora",
            ConfigKey.ADVANTAGES: "trainer.algorithm.advantage_estimator",
            ConfigKey.ROLLOUT_ENGINE: f"{_ENGINE}.backend",
            ConfigKey.ROLLOUT_TENSOR: f"{_ENGINE}.tensor_parallel_size",
            ConfigKey.ROLLOUT_EAGER: f"{_ENGINE}.enforce_eager",
            ConfigKey.RESPONSE_LENGTH: "generator.sampling_params.max_generate_length",
            ConfigKey.SAVE_EVERY: "trainer.ckpt_interval",
            ConfigKey.CHECKPOINTS: "trainer.ckpt_path",
            ConfigKey.STEPS: "trainer.max_training_steps",
            ConfigKey.RESUMES: "trainer.resume_mode",
            ConfigKey.NODES: "trainer.placement.policy_num_nodes",
            ConfigKey.GPUS_PER_NODE: "trainer.placement.policy_num_gpus_per_node",
            ConfigKey.STRATEGY: "trainer.strategy",
            ConfigKey.SEQUENCE_PARALLEL: f"{_KWARGS}.sequence_parallel",
            ConfigKey.GATHERS_LATER: f"{_POLICY}.ddp_config.overlap_param_gather",
            ConfigKey.MODEL_PATH: "trainer.policy.model.path",
        }
    ),
    always=lambda _level: {"trainer.strategy": "megatron"},
    proves="strategy=megatron (policy, ref)",
    shown=(
        ("advantage_estimator", ConfigKey.ADVANTAGES),
        ("rollout", ConfigKey.ROLLOUT_ENGINE),
        ("max_generate_length", ConfigKey.RESPONSE_LENGTH),
        ("ckpt_interval", ConfigKey.SAVE_EVERY),
    ),
    comparing=_COMPARING,
    never_saves=Setting({"CKPT_INTERVAL": "-1", "RESUME_MODE": "none"}),
    log=SKYRL_LOG,
    metrics=MappingProxyType(_METRICS),
    of_updates=("policy/policy_loss", "policy/final_loss", "policy/grad_norm", "policy/policy_kl"),
    of_training=("policy/policy_entropy",),
    own_reward=lambda given: REWARD_ENVIRONMENT if given.get("environment.env_class") == REWARD_ENVIRONMENT else "",
    of_rl=("policy/", "reward/", "generate/", "loss/avg_"),
    no_samples=(("generate/avg_num_tokens", 0.0, "every response is empty"),),
    roles=_ROLES,
    hooks=_HOOKS,
)
