"""Recognize files that are not console logs by their first bytes, so that their bytes are never judged as text."""

import re
from dataclasses import dataclass
from typing import Final

SNIFFED: Final = 8192
"""How many of the first bytes are looked at."""

_UNPACK: Final = "Unpack it and give the console log that is in it."
_GIVE_LOG: Final = "Give the console log that the run printed."

# Signatures as the formats' own specifications and file(1) have them: offset, bytes, name, what to do.
_SIGNATURES: Final = (
    (0, b"PK\x03\x04", "a zip archive", _UNPACK),
    (0, b"PK\x05\x06", "an empty zip archive", _GIVE_LOG),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"BZh", "a bzip2 file", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", _UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (0, b"\x04\x22\x4d\x18", "an LZ4 file", _UNPACK),
    (0, b"\x1f\x9d", "a file of compress(1)", _UNPACK),
    (0, b"\x1f\x8b", "a gzip file", _UNPACK),
    (0, b"\xfd7zXZ\x00", "an xz file", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard file", _UNPACK),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", _GIVE_LOG),
    (0, b"\xff\xd8\xff", "a JPEG image", _GIVE_LOG),
    (0, b"GIF8", "a GIF image", _GIVE_LOG),
    (0, b"%PDF-", "a PDF document", _GIVE_LOG),
    (0, b"SQLite format 3\x00", "an SQLite database", _GIVE_LOG),
    (0, b"PAR1", "a Parquet file", _GIVE_LOG),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", _GIVE_LOG),
    (0, b"\x93NUMPY", "a NumPy array", _GIVE_LOG),
    (0, b"GGUF", "a GGUF model file", _GIVE_LOG),
    (0, b"\x00asm", "a WebAssembly module", _GIVE_LOG),
)
_PICKLE: Final = re.compile(rb"\x80[\x02-\x05][^\x20-\x7e]")
_SAFETENSORS: Final = re.compile(rb"[\x00-\xff]{3}[\x00-\x05]\x00{4}\{ *\"")
_ELF_KINDS: Final = {1: "an object file", 2: "a program", 3: "a program or shared library", 4: "a core dump"}
# A crash or a rotation that truncates leaves runs of zero bytes in a log.
_ZEROS: Final = re.compile(rb"\x00{32,}")
_CONTROL: Final = bytes(byte for byte in range(32) if byte not in b"\x00\x07\x08\t\n\x0b\x0c\r\x1b") + b"\x7f"
_MOST_ZEROS, _MOST_CONTROL = 0.05, 0.05


@dataclass(frozen=True, slots=True)
class Foreign:
    """Something that is not text."""

    name: str
    """What it is, with its article."""
    hint: str
    """What to do, as a sentence."""


def foreign(head: bytes) -> Foreign | None:
    """What a file is whose first bytes are `head`, None when it may be a console log in any encoding."""
    if head.startswith(b"\x7fELF"):
        return Foreign(f"{_elf(head)} (ELF)", _GIVE_LOG)
    if head.startswith(b"PK\x03\x04") and (b"/data.pkl" in head or b"/version" in head):
        return Foreign("a PyTorch checkpoint", _GIVE_LOG)
    for offset, signature, name, hint in _SIGNATURES:
        if head.startswith(signature, offset):
            return Foreign(name, hint)
    if _SAFETENSORS.match(head):
        return Foreign("a safetensors file", _GIVE_LOG)
    if _PICKLE.match(head):
        return Foreign("a Python pickle, such as an older PyTorch checkpoint", _GIVE_LOG)
    return Foreign("a binary file", _GIVE_LOG) if _is_binary(head[:SNIFFED]) else None


def _elf(head: bytes) -> str:
    kind = head[16:18] if head[5:6] == b"\x02" else head[17:15:-1]
    return _ELF_KINDS.get(int.from_bytes(kind, "big"), "a binary file")


def _is_binary(head: bytes) -> bool:
    if wide_encoding(head) is not None:
        return False
    rest = _ZEROS.sub(b"", head)
    if not rest:
        return False
    control = len(rest) - len(rest.translate(None, _CONTROL))
    return rest.count(0) > _MOST_ZEROS * len(rest) or control > _MOST_CONTROL * len(rest)


def wide_encoding(head: bytes) -> str | None:
    """The encoding of a text whose units are wider than a byte; with or without a byte order mark, else None."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    # The first characters of a console log are ASCII, whatever the language of the rest.
    return next((name for shape, name in _UNMARKED if shape.match(head)), None)


_MARKS: Final = (
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_ASCII: Final = rb"[\x07-\x0d\x1b\x20-\x7e]"
_UNMARKED: Final = tuple(
    (re.compile(shape), name)
    for shape, name in (
        (_ASCII + rb"\x00\x00\x00", "utf-32-le"),
        (rb"\x00\x00\x00" + _ASCII, "utf-32-be"),
        (rb"(?:" + _ASCII + rb"\x00){2}", "utf-16-le"),
        (rb"(?:\x00" + _ASCII + rb"){2}", "utf-16-be"),
    )
)
