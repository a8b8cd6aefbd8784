"""Every literal that the scan looks for, with what its line means: the one place that `bench/grep.txt` comes from.

A line without any of these literals carries no fact, unless it lies inside a traceback or a printed
configuration that one of them opened. A literal only nominates a line; `shape` decides on the decoded text.
Texts are chosen to be rare in ordinary output, for a common one would make the prefilter useless.
"""

from itertools import chain

from verl_e2e.core.consumer.consumer import (
    Literal,
    LogMark,
    checkpoint_literal,
    lone_literal,
    noise_literal,
    opening_literal,
    sign_literal,
    soft_literal,
    stage_literal,
)
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.log.traceback import BARE_SHAPE, RETRY_SHAPE
from verl_e2e.core.model.outcome import Stage

# What Ray, Megatron-Bridge, Megatron-LM and the engines print themselves.
_STAGES = (
    opening_literal("Started a local Ray instance", Stage.RAY),
    opening_literal("Connecting to existing Ray cluster", Stage.RAY),
    stage_literal("Connected to Ray cluster", Stage.RAY),
    stage_literal("provider_bridge", Stage.BRIDGE_PROVIDER, r"megatron/bridge/models/\S+:\d+:|provider_bridge\(\)"),
    stage_literal("GPTModel IS DEPRECATED", Stage.BRIDGE_PROVIDER),
    stage_literal("Adding lora to:", Stage.PEFT),
    stage_literal("Setting up DistributedDataParallel with config", Stage.DDP_WRAP),
    stage_literal("Setting up optimizer with config", Stage.OPTIMIZER),
    stage_literal("Initializing a V1 LLM engine", Stage.ROLLOUT_ENGINE),
    stage_literal("Launch sglang", Stage.ROLLOUT_ENGINE),
)

_FACTS = (
    Literal(" with rank=", LogMark.LORA, Stage.BRIDGE_PROVIDER, r"^Enabling \w+ with rank=(\d{1,9})", builds=True),
    Literal(
        "trainable params:",
        LogMark.ADAPTER,
        Stage.PEFT,
        r"^trainable params:\s*([\d,]{1,30})\b",
        name="asked",
        builds=True,
    ),
)

# The last two numbers of a rank are always its pipeline rank and the parameter count; Megatron-LM puts its
# rematerialization rank between tensor and pipeline, a builder of a consumer may not.
_RANK = r"model parallel rank \((\d{1,6}), (?:\d{1,6}, )?(\d{1,6})\): (\d{1,15})"
_DONE = r"\((\d{1,9})/(\d{1,9})\)(?: (\w+)\s*$)?"
# What a training worker says about the model that it builds: Megatron-LM, verl's engine and its checkpoint manager.
_BUILDS = (
    Literal("number of parameters on (tensor", LogMark.RANK, Stage.BRIDGE_PROVIDER, _RANK, builds=True),
    Literal("module: ", LogMark.CHUNKS, shape=r"^module: (\d{1,4})$", builds=True),
    Literal("Loading from ", LogMark.BRIDGE, Stage.HF_IMPORT, rf"^Loading from .*{_DONE}", builds=True),
    Literal("DistributedDataParallel contains", LogMark.WRAPPED, Stage.DDP_WRAP, r"(\w+) contains", builds=True),
    Literal(
        "FullyShardedDataParallel",
        LogMark.WRAPPED,
        Stage.FSDP_WRAP,
        r"^(FullyShardedDataParallel\w*) contains [\d.]",
        builds=True,
    ),
    Literal("Converting to HuggingFace", LogMark.BRIDGE, Stage.EXPORT_WEIGHT_SYNC, rf".*{_DONE}"),
    Literal("Streaming adapter weights", LogMark.BRIDGE, Stage.EXPORT_WEIGHT_SYNC, rf".*{_DONE}"),
)


# What is printed only with a feature at work; `verl_e2e.core.judge.criteria.features` says which feature.
_SIGNS = (
    sign_literal("routing replay layers: ", "router-layers", r"^routing replay layers: [1-9]"),
    sign_literal("default MoE config", "rollout-experts"),
)

STRATEGY_SIGN = "strategy "
_SAVE, _LOAD = Stage.CHECKPOINT_SAVE, Stage.CHECKPOINT_LOAD
_CHECKPOINTS = (
    checkpoint_literal("Saving checkpoint to", "saving", _SAVE),
    checkpoint_literal("checkpoint from", "loaded", _LOAD, r"Loaded (?:\S+ ){0,4}checkpoint from"),
)

# Megatron-Bridge, models/conversion and models/hf_pretrained: each of these drops a weight and goes on.
_LOST = tuple(
    Literal(text, LogMark.LOST, shape=shape)
    for text, shape in (
        ("Can't find ", r"Can't find (?:the following HF parameters|\S+) in hf_keys|Can't find the following HF par"),
        ("No mapping found for ", r"No mapping found for (?:megatron_param|global_name): "),
        ("not written", r"(?<!\d)\d{1,9} tensors (?:from the original checkpoint were )?not written"),
        ("tensors were yielded but not saved", ""),
        ("from generator not found in original model structure", ""),
        (" tensors for keys: ", r"Missing \d{1,9} tensors for keys: "),
    )
)

# From where a package under test was imported.
_PACKAGES = (
    Literal("megatron/bridge/", LogMark.PACKAGE),
    Literal("megatron/core/", LogMark.PACKAGE),
)

# Stems of what an engine says about a weight that it did not take; `verl_e2e.core.log.printed` judges the line.
_REFUSALS = tuple(
    Literal(text, LogMark.REFUSED)
    for text in (
        *("params_dict", "loaded_params: 0", "ncompatibleKeys", "nexpected key", "nexpected_key", "issing key"),
        *("issing weight", "issing param", "issing tensor", "nknown param", "nknown weight", "nknown tensor"),
        *("kipping", "kipped", "skip load", "gnoring", "gnored", "is ignored", "will be ignored"),
        *("ot loaded", "nloaded", "ot initialized", "ot used when", "were not used", "ot found in", "not in the model"),
        *("o module or param", "no parameter named", "hape mismatch", "ize mismatch", "hapes did not match"),
        *("ailed to update", "ailed to load", "ailed to copy", "rejected", "refused", "discarded", "iscarding"),
        *("dropping", "ropped ", "nrecognized", "nmatched", "not supported", "could not be", "not applied"),
        # Any other words about weights, in the forms that no metric line and no configuration holds.
        *(" weights ", " weight ", "Weights ", "Weight ", ".weight ", ".weight'", ".weight:", " tensors ", "Tensor "),
    )
)

EXIT_NOISE = "exception-ignored-at-exit"

_NOISES = (
    noise_literal("resource_tracker", "resource-tracker"),
    noise_literal("destroy_process_group() was not called", "process-group-not-destroyed"),
    noise_literal("Exception ignored in", EXIT_NOISE, r"^Exception ignored in"),
    noise_literal("Stack (most recent call first)", "signal-stack"),
    noise_literal("is killed by signal", "dataloader-worker-killed", r"DataLoader worker"),
)

# Errors that are printed without a Python traceback.
_LONES = (
    lone_literal("Could not override '", "ConfigCompositionException"),
    lone_literal("Could not append to config", "ConfigCompositionException"),
    lone_literal("Error merging override", "ConfigCompositionException"),
    lone_literal("Cannot find primary config", "MissingConfigException"),
    lone_literal("mismatched input", "OverrideParseException", r"^mismatched input '"),
    lone_literal("no viable alternative at input", "OverrideParseException"),
    lone_literal("Ambiguous value for argument", "OverrideParseException"),
    lone_literal("error: unrecognized arguments", "ArgumentError"),
    lone_literal("Error while finding module specification", "ModuleNotFoundError"),
    lone_literal(": No module named ", "ModuleNotFoundError", r"python[\d.]*: No module named "),
    lone_literal(": can't open file ", "ShellError", r"python[\d.]*: can't open file "),
    lone_literal(": command not found", "ShellError", r": (?:line )?\d+: .*: command not found|: command not found$"),
    lone_literal(": unbound variable", "ShellError", r": line \d+: \S+: unbound variable"),
    lone_literal("No solution found when resolving", "ShellError"),
    lone_literal(": Permission denied", "ShellError", r": line \d+: .*: Permission denied"),
    lone_literal(": No such file or directory", "ShellError", r"^\S+: line \d+: .*: No such file or directory"),
    lone_literal("Segmentation fault", "Signal", r"(?:^|: line \d+:\s+\d+ )Segmentation fault"),
    lone_literal("Fatal Python error", "Signal", r"^Fatal Python error"),
    lone_literal("SIGSEGV received", "Signal", r"^\*\*\* SIGSEGV"),
    lone_literal("SIGABRT received", "Signal", r"^\*\*\* SIGABRT"),
    lone_literal("SIGBUS received", "Signal", r"^\*\*\* SIGBUS"),
    lone_literal("terminate called", "Signal", r"^terminate called (?:after throwing|without an active|recursively)"),
    lone_literal("libc++abi", "Signal", r"^libc\+\+abi: terminating"),
    lone_literal("what():", "NativeError", r"^\s*what\(\):\s+\S"),
    lone_literal("CUresult error", "NativeError"),
    # glibc, malloc/malloc.c, debug/fortify_fail.c and assert/assert.c.
    lone_literal("double free or corruption", "Signal"),
    lone_literal(
        "(): ", "Signal", r"^(?:free|malloc|realloc|munmap_chunk|calloc|tcache\w*|malloc_\w+|sysmalloc|_int_\w+)\(\): "
    ),
    lone_literal("corrupted ", "Signal", r"^corrupted (?:size vs\. prev_size|double-linked list)"),
    lone_literal("detected ***", "Signal", r"^\*\*\* [\w ]{1,40} detected \*\*\*"),
    lone_literal("Fatal glibc error", "Signal"),
    lone_literal("Assertion `", "Signal", r"\S+:\d+: .{0,300}Assertion `.{1,300}' failed\."),
    lone_literal("Bus error", "Signal", r"(?:^|: line \d+:\s+\d+ )Bus error"),
    lone_literal("Illegal instruction", "Signal", r"(?:^|: line \d+:\s+\d+ )Illegal instruction"),
    lone_literal("Floating point exception", "Signal", r"(?:^|: line \d+:\s+\d+ )Floating point exception"),
    lone_literal("Aborted", "Signal", r"(?:^|: line \d+:\s+\d+ )Aborted\s"),
    lone_literal("core dumped", "Signal", r": line \d+:.*\(core dumped\)"),
    lone_literal("SIGTERM received", "Terminated", r"^\*\*\* SIGTERM received"),
    lone_literal(" Killed ", "Killed", r": line \d+:\s+\d+ Killed"),
    lone_literal("CANCELLED AT", "Cancelled", r"^(?:slurmstepd|srun): .*CANCELLED AT"),
    lone_literal(
        "The operation was canceled", "Cancelled", r"^(?:##\[error\]|(?i:error): )?The operation was canceled"
    ),
    lone_literal("oom-kill", "HostMemory", r"(?i)oom[-_]kill"),
    lone_literal("running low on memory", "HostMemory"),
    # Ray, src/ray/raylet/node_manager.cc: the report of its memory monitor, which may count none.
    lone_literal(
        "killed due to memory pressure",
        "HostMemory",
        r"(?<!\b0 )Workers?(?: \([^)]{1,40}\))? killed due to memory pressure",
    ),
    lone_literal("exceeds the memory usage threshold", "HostMemory", r"Ray killed|killing"),
    lone_literal("System memory low at node", "HostMemory"),
    lone_literal("Failed to register worker", "RayError"),
    lone_literal("No space left on device", "NoSpace"),
    lone_literal("Disk quota exceeded", "NoSpace"),
    lone_literal("CUDA out of memory", "OutOfMemoryError"),
    lone_literal("died unexpectedly", "EngineDeadError", r"(?i)engine|proc(?:ess)? .*core|worker proc"),
    lone_literal(
        "atchdog",
        "CollectiveTimeout",
        r"(?i)Watchdog caught collective operation timeout|(?:[NHRMX]CCL|gloo"
        r"|collective).{0,80}watchdog\b.{0,80}\b(?:stuck|hang|hung|timed? ?out|timeout|no progress)"
        r"|watchdog\b.{0,80}\b(?:[NHRMX]CCL|gloo|collective)\w*.{0,80}\b(?:stuck|hang|hung|timed? ?out|timeout)",
    ),
    # What NCCL prints below the line of its error is a part of that message.
    lone_literal("uncorrectable ECC error", "DeviceError", r"^(?!Cuda failure )"),
    lone_literal("fallen off the bus", "DeviceError"),
    # The numbers left out are those that a program causes: exceptions of a kernel, page faults, its own clean-up.
    lone_literal("Xid (", "DeviceError", r"\bXid \([^)]{0,40}\): (?!(?:13|31|43|45|68)\b)\d+"),
    lone_literal(
        "amdgpu", "DeviceError", r"(?i)\bamdgpu\b.*(?:gpu reset|ring \S+ timeout|\bhang|uncorrectable|gpu fault)"
    ),
    lone_literal("GPU HANG", "DeviceError"),
    lone_literal("Unexpected result nan", "NotFinite"),
    soft_literal("died or was killed while executing", "WorkerDied"),
    soft_literal("thrown while requesting", "HubUnreachable"),
    soft_literal("Failed to connect to GCS", "GcsUnreachable"),
    soft_literal("Failed to get cluster ID from GCS", "GcsUnreachable"),
    soft_literal("cannot be scheduled right now", "RayResources"),
    soft_literal("No available node types can fulfill", "RayResources"),
)

_RETRIES = tuple(
    Literal(text, LogMark.RETRY, shape=RETRY_SHAPE) for text in ("etry", "ttempt", "rying again", "econnect")
)

# The last line of an exception whose traceback was cut off or never printed.
_BARE = tuple(
    Literal(text, LogMark.BARE, shape=BARE_SHAPE) for text in ("Error: ", "Exception: ", "Exit: ", "Interrupt")
)

_TRACEBACKS = (
    Literal("Traceback (most recent call last)", LogMark.TRACEBACK),
    Literal('", line ', LogMark.TRACEBACK, shape=r'^\s+File "'),
    Literal("RayTaskError(", LogMark.TRACEBACK),
    Literal("ray::", LogMark.TRACEBACK),
    Literal("Error executing job with overrides", LogMark.DRIVER),
)

_OF_EVERY_RUN = (
    *_TRACEBACKS,
    *_FACTS,
    *_STAGES,
    *_BUILDS,
    *_SIGNS,
    *_CHECKPOINTS,
    *_LOST,
    *_REFUSALS,
    *_PACKAGES,
    *_NOISES,
    *_LONES,
    *_RETRIES,
    *_BARE,
)
# Two consumers may share one.
_OF_CONSUMERS = dict.fromkeys(chain.from_iterable(consumer.log.literals for consumer in CONSUMERS.values()))
LITERALS: tuple[Literal, ...] = tuple(
    sorted((*_OF_CONSUMERS, *_OF_EVERY_RUN), key=lambda literal: list(LogMark).index(literal.mark))
)
