"""What a test's environment lacks, read from the error that ended it: such a test says nothing about the change.

The rules are tried in order; each is held against the error itself, never against the source that it quotes.
"""

import re
from dataclasses import dataclass

# Top-level names of the trees under test, whose absence is a fault of the trees; others share the name `megatron`.
_OURS = frozenset({"verl", "tests", "examples", "scripts", "tools", "tutorials", "skills"})
_MEGATRON = frozenset(
    {"", "bridge", "core", "training", "legacy", "inference", "post_training", "rl", "elastification"}
)
_UNAVAILABLE = re.compile(
    r"The (?P<first>[\w.-]+) package is not available"
    r"|requires the (?P<second>[\w.-]+) library\W+[Bb]ut (?:it|that) was not found"
)
_MODULE = re.compile(r"No module named '(?P<module>[^']+)'")
# What a test itself claims or expects is its own matter, whatever words it quotes; torch says one thing in that way.
_CLAIMS = ("AssertionError", "assert ", "Failed:")
_OF_TORCH = "AssertionError: Torch not compiled with CUDA enabled"


@dataclass(frozen=True, slots=True)
class _Lack:
    pattern: re.Pattern[str]
    clause: str


_LACKS = (
    _Lack(
        re.compile(
            r"Found no NVIDIA driver|No CUDA GPUs are available|^AssertionError: Torch not compiled with CUDA enabled"
            r"|CUDA driver version is insufficient|Invalid device id|invalid device ordinal"
            r"|TransformerEngine needs CUDA|Cannot access accelerator device when none is available"
        ),
        "the GPUs that it asks for",
    ),
    _Lack(re.compile(r"fused_weight_gradient_mlp_cuda module is not found"), "apex's fused kernels"),
    _Lack(
        re.compile(
            r"OfflineModeIsEnabled|outgoing traffic has been disabled|couldn't connect to 'https://huggingface\.co'"
            r"|LocalEntryNotFoundError|Name or service not known|Temporary failure in name resolution"
            r"|Network is unreachable"
        ),
        "a way to the network",
    ),
    _Lack(re.compile(r"No space left on device|Disk quota exceeded"), "room on the disk"),
)


def missing_package(text: str) -> str:
    """The package whose absence an import error tells; empty for none, and for the trees' own modules."""
    found = [match["module"] for match in _MODULE.finditer(text)]
    return found[-1] if found and not _is_ours(found[-1]) else ""


def _is_ours(module: str) -> bool:
    top, _, rest = module.partition(".")
    return top in _OURS or (top == "megatron" and rest.partition(".")[0] in _MEGATRON)


def lacking(error: str) -> str:
    """What the environment lacks, by the error with its kind, `RuntimeError: ...`; empty when it is not to blame."""
    if error.startswith(_CLAIMS) and not error.startswith(_OF_TORCH):
        return ""
    for missing in _LACKS:
        if missing.pattern.search(error):
            return missing.clause
    package = _package(error)
    return f"package {package}" if package else ""


def _package(error: str) -> str:
    message = _UNAVAILABLE.search(error)
    if message is not None:
        return message["first"] or message["second"]
    first = error.partition("\n")[0]
    return missing_package(first) if first.startswith(("ModuleNotFoundError", "ImportError")) else ""


def skip_reason(missing: str) -> str:
    """The reason that stands for a test which its environment kept from saying anything."""
    return f"its environment lacks {missing}"
