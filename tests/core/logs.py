"""The recorded logs that several tests read."""

import lzma
from functools import cache

from tests.fakes.places import FIXTURES
from verl_e2e.core.log.scan import LogScanner
from verl_e2e.core.model.facts import LogFacts

FOLDER = FIXTURES / "logs"
NAMES = tuple(sorted(path.name.removesuffix(".log.xz") for path in FOLDER.glob("*.log.xz")))


@cache
def recorded(name: str) -> bytes:
    return lzma.decompress((FOLDER / f"{name}.log.xz").read_bytes())


def lines(*texts: str) -> list[bytes]:
    return ["".join(text + "\n" for text in texts).encode()]


def fed(log: bytes, size: int) -> LogFacts:
    """The facts of a log that arrives in pieces of a size."""
    scanner = LogScanner()
    for start in range(0, len(log), size):
        scanner.feed(log[start : start + size])
    return scanner.finish()
