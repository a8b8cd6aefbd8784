"""What a launcher writes before a line, taken apart: times, numbers, words and signs, whatever the launcher.

From one such head two patterns are made. The broad one keeps signs and the kinds of the parts, and tells whether other
lines begin alike; the exact one keeps the words too, and takes the head off a line.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from verl_e2e.core.log.lines import program_head

MAX_HEAD: Final = 200

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_CLOCK = (
    r"\d{1,2}:\d\d:\d\d(?:[.,:]\d{1,9})?(?: ?[AP]M\b)?"
    r"(?: ?(?:Z|UTC|GMT|[ECMP][SD]T|CES?T|[JKI]ST|[+-]\d\d:?\d\d)(?!\w))?"
)
_DATE = (
    r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d{8}|\d\d?[-/.]\d\d?[-/.]\d{4}|\d\d-\d\d"
    rf"|{_MONTH} {{1,2}}\d{{1,2}}(?:,? \d{{4}})?|\d{{1,2}}[-/ ]{_MONTH}[-/ ]\d{{4}})"
)
_TIME = (
    rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{{0,6}},? +)?{_DATE}(?:[T_:-]|,? {{1,2}}){_CLOCK}(?: \d{{4}}(?!\w))?"
    rf"|{_CLOCK}|\d{{8}}[T-]?\d{{6}}(?:[.,]\d+)?Z?|1[5-9]\d{{8}}(?:\d{{3}}|\d{{6}}|\d{{9}})?(?:\.\d+)?(?![\w.])"
    r"|\d+\.\d+(?:ms|s)?(?![\w.])|\d+m?s(?!\w)"
)
_WORD = r"\w[\w./@%~-]*"
_TOKEN = re.compile(rf"(?P<time>{_TIME})|(?P<number>\d+(?![\w./@%~-]))|(?P<word>{_WORD})|(?P<space>[ \t]+)|(?P<sign>.)")
_TIMED = re.compile(_TIME)
_DIGITS = re.compile(r"\d+")
_QUOTES = ('"', "'", "`")
_GUTTER = re.compile(r"[\s|+\-]*")
XTRACE = re.compile(r"\+{1,5} ")
"""How a shell with `set -x` begins the lines that it echoes."""
_OPENING = frozenset("[(<{")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a head: `kind` is time, number, word, space or sign."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What heads like the one that it was made of look like."""

    exact: str
    """A pattern of heads with the same words, where digits may differ; its groups are the words and numbers."""
    broad: str
    """A pattern of heads with parts of the same kinds; its groups are the words and numbers."""
    timed: bool
    """Whether a time is among the parts."""
    bare: bool
    """Whether no time and no sign is among the parts, so that the beginning of any text fits the broad pattern."""


def parts_of(head: str) -> tuple[Part, ...]:
    """The parts of a head, from left to right."""
    return tuple(Part(str(match.lastgroup), match[0]) for match in _TOKEN.finditer(head))


def is_time(text: str) -> bool:
    """Whether the whole text is a time, or a number that can only be one."""
    return _TIMED.fullmatch(text) is not None


def shape_of(head: str) -> Shape | None:
    """The shape of a head, None for text that no launcher writes before a line."""
    if len(head) > MAX_HEAD or not head.strip() or _GUTTER.fullmatch(head) or XTRACE.match(head):
        return None
    if any(head.count(quote) % 2 for quote in _QUOTES):
        return None
    parts = parts_of(head)
    timed = any(part.kind == "time" for part in parts)
    signed = any(part.kind == "sign" for part in parts)
    return Shape(_pattern(parts, exact=True), _pattern(parts, exact=False), timed, not (timed or signed))


def without_clock(head: str) -> str:
    """The head without the clock at its end that a recorder inside wrote; whole where nothing else is in it."""
    parts = parts_of(head)
    last = next((index for index in range(len(parts) - 1, -1, -1) if parts[index].kind != "space"), 0)
    if last == 0 or parts[last].kind != "time" or program_head(parts[last].text + " ").clock_end == 0:
        return head
    return "".join(part.text for part in parts[:last])


def _pattern(parts: Sequence[Part], *, exact: bool) -> str:
    # Launchers pad a rank on its left.
    rows = ["[ \t]{0,12}"] if parts[0].kind == "number" else []
    for index, part in enumerate(parts):
        match part.kind:
            case "time":
                rows.append(f"(?:{_TIME})")
            case "number":
                rows.append(r"(\d+)")
            case "word":
                rows.append(f"({_word(part.text) if exact else _WORD})")
            case "space":
                rows.append(_space(parts, index))
            case _:
                rows.append(re.escape(part.text))
    return "".join(rows)


def _word(word: str) -> str:
    return r"\d+".join(re.escape(piece) for piece in _DIGITS.split(word))


def _space(parts: Sequence[Part], index: int) -> str:
    """The spaces at the end are exact, for the text has its own indentation, unless the line ends with them."""
    if index == len(parts) - 1:
        return f"(?:{parts[index].text}|[ \t]*$)"
    padded = index == 0 or (parts[index - 1].kind == "sign" and parts[index - 1].text in _OPENING)
    return "[ \t]*" if padded else "[ \t]+"
