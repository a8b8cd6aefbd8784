"""Which lines of a block are worth reading: the seam behind which a native multi-literal matcher may stand."""

from collections.abc import Sequence
from typing import Protocol


class Prefilter(Protocol):
    """Finds the literals that it was built for."""

    def hits(self, block: bytes) -> Sequence[tuple[int, int]]:
        """(offset, literal) for each line and literal that occurs in it, sorted.

        `offset` is any byte of an occurrence; an occurrence repeated on a line may be left out. Every
        implementation names the same pairs of line and literal, for the answers may not depend on it.
        """
        ...


class FindPrefilter:
    """The portable matcher: one substring search for each literal, at memory speed when it is rare."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._literals = tuple(enumerate(literals))

    def hits(self, block: bytes) -> list[tuple[int, int]]:
        """See `Prefilter`."""
        found: list[tuple[int, int]] = []
        for index, literal in self._literals:
            at = block.find(literal)
            while at >= 0:
                found.append((at, index))
                line_end = block.find(b"\n", at)
                at = block.find(literal, line_end) if line_end >= 0 else -1
        found.sort()
        return found
