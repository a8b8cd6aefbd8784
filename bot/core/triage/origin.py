"""Where a fault comes from, by what was raised and where: exception class, error code, package of the frames.

Asked before the stage decides: an exception of a disk, a network, a device or a peer is not the program's, however
late in a run it comes, and a fault of a kernel or a wrong call is, however much it reads like the machine's. None
means that neither is known. The words of a message count only where no class and no code says more.
"""

import re
from collections.abc import Iterator, Sequence

from bot.core.facts import LoggedError
from bot.core.triage.codes import Origin, http_status, of_device, of_errno, of_http

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
_TRACKERS = r"wandb|mlflow|swanlab|trackio|clearml|comet_ml|neptune|tensorboardX?"
_HUBS = r"huggingface_hub|hf_xet|hf_transfer|modelscope"
_NETS = (
    r"requests|urllib3|httpx|httpcore|aiohttp|urllib\.error|http\.client|botocore|boto3|s3transfer|s3fs|gcsfs|adlfs"
    r"|google\.(?:api_core|auth|cloud)|azure|grpc|socket|ssl|websockets|paramiko|redis"
)
# Classes of exceptions, by their whole dotted name as a traceback prints it. The first match decides.
_CLASSES: tuple[tuple[re.Pattern[str], Origin], ...] = tuple(
    (re.compile(pattern), origin)
    for pattern, origin in (
        (rf"^(?:{_TRACKERS})\.", Origin.TRACKER),
        (
            r"(?:RepositoryNotFound|GatedRepo|DisabledRepo|RevisionNotFound|RemoteEntryNotFound)Error$",
            Origin.MODEL_FILES,
        ),
        (r"HFValidationError$", Origin.MODEL_FILES),
        (rf"^(?:{_HUBS})\.|^OfflineModeIsEnabled$|^HubUnreachable$", Origin.HUB),
        (r"^ray\.exceptions\.OutOfMemoryError$|ObjectStoreFullError$|^HostMemory$", Origin.HOST_MEMORY),
        (r"^MemoryError$|ArrayMemoryError$", Origin.HOST_MEMORY),
        (r"OutOfDiskError$|^NoSpace$", Origin.SPACE),
        (
            r"^ray\.exceptions\.(?:(?:Local)?(?:Node|Raylet|RayletDied|Owner|Actor)\w*(?:Died|Unavailable)\w*|NodeDiedError"
            r"|LocalRayletDiedError|WorkerCrashedError|RpcError|Object\w*(?:Lost|Lock|Freed|Fetch|Reconstruct)\w*"
            r"|ReferenceCountingAssertionError|OwnerDiedError|RayActorError)$",
            Origin.PEER,
        ),
        (r"^(?:ActorDied|ActorUnavailable|NodeDied|OwnerDied|LocalRayletDied|WorkerCrashed)Error$", Origin.PEER),
        (r"^(?:ConnectionReset|ConnectionAborted|BrokenPipe)Error$|^WorkerDied$", Origin.PEER),
        (r"Dist(?:Network)Error$|^ConnectionRefusedError$", Origin.NETWORK),
        (r"DistStoreError$", Origin.PEER),
        (r"^filelock\.", Origin.STORAGE),
        (r"BadZipFile$|BadGzipFile$|^zlib\.error$|^lzma\.LZMAError$|^tarfile\.ReadError$", Origin.DAMAGED_FILE),
        (r"^DeviceError$", Origin.DEVICE),
    )
)
_NET_CLASS = re.compile(rf"^(?:{_NETS})\.")
# Of these packages' exceptions, those that a wrong call raises.
_WRONG_CALL = re.compile(
    r"(?:Invalid(?:URL|Schema|Header|JSON)\w*|MissingSchema|UnsupportedProtocol|LocationParse\w*|LocationValue\w*"
    r"|Stream(?:Consumed|Closed)|ResponseNotRead|RequestNotRead|CookieConflict|ParamValidationError|CannotSendRequest)$"
)
_WRONG_ANSWER = re.compile(
    r"\((?:NoSuchKey|InvalidArgument|InvalidRequest|MalformedXML|ValidationException)\)"
    r"|StatusCode\.(?:INVALID_ARGUMENT|INTERNAL|UNIMPLEMENTED|FAILED_PRECONDITION|OUT_OF_RANGE|ALREADY_EXISTS|UNKNOWN)"
)
# A server of the run itself, reached by an address: it fails for the run's own reasons.
_OWN_SERVER = re.compile(
    r"https?://(?:localhost|\[|\d{1,3}(?:\.\d{1,3}){3})|host='(?:localhost|\d{1,3}(?:\.\d{1,3}){3})'"
)
_HUB_HOST = re.compile(r"huggingface\.co|\bhf\.co\b|hf-mirror\.|modelscope\.c")

# What readers of files say of one that is cut, empty, or something else than its name says.
_READER = re.compile(
    r"PytorchStreamReader failed|Error while deserializing header|SafetensorsParsingError"
    r"|The file might be corrupted|unexpected EOF, expected \d+ more bytes|storage has wrong byte size"
    r"|(?i:checksum|sha-?256|md5|\bCRC(?:32)?\b).{0,60}(?:mismatch|does not match|do not match|failed|incorrect)"
)
_UNPICKLING = re.compile(r"(?:^|\.)(?:_pickle|pickle)\.(?:UnpicklingError|PickleError)$|^UnpicklingError$")
# The reader refuses a class: the file is whole.
_REFUSED = re.compile(r"Unsupported (?:global|class)|not an allowed global|persistent_load|persistent id")
_TRUNCATED = re.compile(r"^EOFError$|JSONDecodeError$|^UnicodeDecodeError$|^struct\.error$")
_READING = re.compile(
    r"torch/serialization\.py:|json/__init__\.py:load$|safetensors/|numpy/lib/\S*:load|pickle\.py:load$",
    re.MULTILINE,
)
_WRITER = re.compile(r"PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos")
_SQLITE = re.compile(r"^sqlite3\.\w*Error$")
_SQLITE_DISK = re.compile(
    r"disk I/O error|database is locked|unable to open database|disk is full|readonly database|malformed"
)
# Files of a model as it is published: a run only reads them.
_PUBLISHED = re.compile(
    r"(?:-\d{5}-of-\d{5}\.(?:safetensors|bin)|(?:^|/)(?:model\.safetensors(?:\.index\.json)?|pytorch_model\.bin\S*|config\.json"
    r"|generation_config\.json|tokenizer\S*\.(?:json|model)|vocab\.(?:json|txt)|merges\.txt))'?$"
)
# What a run writes itself, by the path or by the frames: a fault of it is the program's.
_OWN_PATH = re.compile(r"global_step_\d|/iter_\d{7}|latest_checkpointed_iteration|dist_ckpt")
_OWN_FRAME = re.compile(
    r"dist_checkpointing/|torch/distributed/checkpoint/|:_?(?:save|load)_(?:\w*_)?checkpoint$|checkpoint_manager\.py:"
    r"|:save_\w+$|:export_\w+$|:load_megatron_model$|training/checkpointing\.py:",
    re.MULTILINE,
)
_CACHE_PATH = re.compile(
    r"/\.?(?:triton|torchinductor\w*|cache|__pycache__)/|/tmp/(?:ray|torchinductor)|/dev/shm/|'/proc/"
)
_SHARED = re.compile(r"/torch_\d+_|\(shm\)|/dev/shm")

# Packages below the last frame of Bridge, Megatron-LM or verl.
_PROJECT = re.compile(r"(?:^|/)(?:megatron|verl)/|^ray::")
_TRACKED = re.compile(rf"verl/utils/tracking\.py:|(?:^|/)(?:{_TRACKERS})/", re.MULTILINE)
_HUB_FRAME = re.compile(rf"(?:^|/)(?:{_HUBS})/", re.MULTILINE)
_DATA_FRAME = re.compile(r"(?:^|/)datasets/|rl_dataset|reward_\w+", re.MULTILINE)
_NET_FRAME = re.compile(
    r"(?:^|/)(?:requests|urllib3|httpx|httpcore|aiohttp|botocore|grpc)/|(?:^|/)(?:socket|ssl)\.py:", re.MULTILINE
)
_BUILDER = re.compile(
    r"torch/utils/cpp_extension\.py:|triton/runtime/build\.py:|torch/_inductor/(?:cpp_builder|codecache)\.py:",
    re.MULTILINE,
)
_LAZY_CUDA = re.compile(r"torch/cuda/__init__\.py:(?:_lazy_init|_check_\w+|set_device)$")
_FORKED = re.compile(r"re-initialize CUDA in forked")
_GLOO = re.compile(r"gloo/transport/|\[/\S*gloo/\S*\.cc:\d+\]")
_THREADS = re.compile(r"can't start new thread|pthread_create failed")
_ALLOCATOR = re.compile(
    r"std::bad_alloc|DefaultCPUAllocator|(?i:can't allocate memory)|running low on memory|oom[-_ ]kill"
)


def origin_of(error: LoggedError) -> Origin | None:
    """Where a fault comes from: what its root says, else where it was raised, else what its chain says.

    An exception that only code raises is `PROGRAM`, unless a package that is none of the program's raised it.
    """
    below = "\n".join(_below(error.calls))
    if _TRACKED.search("\n".join(error.calls[-6:])):
        return Origin.TRACKER
    if error.kind in _CODE:
        return Origin.TOOLCHAIN if _BUILDER.search(below) else Origin.PROGRAM
    root = _said(error.kind, error.message, error.calls) or _by_place(error, below)
    if root is not None:
        return _service(root, error.message, below)
    found = (_service(_said(*other, error.calls), other[1], below) for other in others(error))
    return next((origin for origin in found if origin not in (None, Origin.PEER, Origin.PROGRAM)), None)


def others(error: LoggedError) -> Iterator[tuple[str, str]]:
    """Kind and message of the other exceptions of the chain, without those that only quote the root's message."""
    quoted = error.message[:80]
    for summary in error.chain:
        kind, _, message = summary.partition(": ")
        if not (quoted and quoted in message):
            yield kind, message


def _said(kind: str, message: str, calls: Sequence[str]) -> Origin | None:
    """What an exception says by its class or by a code in its message."""
    return _by_class(kind, message) or _by_code(kind, message, calls)


def _below(calls: Sequence[str]) -> Sequence[str]:
    """The frames below the last one of the projects under test."""
    last = max((at for at, call in enumerate(calls) if _PROJECT.search(call)), default=-1)
    return calls[last + 1 :]


def _by_class(kind: str, message: str) -> Origin | None:
    if _NET_CLASS.match(kind):
        return _of_network(kind, message)
    return next((origin for pattern, origin in _CLASSES if pattern.search(kind)), None)


def _of_network(kind: str, message: str) -> Origin | None:
    """A network library's exception, unless the call was wrong or a server of the run itself answered."""
    status = http_status(message)
    if status is not None:
        return None if _OWN_SERVER.search(message) else of_http(status)
    return None if _WRONG_CALL.search(kind) or _WRONG_ANSWER.search(message) else Origin.NETWORK


def _by_code(kind: str, message: str, calls: Sequence[str]) -> Origin | None:
    device = of_device(message)
    if device is not None:
        return device
    if kind.endswith("FileNotFoundError"):
        return _missing(message, calls)
    return _by_file(kind, message, calls) or _of_host(kind, message)


def _of_host(kind: str, message: str) -> Origin | None:
    if _ALLOCATOR.search(message):
        return Origin.HOST_MEMORY
    if _THREADS.search(message):
        return Origin.HOST_LIMITS
    if _GLOO.search(message):
        return Origin.PEER
    if _SQLITE.match(kind):
        return Origin.STORAGE if _SQLITE_DISK.search(message) else None
    found = of_errno(message)
    if found is Origin.SPACE and _SHARED.search(message):
        return Origin.HOST_LIMITS
    return found or (Origin.STORAGE if kind == "PermissionError" else None)


def _by_file(kind: str, message: str, calls: Sequence[str]) -> Origin | None:
    """A file that is cut or is not what its name says; one that the run wrote itself says nothing."""
    if _WRITER.search(message):
        return Origin.SPACE
    damaged = _READER.search(message) or (_UNPICKLING.search(kind) and not _REFUSED.search(message))
    damaged = damaged or (_TRUNCATED.search(kind) and _READING.search("\n".join(_below(calls))))
    return Origin.DAMAGED_FILE if damaged and not _own(message, calls) else None


def _missing(message: str, calls: Sequence[str]) -> Origin | None:
    """A file that is not there: one of a published model, one of a cache, or one that the program should have made."""
    if _own(message, calls):
        return Origin.PROGRAM
    if _PUBLISHED.search(message):
        return Origin.DAMAGED_FILE
    return Origin.STORAGE if _CACHE_PATH.search(message) else None


def _own(message: str, calls: Sequence[str]) -> bool:
    return _OWN_PATH.search(message) is not None or _OWN_FRAME.search("\n".join(calls)) is not None


def _by_place(error: LoggedError, below: str) -> Origin | None:
    """The package that raised it, for an exception that says nothing by its class or a code."""
    if _BUILDER.search(below):
        return Origin.TOOLCHAIN
    if _HUB_FRAME.search(below):
        return Origin.HUB
    if _NET_FRAME.search(below) and not _OWN_SERVER.search(error.message):
        return Origin.NETWORK
    innermost = error.calls[-1] if error.calls else ""
    return Origin.DEVICE_SETUP if _LAZY_CUDA.search(innermost) and not _FORKED.search(error.message) else None


def _service(found: Origin | None, message: str, below: str) -> Origin | None:
    """Which service did not answer: the hub, or any other; every other origin as it is."""
    if found not in (Origin.NETWORK, Origin.MODEL_FILES, Origin.HUB):
        return found
    if _DATA_FRAME.search(below):
        return Origin.NETWORK
    hub = _HUB_FRAME.search(below) is not None or _HUB_HOST.search(message) is not None
    if found is Origin.NETWORK:
        return Origin.HUB if hub else found
    return Origin.NETWORK if found is Origin.MODEL_FILES and not hub else found
