"""What GitHub's own renderer makes of foreign text: nothing but the text."""

import re
from collections.abc import Callable
from html.parser import HTMLParser

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options
from hypothesis import example, given
from hypothesis import strategies as st

from verl_e2e.core.text.escape import BREAK, code, markdown, one_line, prose, summary_html

HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *"`@<>!-#&|*_[]()~\\$:/.+=^\"' \n\t\r\x1b\u202e\u200b\ud800a1e",
                *("http", "https", "ftp", "HTTPS", "://", "www", "WWW", "www.", "_www.", ".evil.com", "evil.example"),
                *("mailto:", "xmpp:", "a@b.co", "<a href=//e.x>", "<!-- verl-e2e:card:v1 -->", "javascript:", "&lt;"),
                *("#1", "GH-1", "gh-12", "org/repo#1", "org/repo@", "@team/all", "@me", "9d42cc18df86", "1234567"),
                *("![x](https://e.x)", "[x](//e.x)", "[x]: //e.x", "[^1]", ":tada:", "- [ ] ", "1. ", ":-:", "---"),
                *("||", "```", "~~~", "$$", "$`", "`$", "\\\\", "/commit/", "/pull/1", "<details>", "GHSA-", "CVE-2"),
            ]
        ),
        st.text(max_size=3),
    ),
    max_size=12,
).map("".join)

# Where our comments and checks put foreign text, with the tags that are ours.
PLACES: dict[str, Callable[[str], str]] = {
    "alone": lambda text: text,
    "a list": lambda text: f"- {text}\n- b",
    "a quote": lambda text: f"> {text}",
    "a heading": lambda text: f"### x {text}\n",
    "bold": lambda text: f"**x {text} y**",
    "a table": lambda text: f"| a | b |\n|---|---|\n| {text} | c |",
    "under a row": lambda text: f"Head\n{text}\n",
}


class _Shown(HTMLParser):
    """The tags of a page, each with its attributes, and the text between."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.linkable: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(" ".join([tag, *(f"{name}={value}" for name, value in attrs)]))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")

    def handle_comment(self, data: str) -> None:
        self.tags.append(f"!{data}")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        # GitHub looks for mentions, references and commits everywhere but in code.
        self.linkable.append("" if self.tags and self.tags[-1] == "code" else data)


def shown(text: str) -> _Shown:
    page = cmarkgfm.github_flavored_markdown_to_html(text, Options.CMARK_OPT_UNSAFE | Options.CMARK_OPT_FOOTNOTES)
    found = _Shown()
    found.feed(page)
    found.close()
    return found


def without_code(tags: list[str]) -> list[str]:
    return [tag for tag in tags if tag not in {"code", "/code"}]


def plain(pieces: list[str]) -> str:
    return re.sub(r"\s+", " ", "".join(pieces).replace(BREAK, "")).strip()


def references(text: str) -> list[str]:
    """What GitHub makes links of after cmark-gfm is done, by its documentation."""
    return re.findall(
        r"(?i)@(?=\w)|(?<!&)#(?=\d)|\bgh-(?=\d)|\bghsa-|\bcve-(?=\d)|://|(?<!\w)[0-9a-f]{7,40}(?!\w)|:[\w+-]+:", text
    )


@pytest.mark.parametrize("place", PLACES)
@given(text=HOSTILE)
@example("https://evil.example/login")
@example("_www.evil.example")
@example("ftp://e.x xmpp:a@b.co mailto:a@b.co a@b.co")
@example("<https://e.x>")
@example(":--")
@example("a\\")
def test_foreign_text_is_text_wherever_it_stands(place: str, text: str) -> None:
    # The same place with text that can be nothing else.
    page, calm = shown(PLACES[place](markdown(text))), shown(PLACES[place]("x"))
    if markdown(text):
        assert without_code(page.tags) == without_code(calm.tags)
        assert references("\n".join(page.linkable)) == []
    if place == "alone":
        assert plain(page.text) == plain([one_line(text, 1000)])


@given(text=HOSTILE)
def test_foreign_text_is_text_in_a_title_that_opens_on_a_click(text: str) -> None:
    page, calm = (
        shown(f"<details><summary>{put} y</summary>\n\nz\n\n</details>") for put in (summary_html(text, 1000), "x")
    )
    assert without_code(page.tags) == without_code(calm.tags)
    assert references("\n".join(page.linkable)) == []
    assert plain(page.text) == plain([one_line(text, 1000), " y z"])


@given(why=HOSTILE, sha=st.from_regex(r"\A[0-9a-f]{40}\Z"))
def test_our_command_is_code_that_can_be_copied_whatever_stands_beside_it(why: str, sha: str) -> None:
    text = prose("awaiting {why}; `/verl-e2e approve {sha}` lets it run", why=why, sha=sha)
    page = cmarkgfm.github_flavored_markdown_to_html(f"| a |\n|---|\n| {markdown(text)} |", Options.CMARK_OPT_UNSAFE)
    assert f"<code>/verl-e2e approve {sha}</code> lets it run" in page


@given(text=HOSTILE)
def test_code_shows_what_it_was_given(text: str) -> None:
    line = one_line(text, 1000)
    for put in (PLACES["a list"], PLACES["a table"]):
        page = shown(put(code(text)))
        assert without_code(page.tags) == without_code(shown(put("x")).tags)
        assert references("\n".join(page.linkable)) == []
    assert plain(shown(code(text)).text) == plain([line])
