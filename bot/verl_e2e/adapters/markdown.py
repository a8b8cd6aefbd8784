"""The command lines of a comment: where CommonMark says that plain text stands, and nowhere else."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token

from verl_e2e.core.pulls.commands import PREFIX, CommandLine

MAX_COMMENT = 65_536
# Up to here the worst comment takes some hundredths of a second; the time grows with the square of the length.
SHORT_COMMENT = 2_048
_QUOTES = {"blockquote_open": 1, "blockquote_close": -1}
_LISTS = {"bullet_list_open": 1, "bullet_list_close": -1, "ordered_list_open": 1, "ordered_list_close": -1}
_LINKS = {"link_open": 1, "link_close": -1, "s_open": 1, "s_close": -1}
# HTML that quotes, lists, shows or strikes what is in it, or folds it away. CommonMark reads on in it after an empty
# line.
_NOT_SAID = "blockquote|q|code|kbd|samp|tt|pre|del|s|strike|details|summary|table|ul|ol|dl|h[1-6]"
# A comment, the start of one that this piece of HTML does not end, or a tag of the above.
_HTML = re.compile(rf"<!--(?:-?>|.*?--!?>)|(<!--)|<(/?)({_NOT_SAID})(?=[\s/>])", re.IGNORECASE | re.DOTALL)
_COMMENT_END = re.compile(r"--!?>")
_PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def command_lines(body: str) -> tuple[CommandLine, ...]:
    """The lines of a comment that begin with the prefix, outside code, quotes, HTML, links, lists, tables and headings.

    What is struck or folded away is not said either.

    The prefix may be written in any case.
    A comment of more than 65,536 characters holds no command.
    """
    if PREFIX not in body.lower() or len(body) > MAX_COMMENT:
        return ()
    text = body.replace("\r\n", "\n").replace("\r", "\n")
    source, found = text.split("\n"), []
    quotes, lists, html, before = 0, 0, _Html(), ""
    for token in _PARSER.parse(text):
        quotes += _QUOTES.get(token.type, 0)
        lists += _LISTS.get(token.type, 0)
        if token.type == "html_block":
            html.read(token.content)
        if token.type == "inline":
            numbers = list(_plain_lines(token, token.map[0] if token.map else 0, html))
            if before == "paragraph_open" and not quotes and token.map:
                for number in numbers:
                    # Also compared with the typed text: the bullet of a list or an entity is not part of it.
                    line = source[number] if number < len(source) else ""
                    # Behind a list, a line at the margin is not meant as part of it.
                    if _speaks(line) and not (lists and line[0].isspace()):
                        found.append(CommandLine(number + 1, line.strip()))
        before = token.type
    return tuple(found)


@dataclass(slots=True)
class _Html:
    """What the HTML of a comment has opened and not closed, while it is read."""

    # By name: another element's end closes none of them.
    elements: Counter[str] = field(default_factory=Counter)
    comment: bool = False

    def read(self, html: str) -> None:
        """Go on with the next piece."""
        if self.comment:
            end = _COMMENT_END.search(html)
            if end is None:
                return
            self.comment, html = False, html[end.end() :]
        for found in _HTML.finditer(html):
            if found[1]:
                self.comment = True
                return
            if found[3]:
                name = found[3].lower()
                self.elements[name] = max(0, self.elements[name] + (-1 if found[2] else 1))

    @property
    def says(self) -> bool:
        """Whether text at this place is shown as its author's own."""
        return not self.comment and not self.elements.total()


def _plain_lines(inline: Token, first: int, html: _Html) -> Iterator[int]:
    """The 0-based lines of some text whose first words are plain and speak to the bot."""
    number, begins, links = first, html.says, 0
    for token in inline.children or ():
        links += _LINKS.get(token.type, 0)
        if token.type == "html_inline":
            html.read(token.content)
        if token.type in {"softbreak", "hardbreak"}:
            number, begins = number + 1, not links and html.says
            continue
        if begins and token.type == "text" and _speaks(token.content):
            yield number
        begins = begins and not token.content.strip() and not token.markup
        number += token.content.count("\n")


def _speaks(text: str) -> bool:
    words = text.split(maxsplit=1)
    return bool(words) and words[0].lower() == PREFIX
