"""Generated logs of the classes of `triage-wild`: each fault in the words of several makers, behind several prefixes.

A class says what is right before anything reads the log: an end from outside is Blocked whatever was caught before it,
a run of another backend blames no one by name, a fault of the machine stays one below a frame of Bridge.
"""

from collections.abc import Iterator
from itertools import product

from tests.core.triage.tables import BLOCKED, FAIL, PASS, Case

H = "Traceback (most recent call last):"
TASK, WORKER, LOOP = "(TaskRunner pid=1) ", "(WorkerDict pid=2) ", "(AgentLoopWorker pid=3) "
BEGIN = (
    f"{TASK}Using dataset class: RLHFDataset",
    f"{WORKER}/b/src/megatron/bridge/models/qwen/qwen2_bridge.py:48: FutureWarning: old",
    f"{TASK}Training Progress:   0%|          | 0/5 [00:00<?, ?it/s]",
)
STEP = TASK + "step:{0} - actor/loss:0.5 - actor/grad_norm:0.25 - training/global_step:{0}"


def _log(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


# What a launcher writes before each line.
HEADS = {
    "bare": "",
    "srun -l": "0: ",
    "docker compose": "trainer-1  | ",
    "kubectl": "[pod/verl-head/ray-head] ",
    "actions": "2026-01-01T10:00:00.0000000Z ",
}


def _behind(head: str, rows: tuple[str, ...]) -> bytes:
    return _log(*(HEADS[head] + row for row in rows))


OUTSIDE = (
    "slurmstepd: error: *** JOB 42 ON n1 CANCELLED AT 2026-01-01T11:00:00 DUE TO TIME LIMIT ***",
    "slurmstepd: error: *** STEP 42.0 ON n1 CANCELLED AT 2026-01-01T11:00:00 DUE TO PREEMPTION ***",
    "srun: Force Terminated job 42",
    "salloc: Job allocation 42 has been revoked.",
    "=>> PBS: job killed: walltime 3607 exceeded limit 3600",
    "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
    "##[error]The operation was canceled.",
    "The runner has received a shutdown signal. This can happen when the runner service is stopped.",
    "##[error]The job running on runner gpu has exceeded the maximum execution time of 360 minutes.",
    "ERROR: Job failed: execution took longer than 1h0m0s seconds",
    "ERROR: Job failed: canceled",
    "Cancelling nested steps due to timeout",
    "# Received cancellation signal, interrupting",
    "Too long with no output (exceeded 10m0s): context deadline exceeded",
    "timeout: sending signal TERM to command 'python3'",
    "Pod was active on the node longer than the specified deadline",
    "Warning  Evicted  3s  kubelet  The node had a condition.",
    "Normal   Preempted  2s  default-scheduler  Preempted by another pod",
    "Instance gpu-3 was preempted",
    "Task was aborted because the pipeline timed out",
    "Process completed with exit code 143.",
    "Main process exited, code=killed, status=15/TERM",
    "Job 77 exceeded its wall clock limit and was terminated",
)
RAISED = (H, '  File "/w/env.py", line 4, in act', '    raise ValueError("no action")', "ValueError: no action")
# How a program prints an exception that it had caught: the lines above the traceback, and the traceback's own marks.
CAUGHT = {
    "header": tuple(f"{LOOP}{row}" for row in (f"ERROR:2026-01-01 10:00:00,000:{H}", *RAISED[1:])),
    "record": tuple(f"{LOOP}{row}" for row in ("ERROR:2026-01-01 10:00:00,000:it failed", *RAISED)),
    "warning": tuple(f"{LOOP}{row}" for row in ("WARNING:root:skipped", *RAISED)),
    "task": tuple(
        f"{LOOP}{row}"
        for row in (
            "Task exception was never retrieved",
            "future: <Task finished name='Task-7' coro=<act() done> exception=ValueError('no action')>",
            *RAISED,
        )
    ),
    "thread": tuple(f"{LOOP}{row}" for row in ("Exception in thread Thread-7 (act):", *RAISED)),
    "retried": tuple(f"{LOOP}{row}" for row in (*RAISED, "attempt 1/3 failed, retrying in 2 s")),
}


def _outside() -> Iterator[Case]:
    heads = tuple(HEADS)
    for number, (end, (name, rows)) in enumerate(product(OUTSIDE, CAUGHT.items())):
        log = _behind(heads[number % len(heads)], (*BEGIN, *rows, f"{LOOP}INFO:root:item 8 is next", end))
        yield Case("an end from outside", f"{name}/{end[:40]}", log, stages=("train_step",), line=log.count(b"\n"))
    for end in OUTSIDE:
        # An exception that nothing caught ended the worker, and the job's end only followed.
        rows = (f"{WORKER}{H}", f'{WORKER}  File "/b/src/megatron/bridge/peft/lora.py", line 9, in forward')
        died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
        log = _log(*BEGIN, *rows, f"{WORKER}RuntimeError: shape mismatch", died, end)
        yield Case("raised before an end", end[:40], log, FAIL, line=6)


BACKENDS = {
    "fsdp": "/x/verl/workers/fsdp_workers.py:update_actor|/x/verl/workers/actor/dp_actor.py:update_policy",
    "engine fsdp": "/x/verl/workers/engine/fsdp/transformer_impl.py:train_batch",
    "veomni": "/x/verl/workers/engine/veomni/transformer_impl.py:forward_step",
    "torchtitan": "/x/verl/workers/engine/torchtitan/transformer_impl.py:optimizer_step",
    "automodel": "/x/verl/workers/engine/automodel/transformer_impl.py:forward_step",
}
STRATEGIES = (
    f"{TASK}                       'strategy': 'fsdp',",
    f"{TASK}    'strategy': 'fsdp2',",
    f'{TASK}  "strategy": "fsdp",',
    f"{TASK}    strategy: fsdp2",
    "+ python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=fsdp2 critic.strategy=fsdp2",
    f"{TASK}    'strategy': 'torchtitan',",
    f"{TASK}    'strategy': 'veomni',",
)


def _frames(calls: str, prefix: str = "") -> list[str]:
    rows = (call.rsplit(":", 1) for call in calls.split("|"))
    return [f'{prefix}  File "{path}", line 7, in {function}' for path, function in rows]


def _backends() -> Iterator[Case]:
    for name, calls in BACKENDS.items():
        for kind in ("ValueError: bad wrap policy", "KeyError: 'old_log_probs'", "RuntimeError: shape mismatch"):
            ray = f"ray.exceptions.RayTaskError({kind.split(':')[0]}): ray::WorkerDict.update_actor() (pid=1)"
            log = _log(ray, *_frames(calls), kind)
            yield Case("another backend", f"{name}/{kind}", log, says=(name.split()[-1],), never="Bridge")
        init = f"{calls.split(':')[0]}:_build_model"
        log = _log(f"{WORKER}{H}", *_frames(init, WORKER), f"{WORKER}ValueError: bad wrap policy")
        stages = ("environment", "fsdp_wrap")
        yield Case("another backend", f"{name}/build", log, stages=stages, says=(name.split()[-1],), never="Bridge")
    for strategy in STRATEGIES:
        tool = [f"{TASK}{row}" for row in (H, '  File "/x/proj/tool.py", line 4, in call', "ValueError: no tool")]
        log = _log(strategy, BEGIN[0], BEGIN[2], *tool)
        yield Case(
            "another backend", strategy[-30:], log, stages=("train_step",), says=("trains with",), never="Bridge"
        )
        megatron = _log("    'strategy': 'megatron',", strategy, BEGIN[0], BEGIN[2], *tool)
        yield Case("Megatron too", strategy[-30:], megatron, FAIL, never="Bridge")


# Text as the shell echoes it, text of the override, and whether both are one value.
VALUES = (
    ("/m", "'model.path=\"/m\"'", True),
    ("/m", "model.path=/m/", True),
    ("/m", "model.path=/a/../m", True),
    ("/m", "model.path=\"'/m'\"", True),
    ("/m", "'model.path=\\'/m\\''", True),
    ("~/m", "model.path=/home/u/m", True),
    ("/m", "model.path=//m", True),
    ("/m/./x", "model.path=/m/x", True),
    ("/m", "'model.path=\"/n\"'", False),
    ("/m", "model.path=/m/../n", False),
    ("~/m", "model.path=/home/u/n", False),
)
NUMBERS = (
    ("8", "lora.rank='\"8\"'", True),
    ("8", "lora.rank=8.0", True),
    ("8", "lora.rank=\"'8'\"", True),
    ("8", "lora.rank=08", True),
    ("8", "'lora.rank=\"16\"'", False),
)
# What was asked for by an override, what the run prints of it, and whether both are one value.
PRINTED = (
    ("a.lr=1e-6", "1e-06", True),
    ("a.lr='\"1.0e-06\"'", "1e-06", True),
    ("a.lr=0.000001", "1e-06", True),
    ("a.lr=1e-5", "1e-06", False),
    ("a.x=null", "None", True),
    ("a.x=None", "None", True),
    ("a.x=null", "4", False),
    ("a.on=True", "True", True),
    ("a.on=\"'true'\"", "True", True),
    ("a.on=false", "True", False),
    ("a.names='[console,wandb]'", "['console', 'wandb']", True),
    ("a.names=\"['console','wandb']\"", "['console', 'wandb']", True),
    ('a.names=\'["console", "wandb"]\'', "['console', 'wandb']", True),
    ("a.names='[console]'", "['console', 'wandb']", False),
    ("a.opts='{lr: 1e-6, on: true}'", "{'lr': 1e-06, 'on': True, 'more': 1}", True),
    ("a.opts='{lr: 1e-5}'", "{'lr': 1e-06, 'on': True}", False),
    ("a.text=\"'it\\\\'s'\"", '"it\'s"', True),
    ("a.file='\"/d/x.parquet\"'", "'/d/x.parquet'", True),
    ("a.files='[/d/a,/d/b/]'", "['/d/a', '/d/b']", True),
    ("a.x=${oc.env:X}", "'anything'", True),
    ("a.n=1000", "1000", True),
    ("a.f=.95", "0.95", True),
)
DONE = (
    "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5 - training/global_step:1",
    "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
)


def _values() -> Iterator[Case]:
    command = "+ python3 -m verl.trainer.main_ppo {}trainer.total_training_steps=1"
    for variable, rows in (("MODEL_PATH", VALUES), ("LORA_RANK", NUMBERS)):
        for value, override, same in rows:
            key = override.replace("model.path", "actor_rollout_ref.model.path", 1)
            key = key.replace("lora.rank", "actor_rollout_ref.model.lora.rank", 1)
            log = _log(f"+ {variable}={value}", command.format(f"{key} "), *DONE)
            yield Case("values", f"{value} as {override}", log, PASS if same else BLOCKED)
    for override, printed, same in PRINTED:
        key = override.split("=")[0].split(".")[1]
        config = f"{TASK}{{'actor_rollout_ref': {{'a': {{'{key}': {printed}}}}}}}"
        log = _log(command.format(f"{override.replace('a.', 'actor_rollout_ref.a.', 1)} "), config, *DONE)
        yield Case("values", f"{override} as {printed}", log, PASS if same else BLOCKED)


# Raised below Bridge's own frames: library frames, and what is raised.
MACHINE = (
    ('RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "CUDAContext.cpp":52', "cuda"),
    ("AssertionError: Invalid device id", "cuda"),
    ("RuntimeError: CUDA error: invalid device ordinal", "cuda"),
    ("RuntimeError: HIP error: invalid device ordinal", "cuda"),
    ("RuntimeError: HIP error: hipErrorNoDevice", "cuda"),
    ("RuntimeError: HSA_STATUS_ERROR_INVALID_ISA: the instruction set architecture is invalid.", "cuda"),
    (
        "RuntimeError: SetPrecisionMode: NPU function error: at_npu::native::AclSetCompileopt, error code is 500001",
        "npu",
    ),
    ("RuntimeError: NPU function error: c10_npu::SetDevice(device), error code is 107001", "npu"),
    ("RuntimeError: aclrtSynchronizeStream failed, error code is 507033", "npu"),
    ("RuntimeError: EL0004: Failed to allocate the driver resource.", "npu"),
    ("RuntimeError: hcclCommInitRootInfo failed. EI0006: Getting socket times out.", "npu"),
    ("RuntimeError: HCCL function error: HcclAllReduce, error code is 6", "npu"),
    ("RuntimeError: Native API failed. UR_RESULT_ERROR_DEVICE_LOST", "xpu"),
    ("RuntimeError: level_zero backend failed with error: ZE_RESULT_ERROR_DEVICE_LOST", "xpu"),
    ("RuntimeError: No XPU devices are available.", "xpu"),
    ("RuntimeError: synStatus=26 [Generic failure] Device acquire failed.", "hpu"),
    ("RuntimeError: synStatusDeviceReset: the device was reset", "hpu"),
    ("RuntimeError: MUSA error: invalid device ordinal", "musa"),
    ("RuntimeError: CNRT_RET_ERR_NODEV: no device", "mlu"),
)
PATHS = (
    "ValueError: Invalid pretrained checkpoint directory found: /models/hf",
    "FileNotFoundError: [Errno 2] No such file or directory: '/models/mcore/run_config.yaml'",
    "AssertionError: checkpoint path /models/none does not exist",
    "ValueError: Checkpoint directory '/models/x' is not a valid directory",
    "NotADirectoryError: [Errno 20] Not a directory: '/models/hf/config.json'",
    "RuntimeError: No checkpoint found in /data/ckpt",
    "ValueError: pretrained_checkpoint must be an existing directory, got /nope",
    "FileNotFoundError: Tokenizer path not found: /models/tok",
    "OSError: Unable to locate the model weights at /models/w",
    "ValueError: The folder ~/models/x does not contain metadata",
    "RuntimeError: could not open checkpoint s3://bucket/models/x",
)
ABOVE = (
    "/b/src/megatron/bridge/models/model_provider.py:provide_distributed_model",
    "/b/src/megatron/bridge/training/setup.py:setup|/b/src/megatron/bridge/training/utils/log_utils.py:wrapper",
    "/b/src/megatron/bridge/models/decorators/torchrun.py:wrapper|/b/src/megatron/bridge/training/pretrain.py:_pretrain",
)
# Code of Bridge that is at fault, below the same frames.
FAULTS = (
    "TypeError: transform() missing 1 required positional argument: 'prefix'",
    "KeyError: 'decoder.layers.0.weight'",
    "ValueError: Unsupported class (TELinear)",
    "AttributeError: 'NoneType' object has no attribute 'weight'",
    "RuntimeError: The size of tensor a (512) must match the size of tensor b (256)",
)


def _machine() -> Iterator[Case]:
    wrappers = ("", "|/t/functools.py:wrapper", "|/t/torch/utils/_contextlib.py:decorate_context")
    for number, ((raised, kind), above) in enumerate(product(MACHINE, ABOVE)):
        calls = f"{above}|/t/torch/{kind}/__init__.py:set_device{wrappers[number % len(wrappers)]}"
        log = _log(f"{WORKER}{H}", *_frames(calls, WORKER), WORKER + raised)
        yield Case("the machine's", f"{number % 3}/{raised[:60]}", log, never="Bridge could not")
    for number, (raised, above) in enumerate(product(PATHS, ABOVE)):
        log = _log(f"{WORKER}{H}", *_frames(above, WORKER), WORKER + raised)
        yield Case("a path that was given", f"{number % 3}/{raised[:60]}", log, never="Bridge could not")
    for raised, above in product(FAULTS, ABOVE):
        log = _log(f"{WORKER}{H}", *_frames(above, WORKER), WORKER + raised)
        yield Case("Bridge's own", raised[:60], log, FAIL)


TRANSIENT = (
    (
        "HTTP Error 502 thrown while requesting HEAD https://huggingface.co/x/resolve/main/config.json",
        "Retrying in 1s [Retry 1/5].",
    ),
    (
        "'(ReadTimeoutError(\"read timed out\"))' thrown while requesting GET https://hf.co/x",
        "Retrying in 2s [Retry 2/5].",
    ),
    ("rpc_client.h:153: Failed to connect to GCS at address 192.0.2.2:6399 within 5 seconds.", "will retry in 5 s"),
    ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443)", "attempt 1 of 5, trying again"),
    ("botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL", "Backing off 2 s"),
    ("openai.RateLimitError: Error code: 429", "Retrying request to /v1/chat in 0.5 seconds"),
    ("wandb.errors.CommError: Network error (ConnectionError)", "wandb: Network error, entering retry loop, attempt 2"),
    ("grpc.RpcError: StatusCode.UNAVAILABLE", "Reconnecting in 3 s"),
    ("ClientError: 503 Server Error: Service Unavailable for url", "sleeping for 4 seconds before retry 2"),
    (
        "urllib3.exceptions.NewConnectionError: Failed to establish a new connection",
        "Retrying (Retry(total=4, connect=None))",
    ),
)
AFTER = (
    (f"{WORKER}INFO:2026-01-01 10:00:03,000:[Rank 0] Saved model config and tokenizer class to /c/x",),
    (STEP.format(1), f"{TASK}Training Progress:  20%|##        | 1/5 [00:09<00:36, 9.0s/it]"),
    (f"{TASK}local_global_step_folder: /c/global_step_4", f"{WORKER}Loaded the tokenizer"),
)


def _retried() -> Iterator[Case]:
    for (number, (failed, again)), after in product(enumerate(TRANSIENT), AFTER):
        log = _log(*BEGIN, WORKER + failed, WORKER + again, *after)
        yield Case("retried with success", f"{number}/{after[0][:50]}", log, says=("incomplete",))


NATIVE = (
    (
        "[rank0]:[E ProcessGroupNCCL.cpp:1484] [PG ID 2 Rank 0] ProcessGroupNCCL's watchdog got stuck for 480 seconds",
        "collective",
    ),
    (
        "[rank1]:[F1120 14:10:32.3 ProcessGroupNCCL.cpp:1557] Terminating the process due to ProcessGroupNCCL "
        "watchdog hang.",
        "collective",
    ),
    ("Watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog"),
    ("[E1120 14:10:32.3 HeartbeatMonitor.cpp:55] Heartbeat monitor timed out!", "watchdog"),
    ("Did not get subsequent heartbeat. Waited 180.00 seconds.", "watchdog"),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python3:77]", "watchdog"),
    ("[torch_memory_saver.cpp] CUresult error: 2 (out of memory) file=csrc/utils.h func=cu_mem_create", "memory"),
    ("free(): invalid pointer", "signal"),
    ("double free or corruption (!prev)", "signal"),
    ("malloc(): corrupted top size", "signal"),
    ("*** stack smashing detected ***: terminated", "signal"),
    ("python3: pair.cc:10: void run(): Assertion `fd >= 0' failed.", "signal"),
    ("terminate called without an active exception", "signal"),
    ("Bus error (core dumped)", "signal"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.", "GPU"),
    ("NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked for remapping", "GPU"),
    ("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", "GPU"),
    ("F0101 12:00:00.0 123 file.cc:12] Check failed: a == b", "native"),
    ("n1:12:34 [0] NCCL WARN Call to ibv_modify_qp failed with error Connection timed out", "native"),
    ("thread 'main' panicked at src/lib.rs:3:5: oops", "native"),
    ("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD", "worker"),
    ("mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).", "signal"),
    ("Reason: OOMKilled", "memory"),
    ("Memory cgroup out of memory: Killed process 123 (python3) total-vm:1kB", "memory"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=42.0.", "memory"),
    ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "memory"),
    ("The node was low on resource: memory. Container main was using 300Gi", "memory"),
    ("Pod ephemeral local storage usage exceeds the total limit of containers 10Gi.", "storage"),
    ("command terminated with exit code 137", "signal"),
)


def _native() -> Iterator[Case]:
    for number, (end, says) in enumerate(NATIVE):
        for head in ("bare", tuple(HEADS)[1 + number % 4]):
            verdicts = BLOCKED + FAIL if says in ("collective", "memory") else BLOCKED
            log = _behind(head, (*BEGIN, STEP.format(1), end))
            yield Case("no Python exception", f"{head}/{end[:40]}", log, verdicts, ("train_step",), (says,))


DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
DEAD = "The actor is dead because its worker process has died."
DEATHS = (
    ("The worker may have exceeded K8s pod memory limits.", "memory"),
    ("Task was killed due to the node running low on memory.", "memory"),
    ("The process was killed by the OOM killer of its cgroup.", "memory"),
    ("Worker exits with exit code 137, out of memory in its container.", "memory"),
    ("The node was preempted by its provider.", "outside"),
    ("The node is draining: expected termination by the autoscaler.", "outside"),
    ("Worker received SIGTERM from the cluster.", "outside"),
    ("The worker was evicted for a pod of higher priority.", "outside"),
    ("No space left on device while spilling to disk.", "storage"),
    ("Its node failed the health check: missed too many heartbeats.", "reach"),
    (
        "connection error code 2. End of file. Some common causes include: (1) the OOM killer, (2) ray stop.",
        "worker died",
    ),
    (
        "connection error code 2. There are some potential root causes. (1) killed by SIGKILL by the OOM killer",
        "worker died",
    ),
    ("Worker unexpectedly exits with a connection error code 2. End of file.", "worker died"),
)


def _deaths() -> Iterator[Case]:
    for detail, says in DEATHS:
        exited = f"{DEAD} Worker exit type: SYSTEM_ERROR Worker exit detail: {detail}"
        for name, rows in {
            "bare": (DIED, "\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict", exited),
            "traceback": (H, *_frames("/x/verl/trainer/main_ppo.py:main"), DIED, "\tclass_name: x", exited),
        }.items():
            yield Case("why a worker died", f"{name}/{detail[:40]}", _log(*rows), says=(says,), never="no sign")


TAILS = (
    "ray.exceptions.RayTaskError: ray::WorkerDict.update_actor() (pid=1, ip=192.0.2.1)",
    "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.",
    "RuntimeError: NCCL error: unhandled system error",
    "torch.distributed.DistNetworkError: The client socket has timed out",
    "omegaconf.errors.ConfigAttributeError: Key 'x' is not in struct",
    "ModuleNotFoundError: No module named 'megatron.bridge'",
    "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
    "subprocess.CalledProcessError: Command '['nvcc']' returned non-zero exit status 1.",
    "OSError: [Errno 28] No space left on device",
    "pydantic_core.ValidationError: 1 validation error",
    "asyncio.exceptions.TimeoutError",
)


def _tails() -> Iterator[Case]:
    for last, prefix in product(TAILS, ("", TASK, WORKER)):
        log = _log(prefix + last, f"{prefix}    hint: see the documentation")
        yield Case("a tail", f"{prefix}{last[:40]}", log, BLOCKED + FAIL, never="no sign", line=1)


def _progress() -> Iterator[Case]:
    bar = "Training Progress:   0%|          | 19/55990 [10:00<400:00:00, 30.0s/it]"
    further = {
        "metrics": ("step:261 - actor/loss:0.5 - actor/grad_norm:0.25 - training/global_step:261",),
        "checkpoint": ("Saved model to /c/global_step_261/actor",),
        "saving": ("local_global_step_folder: /c/global_step_261",),
        "bar": ("Training Progress:   0%|          | 261/55990 [10:00<400:00:00, 30.0s/it]",),
    }
    for (name, rows), prefix, head in product(further.items(), ("", TASK), HEADS):
        bars = tuple(prefix + bar.replace("19/", f"{done}/") for done in range(12, 20))
        log = _behind(head, (*bars, *(prefix + row for row in rows)))
        yield Case("progress", f"{name}/{prefix}/{head}", log, says=("step 261 of 55990",))


def _other_trainers() -> Iterator[Case]:
    metrics = (
        "train/loss:0.5",
        "train/loss:0.5 - train/lr(1e-3):0.01",
        "train/loss:0.5 - train/grad_norm:0.25 - train/lr:1e-05",
        "train/loss:0.5 - train/grad_norm:0.25 - train/lr:1e-05 - train/mfu:0.4 - val/loss:0.6",
        "dpo/loss:0.5 - dpo/margin:0.1 - lr:1e-5",
    )
    ends = (
        "Training Progress: 100%|###| 10/10 [00:01<00:00, 1.0s/it]",
        "Epoch 1/1: 100%|###| 10/10 [00:01<00:00, 1.0s/it]",
        "Epoch 2/2: 100%|###| 5/5 [00:01<00:00, 1.0s/it]",
        "Final validation metrics: {'val/loss': 0.6}",
    )
    for found, end in product(metrics, ends):
        log = _log(f"step:9 - {found}", f"step:10 - {found}", end)
        yield Case(
            "another trainer", f"{found}/{end[:20]}", log, says=("step 10 is there",), never="without the metrics"
        )
    # The bar of an epoch inside of a run of RL completes nothing.
    rl = "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - training/global_step:1"
    yield Case("another trainer", "an epoch inside of RL", _log(rl, ends[1]), says=("incomplete",))


def wild_cases() -> tuple[Case, ...]:
    """Every case, by class."""
    makers = (_outside, _backends, _values, _machine, _retried, _native, _deaths, _tails, _progress, _other_trainers)
    return tuple(case for maker in makers for case in maker())
