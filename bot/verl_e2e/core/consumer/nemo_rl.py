"""NeMo-RL, as a consumer of Megatron-Bridge that was never run here: what a run would be is data.

Read from NVIDIA-NeMo/RL 7ea279ab; its own loader and models take the command of every job. Settings are keys of
`examples/configs/grpo_math_1B_megatron.yaml` in Hydra's grammar, begun from those of `tests/functional/
grpo_megatron.sh`. As SkyRL it reads no variables: a job's are the last parts of keys in capitals.
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
from verl_e2e.core.consumer.nemo_rl_log import LOADED, NEMO_RL_LOG
from verl_e2e.core.consumer.skyrl import AllowedValues, refusal_of
from verl_e2e.core.model.execution import ProcessRole
from verl_e2e.core.model.jobs import SiteProfile
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis, Setting, Value, expected_of_overrides, parsed
from verl_e2e.core.model.space import JobPoint

_SCRIPT = "examples/run_grpo.py"
_MEGATRON, _GENERATION = "policy.megatron_cfg", "policy.generation"
_PEFT = f"{_MEGATRON}.peft"

# The variables of a job: the key that takes the value of each, and what Level 0 sets.
_VARIABLES: Mapping[str, tuple[str, str]] = {
    "TENSOR_MODEL_PARALLEL_SIZE": (f"{_MEGATRON}.tensor_model_parallel_size", "1"),
    "PIPELINE_MODEL_PARALLEL_SIZE": (f"{_MEGATRON}.pipeline_model_parallel_size", "1"),
    "CONTEXT_PARALLEL_SIZE": (f"{_MEGATRON}.context_parallel_size", "1"),
    "EXPERT_MODEL_PARALLEL_SIZE": (f"{_MEGATRON}.expert_model_parallel_size", "1"),
    "EXPERT_TENSOR_PARALLEL_SIZE": (f"{_MEGATRON}.expert_tensor_parallel_size", "1"),
    "ENGINE_TENSOR_PARALLEL_SIZE": (f"{_GENERATION}.vllm_cfg.tensor_parallel_size", "1"),
    "CLUSTER_GPUS_PER_NODE": ("cluster.gpus_per_node", "1"),
    "MAX_NUM_STEPS": ("grpo.max_num_steps", "1"),
    "CHECKPOINTING_ENABLED": ("checkpointing.enabled", "false"),
    "PEFT_ENABLED": (f"{_PEFT}.enabled", "true"),
    "PEFT_DIM": (f"{_PEFT}.dim", "4"),
    "PEFT_ALPHA": (f"{_PEFT}.alpha", "4"),
    "LORA_B_INIT_METHOD": (f"{_PEFT}.lora_B_init_method", "zero"),
    "ACTIVATION_CHECKPOINTING": (f"{_MEGATRON}.activation_checkpointing", "false"),
    "RECOMPUTE_GRANULARITY": (f"{_MEGATRON}.recompute_granularity", "full"),
    # NeMo-RL's own default, and what context parallelism asks for (_apply_parallelism_config).
    "SEQUENCE_PACKING": ("policy.sequence_packing.enabled", "true"),
    "OVERLAP_GRAD_REDUCE": (f"{_MEGATRON}.distributed_data_parallel_config.overlap_grad_reduce", "false"),
    "GRADIENT_ACCUMULATION_FUSION": (f"{_MEGATRON}.gradient_accumulation_fusion", "false"),
}
_BASE: Mapping[str, str] = MappingProxyType({name: base for name, (_, base) in _VARIABLES.items()})

# What every job sets. One global batch is all samples of a step, so that a step is one update; equal micro-batches are
# what a tensor size of four asks for (lm_policy.py).
_EVERY_JOB = (
    "grpo.num_prompts_per_step=2",
    "grpo.num_generations_per_prompt=4",
    "grpo.val_period=0",
    "policy.train_global_batch_size=8",
    "policy.train_micro_batch_size=1",
    "policy.logprob_batch_size=1",
    f"{_PEFT}.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]",
    f"{_MEGATRON}.distributed_data_parallel_config.overlap_param_gather=false",
    f"{_GENERATION}.vllm_cfg.enforce_eager=true",
    "checkpointing.metric_name=null",
    "checkpointing.save_period=1",
    "logger.tensorboard_enabled=true",
    "logger.wandb_enabled=false",
)
_SAME_SAMPLES = "data.shuffle=false"
# Of a whole GPU the engine may take this part.
_ENGINE_PART = 0.6


def _learning_rate(rate: str) -> tuple[str, ...]:
    """A rate from the first step on; its own warm-up begins at 5e-7."""
    return (f"{_MEGATRON}.optimizer.lr={rate}", f"{_MEGATRON}.scheduler.lr_warmup_iters=0")


_SETTINGS: Mapping[Axis, AxisSetting] = {
    Axis.TENSOR: AxisSetting(variables=("TENSOR_MODEL_PARALLEL_SIZE", "ENGINE_TENSOR_PARALLEL_SIZE")),
    Axis.PIPELINE: AxisSetting(variables=("PIPELINE_MODEL_PARALLEL_SIZE",)),
    Axis.VIRTUAL_PIPELINE: AxisSetting(elsewhere="always 1"),
    Axis.CONTEXT: AxisSetting(variables=("CONTEXT_PARALLEL_SIZE",)),
    Axis.EXPERT: AxisSetting(variables=("EXPERT_MODEL_PARALLEL_SIZE",)),
    Axis.EXPERT_TENSOR: AxisSetting(variables=("EXPERT_TENSOR_PARALLEL_SIZE",)),
    Axis.DATA: AxisSetting(elsewhere="`CLUSTER_GPUS_PER_NODE`, with the other sizes"),
    Axis.FSDP: AxisSetting(elsewhere="never"),
    Axis.RECOMPUTE: AxisSetting(
        values={
            "none": Setting({"ACTIVATION_CHECKPOINTING": "false"}),
            "full": Setting({"ACTIVATION_CHECKPOINTING": "true", "RECOMPUTE_GRANULARITY": "full"}),
            "selective": Setting({"ACTIVATION_CHECKPOINTING": "true", "RECOMPUTE_GRANULARITY": "selective"}),
        }
    ),
    Axis.OFFLOAD: AxisSetting(values={True: Setting()}, elsewhere="always, for the engine is on the same GPUs"),
    Axis.OVERLAP: AxisSetting(variables=("OVERLAP_GRAD_REDUCE",)),
    Axis.FUSION: AxisSetting(variables=("GRADIENT_ACCUMULATION_FUSION",)),
    Axis.ADAPTER: AxisSetting(
        values={
            "lora": Setting({"PEFT_ENABLED": "true"}),
            # The rank says nothing to it then, and to a reader that there is no adapter.
            "none": Setting({"PEFT_ENABLED": "false", "PEFT_DIM": "0"}),
        }
    ),
    Axis.ADAPTER_TARGETS: AxisSetting(keys=(f"{_PEFT}.target_modules",)),
    Axis.ADAPTER_RANK: AxisSetting(variables=("PEFT_DIM",)),
    Axis.ADAPTER_ALPHA: AxisSetting(variables=("PEFT_ALPHA",)),
    Axis.ADAPTER_SHARING: AxisSetting(elsewhere="always shared"),
    Axis.ADAPTER_MERGE: AxisSetting(values={True: Setting()}, elsewhere="always merged"),
    Axis.ADAPTER_B_START: AxisSetting(variables=("LORA_B_INIT_METHOD",)),
    Axis.RESUME: AxisSetting(values={True: Setting({"CHECKPOINTING_ENABLED": "true"}, _learning_rate("0.001"))}),
    Axis.STEPS: AxisSetting(elsewhere="`MAX_NUM_STEPS`"),
    # What each step trained is always written, as `train_data_step<N>.jsonl`.
    Axis.PARITY: AxisSetting(values={True: Setting(overrides=(_SAME_SAMPLES, *_learning_rate("0.001")))}),
    Axis.REWARD_MODEL: AxisSetting(elsewhere="never"),
    Axis.PACKING: AxisSetting(variables=("SEQUENCE_PACKING",)),
}

_SETUP = "nemo_rl/models/megatron/setup.py"
_WITHOUT_FSDP = Refusal(
    "NeMo-RL declares `use_custom_fsdp` and reads it nowhere: its DistributedDataParallelConfig has no FSDP",
    f"nemo_rl/models/policy/__init__.py: MegatronDDPConfig; {_SETUP}: _create_megatron_config",
)
_ALLOWED: AllowedValues = {
    Axis.VIRTUAL_PIPELINE: (
        (1,),
        Refusal(
            "NeMo-RL sets it on no model, and says where it reads the key:"
            " `policy.megatron_cfg.virtual_pipeline_model_parallel_size must be None or 1`",
            f"{_SETUP}: _apply_parallelism_config; nccl_reshard_utils.py: check_nccl_reshard_refit_support",
        ),
    ),
    Axis.FSDP: ((False,), _WITHOUT_FSDP),
    Axis.ADAPTER: (
        ("lora", "none"),
        Refusal("NeMo-RL makes `peft = LoRA(...)` and no other adapter", f"{_SETUP}: setup_model_and_optimizer"),
    ),
    Axis.ADAPTER_SHARING: (
        ("shared",),
        Refusal(
            "NeMo-RL's MegatronPeftConfig has no such key", f"nemo_rl/models/policy/__init__.py; {_SETUP}: LoRA(...)"
        ),
    ),
    Axis.ADAPTER_MERGE: (
        (True,),
        Refusal(
            "NeMo-RL streams what `export_hf_weights` gives, in which adapters are merged",
            "megatron_policy_worker.py: _iter_params_with_optional_kv_scales",
        ),
    ),
    Axis.REWARD_MODEL: (
        (False,),
        Refusal(
            "NeMo-RL refuses it: Reward models are not yet supported with the Megatron backend",
            f"{_SETUP}: validate_and_set_config",
        ),
    ),
}


def nemo_rl_level(point: JobPoint, level: Level) -> Setting:
    """What a level sets so that its own evidence can show."""
    packed = Setting({"SEQUENCE_PACKING": "true"} if point.size(Axis.CONTEXT) > 1 else {})
    learning = Setting(overrides=_learning_rate("0.0001") if level is Level.LEARNING_SIGNAL else ())
    return joined_settings([packed, learning])


def nemo_rl_host(site: SiteProfile, *, reward_model: bool, gpus_of_node: int, nodes: int = 1) -> tuple[str, ...]:
    """What every job sets, and which part of a GPU its engine may take."""
    del reward_model, gpus_of_node, nodes
    part = round(_ENGINE_PART * site.needs.gpu_share, 3)
    return (*_EVERY_JOB, f"{_GENERATION}.vllm_cfg.gpu_memory_utilization={part}")


def nemo_rl_expected(wrapper: Mapping[str, str], overrides: Iterable[str], *, phases: int = 1) -> dict[str, Value]:
    """Dotted keys and the values that the run must print; between several phases the steps differ.

    Experts on several tensor ranks need sequence parallelism (Megatron-LM).
    """
    expected = {key: parsed(wrapper.get(name, base)) for name, (key, base) in _VARIABLES.items()}
    expected[f"{_MEGATRON}.sequence_parallel"] = expected[f"{_MEGATRON}.tensor_model_parallel_size"] != 1
    if phases > 1:
        del expected[_VARIABLES["MAX_NUM_STEPS"][0]]
    given = expected_of_overrides(override.lstrip("+") for override in (*_EVERY_JOB, *overrides))
    return dict(sorted({**expected, **given}.items()))


def _loaded(text: str, step: int, _model: str) -> frozenset[str]:
    """Megatron-Bridge loads weights and optimizer state at once."""
    found = re.search(LOADED, text)
    return frozenset({"weights", "optimizer state"} if found and int(found[1]) == step else ())


# Megatron-Bridge's `torch_dist`, with the optimizer's shards among those of the weights; below `step_N`.
_SHARDS = re.compile(r"weights/iter_\d+/[^/]+\.distcp")
_CHECKPOINT = CheckpointForm(
    folders=MappingProxyType({"actor": "policy"}),
    adapters=_SHARDS,
    weights=_SHARDS,
    optimizer=_SHARDS,
    last="weights/latest_train_state.pt",
    tracker="latest_checkpoint_status.json",
    loaded=_loaded,
)

_METRICS: Mapping[Quantity, tuple[str, ...]] = {
    **dict.fromkeys(Quantity, ()),
    Quantity.POLICY_LOSS: ("train/loss",),
    Quantity.GRADIENT_NORM: ("train/grad_norm",),
    Quantity.ENTROPY: ("train/approx_entropy",),
    # Divided by its factor already.
    Quantity.KL: ("train/kl_penalty",),
    Quantity.SCORE: ("train/reward",),
    Quantity.REWARD: ("train/reward",),
    Quantity.ADVANTAGE_MAX: ("train/advantages/max",),
    Quantity.ADVANTAGE_MIN: ("train/advantages/min",),
    Quantity.ROLLOUT_KL: ("train/gen_kl_error",),
    Quantity.PROBABILITY_RATIO: ("train/token_mult_prob_error",),
    Quantity.LEARNING_RATE: ("train/lr",),
    Quantity.RESPONSE_LENGTH: ("train/mean_gen_tokens_per_sample",),
    Quantity.CAP_SHARE: ("train/truncation_rate",),
    Quantity.PROMPT_LENGTH: ("train/mean_prompt_length",),
    Quantity.STEP_TIME: ("timing/train/total_step_time",),
    Quantity.SAVE_TIME: ("timing/train/checkpointing",),
    Quantity.REWARD_TIME: ("timing/train/reward_calculation",),
    Quantity.GENERATION_TIME: ("timing/train/generation",),
    Quantity.THROUGHPUT: ("performance/tokens_per_sec_per_gpu",),
    Quantity.TOKENS: ("train/total_num_tokens",),
}

# Its driver trains, so it has no controller.
_ROLES = (
    (ProcessRole.TRAINER, re.compile(r"ray::Megatron\w*PolicyWorker$")),
    (ProcessRole.ROLLOUT, re.compile(r"ray::Vllm(?:Async)?GenerationWorker$|(?i:vllm)::")),
    (ProcessRole.DRIVER, re.compile(r"\S*python\S* (?:\S+/)?examples/run_grpo\.py(?: |$)")),
)

_WORKER = "nemo_rl.models.policy.workers.megatron_policy_worker"
_HOOKS = (
    Hook(
        _WORKER,
        "MegatronPolicyWorkerImpl",
        {
            "__init__": HookPoint.MODEL_BUILT,
            "train": HookPoint.OPTIMIZER_STEP,
            "save_checkpoint": HookPoint.SAVED,
            # Both ways of a refit, by IPC and by a collective, take the weights from it.
            "_iter_params_with_optional_kv_scales": HookPoint.EXPORTED,
            "stream_weights_via_ipc_zmq": HookPoint.UPDATE_BEGINS,
        },
    ),
    # A resumed run loads while it builds the model; the worker's own `load_checkpoint` only raises.
    Hook("megatron.bridge.training.checkpointing", "", {"load_checkpoint": HookPoint.LOADED}),
    Hook(
        "nemo_rl.models.generation.vllm.vllm_backend",
        "VllmInternalWorkerExtension",
        {"update_weights_via_ipc_zmq": HookPoint.RECEIVED, "_load_weights": HookPoint.RECEIVED_BUCKET},
    ),
)

_COMPARING = Comparing(
    parity=frozenset({_SAME_SAMPLES}),
    sizes=((re.compile("[A-Z_]+_PARALLEL_SIZE"), "1"),),
    gpus="CLUSTER_GPUS_PER_NODE",
    size_keys=re.compile(r"[\w.]*(?:_parallel_size|\.gpus_per_node|\.num_nodes)"),
    filling=re.compile(r"(?!)"),
    places=(
        re.compile("MAX_NUM_STEPS|CHECKPOINTING_ENABLED"),
        re.compile(r"checkpointing\.|logger\.|\+?data\.train\.|[\w.]*(?:gpu_memory_utilization|model_name)="),
    ),
    scales=(
        re.compile("[A-Z_]+_PARALLEL_SIZE|CLUSTER_GPUS_PER_NODE"),
        re.compile(
            r"[\w.]*(?:_parallel_size|\.gpus_per_node|\.num_nodes|optimizer\.lr|lr_warmup_iters"
            r"|train_micro_batch_size|logprob_batch_size)="
        ),
    ),
    paths=(re.compile(r"(?!)"), re.compile(r"[\w.+]*(?:checkpoint_dir|log_dir|data_path|model_name)=")),
    lengths=("MAX_TOTAL_SEQUENCE_LENGTH", "MAX_NEW_TOKENS"),
)

NEMO_RL = Consumer(
    name="nemo-rl",
    title="NeMo-RL",
    repository="NVIDIA-NeMo/RL",
    package="nemo_rl",
    callers="nemo_rl/",
    script=_SCRIPT,
    entry_point=_SCRIPT,
    pin="7ea279abfbeb698b092856d0dab61e7cf39bc909",
    never_run=True,
    own_jobs=MappingProxyType({(Level.FEATURE, "recompute"): {Axis.RECOMPUTE: "full"}}),
    base=_BASE,
    settings=_SETTINGS,
    level_setting=nemo_rl_level,
    counts=lambda gpus_of_node, steps: Setting(
        {"CLUSTER_GPUS_PER_NODE": str(gpus_of_node), "MAX_NUM_STEPS": str(steps)}
    ),
    spread=partial(on_more_ranks, _BASE),
    host=nemo_rl_host,
    own_choices=frozenset(),
    # It has no reward that the answers of any model differ in: random weights earn nothing and learn nothing.
    own_reward=lambda _given: "",
    refused_levels=MappingProxyType({Level.MEGATRON_FSDP: _WITHOUT_FSDP}),
    refused=partial(refusal_of, _ALLOWED),
    # It resumes from what lies in `checkpoint_dir`; no key asks for that.
    last_step="MAX_NUM_STEPS",
    saves=lambda job: job.wrapper.get("CHECKPOINTING_ENABLED", "false") == "true",
    checkpoint=_CHECKPOINT,
    expected=nemo_rl_expected,
    # Called as in the records of the instrumentation. The reference is in the policy's own workers.
    builders=1,
    divides_sequences=False,
    models=MappingProxyType({"actor": _MEGATRON}),
    keys=MappingProxyType(
        {
            ConfigKey.ADAPTER_RANK: f"{_PEFT}.dim",
            ConfigKey.ADAPTER_ALPHA: f"{_PEFT}.alpha",
            ConfigKey.ADAPTER_TARGETS: f"{_PEFT}.target_modules",
            ConfigKey.ADVANTAGES: "grpo.adv_estimator.name",
            ConfigKey.ROLLOUT_ENGINE: f"{_GENERATION}.backend",
            ConfigKey.ROLLOUT_TENSOR: f"{_GENERATION}.vllm_cfg.tensor_parallel_size",
            ConfigKey.ROLLOUT_EAGER: f"{_GENERATION}.vllm_cfg.enforce_eager",
            ConfigKey.RESPONSE_LENGTH: f"{_GENERATION}.max_new_tokens",
            ConfigKey.CHECKPOINTS: "checkpointing.checkpoint_dir",
            ConfigKey.STEPS: "grpo.max_num_steps",
            ConfigKey.NODES: "cluster.num_nodes",
            ConfigKey.GPUS_PER_NODE: "cluster.gpus_per_node",
            ConfigKey.MODEL_PATH: "policy.model_name",
            ConfigKey.SEQUENCE_PARALLEL: f"{_MEGATRON}.sequence_parallel",
            ConfigKey.GATHERS_LATER: f"{_MEGATRON}.distributed_data_parallel_config.overlap_param_gather",
        }
    ),
    always=lambda _level: {f"{_MEGATRON}.enabled": True},
    proves="megatron_cfg.enabled (policy)",
    shown=(
        ("adv_estimator", ConfigKey.ADVANTAGES),
        ("rollout", ConfigKey.ROLLOUT_ENGINE),
        ("max_new_tokens", ConfigKey.RESPONSE_LENGTH),
    ),
    comparing=_COMPARING,
    never_saves=Setting({"CHECKPOINTING_ENABLED": "false"}),
    log=NEMO_RL_LOG,
    metrics=MappingProxyType(_METRICS),
    of_updates=("train/grad_norm", "train/kl_penalty"),
    of_training=("train/approx_entropy",),
    of_rl=("train/reward", "train/advantages/", "train/gen_kl_error", "train/token_mult_prob_error"),
    no_samples=(("train/global_valid_toks", 0.0, "no token of any response is trained on"),),
    roles=_ROLES,
    hooks=_HOOKS,
)
