"""The command lines of a comment: where CommonMark says that plain text stands, and nowhere else."""

from collections.abc import Iterator
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from verl_e2e.core.pulls.commands import PREFIX, CommandLine

MAX_COMMENT = 65_536
# Up to here the worst comment takes some hundredths of a second; the time grows with the square of the length.
SHORT_COMMENT = 2_048
_QUOTES = {"blockquote_open": 1, "blockquote_close": -1}
_LINKS = {"link_open": 1, "link_close": -1}


def command_lines(body: str) -> tuple[CommandLine, ...]:
    """The lines of a comment that begin with the prefix, outside code, quotes, HTML, links, lists, tables and headings.

    The prefix may be written in any case.
    A comment of more than 65,536 characters holds no command.
    """
    if PREFIX not in body.lower() or len(body) > MAX_COMMENT:
        return ()
    text = body.replace("\r\n", "\n").replace("\r", "\n")
    return tuple(_lines(_parser().parse(text), text.split("\n")))


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


def _lines(tokens: list[Token], source: list[str]) -> Iterator[CommandLine]:
    quotes, before = 0, ""
    for token in tokens:
        quotes += _QUOTES.get(token.type, 0)
        if token.type == "inline" and before == "paragraph_open" and not quotes and token.map:
            for number in _plain_lines(token, token.map[0]):
                # Also compared with the typed text: the bullet of a list or an entity is not part of it.
                if number < len(source) and _speaks(source[number]):
                    yield CommandLine(number + 1, source[number].strip())
        before = token.type


def _plain_lines(paragraph: Token, first: int) -> Iterator[int]:
    """The 0-based lines of one paragraph whose first text is plain and speaks to the bot."""
    number, begins, links = first, True, 0
    for token in paragraph.children or ():
        links += _LINKS.get(token.type, 0)
        if token.type in {"softbreak", "hardbreak"}:
            number, begins = number + 1, not links
            continue
        if begins and token.type == "text" and _speaks(token.content):
            yield number
        begins = begins and not token.content.strip() and not token.markup
        number += token.content.count("\n")


def _speaks(text: str) -> bool:
    words = text.split(maxsplit=1)
    return bool(words) and words[0].lower() == PREFIX
