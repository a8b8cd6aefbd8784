"""Read a console log of any size once, in bounded memory, into `LogFacts`.

Blocks of whole lines go through a prefilter; only lines that hold one of `LITERALS` are decoded, and every
line while a traceback or a printed configuration is open. Line feeds are counted in bulk. Kept are at most
the first `MAX_STEPS` metric lines (and always the last), `MAX_CONFIGS` configurations, 200 errors, and small
numbers of everything else; what is repeated only moves counters.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Protocol

from verl_e2e.core.consumer.consumer import Literal
from verl_e2e.core.log.errors import TAIL_LINES
from verl_e2e.core.log.fold import LogFold
from verl_e2e.core.log.lines import LINE_CAP, RECENT_LINES, Line, Unwrapper, decode, parse_line, parse_text
from verl_e2e.core.log.literals import LITERALS
from verl_e2e.core.log.traceback import LINES_BACK
from verl_e2e.core.model.facts import Excerpt, LogFacts, LoggedError
from verl_e2e.core.model.outcome import Stage

SNIFFED: Final = 8192
"""How many of the first bytes are looked at."""

# Signatures as the formats' own specifications and file(1) have them: offset, bytes, name.
_ARCHIVES: Final = (
    (0, b"PK\x03\x04", "a zip archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"BZh", "a bzip2 file"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"\xfd7zXZ\x00", "an xz file"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard file"),
)
_GIVE: Final = "Give the console log that the run printed."
# What begins like a text or an archive and is neither a log nor holds one.
_OTHERS: Final = (
    (re.compile(rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff"), "a UTF-32 text", "Save it as UTF-8."),
    (re.compile(rb"%PDF-"), "a PDF document", _GIVE),
    # The length of the header comes first, in eight bytes.
    (re.compile(rb'(?!\x00{4}).{4}\x00{4}\{"', re.DOTALL), "a safetensors file", _GIVE),
    (re.compile(rb"PK\x03\x04.{26}[\w.-]{1,100}/data\.pkl", re.DOTALL), "a PyTorch checkpoint", _GIVE),
)
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
    for pattern, name, hint in _OTHERS:
        if pattern.match(head):
            return Foreign(name, hint)
    for offset, signature, name in _ARCHIVES:
        if head.startswith(signature, offset):
            return Foreign(name, "Unpack it and give the console log that is in it.")
    head = head[:SNIFFED]
    rest = b"" if wide_encoding(head) is not None else _ZEROS.sub(b"", head)
    control = len(rest) - len(rest.translate(None, _CONTROL))
    if rest.count(0) > _MOST_ZEROS * len(rest) or control > _MOST_CONTROL * len(rest):
        return Foreign("a binary file", _GIVE)
    return None


def wide_encoding(head: bytes) -> str | None:
    """The encoding of a text whose units are wider than a byte; with or without a byte order mark, else None."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    # The first characters of a console log are ASCII, whatever the language of the rest.
    return next((name for shape, name in _UNMARKED if shape.match(head)), None)


_MARKS: Final = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_ASCII: Final = rb"[\x07-\x0d\x1b\x20-\x7e]"
_UNMARKED: Final = (
    (re.compile(rb"(?:" + _ASCII + rb"\x00){2}"), "utf-16-le"),
    (re.compile(rb"(?:\x00" + _ASCII + rb"){2}"), "utf-16-be"),
)
_SNIFFED: Final = 4


class LogDecoder:
    """Takes bytes cut anywhere, and gives UTF-8; what is UTF-8 already goes through as it is."""

    def __init__(self) -> None:
        self._start: bytes | None = b""
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, chunk: bytes, *, final: bool = False) -> bytes:
        """The text that is complete after this chunk; `final` for the end of the log."""
        if self._start is not None:
            chunk = self._start + chunk
            if len(chunk) < _SNIFFED and not final:
                self._start = chunk
                return b""
            self._start = None
            encoding = wide_encoding(chunk)
            chunk = chunk.removeprefix("\ufeff".encode(encoding or "utf-8"))
            self._decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)("replace")
        return chunk if self._decoder is None else self._decoder.decode(chunk, final).encode()


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


# What is learned from lines that begin within so many bytes is applied to the lines before them too.
HEAD = 64 * 1024
MAX_LEARNED = 32
_WINDOW = 32 * 1024
# Where a launcher joins in, a few lines pass before its prefix is learned.
FORGIVEN_LINES = 128
_LITERAL_BYTES = tuple(literal.text.encode() for literal in LITERALS)


def literal_bytes() -> tuple[bytes, ...]:
    """The literals that a prefilter for `LogScanner` must find, in the order of `LITERALS`."""
    return _LITERAL_BYTES


def scan(chunks: Iterable[bytes], prefilter: Prefilter | None = None) -> LogFacts:
    """All facts of a complete log given in chunks of any size."""
    scanner = LogScanner(prefilter)
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner.finish()


class LogScanner:
    """The incremental form of `scan`, for a log that is still being written.

    `feed` takes bytes cut anywhere; `facts` may be asked at any time and leaves an unfinished last line out.
    """

    def __init__(self, prefilter: Prefilter | None = None) -> None:
        self._prefilter = prefilter or FindPrefilter(_LITERAL_BYTES)
        self._decoder = LogDecoder()
        self._pending = b""
        self._unwrapper = Unwrapper()
        self._head: bytes | None = b""
        self._begin()

    def _begin(self) -> None:
        """Start reading at the first line."""
        self._unwrapper.begin()
        self._lines = 0
        self._size = 0
        self._first: Excerpt | None = None
        self._last: tuple[int, bytes] | None = None
        self._book = LogFold(self._lines_before)
        self._above = b""
        self._at = (b"", 0)
        # The earlier lines of the same record.
        self._pieces: list[Line] = []

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        self._take_text(self._decoder.feed(chunk))

    def _take_text(self, chunk: bytes) -> None:
        if self._pending:
            chunk = self._pending + chunk
        cut = chunk.rfind(b"\n") + 1
        if cut:
            self._scan(chunk[:cut] if cut < len(chunk) else chunk)
        self._pending = without_middle(chunk[cut:])

    def finish(self) -> LogFacts:
        """The facts of the whole log, its last line included when no line feed ends it."""
        self._take_text(self._decoder.feed(b"", final=True))
        cut = bool(self._pending)
        if cut:
            self._scan(self._pending + b"\n")
            self._pending = b""
        self._book.latest.close_all()
        return replace(self.facts(), cut_line=cut)

    def facts(self) -> LogFacts:
        """Everything known so far."""
        last = None
        if self._last is not None:
            number, raw = self._last
            text = decode(raw)
            pieces = self._unwrapper.pieces(text, text, learn=False)
            whole = pieces[-1].whole if pieces else text
            last = parse_text(number, whole, whole).excerpt()
        # The last lines that are not empty, of those that the window holds whole.
        rows = self._above.split(b"\n")[len(self._above) >= _WINDOW : -1]
        numbered = enumerate(rows, self._lines - len(rows) + 1)
        tail = [
            parse_text(number, piece.text, piece.whole, piece.label)
            for number, row in [(number, decode(row)) for number, row in numbered if row.strip()][-TAIL_LINES:]
            for piece in self._unwrapper.pieces(row, row, learn=False)
        ]
        return self._book.facts(self._lines, self._first, last, tail)

    @property
    def stage(self) -> Stage | None:
        """The stage that the run is in now, None before the first sign of one."""
        return self._book.latest.stood

    @property
    def step(self) -> int | None:
        """The last step whose metrics were printed."""
        return self._book.latest.last_step.step if self._book.latest.last_step is not None else None

    @property
    def marker(self) -> int:
        """The line of the last sign of progress: a stage, a step, a bar, a checkpoint; 0 when none."""
        return self._book.latest.marker

    @property
    def fatal(self) -> LoggedError | None:
        """The error after which the run cannot complete: the driver's exception or a dead engine."""
        return self._book.latest.fatal()

    @property
    def unrecoverable(self) -> Excerpt | None:
        """A fact that no later event can fix: LoRA was asked for and its adapter has no parameters."""
        return self._book.latest.unrecoverable()

    def _scan(self, block: bytes) -> None:
        if self._head is not None:
            self._head += block
        while not self._pass(block):
            # What was learned may be how the lines before begin too.
            assert self._head is not None
            block = self._head
            self._begin()
        if self._size > HEAD:
            self._head = None

    def _pass(self, block: bytes) -> bool:
        """Read a block of whole lines; False when the log is to be read again from its start with what was learned."""
        hits = self._prefilter.hits(block)
        number, at, position, learned = self._lines, 0, 0, self._unwrapper.learned.count
        while True:
            opened = self._book.latest.is_open
            if at >= len(hits) and not (opened and position < len(block)):
                break
            if opened:
                start = position
            else:
                start = block.rfind(b"\n", position, hits[at][0]) + 1 or position
                number += block.count(b"\n", position, start)
            end = block.find(b"\n", start)
            number += 1
            marks: list[int] = []
            while at < len(hits) and hits[at][0] < end:
                marks.append(hits[at][1])
                at += 1
            self._take(number, block, start, end, marks)
            if self._unwrapper.learned.count != learned:
                learned = self._unwrapper.learned.count
                self._book.latest.understood(number - FORGIVEN_LINES)
                if self._size + start < HEAD and learned <= MAX_LEARNED:
                    return False
            position = end + 1
        self._lines = number + block.count(b"\n", position)
        self._above = (self._above + block[-_WINDOW:])[-_WINDOW:]
        if self._first is None:
            self._first = parse_line(1, without_middle(block[: block.index(b"\n")])).excerpt()
        tail = block[-LINE_CAP:]
        stripped = tail.rstrip()
        if stripped:
            after = tail.count(b"\n", len(stripped))
            self._last = (self._lines - after + 1, stripped[stripped.rfind(b"\n") + 1 :])
        self._size += len(block)
        return True

    def _take(self, number: int, block: bytes, start: int, end: int, marks: Sequence[int]) -> None:
        self._at = (block, start)
        self._pieces = []
        raw = decode(without_middle(block[start:end]))
        literals = _literals(tuple(marks))
        if self._unwrapper.bare:
            line = parse_text(number, raw, raw)
            if not marks or not line.driver:
                # A line that begins with a process's name has no launcher's prefix before it, nor can one be learned.
                self._book.take(line, literals)
                return
        for piece in self._unwrapper.pieces(raw, raw, self._recent if marks else None):
            line = parse_text(number, piece.text, piece.whole, piece.label)
            self._book.take(line, literals)
            self._pieces.append(line)
            if piece.strange:
                self._book.latest.take_misread(line)

    def _recent(self, count: int = RECENT_LINES) -> list[str]:
        """The last `count` lines above the one that is read that are not empty, of those that a window holds whole."""
        block, start = self._at
        window = (self._above + block[max(0, start - _WINDOW) : start])[-_WINDOW:]
        # The first line of a full window may have lost its head.
        rows = window.split(b"\n")[len(window) >= _WINDOW : -1]
        texts = (decode(row) for row in rows[-2 * count :])
        return [text for text in texts if text.strip()][-count:]

    def _lines_before(self) -> Iterator[Line]:
        """The lines above the one that is being read, the nearest first."""
        yield from reversed(self._pieces)
        for text in reversed(self._recent(LINES_BACK)):
            for piece in reversed(self._unwrapper.pieces(text, text, learn=False)):
                yield parse_text(0, piece.text, piece.whole, piece.label)


@lru_cache(maxsize=4096)
def _literals(marks: tuple[int, ...]) -> tuple[Literal, ...]:
    """The literals of a line, each once, in the order of the table."""
    return tuple(LITERALS[index] for index in sorted(set(marks)))


def without_middle(raw: bytes) -> bytes:
    """A line as it is read: whole up to `LINE_CAP` bytes, else its head and its tail."""
    half = LINE_CAP // 2
    return raw if len(raw) <= LINE_CAP else raw[:half] + raw[-half:]
