"""What GitHub answered before: it confirms an unchanged answer without counting the request.

GitHub gives each answer a tag. A request that names the tag is answered with 304 and without a body when nothing
changed, and such a request does not count against the 5,000 an hour. GitHub's tags depend on the token, so a new token,
once an hour, reads everything again once.
"""

import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass

# At 1,000 open pull requests about 5,000 answers of up to 30 KB, which shrink to a tenth.
_MOST_BYTES = 32 * 1024 * 1024
# One answer may take this part, so that none drives all others out.
_LARGEST_PART = 16
# What Python's objects around one answer take.
_OBJECTS = 600


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """An answer that GitHub may confirm."""

    # GitHub's tag of it.
    etag: str
    # The `link` header, which names the next page; empty where there is none.
    link: str
    # The body, compressed.
    packed: bytes

    @property
    def body(self) -> str:
        """The body as it came."""
        return zlib.decompress(self.packed).decode("utf-8", "surrogatepass")


class KnownAnswers:
    """The latest answers by the address that was asked, at most `most_bytes` of them together; shared by threads."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, KnownAnswer] = OrderedDict()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """How much memory they take, about."""
        return self._bytes

    def find(self, address: str) -> KnownAnswer | None:
        """The answer that was kept for an address."""
        with self._lock:
            found = self._answers.get(address)
            if found is not None:
                self._answers.move_to_end(address)
            return found

    def keep(self, address: str, *, etag: str, link: str, body: str) -> None:
        """Keep an answer in the place of the one before; the longest unused ones make way."""
        packed = zlib.compress(body.encode("utf-8", "surrogatepass"), 1)
        answer = KnownAnswer(etag, link, packed)
        with self._lock:
            self._remove(address)
            if _size(address, answer) * _LARGEST_PART > self._most:
                return
            self._answers[address] = answer
            self._bytes += _size(address, answer)
            while self._bytes > self._most:
                self._remove(next(iter(self._answers)))

    def _remove(self, address: str) -> None:
        found = self._answers.pop(address, None)
        if found is not None:
            self._bytes -= _size(address, found)


def _size(address: str, answer: KnownAnswer) -> int:
    return _OBJECTS + len(address) + len(answer.etag) + len(answer.link) + len(answer.packed)
