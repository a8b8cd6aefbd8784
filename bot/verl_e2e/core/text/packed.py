"""Documents as one line of text, compressed: as an input of a workflow or the text of a check run carries them."""

import base64
import zlib


class UnpackError(ValueError):
    """A text that `pack` did not make, that is cut, or that unpacks to more than is taken."""


def pack_text(document: str) -> str:
    """The document as one line of ASCII."""
    return base64.b64encode(zlib.compress(document.encode(), 9)).decode("ascii")


def unpack_text(text: str, limit_bytes: int) -> bytes:
    """The document of a packed text, blanks and line ends in it aside. Never holds more than `limit_bytes` of it."""
    inflater = zlib.decompressobj()
    try:
        document = inflater.decompress(base64.b64decode("".join(text.split()), validate=True), limit_bytes)
    except (ValueError, zlib.error) as error:
        raise UnpackError(str(error)) from None
    if not inflater.eof:
        raise UnpackError(f"it is cut, or larger than {limit_bytes:,} bytes")
    return document
