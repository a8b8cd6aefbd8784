"""Single answers about the origin of a fault: codes, services, files, and which exception of a chain counts."""

import pytest

from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import LoggedError
from verl_e2e.core.triage.origin import (
    Origin,
    error_origin,
    http_status,
    of_class,
    of_device,
    of_errno,
    of_file,
    others,
)

STATE = "megatron/bridge/models/hf_pretrained/state.py:load_tensors"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("[Errno 28] No space left on device", Origin.SPACE),
        ("[Errno -3] Temporary failure in name resolution", Origin.NETWORK),
        ("[Errno 255] Unknown error 255", Origin.STORAGE),
        ("[Errno 22] Invalid argument", None),
        ("I/O error: Stale file handle (os error 116)", Origin.STORAGE),
        ("IoError(Os { code: 122, kind: QuotaExceeded })", Origin.SPACE),
        ("unable to mmap 4096 bytes: Cannot allocate memory (12)", Origin.HOST_MEMORY),
        ("Too many open files in system", Origin.HOST_LIMITS),
        ("the size of tensor a (512) must match tensor b (256)", None),
        ("permission denied by policy", None),
    ],
)
def test_errors_of_the_operating_system(text: str, origin: Origin | None) -> None:
    assert of_errno(text, by_text=True) is origin


def test_a_text_without_a_number_counts_only_where_it_is_asked_for() -> None:
    assert of_errno("Permission denied: x", by_text=False) is None
    assert of_errno("[Errno 13] Permission denied", by_text=False) is Origin.STORAGE


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("CUDA error: an illegal memory access was encountered", Origin.PROGRAM),
        ("CUDA error 700: CUDA_ERROR_ILLEGAL_ADDRESS", Origin.PROGRAM),
        ("HIP error: hipErrorNoBinaryForGpu", Origin.DEVICE_SETUP),
        ("Triton Error [CUDA]: device-side assert triggered", Origin.PROGRAM),
        ("CUDA error: uncorrectable ECC error encountered", Origin.DEVICE),
        ("an illegal memory access was encountered", None),
        ("CUDA out of memory. Tried to allocate 446.00 MiB.", None),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None),
        ("cuDNN error: CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER", Origin.PROGRAM),
        ("cuDNN error: CUDNN_STATUS_ARCH_MISMATCH", Origin.DEVICE_SETUP),
        ("ncclRemoteError: A call failed possibly due to a network error", Origin.NETWORK),
        ("NCCL error in: x.cpp:1, invalid usage (run with NCCL_DEBUG=WARN for details)", Origin.PROGRAM),
        ("NCCL error in: x.cpp:1, internal error", None),
        ("unhandled cuda error, NCCL version 2.28.9 Last error: Cuda failure 'misaligned address'", Origin.PROGRAM),
    ],
)
def test_codes_of_accelerators(text: str, origin: Origin | None) -> None:
    assert of_device(text) is origin


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("429 Client Error: Too Many Requests for url: https://x", 429),
        ("Server error '502 Bad Gateway' for url 'https://x'", 502),
        ("HTTP Error 504: Gateway Time-out", 504),
        ("500, message='Internal Server Error', url='http://x'", 500),
        ("Error code: 503 - {}", 503),
        ("(503)\tReason: Service Unavailable", 503),
        ("expected 512 features, got 404", None),
    ],
)
def test_statuses_of_http(text: str, status: int | None) -> None:
    assert http_status(text) == status


@pytest.mark.parametrize(
    ("kind", "message", "origin"),
    [
        ("wandb.errors.errors.CommError", "", Origin.TRACKER),
        ("huggingface_hub.errors.GatedRepoError", "403 Client Error.", Origin.MODEL_FILES),
        ("huggingface_hub.errors.OfflineModeIsEnabled", "", Origin.HUB),
        ("huggingface_hub.errors.StrictDataclassFieldValidationError", "", None),
        ("requests.exceptions.InvalidURL", "", Origin.PROGRAM),
        ("openai.BadRequestError", "Error code: 400 - {}", Origin.PROGRAM),
        ("httpx.HTTPStatusError", "Server error '500' for url 'http://127.0.0.1:8000/v1'", Origin.PROGRAM),
        ("httpx.HTTPStatusError", "Client error '422 Unprocessable' for url 'https://x'", Origin.PROGRAM),
        ("etcd3.exceptions.ConnectionFailedError", "", Origin.NETWORK),
        ("torch.distributed.SomeTimeoutError", "", None),
        ("ValueError", "429 Client Error", None),
    ],
)
def test_classes_of_services(kind: str, message: str, origin: Origin | None) -> None:
    assert of_class(kind, message) is origin


@pytest.mark.parametrize(
    ("message", "calls", "origin"),
    [
        ("[Errno 2] No such file or directory: '/m/model-00001-of-00002.safetensors'", (STATE,), Origin.DAMAGED_FILE),
        ("[Errno 2] No such file or directory: '/c/global_step_1/config.json'", (STATE,), Origin.PROGRAM),
        ("[Errno 2] No such file or directory: '/root/.triton/cache/a'", (STATE,), Origin.STORAGE),
        ("[Errno 2] No such file or directory: 'template.yaml'", (STATE,), None),
    ],
)
def test_a_file_that_is_not_there(message: str, calls: tuple[str, ...], origin: Origin | None) -> None:
    assert of_file("FileNotFoundError", message, calls, ()) is origin


def error(*rows: str) -> LoggedError:
    (found,) = scan(["".join(row + "\n" for row in rows).encode()]).errors
    return found


H = "Traceback (most recent call last):"
THEN = "During handling of the above exception, another exception occurred:"


def test_what_follows_a_root_that_says_nothing_counts() -> None:
    chained = error(
        H, '  File "a.py", line 1, in f', "RuntimeError: no cached copy", "", THEN, "", H,
        '  File "b.py", line 2, in g', "httpx.ConnectError: all attempts failed",
    )  # fmt: skip
    assert error_origin(chained) is Origin.NETWORK
    assert list(others(chained)) == [("httpx.ConnectError", "all attempts failed")]


def test_what_follows_a_fault_of_code_does_not() -> None:
    chained = error(
        H, '  File "a.py", line 1, in f', "KeyError: 'x'", "", THEN, "", H,
        '  File "b.py", line 2, in g', "OSError: [Errno 28] No space left on device",
    )  # fmt: skip
    assert error_origin(chained) is Origin.PROGRAM


def test_an_error_without_frames_and_a_quoted_message() -> None:
    quoted = error(
        H, '  File "a.py", line 1, in f', "RuntimeError: odd", "", THEN, "", H,
        '  File "b.py", line 2, in g', "OSError: worker failed: odd",
    )  # fmt: skip
    assert list(others(quoted)) == []
    assert error_origin(quoted) is None
