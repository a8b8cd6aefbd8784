"""docs/stories.md names every story, and none that is not there."""

import re
from pathlib import Path

from tests.fakes.places import ROOT

NAMED = re.compile(r"`(test_\w+\.py)(?:::(test_\w+))?`")


DEFINED = re.compile(r"^def (test_\w+)", re.MULTILINE)


def test_the_table_names_every_story() -> None:
    files = [one for one in sorted(Path(__file__).parent.glob("test_*.py")) if one.name != Path(__file__).name]
    there = {(one.name, name) for one in files for name in DEFINED.findall(one.read_text(encoding="utf-8"))}
    named = NAMED.findall((ROOT / "docs/stories.md").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(there | {("test_machine.py", "")})
