"""What a test's environment lacks, read from the error that ended it: such a test says nothing about the change.

The rules are tried in order; each is held against the error itself, never against the source that it quotes.
"""

import re
from dataclasses import dataclass

SKIP_REASON = "its environment lacks "

# Top-level names of the trees under test: their absence is a fault of the trees.
_OURS = frozenset({"megatron", "verl", "tests", "examples", "scripts", "tools", "tutorials", "skills"})
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
    return found[-1] if found and found[-1].partition(".")[0] not in _OURS else ""


def lacking(error: str) -> str:
    """What the environment lacks, by the error with its kind, `RuntimeError: ...`; empty when it is not to blame."""
    if error.startswith(_CLAIMS) and not error.startswith(_OF_TORCH):
        return ""
    for lack in _LACKS:
        if lack.pattern.search(error):
            return lack.clause
    first = error.partition("\n")[0]
    package = missing_package(first) if first.startswith(("ModuleNotFoundError", "ImportError")) else ""
    return f"package {package}" if package else ""


def skip_reason(lack: str) -> str:
    """The reason that stands for a test which its environment kept from saying anything."""
    return f"{SKIP_REASON}{lack}"
