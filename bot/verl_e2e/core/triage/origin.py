"""Where a fault comes from, by what was raised and where: exception class, error code, package of the frames.

Asked before the stage decides: an exception of a disk, a network, a device or a peer is not the program's, however
late in a run it comes, and a fault of a kernel or a wrong call is, however much it reads like the machine's. None
means that neither is known. The words of a message count only where no class and no code says more.
"""

import re
from collections.abc import Iterator, Sequence

from verl_e2e.core.log.ends import POSSIBLE
from verl_e2e.core.model.facts import LoggedError
from verl_e2e.core.triage import services
from verl_e2e.core.triage.broken_imports import between_trees
from verl_e2e.core.triage.codes import Origin, of_device, of_errno
from verl_e2e.core.triage.files import of_file

MAX_KIND = 200
"""How much of a class name is looked at: a log may hold any."""
NEAR_FRAMES = 6
"""How far above the innermost frame a tracker's may be."""

# Raised by nothing but code: no word in their message makes them the machine's.
_CODE = frozenset(
    {
        "AttributeError",
        "IndexError",
        "KeyError",
        "NameError",
        "RecursionError",
        "TypeError",
        "UnboundLocalError",
        "ZeroDivisionError",
    }
)
# With these, code complains about its input: a text of the operating system is not an error code there.
_COMPLAINTS = frozenset({"AssertionError", "LookupError", "NotImplementedError", "ValueError"})
# Classes of exceptions, by the name that a traceback prints. The first match decides.
_CLASSES: tuple[tuple[re.Pattern[str], Origin], ...] = tuple(
    (re.compile(pattern), origin)
    for pattern, origin in (
        (r"^(?:KeyboardInterrupt|Terminated|Cancelled|SystemExit)$|SignalException$", Origin.ENDED),
        (r"^ray\.exceptions\.OutOfMemoryError$|ObjectStoreFullError$|^HostMemory$", Origin.HOST_MEMORY),
        (r"^MemoryError$|ArrayMemoryError$", Origin.HOST_MEMORY),
        (r"OutOfDiskError$|^NoSpace$", Origin.SPACE),
        (r"^filelock\.|^PermissionError$", Origin.STORAGE),
        (
            r"(?:Node|Raylet|Owner|Actor|Engine)D(?:ied|ead)(?:Error)?$|(?:ActorUnavailable|WorkerCrashed|RayActor)Error$",
            Origin.PEER,
        ),
        (r"^ray\.exceptions\.(?:Rpc|Object\w*(?:Lost|Freed|TimedOut|Failed|Exceeded)\w*)Error$", Origin.PEER),
        (r"^(?:ConnectionReset|ConnectionAborted|BrokenPipe)Error$|^WorkerDied$|BrokenProcessPool$", Origin.PEER),
        (r"DistStoreError$|elastic\.rendezvous\..*Rendezvous(?:Connection|Timeout|Closed|State)Error$", Origin.PEER),
        (r"DistNetworkError$|^ConnectionRefusedError$", Origin.NETWORK),
        (r"NVMLError_(?:GpuIsLost|ResetRequired|CorruptedInforom|IrqIssue|Timeout|Unknown)$", Origin.DEVICE),
        (r"NVMLError\w*$", Origin.DEVICE_SETUP),
        (r"^DeviceError$", Origin.DEVICE),
    )
)
_PROJECT = re.compile(r"(?:^|/)(?:megatron|verl)/|^ray::")
_BUILDER = re.compile(
    r"torch/utils/cpp_extension\.py:|triton/runtime/build\.py:|torch/_inductor/(?:cpp_builder|codecache)\.py:"
)
_DEVICES = re.compile(
    r"torch(?:_npu|_xla|_musa|_mlu)?/(?:cuda|npu|xpu|hpu|musa|mlu|accelerator|core)/(?:__init__|utils|_utils|device|npu)\.py:"
    r"(?:_?lazy_\w+|_check_\w+|(?:get|set|current|exchange)_\w*device\w*|device_count|get_device_\w+|mem_get_info)$"
    r"|habana_frameworks/torch/(?:hpu|core|utils)/\S+:\w*(?:device|init)\w*$"
)
# Frames that only hand a call on: what they wrap is what was done.
_WRAPPERS = re.compile(
    r":(?:_?wrapp(?:er|ed)\w*|inner\w*|_inner|decorat(?:e_context|ed|or)|_?wrapped_\w+|_call_impl|_wrapped_call_impl|_fn|new_func|__call__)$"
    r"|(?:^|/)(?:functools|contextlib|tenacity/\w+|wrapt/\w+|backoff/\w+|decorator)\.py:"
)
_TOKENIZERS = re.compile(r"(?:^|/)(?:transformers|tokenizers|sentencepiece)/")
# What the readers of tokenizers and models raise for a file that they cannot read.
_READING = frozenset({"Exception", "OSError", "RuntimeError"})
_HANDLES = re.compile(r"multiprocessing/(?:reduction|resource_sharer)\.py:\w+$")
_PIPE = re.compile(r"multiprocessing/connection\.py:\w+$")
_FORKED = re.compile(r"re-initialize CUDA in forked")
# Programs without codes, by the text that their source holds.
_TEXTS: tuple[tuple[re.Pattern[str], Origin], ...] = tuple(
    (re.compile(pattern), origin)
    for pattern, origin in (
        (r"std::bad_alloc|DefaultCPUAllocator|(?i:can't allocate memory)|running low on memory", Origin.HOST_MEMORY),
        (r"can't start new thread|pthread_create failed", Origin.HOST_LIMITS),
        (r"gloo/transport/|\[/\S*gloo/\S*\.cc:\d+\]", Origin.PEER),
        (r"(?:terminated with signal |died with <Signals\.)SIG", Origin.PEER),
        (r"DataLoader worker .*(?:killed by signal|exited unexpectedly)", Origin.PEER),
    )
)
_REASONS: tuple[tuple[re.Pattern[str], Origin], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), origin)
    for pattern, origin in (
        (r"\bmemory\b|\boom\b|oom[-_ ]?kill|MEMORY_LIMIT|OUT_OF_MEMORY|exit code 137|\bSIGKILL\b", Origin.HOST_MEMORY),
        (r"\bdisk\b|no space left|ephemeral[- ]storage|\bquota\b", Origin.SPACE),
        (
            r"preempt|\bdrain|SIGTERM|evict|terminated by|autoscal|scaled? down|reclaim|time limit|cancel|ray stop|spot"
            r"|expected termination|by (?:the )?user|INTENDED|\bkilled (?:by|via|with) (?!signal)|maintenance|deadline",
            Origin.ENDED,
        ),
        (r"heartbeat|health check|node (?:has )?(?:died|failed|crashed)|unreachable|partition", Origin.NETWORK),
    )
)
# An exception that a program reports by its class alone, as Megatron-LM's checkpoint writer does.
_QUOTED_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
# The errors of an operating system that have classes of their own are those of wrong calls, of paths and of peers;
# what is left to the plain class is space, input and output, limits.
_PLAIN = frozenset({"OSError", "IOError", "EnvironmentError"})
_SHARED = re.compile(r"/torch_\d+_|\(shm\)|/dev/shm|shared memory")
# The program that a `CalledProcessError` names.
_COMMAND = re.compile(r"^Command (?:\[')?'?(?:\[')?(?:[^'\s]*/)?([\w.+-]+)")
_COMMANDS = {
    **dict.fromkeys(("hdfs", "hadoop", "aws", "s5cmd", "gsutil", "gcloud", "azcopy", "rclone"), Origin.NETWORK),
    **dict.fromkeys(("rsync", "scp", "ssh", "curl", "wget"), Origin.NETWORK),
    **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++", "ld"), Origin.TOOLCHAIN),
    **dict.fromkeys(("nvcc", "ptxas", "ninja", "cmake", "make"), Origin.TOOLCHAIN),
}


def origin_of(error: LoggedError) -> Origin | None:
    """Where a fault comes from: what its root says, else where it was raised, else what its chain says.

    An exception that only code raises is `PROGRAM`, unless it was raised while an extension was built; an import that
    fails between Megatron-Bridge and Megatron-LM is `TREES`.
    """
    if between_trees(error):
        return Origin.TREES
    below = tuple(_below(error.calls))
    frames = "\n".join(below)
    if services.tracked("\n".join(error.calls[-NEAR_FRAMES:])):
        return Origin.TRACKER
    reason = death_reason(error)
    if reason is not None:
        return reason
    if error.kind in _CODE:
        return Origin.TOOLCHAIN if _BUILDER.search(frames) else Origin.PROGRAM
    text = of_device(error.full_message) or _said(error.kind[:MAX_KIND], error.message, error.calls, below)
    root = text or _raised_in(error, frames)
    everywhere = "\n".join(error.calls)
    if root is not None:
        return services.service(root, error.message, everywhere)
    found = (services.service(_said(*other, error.calls, below), other[1], everywhere) for other in others(error))
    return next((origin for origin in found if origin not in (None, Origin.PEER, Origin.PROGRAM)), None)


def death_reason(error: LoggedError) -> Origin | None:
    """Why another process died, where the report of its death says it; what it only thinks possible says nothing."""
    if not error.secondary:
        return None
    text = POSSIBLE.split(error.full_message or error.message)[0]
    return next((origin for pattern, origin in _REASONS if pattern.search(text)), None)


def others(error: LoggedError) -> Iterator[tuple[str, str]]:
    """Kind and message of the other exceptions of the chain, without those that only quote the root's message."""
    quoted = error.message[:80]
    for summary in error.chain:
        kind, _, message = summary.partition(": ")
        if not (quoted and quoted in message):
            yield kind, message


def _below(calls: Sequence[str]) -> Sequence[str]:
    """The frames below the last one of the projects under test."""
    last = max((at for at, call in enumerate(calls) if _PROJECT.search(call)), default=-1)
    return calls[last + 1 :]


def _said(kind: str, message: str, calls: Sequence[str], below: Sequence[str]) -> Origin | None:
    """What an exception says by its class or by a code in its message."""
    known = services.of_class(kind, message) or _of_class(kind)
    if known is not None:
        return known
    device = of_device(f"{kind}: {message}")
    if device is not None:
        return device
    command = _COMMAND.match(message) if kind.endswith("CalledProcessError") else None
    if command is not None and command[1] in _COMMANDS:
        return _COMMANDS[command[1]]
    of_a_file = of_file(kind, message, calls, below)
    if of_a_file is not None or kind.endswith("FileNotFoundError"):
        return of_a_file
    return _of_host(kind, message) or _of_quoted_class(message)


def _of_class(kind: str) -> Origin | None:
    return next((origin for pattern, origin in _CLASSES if pattern.search(kind)), None)


def _of_quoted_class(message: str) -> Origin | None:
    quoted = _QUOTED_CLASS.search(message)
    if quoted is None:
        return None
    return Origin.STORAGE if quoted[1] in _PLAIN else _of_class(quoted[1])


def _of_host(kind: str, message: str) -> Origin | None:
    text = next((origin for pattern, origin in _TEXTS if pattern.search(message)), None)
    if text is not None:
        return text
    found = of_errno(message, by_text=kind not in _COMPLAINTS)
    return Origin.HOST_LIMITS if found is Origin.SPACE and _SHARED.search(message) else found


def _raised_in(error: LoggedError, below: str) -> Origin | None:
    """The package that raised it, for an exception that says nothing by its class or a code."""
    if _BUILDER.search(below):
        return Origin.TOOLCHAIN
    innermost = next((call for call in reversed(error.calls) if not _WRAPPERS.search(call)), "")
    if _DEVICES.search(innermost):
        return None if _FORKED.search(error.message) else Origin.DEVICE_SETUP
    if error.kind == "EOFError" and _PIPE.search(innermost):
        return Origin.PEER
    if error.kind in _READING and _TOKENIZERS.search(innermost):
        return Origin.MODEL_FILES if error.kind != "RuntimeError" or "sentencepiece/" in innermost else None
    return Origin.HOST_LIMITS if _HANDLES.search(innermost) else services.of_frames(error.message, below)
