"""Read a console log of any size once, in bounded memory, into `LogFacts`.

Blocks of whole lines go through a prefilter; only lines that hold one of `LITERALS` are decoded, and every
line while a traceback or a printed configuration is open. Line feeds are counted in bulk. Kept are at most
the first `MAX_STEPS` metric lines (and always the last), `MAX_CONFIGS` configurations, 200 errors, and small
numbers of everything else; what is repeated only moves counters.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from verl_e2e.core.log.decoding import LogDecoder
from verl_e2e.core.log.ends import TAIL_LINES
from verl_e2e.core.log.lines import LINE_CAP, Line, decode, parse_line, parse_text
from verl_e2e.core.log.literals import LITERALS, Literal, Mark
from verl_e2e.core.log.prefilter import FindPrefilter, Prefilter
from verl_e2e.core.log.records import LINES_BACK
from verl_e2e.core.log.refusals import may_refuse
from verl_e2e.core.log.runs import LogBook
from verl_e2e.core.log.unwrap import RECENT_LINES, Unwrapper
from verl_e2e.core.model.facts import Excerpt, LogFacts, LoggedError
from verl_e2e.core.model.stages import Stage

# What is learned from lines that begin within so many bytes is applied to the lines before them too.
HEAD = 64 * 1024
MAX_LEARNED = 32
WINDOW = 32 * 1024
# Where a launcher joins in, a few lines pass before its prefix is learned.
FORGIVEN_LINES = 128
_LITERAL_BYTES = tuple(literal.text.encode() for literal in LITERALS)
_VARIABLES = frozenset(index for index, literal in enumerate(LITERALS) if literal.mark is Mark.VARIABLE)
_REFUSALS = frozenset(index for index, literal in enumerate(LITERALS) if literal.mark is Mark.REFUSED)
# A recorder may have written the time of day before what the shell echoes.
_ECHO = re.compile(rb"(?:\d\d:\d\d:\d\d )?(?=\+{1,4} )")


def literal_bytes() -> tuple[bytes, ...]:
    """The literals that a prefilter for `Scanner` must find, in the order of `LITERALS`."""
    return _LITERAL_BYTES


def scan(chunks: Iterable[bytes], prefilter: Prefilter | None = None) -> LogFacts:
    """All facts of a complete log given in chunks of any size."""
    scanner = Scanner(prefilter)
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner.finish()


class Scanner:
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
        self._held: list[int] = []
        self._first: Excerpt | None = None
        self._last: tuple[int, bytes] | None = None
        self._book = LogBook(self._lines_before)
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
        self._pending = ends_of(chunk[cut:])

    def finish(self) -> LogFacts:
        """The facts of the whole log, its last line included when no line feed ends it."""
        self._take_text(self._decoder.finish())
        cut = bool(self._pending)
        if cut:
            self._scan(self._pending + b"\n")
            self._pending = b""
        self._book.close_all()
        return replace(self.facts(), cut_line=cut)

    def facts(self) -> LogFacts:
        """Everything known so far."""
        last = None if self._last is None else self._quoted(*self._last)
        return self._book.facts(self._lines, self._first, last, self._tail())

    @property
    def stage(self) -> Stage | None:
        """The stage that the run is in now, None before the first sign of one."""
        return self._book.run.stood

    @property
    def step(self) -> int | None:
        """The last step whose metrics were printed."""
        return self._book.run.last_step.step if self._book.run.last_step is not None else None

    @property
    def marker(self) -> int:
        """The line of the last sign of progress: a stage, a step, a bar, a checkpoint; 0 when none."""
        return self._book.run.marker

    @property
    def completed(self) -> Excerpt | None:
        """The line that shows that the requested steps completed."""
        return self._book.run.completed

    @property
    def fatal(self) -> LoggedError | None:
        """The error after which the run cannot complete: the driver's exception or a dead engine."""
        return self._book.fatal()

    @property
    def unrecoverable(self) -> Excerpt | None:
        """A fact that no later event can fix: LoRA was asked for and its adapter has no parameters."""
        return self._book.unrecoverable()

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
        number, at, position, learned = self._lines, 0, 0, self._unwrapper.learned
        while True:
            opened = self._is_open
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
            if not self._settled(number, block, start, end, marks, opened=opened):
                self._take(number, block, start, end, marks)
            if self._unwrapper.learned != learned:
                learned = self._unwrapper.learned
                self._book.understood(number - FORGIVEN_LINES)
                if self._size + start < HEAD and learned <= MAX_LEARNED:
                    return False
            position = end + 1
        self._lines = number + block.count(b"\n", position)
        self._remember_ends(block)
        return True

    @property
    def _is_open(self) -> bool:
        return self._book.is_open or self._unwrapper.pending

    def _take(self, number: int, block: bytes, start: int, end: int, marks: list[int]) -> None:
        self._at = (block, start)
        self._pieces = []
        raw = decode(ends_of(block[start:end]))
        if not marks and self._unwrapper.bare:
            self._book.take(parse_text(number, raw, raw), ())
            return
        known: Line | None = None
        if self._unwrapper.bare and not self._held:
            known = parse_text(number, raw, raw)
            if not known.driver:
                # The line begins with a process's name, so no launcher's prefix is before it and none is to be learned.
                self._book.take(known, _literals(tuple(marks)))
                self._pieces.append(known)
                return
        marks += self._held
        pieces = self._unwrapper.pieces(raw, self._recent if marks else None)
        self._held = [] if pieces else marks
        literals = _literals(tuple(marks))
        for piece in pieces:
            # Nothing was taken off of a line that is still the raw one.
            if known is not None and piece.text is raw:
                line = known
            else:
                line = parse_text(number, piece.text, piece.whole, piece.label)
            self._book.take(line, literals)
            self._pieces.append(line)
            if piece.strange:
                self._book.misread(line)

    def _settled(self, number: int, block: bytes, start: int, end: int, marks: list[int], *, opened: bool) -> bool:
        """Whether the line need not be read as a whole: one that only echoes variables, or says nothing of weights."""
        if not marks or self._held or not self._unwrapper.bare or (opened and self._book.reads_driver):
            return False
        if marks[0] in _VARIABLES and _VARIABLES.issuperset(marks):
            before = _ECHO.match(block, start)
            if before is not None:
                self._book.echoed(number, decode(ends_of(block[before.end() : end])))
            return before is not None
        return not opened and _REFUSALS.issuperset(marks) and not may_refuse(decode(ends_of(block[start:end])))

    def _recent(self, count: int = RECENT_LINES) -> list[str]:
        """The last `count` lines above the one that is read that are not empty, of those that a window holds whole."""
        block, start = self._at
        window = (self._above + block[max(0, start - WINDOW) : start])[-WINDOW:]
        # The first line of a full window may have lost its head.
        rows = window.split(b"\n")[len(window) >= WINDOW : -1]
        texts = (decode(row) for row in rows[-2 * count :])
        return [text for text in texts if text.strip()][-count:]

    def _tail(self) -> list[Line]:
        """The last lines that are not empty, of those that the window holds whole."""
        rows = self._above.split(b"\n")[len(self._above) >= WINDOW : -1]
        numbered = enumerate(rows, self._lines - len(rows) + 1)
        kept = [(number, decode(row)) for number, row in numbered if row.strip()][-TAIL_LINES:]
        return [
            parse_text(number, piece.text, piece.whole, piece.label)
            for number, text in kept
            for piece in self._unwrapper.glance(text)
        ]

    def _lines_before(self) -> Iterator[Line]:
        """The lines above the one that is being read, the nearest first."""
        yield from reversed(self._pieces)
        for text in reversed(self._recent(LINES_BACK)):
            for piece in reversed(self._unwrapper.glance(text)):
                yield parse_text(0, piece.text, piece.whole, piece.label)

    def _quoted(self, number: int, raw: bytes) -> Excerpt:
        text = decode(raw)
        whole = next((piece.whole for piece in reversed(self._unwrapper.glance(text))), text)
        return parse_text(number, whole, whole).excerpt()

    def _remember_ends(self, block: bytes) -> None:
        self._above = (self._above + block[-WINDOW:])[-WINDOW:]
        if self._first is None:
            self._first = parse_line(1, ends_of(block[: block.index(b"\n")])).excerpt()
        tail = block[-LINE_CAP:]
        stripped = tail.rstrip()
        if stripped:
            after = tail.count(b"\n", len(stripped))
            start = stripped.rfind(b"\n") + 1
            self._last = (self._lines - after + 1, stripped[start:])
        self._size += len(block)


@lru_cache(maxsize=4096)
def _literals(marks: tuple[int, ...]) -> tuple[Literal, ...]:
    """The literals of a line, each once, in the order of the table."""
    return tuple(LITERALS[index] for index in sorted(set(marks)))


def ends_of(raw: bytes) -> bytes:
    """A line as it is read: whole up to `LINE_CAP` bytes, else its head and its tail."""
    half = LINE_CAP // 2
    return raw if len(raw) <= LINE_CAP else raw[:half] + raw[-half:]
