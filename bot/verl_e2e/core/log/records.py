"""The line right above a traceback: whether a program printed it through its log, after it had caught the exception."""

import re
from collections.abc import Iterable

from verl_e2e.core.log.lines import FOLDED, Line
from verl_e2e.core.model.facts import Record

LINES_BACK = 4
_SEARCHED = 160

# The level as logging frameworks print it: `WARNING:name:`, ` - ERROR - `, `[warning ]`, ` | INFO  | `, `level=warn`.
_LEVEL = re.compile(
    r"(?:^|[\s\[:|(-])(DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)(?=[\s\]:|)-]|$)"
    r"|\[(debug|info|warn(?:ing)?|error|critical)\s*\]|\blevel=\"?(\w+)"
    r"|\b(?:\w*)(Warning): |^(?i:\W{0,3}(warn(?:ing)?)\b[:\] ])"
)
# The level as absl, glog and PyTorch print it: `W1120 14:10:32.3 `.
_LETTER = re.compile(r"\[?([DIWEF])\d{4} \d\d:\d\d:\d\d")
# The mark that vLLM puts before every line of a record, also of a traceback.
_MARK = re.compile(r"\b(ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d ")
_SIDE = re.compile(
    r"Exception in thread |(?:Task|Future) exception was never retrieved|--- Logging error ---"
    r"|^(?:future|handle|task|protocol): <|Exception in (?:callback|default exception handler)"
    r"|Unhandled exception in (?:thread|event loop)"
)
# A program that tries again has caught what it prints.
RETRY_SHAPE = (
    r"(?i)^(?!.*(?:exceeded|exhausted|\bmax(?:imum)? retr|giving up|gave up|retry count|last attempt)).*(?:"
    r"\bretry(?:ing)?\b.{0,80}(?:\bin\b|\bafter\b|attempt|\d|\.\.\.)|\b(?:will|going to|about to) (?:retry|try again)"
    r"|\b(?:attempt|try|retry|retries) ?#?:? ?\d+(?: ?(?:/|of) ?\d+)?\b|\btrying again|\breconnecting\b"
    r"|\bback(?:ing)?[- ]?off\b"
    r"|\b(?:sleeping|waiting) (?:for )?\d|\bRetry\(total=\d)"
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


def record_above(line: Line, before: Iterable[Line]) -> Record:
    """How the traceback that begins with `line` was printed; `before` are the lines above it, the nearest first."""
    mark = _MARK.search(line.printed[:_SEARCHED])
    if mark is not None:
        return Record.WARNING if mark[1].lower() in _BELOW_ERROR else Record.PREFIXED
    lines = [other for other in before if _same_process(other, line) and other.text.strip()]
    said = _MARK.search(lines[0].printed[:_SEARCHED]) if lines else None
    if said is not None and said[1].lower() not in _BELOW_ERROR:
        return Record.ERROR
    above = next((other for other in lines if other.source == line.source), None)
    if above is not None and _ONLY_SAYS.search(above.text[:_SEARCHED]):
        above = None
    # The record's first line may be the header itself: `ERROR:root:Traceback (most recent call last):`.
    for text in (line.text, "" if above is None else above.text):
        record = record_of(text)
        if record is not Record.RAISED:
            return record
    return Record.RAISED


def _same_process(other: Line, line: Line) -> bool:
    """Whether both lines are of one process; what Ray folded is a stream of its own."""
    folded = other.source.endswith(FOLDED) == line.source.endswith(FOLDED)
    return folded and (other.label, other.actor, other.pid) == (line.label, line.actor, line.pid)


def record_of(text: str) -> Record:
    """The log level that a line states."""
    if not text or text[0].isspace():
        return Record.RAISED
    head = text[:_SEARCHED]
    if _SIDE.search(head):
        return Record.SIDE
    found = _LETTER.match(head) or _LEVEL.search(head)
    if found is None:
        return Record.ERROR if _RETRY.search(head) else Record.RAISED
    level = next(group for group in found.groups() if group)
    return Record.WARNING if level.lower() in _BELOW_ERROR else Record.ERROR


def goes_on(text: str) -> bool:
    """Whether a line shows that its process does something else by now than to complain or to try again."""
    if not text.strip() or text[0].isspace() or _RETRY.search(text) or _COMPLAINS.search(text):
        return False
    return record_of(text) in (Record.RAISED, Record.WARNING) and "arning" not in text[:_SEARCHED]
