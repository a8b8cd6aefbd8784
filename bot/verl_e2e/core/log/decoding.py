"""The bytes of a log as UTF-8 lines that end in line feeds, whatever program wrote them; incremental."""

import codecs
import re
from typing import Final

from verl_e2e.core.log.content import wide_encoding

# A log without one line feed in so many bytes ends its lines with carriage returns, as old tools do.
CR_ONLY_AFTER: Final = 64 * 1024
_SNIFFED: Final = 4
_NOT_LETTERS: Final = re.compile(rb"[^A-Za-z]+")
_UTF8_MARK: Final = b"\xef\xbb\xbf"


class LogDecoder:
    """Takes bytes cut anywhere. A log in UTF-8 whose lines end in line feeds goes through as it is."""

    def __init__(self) -> None:
        self._start: bytes | None = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._undecided: bytes | None = b""
        self._returns = False
        self._return_last = False

    def feed(self, chunk: bytes) -> bytes:
        """The text that is complete after this chunk."""
        if self._start is not None:
            self._start += chunk
            if len(self._start) < _SNIFFED:
                return b""
            chunk = self._begin()
        if self._decoder is not None:
            chunk = self._decoder.decode(chunk).encode()
        return chunk if self._undecided is None and not self._returns else self._lines(chunk)

    def finish(self) -> bytes:
        """The text that is left."""
        rest = self._begin() if self._start is not None else b""
        if self._decoder is not None:
            rest = self._decoder.decode(rest, final=True).encode()
        rest = self._lines(rest) if rest else b""
        if self._undecided:
            rest, self._undecided = self._undecided, None
            rest = rest.replace(b"\r", b"\n") if _has_cr_lines(rest) else rest
        return rest

    def _begin(self) -> bytes:
        assert self._start is not None
        start, self._start = self._start, None
        encoding = wide_encoding(start)
        if encoding is not None:
            self._decoder = codecs.getincrementaldecoder(encoding)("replace")
            skip = len("\ufeff".encode(encoding))
            return start[skip:] if start.startswith("\ufeff".encode(encoding)) else start
        return start.removeprefix(_UTF8_MARK)

    def _lines(self, chunk: bytes) -> bytes:
        if self._undecided is not None:
            chunk, self._undecided = self._undecided + chunk, None
            if b"\n" in chunk:
                return chunk
            if len(chunk) <= CR_ONLY_AFTER:
                self._undecided = chunk
                return b""
            self._returns = _has_cr_lines(chunk)
        return self._with_line_feeds(chunk) if self._returns else chunk

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        """Each line end as one line feed: a return, a line feed, or both."""
        if self._return_last and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._return_last = chunk.endswith(b"\r") or (not chunk and self._return_last)
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _has_cr_lines(text: bytes) -> bool:
    """Whether carriage returns end lines here, and do not only paint one line again and again."""
    parts = [part for part in text.split(b"\r") if part.strip()]
    different = len({_NOT_LETTERS.sub(b"", part) for part in parts})
    return different > 1 and different * (5 if different < 4 else 20) >= len(parts)
