"""Receives the bodies of webhooks: checks the signature, keeps long bodies on disk, and limits how many there are."""

import asyncio
import hashlib
import hmac
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile

from verl_e2e.core.pulls.webhooks import MAX_BODY

BODY_BYTES = MAX_BODY
# GitHub gives up after 10 s.
_BODY_S = 8.0
# A longer body lies on disk until its signature is checked.
_IN_MEMORY = 256 * 1024


class BodyError(Exception):
    """A body was not received to its end; `status` and `why` are for the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(eq=False, slots=True)
class _Arriving:
    source: str
    scope: asyncio.Timeout
    size: int = 0
    given_up: bool = False


class Bodies:
    """The bodies that are being received: `most` at a time, and `total_bytes` of memory and disk together.

    Over a limit, the oldest body of the source with the most bytes is given up. Behind a proxy all bodies have one
    source; then it is the oldest of all. The signature can only be checked at the end of a body. Until then, only its
    age shows that it may not come from GitHub.
    """

    def __init__(self, secret: bytes, *, most: int = 128, total_bytes: int = 512 * 1024 * 1024) -> None:
        self._secret = secret
        self._most = most
        self._total_bytes = total_bytes
        self._arriving: dict[_Arriving, None] = {}

    async def receive(self, parts: AsyncIterator[bytes], signature: str, source: str) -> bytes | None:
        """Receive a body; None when its signature is another one. Raises BodyError."""
        digest = hmac.new(self._secret, digestmod=hashlib.sha256)
        with SpooledTemporaryFile(_IN_MEMORY) as file:
            try:
                async with asyncio.timeout(_BODY_S) as scope:
                    with self._place(source, scope) as body:
                        async for part in parts:
                            self._grow(body, len(part))
                            digest.update(part)
                            file.write(part)
            except TimeoutError:
                if body.given_up:
                    raise BodyError(503, "busy") from None
                raise BodyError(408, "the body did not arrive in time") from None
            if not hmac.compare_digest(f"sha256={digest.hexdigest()}", signature):
                return None
            file.seek(0)
            return file.read()

    @contextmanager
    def _place(self, source: str, scope: asyncio.Timeout) -> Iterator[_Arriving]:
        body = _Arriving(source, scope)
        self._arriving[body] = None
        try:
            if len(self._arriving) > self._most:
                self._give_up(besides=body)
            yield body
        finally:
            del self._arriving[body]

    def _grow(self, body: _Arriving, size: int) -> None:
        body.size += size
        if body.size > BODY_BYTES:
            raise BodyError(413, "the body is larger than 25 MB")
        if sum(item.size for item in self._arriving if not item.given_up) > self._total_bytes:
            self._give_up()

    def _give_up(self, besides: _Arriving | None = None) -> None:
        """Give up the oldest body of the source that holds the most, in bytes and then in number."""
        bodies = [item for item in self._arriving if item is not besides and not item.given_up]
        if not bodies:
            return
        held: Counter[str] = Counter()
        for body in bodies:
            held[body.source] += body.size + 1
        source = max(held, key=held.__getitem__)
        oldest = next(item for item in bodies if item.source == source)
        oldest.given_up = True
        oldest.scope.reschedule(asyncio.get_running_loop().time())
