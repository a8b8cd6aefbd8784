"""One line of a console log: who wrote it, and what it says without colour, prefix and carriage returns.

A line of a verl run may carry, from left to right: a recorder's `HH:MM:SS ` or a CI system's ISO time, nested Ray
prefixes such as `(vLLMHttpServer pid=1) (Worker pid=2) ` or `[rank0]: `, vLLM's own
`ERROR 11-20 14:54:29 [core.py:1231] `, the text, and Ray's `[repeated 7x across cluster]`. What a launcher writes
before all of that is taken off by `verl_e2e.core.log.unwrap`. Everything here is bounded: a longer line is read up to
`LINE_CAP`.
"""

import re
from dataclasses import dataclass

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
    source = _source(prefix)
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


def _source(prefix: re.Match[str]) -> str:
    logger = prefix[2] or ""
    # The time stamp in vLLM's own prefix changes within one traceback; the file and line do not.
    return prefix[1] + logger[logger.rfind(" ", 0, -1) :] if logger else prefix[1]
