"""Rules that recognise where an error happened by the functions that its traceback goes through.

They say nothing about the fault but what the stage says: before Bridge-managed construction Blocked, after it
Fail. Order matters: what surrounds comes before what it calls (a save that exports weights is a save).
"""

from bot.core.stages import Stage
from bot.core.triage_rules import Fault, Rule

_AFTER_CONSTRUCTION = frozenset(
    stage for stage in Stage if stage.order >= Stage.BRIDGE_PROVIDER.order and stage is not Stage.SHUTDOWN
)
_BEFORE_SYNC = frozenset(stage for stage in Stage if stage.order <= Stage.OPTIMIZER.order)

PHASES: tuple[Rule, ...] = (
    Rule(
        id="checkpoint-save",
        fault=Fault.CODE,
        stage=Stage.CHECKPOINT_SAVE,
        calls=r":_?save_checkpoint$|^ray::.*save_checkpoint|checkpoint_manager\.py:save"
        r"|dist_checkpointing/\S+:\w*save\w*$"
        r"|state_dict_saver\.py:|:_save_dist_checkpoint$|:_schedule_dist_checkpoint_saves$",
        cause="saving the checkpoint failed",
        mend="Rerun with SAVE_FREQ=-1 to separate construction from saving.",
        example='  File "verl/workers/engine_workers.py", line 722, in save_checkpoint\n'
        '  File "megatron/bridge/models/conversion/model_bridge.py", line 1542, in stream_weights_megatron_to_hf\n'
        "ValueError: Object must exist on at least one PP rank",
        source="Megatron-Bridge, param_mapping",
    ),
    Rule(
        id="checkpoint-load",
        fault=Fault.CODE,
        stage=Stage.CHECKPOINT_LOAD,
        calls=r":_?load_checkpoint$|^ray::.*load_checkpoint|checkpoint_manager\.py:load"
        r"|dist_checkpointing/\S+:(?:\w*load\w*|verify_checkpoint)$"
        r"|state_dict_loader\.py:|stateful_dataloader/\S+:(?:load_state_dict|_restore_main_state)"
        r"|data_parallel_base\.py:load_"
        r"|:load_dist_checkpointing$|:_load_dist_checkpoint$",
        cause="loading the checkpoint failed",
        mend="Check what the save wrote and the parallel sizes; rerun with RESUME_MODE=disable to separate "
        "construction.",
        example='  File "verl/trainer/ppo/ray_trainer.py", line 1123, in fit\n'
        '  File "torchdata/stateful_dataloader/stateful_dataloader.py", line 1477, in _restore_main_state\n'
        "StopIteration",
        source="a user's log of a resume with another data set",
    ),
    Rule(
        id="reward",
        fault=Fault.CODE,
        stage=Stage.REWARD_MODEL,
        calls=r"reward_manager|reward_loop|reward_score|/reward\.py:|:_?compute_score|:compute_reward|:compute_rm_score"
        r"|:load_reward_manager|:get_custom_reward_fn|reward_model",
        cause="the reward function or the reward model failed",
        mend="Check reward.reward_model, the custom reward file and that it knows the data source.",
        example='  File "verl/trainer/ppo/ray_trainer.py", line 996, in fit\n'
        '  File "verl/workers/reward_manager/naive.py", line 64, in __call__\n'
        '  File "verl/utils/reward_score/__init__.py", line 37, in _default_compute_score\nNotImplementedError',
        source="a user's log with a data source that has no reward",
    ),
    Rule(
        id="failed-import",
        fault=Fault.OUTSIDE,
        stage=Stage.IMPORT,
        calls=r":<import>$",
        cause="a module raised while it was imported",
        mend="Install the version of the package that the checkout was written for.",
        example='  File "<string>", line 1, in <module>\n  File "megatron/bridge/__init__.py", line 21, in <module>\n'
        '  File "megatron/core/dist_checkpointing/strategies/nvrx.py", line 85, in is_nvrx_min_version\n'
        "AttributeError: module 'nvidia_resiliency_ext' has no attribute '__version__'",
        source="Megatron-Core with a foreign nvidia-resiliency-ext",
    ),
    Rule(
        id="data",
        fault=Fault.CODE,
        stage=Stage.DATA,
        calls=r"rl_dataset|rm_dataset|sft_dataset|:create_rl_dataset|:_(?:create|init|build)_dataloader"
        r"|:create_rl_sampler"
        r"|(?:^|/)datasets/\S+:|:collate_fn$|:_read_files_and_tokenize|pyarrow|pandas/io",
        cause="the data set cannot be used",
        mend="Prepare the parquet files with verl's own script and the installed datasets version; check the paths.",
        example="Started a local Ray instance.\n"
        '  File "verl/trainer/ppo/v1/trainer_base.py", line 657, in _init_dataloader\n'
        '  File "datasets/data_files.py", line 405, in resolve_pattern\n'
        "FileNotFoundError: Unable to find the train parquet",
        source="a Level 0 run of ours without its training file",
    ),
    Rule(
        id="weight-sync",
        fault=Fault.CODE,
        stage=Stage.EXPORT_WEIGHT_SYNC,
        calls=r":_?update_weights?|^ray::.*update_weights|:export_hf_weights$|:save_hf_weights$|:save_hf_pretrained$"
        r"|:get_per_tensor_param|:per_tensor_generator$|:stream_\w*weights\w*$|:stream_adapter|:export_adapter"
        r"|:rollout_mode$|:wake_up$|checkpoint_engine/|:megatron_to_hf$|sharding_manager/\S+:__enter__",
        cause="exporting weights to the rollout engine or to Hugging Face form failed",
        mend="Reproduce with Bridge's export test of that model family; compare the mapping of the parameter named.",
        example='  File "verl/workers/engine_workers.py", line 760, in update_weights\n'
        '  File "megatron/bridge/models/conversion/param_mapping.py", line 479, in broadcast_obj_from_pp_rank\n'
        "ValueError: Object must exist on at least one PP rank",
        source="Megatron-Bridge, param_mapping",
    ),
    Rule(
        id="train-step",
        fault=Fault.CODE,
        stage=Stage.TRAIN_STEP,
        calls=r":_?update_(?:actor|critic|policy)$|^ray::.*(?:update_actor|update_critic|compute_|generate_sequences)"
        r"|:_?compute_(?:ref_|old_)?log_probs?$|:_?compute_values?$|:_?compute_advantage|:forward_backward"
        r"|:forward_step$"
        r"|:train_(?:mini_)?batch$|:infer_batch$|:generate_sequences$|pipeline_parallel/schedules|:(?:finish"
        r"|start)_grad_sync$"
        r"|:_?optimizer_step$|core/optimizer/\w+\.py:(?:step|prepare_grads|clip|get_grad_norm)|:clip_grad"
        r"|megatron/core/\S+:(?:forward|_preprocess|_postprocess)$|autograd/\S+:backward$|:(?:load"
        r"|offload)_\w+_to_(?:gpu|cpu)$|megatron/bridge/\S+:forward$",
        cause="the training step failed",
        mend="Rerun the merge base with the same job; then read the innermost frame of Bridge or Megatron.",
        example='  File "verl/workers/megatron_workers.py", line 450, in compute_log_prob\n'
        "KeyError: 'key \"old_log_probs\" not found in TensorDict'",
        source="a user's log of a Megatron run",
    ),
    Rule(
        id="rollout-start",
        fault=Fault.OUTSIDE,
        stage=Stage.ROLLOUT_ENGINE,
        stood=_BEFORE_SYNC,
        calls=r"(?:^|/)(?:vllm|sglang|tensorrt_llm)/|:_build_rollout$|:launch_servers?$|:init_engine$"
        r"|:_?init\w*_llm_servers$"
        r"|rollout/(?:vllm|sglang|trtllm)_rollout|/llm_server\.py:|rollout/replica\.py:|async_server\.py:",
        cause="the rollout engine did not start",
        mend="Start the engine alone with the same arguments; check its version, backend and memory share.",
        example="optimizer config after override: {}\n"
        '  File "verl/workers/rollout/vllm_rollout/vllm_async_server.py", line 267, in init_engine\n'
        '  File "vllm/v1/engine/async_llm.py", line 143, in from_vllm_config\n'
        "ValueError: Using V1 AsyncLLMEngine, but envs.VLLM_USE_V1=False. This should not happen.",
        source="a user's log with VLLM_USE_V1=0",
    ),
    Rule(
        id="rollout-step",
        fault=Fault.CODE,
        stage=Stage.TRAIN_STEP,
        calls=r"(?:^|/)(?:vllm|sglang|tensorrt_llm)/|rollout/(?:vllm|sglang|trtllm)_rollout|agent_loop",
        cause="generation failed after weights had been synced",
        mend="Check what the last weight sync sent; rerun the merge base with the same job.",
        example="vLLM load weights, loaded_params: 56\n"
        '  File "vllm/v1/engine/core.py", line 320, in step\n'
        '  File "vllm/v1/worker/gpu_model_runner.py", line 2100, in execute_model\n'
        "RuntimeError: The size of tensor a (512) must match the size of tensor b (256)",
        source="vLLM's engine loop, frames as it prints them",
    ),
    Rule(
        id="optimizer",
        fault=Fault.CODE,
        stage=Stage.OPTIMIZER,
        calls=r":get_megatron_optimizer|megatron/core/optimizer/|/optimizer_config\.py:|:_build_optimizer$"
        r"|:init_megatron_optim_config$|:_build_lr_scheduler$|optimizer_param_scheduler",
        cause="the optimizer could not be set up",
        mend="Compare the optimizer's configuration with what this Megatron-Core supports.",
        example="Setting up optimizer with config OptimizerConfig(lr=0.001)\n"
        '  File "megatron/core/distributed/distributed_data_parallel.py", line 314, in __init__\n'
        '  File "megatron/core/optimizer/distrib_optimizer.py", line 688, in __init__\n'
        "AssertionError: Only Adam, HybridDeviceOptimizer, and optimizers with an init_state_fn are currently "
        "supported",
        source="Megatron-Core's distributed optimizer",
    ),
    Rule(
        id="optimizer-config",
        fault=Fault.CODE,
        stage=Stage.OPTIMIZER,
        message=r"OptimizerConfig\.__init__\(\)|OptimizerConfig' object has no",
        cause="the optimizer's configuration cannot be built",
        mend="Compare the field named with this Megatron-Core's OptimizerConfig.",
        example='Traceback (most recent call last):\n  File "train.py", line 50, in <module>\n'
        "TypeError: OptimizerConfig.__init__() got an unexpected keyword argument 'lr_decay'\n",
        source="Python, for a field that Megatron-Core does not have",
    ),
    Rule(
        id="fsdp-wrap",
        fault=Fault.CODE,
        stage=Stage.FSDP_WRAP,
        calls=r"core/distributed/fsdp/|fully_sharded_data_parallel\.py:__init__$|:FullyShardedDataParallel$"
        r"|:fully_shard"
        r"|megatron_fsdp/|:apply_fsdp|:_build_fsdp",
        cause="wrapping the model with FSDP failed",
        mend="Rerun with USE_MEGATRON_FSDP=False to separate FSDP from the provider; check sizes that FSDP supports.",
        example='  File "megatron/training/models/dist_utils.py", line 396, in _ddp_wrap\n'
        '  File "megatron/core/distributed/fsdp/mcore_fsdp_adapter.py", line 633, in _validate_config\n'
        "ValueError: v2 does not currently support: tensor_model_parallel_size=2",
        source="Megatron-Core's FSDP adapter",
    ),
    Rule(
        id="fsdp-config",
        fault=Fault.CODE,
        stage=Stage.FSDP_WRAP,
        message=r"megatron[-_ ]?fsdp|M-?FSDP|FullyShardedDataParallel|\bFSDP\b",
        cause="the FSDP configuration is not possible",
        mend="Compare the FSDP settings with what this Megatron-Core supports.",
        example='  File "megatron/core/distributed/distributed_data_parallel_config.py", line 257, in __post_init__\n'
        "ValueError: megatron_fsdp_version must be either 1 or 2",
        source="Megatron-Core's DDP configuration",
    ),
    Rule(
        id="ddp-wrap",
        fault=Fault.CODE,
        stage=Stage.DDP_WRAP,
        calls=r":_?ddp_wrap$|distributed_data_parallel|/param_and_grad_buffer\.py:|:create_ddp_config$"
        r"|:wrap_model_chunks|:_resolve_override_ddp_config$",
        cause="wrapping the model with DDP failed",
        mend="Check the DDP configuration against the process groups; rerun with wrap_with_ddp off to separate it.",
        example="Loading from the folder 100% (31/31) Qwen2Bridge\n"
        '  File "megatron/bridge/models/model_provider.py", line 698, in get_model\n'
        '  File "megatron/core/distributed/distributed_data_parallel.py", line 314, in __init__\n'
        "KeyError: 'module.decoder.layers.0.mlp.linear_fc1.to_wrap.weight'",
        source="Megatron-Core's DDP wrapper, frames as it prints them",
    ),
    Rule(
        id="ddp-config",
        fault=Fault.CODE,
        stage=Stage.DDP_WRAP,
        message=r"DistributedDataParallelConfig|ddp_config",
        cause="the DDP configuration cannot be built",
        mend="Compare the field named with this Megatron-Core's DistributedDataParallelConfig.",
        example='Traceback (most recent call last):\n  File "train.py", line 48, in <module>\n'
        "TypeError: DistributedDataParallelConfig.__init__() got an unexpected keyword argument "
        "'use_distributed_optimizers'\n",
        source="Python, for a misspelled field",
    ),
    Rule(
        id="peft",
        fault=Fault.CODE,
        stage=Stage.PEFT,
        calls=r"megatron/bridge/peft/|megatron_peft|:adapter_checkpoint_hook$|:peft_\w*hook$|(?:^|/)peft/",
        cause="LoRA could not be applied",
        mend="Reproduce with Bridge's PEFT tests; check target modules, rank and the layer that is wrapped.",
        example='  File "megatron/bridge/models/model_provider.py", line 666, in get_model\n'
        '  File "megatron/bridge/peft/lora.py", line 221, in transform\nValueError: Unsupported class (TELinear)',
        source="Megatron-Bridge, peft",
    ),
    Rule(
        id="hf-import",
        fault=Fault.CODE,
        stage=Stage.HF_IMPORT,
        calls=r":load_hf_weights$|:load_weights_hf_to_megatron$|conversion/model_bridge\.py:|/param_mapping\.py:"
        r"|hf_pretrained/state\.py:|:maybe_modify_loaded_hf_weight$|:load_megatron_gptmodel_weights$"
        r"|:load_state_dict_to_megatron"
        r"|mbridge/\S+:load_weights|:hf_to_megatron$",
        cause="importing the Hugging Face weights failed",
        mend="Reproduce with Bridge's conversion test of that family; compare the mapping with the keys of the "
        "checkpoint.",
        example='  File "megatron/bridge/models/model_provider.py", line 666, in get_model\n'
        '  File "megatron/bridge/models/hf_pretrained/state.py", line 643, in load_tensors\n'
        "KeyError: \"Keys not found in safetensors: {'model.norm.weight'}\"",
        source="Megatron-Bridge, hf_pretrained",
    ),
    Rule(
        id="parallel-init",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        calls=r":initialize_model_parallel$|:init_process_group$|:init_device_mesh$|/device_mesh\.py:"
        r"|:initialize_global_process_group"
        r"|:_init_device_mesh$|base/worker\.py:|:_setup_env",
        cause="processes, device mesh or parallel sizes could not be set up",
        mend="Check world size against TP, PP, CP, EP and batch sizes, and the GPUs that each worker sees.",
        example="Enabling LORA with rank=4, alpha=4\n"
        '  File "megatron/core/parallel_state.py", line 823, in initialize_model_parallel\n'
        "RuntimeError: world_size (2) is not divisible by 4",
        source="Megatron-Core's parallel_state",
    ),
    Rule(
        id="bridge-provider",
        fault=Fault.CODE,
        stage=Stage.BRIDGE_PROVIDER,
        calls=r"megatron/bridge/|/transformer_config\.py:|:_build_tf_config$|:_build_megatron_module$"
        r"|:make_megatron_module$"
        r"|:_init_hf_config_and_tf_config$|:hf_to_mcore_config|megatron/core/\S+:__init__$|/spec_utils\.py:"
        r"|/transformer_block\.py:"
        r"|:get_gpt_\w*spec|:initialize_layer$|verl/models/mcore/|:to_megatron_provider$|:_build_model$"
        r"|megatron/core/models/",
        cause="Bridge could not build the model",
        mend="Read the innermost frame of Bridge or Megatron; rerun the merge base with the same job.",
        example='  File "megatron/bridge/models/model_provider.py", line 747, in _create_model\n'
        '  File "megatron/core/transformer/transformer_block.py", line 156, in get_num_layers_to_build\n'
        "AssertionError: num_layers=4 should be divisible by config.pipeline_model_parallel_size=3",
        source="Megatron-Core, below Bridge's provider",
    ),
    Rule(
        id="model-download",
        fault=Fault.OUTSIDE,
        stage=Stage.MODEL_DOWNLOAD,
        calls=r"huggingface_hub/|transformers/\S+:(?:from_pretrained|_get_config_dict|cached_files?"
        r"|_from_pretrained)$|:hf_tokenizer$"
        r"|:hf_processor$|:copy_to_local|:snapshot_download|modelscope/",
        cause="the model's configuration, tokenizer or weights could not be read",
        mend="Snapshot the model completely and read it once before any worker starts.",
        example="Using dataset class: RLHFDataset\n"
        '  File "verl/utils/tokenizer/tokenizer.py", line 176, in hf_tokenizer\n'
        '  File "transformers/tokenization_utils_base.py", line 2100, in _from_pretrained\n'
        "Exception: data did not match any variant of untagged enum ModelWrapper at line 757371 column 3",
        source="tokenizers, for a file of a newer version",
    ),
    Rule(
        id="verl-config",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        calls=r"verl/workers/config/|verl/utils/config\.py:|verl/trainer/config/|:validate_config$",
        cause="verl refuses the run's configuration",
        mend="Change the key that the message names; compare with verl's configuration at the commit under test.",
        example="Using dataset class: RLHFDataset\n"
        '  File "verl/workers/config/actor.py", line 150, in __post_init__\n'
        "ValueError: [actor_rollout_ref.actor] Please set at least one of ppo_micro_batch_size and its _per_gpu form.",
        source="verl, workers/config",
    ),
    Rule(
        id="ray",
        fault=Fault.OUTSIDE,
        stage=Stage.RAY,
        calls=r"ray/_private/(?:worker|node|services)\.py:(?:init|connect|start\w*|__init__|wait\w*)$|:placement_group"
        r"|:_check_resource_available$|:create_resource_pool$|resource_pool|:get_placement_groups$"
        r"|:sort_placement_group",
        cause="Ray could not be started or has too few resources",
        mend="Give Ray its own RAY_TMPDIR with room and the CPUs and GPUs that the job asks for.",
        example='Total training steps: 1\n  File "ray/_private/worker.py", line 1927, in init\n'
        '  File "ray/_private/node.py", line 1407, in start_gcs_server\n'
        "RuntimeError: Timed out waiting for file in the session directory",
        source="Ray on a full disk",
    ),
    Rule(
        id="trainer",
        fault=Fault.CODE,
        stage=Stage.TRAIN_STEP,
        calls=r"(?:trainer\w*|trainer/\S+)\.py:(?:fit|step|_step_once|_validate)$",
        cause="the training loop failed",
        mend="Read the innermost frame; rerun the merge base with the same job.",
        example='ray_trainer without a milestone\n  File "verl/trainer/ppo/ray_trainer.py", line 1150, in fit\n'
        "IndexError: list index out of range",
        source="verl's trainer, frames as it prints them",
    ),
    Rule(
        id="model-build",
        fault=Fault.CODE,
        stage=Stage.BRIDGE_PROVIDER,
        calls=r":_build_\w*model\w*$|:init_model$|^ray::.*(?:init_model|_reset)$",
        cause="the model could not be built",
        mend="Read the innermost frame; rerun the merge base with the same job.",
        example='  File "verl/workers/engine_workers.py", line 643, in init_model\n'
        "NotImplementedError: Cannot copy out of meta tensor; no data!",
        source="PyTorch, for weights on the meta device",
    ),
    Rule(
        id="after-construction",
        fault=Fault.CODE,
        kind=r"(?:Error|Exception)$",
        stood=_AFTER_CONSTRUCTION,
        cause="an exception after Bridge had built the model",
        mend="Read the traceback; rerun the merge base with the same job.",
        example="Training Progress:  10%|x         | 1/10 [00:19<06:19, 19.99s/it]\n"
        'Traceback (most recent call last):\n  File "somewhere.py", line 12, in work\nValueError: no such thing',
        source="Python, for a run with code of its own",
    ),
)
