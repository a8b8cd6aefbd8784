"""Takes off what launchers, recorders and log stores put around a program's lines: inferred, in any order of nesting.

Nothing is known of a launcher by its name. Programs begin their lines in ways that are known (a traceback's first
line, a frame, Ray's `(Actor pid=7)`, verl's metric lines); what stands before such a beginning is a head, and where
the lines just before it begin alike, the head is a launcher's. A record (JSON, or `key=value` pairs) is opened where
the lines before it are records too. What is inside is looked at in the same way, for launchers nest.

Only lines before the one that is read decide, so that a log that is still being written is read like a whole one. A
label, which tells the programs of several hosts or ranks apart, is made of the parts of the heads that come again;
what is different in every line (a time, a counter, an id) is not part of it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from verl_e2e.core.log.containers import message_path, parse_record
from verl_e2e.core.log.heads import MAX_HEAD, XTRACE, Shape, shape_of, without_clock
from verl_e2e.core.log.labels import Ledger
from verl_e2e.core.log.layers import Layer, RecordLayer, TextLayer
from verl_e2e.core.log.lines import program_head

RECENT_LINES: Final = 16
MAX_DEPTH: Final = 6
MAX_LAYERS: Final = 8
MAX_TRIED: Final = 256
# How many lines to wait for the rest of a line that was split.
MAX_WAIT: Final = 256
_SEARCHED: Final = 2 * MAX_HEAD

# How lines begin that verl, Ray, vLLM, PyTorch, Python, bash and Slurm print: after a head, what follows is the line.
_LOUD = (
    r"(?:Original |Exception Group )?Traceback \(most recent call last\)"
    r'|  File "[^"\n]{1,300}", line \d+'
    r"|(?<![\w/])step:\s?\d{1,12} - |Training Progress:"
)
_QUIET = (
    r"\([A-Za-z_][\w.:<>+-]{0,80} pid=\d{1,10}(?:, ip=[^)\s]{1,64})?\) |\((?:raylet|autoscaler)[^)\n]{0,40}\) "
    r"|\[(?:rank|default)\d{1,6}\]:|\+{1,4} (?:export |\w+=)"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: \d\d-\d\d \d\d:|:(?=\S))"
    r"|Error executing job with overrides|\*\*\* SIG|Fatal Python error|(?:slurmstepd|srun|bash): "
)
_RECORD = r'\{ *"|[\w.]{1,40}="?[^"\s]{1,64}"? +[\w.]{1,40}="?'
_BEGINS = re.compile(rf"(?P<loud>{_LOUD})|{_QUIET}|(?P<record>{_RECORD})")


@dataclass(frozen=True, slots=True)
class Piece:
    """One line of a program: its text, which program wrote it, and what is to be quoted of it."""

    text: str
    label: str
    whole: str
    strange: bool = False
    """A known beginning follows something that was not understood."""


class Unwrapper:
    """Opens line after line, and learns from them; `learned` counts what it learned, for earlier lines may profit."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._waited = 0
        self._top = _Level(self.ledger, 0)

    @property
    def learned(self) -> int:
        """How often something was learned that would have changed how earlier lines were read."""
        return self.ledger.learned

    @property
    def bare(self) -> bool:
        """Whether nothing was found around the lines so far."""
        return not self._top.layers

    @property
    def pending(self) -> bool:
        """Whether a line waits for the rest that its runtime split off."""
        return bool(self.ledger.split) and self._waited < MAX_WAIT

    def pieces(self, text: str, recent: Callable[[], Sequence[str]] | None = None) -> list[Piece]:
        """The lines inside one line of a file; `recent` gives the lines before it, None to learn nothing."""
        if self.ledger.split:
            self._waited += 1
            if self._waited >= MAX_WAIT:
                self.ledger.split.clear()
        else:
            self._waited = 0
        return self._top.pieces(text, text, recent)

    def begin(self) -> None:
        """The lines are read again from the first; what was learned stays."""
        self.ledger.split.clear()
        self._top.begin()

    def glance(self, text: str) -> list[Piece]:
        """The lines inside one line, without learning from it."""
        return self._top.glance(text, text)


class _Level:
    """The layers that were found around the lines at one depth."""

    def __init__(self, ledger: Ledger, depth: int) -> None:
        self._ledger = ledger
        self._depth = depth
        # Each with what may be inside it.
        self.layers: list[tuple[Layer, _Level]] = []
        self._tried: dict[str, int] = {}

    def pieces(self, text: str, whole: str, recent: Callable[[], Sequence[str]] | None) -> list[Piece]:
        """The lines inside `text`."""
        for layer, inner in self.layers:
            opened = layer.open(text)
            if opened is not None:
                return self._inside(layer, inner, opened, whole, recent)
        strange = False
        if recent is not None and self._depth < MAX_DEPTH:
            learned, strange = self._learn(text, recent)
            if learned:
                return self.pieces(text, whole, recent)
        return [Piece(text, "", whole, strange)]

    def begin(self) -> None:
        """See `Unwrapper.begin`."""
        for layer, inner in self.layers:
            layer.labels.begin()
            inner.begin()

    def glance(self, text: str, whole: str) -> list[Piece]:
        """See `Unwrapper.glance`."""
        for layer, inner in self.layers:
            opened = layer.peek(text)
            if opened is not None:
                label, rows = opened
                inside = (inner.glance(row, row if layer.is_record else whole) for row in rows)
                return [_named(label, piece) for pieces in inside for piece in pieces]
        return [Piece(text, "", whole)]

    def _inside(
        self,
        layer: Layer,
        inner: "_Level",
        opened: tuple[str, list[str]],
        whole: str,
        recent: Callable[[], Sequence[str]] | None,
    ) -> list[Piece]:
        label, texts = opened
        before = None if recent is None else lambda: [inside for row in recent() for inside in _peeked(layer, row)]
        inside = (inner.pieces(text, text if layer.is_record else whole, before) for text in texts)
        return [_named(label, piece) for pieces in inside for piece in pieces]

    def _learn(self, text: str, recent: Callable[[], Sequence[str]]) -> tuple[bool, bool]:
        """Whether a layer was learned that opens this line, and whether it is strange that none was."""
        known = program_head(text)
        if known.named or XTRACE.match(text, known.clock_end):
            return False, False
        strange = False
        for match in _BEGINS.finditer(text, 0, _SEARCHED):
            at = match.start()
            if (at > known.clock_end or match["record"]) and self._try(text, at, recent):
                return True, False
            strange = strange or (match["loud"] is not None and at > known.end)
            if at == known.clock_end and match["loud"] is not None:
                break
        return False, strange

    def _try(self, text: str, at: int, recent: Callable[[], Sequence[str]]) -> bool:
        if len(self.layers) >= MAX_LAYERS:
            return False
        if at == 0 or text[:at].strip() in ("[", ","):
            return self._try_record(text, recent)
        head = without_clock(text[:at])
        shape = shape_of(head)
        if shape is None or not self._due(shape.exact):
            return False
        rows = list(recent())[-RECENT_LINES:]
        broad = re.compile(shape.broad)
        heads = [match[0] if (match := broad.match(row)) else None for row in rows]
        if not _shared([row is not None for row in heads]) or (shape.bare and not _again(shape, heads)):
            return False
        self._add_text(shape, [row for row in heads if row is not None], head)
        return True

    def _due(self, key: str) -> bool:
        """Whether to look again: at the first eight lines of a kind, then after 16, 32, 64, for looking takes time."""
        if key not in self._tried and len(self._tried) >= MAX_TRIED:
            return False
        count = self._tried[key] = self._tried.get(key, 0) + 1
        return count <= 8 or count & (count - 1) == 0

    def _add_text(self, shape: Shape, before: Sequence[str], head: str) -> None:
        texts = (layer for layer, _ in self.layers if isinstance(layer, TextLayer))
        layer = next((layer for layer in texts if layer.broad == shape.broad), None)
        if layer is None:
            layer = TextLayer(shape, self._ledger)
            self._add(layer)
        layer.learn([*before, head])
        for row in before:
            layer.open(row)
        self._ledger.learned += 1

    def _add(self, layer: Layer) -> None:
        self.layers.insert(0, (layer, _Level(self._ledger, self._depth + 1)))

    def _try_record(self, text: str, recent: Callable[[], Sequence[str]]) -> bool:
        record = parse_record(text) if self._due("record") else None
        if record is None:
            return False
        rows = [parse_record(row) for row in list(recent())[-RECENT_LINES:]]
        if not _shared([row is not None for row in rows]):
            return False
        before = [row for row in rows if row is not None]
        path = message_path([*before, record], begins_known)
        if path is None:
            return False
        layer = RecordLayer(path, self._ledger)
        for row in before:
            layer.label(row)
        self._add(layer)
        self._ledger.learned += 1
        return True


def _named(label: str, piece: Piece) -> Piece:
    """The piece with the label of what is around it, too."""
    return replace(piece, label=f"{label} {piece.label}" if piece.label else label) if label else piece


def _peeked(layer: Layer, text: str) -> list[str]:
    opened = layer.peek(text)
    return [] if opened is None else opened[1]


def begins_known(text: str) -> bool:
    """Whether a text begins as a known program's lines do."""
    known = program_head(text)
    match = _BEGINS.match(text, known.end)
    return known.named or (match is not None and match["record"] is None)


def _shared(flags: Sequence[bool]) -> bool:
    """Whether nearly all of the lines before have it, the last first: a launcher may have joined in."""
    if not flags:
        return False
    return all(flags[-4:]) or (len(flags) >= 8 and sum(flags) >= 0.75 * len(flags))


def _again(shape: Shape, heads: Sequence[str | None]) -> bool:
    """Whether the lines before begin with the same words, or with a few in turn as the lines of a few programs do."""
    exact = re.compile(shape.exact)
    same = [head is not None and exact.match(head) is not None for head in heads]
    return _shared(same) or (len(heads) >= 8 and len(set(heads)) <= len(heads) // 4)
