"""What a source tells besides its code: which files its texts name, and whether its functions may be compiled."""

import re

# Every byte that is not part of a file's path becomes a blank, and either quote the same one.
_PATHS_ALONE = bytes(
    byte if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_./-") else 34 if byte in b"'\"" else 32
    for byte in range(256)
)
# TorchScript, Triton, CUTLASS and Numba compile a function that Python never enters, by its source or its byte code.
_COMPILERS = (b"jit.script", b"numba", b"triton", b"cutlass")
_TORCH_JIT = re.compile(rb"(?:from|import)\s+torch\.jit\b")
# A list of names has no bound, so any such name counts in a file that imports from torch.
_FROM_TORCH, _JIT = re.compile(rb"from\s+torch\s+import\b"), re.compile(rb"(?<![.\w])jit\b")


def named_files(source: bytes) -> tuple[str, ...]:
    """The names of files with which a text in a source ends, each with the folder that it is in where that is named.

    Comments and what documentation says of a file are left out: there no quote follows the name.
    """
    words = set(source.translate(_PATHS_ALONE).split())
    quoted = (part for word in words if b'"' in word and b"." in word for part in word.split(b'"')[:-1])
    names = (name.decode("ascii").strip("./") for name in quoted if b"." in name)
    return tuple(sorted({name_tails(name)[1] for name in names}))


def name_tails(path: str) -> tuple[str, str]:
    """The name of a file, by itself and with the folder that it is in."""
    parts = path.rsplit("/", 2)
    return parts[-1], "/".join(parts[-2:])


def may_be_compiled(source: bytes) -> bool:
    """Whether a source may have functions compiled that run though Python never enters them."""
    # Hardly any source has one of these texts, and looking for a text takes a tenth of the time of an expression.
    if any(name in source for name in _COMPILERS):
        return True
    if b"jit" not in source:
        return False
    return bool(_TORCH_JIT.search(source) or (_FROM_TORCH.search(source) and _JIT.search(source)))
