"""The command lines of a comment: where CommonMark says that plain text stands, and nowhere else."""

import re
from collections.abc import Iterator
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from verl_e2e.core.pulls.commands import PREFIX, CommandLine

MAX_COMMENT = 65_536
# Up to here the worst comment takes some hundredths of a second; the time grows with the square of the length.
SHORT_COMMENT = 2_048
_QUOTES = {"blockquote_open": 1, "blockquote_close": -1}
_LINKS = {"link_open": 1, "link_close": -1, "s_open": 1, "s_close": -1}
# HTML that quotes, shows or strikes what is in it, or folds it away. CommonMark reads on in it after an empty line.
_NOT_SAID = re.compile(r"<(/?)(?:blockquote|q|code|kbd|samp|pre|del|s|strike|details)(?=[\s/>])[^<>]*>", re.IGNORECASE)

_HTML_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def command_lines(body: str) -> tuple[CommandLine, ...]:
    """The lines of a comment that begin with the prefix, outside code, quotes, HTML, links, lists, tables and headings.

    What is struck or folded away is not said either.

    The prefix may be written in any case.
    A comment of more than 65,536 characters holds no command.
    """
    if PREFIX not in body.lower() or len(body) > MAX_COMMENT:
        return ()
    text = body.replace("\r\n", "\n").replace("\r", "\n")
    return tuple(_lines(_parser().parse(text), text.split("\n")))


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _lines(tokens: list[Token], source: list[str]) -> Iterator[CommandLine]:
    quotes, html, before = 0, 0, ""
    for token in tokens:
        quotes += _QUOTES.get(token.type, 0)
        if token.type == "html_block":
            html = _opened(html, token.content)
        if token.type == "inline" and before == "paragraph_open" and not quotes and token.map:
            for number in _plain_lines(token, token.map[0], html):
                # Also compared with the typed text: the bullet of a list or an entity is not part of it.
                if number < len(source) and _speaks(source[number]):
                    yield CommandLine(number + 1, source[number].strip())
        if token.type == "inline":
            html = _opened(html, "".join(part.content for part in token.children or () if part.type == "html_inline"))
        before = token.type


def _opened(depth: int, html: str) -> int:
    """How many elements are open behind some HTML whose content is not said by the author of the comment."""
    for tag in _NOT_SAID.finditer(_HTML_COMMENT.sub("", html)):
        depth = max(0, depth - 1) if tag[1] else depth + 1
    return depth


def _plain_lines(paragraph: Token, first: int, html: int) -> Iterator[int]:
    """The 0-based lines of one paragraph whose first text is plain and speaks to the bot."""
    number, begins, links = first, not html, 0
    for token in paragraph.children or ():
        links += _LINKS.get(token.type, 0)
        html = _opened(html, token.content) if token.type == "html_inline" else html
        if token.type in {"softbreak", "hardbreak"}:
            number, begins = number + 1, not links and not html
            continue
        if begins and token.type == "text" and _speaks(token.content):
            yield number
        begins = begins and not token.content.strip() and not token.markup
        number += token.content.count("\n")


def _speaks(text: str) -> bool:
    words = text.split(maxsplit=1)
    return bool(words) and words[0].lower() == PREFIX
