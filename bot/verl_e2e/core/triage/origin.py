"""Where a fault comes from, by what was raised and where: exception class, error code, package of the frames.

Asked before the stage decides: an exception of a disk, a network, a device or a peer is not the program's, however
late in a run it comes, and a fault of a kernel or a wrong call is, however much it reads like the machine's. None
means that neither is known. The words of a message count only where no class and no code says more.

The codes are those of Linux errno, CUDA (`cudaError_t` with the text of `cudaGetErrorString`), the statuses of cuDNN,
cuBLAS and their relatives, NCCL (`ncclResult_t`) and HTTP. A service is known by the package of the exception's class
or of the innermost frames; a request that was wrong, and a server of the run's own, are the program's. A model's
published files are brought to a run, which only reads them: one that is damaged or missing is the machine's. What is
wrong with a checkpoint, which the run writes itself, is the program's.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from verl_e2e.core.log.errors import POSSIBLE
from verl_e2e.core.model.facts import LoggedError


class Origin(Enum):
    """Where a fault comes from. `PROGRAM` is the program's own, `TREES` that of its source; all others are outside."""

    PROGRAM = auto()
    TREES = auto()
    SPACE = auto()
    STORAGE = auto()
    HOST_MEMORY = auto()
    HOST_LIMITS = auto()
    DEVICE = auto()
    DEVICE_SETUP = auto()
    NETWORK = auto()
    PEER = auto()
    ENDED = auto()
    HUB = auto()
    MODEL_FILES = auto()
    DAMAGED_FILE = auto()
    GIVEN_PATH = auto()
    TRACKER = auto()
    TOOLCHAIN = auto()


# By origin: numbers of errno, and the texts of strerror in the same order.
_ERRNO: Mapping[Origin, tuple[tuple[int, ...], str]] = {
    Origin.STORAGE: (
        (1, 5, 6, 13, 16, 19, 27, 30, 35, 37, 61, 71, 74, 77, 107, 108, 116, 117, 121, 123, 126, 127),
        "Operation not permitted|Input/output error|No such device or address|Permission denied|Device or "
        "resource busy|No such device|File too large|Read-only file system|Resource deadlock avoided|No locks "
        "available|No data available|Protocol error|Bad message|File descriptor in bad state|Transport "
        "endpoint is not connected|Cannot send after transport endpoint shutdown|Stale file handle|Structure "
        "needs cleaning|Remote I/O error|No medium found|Required key not available|Key has expired",
    ),
    Origin.HOST_LIMITS: (
        (11, 23, 24, 105),
        "Resource temporarily unavailable|Too many open files in system|Too many open files|No buffer space available",
    ),
    Origin.HOST_MEMORY: ((12,), "Cannot allocate memory"),
    Origin.SPACE: ((28, 122), "No space left on device|Disk quota exceeded"),
    Origin.NETWORK: (
        (98, 99, 100, 101, 102, 110, 111, 112, 113),
        "Address already in use|Cannot assign requested address|Network is down|Network is unreachable"
        "|Network dropped connection on reset|Connection timed out|Connection refused|Host is down|No route to host",
    ),
    Origin.PEER: ((32, 103, 104), "Broken pipe|Software caused connection abort|Connection reset by peer"),
}
# What a wrong call raises: ENOENT, EBADF, EEXIST, ENOTDIR, EISDIR, EINVAL, ENAMETOOLONG, ENOTEMPTY, those of sockets.
_WRONG_ERRNO = frozenset(
    (
        *(2, 3, 4, *range(7, 11), 14, 15, 17, 18, *range(20, 23), 25, 29, 31, 33, 34, 36, *range(38, 41), 75, 84),
        *(*range(88, 98), 106, 114, 115),
    )
)
_BY_NUMBER = {number: origin for origin, (numbers, _) in _ERRNO.items() for number in numbers}
_BY_TEXT = {text: origin for origin, (_, texts) in _ERRNO.items() for text in texts.lower().split("|")}
# As programs print it: at the start or after a colon, and with nothing behind it but a path or a number.
_STRERROR = re.compile(
    rf"(?:^|[:\"'] ?)({'|'.join(sorted(_BY_TEXT, key=len, reverse=True))})(?=$|[:;,.'\"(]|\s+(?:$|\W|(?-i:[A-Z])))",
    re.IGNORECASE,
)
# CPython, and Rust's `io::Error` in its two forms; C++ programs print the text.
_NUMBER = re.compile(r"\[Errno (-?\d{1,5})\]|\(os error (\d{1,5})\)|\bOs \{ code: (\d{1,5}),")

_ACCELERATOR = re.compile(
    r"(?i)\b(?:CUDA|HIP|MUSA|MACA|DCU)(?: runtime| driver)? (?:error|failure)\b|Triton Error \[\w+\]"
    r"|\bcuda(?:Error|failure)"
)
# The driver's names, CUresult, and those of HIP differ from the runtime's in their form.
_DRIVER_NAME = re.compile(r"\b(?:CUDA_ERROR_|hipError|musaError|mcError)_?(\w+)")
# Text of cudaGetErrorString or name in cudaError_t; what a kernel or a call did wrong, and what driver and device did.
_DEVICE: Mapping[Origin, str] = {
    Origin.PROGRAM: (
        "an illegal memory access was encountered|cudaErrorIllegalAddress|an illegal instruction was encountered"
        "|cudaErrorIllegalInstruction|device-side assert triggered|cudaErrorAssert|misaligned address"
        "|cudaErrorMisalignedAddress|operation not supported on global/shared address space"
        "|cudaErrorInvalidAddressSpace|invalid program counter|cudaErrorInvalidPc|hardware stack error"
        "|cudaErrorHardwareStackError|unspecified launch failure|cudaErrorLaunchFailure|cudaErrorLaunchFailed"
        "|cudaErrorInvalidHandle|invalid argument|cudaErrorInvalidValue|invalid configuration argument"
        "|cudaErrorInvalidConfiguration|invalid pitch argument|invalid device pointer|invalid resource handle"
        "|cudaErrorInvalidResourceHandle|too many resources requested for launch|cudaErrorLaunchOutOfResources"
        "|too many blocks in cooperative launch|named symbol not found|stream is capturing|capturing stream"
        "|peer access is already enabled"
    ),
    Origin.DEVICE: (
        "uncorrectable ECC error encountered|cudaErrorECCUncorrectable|cudaErrorECCNotCorrectable|"
        "uncorrectable NVLink error detected during the execution|cudaErrorNvlinkUncorrectable|"
        "the launch timed out and was terminated|cudaErrorLaunchTimeout|"
        "Invalid access of peer GPU memory over nvlink or a hardware error|cudaErrorContained|"
        "tensor memory error|unknown error|cudaErrorUnknown|"
        "OS call failed or operation not supported on this OS|driver shutting down|context is destroyed"
    ),
    Origin.DEVICE_SETUP: (
        "CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver"
        "|no CUDA-capable device is detected|cudaErrorNoDevice|invalid device ordinal|cudaErrorInvalidDevice"
        "|busy or unavailable|cudaErrorDevicesUnavailable|system not yet initialized|cudaErrorSystemNotReady"
        "|system has unsupported display driver / cuda driver combination|cudaErrorSystemDriverMismatch"
        "|forward compatibility was attempted on non supported HW|cudaErrorCompatNotSupportedOnDevice"
        "|no kernel image is available for execution on the device|cudaErrorNoKernelImageForDevice"
        "|cudaErrorNoBinaryForGpu|cudaErrorNotInitialized|invalid device function"
        "|the provided PTX was compiled with an unsupported toolchain|cudaErrorUnsupportedPtxVersion"
        "|PTX JIT compiler library not found|API call is not supported in the installed CUDA driver"
        "|device kernel image is invalid|initialization error|cudaErrorInitializationError|MPS client failed to connect"
        "|Failed to connect to MPS server|MPS server is not ready|has been reached on the MPS"
        "|peer access is not supported between these two devices|exclusive-thread device already in use"
        "|device not licensed"
    ),
}
_DEVICE_LOWER = {text: origin for origin, texts in _DEVICE.items() for text in texts.lower().split("|")}
_DEVICE_CODE = re.compile("|".join(map(re.escape, sorted(_DEVICE_LOWER, key=len, reverse=True))), re.IGNORECASE)

# What follows `CUDNN_STATUS_`, `CUBLAS_STATUS_` and their like; cuDNN 9 appends details to the older names.
_STATUS = re.compile(r"\bCU(?:DNN|BLAS|SOLVER|SPARSE|FFT|RAND|TENSOR)_STATUS_(\w+)")
_STATUS_SETUP = re.compile(
    r"ARCH_MISMATCH|LICENSE_ERROR|VERSION_MISMATCH|RUNTIME_PREREQUISITE|SUBLIBRARY_LOADING|SETUP_F"
)
_STATUS_MEMORY = re.compile(r"ALLOC|OUT_OF_MEMORY|NOT_INITIALIZED|INSUFFICIENT_WORKSPACE")

# ncclResult_t by name, and by the text of ncclGetErrorString.
_NCCL = re.compile(
    r"(?P<network>nccl(?:System|Remote)Error|unhandled system error|remote process exited or there was a network error)"
    r"|(?P<program>ncclInvalid(?:Argument|Usage)|NCCL error\b.{0,200}\binvalid (?:argument|usage)\b)"
)
_NCCL_ORIGIN = {"network": Origin.NETWORK, "program": Origin.PROGRAM}

# The codes of other makers' runtimes and communication libraries: prefix, then the maker's word for the fault.
_MAKERS = re.compile(
    r"\b(?:(?P<comm>(?:HCCL|MCCL|CNCL|CCL|XCCL|RCCL|BKCL)_(?:E|RET_ERR|RET|RESULT|ERROR|STATUS)|(?:hccl|mccl|cncl|bkcl)(?=[A-Z]\w*Error)|hcclResult)"
    r"|UR_RESULT_ERROR|ZE_RESULT_ERROR|PI_ERROR|HSA_STATUS_ERROR|CNRT_(?:RET_)?ERR(?:OR)?|CN(?:NL|DRV)_\w*?(?:STATUS|ERROR)"
    r"|ACL_ERROR|ACL_RT|synStatus|SYN_(?:STATUS|FAIL)|HL_THUNK_ERR)_?(?P<word>\w+)"
)
_MAKERS_WORDS: tuple[tuple[re.Pattern[str], Origin | None], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), origin)
    for pattern, origin in (
        (r"MEMORY(?!_(?:APERTURE|FAULT))|ALLOC|RESOURCES", None),
        (r"LOST|HANG|RESET|HARDWARE|HW|ECC|FATAL|INTERNAL|UNKNOWN|TIME_?OUT|FAILED?$", Origin.DEVICE),
        (r"DEVICE|DRIVER|VERSION|INIT|PLATFORM|UNAVAILABLE|BUSY|ACQUIRE|ISA|CONTEXT|FOUND", Origin.DEVICE_SETUP),
        (r"INVALID|PARAM?|ARGUMENT|FAULT|APERTURE|ILLEGAL|EXCEPTION", Origin.PROGRAM),
    )
)
# Ascend's runtime (aclError) by the first digit, and its modules by two letters: communication, driver, runtime.
_ACL = re.compile(
    r"(?i)\b(?:(?:acl|ascend|npu|rt[A-Z]|drv|torch_npu).{0,160}?|error code is )"
    r"(?<!\d)(?P<kind>[125])07(?P<rest>\d{3})(?!\d)"
)
_ASCEND = re.compile(r"\b(?:(?P<comm>E[IJ])\d{4}|E[LEHK]\d{4}|ERR\d{5} \w+ call (?:acl|hccl) api failed)\b")
_COMMUNICATION = re.compile(
    r"(?i)\b(?:hccl|hccp|mccl|cncl|bkcl|oneccl|xccl|hcl)\w*\b.{0,60}(?:error|fail|timed? ?out|abort)"
)
_INDEX = re.compile(
    r"(?i)\bdevice < num_\w+|\b(?:found no|the) \w+ driver on your system\b|\bdevice ?= ?\d+,? .{0,20}\bnum_\w+ ?= ?\d"
    r"|\binvalid (?:\w+ )?(?:device|gpu|npu|xpu|hpu)[ _-]?(?:id|index|ordinal|number)|\b(?:device|gpu|npu|xpu|hpu"
    r"|accelerator)[ _-]?(?:id|index|ordinal|number)\b.{0,80}(?:invalid|out of range|exceed|not (?:exist|visible"
    r"|available)|must be|should be|less than|>=)|\bno (?:\w+ )?(?:gpus?|npus?|xpus?|hpus?|accelerators?"
    r"|devices?) (?:is |are |was |were )?(?:available|found|visible|detected)|\b(?:device|gpu|npu|xpu|hpu)s? (?:acquire"
    r"|acquisition|open) failed|\bfailed to (?:acquire|open|initialize) (?:\w+ )?(?:device|gpu|npu|hpu|xpu)|\b(?:only"
    r"|has|have) \d+ (?:visible )?(?:gpu|npu|xpu|hpu|device)s?\b.{0,40}\b(?:index|ordinal|rank|requested|asked)"
)

_HTTP = re.compile(
    r"\b([45]\d\d) (?:Client|Server) Error|(?:Client|Server) error '([45]\d\d)\b|\bHTTP Error ([45]\d\d)\b"
    r"|^([45]\d\d), message=|HTTP status (?:client|server) error \(([45]\d\d)\b|^\(([45]\d\d)\)\s"
    r"|\b(?:status|[Ee]rror)(?: code)?[ :=]+([45]\d\d)\b"
)
# A request that was wrong, in contrast to one that the server refused or could not answer.
_BAD_REQUEST = frozenset({400, 405, 406, 411, 412, 413, 415, 422})
# The server answered that the thing is not there, or not for this user.
REFUSED = frozenset({401, 403, 404, 410, 416})


def of_errno(text: str, *, by_text: bool) -> Origin | None:
    """What an operating system's error says, by its number, else by its text where asked; None for a wrong call."""
    numbers = [int(number) for found in _NUMBER.finditer(text) for number in found.groups() if number]
    if any(number < 0 for number in numbers):
        return Origin.NETWORK  # getaddrinfo counts its own errors below zero
    if numbers:
        number = numbers[0]
        return None if number in _WRONG_ERRNO else _BY_NUMBER.get(number, Origin.STORAGE)
    found = _STRERROR.search(text) if by_text else None
    return None if found is None else _BY_TEXT[found[1].lower()]


def of_device(text: str) -> Origin | None:
    """What an error of CUDA, cuDNN, cuBLAS, Triton or NCCL says; memory that ran out says nothing here."""
    status = _STATUS.search(text)
    if status is not None and not _STATUS_MEMORY.search(status[1]):
        return Origin.DEVICE_SETUP if _STATUS_SETUP.search(status[1]) else Origin.PROGRAM
    text = _DRIVER_NAME.sub(lambda name: f"cudaError{name[1].replace('_', '')}", text)
    at = _ACCELERATOR.search(text)
    code = _DEVICE_CODE.search(text, at.start()) if at is not None else None
    if code is not None:
        return _DEVICE_LOWER[code[0].lower()]
    result = _NCCL.search(text)
    if result is not None and result.lastgroup is not None:
        return _NCCL_ORIGIN[result.lastgroup]
    if _INDEX.search(text):
        return Origin.DEVICE_SETUP
    # The codes of runtimes other than CUDA and ROCm.
    acl = _ACL.search(text)
    if acl is not None:
        setup, memory = acl["kind"] == "1", (acl["kind"], acl["rest"]) == ("2", "001")
        return None if memory else Origin.DEVICE_SETUP if setup else Origin.DEVICE
    maker = _MAKERS.search(text)
    if maker is not None:
        known = next((row for row in _MAKERS_WORDS if row[0].search(maker["word"])), (None, Origin.DEVICE))[1]
        return Origin.NETWORK if maker["comm"] and known is not Origin.PROGRAM else known
    ascend = _ASCEND.search(text)
    if ascend is not None:
        return Origin.NETWORK if ascend["comm"] else Origin.DEVICE
    return Origin.NETWORK if _COMMUNICATION.search(text) else None


def http_status(text: str) -> int | None:
    """The status of an HTTP answer that an error reports, None when it names none."""
    found = _HTTP.search(text)
    return None if found is None else int(next(number for number in found.groups() if number))


_TRACKERS = r"wandb|mlflow|swanlab|trackio|clearml|comet_ml|neptune|tensorboardX?"
_HUBS = r"huggingface_hub|hf_xet|hf_transfer|modelscope"
_NETS = (
    r"requests|urllib3|httpx|httpcore|aiohttp|urllib\.error|http\.client|botocore|boto3|s3transfer|s3fs|gcsfs|adlfs"
    r"|google\.(?:api_core|auth|cloud)|azure|grpc|socket|ssl|websockets|paramiko|redis|openai|anthropic|fsspec"
)
_TRACKER_CLASS, _HUB_CLASS, _NET_CLASS = (re.compile(rf"^(?:{names})\.") for names in (_TRACKERS, _HUBS, _NETS))
_NOT_FOR_US = re.compile(
    r"(?:(?:Repository|Revision|RemoteEntry|Bucket)NotFound|GatedRepo|DisabledRepo|HFValidation|NotExist)Error$"
)
_NO_HUB = re.compile(r"\.(?:StrictDataclass\w*|ValidationError|Safetensors\w*|NotASafetensorsRepoError|DDUF\w*)$")
_BARE_HUB = re.compile(r"^(?:OfflineModeIsEnabled|HubUnreachable)$")
# A class of any other package whose name is that of a service's failure, or that reports an HTTP status. The packages
# of the run itself use such names for other things.
_FOREIGN_CLASS = re.compile(
    r"^(?!(?:torch|ray|megatron|verl|vllm|sglang|triton|concurrent|asyncio|multiprocessing|queue|subprocess|pydantic\w*"
    r"|transformers|safetensors\w*|tensordict|omegaconf|hydra)\.)(?:\w+\.)+\w+$"
)
_SERVICE_NAME = re.compile(
    r"\.\w*(?:Connect|Timeout|TimedOut|RateLimit|Unavailable|Unreachable|Disconnected|Throttl|TooManyRequests"
    r"|InternalServer|BadGateway|Network|Proxy|SSL|TLS|Authentication)\w*$"
)
_WRONG_SERVICE_CALL = re.compile(
    r"(?:Invalid(?:URL|Schema|Header|JSON)\w*|MissingSchema|UnsupportedProtocol|LocationParse\w*|LocationValue\w*"
    r"|Stream(?:Consumed|Closed)|ResponseNotRead|RequestNotRead|CookieConflict|ParamValidationError|CannotSendRequest"
    r"|BadRequestError|UnprocessableEntityError)$"
)
# The codes of S3 and of gRPC for a request that was wrong by itself.
_WRONG_REQUEST = re.compile(
    r"\((?:NoSuchKey|InvalidArgument|InvalidRequest|MalformedXML|ValidationException)\)"
    r"|StatusCode\.(?:INVALID_ARGUMENT|INTERNAL|UNIMPLEMENTED|FAILED_PRECONDITION|OUT_OF_RANGE|ALREADY_EXISTS|UNKNOWN)"
)
# A server that the run started is reached by an address, a service by a name.
_OWN_SERVER = re.compile(
    r"https?://(?:localhost|\[|\d{1,3}(?:\.\d{1,3}){3})|host='(?:localhost|\d{1,3}(?:\.\d{1,3}){3})'"
)
_HUB_HOST = re.compile(r"huggingface\.co|\bhf\.co\b|hf-mirror\.|modelscope\.c")

_TRACKER_FRAME = re.compile(rf"verl/utils/tracking\.py:|(?:^|/)(?:{_TRACKERS})/", re.MULTILINE)
# What checks configurations and writes shards belongs to the hub's library, but asks no hub.
_HUB_FRAME = re.compile(rf"(?:^|/)(?:{_HUBS})/(?!dataclasses\.py|serialization/)", re.MULTILINE)
_NET_FRAME = re.compile(
    r"^(?!.*(?:vllm|sglang|torch|ray)/)(?:.*/)?(?:requests|urllib3?|httpx|httpcore|aiohttp|botocore|s3transfer|s3fs|gcsfs"
    r"|fsspec|grpc|openai)/|(?:^|/)(?:socket|ssl|http/client)\.py:",
    re.MULTILINE,
)
# Below these frames the hub gives data or a reward model, no model under test: the frames say the stage.
_OTHER_USE = re.compile(r"(?:^|/)datasets/|rl_dataset|reward_(?:loop|model|manager|score)", re.MULTILINE)


def of_class(kind: str, message: str) -> Origin | None:
    """What the class of an exception says; `PROGRAM` for a request that was wrong, or that the run's server refused."""
    if _TRACKER_CLASS.match(kind):
        return Origin.TRACKER
    if _NOT_FOR_US.search(kind):
        return Origin.MODEL_FILES
    status = http_status(message)
    hub = (_HUB_CLASS.match(kind) or _BARE_HUB.match(kind)) is not None and not _NO_HUB.search(kind)
    named = _FOREIGN_CLASS.match(kind) is not None and (_SERVICE_NAME.search(kind) is not None or status is not None)
    if not (hub or _NET_CLASS.match(kind) or named):
        return None
    if _WRONG_SERVICE_CALL.search(kind) or _WRONG_REQUEST.search(message):
        return Origin.PROGRAM
    if status is None:
        return Origin.HUB if hub else Origin.NETWORK
    return Origin.PROGRAM if _OWN_SERVER.search(message) or status in _BAD_REQUEST else Origin.NETWORK


def service(found: Origin | None, message: str, frames: str) -> Origin | None:
    """Which service did not answer, the hub or any other; every other origin as it is."""
    if found not in (Origin.NETWORK, Origin.HUB):
        return found
    hub = found is Origin.HUB or _HUB_FRAME.search(frames) or _HUB_HOST.search(message)
    if not hub or _OTHER_USE.search(frames):
        return Origin.NETWORK
    return Origin.MODEL_FILES if http_status(message) in REFUSED else Origin.HUB


# What readers say of a file that is cut, empty, or something else than its name says.
_READER = re.compile(
    r"PytorchStreamReader failed|Error while deserializing|SafetensorsParsingError|cannot mmap an empty file"
    r"|truncated file|file signature not found"
    r"|The file might be corrupted|unexpected EOF, expected \d+ more bytes|storage has wrong byte size"
    r"|(?i:checksum|sha-?256|md5|\bCRC(?:32)?\b).{0,60}(?:mismatch|does not match|do not match|failed|incorrect)"
)
_READER_CLASS = re.compile(
    r"BadZipFile$|BadGzipFile$|^zlib\.error$|^lzma\.LZMAError$|^tarfile\.ReadError$|SafetensorsParsingError$"
)
_UNPICKLING = re.compile(r"(?:^|\.)(?:_pickle|pickle)\.(?:UnpicklingError|PickleError)$|^UnpicklingError$")
# The reader refuses a class: the file is whole.
_REFUSED = re.compile(r"Unsupported (?:global|class)|not an allowed global|persistent_load|persistent id")
_ENDED = re.compile(r"^EOFError$|JSONDecodeError$|^UnicodeDecodeError$|^struct\.error$")
_READING_FRAME = re.compile(
    r"torch/serialization\.py:|json/__init__\.py:load$|safetensors/|numpy/lib/\S*:load|pickle\.py:load$"
    r"|(?:^|/)(?:gzip|bz2|lzma|tarfile|_compression)\.py:",
    re.MULTILINE,
)
_WRITER = re.compile(r"PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos")
_CLOSING = re.compile(r"torch/serialization\.py:__exit__$")
_NO_TEMPORARY = re.compile(r"tempfile\.py:_get_default_tempdir$")
_PUBLISHED = re.compile(
    r"(?:-\d{5}-of-\d{5}\.(?:safetensors|bin)|(?:^|/)(?:model\.safetensors(?:\.index\.json)?|pytorch_model\.bin\S*"
    r"|config\.json|generation_config\.json|tokenizer\S*\.(?:json|model)|vocab\.(?:json|txt)|merges\.txt))'?$"
)
# What a run writes itself, by the path or by the frames.
_OWN_PATH = re.compile(r"global_step_\d|/iter_\d{7}|latest_checkpointed_iteration|dist_ckpt")
_OWN_FRAME = re.compile(
    r"dist_checkpointing/|torch/distributed/checkpoint/|:_?(?:save|load)_(?:\w*_)?checkpoint$|checkpoint_manager\.py:"
    r"|:save_\w+$|:export_\w+$|:load_megatron_model$|training/checkpointing\.py:",
    re.MULTILINE,
)
# A path that the run was given and that is not what it should be, no matter who found that out.
_GIVEN = re.compile(
    r"(?i)\b(?:path|director(?:y|ies)|folder|checkpoint|ckpt|snapshot|tokenizer|run[_ ]config|metadata|weights?"
    r"|model)\b"
)
_AMISS = re.compile(
    r"(?i)\binvalid\b|\bno such\b|\bnot (?:a |an |the )?(?:valid |existing )?(?:\w+ )?(?:found|exist\w*|director\w*"
    r"|folder|checkpoint|path|file)|\b(?:does|do|did) ?n[o']t (?:exist|contain|point|have)"
    r"|\bcould ?n[o']t (?:be )?(?:found|find|open|locate)|\bcannot (?:find|open|locate|access)|\bmissing\b|\bis empty\b"
    r"|\bunable to (?:find|open|locate|read)|\bmust (?:exist|be an? (?:existing )?(?:director|path|folder|file"
    r"|checkpoint))|\bno (?:\w+ ){0,3}(?:found|present|exists?|available) (?:in|at|under)|\bnot (?:in|at|under) /"
    r"|\bfailed to (?:find|open|locate)"
)
_PATH = re.compile(r"(?:^|[\s'\"(=:`<\[])((?:/|~/|\.{1,2}/|[a-z][a-z0-9]{1,6}://)[\w.@%+~-]+(?:/[\w.@%+=~-]*)*)")
_OF_CODE = re.compile(r"/(?:megatron|verl|(?:site|dist)-packages)/|\.(?:py|so|cu|cpp|h)$")
_WRITES = re.compile(r":_?(?:async_)?(?:save|export|write|dump)\w*$")
_CHECKS = frozenset(
    {"ValueError", "AssertionError", "RuntimeError", "OSError", "Exception", "NotADirectoryError", "IsADirectoryError"}
)
_CACHE = re.compile(r"/\.?(?:triton|torchinductor\w*|cache|__pycache__)/|/tmp/(?:ray|torchinductor)|/dev/shm/|'/proc/")
# Libraries that read and write files, and raise a bare OSError when that fails.
_IO = re.compile(r"(?:^|/)(?:numpy|h5py|pyarrow|zarr|diskcache)/\S+$")
_WITH_ERRNO = re.compile(r"\[Errno \d")
_SQLITE = re.compile(r"^sqlite3\.\w*Error$")
_SQLITE_DISK = re.compile(
    r"disk I/O error|database is locked|unable to open database|disk is full|readonly database|disk image is malformed"
)


def of_file(kind: str, message: str, calls: Sequence[str], below: Sequence[str]) -> Origin | None:
    """What an exception says of a file; `calls` are all frames, `below` those below the last one of the projects."""
    innermost = calls[-1] if calls else ""
    if _WRITER.search(message) or (kind == "RuntimeError" and _CLOSING.search(innermost)):
        return Origin.SPACE
    own = _OWN_PATH.search(message) or _OWN_FRAME.search("\n".join(calls))
    if kind.endswith("FileNotFoundError"):
        if _NO_TEMPORARY.search(innermost):
            return Origin.STORAGE
        if own:
            return Origin.PROGRAM
        if _PUBLISHED.search(message):
            return Origin.DAMAGED_FILE
        if _CACHE.search(message):
            return Origin.STORAGE
        return Origin.GIVEN_PATH if _names_given_path(message, calls) else None
    if _SQLITE.match(kind):
        return Origin.STORAGE if _SQLITE_DISK.search(message) else None
    refused = _UNPICKLING.search(kind) is not None and _REFUSED.search(message) is not None
    ended = _ENDED.search(kind) and _READING_FRAME.search("\n".join(below))
    if _READER_CLASS.search(kind) or _READER.search(message) or (_UNPICKLING.search(kind) and not refused) or ended:
        return None if own else Origin.DAMAGED_FILE
    amiss = _GIVEN.search(message) and _AMISS.search(message)
    if kind in _CHECKS and amiss and _names_given_path(message, calls):
        return Origin.GIVEN_PATH
    bare = kind == "OSError" and not _WITH_ERRNO.search(message)
    return Origin.STORAGE if bare and _IO.search(innermost) else None


def _names_given_path(message: str, calls: Sequence[str]) -> bool:
    """Whether a message names a path that is neither one of the code nor one that the run writes itself."""
    if _OWN_PATH.search(message) or any(_WRITES.search(call) for call in calls):
        return False
    found = _PATH.search(message)
    return found is not None and _OF_CODE.search(found[1]) is None


# Imports that failed because something is not there. Python names the module in the message, and the file of the import
# is the innermost frame: both in Megatron-Bridge or Megatron-LM means that the trees under test do not fit together. A
# module of an installed copy, a compiled extension, and a part of Megatron-LM that exists only with an optional package
# are left to the host.
_TREES = r"megatron\.(?:bridge|core)"
_NO_MODULE = re.compile(r"No module named '([\w.]{1,300})'")
_NO_NAME = re.compile(
    r"cannot import name '(\w{1,200})' from (?:partially initialized module )?'([\w.]{1,300})'"
    r"(?: \([^()]{1,80}\))? \((/[^()]{1,500}|\$\w[^()]{1,500})\)"
)
_NO_ATTRIBUTE = re.compile(r"(?:partially initialized )?module '([\w.]{1,300})' has no attribute '(\w{1,200})'")
_IMPORTING = frozenset({"<module>", "<import>"})
# A module within one of the packages under test: the package itself may well be missing from the path of a host.
_WITHIN = re.compile(rf"{_TREES}\.\w")
_OF_TREES = re.compile(rf"{_TREES}(?:\.|$)")
# Megatron-LM defines these only where the package that they wrap is installed.
_OPTIONAL = re.compile(r"megatron\.core\.extensions(?:\.|$)")
# How projects name what is compiled from C++ or CUDA.
_COMPILED = re.compile(r"(?:^|_)(?:cpp|cuda|ext|C)$")
_TREE_FILE = re.compile(r"(?:^|/)megatron/(?:bridge|core)/")
_INSTALLED = re.compile(r"(?:^|/)(?:site|dist)-packages/")


@dataclass(frozen=True, slots=True)
class BrokenImport:
    """What an import did not find."""

    # The module that is missing, or the one that does not have `name`.
    module: str
    # The name that the module does not have; empty where the module itself is missing.
    name: str = ""
    # The file of the module, empty where Python does not say it.
    file: str = ""


def broken_import(error: LoggedError) -> BrokenImport | None:
    """What an error says is missing; None for an error that is not a failed import."""
    message = error.full_message or error.message
    if error.kind == "ModuleNotFoundError" and (missing := _NO_MODULE.match(message)):
        return BrokenImport(missing[1])
    if error.kind == "ImportError" and (unnamed := _NO_NAME.match(message)):
        return BrokenImport(unnamed[2], unnamed[1], unnamed[3])
    # The innermost frame is the body of a module.
    importing = error.frame is not None and error.frame.function in _IMPORTING
    if error.kind == "AttributeError" and importing and (without := _NO_ATTRIBUTE.match(message)):
        return BrokenImport(without[1], without[2])
    return None


def between_trees(error: LoggedError) -> bool:
    """Whether Megatron-Bridge or Megatron-LM imports what neither of them has."""
    broken = broken_import(error)
    if broken is None or error.frame is None or not in_trees(error.frame.path):
        return False
    innermost = error.calls[-1].rpartition(":")[0] if error.calls else ""
    if not innermost or not error.frame.path.endswith(innermost):
        return False
    if _OPTIONAL.match(broken.module) or is_compiled(broken.name or broken.module):
        return False
    if broken.file:
        return _OF_TREES.match(broken.module) is not None and in_trees(broken.file)
    return (_OF_TREES if broken.name else _WITHIN).match(broken.module) is not None


def involves_trees(error: LoggedError) -> bool:
    """Whether code of Megatron-Bridge or Megatron-LM ran when an error was raised, or was imported in vain."""
    broken = broken_import(error)
    if broken is not None and _OF_TREES.match(broken.module) and (broken.name or _WITHIN.match(broken.module)):
        return True
    frames = [error.frame.path] if error.frame is not None else []
    return any(in_trees(path) for path in (*frames, *(call.rpartition(":")[0] for call in error.calls)))


def is_compiled(module: str) -> bool:
    """Whether a module's name is that of a compiled extension."""
    return _COMPILED.search(module.rpartition(".")[2]) is not None


def in_trees(path: str) -> bool:
    """Whether a file is one of Megatron-Bridge or Megatron-LM that is not an installed package."""
    return _TREE_FILE.search(path) is not None and _INSTALLED.search(path) is None


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


def error_origin(error: LoggedError) -> Origin | None:
    """Where a fault comes from: what its root says, else where it was raised, else what its chain says.

    An exception that only code raises is `PROGRAM`, unless it was raised while an extension was built; an import that
    fails between Megatron-Bridge and Megatron-LM is `TREES`.
    """
    if between_trees(error):
        return Origin.TREES
    # The frames below the last one of the projects under test.
    last = max((at for at, call in enumerate(error.calls) if _PROJECT.search(call)), default=-1)
    below = error.calls[last + 1 :]
    frames = "\n".join(below)
    if _TRACKER_FRAME.search("\n".join(error.calls[-NEAR_FRAMES:])):
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
        return service(root, error.message, everywhere)
    found = (service(_said(*other, error.calls, below), other[1], everywhere) for other in others(error))
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


def _said(kind: str, message: str, calls: Sequence[str], below: Sequence[str]) -> Origin | None:
    """What an exception says by its class or by a code in its message."""
    known = of_class(kind, message) or _of_class(kind)
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
    text = next((origin for pattern, origin in _TEXTS if pattern.search(message)), None)
    found = text or of_errno(message, by_text=kind not in _COMPLAINTS)
    if found is not None:
        return Origin.HOST_LIMITS if found is Origin.SPACE and _SHARED.search(message) else found
    quoted = _QUOTED_CLASS.search(message)
    if quoted is None:
        return None
    return Origin.STORAGE if quoted[1] in _PLAIN else _of_class(quoted[1])


def _of_class(kind: str) -> Origin | None:
    return next((origin for pattern, origin in _CLASSES if pattern.search(kind)), None)


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
    if _HANDLES.search(innermost):
        return Origin.HOST_LIMITS
    if _HUB_FRAME.search(below):
        return Origin.HUB
    return Origin.NETWORK if _NET_FRAME.search(below) and not _OWN_SERVER.search(error.message) else None
