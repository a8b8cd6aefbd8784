"""A fragment of a real log for each rule of triage, or of the message in the source, that only this rule explains."""

EXAMPLES: dict[str, str] = {
    "interrupted": (
        "Training Progress:   5%|x         | 11/210 [1:17:48<24:01:11, 434.53s/it]\n"
        "Traceback (most recent call last):\n"
        '  File "verl/trainer/ppo/ray_trainer.py", line 858, in fit\n'
        "KeyboardInterrupt"
    ),
    "killed-by-signal": (
        "run_ppo_trainer_megatron.sh: line 271:  4711 Segmentation fault      (core dumped) python3 -m verl"
    ),
    "host-memory": (
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::TaskRunner.run() (pid=1, ip=192.0.2.2)\n"
        '  File "verl/trainer/ppo/ray_trainer.py", line 858, in fit\n'
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
    ),
    "host-limits": (
        '  File "verl/trainer/ppo/ray_trainer.py", line 1123, in fit\nOSError: [Errno 24] Too many open files'
    ),
    "disk-full": (
        '  File "verl/workers/fsdp_workers.py", line 495, in save_checkpoint\n'
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: "
        'StorageFull, message: "No space left on device" })'
    ),
    "gpu-sharing": (
        '  File "verl/workers/rollout/vllm_rollout/utils.py", line 310, in update_weights_from_ipc\n'
        '  File "torch/multiprocessing/reductions.py", line 181, in rebuild_cuda_tensor\n'
        "RuntimeError: pidfd_getfd: Operation not permitted"
    ),
    "storage": (
        "Loading from the folder 100% (31/31) Qwen2Bridge\n"
        '  File "verl/utils/checkpoint/megatron_checkpoint_manager.py", line 1173, in save_checkpoint\n'
        "OSError: [Errno 107] Transport endpoint is not connected"
    ),
    "rocr-and-cuda": (
        '  File "verl/single_controller/base/worker.py", line 260, in '
        "_setup_env_cuda_visible_devices\n"
        "ValueError: Please don't set ROCR_VISIBLE_DEVICES when HIP/CUDA_VISIBLE_DEVICES is set."
    ),
    "device-broke": (
        "Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        '  File "megatron/core/pipeline_parallel/schedules.py", line 451, in backward_step\n'
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    ),
    "device": (
        '  File "megatron/training/models/dist_utils.py", line 346, in _ddp_wrap\n'
        "torch.AcceleratorError: CUDA error: CUDA driver version is insufficient for CUDA runtime version"
    ),
    "hub-unreachable": (
        "'[Errno -2] Name or service not known' thrown while requesting HEAD the hub's config.json\n"
        "Retrying in 1s [Retry 1/5]."
    ),
    "network": (
        '  File "megatron/core/parallel_state.py", line 823, in initialize_model_parallel\n'
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. EADDRINUSE, message: address already in use"
    ),
    "engine-memory": (
        "all initialize finished, ready to fit\n"
        "step:1 - actor/loss:0.1 - actor/grad_norm:0.2\n"
        "Traceback (most recent call last):\n"
        '  File "vllm/v1/core/kv_cache_utils.py", line 527, in get_kv_cache_config\n'
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
        "when initializing the engine."
    ),
    "engine-cache": (
        "all initialize finished, ready to fit\n"
        "Traceback (most recent call last):\n"
        '  File "vllm/v1/core/kv_cache_utils.py", line 600, in check_enough_kv_cache_memory\n'
        "ValueError: To serve at least one request with the models's max seq len (131072), 6.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory."
    ),
    "rollout-sizes": (
        '  File "verl/workers/engine_workers.py", line 658, in init_model\n'
        "AssertionError: rollout world_size: 4 is not divisible by infer_world_size: 3"
    ),
    "import-between-trees": (
        "Traceback (most recent call last):\n"
        '  File "/opt/Megatron-Bridge/src/megatron/bridge/peft/lora.py", line 26, in <module>\n'
        "ImportError: cannot import name 'wildcard_match' from 'megatron.bridge.peft.utils' "
        "(/opt/Megatron-Bridge/src/megatron/bridge/peft/utils.py)"
    ),
    "extension-build": (
        '  File "megatron/core/nccl_allocator.py", line 87, in _build_nccl_allocator\n'
        '  File "torch/utils/cpp_extension.py", line 2792, in _get_cuda_arch_flags\n'
        "IndexError: list index out of range"
    ),
    "package-version": (
        '  File "fla/ops/common/chunk_o.py", line 728, in chunk_bwd_dqkwg\n'
        "RuntimeError: Triton >= 3.4.0 and < 3.7.1 on Hopper GPUs produces incorrect results for gated "
        "chunk_bwd_dqkwg (see #640). Please upgrade Triton to >= 3.7.1 or install tilelang: `pip install tilelang`"
    ),
    "missing-extension": (
        '  File "megatron/bridge/models/gpt_provider.py", line 294, in provide\n'
        '  File "megatron/core/tensor_parallel/layers.py", line 1115, in __init__\n'
        "RuntimeError: ColumnParallelLinear was called with gradient_accumulation_fusion set to True but "
        "the custom CUDA extension fused_weight_gradient_mlp_cuda module is not found."
    ),
    "import-error": (
        '  File "verl/workers/fsdp_workers.py", line 207, in _build_model_optimizer\n'
        "ImportError: cannot import name 'LlamaFroCausalLM' from "
        "'transformers.models.llama.modeling_llama'"
    ),
    "gpu-occupied": (
        '  File "verl/workers/megatron_workers.py", line 561, in init_model\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. Process 331 has 77.00 GiB "
        "memory in use. Including non-PyTorch memory, this process has 600.00 MiB memory in use."
    ),
    "gpu-memory": (
        '  File "verl/workers/critic/dp_critic.py", line 273, in update_critic\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 446.00 MiB."
    ),
    "tracking": (
        '  File "verl/trainer/ppo/ray_trainer.py", line 1400, in fit\n'
        '  File "verl/utils/tracking.py", line 60, in __init__\n'
        "wandb.errors.errors.UsageError: api_key not configured (no-tty). call "
        "wandb.login(key=[your_api_key])"
    ),
    "tracking-late": (
        "Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        '  File "verl/trainer/ppo/v1/trainer_base.py", line 453, in fit\n'
        '  File "verl/utils/tracking.py", line 190, in log\n'
        "mlflow.exceptions.MlflowException: API request failed"
    ),
    "collective-timeout": (
        "Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        "[rank0]:[E1120 14:10:32.3 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)"
    ),
    "damaged-file": (
        '  File "megatron/bridge/models/hf_pretrained/state.py", line 610, in load_tensors\n'
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: header too large"
    ),
    "reward-model-files": (
        '  File "verl/experimental/reward_loop/reward_model.py", line 60, in __init__\n'
        '  File "verl/utils/tokenizer/tokenizer.py", line 176, in hf_tokenizer\n'
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'"
    ),
    "model-files": (
        '  File "megatron/bridge/models/conversion/auto_bridge.py", line 578, in from_hf_pretrained\n'
        "ValueError: Unrecognized model in the folder. Should have a `model_type` key in its config.json."
    ),
    "tokenizer-contents": (
        '  File "verl/utils/tokenizer/continuous_token.py", line 640, in require_token_id\n'
        "ValueError: Tokenizer does not define required token '<|end|>'\n"
        "hydra.errors.InstantiationException: Error in call to target "
        "'verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop':"
    ),
    "given-path": (
        '  File "megatron/bridge/training/setup.py", line 210, in setup\n'
        "ValueError: Invalid pretrained checkpoint directory found: /models/hf"
    ),
    "worker-died": (
        "Started a local Ray instance.\n"
        "(raylet) A worker died or was killed while executing a task by an unexpected system error."
    ),
    "ray-resources": (
        '  File "verl/trainer/ppo/v1/trainer_base.py", line 733, in _setup\n'
        "ValueError: Total available GPUs 1.0 is less than total desired GPUs 4"
    ),
    "ray-start": (
        "Connecting to existing Ray cluster at address: 192.0.2.2:6399...\n"
        "gcs_client.cc:210: Failed to get cluster ID from GCS server: TimedOut: Timed out while waiting"
    ),
    "hydra": (
        "Using dataset class: RLHFDataset\n"
        "Could not override 'actor_rollout_ref.actor.megatron.use_megatron_fsdpx'.\n"
        "Key 'use_megatron_fsdpx' is not in struct"
    ),
    "skyrl-configuration": (
        "Traceback (most recent call last):\n"
        '  File "skyrl/train/entrypoints/main_base.py", line 360, in main\n'
        "    cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])\n"
        '  File "skyrl/train/config/config.py", line 1573, in validate_dict_keys_against_dataclass\n'
        "ValueError: Invalid fields {'use_megatron_fsdp'} for MegatronDDPConfig. Valid fields are {'ddp_config'}."
    ),
    "shell": ("Total training steps: 1\nrun_ppo_trainer_megatron.sh: line 12: python3: command not found"),
    "state-dict": (
        '  File "verl/workers/engine_workers.py", line 88, in __init__\n'
        "RuntimeError: Error(s) in loading state_dict for GPTModel:"
    ),
    "not-finite": (
        "all initialize finished, ready to fit\n"
        "Traceback (most recent call last):\n"
        '  File "megatron/core/rerun_state_machine.py", line 534, in validate_result\n'
        "RuntimeError: Rank 0, iteration 0: Unexpected result nan (message='found NaN in local grad norm "
        "for bucket #0')"
    ),
    "provider-mpu-sizes": (
        '  File "megatron/bridge/models/conversion/auto_bridge.py", line 700, in load_hf_weights\n'
        '  File "megatron/bridge/models/conversion/model_bridge.py", line 1345, in load_weights_hf_to_megatron\n'
        "ValueError: Shape mismatch for megatron param decoder.layers.0.mlp.linear_fc1.weight:"
    ),
    "export-strict": (
        '  File "verl/utils/checkpoint/megatron_checkpoint_manager.py", line 600, in save_checkpoint\n'
        '  File "megatron/bridge/models/hf_pretrained/state.py", line 870, in save_generator\n'
        "RuntimeError: 2 tensors from the original checkpoint were not written. Re-run with strict=False to save the "
        "partial checkpoint instead of failing."
    ),
    "too-few-rows": (
        '  File "verl/trainer/fsdp_sft_trainer.py", line 716, in fit\n'
        "ZeroDivisionError: integer division or modulo by zero"
    ),
    "adapter-path": (
        "ray::WorkerDict.actor_rollout_init_model() (pid=1, ip=192.0.2.2)\n"
        '  File "verl/workers/megatron_workers.py", line 232, in _init_hf_config_and_tf_config\n'
        "AssertionError: LoRA/PEFT only supported via Megatron-Bridge"
    ),
    "checkpoint-save": (
        '  File "verl/workers/engine_workers.py", line 722, in save_checkpoint\n'
        '  File "megatron/bridge/models/conversion/model_bridge.py", line 1542, in '
        "stream_weights_megatron_to_hf\n"
        "ValueError: Object must exist on at least one PP rank"
    ),
    "checkpoint-load": (
        '  File "verl/trainer/ppo/ray_trainer.py", line 1123, in fit\n'
        '  File "torchdata/stateful_dataloader/stateful_dataloader.py", line 1477, in _restore_main_state\n'
        "StopIteration"
    ),
    "reward": (
        '  File "verl/trainer/ppo/ray_trainer.py", line 996, in fit\n'
        '  File "verl/workers/reward_manager/naive.py", line 64, in __call__\n'
        '  File "verl/utils/reward_score/__init__.py", line 37, in _default_compute_score\n'
        "NotImplementedError"
    ),
    "failed-import": (
        '  File "<string>", line 1, in <module>\n'
        '  File "megatron/bridge/__init__.py", line 21, in <module>\n'
        '  File "megatron/core/dist_checkpointing/strategies/nvrx.py", line 85, in is_nvrx_min_version\n'
        "AttributeError: module 'nvidia_resiliency_ext' has no attribute '__version__'"
    ),
    "data": (
        "Started a local Ray instance.\n"
        '  File "verl/trainer/ppo/v1/trainer_base.py", line 657, in _init_dataloader\n'
        '  File "datasets/data_files.py", line 405, in resolve_pattern\n'
        "FileNotFoundError: Unable to find the train parquet"
    ),
    "weight-sync": (
        '  File "verl/workers/engine_workers.py", line 760, in update_weights\n'
        '  File "megatron/bridge/models/conversion/param_mapping.py", line 479, in '
        "broadcast_obj_from_pp_rank\n"
        "ValueError: Object must exist on at least one PP rank"
    ),
    "train-step": (
        '  File "verl/workers/megatron_workers.py", line 450, in compute_log_prob\n'
        "KeyError: 'key \"old_log_probs\" not found in TensorDict'"
    ),
    "rollout-start": (
        "optimizer config after override: {}\n"
        '  File "verl/workers/rollout/vllm_rollout/vllm_async_server.py", line 267, in init_engine\n'
        '  File "vllm/v1/engine/async_llm.py", line 143, in from_vllm_config\n'
        "ValueError: Using V1 AsyncLLMEngine, but envs.VLLM_USE_V1=False. This should not happen."
    ),
    "rollout-step": (
        "vLLM load weights, loaded_params: 56\n"
        '  File "vllm/v1/engine/core.py", line 320, in step\n'
        '  File "vllm/v1/worker/gpu_model_runner.py", line 2100, in execute_model\n'
        "RuntimeError: The size of tensor a (512) must match the size of tensor b (256)"
    ),
    "optimizer": (
        "Setting up optimizer with config OptimizerConfig(lr=0.001)\n"
        '  File "megatron/core/distributed/distributed_data_parallel.py", line 314, in __init__\n'
        '  File "megatron/core/optimizer/distrib_optimizer.py", line 688, in __init__\n'
        "AssertionError: Only Adam, HybridDeviceOptimizer, and optimizers with an init_state_fn are "
        "currently supported"
    ),
    "optimizer-config": (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 50, in <module>\n'
        "TypeError: OptimizerConfig.__init__() got an unexpected keyword argument 'lr_decay'\n"
    ),
    "fsdp-wrap": (
        '  File "megatron/training/models/dist_utils.py", line 396, in _ddp_wrap\n'
        '  File "megatron/core/distributed/fsdp/mcore_fsdp_adapter.py", line 633, in _validate_config\n'
        "ValueError: v2 does not currently support: tensor_model_parallel_size=2"
    ),
    "fsdp-config": (
        '  File "megatron/core/distributed/distributed_data_parallel_config.py", line 257, in '
        "__post_init__\n"
        "ValueError: megatron_fsdp_version must be either 1 or 2"
    ),
    "ddp-wrap": (
        "Loading from the folder 100% (31/31) Qwen2Bridge\n"
        '  File "megatron/bridge/models/model_provider.py", line 698, in get_model\n'
        '  File "megatron/core/distributed/distributed_data_parallel.py", line 314, in __init__\n'
        "KeyError: 'module.decoder.layers.0.mlp.linear_fc1.to_wrap.weight'"
    ),
    "ddp-config": (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 48, in <module>\n'
        "TypeError: DistributedDataParallelConfig.__init__() got an unexpected keyword argument "
        "'use_distributed_optimizers'\n"
    ),
    "peft": (
        '  File "megatron/bridge/models/model_provider.py", line 666, in get_model\n'
        '  File "megatron/bridge/peft/lora.py", line 221, in transform\n'
        "ValueError: Unsupported class (TELinear)"
    ),
    "hf-config": (
        '  File "megatron/bridge/models/conversion/auto_bridge.py", line 1968, in to_megatron_provider\n'
        '  File "megatron/bridge/models/conversion/model_bridge.py", line 529, in hf_to_megatron_activation\n'
        "ValueError: Unsupported activation function: nonsense. Supported: ['gelu', 'relu', 'silu']"
    ),
    "hf-import": (
        '  File "megatron/bridge/models/model_provider.py", line 666, in get_model\n'
        '  File "megatron/bridge/models/hf_pretrained/state.py", line 643, in load_tensors\n'
        "KeyError: \"Keys not found in safetensors: {'model.norm.weight'}\""
    ),
    "parallel-init": (
        "Enabling LORA with rank=4, alpha=4\n"
        '  File "megatron/core/parallel_state.py", line 823, in initialize_model_parallel\n'
        "RuntimeError: world_size (2) is not divisible by 4"
    ),
    "bridge-provider": (
        '  File "megatron/bridge/models/model_provider.py", line 747, in _create_model\n'
        '  File "megatron/core/transformer/transformer_block.py", line 156, in get_num_layers_to_build\n'
        "AssertionError: num_layers=4 should be divisible by config.pipeline_model_parallel_size=3"
    ),
    "model-part": (
        '  File "verl/workers/megatron_workers.py", line 410, in _build_model_optimizer\n'
        '  File "megatron/core/transformer/transformer_config.py", line 901, in __post_init__\n'
        "ValueError: num_attention_heads (16) must be a multiple of num_query_groups (3)."
    ),
    "model-download": (
        "Using dataset class: RLHFDataset\n"
        '  File "verl/utils/tokenizer/tokenizer.py", line 176, in hf_tokenizer\n'
        '  File "transformers/tokenization_utils_base.py", line 2100, in _from_pretrained\n'
        "ValueError: Non-consecutive added token found in the saved vocabulary"
    ),
    "verl-config": (
        "Using dataset class: RLHFDataset\n"
        '  File "verl/workers/config/actor.py", line 150, in __post_init__\n'
        "ValueError: [actor_rollout_ref.actor] Please set at least one of ppo_micro_batch_size and its "
        "_per_gpu form."
    ),
    "ray": (
        "Total training steps: 1\n"
        '  File "ray/_private/worker.py", line 1927, in init\n'
        '  File "ray/_private/node.py", line 1407, in start_gcs_server\n'
        "RuntimeError: Timed out waiting for file in the session directory"
    ),
    "trainer": (
        "ray_trainer without a milestone\n"
        '  File "verl/trainer/ppo/ray_trainer.py", line 1150, in fit\n'
        "IndexError: list index out of range"
    ),
    "model-build": (
        '  File "verl/workers/engine_workers.py", line 643, in init_model\n'
        "NotImplementedError: Cannot copy out of meta tensor; no data!"
    ),
    "watchdog": (
        "Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        "Watchdog timeout (self.watchdog_timeout=300, self.soft=False)"
    ),
    "native-error": (
        "Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        "F1120 14:10:32.300000 77 tensor.cc:12] Check failed: rows == columns"
    ),
    "failed-exit": (
        "Training Progress: 100%|x| 1/1 [00:19<00:00, 19.99s/it]\nsrun: error: n1: task 0: Exited with exit code 1"
    ),
    "after-construction": (
        "Training Progress:  10%|x         | 1/10 [00:19<06:19, 19.99s/it]\n"
        "Traceback (most recent call last):\n"
        '  File "somewhere.py", line 12, in work\n'
        "ValueError: no such thing"
    ),
    "other-checkout": (
        "+ PYTHONPATH=/src/bridge/src:/src/bridge/3rdparty/Megatron-LM\n"
        "/usr/lib/python3/site-packages/megatron/bridge/models/qwen/qwen2_bridge.py:48: FutureWarning: old\n"
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "not-as-asked": (
        "+ LORA_RANK=4\nEnabling LORA with rank=8, alpha=8, dropout=0.0\n"
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "adapter-empty": (
        "Enabling LORA with rank=4, alpha=4, dropout=0.0\nPEFT Adapter Information\n"
        "Total parameters:     17,940,992\nAdapter parameters:   0\n"
    ),
    "weights-unmapped": (
        "WARNING:2025-11-11 03:39:09,185:WARNING: No mapping found for megatron_param: "
        "decoder.layers.0.self_attention.linear_proj.to_wrap.weight"
    ),
    "export-incomplete": (
        "Loading from the folder 100% (31/31) Qwen2Bridge\n"
        "Error: 2 tensors from the original checkpoint were not written. See warnings above for details."
    ),
    "weights-refused": (
        "(vLLMHttpServer pid=9) WARNING 11-20 14:34:20 [qwen3_next.py:301] Parameter "
        "layers.3.mlp.gate.weight not found in params_dict, skip loading\n"
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "rollout-from-file": (
        "[RolloutSkip()] Load generate result at step 1 from /data/dump\n"
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "no-samples": (
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - response/aborted_ratio:1.0\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "metrics-not-finite": (
        "step:1 - actor/loss:0.5 - actor/grad_norm:nan - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "agreement-unknown": (
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - "
        "training/rollout_actor_probs_pearson_corr:nan\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "actor-not-updated": (
        "step:1 - critic/score/mean:0.5 - critic/grad_norm:0.25 - critic/vf_loss:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "advantage-zero": (
        "step:1 - actor/grad_norm:0.0 - critic/advantages/max:0.0 - critic/advantages/min:0.0\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "gradient-zero": (
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.0 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "rollout-disagrees": (
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - "
        "training/rollout_actor_probs_pearson_corr:0.44\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    ),
    "rate-zero": (
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - actor/lr:0.0\n"
        "step:2 - actor/loss:0.5 - actor/grad_norm:0.25 - actor/lr:0.0\n"
        "Training Progress: 100%|###| 2/2 [00:01<00:00, 1.0s/it]"
    ),
    "reward-constant": (
        "step:1 - actor/grad_norm:0.25 - critic/score/mean:1.0 - actor/loss:0.5\n"
        "step:2 - actor/grad_norm:0.35 - critic/score/mean:1.0 - actor/loss:0.4\n"
        "step:3 - actor/grad_norm:0.45 - critic/score/mean:1.0 - actor/loss:0.3\n"
        "Training Progress: 100%|###| 3/3 [00:01<00:00, 1.0s/it]"
    ),
}
