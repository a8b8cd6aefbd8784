"""Where a command may stand in a comment, and where it is only an example, a quotation or something hidden."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.adapters.markdown import MAX_COMMENT, command_lines

RUN = "/verl-e2e run"

FOUND = (
    (RUN, [(1, RUN)]),
    (f"   {RUN}  ", [(1, RUN)]),
    (f"Thanks!\n\n{RUN}\nand more words", [(3, RUN)]),
    (f"Thanks!\n{RUN}\n/verl-e2e level2 steps=3", [(2, RUN), (3, "/verl-e2e level2 steps=3")]),
    (f"a\r\n{RUN}\r\n", [(2, RUN)]),
    ("/verl-e2e explain src/a_b_c.py:__init__", [(1, "/verl-e2e explain src/a_b_c.py:__init__")]),
    (f"see `x` and\n{RUN}", [(2, RUN)]),
    (f"> what they said\n\n{RUN}", [(3, RUN)]),
    (f"```\n{RUN}\n```\n{RUN}", [(4, RUN)]),
    (f"<blockquote>\n\na\n\n</blockquote>\n\n{RUN}", [(7, RUN)]),
    (f"</details>\n\n{RUN}", [(3, RUN)]),
    (f"<!-- <blockquote> -->\n\n{RUN}", [(3, RUN)]),
    (f"<script>\n{RUN}\n</script>\n\n{RUN}", [(5, RUN)]),
    (f"a <del>b</del>\n{RUN}", [(2, RUN)]),
    (f"~~a~~\n{RUN}", [(2, RUN)]),
    ("/verl-e2e", [(1, "/verl-e2e")]),
    ("/verl-e2e\thelp", [(1, "/verl-e2e\thelp")]),
    ("/VERL-E2E help", [(1, "/VERL-E2E help")]),
    ("Hello\n/Verl-E2e RUN", [(2, "/Verl-E2e RUN")]),
    (f"- a\n- b\n{RUN}", [(3, RUN)]),
    (f"- a\n\n{RUN}", [(3, RUN)]),
    (f"<details>\n\n<s> a </s> b </s>\n\n</details>\n\n{RUN}", [(7, RUN)]),
    (f"<div>\n<!-- a\n\n<b>b</b> -->\n\nc\n\n<p>--></p>\n\n{RUN}", [(10, RUN)]),
    ("/verl-e2e run `level2`", [(1, "/verl-e2e run `level2`")]),
)


@pytest.mark.parametrize(("body", "found"), FOUND)
def test_a_command_line_is_found(body: str, found: list[tuple[int, str]]) -> None:
    assert [(command_line.number, command_line.text) for command_line in command_lines(body)] == found


NOT_FOUND = (
    f"```\n{RUN}\n```",
    f"~~~~\n```\n{RUN}\n~~~~",
    f"    {RUN}",
    f"`{RUN}`",
    f"`a\n{RUN}\nb`",
    f"`a\n{RUN}` x\ny",
    f"> {RUN}",
    f">\n> a\n{RUN}",
    f"> > {RUN}",
    f"<!-- {RUN} -->",
    f"<!--\n\n{RUN}\n\n-->",
    f"text <!--\n{RUN}\n--> text",
    f"<div>\n{RUN}\n</div>",
    f"<pre>\n\n{RUN}\n\n</pre>",
    f"<blockquote>\n\n{RUN}\n\n</blockquote>",
    f"<BLOCKQUOTE cite='x'>\n\na\n\n<b>b</b>\n\n{RUN}",
    f"a <q>b\n{RUN}\n</q>",
    f"a <q>b\n\n{RUN}\n\n</q>",
    f"<details>\n<summary>a</summary>\n\n{RUN}\n\n</details>",
    f"<del>a\n{RUN}\n</del>",
    f"~~a\n{RUN}\nb~~",
    f"[{RUN}](https://example.org)",
    f"[a\n{RUN}](https://example.org)",
    f"- {RUN}",
    f"1. {RUN}",
    f"- [ ] {RUN}",
    f"1. Write\n   {RUN}\n2. Wait",
    f"- a\n\n  {RUN}",
    f"- a\n  - b\n\n    {RUN}",
    # The token at the end of a text, in a log.
    f"<details>\n\na </s>\n\n{RUN}\n\n</details>",
    f"<details title='<'>\n\n{RUN}\n\n</details>",
    f"<!--> <details>\n\n{RUN}",
    f"<div>\n<!--\n\n{RUN}\n\n-->\n</div>",
    f"<div>\n<!-- <b>\n\n{RUN}",
    f"a <details>\n\n{RUN}\n\n</details>",
    f"<table><tr><td>\n\n{RUN}\n\n</td></tr></table>",
    f"<ul><li>\n\n{RUN}\n\n</li></ul>",
    f"<h2>\n\n{RUN}\n\n</h2>",
    f"# {RUN}",
    f"{RUN}\n===",
    f"| a |\n|---|\n| {RUN} |",
    f"**{RUN}**",
    f"please {RUN}",
    "&#47;verl-e2e run",
    "\\/verl-e2e run",
    "/verl-e2erun",
    "/verl-e2e2 run",
    "",
)


@pytest.mark.parametrize("body", NOT_FOUND)
def test_no_command_line_is_found(body: str) -> None:
    assert command_lines(body) == ()


def test_a_comment_beyond_the_bound_holds_no_command() -> None:
    assert command_lines(f"{RUN}\n" + "x" * MAX_COMMENT) == ()


@given(st.lists(st.sampled_from(["```", "> ", "    ", "`", "\n", RUN, "<!--", "-->", "- ", "[", "](x)", "~~~", "a"])))
def test_whatever_is_found_was_typed_at_the_start_of_its_line(parts: list[str]) -> None:
    body = "".join(parts)
    lines = body.split("\n")
    for command_line in command_lines(body):
        assert lines[command_line.number - 1].strip() == command_line.text
        assert command_line.text.startswith(RUN[:9])
