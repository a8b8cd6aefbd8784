"""Rules that recognise an error by its words: most of them faults that no change to Bridge can cause."""

from bot.core.stages import Stage
from bot.core.triage_rules import Fault, Rule

CAUSES: tuple[Rule, ...] = (
    Rule(
        id="interrupted",
        fault=Fault.OUTSIDE,
        kind=r"^(?:KeyboardInterrupt|Terminated|Cancelled|SystemExit|SignalException)$|SignalException",
        cause="the run was interrupted or terminated from outside",
        mend="Rerun; when the time limit ended it, raise the limit or find what stalled before it.",
        example="Training Progress:   5%|x         | 11/210 [1:17:48<24:01:11, 434.53s/it]\n"
        'Traceback (most recent call last):\n  File "verl/trainer/ppo/ray_trainer.py", line 858, in fit\n'
        "KeyboardInterrupt",
        source="a user's log of a Megatron run that was stopped by hand",
    ),
    Rule(
        id="killed-by-signal",
        fault=Fault.OUTSIDE,
        kind=r"^(?:Signal|Killed)$",
        cause="a process died of a signal",
        mend="Look at the host's kernel log for the reason (memory, device), then rerun on another host.",
        example="run_ppo_trainer_megatron.sh: line 271:  4711 Segmentation fault      (core dumped) python3 -m verl",
        source="bash, as it reports a child that died of SIGSEGV",
    ),
    Rule(
        id="host-memory",
        fault=Fault.OUTSIDE,
        message=r"(?i)running low on memory|oom[-_ ]kill|ray\.exceptions\.OutOfMemoryError|Cannot allocate memory"
        r"|can't allocate memory|std::bad_alloc|^HostMemory",
        cause="the host ran out of memory",
        mend="Give the job more host memory, or lower workers, offload and batch sizes.",
        example="ray.exceptions.RayTaskError(OutOfMemoryError): ray::TaskRunner.run() (pid=1, ip=192.0.2.2)\n"
        '  File "verl/trainer/ppo/ray_trainer.py", line 858, in fit\n'
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        source="Ray's memory monitor",
    ),
    Rule(
        id="host-limits",
        fault=Fault.OUTSIDE,
        message=r"Too many open files|can't start new thread|Resource temporarily unavailable|insufficient "
        r"shared memory"
        r"|\(shm\)|/dev/shm|pthread_create",
        cause="the host's limits on files, threads or shared memory were reached",
        mend="Raise ulimit -n and -u and the container's --shm-size, or lower the number of workers.",
        example='  File "verl/trainer/ppo/ray_trainer.py", line 1123, in fit\nOSError: [Errno 24] Too many open files',
        source="Python, at the limit of open files",
    ),
    Rule(
        id="disk-full",
        fault=Fault.OUTSIDE,
        message=r"No space left on device|Disk quota exceeded|StorageFull|os error 28\b|Errno (?:28|122)\b"
        r"|Read-only file system|Stale file handle|Input/output error|^NoSpace|^PermissionError",
        cause="storage failed: no space, no quota or no writable disk",
        mend="Free space or point checkpoints, TMPDIR and HF_HOME to a disk with room, then rerun.",
        example='  File "verl/workers/fsdp_workers.py", line 495, in save_checkpoint\n'
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, "
        'message: "No space left on device" })',
        source="a user's log of a save on a full disk",
    ),
    Rule(
        id="device",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        message=r"CUDA driver version is insufficient|driver/library version mismatch|no CUDA-capable device"
        r"|No CUDA GPUs are available|no GPUs found|Found no NVIDIA driver|Torch not compiled with CUDA"
        r"|no kernel image is available|invalid device ordinal|devices? (?:is|are) busy or unavailable|NVML"
        r"|ECC error|fallen off the bus|GPU is lost|CUDA initialization|cudaErrorInsufficientDriver"
        r"|Please don't set ROCR_VISIBLE_DEVICES|nvidia-smi|^DeviceError|unspecified launch failure"
        r"|Invalid device id|system not yet initialized|out of range for visible devices",
        cause="the host's GPU, driver or device variables are not usable",
        mend="Check the driver, the GPUs that the job sees and *_VISIBLE_DEVICES on that host.",
        example='  File "megatron/training/models/dist_utils.py", line 346, in _ddp_wrap\n'
        "torch.AcceleratorError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        source="PyTorch on a host without a driver",
    ),
    Rule(
        id="hub-unreachable",
        fault=Fault.OUTSIDE,
        stage=Stage.MODEL_DOWNLOAD,
        message=r"^HubUnreachable|Max retries exceeded|couldn't connect to|Connection error, and we cannot find"
        r"|LocalEntryNotFound|outgoing traffic has been disabled|OfflineModeIsEnabled|offline mode is enabled"
        r"|Name or service not known|(?:HTTPSConnectionPool|ReadTimeout|ConnectTimeout)",
        cause="the model hub cannot be reached",
        mend="Snapshot the model on a connected host and give its path, or open the hub to this host.",
        example="'[Errno -2] Name or service not known' thrown while requesting HEAD the hub's config.json\n"
        "Retrying in 1s [Retry 1/5].",
        source="the hub client on a host without name resolution",
    ),
    Rule(
        id="network",
        fault=Fault.OUTSIDE,
        message=r"unhandled system error|ncclSystemError|ncclRemoteError|Connection refused|No route to host"
        r"|Network is unreachable|EADDRINUSE|[Aa]ddress already in use|Temporary failure in name resolution"
        r"|DistNetworkError|DistStoreError|Could not find a free port",
        cause="processes or hosts could not reach each other",
        mend="Check ports, interfaces (NCCL_SOCKET_IFNAME) and that no other run holds the address; rerun.",
        example='  File "megatron/core/parallel_state.py", line 823, in initialize_model_parallel\n'
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "EADDRINUSE, message: address already in use",
        source="PyTorch's TCPStore on a taken port",
    ),
    Rule(
        id="engine-memory",
        fault=Fault.OUTSIDE,
        stage=Stage.ROLLOUT_ENGINE,
        message=r"No available memory for the cache blocks|Free memory on device .* less than desired"
        r"|(?:KV|kv) cache .*(?:needed|memory)|larger than the maximum number of tokens that can be stored in KV"
        r"|Not enough memory\. Please try (?:to )?increas",
        cause="the rollout engine found too little free GPU memory",
        mend="Free the GPU (one run a host) or change rollout.gpu_memory_utilization.",
        example="all initialize finished, ready to fit\nstep:1 - actor/loss:0.1 - actor/grad_norm:0.2\n"
        "Traceback (most recent call last):\n"
        '  File "vllm/v1/core/kv_cache_utils.py", line 527, in get_kv_cache_config\n'
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.",
        source="vLLM's key-value cache set-up",
    ),
    Rule(
        id="extension-build",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        calls=r"torch/utils/cpp_extension\.py:",
        cause="a CUDA extension could not be built on this host",
        mend="Install the extension in the image, give it compiler and TORCH_CUDA_ARCH_LIST, or switch the "
        "feature off.",
        example='  File "megatron/core/nccl_allocator.py", line 87, in _build_nccl_allocator\n'
        '  File "torch/utils/cpp_extension.py", line 2792, in _get_cuda_arch_flags\n'
        "IndexError: list index out of range",
        source="Megatron-Core building its NCCL allocator without a GPU target",
    ),
    Rule(
        id="missing-extension",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        message=r"requires? (?:the )?[^.]{0,80}(?:but (?:it )?(?:is )?not (?:found|installed|available)|extensions? \()"
        r"|custom CUDA extension \w+ module is not found|undefined symbol|cannot open shared object file"
        r"|GLIBC\w*_[\d.]+' not found|(?:is|are) not installed|[Pp]lease (?:\w+ )?(?:pip3? )?install|must install"
        r"|pip3? install|wheel is not built|compiled without|No module named '?(?:apex|transformer_engine|flash_attn)"
        r"|No package metadata was found|DistributionNotFound",
        cause="the image lacks a package or a compiled extension",
        mend="Install it in the image, or switch the feature that needs it off in the site profile.",
        example='  File "megatron/bridge/models/gpt_provider.py", line 294, in provide\n'
        '  File "megatron/core/tensor_parallel/layers.py", line 1115, in __init__\n'
        "RuntimeError: ColumnParallelLinear was called with gradient_accumulation_fusion set to True but the custom "
        "CUDA extension fused_weight_gradient_mlp_cuda module is not found.",
        source="a Level 0 run of ours on an image without apex",
    ),
    Rule(
        id="import-error",
        fault=Fault.OUTSIDE,
        stage=Stage.IMPORT,
        kind=r"^(?:ModuleNotFoundError|ImportError)$",
        cause="a module could not be imported",
        mend="Check PYTHONPATH (checkout first, nothing in site-packages) and the versions of the package named.",
        example='  File "verl/workers/fsdp_workers.py", line 207, in _build_model_optimizer\n'
        "ImportError: cannot import name 'LlamaFroCausalLM' from 'transformers.models.llama.modeling_llama'",
        source="a user's log: verl's monkey patch of transformers",
    ),
    Rule(
        id="gpu-memory",
        fault=Fault.CODE,
        message=r"CUDA out of memory|(?:CUDA|Cuda|torch)\.?OutOfMemoryError|Ran out of memory in memory space"
        r"|OutOfMemoryError"
        r"|CUBLAS_STATUS_ALLOC_FAILED|(?:NPU|HIP) out of memory|cudaErrorMemoryAllocation|CUDA error: out of memory",
        cause="the accelerator ran out of memory",
        mend="Climb the OOM ladder: per-GPU load, micro-batch, response length, then nodes.",
        example='  File "verl/workers/critic/dp_critic.py", line 273, in update_critic\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 446.00 MiB.",
        source="a user's log of a step on a shared GPU",
    ),
    Rule(
        id="tracking",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        calls=r"verl/utils/tracking\.py:|(?:^|/)(?:wandb|mlflow|swanlab|trackio)/",
        cause="the experiment tracker refused or could not be reached",
        mend="Run with trainer.logger=console, or give the tracker its key and network.",
        example='  File "verl/trainer/ppo/ray_trainer.py", line 1400, in fit\n'
        '  File "verl/utils/tracking.py", line 60, in __init__\n'
        "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        source="wandb, below verl's tracking",
    ),
    Rule(
        id="collective-timeout",
        fault=Fault.CODE,
        kind=r"^CollectiveTimeout$",
        cause="ranks waited for each other in vain",
        mend="Find the rank that is missing from the collective named; compare its last line with the others'.",
        example="Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        "[rank0]:[E1120 14:10:32.3 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=4, OpType=ALLREDUCE)",
        source="PyTorch's NCCL watchdog",
    ),
    Rule(
        id="reward-model-files",
        fault=Fault.OUTSIDE,
        stage=Stage.REWARD_MODEL,
        kind=r"^(?:OSError|FileNotFoundError|ValueError|\S*HFValidationError|\S*RepositoryNotFoundError)$",
        calls=r"(?:reward_loop|reward_model|reward_manager)[\s\S]*:(?:from_pretrained|hf_tokenizer|cached_files?"
        r"|copy_to_local)",
        cause="the reward model's files are missing or not readable",
        mend="Give RM_MODEL_PATH a complete snapshot, or run with reward.reward_model.enable=False.",
        example='  File "verl/experimental/reward_loop/reward_model.py", line 60, in __init__\n'
        '  File "verl/utils/tokenizer/tokenizer.py", line 176, in hf_tokenizer\n'
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'",
        source="transformers, below verl's reward model",
    ),
    Rule(
        id="model-files",
        fault=Fault.OUTSIDE,
        stage=Stage.MODEL_DOWNLOAD,
        message=r"is not a valid JSON file|Should have a `?model_type`? key|no file named|Repo id must be"
        r"|HFValidationError|not a valid model identifier|is not a local folder|Incorrect path_or_model_id"
        r"|gated repo|GatedRepo|RepositoryNotFound|EntryNotFound|RevisionNotFound|(?:401|403|404) Client Error"
        r"|Can't load (?:the )?(?:tokenizer|config|feature|image)|does not appear to have a file named"
        r"|Couldn't instantiate the backend tokenizer|[Tt]okenizer class \S+ does not exist"
        r"|No \.safetensors files or index found|Unable to load (?:vocabulary|weights)",
        cause="the model's files are missing, incomplete or not allowed",
        mend="Snapshot the model completely, check path and token, and read it once before any worker starts.",
        example='  File "megatron/bridge/models/conversion/auto_bridge.py", line 578, in from_hf_pretrained\n'
        "ValueError: Unrecognized model in the folder. Should have a `model_type` key in its config.json.",
        source="transformers, below Bridge's AutoBridge",
    ),
    Rule(
        id="ray-resources",
        fault=Fault.OUTSIDE,
        stage=Stage.RAY,
        message=r"Total available (?:GPUs|NPUs|resources?) \S+ is less than|less than total desired GPUs|^RayResources"
        r"|placement group .*(?:timed? ?out|infeasible|cannot be)|No available node types|not enough nodes|no "
        r"enough nodes"
        r"|bundle count cannot satisfy",
        cause="Ray has fewer GPUs, CPUs or nodes than the job asks for",
        mend="Give Ray the resources (num_cpus, GPUs) or lower what the job asks for.",
        example='  File "verl/trainer/ppo/v1/trainer_base.py", line 733, in _setup\n'
        "ValueError: Total available GPUs 1.0 is less than total desired GPUs 4",
        source="verl's resource pool manager",
    ),
    Rule(
        id="ray-start",
        fault=Fault.OUTSIDE,
        stage=Stage.RAY,
        message=r"^GcsUnreachable|Timed out waiting for file .*gcs|Failed to connect to GCS|GCS .*(?:timed out"
        r"|unavailable)"
        r"|^RayError|RuntimeEnvSetupError|Failed to register worker|Could not find any running Ray instance|Ray "
        r"Client|raylet "
        r".*(?:failed|died)"
        r"|Can't find a `?node_ip_address|session_\S* .*different|Version mismatch: The cluster was started with",
        cause="Ray did not start, or its cluster cannot be reached",
        mend="Give Ray its own RAY_TMPDIR with room, unset a stale RAY_ADDRESS, and check the head node.",
        example="Connecting to existing Ray cluster at address: 192.0.2.2:6399...\n"
        "gcs_client.cc:210: Failed to get cluster ID from GCS server: TimedOut: Timed out while waiting",
        source="Ray's client of a cluster that is gone",
    ),
    Rule(
        id="worker-died",
        fault=Fault.OUTSIDE,
        message=r"^WorkerDied|worker (?:process )?(?:has )?died|The actor died unexpectedly before|Worker exit "
        r"type: SYSTEM_ERROR",
        cause="a worker died without saying why",
        mend="Look at the host's kernel log and Ray's worker logs; rerun on another host.",
        example="Started a local Ray instance.\n"
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
        source="Ray's raylet",
    ),
    Rule(
        id="hydra",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        message=r"^(?:ConfigCompositionException|OverrideParseException|MissingConfigException|ArgumentError)\b"
        r"|^omegaconf\.errors|^hydra\.errors|Missing mandatory value|is not in struct|Missing key \w+$",
        cause="the launch command or its configuration is wrong",
        mend="Compare the override named with verl's Hydra configuration at the commit under test.",
        example="Using dataset class: RLHFDataset\n"
        "Could not override 'actor_rollout_ref.actor.megatron.use_megatron_fsdpx'.\n"
        "Key 'use_megatron_fsdpx' is not in struct",
        source="Hydra, for a misspelled key of verl's configuration",
    ),
    Rule(
        id="shell",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        kind=r"^ShellError$",
        cause="the wrapper script itself failed",
        mend="Read the line that bash names; a command, a variable or a file of the wrapper is missing.",
        example="Total training steps: 1\nrun_ppo_trainer_megatron.sh: line 12: python3: command not found",
        source="bash, on an image without the interpreter",
    ),
    Rule(
        id="state-dict",
        fault=Fault.CODE,
        stage=Stage.CHECKPOINT_LOAD,
        message=r"Error\(s\) in loading state_dict|Missing key\(s\) in state_dict",
        cause="the checkpoint does not fit the model, or cannot be read",
        mend="Compare the checkpoint's keys and parallel sizes with the model's; rerun with SAVE_FREQ=-1 to "
        "separate construction.",
        example='  File "verl/workers/engine_workers.py", line 88, in __init__\n'
        "RuntimeError: Error(s) in loading state_dict for GPTModel:",
        source="PyTorch, for a LoRA checkpoint read into a plain model",
    ),
    Rule(
        id="not-finite",
        fault=Fault.CODE,
        stage=Stage.TRAIN_STEP,
        message=r"found (?:NaN|Inf|inf|nan)|Unexpected result (?:nan|inf)|probability tensor contains either|^NotFinite"
        r"|(?:loss|grad\w*) (?:is|are|contains?) (?:NaN|nan|inf|not finite)",
        cause="the step produced NaN or infinity",
        mend="Find the first tensor that is not finite: run the step in fp32 with anomaly detection.",
        example="all initialize finished, ready to fit\n"
        "Traceback (most recent call last):\n"
        '  File "megatron/core/rerun_state_machine.py", line 534, in validate_result\n'
        "RuntimeError: Rank 0, iteration 0: Unexpected result nan (message='found NaN in local grad norm for "
        "bucket #0')",
        source="Megatron-Core's gradient check",
    ),
    Rule(
        id="too-few-rows",
        fault=Fault.OUTSIDE,
        stage=Stage.DATA,
        kind=r"^ZeroDivisionError$",
        calls=r"trainer\w*\.py:\w+\Z",
        cause="the data set has fewer rows than one batch",
        mend="Give more rows or lower the batch size.",
        example='  File "verl/trainer/fsdp_sft_trainer.py", line 716, in fit\n'
        "ZeroDivisionError: integer division or modulo by zero",
        source="a user's log of verl's SFT trainer",
    ),
    Rule(
        id="adapter-path",
        fault=Fault.CODE,
        stage=Stage.PEFT,
        message=r"\bLoRA\b|\bPEFT\b|\blora_(?:rank|alpha|A|B)\b|target_modules|wrapped linear|Layer type is "
        r"unrecognized",
        stood=frozenset({Stage.ENVIRONMENT, Stage.RAY, Stage.DATA, Stage.BRIDGE_PROVIDER, Stage.HF_IMPORT, Stage.PEFT}),
        calls=r"\A(?![\s\S]*(?:vllm|sglang)/)",
        cause="LoRA could not be applied",
        mend="Use the Bridge provider path (vanilla_mbridge False) and check the target modules and the "
        "adapter's layer.",
        example="ray::WorkerDict.actor_rollout_init_model() (pid=1, ip=192.0.2.2)\n"
        '  File "verl/workers/megatron_workers.py", line 232, in _init_hf_config_and_tf_config\n'
        "AssertionError: LoRA/PEFT only supported via Megatron-Bridge",
        source="verl's Megatron worker",
    ),
)
