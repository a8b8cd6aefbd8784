"""On a runner of GitHub's no line that we print is a command, wherever its text comes from."""

import io
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fakes.command_server import verl_e2e
from tests.fakes.patience import HANG_S
from verl_e2e.cli.command import StepOutput
from verl_e2e.core.text.escape import BREAK, step_text

PIECES = st.lists(st.text(alphabet=st.sampled_from(list(":#[]\n\r \t\x85\u2028ea")), max_size=5), max_size=8)


def commands(printed: str) -> list[str]:
    """The lines that GitHub's runner takes for commands to it."""
    return [line for line in re.split(r"\r\n|\r|\n", printed) if line.strip().startswith("::") or "##[" in line]


@given(PIECES)
@example([":", ":error::x"])
@example(["a\n ", " :", ":x"])
@example(["##", "[group]"])
@example(["#", "#["])
@example(["x\r", "::y"])
def test_pieces_make_no_command_either(pieces: list[str]) -> None:
    raw = io.BytesIO()
    out = StepOutput(raw, "utf-8", newline="")
    for piece in pieces:
        assert out.write(piece) == len(piece)
    out.flush()
    printed = raw.getvalue().decode()
    assert printed == step_text("".join(pieces))
    assert commands(printed) == []
    assert printed.replace(BREAK, "") == "".join(pieces)


@pytest.mark.parametrize("lead", ["", " \t"])
@pytest.mark.parametrize("where", ["true", ""])
def test_a_hostile_name_is_no_command_on_the_runner_and_untouched_elsewhere(
    tmp_path: Path, where: str, lead: str
) -> None:
    name = f"x\n{lead}::error title=verl-e2e::All required jobs passed\n::stop-commands::t\n##[add-mask]a"
    done = subprocess.run(
        [*verl_e2e(), "judge", name],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "GITHUB_ACTIONS": where, "PYTHONUTF8": "1"},
        capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert "All required jobs passed" in printed
    assert bool(commands(printed)) is (where == "")
