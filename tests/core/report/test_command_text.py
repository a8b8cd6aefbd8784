"""The commands as people read them: who has a capability, and the command that names the whole head."""

import pytest

from tools.write_tables import render_capabilities
from verl_e2e.core.report.command_text import render_named

HEAD = "a" * 40


def test_each_capability_is_shown_with_its_commands_and_who_has_it() -> None:
    rows = render_capabilities().splitlines()
    assert rows[0].startswith("| capability | commands |")
    (cancel,) = (row for row in rows if "`cancel`" in row)
    assert "the role write or a higher one, " in cancel
    assert any(row.endswith("| anyone |") for row in rows)


@pytest.mark.parametrize(
    ("verb", "words", "line"),
    (
        ("approve", (), f"/verl-e2e approve {HEAD}"),
        ("override", (), f"/verl-e2e override LEVEL {HEAD} REASON"),
        ("override", ("level0", "abcdef1", "no", "host"), f"/verl-e2e override level0 {HEAD} no host"),
        ("override", ("level0",), f"/verl-e2e override level0 {HEAD} REASON"),
    ),
)
def test_the_command_is_shown_whole_with_the_head(verb: str, words: tuple[str, ...], line: str) -> None:
    assert f"```text\n{line}\n```" in render_named(verb, HEAD, words)
