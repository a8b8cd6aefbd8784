"""Python tracebacks in a log: chains, remote tracebacks inside exceptions, interleaved processes.

One `TracebackReader` follows one source (process and stream). A chain is a row of segments joined by
`During handling of ...` or `... direct cause of ...`; a segment ends in one exception, after any number of
wrappers such as `RayTaskError` whose message is the traceback of another process. The root exception is the
last one of the first segment: what was raised first, in the process where it was raised. Of an exception group
the first sub-exception is read, as if the group had wrapped it.

What is around a traceback belongs to it: the line above says whether a program printed it in its log, after it had
caught the exception; the lines below the exception are its message; the frame of ours that is nearest to it counts.
"""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from verl_e2e.core.log.lines import FOLDED, Line
from verl_e2e.core.model.facts import Excerpt, Frame, TracebackRecord

LINES_BACK = 4
_SEARCHED = 160

# The level as logging frameworks print it: `WARNING:name:`, ` - ERROR - `, `[warning ]`, ` | INFO  | `, `level=warn`.
_LEVEL = re.compile(
    r"(?:^|[\s\[:|(-])(DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)(?=[\s\]:|)-]|$)|\[(debug|info|warn(?:ing)?"
    r"|error|critical)\s*\]|\blevel=\"?(\w+)|\b(?:\w*)(Warning): |^(?i:\W{0,3}(warn(?:ing)?)\b[:\] ])"
)
# The level as absl, glog and PyTorch print it: `W1120 14:10:32.3 `.
_LETTER = re.compile(r"\[?([DIWEF])\d{4} \d\d:\d\d:\d\d")
# The mark that vLLM puts before every line of a record, also of a traceback.
_MARK = re.compile(r"\b(ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d ")
_SIDE = re.compile(
    r"Exception in thread |(?:Task|Future) exception was never retrieved|--- Logging error ---|^(?:future|handle|task"
    r"|protocol): <|Exception in (?:callback|default exception handler)|Unhandled exception in (?:thread|event loop)"
)
# A program that tries again has caught what it prints.
RETRY_SHAPE = (
    r"(?i)^(?!.*(?:exceeded|exhausted|\bmax(?:imum)? retr|giving up|gave up|retry count"
    r"|last attempt)).*(?:\bretry(?:ing)?\b.{0,80}(?:\bin\b|\bafter\b|attempt|\d|\.\.\.)|\b(?:will|going to"
    r"|about to) (?:retry|try again)|\b(?:attempt|try|retry|retries) ?#?:? ?\d+(?: ?(?:/|of) ?\d+)?\b|\btrying again"
    r"|\breconnecting\b|\bback(?:ing)?[- ]?off\b|\b(?:sleeping|waiting) (?:for )?\d|\bRetry\(total=\d)"
)
_RETRY = re.compile(RETRY_SHAPE)
_COMPLAINS = re.compile(
    r"(?i)traceback|fail|error|exception|unable|cannot|can't|could not|tim(?:e|ed)[- ]?out|abort|refus|unreach"
    r"|unavailable|thrown|\bcause of\b|\b(?:died|killed|dead|crash)"
)
# What says nothing of an exception below it: a note, and a warning that Python prints with its place.
_ONLY_SAYS = re.compile(
    r"^\S+:\d+: \w*Warning: |(?:^|[\s\[:|(-])(?:DEBUG|INFO|NOTICE)(?=[\s\]:|)-])|\[(?:debug|info)\s*\]"
)
_BELOW_ERROR = frozenset({"debug", "info", "notice", "warn", "warning", "d", "i", "w"})


def record_above(line: Line, before: Iterable[Line]) -> TracebackRecord:
    """How the traceback that begins with `line` was printed; `before` are the lines above it, the nearest first."""
    mark = _MARK.search(line.printed[:_SEARCHED])
    if mark is not None:
        return TracebackRecord.WARNING if mark[1].lower() in _BELOW_ERROR else TracebackRecord.PREFIXED
    # What Ray folded is a stream of its own.
    process = (line.label, line.actor, line.pid, line.source.endswith(FOLDED))
    rows = (other for other in before if other.text.strip())
    lines = [row for row in rows if (row.label, row.actor, row.pid, row.source.endswith(FOLDED)) == process]
    said = _MARK.search(lines[0].printed[:_SEARCHED]) if lines else None
    if said is not None and said[1].lower() not in _BELOW_ERROR:
        return TracebackRecord.ERROR
    above = next((other for other in lines if other.source == line.source), None)
    if above is not None and _ONLY_SAYS.search(above.text[:_SEARCHED]):
        above = None
    # The record's first line may be the header itself: `ERROR:root:Traceback (most recent call last):`.
    for text in (line.text, "" if above is None else above.text):
        record = record_of(text)
        if record is not TracebackRecord.RAISED:
            return record
    return TracebackRecord.RAISED


def record_of(text: str) -> TracebackRecord:
    """The log level that a line states."""
    if not text or text[0].isspace():
        return TracebackRecord.RAISED
    head = text[:_SEARCHED]
    if _SIDE.search(head):
        return TracebackRecord.SIDE
    found = _LETTER.match(head) or _LEVEL.search(head)
    if found is None:
        return TracebackRecord.ERROR if _RETRY.search(head) else TracebackRecord.RAISED
    level = next(group for group in found.groups() if group)
    return TracebackRecord.WARNING if level.lower() in _BELOW_ERROR else TracebackRecord.ERROR


def goes_on(text: str) -> bool:
    """Whether a line shows that its process does something else by now than to complain or to try again."""
    if not text.strip() or text[0].isspace() or _RETRY.search(text) or _COMPLAINS.search(text):
        return False
    return record_of(text) in (TracebackRecord.RAISED, TracebackRecord.WARNING) and "arning" not in text[:_SEARCHED]


MAX_LINES = 40
MAX_TEXT = 4000
MAX_SOURCE = 300

# A line that no message holds: the shell's echo, Hydra's advice, progress bars, marks of processes and of crashes.
_FOREIGN = re.compile(
    r"\++ |Set the environment variable HYDRA|Error executing job|\*\*\* |Exception ignored|\(\w+[^)]{0,60}\) |\[rank\d"
    r"|(?:Training Progress|step):|\d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]"
)
_BAR = "%|"
# What may follow an empty line inside a message: `Greatest absolute difference: 1.0`, an item, an indented line.
_AFTER_BLANK = re.compile(r"\s|[-*] |[A-Z][\w /()-]{2,40}: ")
_PACKAGES = re.compile(r"(?:^|/)(?:site|dist)-packages/")
_OURS = re.compile(r"(?:^|/)(?:megatron/(?:bridge|core|training|legacy|inference|rl)|verl(?!/(?:lib|\.venv|venv)\b))/")


class ErrorMessage:
    """The message of an exception, line by line, until something else is printed."""

    def __init__(self, first: str = "") -> None:
        self._rows = [first] if first else []
        self._size = len(first)
        self.is_open = True
        """Whether the next line may belong to it."""
        self._blank = False

    def blank(self) -> None:
        """An empty line: the message may go on below it."""
        self.is_open = self.is_open and not self._blank
        self._blank = True

    def add(self, text: str, *, plain: bool) -> None:
        """Take the next line of the same process; a line that is not part of the message ends it."""
        other = not plain or _FOREIGN.match(text) or _BAR in text[:MAX_SOURCE]
        after = self._blank and not _AFTER_BLANK.match(text)
        record = not text[:1].isspace() and record_of(text) is not TracebackRecord.RAISED
        self.is_open = self.is_open and not (other or after or record)
        if not self.is_open:
            return
        if len(self._rows) < MAX_LINES and self._size < MAX_TEXT:
            self._rows += ["", text.rstrip()] if self._blank and self._rows else [text.rstrip()]
            self._size += len(text)
        self._blank = False

    def __str__(self) -> str:
        return "\n".join(self._rows)[:MAX_TEXT]


class LoneMessage:
    """The lines below an error that is printed without a traceback, as Hydra prints its own."""

    def __init__(self, first: Line, message: str = "") -> None:
        self.at = first.number
        self.source = first.source
        self.text = ErrorMessage(message or first.text.strip())

    def take(self, line: Line, *, plain: bool) -> bool:
        """Take the next line; False when the message has ended before it."""
        if line.number > self.at + MAX_LINES:
            return False
        if line.source != self.source:
            return True
        if not line.text.strip():
            return False
        self.text.add(line.text, plain=plain)
        return self.text.is_open


def is_ours(path: str) -> bool:
    """Whether a file is one of Megatron-Bridge, Megatron-LM or verl, wherever they are installed."""
    return _OURS.search(_PACKAGES.split(path)[-1]) is not None


MAX_FRAMES = 40
MAX_SEGMENTS = 16
_MAX_MESSAGE = 1000
MESSAGE_LINES = 6
GAP_LINES = 3
_PATIENCE = 64

_HEADER = re.compile(
    r"\s*(?P<nested>Original )?(?:Exception Group )?Traceback \(most recent call last\):?(?P<rank> \(RANK \d+\))?"
)
_GROUP = re.compile(r"\s*\+ Exception Group Traceback \(most")
_GUTTER = re.compile(r"\s*(?:\||\+(?:-\+)?-*(?: (?P<part>\d+|\.\.\.) -+)?(?P<end>(?<=-)$)?) ?")
_FRAME = re.compile(r'\s*File "([^"]{1,500})", line (?P<line>\d{1,9}), in (?P<function>.{1,200})')
_REMOTE = re.compile(r"\bray::([\w.:]{1,120}?)\(\)")
_LINK = re.compile(
    r"\s*(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception)"
)
_NAME = r"(?:Error|Exception|Interrupt|Exit|Iteration|Failure|Timeout|Timedout|Expired|Abort|Refused|Group)"
# The name has more than its ending: programs print `Error: ...` in the middle of other processes' tracebacks.
_EXCEPTION = re.compile(rf"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*{_NAME}(?:\([\w.]{{1,120}}\))?)(?::\s?(.*))?$")
BARE_SHAPE = rf"^(?:[A-Za-z_]\w*\.)*[A-Z][A-Za-z_]*[a-z]{_NAME}(?:\([\w.]{{1,120}}\))?(?:: |$)"
"""A line that is an exception's last one wherever it stands."""
_DOTTED = re.compile(r"((?:[A-Za-z_]\w*\.)+[A-Z]\w*)(?::\s?(.*))?$")
# The standard library's old classes: `socket.gaierror`, `zlib.error`, `struct.error`.
_OLD = re.compile(r"((?:[a-z_]\w*\.)+(?:\w*error|timeout))(?::\s?(.*))?$")
_BARE = frozenset(
    {"KeyboardInterrupt", "StopIteration", "StopAsyncIteration", "SystemExit", "GeneratorExit", "Exception"}
)
_ENTRY = re.compile(r"(?:^|/)(?:runpy\.py|torchrun|accelerate)$|<frozen runpy>$")
_REMOTE_MARK = "ray::"


class _Phase(Enum):
    FRAMES = auto()
    MESSAGE = auto()
    TAIL = auto()
    GAP = auto()
    LINK = auto()


@dataclass(slots=True)
class Raised:
    """One exception line with the frames above it, outermost first, as `path:function`."""

    kind: str
    message: str
    at: Excerpt
    calls: tuple[str, ...]
    frame: Frame | None = None
    text: ErrorMessage = field(default_factory=ErrorMessage)

    @property
    def summary(self) -> str:
        """`Kind: message`, at most 300 characters."""
        return f"{self.kind}: {self.message}"[:300] if self.message else self.kind


class _Frames:
    """The first and the last frames of a stack of any depth, and the innermost one of ours with its source line."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=MAX_FRAMES // 2)
        self._previous = ""
        self.inner: Frame | None = None
        self._waits = False

    def add(self, path: str, line: int, function: str) -> None:
        """Take the next frame, from the outermost to the innermost."""
        called = function.strip()
        self._waits = is_ours(path)
        if self._waits:
            self.inner = Frame(path, line, called, "")
        if called == "<module>" and self._previous and not _ENTRY.search(self._previous):
            called = "<import>"
        self._previous = path
        self._keep(f"{'/'.join(path.split('/')[-5:])}:{called}")

    def add_remote(self, called: str) -> None:
        """Take a call of another process."""
        self._previous = ""
        self._keep(f"ray::{called}")

    def add_source(self, text: str) -> None:
        """Take a line below a frame; the first one is the frame's source."""
        if self._waits and self.inner is not None:
            self.inner, self._waits = replace(self.inner, source=text.strip()[:MAX_SOURCE]), False

    def _keep(self, call: str) -> None:
        (self._first if len(self._first) < MAX_FRAMES // 2 else self._last).append(call)

    def kept(self) -> tuple[str, ...]:
        """The frames as `path:function`, outermost first."""
        return (*self._first, *self._last)

    def __bool__(self) -> bool:
        return bool(self._first)


@dataclass(slots=True)
class Chain:
    """A finished traceback: its segments in print order, each a row of wrappers and the exception they wrap."""

    segments: list[list[Raised]] = field(default_factory=lambda: [[]])
    cut_calls: tuple[str, ...] = ()
    cut_at: Excerpt | None = None
    cut_frame: Frame | None = None

    def root(self) -> Raised | None:
        """What was raised first; a traceback without an exception line gives one without a name."""
        for segment in self.segments:
            if segment:
                return segment[-1]
        if self.cut_at is None:
            return None
        return Raised("", "the traceback is cut before its exception", self.cut_at, self.cut_calls)

    def calls(self) -> tuple[str, ...]:
        """The frames of the whole chain, outermost first."""
        rows = [raised.calls for segment in reversed(self.segments) for raised in segment]
        return tuple(dict.fromkeys(call for row in [*rows, self.cut_calls] for call in row))

    def frame(self) -> Frame | None:
        """The frame that matters: that of the root, else of what wraps it, else of what was raised later."""
        nearest = [raised.frame for segment in self.segments for raised in reversed(segment)]
        return next((frame for frame in [*nearest, self.cut_frame] if frame is not None), None)

    def others(self) -> tuple[str, ...]:
        """The other exceptions of the chain, in print order."""
        root = self.root()
        every = [raised for segment in self.segments for raised in segment]
        return tuple(dict.fromkeys(raised.summary for raised in every if raised is not root))


class TracebackReader:
    """Follows the lines of one source while a traceback is open; `closed` turns true after its last line."""

    def __init__(self) -> None:
        self.chain = Chain()
        self.closed = False
        self.touched = 0
        self._phase = _Phase.FRAMES
        self._frames = _Frames()
        self._patience = _PATIENCE
        self._last_frame: Line | None = None
        self._grouped = False
        self._bare_source = False
        self._plain = True

    def take(self, line: Line, *, plain: bool = True) -> bool:
        """Read the next line of the source; False when it is not part of the traceback.

        A line that is not `plain` means something by itself, so it is not part of a message.
        """
        self.touched = line.number
        self._plain = plain
        text = line.text
        if self._grouped or _GROUP.match(text):
            self._grouped = True
            gutter = _GUTTER.match(text)
            if gutter is not None and (gutter["part"] not in (None, "1") or gutter["end"] is not None):
                return self._close()
            text = text[gutter.end() :] if gutter is not None else text
        if not text.strip():
            if self._phase in (_Phase.MESSAGE, _Phase.TAIL, _Phase.GAP):
                self.chain.segments[-1][-1].text.blank()
            if self._phase in (_Phase.MESSAGE, _Phase.TAIL):
                self._phase = _Phase.GAP
                self._patience = GAP_LINES
            return True
        if self._phase is _Phase.FRAMES:
            return self._in_frames(line, text)
        if _LINK.match(text):
            return self._link()
        if self._phase is _Phase.MESSAGE:
            return self._in_message(line, text)
        if self._phase is not _Phase.LINK:
            return self._after(line, text)
        if _HEADER.match(text) or self._frame(line, text):
            self._phase = _Phase.FRAMES
            return True
        return self._foreign()

    def wants(self, text: str, *, folded: bool = False) -> bool:
        """Whether a line of another process of the same kind may go on where this traceback stopped.

        Ray prints a line that it `folded` under one process only, whichever else printed it too.
        """
        if self._phase is _Phase.MESSAGE:
            return folded and text[:1].isspace() and not starts(text)
        if not self.in_frames:
            return False
        return _FRAME.match(text) is not None or (not text[:1].isspace() and exception_of(text) is not None)

    @property
    def in_frames(self) -> bool:
        """Whether the next line of the traceback is a frame or its exception."""
        return self._phase is _Phase.FRAMES

    @property
    def settled(self) -> bool:
        """Whether the last line read ends in an exception that nothing contradicts yet."""
        return bool(self.chain.segments[-1]) and not self._frames and self._phase is not _Phase.LINK

    def snapshot(self) -> Chain:
        """The chain as far as it is known, with the frames that wait for their exception."""
        if self._frames and self._last_frame is not None:
            return Chain(
                [list(segment) for segment in self.chain.segments],
                self._frames.kept(),
                self._last_frame.excerpt(),
                self._frames.inner,
            )
        return self.chain

    def _in_frames(self, line: Line, text: str) -> bool:
        if text.startswith("    ") and 'File "' not in text:
            self._frames.add_source(text)
            self._bare_source = False
            return True  # a source line below its frame: the most frequent case
        if self._bare_source and not text[0].isspace() and not (_FRAME.match(text) or exception_of(text)):
            # Pasted without its indentation.
            self._bare_source = False
            self._frames.add_source(text)
            return True
        if self._frame(line, text) or _HEADER.match(text):
            return True
        raised = None if text[0].isspace() else exception_of(text)
        if raised is not None and (self._frames or self.chain.segments[-1] or _REMOTE_MARK in raised[1]):
            kind, message = raised
            frames, self._frames = self._frames, _Frames()
            at, calls = line.excerpt(), frames.kept()
            if len(self.chain.segments[-1]) < MAX_SEGMENTS:
                self.chain.segments[-1].append(
                    Raised(kind, message[:_MAX_MESSAGE], at, calls, frames.inner, ErrorMessage(message))
                )
            remote = _REMOTE.search(message)
            if remote is not None:
                self._frames.add_remote(remote[1])
            self._phase = _Phase.MESSAGE
            self._patience = MESSAGE_LINES
            return True
        if text[0].isspace():
            return True
        if _LINK.match(text):
            return self._link()
        return self._foreign()

    def _frame(self, line: Line, text: str) -> bool:
        frame = _FRAME.match(text)
        if frame is not None:
            self._frames.add(frame[1], int(frame["line"]), frame["function"])
            self._bare_source = not text[0].isspace()
            self._last_frame = line
            return True
        remote = _REMOTE.search(text) if _REMOTE_MARK in text else None
        if remote is not None and not exception_of(text):
            self._frames.add_remote(remote[1])
            return True
        return False

    def _in_message(self, line: Line, text: str) -> bool:
        header = _HEADER.match(text)
        if header is not None:
            return self._nested(header)
        if _FRAME.match(text):
            self._phase = _Phase.FRAMES
            return self._frame(line, text)
        remote = _REMOTE.search(text)
        if remote is not None and text.startswith(_REMOTE_MARK):
            # Ray prints it for each `Traceback` line of an exception's text, so it begins the traceback that the
            # exception carries: torch's CheckpointException carries those of its ranks.
            self._frames.add_remote(remote[1])
            return self._more_frames()
        if remote is not None or text.startswith(_REMOTE_MARK):
            return self._close()
        if not text[0].isspace() or self._patience <= 0:
            self._phase = _Phase.TAIL
            self._patience = MESSAGE_LINES * 2
            return self._after(line, text)
        if not self._remote_source(text):
            self._patience -= 1
            raised = self.chain.segments[-1][-1]
            raised.message = f"{raised.message} {text.strip()}"[:_MAX_MESSAGE]
            raised.text.add(text, plain=True)
        return True

    def _remote_source(self, text: str) -> bool:
        """Source lines and `^^^^` marks below a wrapper of a remote traceback are not a message."""
        return bool(self._frames) and (text.startswith("     ") or set(text.strip()) <= set("^~"))

    def _after(self, line: Line, text: str) -> bool:
        if _FRAME.match(text) and self._frames:
            # The traceback of another process, inside the wrapper that was read last.
            self._phase = _Phase.FRAMES
            return self._frame(line, text)
        if self._remote_source(text):
            return True
        header = _HEADER.match(text)
        if header is not None:
            return self._nested(header)
        if _FRAME.match(text) or _REMOTE.search(text):
            return self._close()
        if self.chain.segments[-1]:
            self.chain.segments[-1][-1].text.add(text, plain=self._plain)
        return self._foreign()

    def _nested(self, header: re.Match[str]) -> bool:
        """A traceback right below an exception belongs to it when the exception carries those of others."""
        carried = header["rank"] is not None or header["nested"] is not None
        if not carried and not (self._grouped and self.chain.segments[-1][-1].kind.endswith("Group")):
            return self._close()
        return self._more_frames()

    def _more_frames(self) -> bool:
        self._phase = _Phase.FRAMES
        self._patience = _PATIENCE
        return True

    def _link(self) -> bool:
        if len(self.chain.segments) < MAX_SEGMENTS:
            self.chain.segments.append([])
        self._frames = _Frames()
        self._phase = _Phase.LINK
        self._patience = _PATIENCE
        return True

    def _foreign(self) -> bool:
        self._patience -= 1
        return self._close() if self._patience <= 0 else False

    def _close(self) -> bool:
        self.chain = self.snapshot()
        self.closed = True
        return False


_ESCAPED = re.compile(r"""Traceback \(most recent call last\):\\+n.*""")
_ITEM_END = re.compile(r"""\\+n['"], ['"]|\\+n""")


def escaped_rows(text: str) -> list[str]:
    """The lines of a traceback that a program printed as one: as a list of Python, or with escaped line feeds."""
    found = _ESCAPED.search(text)
    if found is None:
        return []
    rows = [row.replace('\\"', '"').replace("\\'", "'") for row in _ITEM_END.split(found[0])]
    return [*rows[:-1], rows[-1].rstrip("'\"]}),")]


def starts(text: str) -> bool:
    """Whether a line opens a traceback: a header, a frame, a remote call, or an exception around one."""
    opens = _HEADER.match(text) or _FRAME.match(text) or _GROUP.match(text)
    return bool(opens or (_REMOTE.search(text) and "(pid=" in text))


def exception_of(text: str) -> tuple[str, str] | None:
    """Name and message, if a line is the last one of an exception."""
    match = _EXCEPTION.match(text) or _DOTTED.match(text) or _OLD.match(text)
    if match is not None:
        return match[1], (match[2] or "").strip()
    word = text.split(":", 1)[0].strip()
    return (word, text[len(word) + 1 :].strip()) if word in _BARE else None
