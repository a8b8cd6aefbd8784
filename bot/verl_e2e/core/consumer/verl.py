"""verl, as a consumer of Megatron-Bridge."""

import re
from types import MappingProxyType

from verl_e2e.core.consumer.consumer import Consumer, Hook, HookPoint, PlannedPhase, Quantity
from verl_e2e.core.consumer.verl_log import LOG
from verl_e2e.core.consumer.verl_settings import (
    BASE_WRAPPER,
    SETTINGS,
    SHARE_OF_DIGITS,
    WITHOUT_CRITIC,
    WRAPPER,
    any_model,
    expected_config,
    filling,
    host_overrides,
    level_setting,
    shards,
    spread,
)
from verl_e2e.core.model.execution import ProcessRole
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT, Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Setting


def _saves(job: Job) -> bool:
    return {**job.site.wrapper, **job.wrapper}.get("SAVE_FREQ", "-1") != "-1"


def _phases(job: Job) -> tuple[PlannedPhase, ...]:
    """Level 1 has two starts of the wrapper, unless it never saves, as its reference run."""
    if job.level is Level.SAVE_RESUME and job.steps > 1 and _saves(job):
        saved, last = job.steps - 1, job.steps
        return (
            PlannedPhase("save", 1, saved, {"TOTAL_TRAIN_STEPS": str(saved)}),
            PlannedPhase("resume", last, last, {"RESUME_MODE": "auto", "TOTAL_TRAIN_STEPS": str(last)}),
        )
    return (PlannedPhase("train", 1, job.steps),)


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
    Quantity.AGREEMENT: ("training/rollout_actor_probs_pearson_corr",),
    Quantity.LOG_PROBABILITY_DIFFERENCE: (),
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

# verl's classes of workers and servers: Ray names a process by the class of its actor.
_ROLES = (
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

VERL = Consumer(
    name="verl",
    title="verl",
    repository="verl-project/verl",
    package="verl",
    callers="verl/",
    script=WRAPPER_SCRIPT,
    base=BASE_WRAPPER,
    settings=SETTINGS,
    level_setting=level_setting,
    counts=lambda gpus_of_node, steps: Setting({"NUM_GPUS": str(gpus_of_node), "TOTAL_TRAIN_STEPS": str(steps)}),
    spread=spread,
    shards=shards,
    trains_critic=lambda wrapper: wrapper.get("ADV_ESTIMATOR", WRAPPER["ADV_ESTIMATOR"].default) == "gae",
    filling=filling,
    host=host_overrides,
    any_model=any_model,
    own_choices=frozenset({*WITHOUT_CRITIC, "LORA_MERGE", *SHARE_OF_DIGITS}),
    refused_levels=MappingProxyType({}),
    refused_values=MappingProxyType({}),
    phases=_phases,
    saves=_saves,
    expected=expected_config,
    models=MappingProxyType(
        {
            "actor": "actor_rollout_ref.actor.megatron",
            "ref": "actor_rollout_ref.ref.megatron",
            "critic": "critic.megatron",
        }
    ),
    log=LOG,
    metrics=MappingProxyType(_METRICS),
    roles=_ROLES,
    hooks=_HOOKS,
)
