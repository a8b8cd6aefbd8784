"""Text of unknown origin, made harmless: one line, no terminal tricks, no markup, no mention, no link.

Log text is hostile. Everything on a card goes through here, so that a log can neither format it, nor call
anybody, nor pretend to be one of our own markers.
"""

import re

# Control characters, line separators, and the marks that reverse or hide text on screen.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_INVISIBLE = re.compile(
    r"[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")

# A zero-width space: breaks a mention, a link or a marker without showing.
BREAK = "\u200b"
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]()+!|~>])")
_LINKS = re.compile(r"(?i)(@|#|://|\bgh-|\bwww(?=\.)|mailto:|xmpp:|:(?=[\w+-]+:))")
_BLOCK_START = re.compile(r"^(?=[-=+]|\d+[.)])")


def one_line(text: str, limit: int = 4000) -> str:
    """`text` on one line of at most `limit` characters, without control or invisible characters."""
    plain = _INVISIBLE.sub("", _CONTROL.sub(" ", text[: 2 * limit])).strip()
    plain = _SURROGATE.sub("\ufffd", plain)
    return plain if len(plain) <= limit and len(text) <= 2 * limit else f"{plain[: limit - 4]} ..."


def markdown(text: str, limit: int = 1000) -> str:
    """Text that GitHub shows as it is: no HTML, no mention, no link, no reference, no formatting, no formula."""
    linkless = _LINKS.sub(lambda found: f"{found[0]}{BREAK}", one_line(text, limit))
    literal = _PUNCTUATION.sub(r"\\\1", _BLOCK_START.sub(BREAK, linkless))
    return literal.replace("&", "&amp;").replace("<", "&lt;").replace("$", "&#36;")


def fence_for(rows: tuple[str, ...]) -> str:
    """A code fence longer than any run of backticks in the rows."""
    longest = max((len(run) for row in rows for run in re.findall(r"`+", row)), default=0)
    return "`" * max(3, longest + 1)


def fenced_row(text: str, limit: int = 1000) -> str:
    """A row inside a code fence, with its indentation: no mention and no marker of ours, otherwise as it is."""
    indent = " " * min(len(text) - len(text.lstrip(" ")), 40)
    return indent + one_line(text, limit).replace("@", f"@{BREAK}").replace("<!--", f"<!{BREAK}--")
