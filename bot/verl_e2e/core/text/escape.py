"""Text of unknown origin, made harmless: one line, no terminal tricks, no markup, no mention, no link.

Log text is hostile. Everything on a card goes through here, so that a log can neither format it, nor call
anyone, nor pretend to be one of our own markers. A sentence of our own that holds foreign text is a `Prose`.
A long document is made of blocks, which lose their last rows by rule where it must fit, and say so.
"""

import difflib
import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from string import Formatter

# Where our documents can be read: the reader of a message may have no checkout of verl-e2e.
HOME = "https://github.com/verl-project/verl-e2e"
# The pages that messages name; another text with such a name is of the repository that is tested.
PAGES = ("install", "levels", "parity", "policy", "runners/ray", "space", "triage")
_PAGE = rf"docs/(?:{'|'.join(PAGES)})\.md(?:#[\w-]{{1,100}})?"
_NAMED = re.compile(rf"(?<![\w./`-]){_PAGE}")
_PAGE_AS_CODE = re.compile(rf"`({_PAGE})`")


def any_word(words: Iterable[str]) -> re.Pattern[bytes]:
    """An expression that finds any of the words, or dotted names, as a whole; empty ones are left out."""
    alternatives = "|".join(re.escape(word) for word in sorted({*words}) if word)
    return re.compile(rf"\b(?:{alternatives})\b".encode("utf-8", "surrogateescape"))


def count_of(number: int, noun: str) -> str:
    """A number and its noun: `1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def likely(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, empty where none is near."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1)), "")


def suggest(word: str, known: Iterable[str]) -> str:
    """The fix for a word that is not known: the likely one meant, else the words that there are."""
    choices = sorted(known)
    near = likely(word, choices)
    if near:
        return f"did you mean {near!r}?"
    return f"known here: {', '.join(choices)}" if choices else "remove it"


# Control characters, line separators, and the marks that reverse or hide text on screen.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_INVISIBLE = re.compile(
    r"[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")

# A zero-width space: breaks a mention, a link or a marker without showing.
BREAK = "\u200b"
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]()+!|~>])")
# What begins a link or a reference: the break goes inside of it, because cmark-gfm and browsers take one behind `://`
# for a part of the host. `www` has no boundary in front, for cmark-gfm links `_www.` too.
_LINKS = re.compile(
    r"(?i)(@|#|:(?=//)|(?<![a-z0-9])(?:gh|ghsa|cve)(?=-)|www(?=\.)|(?:mailto|xmpp)(?=:)|:(?=[\w+-]+:))",
)
_BLOCK_START = re.compile(r"^(?=[-=]|:-|\d+[.)])")
# GitHub links a word of 7 to 40 hexadecimal digits when it is a commit, and shortens it; in code it does neither.
_COMMIT = re.compile(r"(?<!\w)[0-9a-fA-F]{7,40}(?!\w)")
# The text between two single backticks, and after one where the text was cut.
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)|(?<!`)`([^`]+ \.\.\.)$")
# Line ends as Python and .NET have them; a run of white space is one line's, so that this stays linear.
LINE_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_COMMAND = re.compile(rf"(?:^|[{LINE_ENDS}])[^\S{LINE_ENDS}]*::|##\[")


def first_clause(text: str) -> str:
    """The text up to its first semicolon or the end of its first sentence, with a full stop."""
    first = re.split(r";\s|(?<=[.!?])\s(?=[A-Z])", text, maxsplit=1)[0]
    return f"{first.rstrip('.')}." if first else ""


def one_line(text: str, limit: int = 4000) -> str:
    """`text` on one line of at most `limit` characters, without control or invisible characters."""
    plain = _SURROGATE.sub("\ufffd", _INVISIBLE.sub("", _CONTROL.sub(" ", text[: 2 * limit]))).strip()
    return plain if len(plain) <= limit and len(text) <= 2 * limit else f"{plain[: limit - 4]} ..."


def markdown(text: str, limit: int = 1000) -> str:
    """Text that GitHub shows as it is: no HTML, no mention, no link, no reference, no formatting, no formula.

    A `Prose` keeps its code; what looks like a commit stands as code in either, so that it can be copied whole.
    """
    if isinstance(text, Prose) and len(text) <= limit:
        return _BLOCK_START.sub(BREAK, text.markdown)
    return _BLOCK_START.sub(BREAK, _literal(one_line(text, limit)))


def sentence(text: str, limit: int = 1000) -> str:
    """`markdown` of a text that may have been kept and read back: what stands between two backticks is code.

    Code of `code` is as harmless as text, so whose backticks they are makes no difference.
    """
    if isinstance(text, Prose) and len(text) <= limit:
        return markdown(text, limit)
    line = one_line(text, limit)
    parts: list[tuple[bool, str]] = []
    end = 0
    for span in _CODE.finditer(line):
        parts += [(False, line[end : span.start()]), (True, span[1] or span[2])]
        end = span.end()
    parts.append((False, line[end:]))
    return markdown(Prose(tuple(part for part in parts if part[1])), len(text) + limit)


def _literal(line: str) -> str:
    """One line of text as Markdown that shows just that."""
    shown = []
    end = 0
    for commit in _COMMIT.finditer(line):
        shown += [_escaped(line[end : commit.start()]), f"`{commit[0]}`"]
        end = commit.end()
    return "".join((*shown, _escaped(line[end:])))


def _escaped(line: str) -> str:
    linkless = _LINKS.sub(lambda found: f"{found[0]}{BREAK}", line)
    literal = _PUNCTUATION.sub(r"\\\1", linkless)
    return literal.replace("&", "&amp;").replace("<", "&lt;").replace("$", "&#36;")


def summary_html(text: str, limit: int = 300) -> str:
    """`text` for the title of a `<details>`, where GitHub reads HTML and no Markdown."""
    line = _LINKS.sub(lambda found: f"{found[0]}{BREAK}", one_line(text, limit))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace("$", "&#36;")
    return _COMMIT.sub(lambda found: f"<code>{found[0]}</code>", line)


def code(text: str, limit: int = 1000) -> str:
    """`text` as inline code of Markdown, also inside a table: it shows as it is and can be copied."""
    line = one_line(text, limit)
    # A pipe ends a table's cell even inside of code, and a backtick ends the code.
    if "`" in line or "|" in line:
        return f"<code>{_escaped(line)}</code>"
    return f"`{line}`" if line else ""


class Prose(str):
    """A sentence of our own, made by `prose`: the string itself is its plain text, `markdown` what a comment shows.

    Every operation on it gives a plain `str`, which is foreign text again: to forget about the type costs the look of
    a command, and never the safety of a card.
    """

    __slots__ = ("parts",)
    parts: tuple[tuple[bool, str], ...]
    """The text piece by piece; true says that a piece is code."""

    def __new__(cls, parts: tuple[tuple[bool, str], ...]) -> "Prose":
        """The sentence of these pieces."""
        made = super().__new__(cls, "".join(f"`{text}`" if is_code else text for is_code, text in parts))
        made.parts = parts
        return made

    def __reduce__(self) -> tuple[type["Prose"], tuple[tuple[tuple[bool, str], ...]]]:
        return Prose, (self.parts,)

    @property
    def markdown(self) -> str:
        """The sentence as Markdown: our code is code, all else shows as it is."""
        return "".join(code(text, len(text)) if is_code else _literal(text) for is_code, text in self.parts)


def prose(template: str, /, **values: str) -> Prose:
    """A sentence from a template of ours and foreign values: `prose("comment `/verl-e2e approve {sha}`", sha=...)`.

    What stands between backticks of the template is code. A value is plain text wherever it stands; one that is a
    `Prose` keeps its own code, unless it stands inside of code.
    """
    parts: list[tuple[bool, str]] = []
    for number, piece in enumerate(template.split("`")):
        if number % 2:
            parts.append((True, one_line(piece.format_map(values))))
            continue
        for own, name, _, _ in Formatter().parse(piece):
            value = values[name] if name else ""
            parts += ((False, own), *(value.parts if isinstance(value, Prose) else [(False, one_line(value))]))
    # Neighbours of one kind are one text: two values side by side may make a link that neither is.
    groups = groupby((part for part in parts if part[1]), key=itemgetter(0))
    return Prose(tuple((is_code, "".join(text for _, text in group)) for is_code, group in groups))


_CELLS = re.compile(r"(?<!\\)\|")


def plain_section(section: str) -> str:
    """Markdown of `markdown` and `code` for a terminal: without their escapes, the cells of a table side by side."""
    rows = []
    for line in section.split("\n"):
        if line.startswith("|---"):
            continue
        row = "  ".join(cell.strip() for cell in _CELLS.split(line)[1:-1]) if line.startswith("|") else line
        row = re.sub(r"^#+ |</?code>", "", row.replace(BREAK, ""))
        rows.append(html.unescape(re.sub(r"\\([\\`*_{}\[\]()+!|~>])", r"\1", row)))
    return "\n".join(rows)


def fence_for(rows: tuple[str, ...]) -> str:
    """A code fence longer than any run of backticks in the rows."""
    longest = max((len(run) for row in rows for run in re.findall(r"`+", row)), default=0)
    return "`" * max(3, longest + 1)


def fenced_row(text: str, limit: int = 1000) -> str:
    """A row inside a code fence, with its indentation: no mention and no marker of ours, otherwise as it is."""
    indent = " " * min(len(text) - len(text.lstrip(" ")), 40)
    return indent + one_line(text, limit).replace("@", f"@{BREAK}").replace("<!--", f"<!{BREAK}--")


def step_text(text: str) -> str:
    """Text as a step of a GitHub workflow may print it: no line of it is a command to the runner.

    The runner takes `::name::` at the start of a line, behind any white space, and `##[name]` wherever it stands.
    """
    return _COMMAND.sub(lambda found: f"{found[0][:-1]}{BREAK}{found[0][-1]}", text)


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Rows between an opening and a closing; complete Markdown with any number of its rows.

    `share` is the number of characters that the block may take at most.
    """

    opening: str
    rows: tuple[str, ...]
    closing: str
    share: int


def fit_blocks(blocks: tuple[TextBlock, ...], limit: int, note: str) -> str:
    """All blocks in at most `limit` characters; one that lost rows ends with `note`, in its own place."""
    text = ""
    for block in blocks:
        left = min(block.share, limit - len(text))
        shown = _text(block, block.rows)
        if len(shown) > left:
            left -= len(_text(block, (note,)))
            ends = accumulate(len(row) + 1 for row in block.rows)
            kept = [row for row, end in zip(block.rows, ends, strict=True) if end <= left]
            shown = _text(block, (*kept, note)) if left >= 0 else ""
        text += shown
    return text


def _text(block: TextBlock, rows: tuple[str, ...]) -> str:
    return "\n".join((block.opening, *rows, block.closing)) + "\n"


def folded(title: str, rows: tuple[str, ...], share: int) -> TextBlock:
    """Rows of Markdown behind a title that opens on a click."""
    return TextBlock(f"<details><summary>{title}</summary>\n", rows, "\n</details>", share)


def folded_text(title: str, rows: tuple[str, ...], share: int) -> TextBlock:
    """Rows of plain text behind a title, in a fence that none of them can close."""
    return _fenced(f"<details><summary>{title}</summary>", rows, "\n</details>", share)


def open_text(title: str, rows: tuple[str, ...], share: int) -> TextBlock:
    """Rows of plain text under a title, not folded, in a fence that none of them can close."""
    return _fenced(f"**{title}**", rows, "", share)


def _fenced(title: str, rows: tuple[str, ...], end: str, share: int) -> TextBlock:
    inert = tuple(map(fenced_row, rows))
    fence = fence_for(inert)
    return TextBlock(f"{title}\n\n{fence}text", inert, f"{fence}\n{end}", share)


def with_addresses(text: str) -> str:
    """A text for a terminal, each page as an address that opens."""
    return _NAMED.sub(lambda page: f"{HOME}/blob/main/{page[0]}", text)


def as_code(text: str) -> str:
    """A text with each page as code, for `with_links` after it was made Markdown."""
    return _NAMED.sub(r"`\g<0>`", text)


def with_links(markdown: str) -> str:
    """Markdown with a link from each page that is code in it."""
    return _PAGE_AS_CODE.sub(lambda page: f"[{page[0]}]({HOME}/blob/main/{page[1]})", markdown)
