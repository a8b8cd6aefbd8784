"""What is missing from a test's environment, by the error that ended the test: it says nothing about the change.

The rules are tried in order, on the error itself and never on the source that it quotes.
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
class _Missing:
    pattern: re.Pattern[str]
    clause: str


_MISSING = (
    _Missing(
        re.compile(
            r"Found no NVIDIA driver|No CUDA GPUs are available|^AssertionError: Torch not compiled with CUDA enabled"
            r"|CUDA driver version is insufficient|Invalid device id|invalid device ordinal"
            r"|TransformerEngine needs CUDA|Cannot access accelerator device when none is available"
        ),
        "the GPUs that it asks for",
    ),
    _Missing(re.compile(r"fused_weight_gradient_mlp_cuda module is not found"), "apex's fused kernels"),
    _Missing(
        re.compile(
            r"OfflineModeIsEnabled|outgoing traffic has been disabled|couldn't connect to 'https://huggingface\.co'"
            r"|LocalEntryNotFoundError|Name or service not known|Temporary failure in name resolution"
            r"|Network is unreachable"
        ),
        "a way to the network",
    ),
    _Missing(re.compile(r"EADDRINUSE|[Aa]ddress already in use"), "a port that no one else on the host uses"),
    _Missing(re.compile(r"No space left on device|Disk quota exceeded"), "room on the disk"),
)


def missing_package(text: str) -> str:
    """The package that an import error says is missing; empty for none, and for modules of the trees under test."""
    found = [match["module"] for match in _MODULE.finditer(text)]
    return found[-1] if found and not _is_ours(found[-1]) else ""


def _is_ours(module: str) -> bool:
    top, _, rest = module.partition(".")
    return top in _OURS or (top == "megatron" and rest.partition(".")[0] in _MEGATRON)


def missing_from_environment(error: str) -> str:
    """What is missing, by an error with its kind (`RuntimeError: ...`); empty when the environment is not to blame."""
    if error.startswith(_CLAIMS) and not error.startswith(_OF_TORCH):
        return ""
    for missing in _MISSING:
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
    """The reason of a skipped test that its environment kept from saying anything."""
    return f"its environment does not have {missing}"
