"""What of a source file may be parsed: Python's parser takes memory and time far beyond the length of some texts.

Nesting needs no limit here: the parser itself refuses 200 brackets and 100 levels of indentation.
"""

import re
from typing import Final

MAX_BYTES: Final = 1 << 20
MAX_STATEMENTS: Final = 50_000
MAX_NAME_PARTS: Final = 64

_BLANK = rb"(?:[ \t\f]|\\\r?\n)*+"
# The parser joins a dotted name part by part, so each part costs as much as all before it together.
_DOTTED = re.compile(rb"(?<![\w.\x80-\xff])(?:[\w\x80-\xff]++" + _BLANK + rb"\." + _BLANK + rb"){%d}" % MAX_NAME_PARTS)

# What each such name holds, and hardly any other text: looked for first, as it takes a seventh of the time.
_DOTS = re.compile(rb"\.(?:[\w\x80-\xff \t\f\\\r\n]*+\.){%d}" % (MAX_NAME_PARTS - 1))


def beyond_limits(source: bytes) -> str:
    """Why a file is not parsed, one clause; empty for one that may be."""
    if len(source) > MAX_BYTES:
        return f"it is larger than {MAX_BYTES:,} bytes"
    if source.count(b"\n") + source.count(b"\r") + source.count(b";") > MAX_STATEMENTS:
        return f"it has more than {MAX_STATEMENTS:,} statements"
    if _DOTS.search(source) and _DOTTED.search(source):
        return f"a dotted name in it has more than {MAX_NAME_PARTS} parts"
    return ""
