"""Error codes that programs print, as their makers enumerate them, and where a fault with such a code comes from.

Linux errno (`errno.h`), CUDA (`cudaError_t` with the text of `cudaGetErrorString`), the statuses of cuDNN, cuBLAS and
their relatives, NCCL (`ncclResult_t`), HTTP. A code that is not here says nothing: then the stage decides.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto


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


# Number, text of strerror, origin.
_ERRNO: tuple[tuple[int, str, Origin], ...] = (
    (1, "Operation not permitted", Origin.STORAGE),
    (5, "Input/output error", Origin.STORAGE),
    (6, "No such device or address", Origin.STORAGE),
    (11, "Resource temporarily unavailable", Origin.HOST_LIMITS),
    (12, "Cannot allocate memory", Origin.HOST_MEMORY),
    (13, "Permission denied", Origin.STORAGE),
    (16, "Device or resource busy", Origin.STORAGE),
    (19, "No such device", Origin.STORAGE),
    (23, "Too many open files in system", Origin.HOST_LIMITS),
    (24, "Too many open files", Origin.HOST_LIMITS),
    (27, "File too large", Origin.STORAGE),
    (28, "No space left on device", Origin.SPACE),
    (30, "Read-only file system", Origin.STORAGE),
    (35, "Resource deadlock avoided", Origin.STORAGE),
    (37, "No locks available", Origin.STORAGE),
    (61, "No data available", Origin.STORAGE),
    (71, "Protocol error", Origin.STORAGE),
    (74, "Bad message", Origin.STORAGE),
    (77, "File descriptor in bad state", Origin.STORAGE),
    (98, "Address already in use", Origin.NETWORK),
    (99, "Cannot assign requested address", Origin.NETWORK),
    (100, "Network is down", Origin.NETWORK),
    (101, "Network is unreachable", Origin.NETWORK),
    (102, "Network dropped connection on reset", Origin.NETWORK),
    (103, "Software caused connection abort", Origin.PEER),
    (104, "Connection reset by peer", Origin.PEER),
    (105, "No buffer space available", Origin.HOST_LIMITS),
    (32, "Broken pipe", Origin.PEER),
    (107, "Transport endpoint is not connected", Origin.STORAGE),
    (108, "Cannot send after transport endpoint shutdown", Origin.STORAGE),
    (110, "Connection timed out", Origin.NETWORK),
    (111, "Connection refused", Origin.NETWORK),
    (112, "Host is down", Origin.NETWORK),
    (113, "No route to host", Origin.NETWORK),
    (116, "Stale file handle", Origin.STORAGE),
    (117, "Structure needs cleaning", Origin.STORAGE),
    (121, "Remote I/O error", Origin.STORAGE),
    (122, "Disk quota exceeded", Origin.SPACE),
    (123, "No medium found", Origin.STORAGE),
    (126, "Required key not available", Origin.STORAGE),
    (127, "Key has expired", Origin.STORAGE),
)
# What a wrong call raises: ENOENT, EBADF, EEXIST, ENOTDIR, EISDIR, EINVAL, ENAMETOOLONG, ENOTEMPTY, those of sockets.
_WRONG_CALL = frozenset(
    {
        2,
        3,
        4,
        7,
        8,
        9,
        10,
        14,
        15,
        17,
        18,
        20,
        21,
        22,
        25,
        29,
        31,
        33,
        34,
        36,
        38,
        39,
        40,
        75,
        84,
        *range(88, 98),
        106,
        114,
        115,
    }
)
_BY_NUMBER: Mapping[int, Origin] = {number: origin for number, _, origin in _ERRNO}
_BY_TEXT: Mapping[str, Origin] = {text.lower(): origin for _, text, origin in _ERRNO}
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
_DEVICE: Mapping[str, Origin] = {
    **dict.fromkeys(
        (
            "an illegal memory access was encountered",
            "cudaErrorIllegalAddress",
            "an illegal instruction was encountered",
            "cudaErrorIllegalInstruction",
            "device-side assert triggered",
            "cudaErrorAssert",
            "misaligned address",
            "cudaErrorMisalignedAddress",
            "operation not supported on global/shared address space",
            "cudaErrorInvalidAddressSpace",
            "invalid program counter",
            "cudaErrorInvalidPc",
            "hardware stack error",
            "cudaErrorHardwareStackError",
            "unspecified launch failure",
            "cudaErrorLaunchFailure",
            "cudaErrorLaunchFailed",
            "cudaErrorInvalidHandle",
            "invalid argument",
            "cudaErrorInvalidValue",
            "invalid configuration argument",
            "cudaErrorInvalidConfiguration",
            "invalid pitch argument",
            "invalid device pointer",
            "invalid resource handle",
            "cudaErrorInvalidResourceHandle",
            "too many resources requested for launch",
            "cudaErrorLaunchOutOfResources",
            "too many blocks in cooperative launch",
            "named symbol not found",
            "stream is capturing",
            "capturing stream",
            "peer access is already enabled",
        ),
        Origin.PROGRAM,
    ),
    **dict.fromkeys(
        (
            "uncorrectable ECC error encountered",
            "cudaErrorECCUncorrectable",
            "cudaErrorECCNotCorrectable",
            "uncorrectable NVLink error detected during the execution",
            "cudaErrorNvlinkUncorrectable",
            "the launch timed out and was terminated",
            "cudaErrorLaunchTimeout",
            "Invalid access of peer GPU memory over nvlink or a hardware error",
            "cudaErrorContained",
            "tensor memory error",
            "unknown error",
            "cudaErrorUnknown",
            "OS call failed or operation not supported on this OS",
            "driver shutting down",
            "context is destroyed",
        ),
        Origin.DEVICE,
    ),
    **dict.fromkeys(
        (
            "CUDA driver version is insufficient for CUDA runtime version",
            "cudaErrorInsufficientDriver",
            "no CUDA-capable device is detected",
            "cudaErrorNoDevice",
            "invalid device ordinal",
            "cudaErrorInvalidDevice",
            "busy or unavailable",
            "cudaErrorDevicesUnavailable",
            "system not yet initialized",
            "cudaErrorSystemNotReady",
            "system has unsupported display driver / cuda driver combination",
            "cudaErrorSystemDriverMismatch",
            "forward compatibility was attempted on non supported HW",
            "cudaErrorCompatNotSupportedOnDevice",
            "no kernel image is available for execution on the device",
            "cudaErrorNoKernelImageForDevice",
            "cudaErrorNoBinaryForGpu",
            "cudaErrorNotInitialized",
            "invalid device function",
            "the provided PTX was compiled with an unsupported toolchain",
            "cudaErrorUnsupportedPtxVersion",
            "PTX JIT compiler library not found",
            "API call is not supported in the installed CUDA driver",
            "device kernel image is invalid",
            "initialization error",
            "cudaErrorInitializationError",
            "MPS client failed to connect",
            "Failed to connect to MPS server",
            "MPS server is not ready",
            "has been reached on the MPS",
            "peer access is not supported between these two devices",
            "exclusive-thread device already in use",
            "device not licensed",
        ),
        Origin.DEVICE_SETUP,
    ),
}
_DEVICE_LOWER = {text.lower(): origin for text, origin in _DEVICE.items()}
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
    r"(?i)\bdevice < num_\w+|\b(?:found no|the) \w+ driver on your system\b"
    r"|\bdevice ?= ?\d+,? .{0,20}\bnum_\w+ ?= ?\d|\binvalid (?:\w+ )?(?:device|gpu|npu|xpu"
    r"|hpu)[ _-]?(?:id|index|ordinal|number)"
    r"|\b(?:device|gpu|npu|xpu|hpu|accelerator)[ _-]?(?:id|index|ordinal|number)\b.{0,80}(?:invalid|out of range"
    r"|exceed|not (?:exist|visible|available)|must be|should be|less than|>=)"
    r"|\bno (?:\w+ )?(?:gpus?|npus?|xpus?|hpus?|accelerators?|devices?) (?:is |are |was |were )?(?:available"
    r"|found|visible|detected)"
    r"|\b(?:device|gpu|npu|xpu|hpu)s? (?:acquire|acquisition|open) failed|\bfailed to (?:acquire|open"
    r"|initialize) (?:\w+ )?(?:device|gpu|npu|hpu|xpu)"
    r"|\b(?:only|has|have) \d+ (?:visible )?(?:gpu|npu|xpu|hpu|device)s?\b.{0,40}\b(?:index|ordinal|rank"
    r"|requested|asked)"
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
        return None if number in _WRONG_CALL else _BY_NUMBER.get(number, Origin.STORAGE)
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
    return Origin.DEVICE_SETUP if _INDEX.search(text) else _of_makers(text)


def _of_makers(text: str) -> Origin | None:
    """What the codes of runtimes other than CUDA and ROCm say."""
    acl = _ACL.search(text)
    if acl is not None:
        setup, memory = acl["kind"] == "1", (acl["kind"], acl["rest"]) == ("2", "001")
        return None if memory else Origin.DEVICE_SETUP if setup else Origin.DEVICE
    code = _MAKERS.search(text)
    if code is not None:
        known = next((row for row in _MAKERS_WORDS if row[0].search(code["word"])), (None, Origin.DEVICE))[1]
        return Origin.NETWORK if code["comm"] and known is not Origin.PROGRAM else known
    ascend = _ASCEND.search(text)
    if ascend is not None:
        return Origin.NETWORK if ascend["comm"] else Origin.DEVICE
    return Origin.NETWORK if _COMMUNICATION.search(text) else None


def http_status(text: str) -> int | None:
    """The status of an HTTP answer that an error reports, None when it names none."""
    found = _HTTP.search(text)
    return None if found is None else int(next(number for number in found.groups() if number))


def of_http(status: int) -> Origin | None:
    """Whose fault an HTTP status is: None for a request that was wrong by itself."""
    return None if status in _BAD_REQUEST else Origin.NETWORK
