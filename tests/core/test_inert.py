"""Foreign text on a card can neither format, mention, link, hide nor break out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.core.blocks import Block, fit, folded, folded_text
from bot.core.inert import BREAK, fence_for, fenced_row, markdown, one_line

HOSTILE = st.text(
    alphabet=st.sampled_from(list("`@<>!-#&|*_[]()~\\$:/w.\n\r\x1b\x00é\u202e\u200b\ud800a1 ")), max_size=60
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        (" a\r\nb\tc\x1b[31m ", "a b c [31m"),
        ("a\u2028b\u0085c", "a b c"),
        ("abc\u202edcba\u2066x\u200by\ufeff", "abcdcbaxy"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("", ""),
    ],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


@pytest.mark.parametrize("text", ["x" * 50, "\x00" * 25 + "x" * 10])
def test_a_cut_line_says_that_it_is_cut(text: str) -> None:
    shown = one_line(text, 10)
    assert len(shown) <= 10
    assert shown.endswith(" ...")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<img src=x>", "&lt;img src=x\\>"),
        ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
        ("<!-- marker -->", "&lt;\\!-- marker --\\>"),
        ("@team/all a@b.c", f"@{BREAK}team/all a@{BREAK}b.c"),
        ("fixes #12 GH-12", f"fixes #{BREAK}12 GH-{BREAK}12"),
        ("https://x.y www.x.y", f"https://{BREAK}x.y www{BREAK}.x.y"),
        ("mailto:x", f"mailto:{BREAK}x"),
        (":white_check_mark:", f":{BREAK}white\\_check\\_mark:"),
        ("[a](b) ![c](d)", "\\[a\\]\\(b\\) \\!\\[c\\]\\(d\\)"),
        ("**a** _b_ ~~c~~ `d` a|b", "\\*\\*a\\*\\* \\_b\\_ \\~\\~c\\~\\~ \\`d\\` a\\|b"),
        ("$x$", "&#36;x&#36;"),
        ("- [x] done", f"{BREAK}- \\[x\\] done"),
        ("1. one", f"{BREAK}1. one"),
        ("--- === +", f"{BREAK}--- === \\+"),
        ("12 steps", "12 steps"),
        ("a:b c: d", "a:b c: d"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    assert markdown(text) == shown


@given(HOSTILE)
def test_no_markup_survives(text: str) -> None:
    shown = markdown(text)
    assert "\n" not in shown
    assert "<" not in shown
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]()|~>]", shown)
    assert not re.search(rf"[@#](?!{BREAK})", shown.replace("&#36;", ""))
    assert not re.search(rf"://(?!{BREAK})", shown)
    shown.encode()


@given(st.lists(HOSTILE, max_size=6))
def test_a_fence_cannot_be_closed_from_inside(rows: list[str]) -> None:
    block = folded_text("Evidence", tuple(rows), 10_000)
    text = fit((block,), 10_000, "cut")
    inside = text.split("\n")[3:-4] if rows else []
    fence = text.split("\n")[2].removesuffix("text")
    assert len(inside) == len(rows)
    assert all(fence not in row and "<!--" not in row and not re.search(rf"@(?!{BREAK})", row) for row in inside)
    assert text.endswith(f"\n{fence}\n\n</details>\n")


def test_a_fence_is_longer_than_what_it_holds() -> None:
    assert fence_for(()) == "```"
    assert fence_for(("a `b` ````c````",)) == "`````"
    assert fenced_row("  a @b <!-- c", 100) == f"  a @{BREAK}b <!{BREAK}-- c"


def test_blocks_that_fit_are_whole() -> None:
    assert fit((Block("o", ("a", "b"), "c", 100), Block("p", (), "q", 100)), 100, "cut") == "o\na\nb\nc\np\nq\n"


def test_a_block_loses_its_last_rows_and_says_so() -> None:
    block = Block("o", tuple("abcdefgh"), "c", 14)
    assert fit((block,), 100, "cut") == "o\na\nb\nc\ncut\nc\n"
    assert len(fit((block,), 100, "cut")) == 14


def test_a_block_without_room_for_its_note_is_left_out() -> None:
    assert fit((Block("opening", ("a" * 50,), "closing", 100),), 15, "note") == ""


@given(st.lists(st.lists(st.text(max_size=80), max_size=20), max_size=6), st.integers(0, 400), st.integers(0, 600))
def test_no_document_grows_beyond_its_limit(rows: list[list[str]], share: int, limit: int) -> None:
    blocks = tuple(folded("t", tuple(map(markdown, one)), share) for one in rows)
    text = fit(blocks, limit, "cut")
    assert len(text) <= limit
    assert text.count("<details>") == text.count("</details>")
