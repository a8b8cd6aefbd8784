"""Whether an exception is that of a service outside of the run: a hub, an experiment tracker, a network.

By the package that the exception's class or the innermost frames belong to; and whether the request was at fault
rather than the service, or the server was one of the run's own.
"""

import re

from verl_e2e.core.triage.codes import REFUSED, Origin, http_status, of_http

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
_WRONG_CALL = re.compile(
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


def tracked(frames: str) -> bool:
    """Whether frames, one on a line, are those of an experiment tracker."""
    return _TRACKER_FRAME.search(frames) is not None


def of_class(kind: str, message: str) -> Origin | None:
    """What the class of an exception says; `PROGRAM` for a request that was wrong, or that the run's server refused."""
    if _TRACKER_CLASS.match(kind):
        return Origin.TRACKER
    if _NOT_FOR_US.search(kind):
        return Origin.MODEL_FILES
    hub = (_HUB_CLASS.match(kind) or _BARE_HUB.match(kind)) is not None and not _NO_HUB.search(kind)
    if not hub and not _NET_CLASS.match(kind) and not _of_a_service(kind, message):
        return None
    if _WRONG_CALL.search(kind) or _WRONG_REQUEST.search(message):
        return Origin.PROGRAM
    status = http_status(message)
    if status is None:
        return Origin.HUB if hub else Origin.NETWORK
    return Origin.PROGRAM if _OWN_SERVER.search(message) else of_http(status) or Origin.PROGRAM


def _of_a_service(kind: str, message: str) -> bool:
    named = _SERVICE_NAME.search(kind) is not None or http_status(message) is not None
    return named and _FOREIGN_CLASS.match(kind) is not None


def of_frames(message: str, below: str) -> Origin | None:
    """What the frames below the project's own say of an exception whose class says nothing."""
    if _HUB_FRAME.search(below):
        return Origin.HUB
    return Origin.NETWORK if _NET_FRAME.search(below) and not _OWN_SERVER.search(message) else None


def service(found: Origin | None, message: str, frames: str) -> Origin | None:
    """Which service did not answer, the hub or any other; every other origin as it is."""
    if found not in (Origin.NETWORK, Origin.HUB):
        return found
    hub = found is Origin.HUB or _HUB_FRAME.search(frames) or _HUB_HOST.search(message)
    if not hub or _OTHER_USE.search(frames):
        return Origin.NETWORK
    return Origin.MODEL_FILES if http_status(message) in REFUSED else Origin.HUB
