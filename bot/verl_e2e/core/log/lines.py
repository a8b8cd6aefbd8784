"""The lines of a console log: who wrote each, and what it says without colour, prefix and carriage returns.

A line of a verl run may carry, from left to right: what a launcher or a log store writes around it, a recorder's
`HH:MM:SS ` or a CI system's ISO time, nested Ray prefixes such as `(vLLMHttpServer pid=1) (Worker pid=2) ` or
`[rank0]: `, vLLM's own `ERROR 11-20 14:54:29 [core.py:1231] `, the text, and Ray's `[repeated 7x across cluster]`.
Everything here is bounded: a longer line is read up to `LINE_CAP`.

Nothing is known of a launcher by its name. Programs begin their lines in ways that are known (a traceback's first
line, a frame, Ray's `(Actor pid=7)`, verl's metric lines); what stands before such a beginning is a head, and where
the lines just before it begin alike, the head is a launcher's. A record (JSON, or `key=value` pairs) is opened where
the lines before it are records too. What is inside is looked at in the same way, for launchers nest.

Only lines before the one that is read decide, so that a log that is still being written is read like a whole one. A
label, which tells the programs of several hosts or ranks apart, is made of the parts of the heads that come again;
what is different in every line (a time, a counter, an id) is not part of it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.model.facts import Excerpt

LINE_CAP = 64 * 1024
EXCERPT_CAP = 500
FOLDED = "[repeated]"

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CLOCK = re.compile(
    r"(?:(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? ){1,3}(?![A-Z]+ |- )"
)
_ACTOR = (
    r"\((?:[\w.:<>+-]+ )?pid=\d{1,10}(?:, ip=[^)\s]{1,64})?\) ?"
    r"|\((?:raylet|autoscaler)[^)]{0,80}\) ?|\[(?:rank|default)\d{1,6}\]: ?"
)
_PREFIX = re.compile(
    rf"((?:{_ACTOR})*)((?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w.]+:\d+\]|[\w.]+:\d+\]) ?)?"
)
_PID = re.compile(r"\((?:([\w.:<>+-]+) )?pid=(\d{1,10})")
_RANKS = re.compile(r"(?:\[(?:rank|default)\d+\]: ?)*")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")


@dataclass(frozen=True, slots=True)
class Line:
    """A decoded line.

    `text` keeps its own indentation; `source` is equal for lines of one stream of one process (what Ray folded and
    printed again is a stream of its own); `actor` and `pid` name the outermost Ray process, or the innermost one
    below a server.
    """

    number: int
    source: str
    text: str
    whole: str
    label: str = ""
    """How a launcher names the program that wrote the line, such as its host or rank; `source` begins with it."""
    head: int = 0
    """How many characters of `whole` a launcher wrote before the program's line."""

    @property
    def actor(self) -> str:
        """The class of the Ray actor (or the name of the child process) that wrote the line, or empty."""
        found = _PID.findall(self.process)
        return found[-1][0] if found else ""

    @property
    def pid(self) -> int | None:
        """The process that wrote the line, None for the driver."""
        found = _PID.findall(self.process)
        return int(found[-1][1]) if found else None

    @property
    def driver(self) -> bool:
        """Whether no Ray process and no engine's logger put its name before the line."""
        return not self.process or _RANKS.fullmatch(self.process) is not None

    @property
    def printed(self) -> str:
        """The whole line as the program printed it."""
        return self.whole[self.head :]

    @property
    def process(self) -> str:
        """How Ray and loggers name the process that wrote the line: `source` without the label; empty for none."""
        return self.source[len(self.label) :] if self.label else self.source

    def excerpt(self) -> Excerpt:
        """The whole line, fit to be quoted."""
        return Excerpt(self.number, clean(self.whole))


def clean(text: str) -> str:
    """`text` without colours and control characters, at most `EXCERPT_CAP` characters."""
    return _CONTROL.sub("", without_colours(text)).rstrip()[:EXCERPT_CAP]


def decode(raw: bytes) -> str:
    """A raw line (without its line feed) as text without colours; bytes that are not UTF-8 become U+FFFD."""
    return without_colours(raw[:LINE_CAP].decode("utf-8", "replace"))


def without_colours(text: str) -> str:
    """The text without a terminal's escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def parse_line(number: int, raw: bytes) -> Line:
    """Decode one raw line (without its line feed) that no launcher's prefix is taken off of."""
    text = decode(raw)
    return parse_text(number, text, text)


def parse_text(number: int, text: str, whole: str, label: str = "") -> Line:
    """The line whose text is `text`, without the launcher's prefix that gave the label; `whole` is to be quoted."""
    clock = _CLOCK.match(text)
    prefix = _PREFIX.match(text, clock.end() if clock else 0)
    assert prefix is not None  # every part is optional
    head = len(whole) - len(text)
    text = text[prefix.end() :]
    if "\r" in text:
        kept = whole[: len(whole) - len(text)]
        text = last_painted(text)
        whole = kept + text
    logger = prefix[2] or ""
    # The time stamp in vLLM's own prefix changes within one traceback; the file and line do not.
    source = prefix[1] + logger[logger.rfind(" ", 0, -1) :] if logger else prefix[1]
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
        source += FOLDED if source else ""
    return Line(number, label + source, text, whole, label, head)


@dataclass(frozen=True, slots=True)
class ProgramHead:
    """Where the parts of a line begin that programs themselves print."""

    clock_end: int
    """After the clock that a recorder writes, 0 without one."""
    end: int
    """After the prefixes of Ray, PyTorch or vLLM."""
    named: bool
    """Whether one of them says which process wrote the line; the tag of a rank alone may be a launcher's."""


def program_head(text: str) -> ProgramHead:
    """What a line without a launcher's prefix begins with."""
    clock = _CLOCK.match(text)
    start = clock.end() if clock else 0
    prefix = _PREFIX.match(text, start)
    assert prefix is not None  # every part is optional
    return ProgramHead(start, prefix.end(), bool(prefix[0]) and not _RANKS.fullmatch(prefix[0]))


def last_painted(text: str) -> str:
    """What a terminal would show last of a line with carriage returns."""
    return next((part for part in reversed(text.split("\r")) if part.strip()), "")


MAX_LEAVES: Final = 64
MAX_NESTING: Final = 5
# Where two fields are equally likely to hold the line, the name decides: those of the common log stores.
_NAMES: Final = ("log", "message", "msg", "MESSAGE", "line", "textPayload", "text", "body", "event", "data")
_PAIR: Final = re.compile(r'([\w.@/-]{1,64})=(?:"((?:[^"\\]|\\.)*)"|([^\s"]*))(?: +|$)')
_DIGITS: Final = re.compile(r"\d+")


def parse_record(text: str) -> Mapping[str, str] | None:
    """The leaves of the record that is the whole of `text`, by their dotted path; None when it is not one."""
    text = text.strip()
    if text[:1] in ("[", ","):
        text = text[1:].lstrip()
    leaves: dict[str, str] = {}
    if not text.startswith("{"):
        at = 0
        while '="' in text and at < len(text) and len(leaves) < MAX_LEAVES:
            pair = _PAIR.match(text, at)
            if pair is None:
                return None
            leaves[pair[1]] = pair[3] if pair[2] is None else _unquoted(pair[2])
            at = pair.end()
        return leaves if len(leaves) > 1 else None
    text = text.removesuffix(",").removesuffix("]" if text.endswith("}]") else "")
    try:
        _flatten("", json.loads(text), leaves, MAX_NESTING)
    except (ValueError, RecursionError):
        return None
    return leaves or None


def _flatten(path: str, value: object, leaves: dict[str, str], depth: int) -> None:
    if len(leaves) >= MAX_LEAVES:
        return
    if isinstance(value, dict) and depth:
        for key, item in value.items():
            _flatten(f"{path}.{key}" if path else str(key), item, leaves, depth - 1)
    elif isinstance(value, str | int | float) and path:
        leaves[path] = value if isinstance(value, str) else str(value)


def _unquoted(value: str) -> str:
    """What is not an escape of JSON stays as it is."""
    try:
        return str(json.loads(f'"{value}"'))
    except ValueError:
        return value


def message_path(records: Sequence[Mapping[str, str]], begins_known: Callable[[str], bool]) -> str | None:
    """The field that holds what the program printed: the one whose values say most, None when none says anything.

    A field with a value that begins as a program's known line does comes before all others.
    """

    def weight(path: str) -> tuple[bool, int, int]:
        values = [record[path] for record in records if path in record]
        # What differs in digits only is a time, a count or an id.
        text = {_DIGITS.sub("0", value): len(value) for value in values if " " in value.strip() or not value.strip()}
        name = path.rsplit(".", 1)[-1]
        rank = len(_NAMES) - _NAMES.index(name) if name in _NAMES else 0
        return any(map(begins_known, values)), sum(text.values()), rank

    return max(dict.fromkeys(path for record in records for path in record), key=weight, default=None)


MAX_HEAD: Final = 200

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_HOUR = (
    r"\d{1,2}:\d\d:\d\d(?:[.,:]\d{1,9})?(?: ?[AP]M\b)?"
    r"(?: ?(?:Z|UTC|GMT|[ECMP][SD]T|CES?T|[JKI]ST|[+-]\d\d:?\d\d)(?!\w))?"
)
_DATE = (
    r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d{8}|\d\d?[-/.]\d\d?[-/.]\d{4}|\d\d-\d\d"
    rf"|{_MONTH} {{1,2}}\d{{1,2}}(?:,? \d{{4}})?|\d{{1,2}}[-/ ]{_MONTH}[-/ ]\d{{4}})"
)
_TIME = (
    rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{{0,6}},? +)?{_DATE}(?:[T_:-]|,? {{1,2}}){_HOUR}(?: \d{{4}}(?!\w))?"
    rf"|{_HOUR}|\d{{8}}[T-]?\d{{6}}(?:[.,]\d+)?Z?|1[5-9]\d{{8}}(?:\d{{3}}|\d{{6}}|\d{{9}})?(?:\.\d+)?(?![\w.])"
    r"|\d+\.\d+(?:ms|s)?(?![\w.])|\d+m?s(?!\w)"
)
_WORD = r"\w[\w./@%~-]*"
_TOKEN = re.compile(rf"(?P<time>{_TIME})|(?P<number>\d+(?![\w./@%~-]))|(?P<word>{_WORD})|(?P<space>[ \t]+)|(?P<sign>.)")
_TIMED = re.compile(_TIME)
_GUTTER = re.compile(r"[\s|+\-]*")
XTRACE = re.compile(r"\+{1,5} ")
"""How a shell with `set -x` begins the lines that it echoes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What heads like the one that it was made of look like; the groups of both patterns are the words and numbers."""

    exact: str
    """A pattern of heads with the same words, where digits may differ."""
    broad: str
    """A pattern of heads with parts of the same kinds."""
    timed: bool
    """Whether a time is among the parts."""
    bare: bool
    """Whether no time and no sign is among the parts, so that the beginning of any text fits the broad pattern."""


def shape_of(head: str) -> Shape | None:
    """The shape of a head, None for text that no launcher writes before a line."""
    if len(head) > MAX_HEAD or not head.strip() or _GUTTER.fullmatch(head) or XTRACE.match(head):
        return None
    if any(head.count(quote) % 2 for quote in "\"'`"):
        return None
    parts = [(str(match.lastgroup), match[0]) for match in _TOKEN.finditer(head)]
    kinds = {kind for kind, _ in parts}
    # Launchers pad a rank on its left.
    exact = broad = "[ \t]{0,12}" if parts[0][0] == "number" else ""
    for index, (kind, text) in enumerate(parts):
        word = r"\d+".join(map(re.escape, _DIGITS.split(text)))
        if kind == "space" and index == len(parts) - 1:
            # These are exact, for the text has its own indentation, unless the line ends with them.
            pattern = f"(?:{text}|[ \t]*$)"
        elif kind == "space":
            padded = index == 0 or parts[index - 1][1] in "[(<{"
            pattern = "[ \t]*" if padded else "[ \t]+"
        else:
            pattern = {"time": f"(?:{_TIME})", "number": r"(\d+)", "word": f"({_WORD})"}.get(kind, re.escape(text))
        exact += f"({word})" if kind == "word" else pattern
        broad += pattern
    return Shape(exact, broad, "time" in kinds, kinds.isdisjoint(("time", "sign")))


def without_clock(head: str) -> str:
    """The head without the clock at its end that a recorder inside wrote; whole where nothing else is in it."""
    parts = [match for match in _TOKEN.finditer(head) if match.lastgroup != "space"]
    clock = len(parts) > 1 and parts[-1].lastgroup == "time" and program_head(parts[-1][0] + " ").clock_end
    return head[: parts[-1].start()] if clock else head


# What one program writes to both is one source, as it is where both go into one file.
STREAMS = frozenset({"stdout", "stderr"})
# A part of a head with a longer value names no program.
_LONGEST = 80
# After so many lines it is settled which parts tell programs apart.
_ENOUGH = 1024


@dataclass(slots=True)
class Learned:
    """How often something was learned that would have changed how earlier lines were read."""

    count: int = 0


@dataclass(slots=True)
class _Seen:
    """The values that one part of the heads had since the reading began, and whether the part tells programs apart."""

    tells: bool = False
    count: int = 0
    values: set[int] = field(default_factory=set)
    last: int = -1
    rising: bool = True

    def begin(self) -> None:
        """Count again from nothing."""
        self.count, self.last, self.rising = 0, -1, True
        self.values.clear()

    def take(self, value: str) -> bool:
        """Count one more value; what comes again tells, what only rises or is always new does not. True at a change."""
        before = self.tells
        self.count += 1
        self.values.add(hash(value))
        number = int(value) if value.isdecimal() else -1
        self.rising = self.rising and number >= max(self.last, 0)
        self.last = number
        new, counts = len(self.values) / self.count, self.rising and len(self.values) > 2
        if self.count > 1 and new <= 0.75 and not counts:
            self.tells = True
        elif self.count >= 64 and (new > 0.9 or counts):
            self.tells = False
        return self.tells != before


class HeadLabels:
    """Finds the parts of heads that tell programs apart: their values come again, those of counters and ids do not."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._seen: dict[int | str, _Seen] = {}

    def begin(self) -> None:
        """The lines are read again from the first."""
        for seen in self._seen.values():
            seen.begin()

    def of(self, items: Iterable[tuple[int | str, str]], *, learn: bool) -> str:
        """The label made of the items, each with the key of its place."""
        telling = []
        for key, value in items:
            seen = self._seen.setdefault(key, _Seen())
            if value in STREAMS:
                continue
            if seen.count < _ENOUGH:
                if len(value) > _LONGEST or _TIMED.fullmatch(value):
                    continue
                self._learned.count += learn and seen.take(value)
            telling += [value] if seen.tells else []
        return " ".join(telling)


MAX_EXACT = 256
# The label of what is around a line, and the lines inside.
Opened = tuple[str, list[str]]


class TextLayer:
    """A head that is written before each line."""

    is_record = False
    """Whether what is inside is written differently than it was."""

    def __init__(self, shape: Shape, learned: Learned) -> None:
        self.broad = shape.broad
        self._broad = re.compile(shape.broad) if shape.timed else None
        self._exact: dict[str, None] = {}
        self._known: re.Pattern[str] | None = None
        self.labels = HeadLabels(learned)

    def learn(self, heads: Sequence[str]) -> None:
        """Take heads of this shape whose words are known from now on."""
        shapes = [shape for head in heads if (shape := shape_of(head)) is not None]
        self._exact |= dict.fromkeys(shape.exact for shape in shapes)
        for exact in list(self._exact)[:-MAX_EXACT]:
            del self._exact[exact]
        # The longest first: what is padded on its right would else lose a space of its text.
        self._known = re.compile("|".join(sorted(self._exact, key=len, reverse=True)))

    def open(self, text: str, *, learn: bool = True) -> Opened | None:
        """The label and the lines inside, None for a line without this around it; `learn` from the line or not."""
        assert self._known is not None
        match = self._known.match(text) or (self._broad.match(text) if self._broad is not None else None)
        if match is None:
            return None
        words = (word for word in match.groups() if word is not None)
        return self.labels.of(enumerate(words), learn=learn), [text[match.end() :]]


class RecordLayer:
    """A record for each line, with the line in one of its fields."""

    is_record = True
    """See `TextLayer.is_record`."""

    def __init__(self, path: str, learned: Learned) -> None:
        self._path = path
        self.labels = HeadLabels(learned)

    def open(self, text: str, *, learn: bool = True) -> Opened | None:
        """See `TextLayer.open`."""
        record = parse_record(text)
        if record is None or self._path not in record:
            return None
        message = without_colours(record[self._path]).removesuffix("\n")
        return self.label(record, learn=learn), message.split("\n")

    def label(self, record: Mapping[str, str], *, learn: bool = True) -> str:
        """The label that a record gives."""
        return self.labels.of((item for item in record.items() if item[0] != self._path), learn=learn)


RECENT_LINES: Final = 16
_MAX_DEPTH: Final = 6
MAX_LAYERS: Final = 8
MAX_TRIED: Final = 256
_SEARCHED: Final = 2 * MAX_HEAD

# How lines begin that consumers, Ray, vLLM, PyTorch, Python, bash and Slurm print: after a head, the rest is the line.
_LOUD = (
    r"(?:Original |Exception Group )?Traceback \(most recent call last\)"
    r'|  File "[^"\n]{1,300}", line \d+'
    rf"|{'|'.join(consumer.log.begins for consumer in CONSUMERS.values())}"
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
class UnwrappedLine:
    """One line of a program: its text, which program wrote it, and what is to be quoted of it."""

    text: str
    label: str
    whole: str
    strange: bool = False
    """A known beginning follows something that was not understood."""


class Unwrapper:
    """Opens line after line, and learns from them: the layers that were found around the lines at one depth."""

    def __init__(self, learned: Learned | None = None, depth: int = 0) -> None:
        self.learned = learned or Learned()
        self._depth = depth
        # Each with what may be inside it.
        self._layers: list[tuple[TextLayer | RecordLayer, Unwrapper]] = []
        self._tried: dict[str, int] = {}

    @property
    def bare(self) -> bool:
        """Whether nothing was found around the lines so far."""
        return not self._layers

    def begin(self) -> None:
        """The lines are read again from the first; what was learned stays."""
        for layer, inner in self._layers:
            layer.labels.begin()
            inner.begin()

    def pieces(
        self, text: str, whole: str, recent: Callable[[], Sequence[str]] | None = None, *, learn: bool = True
    ) -> list[UnwrappedLine]:
        """The lines inside `text`, which is what is left of `whole`.

        Labels are learned as `learn` says, layers where `recent` gives the lines before.
        """
        for layer, inner in self._layers:
            opened = layer.open(text, learn=learn)
            if opened is None:
                continue
            label, texts = opened
            before = None if recent is None else partial(_opened, layer, recent)
            inside = [inner.pieces(row, row if layer.is_record else whole, before, learn=learn) for row in texts]
            return [replace(piece, label=f"{label} {piece.label}".strip()) for pieces in inside for piece in pieces]
        strange = False
        if recent is not None and self._depth < _MAX_DEPTH:
            learned, strange = self._learn(text, recent)
            if learned:
                return self.pieces(text, whole, recent)
        return [UnwrappedLine(text, "", whole, strange)]

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
        """Whether what is before position `at` of the text is a layer, as the lines before show."""
        if len(self._layers) >= MAX_LAYERS:
            return False
        layer: TextLayer | RecordLayer | None
        if at == 0 or text[:at].strip() in ("[", ","):
            record = parse_record(text) if self._due("record") else None
            rows = [parse_record(row) for row in list(recent())[-RECENT_LINES:]] if record is not None else []
            before = [row for row in rows if row is not None]
            path = message_path([*before, record], begins_known) if record is not None else None
            if path is None or not _shared([row is not None for row in rows]):
                return False
            layer = RecordLayer(path, self.learned)
            for row in before:
                layer.label(row)
            self._layers.insert(0, (layer, Unwrapper(self.learned, self._depth + 1)))
        else:
            head = without_clock(text[:at])
            shape = shape_of(head)
            if shape is None or not self._due(shape.exact):
                return False
            broad = re.compile(shape.broad)
            heads = [match[0] if (match := broad.match(row)) else None for row in list(recent())[-RECENT_LINES:]]
            exact = re.compile(shape.exact)
            same = [row is not None and exact.match(row) is not None for row in heads]
            # The same words, or a few in turn as the lines of a few programs begin.
            again = _shared(same) or (len(heads) >= 8 and len(set(heads)) <= len(heads) // 4)
            if not _shared([row is not None for row in heads]) or (shape.bare and not again):
                return False
            texts = (layer for layer, _ in self._layers if isinstance(layer, TextLayer))
            layer = next((layer for layer in texts if layer.broad == shape.broad), None)
            if layer is None:
                layer = TextLayer(shape, self.learned)
                self._layers.insert(0, (layer, Unwrapper(self.learned, self._depth + 1)))
            known = [row for row in heads if row is not None]
            layer.learn([*known, head])
            for text in known:
                layer.open(text)
        self.learned.count += 1
        return True

    def _due(self, key: str) -> bool:
        """Whether to look again: at the first eight lines of a kind, then after 16, 32, 64, for looking takes time."""
        if key not in self._tried and len(self._tried) >= MAX_TRIED:
            return False
        count = self._tried[key] = self._tried.get(key, 0) + 1
        return count <= 8 or count & (count - 1) == 0


def _opened(layer: TextLayer | RecordLayer, recent: Callable[[], Sequence[str]]) -> list[str]:
    """The lines inside those of the recent lines that the layer opens."""
    opened = (layer.open(row, learn=False) for row in recent())
    return [inside for row in opened if row is not None for inside in row[1]]


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
