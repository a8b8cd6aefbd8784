"""Imports that failed because something is not there: which file imported what, and where the two lie.

Python names the module in the message of the exception, and the file of the import is the innermost frame. Both in
Megatron-Bridge or Megatron-LM means that the trees under test do not fit together: nothing missing on a host can be
the reason. A module of an installed copy, a compiled extension, and a part of Megatron-LM that exists only with an
optional package are left to the host.
"""

import re
from dataclasses import dataclass

from verl_e2e.core.model.facts import LoggedError

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
_FILE = re.compile(r"(?:^|/)megatron/(?:bridge|core)/")
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
    if error.kind == "AttributeError" and _importing(error) and (without := _NO_ATTRIBUTE.match(message)):
        return BrokenImport(without[1], without[2])
    return None


def between_trees(error: LoggedError) -> bool:
    """Whether Megatron-Bridge or Megatron-LM imports what neither of them has."""
    broken = broken_import(error)
    if broken is None or not _raised_in_trees(error):
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
    return _FILE.search(path) is not None and _INSTALLED.search(path) is None


def _raised_in_trees(error: LoggedError) -> bool:
    """Whether the innermost frame is a file of the trees."""
    if error.frame is None or not in_trees(error.frame.path):
        return False
    innermost = error.calls[-1].rpartition(":")[0] if error.calls else ""
    return bool(innermost) and error.frame.path.endswith(innermost)


def _importing(error: LoggedError) -> bool:
    """Whether the innermost frame is the body of a module."""
    return error.frame is not None and error.frame.function in _IMPORTING
