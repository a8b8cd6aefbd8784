"""The recorded logs that several tests read."""

import lzma
from functools import cache

from tests.fakes.places import FIXTURES

FOLDER = FIXTURES / "logs"
NAMES = tuple(sorted(path.name.removesuffix(".log.xz") for path in FOLDER.glob("*.log.xz")))


@cache
def recorded(name: str) -> bytes:
    return lzma.decompress((FOLDER / f"{name}.log.xz").read_bytes())


def lines(*texts: str) -> list[bytes]:
    return ["".join(text + "\n" for text in texts).encode()]
