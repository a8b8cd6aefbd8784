"""Our Markdown in a page, laid out by the rules of style that GitHub documents for comments and checks.

Markdown becomes HTML as GitHub's dialect has it: CommonMark with tables. The style is ours; what it shares with
GitHub's is what decides whether something fits: wide tables and code scroll by themselves, long words break.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from markdown_it import MarkdownIt

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
STYLE = """
* { box-sizing: border-box }
body { margin: 0; padding: 16px; background: var(--page); color: var(--text); font: 14px/1.5 "Noto Sans", Helvetica,
  Arial, "DejaVu Sans", "Noto Color Emoji", sans-serif }
article { max-width: 920px; margin: 0 auto 16px; border: 1px solid var(--line); border-radius: 6px }
header { padding: 8px 16px; background: var(--bar); border-bottom: 1px solid var(--line); font-weight: 600 }
main { padding: 16px; overflow-wrap: break-word }
h3 { margin: 0 0 16px; font-size: 1.25em; line-height: 1.25 }
p, table, pre, ul, details, blockquote { margin: 0 0 16px }
main > :last-child { margin-bottom: 0 }
ul { padding-left: 2em }
a { color: var(--link); text-decoration: none }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse }
th, td { padding: 6px 13px; border: 1px solid var(--line) }
tr:nth-child(2n) td { background: var(--bar) }
pre { padding: 16px; overflow: auto; border-radius: 6px; background: var(--code); font-size: 85%; line-height: 1.45 }
code { font-family: "DejaVu Sans Mono", monospace }
p code, li code, td code { padding: .2em .4em; border-radius: 6px; background: var(--code); font-size: 85% }
blockquote { padding: 0 1em; border-left: .25em solid var(--line) }
summary { cursor: pointer }
details > summary + * { margin-top: 16px }
"""


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a page, by the names that the style uses."""

    name: str
    colours: Mapping[str, str]


LIGHT = Theme(
    "light",
    {"page": "#ffffff", "text": "#1f2328", "line": "#d1d9e0", "bar": "#f6f8fa", "code": "#f0f2f4", "link": "#0969da"},
)
DARK = Theme(
    "dark",
    {"page": "#0d1117", "text": "#f0f6fc", "line": "#3d444d", "bar": "#151b23", "code": "#1c232c", "link": "#4493f8"},
)
THEMES = (LIGHT, DARK)


def markdown_html(text: str, *, html: bool = True) -> str:
    """The HTML of a comment, its HTML comments taken out; without `html` every other tag in it is text."""
    made: str = MarkdownIt("commonmark", {"html": html}).enable("table").render(text)
    return _COMMENT.sub("", made)


def page(parts: Mapping[str, str], theme: Theme, *, opened: tuple[str, ...] = ()) -> str:
    """One page with a box for each part, by its heading; a fold whose title begins with one of `opened` is open."""
    colours = "".join(f"--{name}: {value};" for name, value in theme.colours.items())
    boxes = "".join(
        f"<article><header>{escape(heading)}</header><main>{_opened(markdown_html(text), opened)}</main></article>"
        for heading, text in parts.items()
    )
    head = f'<meta charset="utf-8"><title>{theme.name}</title><style>:root {{{colours}}}{STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{boxes}</body></html>"


def _opened(html: str, titles: tuple[str, ...]) -> str:
    for title in titles:
        html = html.replace(f"<details><summary>{title}", f"<details open><summary>{title}")
    return html
