"""Every literal that the scan looks for, with what its line means: the one place that `bench/grep.txt` comes from.

A line without any of these literals carries no fact, unless it lies inside a traceback or a printed
configuration that one of them opened. A literal only nominates a line; `shape` decides on the decoded text.
Texts are chosen to be rare in ordinary output, for a common one would make the prefilter useless.
"""

from dataclasses import dataclass
from enum import Enum, auto

from verl_e2e.core.log.printed import START
from verl_e2e.core.log.traceback import BARE_SHAPE, RETRY_SHAPE
from verl_e2e.core.model.outcome import Stage


class LogMark(Enum):
    """What kind of fact a literal announces."""

    STAGE = auto()
    TRACEBACK = auto()
    DRIVER = auto()
    STEP = auto()
    PROGRESS = auto()
    EPOCHS = auto()
    FINAL = auto()
    ADAPTER = auto()
    TOTAL = auto()
    LORA = auto()
    CONFIG = auto()
    CHECKPOINT = auto()
    LOST = auto()
    REFUSED = auto()
    VARIABLE = auto()
    COMMAND = auto()
    PACKAGE = auto()
    PLANNED = auto()
    NOISE = auto()
    LONE = auto()
    RANK = auto()
    WRAPPED = auto()
    CHUNKS = auto()
    BRIDGE = auto()
    SIGN = auto()
    STRATEGY = auto()
    RETRY = auto()
    BARE = auto()
    OPENING = auto()
    SAMPLE = auto()


@dataclass(frozen=True, slots=True)
class Literal:
    """A text to look for; one line may hold several.

    `shape` is a regular expression searched in the line's text (empty: the literal alone is enough); its groups are
    what the fact is made of. `stage` is the stage that the line proves, `builds` says that only a process that builds
    the model prints it. `name` is the checkpoint action, the noise's or the sign's name, or the kind of a lone error;
    a `soft` one may be survived. `opens` says that a run prints the line once, while it starts.
    """

    text: str
    mark: LogMark
    stage: Stage | None = None
    shape: str = ""
    name: str = ""
    builds: bool = False
    soft: bool = False
    opens: bool = False


def _stage(text: str, stage: Stage, shape: str = "") -> Literal:
    return Literal(text, LogMark.STAGE, stage, shape, builds=stage in _CONSTRUCTION)


def _opening(text: str, stage: Stage) -> Literal:
    return Literal(text, LogMark.STAGE, stage, opens=True)


def _lone(text: str, name: str, shape: str = "") -> Literal:
    return Literal(text, LogMark.LONE, shape=shape, name=name)


def _soft(text: str, name: str, shape: str = "") -> Literal:
    return Literal(text, LogMark.LONE, shape=shape, name=name, soft=True)


def _noise(text: str, name: str, shape: str = "") -> Literal:
    return Literal(text, LogMark.NOISE, shape=shape, name=name)


def _checkpoint(text: str, name: str, stage: Stage, shape: str = "") -> Literal:
    return Literal(text, LogMark.CHECKPOINT, stage, shape, name)


_CONSTRUCTION = frozenset({Stage.BRIDGE_PROVIDER, Stage.HF_IMPORT, Stage.PEFT, Stage.DDP_WRAP, Stage.FSDP_WRAP})

# verl (trainer/main_ppo, trainer/ppo, workers, utils), Megatron-Bridge and Megatron-LM print these themselves.
_STAGES = (
    _opening("All configuration checks passed", Stage.ENVIRONMENT),
    _opening("ray init kwargs:", Stage.ENVIRONMENT),
    _opening("Started a local Ray instance", Stage.RAY),
    _opening("Connecting to existing Ray cluster", Stage.RAY),
    _stage("Connected to Ray cluster", Stage.RAY),
    _stage("Using dataset class", Stage.DATA),
    _stage("filter dataset len:", Stage.DATA),
    _stage("dataloader initialized", Stage.DATA),
    _stage("Total training steps:", Stage.DATA),
    _stage("create worker group", Stage.RAY),
    _stage("provider_bridge", Stage.BRIDGE_PROVIDER, r"megatron/bridge/models/\S+:\d+:|provider_bridge\(\)"),
    _stage("GPTModel IS DEPRECATED", Stage.BRIDGE_PROVIDER),
    _stage("PEFT Adapter Information", Stage.PEFT),
    _stage("Adding lora to:", Stage.PEFT),
    _stage("Setting up DistributedDataParallel with config", Stage.DDP_WRAP),
    _stage("optimizer config after override", Stage.OPTIMIZER),
    _stage("Setting up optimizer with config", Stage.OPTIMIZER),
    _stage("model engine initialized", Stage.OPTIMIZER),
    _stage("reward loop manager initialized", Stage.ROLLOUT_ENGINE),
    _stage("['serve',", Stage.ROLLOUT_ENGINE),
    _stage("building vllm rollout", Stage.ROLLOUT_ENGINE, r"(?i)before building vllm rollout"),
    _stage("building rollout", Stage.ROLLOUT_ENGINE, r"(?i)before building"),
    _stage("Initializing a V1 LLM engine", Stage.ROLLOUT_ENGINE),
    _stage("Launch sglang", Stage.ROLLOUT_ENGINE),
    _stage("checkpoint engine manager initialized", Stage.ROLLOUT_ENGINE),
    _stage("ready to fit", Stage.ROLLOUT_ENGINE),
    _stage("LoRA adapter sync", Stage.EXPORT_WEIGHT_SYNC),
    _stage("loaded_params:", Stage.EXPORT_WEIGHT_SYNC),
    _stage("Initial validation metrics", Stage.TRAIN_STEP),
)

_PROGRESS = "Training Progress:"
_BAR = r"\s*(\d{1,3})%\|[^|]{0,200}\|\s*(\d{1,12})/(\d{1,12})"
_FACTS = (
    Literal(START, LogMark.CONFIG, Stage.RAY, shape=rf"^{START}", opens=True),
    # What a shell with `set -x` echoes of the wrapper's last command.
    Literal(" -m verl.", LogMark.OPENING, shape=r"^\++ .*\s-m verl\.[\w.]*\bmain_\w+", opens=True),
    Literal(" with rank=", LogMark.LORA, Stage.BRIDGE_PROVIDER, r"^Enabling \w+ with rank=(\d{1,9})", builds=True),
    Literal("Total parameters:", LogMark.TOTAL, shape=r"^\s*Total parameters:\s+([\d,]{1,30})\s*$"),
    Literal(
        "Adapter parameters:", LogMark.ADAPTER, Stage.PEFT, r"^\s*Adapter parameters:\s+([\d,]{1,30})\s*$", builds=True
    ),
    Literal(
        "trainable params:",
        LogMark.ADAPTER,
        Stage.PEFT,
        r"^trainable params:\s*([\d,]{1,30})\b",
        name="asked",
        builds=True,
    ),
    Literal("step:", LogMark.STEP, Stage.TRAIN_STEP, r"^step:\s?(\d{1,12}) - "),
    # Of several bars on a line the last one counts.
    Literal(_PROGRESS, LogMark.PROGRESS, Stage.TRAIN_STEP, rf"^\s*(?:{_PROGRESS}.*)?{_PROGRESS}{_BAR}"),
    # The bar of verl's SFT trainer, which counts the steps of one epoch.
    Literal("Epoch ", LogMark.EPOCHS, Stage.TRAIN_STEP, rf"^\s*Epoch (\d{{1,6}})/(\d{{1,6}}):{_BAR}"),
    # The samples that verl's reward managers print, from the prompt to the score.
    Literal("[prompt]", LogMark.SAMPLE, shape=r"^\[prompt\]", name="begins"),
    Literal("[score]", LogMark.SAMPLE, shape=r"^\[score\]"),
    Literal("Final validation metrics", LogMark.FINAL, Stage.TRAIN_STEP, r"""^\W{0,3}Final validation metrics"""),
)

# The last two numbers of a rank are always its pipeline rank and the parameter count; Megatron-LM puts its
# rematerialization rank between tensor and pipeline, verl's own builder does not.
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


def _sign(text: str, name: str, shape: str = "") -> Literal:
    return Literal(text, LogMark.SIGN, shape=shape, name=name)


ROLLOUT_FROM_FILE = "rollout-from-file"

# What verl and vLLM print only with a feature at work; `verl_e2e.core.judge.criteria.features` says which feature.
_SIGNS = (
    _sign("MTP layer(s) in any of the actor modules", "mtp-layers-patched", r"^Found and patched [1-9]\d* MTP layer"),
    _sign("FP8 weights loaded", "fp8-weights-loaded", r"FP8 weights loaded \(\w+\), loaded_params: [1-9]"),
    _sign("routing replay layers: ", "router-layers", r"^routing replay layers: [1-9]"),
    _sign("default MoE config", "rollout-experts"),
    # Rollouts that verl read from a file: its engine generated nothing.
    _sign("Load generate result at step", ROLLOUT_FROM_FILE, r"^\[Rollout\w*\(\)\] "),
    _sign("cached trajectories", ROLLOUT_FROM_FILE, r"^\[Rollout\w*\(\)\] Injected"),
)

STRATEGY_SIGN = "strategy "
# A backend of verl, as a configuration or an override names it.
_STRATEGY = (
    r"\bstrategy['\"]?\s*[:=]\s*[\\'\"]*((?:fsdp|megatron|mindspeed)\w*|torchtitan|veomni|automodel|deepspeed)\b"
)
_STRATEGIES = tuple(
    Literal(text, LogMark.STRATEGY, shape=_STRATEGY) for text in ("strategy'", 'strategy"', "strategy: ", "strategy=")
)

_SAVE, _LOAD = Stage.CHECKPOINT_SAVE, Stage.CHECKPOINT_LOAD
_CHECKPOINTS = (
    _checkpoint("Saving checkpoint to", "saving", _SAVE),
    _checkpoint("local_global_step_folder:", "saving", _SAVE),
    _checkpoint("Checkpoint save completed for", "saved", _SAVE),
    _checkpoint("Saved bridge checkpoint to", "saved", _SAVE),
    _checkpoint("Saved model to", "saved", _SAVE),
    _checkpoint("Resuming from", "resumed", _LOAD, r"Resuming from .*global_step_\d+"),
    _checkpoint("checkpoint from", "loaded", _LOAD, r"Loaded (?:\S+ ){0,4}checkpoint from"),
    _checkpoint("Training from scratch", "scratch", _LOAD),
    _checkpoint("Checkpoint tracker file does not exist", "scratch", _LOAD),
    _checkpoint("Checkpoint does not exist", "scratch", _LOAD),
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

# What was asked for, and from where it was imported.
_ASKED = (
    *(
        Literal(f"{name}=", LogMark.VARIABLE)
        for name in (
            *("_TP", "_PP", "_VPP", "_CP", "_EP", "_ETP", "LORA_RANK", "MODEL_PATH", "VANILLA_MBRIDGE", "USE_MBRIDGE"),
            *("USE_MEGATRON_FSDP", "USE_DUMMY_MODEL", "ENGINE", "ADV_ESTIMATOR", "NUM_GPUS", "MAX_PROMPT_LENGTH"),
            *("MAX_RESPONSE_LENGTH", "TOTAL_TRAIN_STEPS", "SAVE_FREQ", "TEST_FREQ", "RESUME_MODE", "VAL_BEFORE_TRAIN"),
            *("PYTHONPATH", "BRIDGE", "BRIDGE_ROOT", "BRIDGE_PATH", "BRIDGE_DIR", "BRIDGE_SRC", "BRIDGE_HOME"),
            "BRIDGE_REPO",
        )
    ),
    Literal("main_", LogMark.COMMAND, shape=r"(?:\s-m\s+[\w.]*\bmain_\w+|\bmain_\w+\.py)(?:\s|$)"),
    Literal("megatron/bridge/", LogMark.PACKAGE),
    Literal("megatron/core/", LogMark.PACKAGE),
    Literal("Total training steps:", LogMark.PLANNED, shape=r"Total training steps: (\d{1,12})\s*$"),
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
    _noise("resource_tracker", "resource-tracker"),
    _noise("destroy_process_group() was not called", "process-group-not-destroyed"),
    _noise("Exception ignored in", EXIT_NOISE, r"^Exception ignored in"),
    _noise("Stack (most recent call first)", "signal-stack"),
    _noise("is killed by signal", "dataloader-worker-killed", r"DataLoader worker"),
)

# Errors that are printed without a Python traceback.
_LONES = (
    _lone("Could not override '", "ConfigCompositionException"),
    _lone("Could not append to config", "ConfigCompositionException"),
    _lone("Error merging override", "ConfigCompositionException"),
    _lone("Cannot find primary config", "MissingConfigException"),
    _lone("mismatched input", "OverrideParseException", r"^mismatched input '"),
    _lone("no viable alternative at input", "OverrideParseException"),
    _lone("Ambiguous value for argument", "OverrideParseException"),
    _lone("error: unrecognized arguments", "ArgumentError"),
    _lone("Error while finding module specification", "ModuleNotFoundError"),
    _lone(": No module named ", "ModuleNotFoundError", r"python[\d.]*: No module named "),
    _lone(": can't open file ", "ShellError", r"python[\d.]*: can't open file "),
    _lone(": command not found", "ShellError", r": (?:line )?\d+: .*: command not found|: command not found$"),
    _lone(": unbound variable", "ShellError", r": line \d+: \S+: unbound variable"),
    _lone("No solution found when resolving", "ShellError"),
    _lone(": Permission denied", "ShellError", r": line \d+: .*: Permission denied"),
    _lone(": No such file or directory", "ShellError", r"^\S+: line \d+: .*: No such file or directory"),
    _lone("Segmentation fault", "Signal", r"(?:^|: line \d+:\s+\d+ )Segmentation fault"),
    _lone("Fatal Python error", "Signal", r"^Fatal Python error"),
    _lone("SIGSEGV received", "Signal", r"^\*\*\* SIGSEGV"),
    _lone("SIGABRT received", "Signal", r"^\*\*\* SIGABRT"),
    _lone("SIGBUS received", "Signal", r"^\*\*\* SIGBUS"),
    _lone("terminate called", "Signal", r"^terminate called (?:after throwing|without an active|recursively)"),
    _lone("libc++abi", "Signal", r"^libc\+\+abi: terminating"),
    _lone("what():", "NativeError", r"^\s*what\(\):\s+\S"),
    _lone("CUresult error", "NativeError"),
    # glibc, malloc/malloc.c, debug/fortify_fail.c and assert/assert.c.
    _lone("double free or corruption", "Signal"),
    _lone(
        "(): ", "Signal", r"^(?:free|malloc|realloc|munmap_chunk|calloc|tcache\w*|malloc_\w+|sysmalloc|_int_\w+)\(\): "
    ),
    _lone("corrupted ", "Signal", r"^corrupted (?:size vs\. prev_size|double-linked list)"),
    _lone("detected ***", "Signal", r"^\*\*\* [\w ]{1,40} detected \*\*\*"),
    _lone("Fatal glibc error", "Signal"),
    _lone("Assertion `", "Signal", r"\S+:\d+: .{0,300}Assertion `.{1,300}' failed\."),
    _lone("Bus error", "Signal", r"(?:^|: line \d+:\s+\d+ )Bus error"),
    _lone("Illegal instruction", "Signal", r"(?:^|: line \d+:\s+\d+ )Illegal instruction"),
    _lone("Floating point exception", "Signal", r"(?:^|: line \d+:\s+\d+ )Floating point exception"),
    _lone("Aborted", "Signal", r"(?:^|: line \d+:\s+\d+ )Aborted\s"),
    _lone("core dumped", "Signal", r": line \d+:.*\(core dumped\)"),
    _lone("SIGTERM received", "Terminated", r"^\*\*\* SIGTERM received"),
    _lone(" Killed ", "Killed", r": line \d+:\s+\d+ Killed"),
    _lone("CANCELLED AT", "Cancelled", r"^(?:slurmstepd|srun): .*CANCELLED AT"),
    _lone("The operation was canceled", "Cancelled", r"^(?:##\[error\]|(?i:error): )?The operation was canceled"),
    _lone("oom-kill", "HostMemory", r"(?i)oom[-_]kill"),
    _lone("running low on memory", "HostMemory"),
    # Ray, src/ray/raylet/node_manager.cc: the report of its memory monitor, which may count none.
    _lone(
        "killed due to memory pressure",
        "HostMemory",
        r"(?<!\b0 )Workers?(?: \([^)]{1,40}\))? killed due to memory pressure",
    ),
    _lone("exceeds the memory usage threshold", "HostMemory", r"Ray killed|killing"),
    _lone("System memory low at node", "HostMemory"),
    _lone("Failed to register worker", "RayError"),
    _lone("No space left on device", "NoSpace"),
    _lone("Disk quota exceeded", "NoSpace"),
    _lone("CUDA out of memory", "OutOfMemoryError"),
    _lone("died unexpectedly", "EngineDeadError", r"(?i)engine|proc(?:ess)? .*core|worker proc"),
    _lone(
        "atchdog",
        "CollectiveTimeout",
        r"(?i)Watchdog caught collective operation timeout|(?:[NHRMX]CCL|gloo"
        r"|collective).{0,80}watchdog\b.{0,80}\b(?:stuck|hang|hung|timed? ?out|timeout|no progress)"
        r"|watchdog\b.{0,80}\b(?:[NHRMX]CCL|gloo|collective)\w*.{0,80}\b(?:stuck|hang|hung|timed? ?out|timeout)",
    ),
    # What NCCL prints below the line of its error is a part of that message.
    _lone("uncorrectable ECC error", "DeviceError", r"^(?!Cuda failure )"),
    _lone("fallen off the bus", "DeviceError"),
    # The numbers left out are those that a program causes: exceptions of a kernel, page faults, its own clean-up.
    _lone("Xid (", "DeviceError", r"\bXid \([^)]{0,40}\): (?!(?:13|31|43|45|68)\b)\d+"),
    _lone("amdgpu", "DeviceError", r"(?i)\bamdgpu\b.*(?:gpu reset|ring \S+ timeout|\bhang|uncorrectable|gpu fault)"),
    _lone("GPU HANG", "DeviceError"),
    _lone("Unexpected result nan", "NotFinite"),
    _soft("died or was killed while executing", "WorkerDied"),
    _soft("thrown while requesting", "HubUnreachable"),
    _soft("Failed to connect to GCS", "GcsUnreachable"),
    _soft("Failed to get cluster ID from GCS", "GcsUnreachable"),
    _soft("cannot be scheduled right now", "RayResources"),
    _soft("No available node types can fulfill", "RayResources"),
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

LITERALS: tuple[Literal, ...] = (
    _TRACEBACKS
    + _FACTS
    + _STAGES
    + _BUILDS
    + _SIGNS
    + _STRATEGIES
    + _CHECKPOINTS
    + _LOST
    + _REFUSALS
    + _ASKED
    + _NOISES
    + _LONES
    + _RETRIES
    + _BARE
)
