"""Write what is derived from the tables of the core: bench/grep.txt and parts of pages in docs."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bot"))

from verl_e2e.core.log.literals import grep_patterns  # noqa: E402  (this checkout)
from verl_e2e.core.report.command_text import render_capabilities, render_reference  # noqa: E402
from verl_e2e.core.report.space_text import (  # noqa: E402
    axes_table,
    exclusions_table,
    implications_table,
    masks_table,
)
from verl_e2e.core.triage.docs import noise_table, runbook  # noqa: E402
from verl_e2e.core.triage.table import RULES  # noqa: E402

BEGIN, END = "<!-- begin {} -->\n", "<!-- end {} -->\n"


def between(text: str, name: str, new: str) -> str:
    """`text` with what stands between the two marks replaced."""
    begin, end = BEGIN.format(name), END.format(name)
    head, rest = text.split(begin)
    return head + begin + new + end + rest.split(end)[1]


def main() -> None:
    """Rewrite the files in place."""
    (ROOT / "bench" / "grep.txt").write_text(grep_patterns())
    docs = ROOT / "docs" / "triage.md"
    text = between(docs.read_text(), "noise", noise_table())
    docs.write_text(between(text, "runbook", runbook(RULES)))
    docs = ROOT / "docs" / "commands.md"
    text = between(docs.read_text(), "capabilities", render_capabilities())
    docs.write_text(between(text, "commands", render_reference()))
    docs = ROOT / "docs" / "space.md"
    text = between(between(docs.read_text(), "axes", axes_table()), "needs", implications_table())
    docs.write_text(between(between(text, "exclusions", exclusions_table()), "masks", masks_table()))


if __name__ == "__main__":
    main()
