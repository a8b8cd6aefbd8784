"""The rules of triage: one ordered table of data, no code. The first row that matches an error decides.

First what is recognised by its words, wherever it happens: most of these no change to Bridge can cause. Then what is
recognised by the functions that the traceback goes through: these say nothing about the fault but what the stage
says. What surrounds comes before what it calls (a save that exports weights is a save). Then faults that raise
nothing, then what is noise after completion. A test keeps this file free of anything but rows; another removes each
row and sees its example judged otherwise.
"""

from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage import silent
from verl_e2e.core.triage.origin import Origin
from verl_e2e.core.triage.rules import (
    AFTER_CONSTRUCTION,
    BEFORE_ENGINE,
    BEFORE_PEFT,
    BEFORE_SYNC,
    Fault,
    NoiseRule,
    TriageRule,
)

RULES: tuple[TriageRule, ...] = (
    TriageRule(
        id="interrupted",
        fault=Fault.OUTSIDE,
        origin=Origin.ENDED,
        cause="the run was interrupted or terminated from outside",
        fix="Rerun; when the time limit ended it, raise the limit or find what stalled before it.",
        example="Training Progress:   5%|x         | 11/210 [1:17:48<24:01:11, 434.53s/it]\n"
        "Traceback (most recent call last):\n"
        '  File "verl/trainer/ppo/ray_trainer.py", line 858, in fit\n'
        "KeyboardInterrupt",
        source="CPython, KeyboardInterrupt; github.com/ETOgaosion/verl run_qwen2_5-7b_math_megatron.log",
    ),
    TriageRule(
        id="killed-by-signal",
        fault=Fault.OUTSIDE,
        kind=r"^(?:Signal|Killed)$",
        cause="a signal ended a process",
        fix="Look at the host's kernel log for the reason (memory, device), then rerun on another host.",
        example="run_ppo_trainer_megatron.sh: line 271:  4711 Segmentation fault      (core dumped) python3 -m verl",
        source="bash, jobs.c:notify_of_job_status",
    ),
    TriageRule(
        id="host-memory",
        fault=Fault.OUTSIDE,
        origin=Origin.HOST_MEMORY,
        cause="the host ran out of memory",
        fix="Give the job more host memory, or lower workers, offload and batch sizes.",
        example="ray.exceptions.RayTaskError(OutOfMemoryError): ray::TaskRunner.run() (pid=1, ip=192.0.2.2)\n"
        '  File "verl/trainer/ppo/ray_trainer.py", line 858, in fit\n'
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        source="Ray, python/ray/exceptions.py:OutOfMemoryError",
    ),
    TriageRule(
        id="host-limits",
        fault=Fault.OUTSIDE,
        origin=Origin.HOST_LIMITS,
        message=r"insufficient shared memory|out of shared memory|\(shm\)|/dev/shm",
        cause="the host's limits on files, threads or shared memory were reached",
        fix="Raise ulimit -n and -u and the container's --shm-size, or lower the number of workers.",
        example='  File "verl/trainer/ppo/ray_trainer.py", line 1123, in fit\nOSError: [Errno 24] Too many open files',
        source="CPython, Objects/exceptions.c:OSError with EMFILE",
    ),
    TriageRule(
        id="disk-full",
        fault=Fault.OUTSIDE,
        origin=Origin.SPACE,
        cause="storage failed: no space, no quota or no writable disk",
        fix="Free space, or point HF_HOME, HF_HUB_CACHE, TMPDIR and the checkpoints to a disk with room, and set "
        "MODEL_PATH to a model that is there already.",
        steps=(
            "`df -h` and `df -i` for every path of the job: HF_HOME, HF_HUB_CACHE, MODEL_PATH, TMPDIR, RAY_TMPDIR, and "
            "the checkpoint folder; a quota shows only in `quota -s`.",
            "HF_HUB_CACHE outranks HF_HOME: set both, or a download still goes to the full disk.",
            "If the checkpoint disk is full, remove old global_step folders; SAVE_FREQ=-1 shows whether construction "
            "or saving fails.",
        ),
        example='  File "verl/workers/fsdp_workers.py", line 495, in save_checkpoint\n'
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: "
        'StorageFull, message: "No space left on device" })',
        source="safetensors, bindings/python/src/lib.rs:serialize_file; a user's log of a save on a full disk",
    ),
    TriageRule(
        id="gpu-sharing",
        fault=Fault.OUTSIDE,
        message=r"pidfd_getfd: Operation not permitted|does not support the pidfd_open",
        cause="the host does not let processes share GPU memory",
        fix="Start the container with --cap-add=SYS_PTRACE, or switch expandable segments off "
        "(PYTORCH_CUDA_ALLOC_CONF).",
        example='  File "verl/workers/rollout/vllm_rollout/utils.py", line 310, in update_weights_from_ipc\n'
        '  File "torch/multiprocessing/reductions.py", line 181, in rebuild_cuda_tensor\n'
        "RuntimeError: pidfd_getfd: Operation not permitted",
        source="PyTorch, c10/cuda/CUDACachingAllocator.cpp; verl-project/verl issue 3377",
    ),
    TriageRule(
        id="storage",
        fault=Fault.OUTSIDE,
        origin=Origin.STORAGE,
        cause="a file system failed: an I/O error, a mount that went away, no permission, or no lock",
        fix="Check the mount of the path named on that host (`mount`, `dmesg`), then rerun on a healthy one.",
        steps=(
            "`[Errno N]` names the fault: 5 I/O, 13 and 1 permission, 30 read-only, 37 locks, 107 and 108 a mount that "
            "lost its server, 116 a file that another host replaced.",
            "`stat` the path in the container that ran the job, as the user that ran it: a mount of the host may be "
            "missing or read-only there.",
        ),
        example="Loading from the folder 100% (31/31) Qwen2Bridge\n"
        '  File "verl/utils/checkpoint/megatron_checkpoint_manager.py", line 1173, in save_checkpoint\n'
        "OSError: [Errno 107] Transport endpoint is not connected",
        source="CPython, Objects/exceptions.c:OSError with ENOTCONN, of a FUSE mount",
    ),
    TriageRule(
        id="rocr-and-cuda",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        message=r"don't set ROCR_VISIBLE_DEVICES",
        cause="ROCR_VISIBLE_DEVICES is set next to CUDA_VISIBLE_DEVICES",
        fix="Unset ROCR_VISIBLE_DEVICES in the job's environment and start Ray again.",
        steps=(
            "`unset ROCR_VISIBLE_DEVICES` before `ray start` and before the wrapper: Ray hands its own environment to "
            "every worker.",
            "On AMD hosts keep HIP_VISIBLE_DEVICES alone; on NVIDIA hosts neither HIP nor ROCR.",
        ),
        example='  File "verl/single_controller/base/worker.py", line 260, in '
        "_setup_env_cuda_visible_devices\n"
        "ValueError: Please don't set ROCR_VISIBLE_DEVICES when HIP/CUDA_VISIBLE_DEVICES is set.",
        source="verl, verl/single_controller/base/worker.py:_setup_env_cuda_visible_devices",
    ),
    TriageRule(
        id="device-broke",
        fault=Fault.OUTSIDE,
        origin=Origin.DEVICE,
        message=r"ECC error|fallen off the bus|GPU is lost",
        cause="a GPU broke while the run used it",
        fix="Take the host out of service until its GPU is checked; rerun on another host.",
        steps=(
            "`nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER` and `dmesg | grep -i xid` on that host.",
            "ECC, NVLink and bus errors are hardware; a launch that timed out is a watchdog on the device.",
            "If the same kernel fails on another host, the program is at fault and not the hardware.",
        ),
        example="Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        '  File "megatron/core/pipeline_parallel/schedules.py", line 451, in backward_step\n'
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        source="CUDA, driver_types.h:cudaErrorECCUncorrectable, printed by PyTorch c10/cuda/CUDAException.cpp",
    ),
    TriageRule(
        id="device",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        origin=Origin.DEVICE_SETUP,
        message=r"driver/library version mismatch|No CUDA GPUs are available|no GPUs found|Found no NVIDIA driver"
        r"|Torch not compiled with CUDA|CUDA initialization|NVML|nvidia-smi|Invalid device id"
        r"|out of range for visible devices",
        cause="the host's GPU, driver or device variables are not usable",
        fix="Check the driver, the GPUs that the job sees and *_VISIBLE_DEVICES on that host.",
        example='  File "megatron/training/models/dist_utils.py", line 346, in _ddp_wrap\n'
        "torch.AcceleratorError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        source="PyTorch, c10/cuda/CUDAException.cpp, below Megatron-LM "
        "megatron/training/models/dist_utils.py:_ddp_wrap",
    ),
    TriageRule(
        id="hub-unreachable",
        fault=Fault.OUTSIDE,
        stage=Stage.MODEL_DOWNLOAD,
        origin=Origin.HUB,
        message=r"couldn't connect to|Connection error, and we cannot find|outgoing traffic has been disabled",
        cause="the model hub cannot be reached",
        fix="Snapshot the model on a connected host and give its path, or open the hub to this host.",
        example="'[Errno -2] Name or service not known' thrown while requesting HEAD the hub's config.json\n"
        "Retrying in 1s [Retry 1/5].",
        source="huggingface_hub, utils/_http.py:http_backoff",
    ),
    TriageRule(
        id="network",
        fault=Fault.OUTSIDE,
        origin=Origin.NETWORK,
        message=r"Could not find a free port",
        cause="processes or hosts could not reach each other",
        fix="Check ports, interfaces (NCCL_SOCKET_IFNAME) and that no other run holds the address; rerun.",
        example='  File "megatron/core/parallel_state.py", line 823, in initialize_model_parallel\n'
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. EADDRINUSE, message: address already in use",
        source="PyTorch, torch/csrc/distributed/c10d/socket.cpp",
    ),
    TriageRule(
        id="engine-memory",
        fault=Fault.OUTSIDE,
        stage=Stage.ROLLOUT_ENGINE,
        message=r"No available memory for the cache blocks|Free memory on device .* less than desired"
        r"|Memory usage increased after sleeping|Not enough memory\. Please try (?:to )?increas",
        cause="the rollout engine found too little free GPU memory",
        fix="Free the GPU (one run a host) or change rollout.gpu_memory_utilization.",
        example="all initialize finished, ready to fit\n"
        "step:1 - actor/loss:0.1 - actor/grad_norm:0.2\n"
        "Traceback (most recent call last):\n"
        '  File "vllm/v1/core/kv_cache_utils.py", line 527, in get_kv_cache_config\n'
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
        "when initializing the engine.",
        source="vLLM, vllm/v1/core/kv_cache_utils.py:check_enough_kv_cache_memory",
    ),
    TriageRule(
        id="engine-cache",
        fault=Fault.OUTSIDE,
        stage=Stage.ROLLOUT_ENGINE,
        message=r"(?:KV|kv) cache .*(?:needed|memory)"
        r"|larger than the maximum number of tokens that can be stored in KV",
        cause="the rollout engine's cache does not hold one sequence",
        fix="Lower the lengths or raise rollout.gpu_memory_utilization.",
        example="all initialize finished, ready to fit\n"
        "Traceback (most recent call last):\n"
        '  File "vllm/v1/core/kv_cache_utils.py", line 600, in check_enough_kv_cache_memory\n'
        "ValueError: To serve at least one request with the models's max seq len (131072), 6.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory.",
        source="vLLM, vllm/v1/core/kv_cache_utils.py:check_enough_kv_cache_memory",
    ),
    TriageRule(
        id="rollout-sizes",
        fault=Fault.OUTSIDE,
        stage=Stage.ROLLOUT_ENGINE,
        message=r"is not divisible by infer_\w+",
        cause="the rollout's parallel sizes do not divide the job's GPUs",
        fix="Set INFER_TP (and the rollout's data and pipeline sizes) to a divisor of the number of GPUs.",
        example='  File "verl/workers/engine_workers.py", line 658, in init_model\n'
        "AssertionError: rollout world_size: 4 is not divisible by infer_world_size: 3",
        source="verl, verl/workers/engine_workers.py:init_model",
    ),
    TriageRule(
        id="import-between-trees",
        fault=Fault.TREES,
        stage=Stage.IMPORT,
        origin=Origin.TREES,
        cause="Bridge or Megatron-LM imports what the other, or it itself, does not have",
        fix="Correct the import, or restore what it names; if the merge base fails too, its submodule does not fit.",
        steps=(
            "A name that the change moved or removed: search both trees for other users of it.",
            "If the change moves the Megatron-LM submodule, the name may be gone there: compare both commits.",
        ),
        example="Traceback (most recent call last):\n"
        '  File "/opt/Megatron-Bridge/src/megatron/bridge/peft/lora.py", line 26, in <module>\n'
        "ImportError: cannot import name 'wildcard_match' from 'megatron.bridge.peft.utils' "
        "(/opt/Megatron-Bridge/src/megatron/bridge/peft/utils.py)",
        source="CPython, Python/ceval.c:import_from, of a Bridge whose peft/utils.py lost a name",
    ),
    TriageRule(
        id="extension-build",
        fault=Fault.OUTSIDE,
        undecided=True,
        stage=Stage.ENVIRONMENT,
        origin=Origin.TOOLCHAIN,
        message=r"No such file or directory: '[^']*/csrc/",
        cause="a CUDA extension could not be built on this host",
        fix="Install the extension in the image, give it compiler and TORCH_CUDA_ARCH_LIST, or switch the feature off.",
        example='  File "megatron/core/nccl_allocator.py", line 87, in _build_nccl_allocator\n'
        '  File "torch/utils/cpp_extension.py", line 2792, in _get_cuda_arch_flags\n'
        "IndexError: list index out of range",
        source="PyTorch, torch/utils/cpp_extension.py, below Megatron-LM "
        "megatron/core/nccl_allocator.py:_build_nccl_allocator",
    ),
    TriageRule(
        id="package-version",
        fault=Fault.OUTSIDE,
        undecided=True,
        stage=Stage.ENVIRONMENT,
        message=r"[Pp]lease (?:up|down)grade (?:\w+ )?[\w.-]+ to [^.]{0,20}\d",
        cause="a package of the image has a version that cannot be used",
        fix="Give the image the version that the message names, or switch the feature that needs the package off in "
        "the site profile.",
        example='  File "fla/ops/common/chunk_o.py", line 728, in chunk_bwd_dqkwg\n'
        "RuntimeError: Triton >= 3.4.0 and < 3.7.1 on Hopper GPUs produces incorrect results for gated "
        "chunk_bwd_dqkwg (see #640). Please upgrade Triton to >= 3.7.1 or install tilelang: `pip install tilelang`",
        source="flash-linear-attention, fla/ops/common/chunk_o.py:chunk_bwd_dqkwg; our qwen3_next on an H200",
    ),
    TriageRule(
        id="missing-extension",
        fault=Fault.OUTSIDE,
        undecided=True,
        stage=Stage.ENVIRONMENT,
        message=r"requires? (?:the )?[^.]{0,80}(?:but (?:it )?(?:is )?not (?:found|installed|available)|extensions? \()"
        r"|custom CUDA extension \w+ module is not found|undefined symbol|cannot open shared object file"
        r"|failed to open lib\w|GLIBC\w*_[\d.]+' not found|(?:is|are) not installed"
        r"|[Pp]lease (?:\w+ )?(?:pip3? )?install|must install|pip3? install|wheel is not built|compiled without"
        r"|No module named '?(?:apex|transformer_engine|flash_attn)|No package metadata was found|DistributionNotFound"
        r"|Failed to find C compiler|No such file or directory: '(?:[^']*/)?(?:ninja|nvcc|ptxas|gcc|g\+\+|cc|c\+\+)'",
        cause="the image does not have a package or a compiled extension",
        fix="Install it in the image, or switch the feature that needs it off in the site profile.",
        example='  File "megatron/bridge/models/gpt_provider.py", line 294, in provide\n'
        '  File "megatron/core/tensor_parallel/layers.py", line 1115, in __init__\n'
        "RuntimeError: ColumnParallelLinear was called with gradient_accumulation_fusion set to True but "
        "the custom CUDA extension fused_weight_gradient_mlp_cuda module is not found.",
        source="Megatron-LM, megatron/core/tensor_parallel/layers.py:ColumnParallelLinear; our Level 0 without apex",
    ),
    TriageRule(
        id="import-error",
        fault=Fault.OUTSIDE,
        undecided=True,
        stage=Stage.IMPORT,
        kind=r"^(?:ModuleNotFoundError|ImportError)$",
        cause="a module could not be imported",
        fix="Check PYTHONPATH (checkout first, nothing in site-packages) and the versions of the package named.",
        steps=(
            "Name the module and the process that failed: driver, worker and rollout engine may see another "
            "PYTHONPATH.",
            '`python -c "import megatron.bridge; print(megatron.bridge.__file__)"` in the job\'s image: the path '
            "must be the checkout's.",
            "`cannot import name` means that a version does not fit: compare the package with the pins of Bridge and "
            "verl.",
        ),
        example='  File "verl/workers/fsdp_workers.py", line 207, in _build_model_optimizer\n'
        "ImportError: cannot import name 'LlamaFroCausalLM' from "
        "'transformers.models.llama.modeling_llama'",
        source="CPython, importlib; github.com/ETOgaosion/verl run_qwen_grpo.res",
    ),
    TriageRule(
        id="gpu-occupied",
        fault=Fault.OUTSIDE,
        stood=BEFORE_ENGINE,
        message=r"Process \d+ has \d{2,}\.\d+ GiB memory in use\..*\bthis process has (?:\d\.\d+ GiB|[\d.]+ MiB)",
        cause="another process holds the memory of the accelerator",
        fix="Free the GPU, or give the job one that nothing else uses.",
        example='  File "verl/workers/megatron_workers.py", line 561, in init_model\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. Process 331 has 77.00 GiB "
        "memory in use. Including non-PyTorch memory, this process has 600.00 MiB memory in use.",
        source="PyTorch, c10/cuda/CUDACachingAllocator.cpp",
    ),
    TriageRule(
        id="gpu-memory",
        fault=Fault.CODE,
        message=r"CUDA out of memory|CUresult error\W{1,3}2\b|CUDA_ERROR_OUT_OF_MEMORY|_OUT_OF_(?:DEVICE_|HOST_)?MEMORY"
        r"|(?:XPU|HPU|MUSA|MLU|DCU) out of memory|hipErrorOutOfMemory|(?:CUDA|Cuda|torch)\.?OutOfMemoryError"
        r"|Ran out of memory in memory space|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|(?:NPU|HIP) out of memory"
        r"|cudaErrorMemoryAllocation|CUDA error: out of memory",
        cause="the accelerator ran out of memory",
        fix="Lower the memory use: per-GPU load, then micro-batch, then response length, and only then add nodes.",
        steps=(
            "Per-GPU load: nothing else on the GPU (`nvidia-smi`), a lower rollout.gpu_memory_utilization, "
            "ALL_OFFLOAD=True, recompute_granularity=full.",
            "Micro-batch: ppo_micro_batch_size_per_gpu and log_prob_micro_batch_size_per_gpu down to 1, or a smaller "
            "ppo_max_token_len_per_gpu with dynamic batches.",
            "Response length: MAX_RESPONSE_LENGTH, then MAX_PROMPT_LENGTH; both change what the run proves, so say so.",
            "Nodes last: larger TP, PP or CP, then more GPUs; that is another level, not the same job.",
        ),
        example='  File "verl/workers/critic/dp_critic.py", line 273, in update_critic\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 446.00 MiB.",
        source="PyTorch, c10/cuda/CUDACachingAllocator.cpp",
    ),
    TriageRule(
        id="tracking",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        origin=Origin.TRACKER,
        calls=r"verl/utils/tracking\.py:__init__$|:(?:init|login)$",
        cause="the experiment tracker refused or could not be reached",
        fix="Run with trainer.logger=console, or give the tracker its key and network.",
        example='  File "verl/trainer/ppo/ray_trainer.py", line 1400, in fit\n'
        '  File "verl/utils/tracking.py", line 60, in __init__\n'
        "wandb.errors.errors.UsageError: api_key not configured (no-tty). call "
        "wandb.login(key=[your_api_key])",
        source="wandb, sdk/wandb_login.py, below verl verl/utils/tracking.py:Tracking",
    ),
    TriageRule(
        id="tracking-late",
        fault=Fault.OUTSIDE,
        origin=Origin.TRACKER,
        cause="the experiment tracker failed while the run went on",
        fix="Rerun with trainer.logger=console; the tracker is not part of what is tested.",
        example="Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        '  File "verl/trainer/ppo/v1/trainer_base.py", line 453, in fit\n'
        '  File "verl/utils/tracking.py", line 190, in log\n'
        "mlflow.exceptions.MlflowException: API request failed",
        source="mlflow, mlflow/utils/rest_utils.py:http_request, below verl verl/utils/tracking.py:log",
    ),
    TriageRule(
        id="collective-timeout",
        fault=Fault.CODE,
        kind=r"^CollectiveTimeout$",
        cause="ranks waited for a collective that never completed",
        fix="Find the rank that is missing from the named collective; compare its last line with those of the others.",
        example="Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        "[rank0]:[E1120 14:10:32.3 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)",
        source="PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:watchdogHandler",
    ),
    TriageRule(
        id="damaged-file",
        fault=Fault.OUTSIDE,
        undecided=True,
        origin=Origin.DAMAGED_FILE,
        cause="a file of the model is damaged, incomplete or missing",
        fix="Download the snapshot again and compare its checksums; Git LFS pointers are 130 bytes long.",
        steps=(
            "Every file that model.safetensors.index.json names must be there.",
            "Open each file once with `safetensors.safe_open(path, 'pt')` outside of the run.",
            "This is not about a checkpoint that the run wrote itself: that is a fault of saving.",
        ),
        example='  File "megatron/bridge/models/hf_pretrained/state.py", line 610, in load_tensors\n'
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: header too large",
        source="safetensors, safetensors/src/tensor.rs:SafeTensorError",
    ),
    TriageRule(
        id="reward-model-files",
        fault=Fault.OUTSIDE,
        stage=Stage.REWARD_MODEL,
        kind=r"^(?:OSError|FileNotFoundError|ValueError|\S*HFValidationError|\S*RepositoryNotFoundError)$",
        calls=r"(?:reward_loop|reward_model|reward_manager)[\s\S]*:(?:from_pretrained|hf_tokenizer|cached_files?"
        r"|copy_to_local)",
        cause="the reward model's files are missing or not readable",
        fix="Give RM_MODEL_PATH a complete snapshot, or run with reward.reward_model.enable=False.",
        example='  File "verl/experimental/reward_loop/reward_model.py", line 60, in __init__\n'
        '  File "verl/utils/tokenizer/tokenizer.py", line 176, in hf_tokenizer\n'
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'",
        source="huggingface_hub, utils/_validators.py, below verl verl/experimental/reward_loop/reward_model.py",
    ),
    TriageRule(
        id="model-files",
        fault=Fault.OUTSIDE,
        undecided=True,
        stage=Stage.MODEL_DOWNLOAD,
        origin=Origin.MODEL_FILES,
        message=r"is not a valid JSON file|Should have a `?model_type`? key|no file named|Repo id must be"
        r"|HFValidationError|not a valid model identifier|is not a local folder|Incorrect path_or_model_id|gated repo"
        r"|GatedRepo|RepositoryNotFound|EntryNotFound|RevisionNotFound|(?:401|403|404) Client Error"
        r"|Can't load (?:the )?(?:tokenizer|config|feature|image)|does not appear to have a file named"
        r"|Couldn't instantiate the backend tokenizer|[Tt]okenizer class \S+ does not exist"
        r"|No \.safetensors files or index found|Unable to load (?:vocabulary|weights)",
        cause="the model's files are missing, incomplete or not allowed",
        fix="Snapshot the model completely, check path and token, and read it once before any worker starts.",
        example='  File "megatron/bridge/models/conversion/auto_bridge.py", line 578, in from_hf_pretrained\n'
        "ValueError: Unrecognized model in the folder. Should have a `model_type` key in its config.json.",
        source="transformers, models/auto/configuration_auto.py:AutoConfig.from_pretrained",
    ),
    TriageRule(
        id="tokenizer-contents",
        fault=Fault.OUTSIDE,
        stage=Stage.MODEL_DOWNLOAD,
        message=r"[Tt]okenizer (?:does not|doesn't) (?:define|have) (?:a |the )?(?:required|\w+ing|special) token"
        r"|chat_template is not set|[Tt]okenizer (?:does not|doesn't) have a chat template",
        cause="the model's tokenizer does not have what the rollout needs",
        fix="Give the model the tokenizer of its family: the token or the chat template that the message names.",
        example='  File "verl/utils/tokenizer/continuous_token.py", line 640, in require_token_id\n'
        "ValueError: Tokenizer does not define required token '<|end|>'\n"
        "hydra.errors.InstantiationException: Error in call to target "
        "'verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop':",
        source="verl, verl/utils/tokenizer/continuous_token.py:require_token_id; our deepseek_v3 on an H200",
    ),
    TriageRule(
        id="given-path",
        fault=Fault.OUTSIDE,
        undecided=True,
        origin=Origin.GIVEN_PATH,
        calls=r"\A(?![\s\S]*(?:rl_dataset|/datasets/|_dataloader$))",
        cause="a path that the run was given is not there, or is not what the setting asks for",
        fix="Look at the path on the host that ran the job, and correct the setting that names it.",
        example='  File "megatron/bridge/training/setup.py", line 210, in setup\n'
        "ValueError: Invalid pretrained checkpoint directory found: /models/hf",
        source="Megatron-Bridge, src/megatron/bridge/training/setup.py:setup",
    ),
    TriageRule(
        id="worker-died",
        fault=Fault.OUTSIDE,
        origin=Origin.PEER,
        message=r"worker (?:process )?(?:has )?died|The actor died unexpectedly before"
        r"|Worker exit type: SYSTEM_ERROR|DataLoader worker .*killed by signal",
        cause="a worker died without an error message",
        fix="Look at the host's kernel log and Ray's worker logs; rerun on another host.",
        example="Started a local Ray instance.\n"
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
        source="Ray, src/ray/raylet/node_manager.cc; github.com/ETOgaosion/verl run_qwen_grpo_megatron.res",
    ),
    TriageRule(
        id="ray-resources",
        fault=Fault.OUTSIDE,
        stage=Stage.RAY,
        message=r"Total available (?:GPUs|NPUs|resources?) \S+ is less than|less than total desired GPUs"
        r"|^RayResources|placement group .*(?:timed? ?out|infeasible|cannot be)|No available node types"
        r"|not enough nodes|no enough nodes|bundle count cannot satisfy|RayResourcesError: Ray can never place ",
        cause="Ray has fewer GPUs, CPUs or nodes than the job asks for",
        fix="Give Ray the resources (`ray_cpus` of the site profile, GPUs, nodes) or lower what the job asks for.",
        example='  File "verl/trainer/ppo/v1/trainer_base.py", line 733, in _setup\n'
        "ValueError: Total available GPUs 1.0 is less than total desired GPUs 4",
        source="verl, verl/single_controller/ray/base.py:_check_resource_available",
    ),
    TriageRule(
        id="ray-start",
        fault=Fault.OUTSIDE,
        stage=Stage.RAY,
        message=r"^GcsUnreachable|Timed out waiting for file .*gcs|Failed to connect to GCS|GCS .*(?:timed out"
        r"|unavailable)|^RayError|RuntimeEnvSetupError|Failed to register worker"
        r"|Could not find any running Ray instance|Ray Client|raylet .*(?:failed|died)|Can't find a `?node_ip_address"
        r"|session_\S* .*different|Version mismatch: The cluster was started with",
        cause="Ray did not start, or its cluster cannot be reached",
        fix="Give Ray its own RAY_TMPDIR with room, unset a stale RAY_ADDRESS, and check the head node.",
        example="Connecting to existing Ray cluster at address: 192.0.2.2:6399...\n"
        "gcs_client.cc:210: Failed to get cluster ID from GCS server: TimedOut: Timed out while waiting",
        source="Ray, src/ray/gcs_rpc_client/gcs_client.cc",
    ),
    TriageRule(
        id="hydra",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        message=r"^(?:ConfigCompositionException|OverrideParseException|MissingConfigException|ArgumentError)\b"
        r"|^omegaconf\.errors|^hydra\.errors\.(?!InstantiationException)|Missing mandatory value|is not in struct"
        r"|Missing key \w+$",
        cause="the launch command or its configuration is wrong",
        fix="Compare the override named with verl's Hydra configuration at the commit under test.",
        example="Using dataset class: RLHFDataset\n"
        "Could not override 'actor_rollout_ref.actor.megatron.use_megatron_fsdpx'.\n"
        "Key 'use_megatron_fsdpx' is not in struct",
        source="Hydra, hydra/_internal/config_loader_impl.py:_apply_overrides_to_config",
    ),
    TriageRule(
        id="skyrl-configuration",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        calls=r"skyrl/train/(?:config/config\.py:|utils/utils\.py:validate_)",
        cause="SkyRL refuses the configuration",
        fix="Compare the key with SkyRL's configuration.",
        example="Traceback (most recent call last):\n"
        '  File "skyrl/train/entrypoints/main_base.py", line 360, in main\n'
        "    cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])\n"
        '  File "skyrl/train/config/config.py", line 1573, in validate_dict_keys_against_dataclass\n'
        "ValueError: Invalid fields {'use_megatron_fsdp'} for MegatronDDPConfig. Valid fields are {'ddp_config'}.",
        source="SkyRL, skyrl/train/config/config.py:validate_dict_keys_against_dataclass",
    ),
    TriageRule(
        id="shell",
        fault=Fault.OUTSIDE,
        stage=Stage.ENVIRONMENT,
        kind=r"^ShellError$",
        cause="the wrapper script itself failed",
        fix="Read the line that bash names; a command, a variable or a file of the wrapper is missing.",
        example="Total training steps: 1\nrun_ppo_trainer_megatron.sh: line 12: python3: command not found",
        source="bash, execute_cmd.c",
    ),
    TriageRule(
        id="state-dict",
        fault=Fault.CODE,
        stage=Stage.CHECKPOINT_LOAD,
        message=r"Error\(s\) in loading state_dict|Missing key\(s\) in state_dict",
        cause="the checkpoint does not fit the model, or cannot be read",
        fix="Compare the checkpoint's keys and parallel sizes with the model's; rerun with SAVE_FREQ=-1 to "
        "separate construction.",
        example='  File "verl/workers/engine_workers.py", line 88, in __init__\n'
        "RuntimeError: Error(s) in loading state_dict for GPTModel:",
        source="PyTorch, torch/nn/modules/module.py:load_state_dict",
    ),
    TriageRule(
        id="not-finite",
        fault=Fault.CODE,
        stage=Stage.TRAIN_STEP,
        message=r"found (?:NaN|Inf|inf|nan)|Unexpected result (?:nan|inf)|probability tensor contains either"
        r"|^NotFinite|(?:loss|grad\w*) (?:is|are|contains?) (?:NaN|nan|inf|not finite)",
        cause="the step produced NaN or infinity",
        fix="Find the first tensor that is not finite: run the step in fp32 with anomaly detection.",
        example="all initialize finished, ready to fit\n"
        "Traceback (most recent call last):\n"
        '  File "megatron/core/rerun_state_machine.py", line 534, in validate_result\n'
        "RuntimeError: Rank 0, iteration 0: Unexpected result nan (message='found NaN in local grad norm "
        "for bucket #0')",
        source="Megatron-LM, megatron/core/rerun_state_machine.py:validate_result",
    ),
    TriageRule(
        id="provider-mpu-sizes",
        fault=Fault.CODE,
        message=r"Shape mismatch for megatron param|(?i:(?:tensor|pipeline|context|expert|data"
        r"|model)[ _-](?:model[ _-])?parallel(?:[ _-](?:world[ _-])?size|ism)?\b.{0,80}(?:does not match|do not match"
        r"|must match|mismatch|differs?))",
        cause="a mapping is wrong, or the provider's parallel sizes and those of the process groups (mpu) differ",
        fix="Compare the mapping of the named parameter with its shape; where a parallel size is above 1, also the "
        "provider's TP, PP, CP, EP and ETP with mpu's on every rank before it is finalized.",
        steps=(
            "Print provider.tensor_model_parallel_size and the like next to mpu.get_tensor_model_parallel_world_size() "
            "on every rank; verl sets the provider's sizes before finalize(), a provider that overwrites them is the "
            "fault.",
            "Rerun with all sizes 1: if it passes, only the sharded case is at fault.",
        ),
        example='  File "megatron/bridge/models/conversion/auto_bridge.py", line 700, in load_hf_weights\n'
        '  File "megatron/bridge/models/conversion/model_bridge.py", line 1345, in load_weights_hf_to_megatron\n'
        "ValueError: Shape mismatch for megatron param decoder.layers.0.mlp.linear_fc1.weight:",
        source="Megatron-Bridge, src/megatron/bridge/models/conversion/model_bridge.py:load_weights_hf_to_megatron",
    ),
    TriageRule(
        id="export-strict",
        fault=Fault.CODE,
        message=r"tensors from the original checkpoint were not written"
        r"|Checkpoint export failed after all ranks drained",
        cause="the export did not regenerate every key of the source checkpoint",
        fix="List the keys named, and give each a mapping in the direction Megatron to Hugging Face.",
        steps=(
            "Keys of tied embeddings, buffers (rotary inv_freq) and quantization scales are the usual ones: mark them "
            "as ignored in the family's bridge, or regenerate them.",
            "Under PP and EP a key may be lost on one rank only: rerun the export with all sizes 1.",
        ),
        example='  File "verl/utils/checkpoint/megatron_checkpoint_manager.py", line 600, in save_checkpoint\n'
        '  File "megatron/bridge/models/hf_pretrained/state.py", line 870, in save_generator\n'
        "RuntimeError: 2 tensors from the original checkpoint were not written. Re-run with strict=False to save the "
        "partial checkpoint instead of failing.",
        source="Megatron-Bridge, src/megatron/bridge/models/hf_pretrained/state.py:save_generator",
    ),
    TriageRule(
        id="too-few-rows",
        fault=Fault.OUTSIDE,
        stage=Stage.DATA,
        kind=r"^ZeroDivisionError$",
        calls=r"trainer\w*\.py:\w+\Z",
        cause="the data set has fewer rows than one batch",
        fix="Give more rows or lower the batch size.",
        example='  File "verl/trainer/fsdp_sft_trainer.py", line 716, in fit\n'
        "ZeroDivisionError: integer division or modulo by zero",
        source="verl, verl/trainer/fsdp_sft_trainer.py:fit; github.com/johnson7788/RLDecisionAgent docs/Error.md",
    ),
    TriageRule(
        id="adapter-path",
        fault=Fault.CODE,
        stage=Stage.PEFT,
        stood=BEFORE_PEFT,
        message=r"\bLoRA\b|\bPEFT\b|\blora_(?:rank|alpha|A|B)\b|target_modules|wrapped linear"
        r"|Layer type is unrecognized",
        calls=r"\A(?![\s\S]*(?:vllm|sglang)/)",
        cause="LoRA could not be applied",
        fix="Use the provider path (vanilla_mbridge False) and check the target modules and the adapter's layer.",
        steps=(
            "List the module names of the built model (linear_qkv, linear_proj, linear_fc1, linear_fc2; a family may "
            "fuse or rename them) and compare with lora.target_modules; Bridge's names, not those of Hugging Face.",
            "Look for `No modules matched the requested target_modules entries` and for `Adapter parameters` above.",
            "Canonical LoRA takes the unfused names (linear_q, linear_k, linear_v, linear_fc1_up, linear_fc1_gate).",
        ),
        example="ray::WorkerDict.actor_rollout_init_model() (pid=1, ip=192.0.2.2)\n"
        '  File "verl/workers/megatron_workers.py", line 232, in _init_hf_config_and_tf_config\n'
        "AssertionError: LoRA/PEFT only supported via Megatron-Bridge",
        source="verl, verl/workers/megatron_workers.py:_init_hf_config_and_tf_config",
    ),
    TriageRule(
        id="checkpoint-save",
        fault=Fault.CODE,
        stage=Stage.CHECKPOINT_SAVE,
        places=True,
        calls=r":save_megatron_model$|training/(?:checkpointing|model_load_save)\.py:_?save|:_?save_checkpoint$"
        r"|^ray::.*save_checkpoint|checkpoint_manager\.py:save|dist_checkpointing/\S+:\w*save\w*$|state_dict_saver\.py:"
        r"|:_save_dist_checkpoint$|:_schedule_dist_checkpoint_saves$",
        cause="saving the checkpoint failed",
        fix="Rerun with SAVE_FREQ=-1 to separate construction from saving.",
        example='  File "verl/workers/engine_workers.py", line 722, in save_checkpoint\n'
        '  File "megatron/bridge/models/conversion/model_bridge.py", line 1542, in '
        "stream_weights_megatron_to_hf\n"
        "ValueError: Object must exist on at least one PP rank",
        source="Megatron-Bridge, src/megatron/bridge/models/conversion/param_mapping.py:broadcast_obj_from_pp_rank",
    ),
    TriageRule(
        id="checkpoint-load",
        fault=Fault.CODE,
        stage=Stage.CHECKPOINT_LOAD,
        places=True,
        calls=r":load_megatron_model$|training/(?:checkpointing|model_load_save)\.py:_?load|:_?load_checkpoint$"
        r"|^ray::.*load_checkpoint|checkpoint_manager\.py:load|dist_checkpointing/\S+:(?:\w*load\w*|verify_checkpoint)$"
        r"|state_dict_loader\.py:|stateful_dataloader/\S+:(?:load_state_dict|_restore_main_state)"
        r"|data_parallel_base\.py:load_|:load_dist_checkpointing$|:_load_dist_checkpoint$",
        cause="loading the checkpoint failed",
        fix="Check what the save wrote and the parallel sizes; rerun with RESUME_MODE=disable to separate "
        "construction.",
        steps=(
            "Look at what the save wrote: every rank's files under global_step_N, `metadata.json` or `.metadata`, "
            "`common.pt`, and the tracker file.",
            "A key or shape that differs: compare the sharded state dict of save and load (parallel sizes, LoRA "
            "on or off, optimizer layout).",
        ),
        example='  File "verl/trainer/ppo/ray_trainer.py", line 1123, in fit\n'
        '  File "torchdata/stateful_dataloader/stateful_dataloader.py", line 1477, in _restore_main_state\n'
        "StopIteration",
        source="torchdata, torchdata/stateful_dataloader/stateful_dataloader.py:_restore_main_state",
    ),
    TriageRule(
        id="reward",
        fault=Fault.CODE,
        stage=Stage.REWARD_MODEL,
        places=True,
        calls=r"reward_manager|reward_loop|reward_score|/reward\.py:|:_?compute_score|:compute_reward"
        r"|:compute_rm_score|:load_reward_manager|:get_custom_reward_fn|reward_model",
        cause="the reward function or the reward model failed",
        fix="Check reward.reward_model, the custom reward file and that it knows the data source.",
        example='  File "verl/trainer/ppo/ray_trainer.py", line 996, in fit\n'
        '  File "verl/workers/reward_manager/naive.py", line 64, in __call__\n'
        '  File "verl/utils/reward_score/__init__.py", line 37, in _default_compute_score\n'
        "NotImplementedError",
        source="verl, verl/utils/reward_score/__init__.py:default_compute_score; github.com/KotoHanon/VERL-Maze "
        "verl_demo.log",
    ),
    TriageRule(
        id="failed-import",
        fault=Fault.OUTSIDE,
        undecided=True,
        stage=Stage.IMPORT,
        places=True,
        calls=r":<import>$",
        cause="a module raised while it was imported",
        fix="Install the version of the package that the checkout was written for.",
        steps=(
            "The last frame that says `<module>` is the module that raised; the package of that frame has the "
            "wrong version or is broken.",
        ),
        example='  File "<string>", line 1, in <module>\n'
        '  File "megatron/bridge/__init__.py", line 21, in <module>\n'
        '  File "megatron/core/dist_checkpointing/strategies/nvrx.py", line 85, in is_nvrx_min_version\n'
        "AttributeError: module 'nvidia_resiliency_ext' has no attribute '__version__'",
        source="Megatron-LM, megatron/core/dist_checkpointing/strategies/nvrx.py:is_nvrx_min_version",
    ),
    TriageRule(
        id="data",
        fault=Fault.CODE,
        stage=Stage.DATA,
        places=True,
        calls=r"megatron/bridge/data/|megatron/core/datasets/|rl_dataset|rm_dataset|sft_dataset|:create_rl_dataset"
        r"|:_(?:create|init|build)_dataloader"
        r"|:create_rl_sampler|(?:^|/)datasets/\S+:|:collate_fn$|:_read_files_and_tokenize|pyarrow(?!\S*:write_)|pandas/io",
        cause="the data set cannot be used",
        fix="Prepare the parquet files with verl's own script and the installed datasets version; check the paths.",
        example="Started a local Ray instance.\n"
        '  File "verl/trainer/ppo/v1/trainer_base.py", line 657, in _init_dataloader\n'
        '  File "datasets/data_files.py", line 405, in resolve_pattern\n'
        "FileNotFoundError: Unable to find the train parquet",
        source="datasets, src/datasets/data_files.py:resolve_pattern; our Level 0 without its training file",
    ),
    TriageRule(
        id="weight-sync",
        fault=Fault.CODE,
        stage=Stage.EXPORT_WEIGHT_SYNC,
        places=True,
        calls=r"/auto_bridge\.py:(?:export_|save_hf|push_to_hub)|:_?update_weights?|^ray::.*update_weights"
        r"|:export_hf_weights$|:save_hf_weights$|:save_hf_pretrained$|:get_per_tensor_param|:per_tensor_generator$"
        r"|:stream_\w*weights\w*$|:stream_adapter|:export_adapter|:rollout_mode$|:wake_up$|checkpoint_engine/"
        r"|:megatron_to_hf$|/param_mapping\.py:(?:megatron_to_hf\w*|broadcast_(?:obj_)?from_pp_rank|gather_\w+)$"
        r"|sharding_manager/\S+:__enter__",
        cause="exporting weights to the rollout engine or to Hugging Face form failed",
        fix="Reproduce with the export test of that model family; compare the mapping of the parameter named.",
        example='  File "verl/workers/engine_workers.py", line 760, in update_weights\n'
        '  File "megatron/bridge/models/conversion/param_mapping.py", line 479, in '
        "broadcast_obj_from_pp_rank\n"
        "ValueError: Object must exist on at least one PP rank",
        source="Megatron-Bridge, src/megatron/bridge/models/conversion/param_mapping.py:broadcast_obj_from_pp_rank",
    ),
    TriageRule(
        id="train-step",
        fault=Fault.CODE,
        stage=Stage.TRAIN_STEP,
        places=True,
        calls=r":(?:train_step|training_log|evaluate)$|megatron/training/training\.py:train$"
        r"|megatron/bridge/training/(?:train\w*|\w+_step|losses)\.py:|/finalize_model_grads\.py:|:_?update_(?:actor"
        r"|critic|policy)$|^ray::.*(?:update_actor|update_critic|compute_|generate_sequences)|:_?compute_(?:ref_"
        r"|old_)?log_probs?$|:_?compute_values?$|:_?compute_advantage|:forward_backward|:forward_step$"
        r"|:train_(?:mini_)?batch$|:infer_batch$|:generate_sequences$|pipeline_parallel/schedules|:(?:finish"
        r"|start)_grad_sync$|:_?optimizer_step$|core/optimizer/\w+\.py:(?:step|prepare_grads|clip|get_grad_norm)"
        r"|:clip_grad|megatron/core/\S+:(?:forward|_preprocess|_postprocess)$|autograd/\S+:backward$|:(?:load"
        r"|offload)_\w+_to_(?:gpu|cpu)$|megatron/bridge/\S+:forward$",
        cause="the training step failed",
        fix="Rerun the merge base with the same job; then read the innermost frame of the trees under test.",
        steps=(
            "Find the innermost frame of Bridge, Megatron-LM or verl above the error: the change is at fault only "
            "if its own code, or a value that it set, is there.",
            "A shape or dtype error: compare the provider's sizes (heads, groups, vocabulary, sequence parallel) "
            "with the model's config.json.",
            "A device-side assert or an illegal address: rerun with CUDA_LAUNCH_BLOCKING=1, for the frame of an "
            "asynchronous error is not the one that failed.",
        ),
        example='  File "verl/workers/megatron_workers.py", line 450, in compute_log_prob\n'
        "KeyError: 'key \"old_log_probs\" not found in TensorDict'",
        source="tensordict, tensordict/base.py; github.com/ETOgaosion/verl run_deepseek_grpo_megatron.res",
    ),
    TriageRule(
        id="rollout-start",
        fault=Fault.OUTSIDE,
        stage=Stage.ROLLOUT_ENGINE,
        places=True,
        stood=BEFORE_SYNC,
        calls=r"(?:^|/)(?:vllm|sglang|tensorrt_llm)/|:_build_rollout$|:launch_servers?$|:init_engine$"
        r"|:_?init\w*_llm_servers$|rollout/(?:vllm|sglang|trtllm)_rollout|/llm_server\.py:"
        r"|rollout/replica\.py:|async_server\.py:",
        cause="the rollout engine did not start",
        fix="Start the engine alone with the same arguments; check its version, backend and memory share.",
        example="optimizer config after override: {}\n"
        '  File "verl/workers/rollout/vllm_rollout/vllm_async_server.py", line 267, in init_engine\n'
        '  File "vllm/v1/engine/async_llm.py", line 143, in from_vllm_config\n'
        "ValueError: Using V1 AsyncLLMEngine, but envs.VLLM_USE_V1=False. This should not happen.",
        source="vLLM, vllm/v1/engine/async_llm.py:from_vllm_config",
    ),
    TriageRule(
        id="rollout-step",
        fault=Fault.CODE,
        stage=Stage.TRAIN_STEP,
        places=True,
        calls=r"(?:^|/)(?:vllm|sglang|tensorrt_llm)/|rollout/(?:vllm|sglang|trtllm)_rollout|agent_loop",
        cause="generation failed after weights had been synced",
        fix="Check what the last weight sync sent; rerun the merge base with the same job.",
        example="vLLM load weights, loaded_params: 56\n"
        '  File "vllm/v1/engine/core.py", line 320, in step\n'
        '  File "vllm/v1/worker/gpu_model_runner.py", line 2100, in execute_model\n'
        "RuntimeError: The size of tensor a (512) must match the size of tensor b (256)",
        source="vLLM, vllm/v1/worker/gpu_model_runner.py:execute_model",
    ),
    TriageRule(
        id="optimizer",
        fault=Fault.CODE,
        stage=Stage.OPTIMIZER,
        places=True,
        calls=r"megatron/bridge/training/optim\.py:|:get_megatron_optimizer|core/optimizer/\w+\.py:(?:__init__|_?get_)"
        r"|/optimizer_config\.py:|:_build_optimizer$"
        r"|:init_megatron_optim_config$|:_build_lr_scheduler$|optimizer_param_scheduler",
        cause="the optimizer could not be set up",
        fix="Compare the optimizer's configuration with what this Megatron-Core supports.",
        example="Setting up optimizer with config OptimizerConfig(lr=0.001)\n"
        '  File "megatron/core/distributed/distributed_data_parallel.py", line 314, in __init__\n'
        '  File "megatron/core/optimizer/distrib_optimizer.py", line 688, in __init__\n'
        "AssertionError: Only Adam, HybridDeviceOptimizer, and optimizers with an init_state_fn are "
        "currently supported",
        source="Megatron-LM, megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer",
    ),
    TriageRule(
        id="optimizer-config",
        fault=Fault.CODE,
        stage=Stage.OPTIMIZER,
        places=True,
        message=r"OptimizerConfig\.__init__\(\)|OptimizerConfig' object has no",
        cause="the optimizer's configuration cannot be built",
        fix="Compare the field named with this Megatron-Core's OptimizerConfig.",
        example="Traceback (most recent call last):\n"
        '  File "train.py", line 50, in <module>\n'
        "TypeError: OptimizerConfig.__init__() got an unexpected keyword argument 'lr_decay'\n",
        source="Megatron-LM, megatron/core/optimizer/optimizer_config.py:OptimizerConfig",
    ),
    TriageRule(
        id="fsdp-wrap",
        fault=Fault.CODE,
        stage=Stage.FSDP_WRAP,
        places=True,
        calls=r"core/distributed/fsdp/|fully_sharded_data_parallel\.py:__init__$|:FullyShardedDataParallel$"
        r"|:fully_shard|megatron_fsdp/|:apply_fsdp|:_build_fsdp",
        cause="wrapping the model with FSDP failed",
        fix="Rerun with USE_MEGATRON_FSDP=False to separate FSDP from the provider; check sizes that FSDP supports.",
        example='  File "megatron/training/models/dist_utils.py", line 396, in _ddp_wrap\n'
        '  File "megatron/core/distributed/fsdp/mcore_fsdp_adapter.py", line 633, in _validate_config\n'
        "ValueError: v2 does not currently support: tensor_model_parallel_size=2",
        source="Megatron-LM, megatron/core/distributed/fsdp/mcore_fsdp_adapter.py:_validate_config",
    ),
    TriageRule(
        id="fsdp-config",
        fault=Fault.CODE,
        stage=Stage.FSDP_WRAP,
        places=True,
        message=r"megatron[-_ ]?fsdp|M-?FSDP|FullyShardedDataParallel|\bFSDP\b",
        cause="the FSDP configuration is not possible",
        fix="Compare the FSDP settings with what this Megatron-Core supports.",
        example='  File "megatron/core/distributed/distributed_data_parallel_config.py", line 257, in '
        "__post_init__\n"
        "ValueError: megatron_fsdp_version must be either 1 or 2",
        source="Megatron-LM, megatron/core/distributed/distributed_data_parallel_config.py:__post_init__",
    ),
    TriageRule(
        id="ddp-wrap",
        fault=Fault.CODE,
        stage=Stage.DDP_WRAP,
        places=True,
        calls=r":_?ddp_wrap$|distributed_data_parallel|/param_and_grad_buffer\.py:|:create_ddp_config$"
        r"|:wrap_model_chunks|:_resolve_override_ddp_config$",
        cause="wrapping the model with DDP failed",
        fix="Check the DDP configuration against the process groups; rerun with wrap_with_ddp off to see whether "
        "wrapping is the cause.",
        example="Loading from the folder 100% (31/31) Qwen2Bridge\n"
        '  File "megatron/bridge/models/model_provider.py", line 698, in get_model\n'
        '  File "megatron/core/distributed/distributed_data_parallel.py", line 314, in __init__\n'
        "KeyError: 'module.decoder.layers.0.mlp.linear_fc1.to_wrap.weight'",
        source="Megatron-LM, megatron/core/distributed/distributed_data_parallel.py:DistributedDataParallel",
    ),
    TriageRule(
        id="ddp-config",
        fault=Fault.CODE,
        stage=Stage.DDP_WRAP,
        places=True,
        message=r"DistributedDataParallelConfig|ddp_config",
        cause="the DDP configuration cannot be built",
        fix="Compare the field named with this Megatron-Core's DistributedDataParallelConfig.",
        example="Traceback (most recent call last):\n"
        '  File "train.py", line 48, in <module>\n'
        "TypeError: DistributedDataParallelConfig.__init__() got an unexpected keyword argument "
        "'use_distributed_optimizers'\n",
        source="Megatron-LM, "
        "megatron/core/distributed/distributed_data_parallel_config.py:DistributedDataParallelConfig",
    ),
    TriageRule(
        id="peft",
        fault=Fault.CODE,
        stage=Stage.PEFT,
        places=True,
        calls=r"megatron/bridge/peft/|megatron_peft|:adapter_checkpoint_hook$|:peft_\w*hook$|(?:^|/)peft/",
        cause="LoRA could not be applied",
        fix="Reproduce with the PEFT tests; check target modules, rank and the layer that is wrapped.",
        example='  File "megatron/bridge/models/model_provider.py", line 666, in get_model\n'
        '  File "megatron/bridge/peft/lora.py", line 221, in transform\n'
        "ValueError: Unsupported class (TELinear)",
        source="Megatron-Bridge, src/megatron/bridge/peft/lora.py:transform",
    ),
    TriageRule(
        id="hf-config",
        fault=Fault.CODE,
        stage=Stage.BRIDGE_PROVIDER,
        places=True,
        calls=r":to_megatron_provider$|:provider_bridge$|:hf_config_to_\w+$|:get_model_config$",
        cause="Bridge could not make a provider of the model's configuration",
        fix="Compare the field that the message names with what Bridge's bridge of this family maps.",
        example='  File "megatron/bridge/models/conversion/auto_bridge.py", line 1968, in to_megatron_provider\n'
        '  File "megatron/bridge/models/conversion/model_bridge.py", line 529, in hf_to_megatron_activation\n'
        "ValueError: Unsupported activation function: nonsense. Supported: ['gelu', 'relu', 'silu']",
        source="Megatron-Bridge, src/megatron/bridge/models/conversion/model_bridge.py:hf_to_megatron_activation",
    ),
    TriageRule(
        id="hf-import",
        fault=Fault.CODE,
        stage=Stage.HF_IMPORT,
        places=True,
        calls=r":load_hf_weights$|:load_weights_hf_to_megatron$|conversion/model_bridge\.py:|/param_mapping\.py:"
        r"|hf_pretrained/state\.py:|:maybe_modify_loaded_hf_weight$|:load_megatron_gptmodel_weights$"
        r"|:load_state_dict_to_megatron|mbridge/\S+:load_|:hf_to_megatron$",
        cause="importing the Hugging Face weights failed",
        fix="Reproduce with the conversion test of that family; compare the mapping with the keys of the checkpoint.",
        steps=(
            "Take the parameter that the message names, and look it up in the family's mapping_registry and in "
            "model.safetensors.index.json.",
            "A key that is not found: the checkpoint has another layout (tied embeddings, fused experts, a new "
            "release of the model), or the mapping has another name.",
            "A shape that differs: compare the layer's shard under TP, PP and EP with the mapping (column, row, "
            "QKV, gated), then rerun with all sizes 1.",
        ),
        example='  File "megatron/bridge/models/model_provider.py", line 666, in get_model\n'
        '  File "megatron/bridge/models/hf_pretrained/state.py", line 643, in load_tensors\n'
        "KeyError: \"Keys not found in safetensors: {'model.norm.weight'}\"",
        source="Megatron-Bridge, src/megatron/bridge/models/hf_pretrained/state.py:load_tensors",
    ),
    TriageRule(
        id="parallel-init",
        fault=Fault.OUTSIDE,
        undecided=True,
        stage=Stage.ENVIRONMENT,
        places=True,
        calls=r"megatron/bridge/training/initialize\.py:|:initialize_model_parallel$|:init_process_group$|:init_device_mesh$|/device_mesh\.py:"
        r"|:initialize_global_process_group|:_init_device_mesh$|base/worker\.py:|:_setup_env",
        cause="processes, device mesh or parallel sizes could not be set up",
        fix="Check world size against TP, PP, CP, EP and batch sizes, and the GPUs that each worker sees.",
        example="Enabling LORA with rank=4, alpha=4\n"
        '  File "megatron/core/parallel_state.py", line 823, in initialize_model_parallel\n'
        "RuntimeError: world_size (2) is not divisible by 4",
        source="Megatron-LM, megatron/core/parallel_state.py:initialize_model_parallel",
    ),
    TriageRule(
        id="bridge-provider",
        fault=Fault.CODE,
        stage=Stage.BRIDGE_PROVIDER,
        places=True,
        calls=r"megatron/bridge/|:to_megatron_provider$",
        cause="Bridge could not build the model",
        fix="Read the innermost frame of Bridge or Megatron; rerun the merge base with the same job.",
        steps=(
            "Name the setting that the error complains of, and where it comes from: config.json through Bridge's "
            "provider_bridge, a default of the provider, or an override of the job.",
            "Compare the provider's parallel sizes and number of layers with the job's TP, PP, VPP, CP and EP.",
            "Build the model alone: AutoBridge.from_hf_pretrained(path).to_megatron_provider(), finalize() and "
            "provide(), with the job's sizes.",
        ),
        example='  File "megatron/bridge/models/model_provider.py", line 747, in _create_model\n'
        '  File "megatron/core/transformer/transformer_block.py", line 156, in get_num_layers_to_build\n'
        "AssertionError: num_layers=4 should be divisible by config.pipeline_model_parallel_size=3",
        source="Megatron-LM, megatron/core/transformer/transformer_block.py:get_num_layers_to_build",
    ),
    TriageRule(
        id="model-part",
        fault=Fault.CODE,
        stage=Stage.BRIDGE_PROVIDER,
        places=True,
        calls=r"/transformer_config\.py:|:_build_tf_config$|:_build_megatron_module$|:make_megatron_module$"
        r"|:_init_hf_config_and_tf_config$|:hf_to_mcore_config|megatron/core/\S+:__init__$|/spec_utils\.py:"
        r"|/transformer_block\.py:|:get_gpt_\w*spec|:initialize_layer$|verl/models/mcore/|:_build_model$"
        r"|megatron/core/models/",
        cause="a part of the model could not be built",
        fix="Read the innermost frame of Megatron-LM or verl; rerun the merge base with the same job.",
        example='  File "verl/workers/megatron_workers.py", line 410, in _build_model_optimizer\n'
        '  File "megatron/core/transformer/transformer_config.py", line 901, in __post_init__\n'
        "ValueError: num_attention_heads (16) must be a multiple of num_query_groups (3).",
        source="Megatron-LM, megatron/core/transformer/transformer_config.py:__post_init__",
    ),
    TriageRule(
        id="model-download",
        fault=Fault.OUTSIDE,
        undecided=True,
        stage=Stage.MODEL_DOWNLOAD,
        places=True,
        calls=r"huggingface_hub/|transformers/\S+:(?:from_pretrained|_get_config_dict|cached_files?"
        r"|_from_pretrained)$|:hf_tokenizer$|:hf_processor$|:copy_to_local|:snapshot_download|modelscope/",
        cause="the model's configuration, tokenizer or weights could not be read",
        fix="Snapshot the model completely and read it once before any worker starts.",
        example="Using dataset class: RLHFDataset\n"
        '  File "verl/utils/tokenizer/tokenizer.py", line 176, in hf_tokenizer\n'
        '  File "transformers/tokenization_utils_base.py", line 2100, in _from_pretrained\n'
        "ValueError: Non-consecutive added token found in the saved vocabulary",
        source="transformers, tokenization_utils.py:_from_pretrained, below verl "
        "verl/utils/tokenizer/tokenizer.py:hf_tokenizer",
    ),
    TriageRule(
        id="verl-config",
        fault=Fault.OUTSIDE,
        undecided=True,
        stage=Stage.ENVIRONMENT,
        places=True,
        calls=r"verl/workers/config/|verl/utils/config\.py:|verl/trainer/config/|:validate_config$",
        cause="verl refuses the run's configuration",
        fix="Change the key that the message names; compare with verl's configuration at the commit under test.",
        example="Using dataset class: RLHFDataset\n"
        '  File "verl/workers/config/actor.py", line 150, in __post_init__\n'
        "ValueError: [actor_rollout_ref.actor] Please set at least one of ppo_micro_batch_size and its "
        "_per_gpu form.",
        source="verl, verl/workers/config/actor.py:__post_init__",
    ),
    TriageRule(
        id="ray",
        fault=Fault.OUTSIDE,
        stage=Stage.RAY,
        places=True,
        calls=r"ray/_private/(?:worker|node|services)\.py:(?:init|connect|start\w*|__init__|wait\w*)$"
        r"|:placement_group|:_check_resource_available$|:create_resource_pool$|resource_pool"
        r"|:get_placement_groups$|:sort_placement_group",
        cause="Ray could not be started or has too few resources",
        fix="Give Ray its own RAY_TMPDIR with room and the CPUs and GPUs that the job asks for.",
        example="Total training steps: 1\n"
        '  File "ray/_private/worker.py", line 1927, in init\n'
        '  File "ray/_private/node.py", line 1407, in start_gcs_server\n'
        "RuntimeError: Timed out waiting for file in the session directory",
        source="Ray, python/ray/_private/node.py:start_gcs_server",
    ),
    TriageRule(
        id="trainer",
        fault=Fault.CODE,
        stage=Stage.TRAIN_STEP,
        places=True,
        calls=r"(?:trainer\w*|trainer/\S+)\.py:(?:fit|step|_step_once|_validate)$",
        cause="the training loop failed",
        fix="Read the innermost frame; rerun the merge base with the same job.",
        example="ray_trainer without a milestone\n"
        '  File "verl/trainer/ppo/ray_trainer.py", line 1150, in fit\n'
        "IndexError: list index out of range",
        source="verl, verl/trainer/ppo/ray_trainer.py:fit",
    ),
    TriageRule(
        id="model-build",
        fault=Fault.CODE,
        stage=Stage.BRIDGE_PROVIDER,
        places=True,
        calls=r":_build_\w*model\w*$|:init_model$|^ray::.*(?:init_model|_reset)$",
        cause="the model could not be built",
        fix="Read the innermost frame; rerun the merge base with the same job.",
        example='  File "verl/workers/engine_workers.py", line 643, in init_model\n'
        "NotImplementedError: Cannot copy out of meta tensor; no data!",
        source="PyTorch, torch/nn/modules/module.py:_apply, below verl verl/workers/engine_workers.py:init_model",
    ),
    TriageRule(
        id="watchdog",
        fault=Fault.OUTSIDE,
        kind=r"^WatchdogTimeout$",
        cause="a watchdog ended a process that made no progress",
        fix="Find what that process waited for: its stack, the device and the other ranks; then rerun.",
        example="Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        "Watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        source="SGLang, python/sglang/srt/utils/watchdog.py",
    ),
    TriageRule(
        id="native-error",
        fault=Fault.OUTSIDE,
        kind=r"^NativeError$",
        cause="the last thing that is printed is an error of a native library",
        fix="Look the line up in that library; if it names a device or a peer, rerun on another host.",
        example="Training Progress:   5%|x         | 1/20 [00:19<06:19, 19.99s/it]\n"
        "F1120 14:10:32.300000 77 tensor.cc:12] Check failed: rows == columns",
        source="glog, src/logging.cc:LogMessage",
    ),
    TriageRule(
        id="failed-exit",
        fault=Fault.OUTSIDE,
        stage=Stage.SHUTDOWN,
        kind=r"^ExitStatus$",
        cause="the requested steps completed, but the run ended with a failure",
        fix="Find what failed after the last step: a save, a validation, the clean-up, or the script around the run.",
        example="Training Progress: 100%|x| 1/1 [00:19<00:00, 19.99s/it]\n"
        "srun: error: n1: task 0: Exited with exit code 1",
        source="Slurm, src/srun/libsrun/launch.c",
    ),
    TriageRule(
        id="after-construction",
        fault=Fault.CODE,
        places=True,
        stood=AFTER_CONSTRUCTION,
        kind=r"(?:Error|Exception)$",
        cause="an exception was raised after the model had been built",
        fix="Read the traceback; rerun the merge base with the same job.",
        example="Training Progress:  10%|x         | 1/10 [00:19<06:19, 19.99s/it]\n"
        "Traceback (most recent call last):\n"
        '  File "somewhere.py", line 12, in work\n'
        "ValueError: no such thing",
        source="CPython, Objects/exceptions.c, for code that no other rule places",
    ),
    TriageRule(
        id="other-checkout",
        fault=Fault.OUTSIDE,
        fact=silent.other_checkout,
        stage=Stage.IMPORT,
        cause="the package under test was not imported from the folder that PYTHONPATH names",
        fix="Put the checkout first on the PYTHONPATH of driver and Ray workers, and uninstall the other one.",
        steps=(
            "Workers get theirs from `ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH`: pass it as an override.",
            "`python -c 'import megatron.bridge as m; print(m.__file__)'` in the driver and in a Ray task names the "
            "folder.",
            "Python uses the checkout in place of an installed Megatron-Bridge only while the checkout can be "
            "imported.",
        ),
        example="+ PYTHONPATH=/src/bridge/src:/src/bridge/3rdparty/Megatron-LM\n"
        "/usr/lib/python3/site-packages/megatron/bridge/models/qwen/qwen2_bridge.py:48: FutureWarning: old\n"
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="CPython, Lib/warnings.py:formatwarning",
    ),
    TriageRule(
        id="not-as-asked",
        fault=Fault.OUTSIDE,
        fact=silent.not_as_asked,
        cause="the run is not the one that was requested",
        fix="Compare the two lines; correct the variable, the override or the script, and run again.",
        steps=(
            "A variable counts only when the wrapper at that commit reads it; a later override of the same key wins.",
        ),
        example="+ LORA_RANK=4\nEnabling LORA with rank=8, alpha=8, dropout=0.0\n"
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="verl, tests/special_e2e/run_ppo_trainer_megatron.sh",
    ),
    TriageRule(
        id="adapter-empty",
        fault=Fault.CODE,
        fact=silent.adapter_empty,
        stage=Stage.PEFT,
        cause="LoRA was requested but matched no module",
        fix="Check lora.target_modules against the module names of this family.",
        steps=("Go through the steps of [adapter-path](#adapter-path).",),
        example="Enabling LORA with rank=4, alpha=4, dropout=0.0\nPEFT Adapter Information\n"
        "Total parameters:     17,940,992\nAdapter parameters:   0\n",
        source="Megatron-Bridge, src/megatron/bridge/peft; our Level 0 with a matcher that matches nothing",
    ),
    TriageRule(
        id="weights-unmapped",
        fault=Fault.CODE,
        fact=silent.weights_unmapped,
        cause="Bridge dropped weights",
        fix="Compare Bridge's mapping for this family with the keys of the checkpoint.",
        steps=(
            "Every name in the warning needs a mapping: `No mapping found` is a Megatron parameter without one, `Can't "
            "find` a mapping whose Hugging Face key the checkpoint does not have.",
            "With LoRA the wrapped names (to_wrap, adapter) must be unwrapped before the mapping is looked up.",
            "`output_layer.weight` of a family whose embeddings are tied: verl gives the critic a value head in that "
            "place and unties it, so the family's bridge must map the output layer although its checkpoints hold "
            "none. Without a mapping Bridge ends with `'NoneType' object has no attribute 'megatron_module'`.",
        ),
        example="WARNING:2025-11-11 03:39:09,185:WARNING: No mapping found for megatron_param: "
        "decoder.layers.0.self_attention.linear_proj.to_wrap.weight",
        source="Megatron-Bridge, src/megatron/bridge/models/conversion/model_bridge.py; NVIDIA-NeMo/Megatron-Bridge "
        "issue 1272",
    ),
    TriageRule(
        id="export-incomplete",
        fault=Fault.CODE,
        fact=silent.export_incomplete,
        cause="the export did not regenerate every key of the source checkpoint and went on",
        fix="List the keys that were not written, and give each a mapping or mark it as ignored for this family.",
        steps=(
            "`not written` names keys of the source that the export never yielded; `not found in original model "
            "structure` names what it yielded under a wrong key: the two lists usually pair up.",
        ),
        example="Loading from the folder 100% (31/31) Qwen2Bridge\n"
        "Error: 2 tensors from the original checkpoint were not written. See warnings above for details.",
        source="Megatron-Bridge, src/megatron/bridge/models/hf_pretrained/state.py:save_generator",
    ),
    TriageRule(
        id="weights-refused",
        fault=Fault.CODE,
        fact=silent.weights_refused,
        stage=Stage.EXPORT_WEIGHT_SYNC,
        cause="the rollout engine did not take every weight and went on",
        fix="Compare the names and shapes that the trainer exports with those that the engine's model has.",
        steps=(
            "The line names a weight: look for it in the export (`AutoBridge.export_hf_weights`) and in the engine's "
            "model (`named_parameters`); a fused, renamed or padded tensor differs in name or shape.",
        ),
        example="(vLLMHttpServer pid=9) WARNING 11-20 14:34:20 [qwen3_next.py:301] Parameter "
        "layers.3.mlp.gate.weight not found in params_dict, skip loading\n"
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="vLLM, vllm/model_executor/models/qwen3_next.py:load_weights",
    ),
    TriageRule(
        id="rollout-from-file",
        fault=Fault.OUTSIDE,
        fact=silent.rollout_from_file,
        stage=Stage.ROLLOUT_ENGINE,
        cause="the rollouts were read from a file, so the engine and the weights that it got are not tested",
        fix="Switch actor_rollout_ref.rollout.skip off and run again.",
        example="[RolloutSkip()] Load generate result at step 1 from /data/dump\n"
        "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="verl, verl/utils/skip/rollout_skip.py:RolloutSkip",
    ),
    TriageRule(
        id="no-samples",
        fault=Fault.OUTSIDE,
        fact=silent.no_samples,
        stage=Stage.TRAIN_STEP,
        cause="no response reached the loss",
        fix="Look at what the engine generated and at what filters it, then run again.",
        steps=(
            "`response_length` and `response/aborted_ratio`: the engine was interrupted, or ended every response at "
            "once.",
            "`rollout_corr/rollout_rs_*_masked_fraction` of 1: trainer and rollout differ so much that rejection "
            "sampling left nothing; compare the weights of both.",
        ),
        example="step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - response/aborted_ratio:1.0\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="verl, verl/trainer/ppo/metric_utils.py:compute_data_metrics",
    ),
    TriageRule(
        id="metrics-not-finite",
        fault=Fault.CODE,
        fact=silent.metrics_not_finite,
        stage=Stage.LEARNING_SIGNAL,
        cause="a metric that must be a number is not finite",
        fix="Find the first tensor that is not finite; lower the rate or run in fp32.",
        example="step:1 - actor/loss:0.5 - actor/grad_norm:nan - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="verl, verl/trainer/ppo/ray_trainer.py:fit",
    ),
    TriageRule(
        id="agreement-unknown",
        fault=Fault.OUTSIDE,
        fact=silent.agreement_unknown,
        stage=Stage.EXPORT_WEIGHT_SYNC,
        cause="the correlation of trainer and rollout is not a number from -1 to 1, so nothing shows that both hold "
        "the same weights",
        fix="Check that the rollout returns log-probabilities and that responses have tokens that count.",
        example="step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - "
        "training/rollout_actor_probs_pearson_corr:nan\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="verl, verl/utils/debug/metrics.py:calculate_debug_metrics",
    ),
    TriageRule(
        id="actor-not-updated",
        fault=Fault.OUTSIDE,
        fact=silent.not_updated,
        stage=Stage.TRAIN_STEP,
        cause="no step updated the actor",
        fix="Set trainer.critic_warmup to 0, or train more steps than it has.",
        example="step:1 - critic/score/mean:0.5 - critic/grad_norm:0.25 - critic/vf_loss:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="verl, verl/trainer/ppo/v1/trainer_base.py:fit",
    ),
    TriageRule(
        id="advantage-zero",
        fault=Fault.OUTSIDE,
        fact=silent.no_advantage,
        stage=Stage.LEARNING_SIGNAL,
        cause="every advantage is exactly zero, so the policy had nothing to learn from",
        fix="Choose data and a reward under which the responses to one prompt earn different rewards.",
        example="step:1 - actor/grad_norm:0.0 - critic/advantages/max:0.0 - critic/advantages/min:0.0\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="verl, verl/trainer/ppo/core_algos.py:compute_grpo_outcome_advantage",
    ),
    TriageRule(
        id="gradient-zero",
        fault=Fault.CODE,
        fact=silent.no_gradient,
        stage=Stage.LEARNING_SIGNAL,
        cause="a gradient norm is exactly zero at every step",
        fix="Check that what should train has requires_grad and is in the optimizer; then that rewards differ.",
        steps=(
            "Adapter frozen: compare `Adapter parameters` above with the optimizer's parameter groups.",
            "Every advantage zero: with a group estimator equal rewards in each group leave no gradient; look at the "
            "reward and advantage metrics of the same lines.",
        ),
        example="step:1 - actor/loss:0.5 - actor/grad_norm:0.0 - critic/grad_norm:1.5\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="verl, verl/workers/engine_workers.py:train_mini_batch",
    ),
    TriageRule(
        id="rollout-disagrees",
        fault=Fault.CODE,
        fact=silent.agreement_low,
        stage=Stage.EXPORT_WEIGHT_SYNC,
        cause="trainer and rollout do not hold the same weights",
        fix="Export right after the import, without a step, and compare every tensor with the checkpoint's.",
        steps=(
            "A low correlation at step 1 is a fault of import, export or sync: a swapped gate and up, a transposed or "
            "missing tensor, a setting of rope or of the norm that only one side has.",
            "A correlation that falls later is drift of the rollout's precision, or adapters that are not sent.",
        ),
        example="step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - "
        "training/rollout_actor_probs_pearson_corr:0.44\n"
        "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
        source="verl, verl/utils/debug/metrics.py:calculate_debug_metrics",
    ),
    TriageRule(
        id="rate-zero",
        fault=Fault.OUTSIDE,
        fact=silent.no_rate,
        stage=Stage.LEARNING_SIGNAL,
        cause="the learning rate is zero at every step, so no update moved anything",
        fix="Give actor_rollout_ref.actor.optim.lr a rate above zero, and a warm-up shorter than the run.",
        example="step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - actor/lr:0.0\n"
        "step:2 - actor/loss:0.5 - actor/grad_norm:0.25 - actor/lr:0.0\n"
        "Training Progress: 100%|###| 2/2 [00:01<00:00, 1.0s/it]",
        source="verl, verl/workers/engine_workers.py:train_mini_batch",
    ),
    TriageRule(
        id="reward-constant",
        fault=Fault.OUTSIDE,
        fact=silent.constant_reward,
        stage=Stage.LEARNING_SIGNAL,
        cause="the reward is exactly the same at every step",
        fix="Check that the reward depends on the response; then choose data on which the model earns some of it.",
        steps=(
            "A constant above zero is a reward function that ignores the response, or one answer given every time.",
            "Zero at every step is what a model with random weights earns from a strict rule: use a rule that grades, "
            "or fewer than 3 steps where no learning is to be shown.",
        ),
        example="step:1 - actor/grad_norm:0.25 - critic/score/mean:1.0 - actor/loss:0.5\n"
        "step:2 - actor/grad_norm:0.35 - critic/score/mean:1.0 - actor/loss:0.4\n"
        "step:3 - actor/grad_norm:0.45 - critic/score/mean:1.0 - actor/loss:0.3\n"
        "Training Progress: 100%|###| 3/3 [00:01<00:00, 1.0s/it]",
        source="verl, verl/trainer/ppo/metric_utils.py:compute_data_metrics",
    ),
)

NOISE: tuple[NoiseRule, ...] = (
    NoiseRule(
        name="dataloader-worker-killed",
        pattern=r"DataLoader worker .*(?:killed by signal|exited unexpectedly)",
        example="RuntimeError: DataLoader worker (pid 8000) is killed by signal: Killed.",
        source="PyTorch, torch/utils/data/_utils/signal_handling.py; our passing Level 0",
    ),
    NoiseRule(
        name="ray-worker-died",
        pattern=r"died or was killed while executing|ActorDied|ActorUnavailable|WorkerCrashed|Owner(?:'s|Died)"
        r"|LocalRayletDied",
        example="A worker died or was killed while executing a task by an unexpected system error.",
        source="Ray, src/ray/raylet/node_manager.cc; github.com/johnson7788/RLDecisionAgent docs/Error.md",
    ),
    NoiseRule(
        name="engine-died",
        pattern=r"EngineDead|[Ee]ngine ?[Cc]ore .*(?:died|issue)|proc \w+ died unexpectedly",
        example="Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
        source="vLLM, vllm/v1/engine/core_client.py",
    ),
    NoiseRule(
        name="terminated",
        pattern=r"^(?:Terminated|Killed|Signal|KeyboardInterrupt|SystemExit|CancelledError"
        r"|asyncio\.exceptions\.CancelledError)",
        example="*** SIGTERM received at time=1763648696 on cpu 3 ***",
        source="abseil, absl/debugging/failure_signal_handler.cc, in Ray's workers",
    ),
    NoiseRule(
        name="connection-closed",
        pattern=r"BrokenPipe|ConnectionReset|Connection(?:Refused|Aborted)|EOFError|Connection (?:closed"
        r"|reset) by peer",
        example="BrokenPipeError: [Errno 32] Broken pipe",
        source="CPython, Objects/exceptions.c:OSError with EPIPE",
    ),
    NoiseRule(
        name="late-shutdown",
        pattern=r"cannot schedule new futures after|Event loop is closed"
        r"|can't create new thread at interpreter shutdown|sys\.meta_path is None|leaked \w+ objects|atexit",
        example="RuntimeError: cannot schedule new futures after interpreter shutdown",
        source="CPython, Lib/concurrent/futures/thread.py:submit",
    ),
)
