"""One line of a console log: who wrote it, and what it says without colour, prefix and carriage returns.

A line of a verl run may carry, from left to right: a recorder's `HH:MM:SS ` or a CI system's ISO time, nested Ray
prefixes such as `(vLLMHttpServer pid=1) (Worker pid=2) ` or `[rank0]: `, vLLM's own
`ERROR 11-20 14:54:29 [core.py:1231] `, the text, and Ray's `[repeated 7x across cluster]`. Everything here is
bounded: a longer line is read up to `LINE_CAP`.
"""

import re
from dataclasses import dataclass

from bot.core.facts import Excerpt

LINE_CAP = 64 * 1024
EXCERPT_CAP = 500
FOLDED = "[repeated]"

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CLOCK = re.compile(r"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? (?![A-Z]+ |- )")
_ACTOR = (
    r"\((?:[\w.:<>+-]+ )?pid=\d{1,10}(?:, ip=[^)\s]{1,64})?\) ?"
    r"|\((?:raylet|autoscaler)[^)]{0,80}\) ?|\[(?:rank|default)\d{1,6}\]: ?"
)
_PREFIX = re.compile(
    rf"((?:{_ACTOR})*)((?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w.]+:\d+\]|[\w.]+:\d+\]) ?)?"
)
_PID = re.compile(r"\((?:([\w.:<>+-]+) )?pid=(\d{1,10})")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")


@dataclass(frozen=True, slots=True)
class Line:
    """A decoded line.

    `text` keeps its own indentation; `source` is equal for lines of one stream of one process (empty for the
    driver; what Ray folded and printed again is a stream of its own); `actor` and `pid` name the outermost Ray
    process, or the innermost one below a server.
    """

    number: int
    source: str
    text: str
    whole: str

    @property
    def actor(self) -> str:
        """The class of the Ray actor (or the name of the child process) that wrote the line, or empty."""
        found = _PID.findall(self.source)
        return found[-1][0] if found else ""

    @property
    def pid(self) -> int | None:
        """The process that wrote the line, None for the driver."""
        found = _PID.findall(self.source)
        return int(found[-1][1]) if found else None

    def excerpt(self) -> Excerpt:
        """The whole line, fit to be quoted."""
        return Excerpt(self.number, clean(self.whole))


def clean(text: str) -> str:
    """`text` without colours and control characters, at most `EXCERPT_CAP` characters."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub("", text).rstrip()[:EXCERPT_CAP]


def parse_line(number: int, raw: bytes) -> Line:
    """Decode one raw line (without its line feed); bytes that are not UTF-8 become U+FFFD."""
    whole = raw[:LINE_CAP].decode("utf-8", "replace")
    if "\x1b" in whole:
        whole = _ANSI.sub("", whole)
    clock = _CLOCK.match(whole)
    start = clock.end() if clock else 0
    prefix = _PREFIX.match(whole, start)
    assert prefix is not None  # every part is optional
    text = whole[prefix.end() :]
    if "\r" in text:
        text = last_painted(text)
        whole = whole[: prefix.end()] + text
    source = _source(prefix)
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
        source += FOLDED if source else ""
    return Line(number, source, text, whole)


def last_painted(text: str) -> str:
    """What a terminal would show last of a line with carriage returns."""
    return next((part for part in reversed(text.split("\r")) if part.strip()), "")


def _source(prefix: re.Match[str]) -> str:
    logger = prefix[2] or ""
    # The time stamp in vLLM's own prefix changes within one traceback; the file and line do not.
    return prefix[1] + logger[logger.rfind(" ", 0, -1) :] if logger else prefix[1]
