"""Read a console log of any size once, in bounded memory, into `LogFacts`.

Blocks of whole lines go through a prefilter; only lines that hold one of `LITERALS` are decoded, and every
line while a traceback or a printed configuration is open. Line feeds are counted in bulk. Kept are at most
the first `MAX_STEPS` metric lines (and always the last), `MAX_CONFIGS` configurations, 200 errors, and small
numbers of everything else; what is repeated only moves counters.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bot.core.facts import Excerpt, LogFacts, LoggedError
from bot.core.log import LINE_CAP, Line, parse_line
from bot.core.scan.literals import LITERALS
from bot.core.scan.prefilter import FindPrefilter, Prefilter
from bot.core.scan.records import LINES_BACK, WINDOW
from bot.core.scan.runs import LogBook
from bot.core.stages import Stage

_LITERAL_BYTES = tuple(literal.text.encode() for literal in LITERALS)


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
        self._pending = b""
        self._lines = 0
        self._first: Excerpt | None = None
        self._last: tuple[int, bytes] | None = None
        self._book = LogBook(self._lines_before)
        self._above = b""
        self._at = (b"", 0)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        if self._pending:
            chunk = self._pending + chunk
        cut = chunk.rfind(b"\n") + 1
        if cut:
            self._scan(chunk[:cut] if cut < len(chunk) else chunk)
        self._pending = ends_of(chunk[cut:])

    def finish(self) -> LogFacts:
        """The facts of the whole log, its last line included when no line feed ends it."""
        cut = bool(self._pending)
        if cut:
            self._scan(self._pending + b"\n")
            self._pending = b""
        self._book.close_all()
        return replace(self.facts(), cut_line=cut)

    def facts(self) -> LogFacts:
        """Everything known so far."""
        last = None if self._last is None else parse_line(*self._last).excerpt()
        return self._book.facts(self._lines, self._first, last)

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
    def hopeless(self) -> Excerpt | None:
        """A fact that no later event can mend: LoRA was asked for and its adapter has no parameters."""
        return self._book.hopeless()

    def _scan(self, block: bytes) -> None:
        hits = self._prefilter.hits(block)
        number, at, position = self._lines, 0, 0
        while at < len(hits) or (self._book.is_open and position < len(block)):
            if self._book.is_open:
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
            position = end + 1
        self._lines = number + block.count(b"\n", position)
        self._remember_ends(block)

    def _take(self, number: int, block: bytes, start: int, end: int, marks: Sequence[int]) -> None:
        self._at = (block, start)
        line = parse_line(number, ends_of(block[start:end]))
        self._book.take(line, [LITERALS[index] for index in sorted(set(marks))] if marks else ())

    def _lines_before(self) -> Iterator[Line]:
        """The lines above the one that is being read, the nearest first: those that a small window holds whole."""
        block, start = self._at
        window = block[max(0, start - WINDOW) : start]
        window = self._above[len(self._above) - max(0, WINDOW - len(window)) :] + window
        # The first line of a full window may lack its head.
        rows = window.split(b"\n")[len(window) >= WINDOW : -1]
        for raw in reversed(rows[-LINES_BACK:]):
            yield parse_line(0, raw)

    def _remember_ends(self, block: bytes) -> None:
        self._above = (self._above + block)[-WINDOW:]
        if self._first is None:
            self._first = parse_line(1, ends_of(block[: block.index(b"\n")])).excerpt()
        tail = block[-LINE_CAP:]
        stripped = tail.rstrip()
        if stripped:
            after = tail.count(b"\n", len(stripped))
            start = stripped.rfind(b"\n") + 1
            self._last = (self._lines - after + 1, stripped[start:])


def ends_of(raw: bytes) -> bytes:
    """A line as it is read: whole up to `LINE_CAP` bytes, else its head and its tail."""
    half = LINE_CAP // 2
    return raw if len(raw) <= LINE_CAP else raw[:half] + raw[-half:]
