"""Console logs on disk: plain, gzip, xz or Zstandard, recognised by their first bytes, read in bounded memory.

A compressed log whose end is missing is read as far as it goes, and says so; a file that is not text is named.

Zstandard comes from `backports.zstd`, the backport of Python 3.14's own `compression.zstd`: one interface on
every version, and nothing to install from 3.14 on.
"""

import lzma
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, Protocol, Self

from verl_e2e.adapters.files.run_folder import find_log, stage_times, was_stopped
from verl_e2e.core.log.scan import SNIFFED, FindPrefilter, Prefilter, foreign, literal_bytes, scan
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.outcome import Stage

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHUNK: Final = 1 << 20
STDIN: Final = "-"
# What a decoder may take for its window; the largest preset of each program stays below it.
MEMORY_LIMIT: Final = 96 * 1024 * 1024
_ZSTD_WINDOW_LOG: Final = 26
_SKIPPABLE: Final = frozenset(bytes([0x50 + low]) + b"\x2a\x4d\x18" for low in range(16))
_PADDING: Final = b"\x00"
# Pieces or members in a row that unpack to nothing: a small file could have millions, and no bound would see them.
_MOST_EMPTY: Final = 100


class LogError(UserError):
    """A log that cannot be read: the user's mistake or a broken copy, with the fix in the last sentence."""

    def __init__(self, file: str, problem: str, fix: str) -> None:
        super().__init__(f"{file}: {problem}. {fix}")
        self.file = file
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True, slots=True)
class LogBounds:
    """How much of a log is read before it is given up."""

    total_bytes: int = 1 << 30
    """Bytes after decompression."""
    lines: int = 20_000_000
    """Line ends."""
    seconds: float = 120.0
    """From the first byte to the last, with what the reader does in between."""


class _Decoder(Protocol):
    """What `lzma` and `zstd` decompressors share."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the interface of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class LogStream(Iterator[bytes]):
    """The bytes of one log, decompressed, at most `CHUNK` at a time."""

    def __init__(self, name: str, bounds: LogBounds | None = None) -> None:
        self.truncated = False
        """Whether the compressed data ends before its end mark; known once every block was read."""
        self._name = name
        self._blocks = self._checked(self._decompressed(self._pieces()))
        if bounds is not None:
            self._blocks = self._within(self._blocks, bounds)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        return next(self._blocks)

    def _pieces(self) -> Iterator[bytes]:
        """The file or standard input as it is."""
        with ExitStack() as stack:
            if self._name == STDIN:
                if sys.stdin is None:
                    raise LogError(STDIN, "the standard input is closed", "Pipe a log into it, or name a file.")
                raw: BinaryIO = sys.stdin.buffer
            else:
                try:
                    raw = stack.enter_context(Path(self._name).open("rb"))
                except FileNotFoundError as error:
                    raise LogError(self._name, "there is no such file", "Check the path.") from error
                except IsADirectoryError as error:
                    fix = "Give the log itself; `verl-e2e judge` takes a folder."
                    raise LogError(self._name, "this is a folder", fix) from error
                except (OSError, ValueError) as error:
                    what = f"the file cannot be opened ({error})"
                    raise LogError(self._name, what, "Check path and permissions.") from error
            while True:
                try:
                    piece = raw.read(CHUNK)
                except OSError as error:
                    what = f"the file cannot be read ({error})"
                    raise LogError(self._name, what, "Copy it to a healthy disk.") from error
                if not piece:
                    return
                yield piece

    def _decompressed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        data = next(pieces, b"")
        if len(data) < 4:
            data += next(pieces, b"")
        make = _decoder_for(data)
        if make is None:
            yield from (piece for piece in (data,) if piece)
            yield from pieces
            return
        decoder, empty = make(), 0
        try:
            while True:
                out = decoder.decompress(data, CHUNK)
                data = b""
                empty = 0 if out else empty + 1
                if out:
                    yield out
                if decoder.eof:
                    # Another member may follow, behind padding.
                    data = decoder.unused_data.lstrip(_PADDING)
                    while not data:
                        piece = next(pieces, None)
                        if piece is None:
                            return
                        data, empty = piece.lstrip(_PADDING), empty + 1
                        if empty > _MOST_EMPTY:
                            break
                    decoder = make()
                elif decoder.needs_input:
                    data = next(pieces, b"")
                    if not data:
                        self.truncated = True
                        return
                if empty > _MOST_EMPTY:
                    raise EOFError("most of it unpacks to nothing")
        except (zlib.error, lzma.LZMAError, zstd.ZstdError, EOFError) as error:
            problem = f"its compressed data is broken ({error})"
            raise LogError(self._name, problem, "Copy or compress the log again.") from error

    def _checked(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The blocks, once the first bytes were seen to be no other kind of file."""
        head = b""
        while len(head) < SNIFFED and (block := next(blocks, b"")):
            head += block
        if found := foreign(head):
            raise LogError(self._name, f"this is {found.name}, not a console log", found.hint)
        yield from (head[at : at + CHUNK] for at in range(0, len(head), CHUNK))
        yield from blocks

    def _within(self, blocks: Iterator[bytes], bounds: LogBounds) -> Iterator[bytes]:
        ends, size, lines = time.monotonic() + bounds.seconds, 0, 0
        for block in blocks:
            size += len(block)
            lines += block.count(b"\n")
            for passed, limit in (
                (size > bounds.total_bytes, f"{bounds.total_bytes >> 20:,} MiB unpacked"),
                (lines > bounds.lines, f"{bounds.lines:,} lines"),
                (time.monotonic() > ends, f"{bounds.seconds:g} s of work"),
            ):
                if passed:
                    what = f"it is too long to be judged: more than {limit}"
                    raise LogError(self._name, what, "Have the run print less.")
            yield block


def open_log(file: str | Path) -> LogStream:
    """The log's bytes, decompressed, at most `CHUNK` at a time; `-` is the standard input.

    A compressed log whose end is missing gives what can be decoded, and `truncated` is true afterwards: a run that
    crashed leaves such a log. Anything else that is wrong with it, or a file that is not text, raises `LogError`.
    """
    return LogStream(str(file))


def bounded(file: str | Path, bounds: LogBounds) -> LogStream:
    """`open_log` within limits; `LogError` when one is exceeded. The author of a compressed log decides its length."""
    return LogStream(str(file), bounds)


def log_lines(blocks: Iterable[bytes]) -> Iterator[str]:
    """The lines of a log in order, as text; LogError where it breaks off."""
    # The pieces of a line whose end was not read yet: one line may be as long as the log.
    begun: list[bytes] = []
    for block in blocks:
        *whole, rest = block.split(b"\n")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun = []
        yield from (line.decode(errors="replace") for line in whole)
        begun.append(rest)
    if last := b"".join(begun):
        yield last.decode(errors="replace")


def _decoder_for(head: bytes) -> Callable[[], _Decoder] | None:
    if head.startswith(b"\x1f\x8b"):
        return _Gzip
    if head.startswith(b"\xfd7zXZ\x00"):
        return lambda: lzma.LZMADecompressor(memlimit=MEMORY_LIMIT)
    if head.startswith(b"\x28\xb5\x2f\xfd") or head[:4] in _SKIPPABLE:
        limit = {int(zstd.DecompressionParameter.window_log_max): _ZSTD_WINDOW_LOG}
        return lambda: zstd.ZstdDecompressor(options=limit)
    return None


try:
    import hyperscan
except ImportError:  # a host whose platform has no wheel of it
    AVAILABLE = False
else:
    AVAILABLE = True


class HyperscanPrefilter:
    """All literals in one pass over the block; compiled once, in some ten milliseconds."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._database = hyperscan.Database()
        self._database.compile(
            expressions=[re.escape(literal) for literal in literals],
            ids=list(range(len(literals))),
            elements=len(literals),
            flags=[0] * len(literals),
        )

    def hits(self, block: bytes) -> list[tuple[int, int]]:
        """See `verl_e2e.core.log.scan.Prefilter`."""
        found: list[tuple[int, int]] = []

        def matched(literal: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((end - 1, literal))

        self._database.scan(block, match_event_handler=matched)
        found.sort()
        return found


def fastest_prefilter(literals: Sequence[bytes]) -> Prefilter:
    """Hyperscan where it is installed, else the portable matcher."""
    return HyperscanPrefilter(literals) if AVAILABLE else FindPrefilter(literals)


def log_facts(name: str) -> LogFacts:
    """The facts of a log on disk, or of standard input for `-`."""
    return facts_of(open_log(name))


def facts_of(log: LogStream) -> LogFacts:
    """The facts of an open log."""
    facts = scan(log, fastest_prefilter(literal_bytes()))
    return replace(facts, truncated=True) if log.truncated else facts


def log_with_times(name: str) -> tuple[LogFacts, Mapping[Stage, float]]:
    """The facts of a log or of a run folder's log, and when its run entered each stage, where the folder says so.

    Raises UserError for a folder without a log.
    """
    path = Path(name)
    log = find_log(path) if path.is_dir() else path
    if log is None:
        raise UserError(f"{name}: no log in this folder; give a log file or a run folder")
    facts = log_facts(name if name == "-" else str(log))
    return replace(facts, stopped=path.is_dir() and was_stopped(path)), stage_times(log.parent)
