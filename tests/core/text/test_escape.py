"""Foreign text on a card can neither format, mention, link, hide nor break out."""

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.text.escape import (
    BREAK,
    Prose,
    TextBlock,
    code,
    fence_for,
    fenced_row,
    first_clause,
    fit_blocks,
    folded,
    folded_text,
    markdown,
    one_line,
    plain_section,
    prose,
    sentence,
    step_text,
    summary_html,
)

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
        ("fixes #12 GH-12", f"fixes #{BREAK}12 GH{BREAK}-12"),
        ("GHSA-a CVE-1 _gh-2 high-3", f"GHSA{BREAK}-a CVE{BREAK}-1 \\_gh{BREAK}-2 high-3"),
        ("https://x.y _www.x.y", f"https:{BREAK}//x.y \\_www{BREAK}.x.y"),
        ("mailto:x", f"mailto{BREAK}:x"),
        ("to 9d42cc18df86. In 1_9d42cc18df86", "to `9d42cc18df86`. In 1\\_9d42cc18df86"),
        ("`9d42cc18df86`9d42cc1", "\\``9d42cc18df86`\\``9d42cc1`"),
        (":white_check_mark:", f":{BREAK}white\\_check\\_mark:"),
        ("[a](b) ![c](d)", "\\[a\\]\\(b\\) \\!\\[c\\]\\(d\\)"),
        ("**a** _b_ ~~c~~ `d` a|b", "\\*\\*a\\*\\* \\_b\\_ \\~\\~c\\~\\~ \\`d\\` a\\|b"),
        ("$x$", "&#36;x&#36;"),
        ("- [x] done", f"{BREAK}- \\[x\\] done"),
        ("1. one", f"{BREAK}1. one"),
        ("--- === +", f"{BREAK}--- === \\+"),
        (":-- -:", f"{BREAK}:-- -:"),
        ("12 steps", "12 steps"),
        ("a:b c: d", "a:b c: d"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    assert markdown(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/verl-e2e run", "`/verl-e2e run`"),
        (" a\nb ", "`a b`"),
        ("a|b `c` @d", f"<code>a\\|b \\`c\\` @{BREAK}d</code>"),
        ("", ""),
    ],
)
def test_code_shows_text_as_it_is(text: str, shown: str) -> None:
    assert code(text) == shown


def test_a_title_that_opens_on_a_click_shows_text_as_it_is() -> None:
    assert summary_html("a_b <b> @me $x 9d42cc18df86") == f"a_b &lt;b> @{BREAK}me &#36;x <code>9d42cc18df86</code>"


SHA = "9f1060fe185625ae414b971091b0fd1b4d1475d7"


def test_a_command_of_ours_is_code_and_what_foreign_text_brings_is_not() -> None:
    text = prose("awaiting approval, for {why}; `/verl-e2e approve {sha}` lets it run", why="`x` @me", sha=SHA)
    assert text == f"awaiting approval, for `x` @me; `/verl-e2e approve {SHA}` lets it run"
    assert markdown(text) == (f"awaiting approval, for \\`x\\` @{BREAK}me; `/verl-e2e approve {SHA}` lets it run")


def test_a_sentence_in_a_sentence_keeps_its_code() -> None:
    inner = prose("`run` starts again")
    assert markdown(prose("{who}: {inner}.", who="_a_", inner=inner)) == "\\_a\\_: `run` starts again."
    assert markdown(prose("`x {inner}`", inner=inner)) == "<code>x \\`run\\` starts again</code>"
    assert markdown(prose("{a}`b`", a=prose("`a`"))) == "`ab`"


def test_a_sentence_of_ours_that_was_worked_on_is_foreign_text_again() -> None:
    text = prose("`run` starts")
    assert isinstance(text, Prose)
    for worked in (f"{text}.", text + ".", text.replace("starts", "begins"), text[:9], "".join((text,))[:]):
        assert not isinstance(worked, Prose) or worked == text
    assert markdown(f"{text}.") == "\\`run\\` starts."


def test_a_sentence_of_ours_comes_whole_through_another_process() -> None:
    text = prose("`run` starts")
    copied = pickle.loads(pickle.dumps(text))
    assert (copied, copied.markdown) == (text, text.markdown)


def test_a_sentence_that_is_too_long_is_cut_as_plain_text() -> None:
    assert markdown(prose("`run` {more}", more="x" * 50), 20) == "\\`run\\` xxxxxxxxxx ..."


def test_two_values_side_by_side_make_no_link() -> None:
    assert markdown(prose("{a}{b}", a="www", b=".x.y")) == f"www{BREAK}.x.y"
    assert markdown(prose("{a}{b}", a="http:", b="//x.y")) == f"http:{BREAK}//x.y"
    assert markdown(prose("{a} {b}", a="-", b="item")) == f"{BREAK}- item"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error::x", f":{BREAK}:error::x"),
        ("a\n \t::add-mask::y\n", f"a\n \t:{BREAK}:add-mask::y\n"),
        ("a\r::x::\v::y::\u2028 ::z", f"a\r:{BREAK}:x::\v:{BREAK}:y::\u2028 :{BREAK}:z"),
        ("at ##[group]b", f"at ##{BREAK}[group]b"),
        ("torch::empty a::b", "torch::empty a::b"),
        ("\n\n\u00a0::x", f"\n\n\u00a0:{BREAK}:x"),
    ],
)
def test_a_step_prints_no_command_to_the_runner(text: str, shown: str) -> None:
    assert step_text(text) == shown


@given(st.text(alphabet=st.sampled_from(list(":#[] \t\r\n\v\f\x1c\x85\u2028\u00a0aerro")), max_size=60))
def test_no_line_that_a_runner_reads_is_a_command(text: str) -> None:
    shown = step_text(text)
    assert "##[" not in shown
    for line in re.split(r"[\r\n]", shown):
        assert not line.strip().startswith("::")
    assert shown.replace(BREAK, "") == text


@given(st.lists(HOSTILE, max_size=6))
def test_a_fence_cannot_be_closed_from_inside(rows: list[str]) -> None:
    block = folded_text("Evidence", tuple(rows), 10_000)
    text = fit_blocks((block,), 10_000, "cut")
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
    assert (
        fit_blocks((TextBlock("o", ("a", "b"), "c", 100), TextBlock("p", (), "q", 100)), 100, "cut")
        == "o\na\nb\nc\np\nq\n"
    )


def test_a_block_loses_its_last_rows_and_says_so() -> None:
    block = TextBlock("o", tuple("abcdefgh"), "c", 14)
    assert fit_blocks((block,), 100, "cut") == "o\na\nb\nc\ncut\nc\n"
    assert len(fit_blocks((block,), 100, "cut")) == 14


def test_a_block_without_room_for_its_note_is_left_out() -> None:
    assert fit_blocks((TextBlock("opening", ("a" * 50,), "closing", 100),), 15, "note") == ""


@given(st.lists(st.lists(st.text(max_size=80), max_size=20), max_size=6), st.integers(0, 400), st.integers(0, 600))
def test_no_document_grows_beyond_its_limit(rows: list[list[str]], share: int, limit: int) -> None:
    blocks = tuple(folded("t", tuple(map(markdown, row)), share) for row in rows)
    text = fit_blocks(blocks, limit, "cut")
    assert len(text) <= limit
    assert text.count("<details>") == text.count("</details>")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("comment `/verl-e2e run` now", "comment `/verl-e2e run` now"),
        ("`a` and `b`", "`a` and `b`"),
        ("no code *here*", "no code \\*here\\*"),
        ("one ` alone", "one \\` alone"),
        ("```", "\\`\\`\\`"),
        ("``a``", "\\`\\`a\\`\\`"),
        ("cut in `the mid ...", "cut in `the mid ...`"),
        ("`a|b`", "<code>a\\|b</code>"),
        ("`@all`", "`@all`"),
        ("", ""),
    ],
)
def test_what_stands_between_two_backticks_is_code(text: str, shown: str) -> None:
    assert sentence(text) == shown


def test_a_sentence_that_is_prose_stays_as_it_is() -> None:
    assert sentence(prose("`{what}` and {what}", what="a*b")) == "`a*b` and a\\*b"
    assert len(sentence(prose("{what}", what="a" * 90), 20)) <= 24


@pytest.mark.parametrize(
    "text",
    ["Rehearsal (CPU): 2 cells", "a_b*c [x](y) ~ #7 @someone https://a.example/b", "<b> & $x$ `y`", "a|b", "12 > 3. !"],
)
def test_a_section_for_a_terminal_has_the_text_and_none_of_the_escapes(text: str) -> None:
    section = (
        f"### {markdown(text)}\n\n| cell | where |\n|---|---|\n| {code(text)} | {markdown(text)} |\n- {markdown(text)}"
    )
    plain = text.replace("`", "")
    shown = [row.replace("`", "") for row in plain_section(section).split("\n")]
    assert shown == [plain, "", "cell  where", f"{plain}  {plain}", f"- {plain}"]


def test_the_first_clause_ends_where_another_begins() -> None:
    assert first_clause("Give v1.2 of it. Then run again. Wait.") == "Give v1.2 of it."
    assert first_clause("Give it; then run again.") == "Give it."
    assert first_clause("no end") == "no end."
    assert first_clause("") == ""
