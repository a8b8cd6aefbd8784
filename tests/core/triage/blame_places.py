"""Where the generated faults are raised: the frames of verl, Bridge and Megatron-LM at the pinned commits, by stage."""

from dataclasses import dataclass

WORKER, TRAINER, LOOP = "(WorkerDict pid=7470) ", "(TaskRunnerV1 pid=6726) ", "(AgentLoopWorkerTQ pid=7998) "


@dataclass(frozen=True)
class Place:
    """Where it is raised: `keep` lines of the recorded run, who raises it, through which frames, in which stage."""

    stage: str
    keep: int
    prefix: str
    remote: str
    frames: tuple[str, ...]
    line: str = ""
    managed: bool = True


FIT = ("verl/trainer/main_ppo.py:run", "verl/trainer/ppo/v1/trainer_base.py:fit")
INIT = (
    "verl/trainer/main_ppo.py:run",
    "verl/trainer/ppo/v1/trainer_base.py:init",
    "verl/trainer/ppo/v1/trainer_base.py:_setup",
)
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
BRIDGE = "Bridge/src/megatron/bridge/models"
CORE = "Bridge/3rdparty/Megatron-LM/megatron/core"
INITIALIZE = ("verl/workers/engine_workers.py:reset", f"{ENGINE}:initialize")
MODULE = (
    *INITIALIZE,
    f"{ENGINE}:_build_megatron_module",
    "verl/utils/megatron_utils.py:make_megatron_module",
    f"{BRIDGE}/model_provider.py:provide_distributed_model",
    f"{BRIDGE}/model_provider.py:get_model",
)
IMPORT = (
    *MODULE,
    f"{BRIDGE}/model_provider.py:composed_pre_wrap_hook",
    f"{BRIDGE}/conversion/auto_bridge.py:load_hf_weights",
    f"{BRIDGE}/conversion/model_bridge.py:load_weights_hf_to_megatron",
    f"{BRIDGE}/conversion/model_bridge.py:maybe_modify_loaded_hf_weight",
    f"{BRIDGE}/hf_pretrained/state.py:__getitem__",
)
BATCH = (
    "verl/workers/engine_workers.py:train_mini_batch",
    "verl/workers/engine_workers.py:train_batch",
    f"{ENGINE}:forward_backward_batch",
    f"{CORE}/pipeline_parallel/schedules.py:forward_backward_no_pipelining",
    f"{CORE}/pipeline_parallel/schedules.py:forward_step",
    f"{CORE}/models/gpt/gpt_model.py:forward",
)
MANAGER = "verl/utils/checkpoint/megatron_checkpoint_manager.py"

PLACES = {
    "tokenizer": Place(
        "model_download",
        1135,
        TRAINER,
        "TaskRunnerV1.run",
        (
            "verl/trainer/ppo/v1/trainer_base.py:_init_tokenizer",
            "verl/utils/tokenizer/tokenizer.py:hf_tokenizer",
            "transformers/models/auto/tokenization_auto.py:from_pretrained",
        ),
        managed=False,
    ),
    "from_pretrained": Place(
        "bridge_provider",
        1177,
        WORKER,
        "WorkerDict.actor_rollout_reset",
        (
            *INITIALIZE,
            f"{ENGINE}:_build_tf_config",
            f"{BRIDGE}/conversion/auto_bridge.py:from_hf_pretrained",
            "transformers/models/auto/configuration_auto.py:from_pretrained",
        ),
    ),
    "provider": Place(
        "bridge_provider",
        1186,
        WORKER,
        "WorkerDict.actor_rollout_reset",
        (
            *MODULE,
            f"{BRIDGE}/model_provider.py:_create_model",
            f"{BRIDGE}/gpt_provider.py:provide",
            f"{CORE}/models/gpt/gpt_model.py:__init__",
        ),
    ),
    "peft": Place(
        "peft",
        1186,
        WORKER,
        "WorkerDict.actor_rollout_reset",
        (
            *MODULE,
            "Bridge/src/megatron/bridge/peft/base.py:__call__",
            "Bridge/src/megatron/bridge/peft/lora.py:transform",
        ),
    ),
    "hf_import": Place(
        "hf_import", 1196, WORKER, "WorkerDict.critic_reset", (*IMPORT, f"{BRIDGE}/hf_pretrained/state.py:load_tensors")
    ),
    "hf_download": Place(
        "hf_import",
        1196,
        WORKER,
        "WorkerDict.critic_reset",
        (
            *IMPORT,
            f"{BRIDGE}/hf_pretrained/state.py:_resolve_path",
            "huggingface_hub/_snapshot_download.py:snapshot_download",
        ),
    ),
    "ddp": Place(
        "ddp_wrap",
        1199,
        WORKER,
        "WorkerDict.critic_reset",
        (
            *MODULE,
            f"{BRIDGE}/model_provider.py:_ddp_wrap",
            f"{CORE}/distributed/distributed_data_parallel.py:__init__",
            f"{CORE}/distributed/param_and_grad_buffer.py:__init__",
        ),
    ),
    "optimizer": Place(
        "optimizer",
        1200,
        WORKER,
        "WorkerDict.critic_reset",
        (*INITIALIZE, f"{ENGINE}:_build_optimizer", f"{CORE}/optimizer/__init__.py:get_megatron_optimizer"),
    ),
    "export": Place(
        "export_weight_sync",
        1285,
        WORKER,
        "WorkerDict.actor_rollout_update_weights",
        (
            "verl/workers/engine_workers.py:update_weights",
            f"{BRIDGE}/conversion/auto_bridge.py:export_hf_weights",
            f"{BRIDGE}/conversion/model_bridge.py:stream_weights_megatron_to_hf",
            f"{BRIDGE}/conversion/param_mapping.py:megatron_to_hf",
        ),
    ),
    "logprob": Place(
        "train_step",
        1323,
        WORKER,
        "WorkerDict.ref_compute_ref_log_prob",
        (
            "verl/workers/engine_workers.py:compute_ref_log_prob",
            "verl/workers/engine_workers.py:infer_batch",
            *BATCH[2:],
        ),
    ),
    "train": Place(
        "train_step",
        1325,
        WORKER,
        "WorkerDict.actor_rollout_update_actor",
        ("verl/workers/engine_workers.py:update_actor", *BATCH),
    ),
    "rollout": Place(
        "train_step",
        1316,
        LOOP,
        "AgentLoopWorkerTQ.generate_sequences",
        (
            "verl/experimental/agent_loop/agent_loop.py:generate_sequences",
            "verl/workers/rollout/llm_server.py:generate",
            "verl/workers/rollout/vllm_rollout/vllm_async_server.py:generate",
            "vllm/v1/worker/gpu_model_runner.py:execute_model",
        ),
    ),
    "log_init": Place(
        "environment", 1280, TRAINER, "TaskRunnerV1.run", (*FIT, "verl/utils/tracking.py:__init__"), managed=False
    ),
    "log": Place("train_step", 1334, TRAINER, "TaskRunnerV1.run", (*FIT, "verl/utils/tracking.py:log")),
    "save": Place(
        "checkpoint_save",
        1333,
        WORKER,
        "WorkerDict.actor_rollout_save_checkpoint",
        (
            "verl/workers/engine_workers.py:save_checkpoint",
            f"{MANAGER}:save_checkpoint",
            f"{MANAGER}:_save_dist_checkpoint",
            f"{CORE}/dist_checkpointing/serialization.py:save",
        ),
        "local_global_step_folder: /ckpt/global_step_1",
    ),
    "load": Place(
        "checkpoint_load",
        1281,
        WORKER,
        "WorkerDict.actor_rollout_load_checkpoint",
        (
            "verl/workers/engine_workers.py:load_checkpoint",
            f"{MANAGER}:load_checkpoint",
            f"{CORE}/dist_checkpointing/serialization.py:load",
        ),
        "Resuming from /ckpt/global_step_1",
    ),
}
