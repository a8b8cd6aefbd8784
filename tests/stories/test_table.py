"""README.md of this folder names every story, and none that is not there."""

import re
from pathlib import Path

from tests.fakes.places import ROOT

NAMED = re.compile(r"`(test_\w+\.py)(?:::(test_\w+))?`")


DEFINED = re.compile(r"^def (test_\w+)", re.MULTILINE)


def test_the_table_names_every_story() -> None:
    # The page names the state machine as a whole: its searches are not single stories, and neither are the walks.
    whole = {Path(__file__).name, "test_machine.py", "test_walks.py"}
    files = [path for path in sorted(Path(__file__).parent.glob("test_*.py")) if path.name not in whole]
    there = {(file.name, name) for file in files for name in DEFINED.findall(file.read_text(encoding="utf-8"))}
    named = NAMED.findall((ROOT / "tests/stories/README.md").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(there | {("test_machine.py", "")})
