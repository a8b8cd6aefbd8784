"""`verl-e2e triage` as a whole process: bare lines, explanations, run folders, and mistakes."""

import json
import os
import pty
import subprocess
from pathlib import Path

from tests.fakes.command_server import verl_e2e
from tests.fakes.places import ROOT

LOG = ROOT / "tests" / "fixtures" / "logs" / "level0-dataset-missing.log.xz"
FOLDER = ROOT / "bot" / "verl_e2e" / "demo" / "recording"


def triage(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [*verl_e2e(), "triage", *map(str, arguments)]
    environment = {**os.environ}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)


def test_a_log_is_one_json_line() -> None:
    done = triage(LOG, LOG)
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [(row["verdict"], row["stage"], row["line"]) for row in rows] == [("blocked", "data", 1211)] * 2
    assert "phases" not in rows[0]


def test_an_explanation_is_text_or_json() -> None:
    text, shown = triage("--explain", LOG), triage("--explain", "--json", LOG)
    assert text.stdout.startswith(f"{LOG}: blocked in data\n")
    assert "Decided by rule data: the stage decides" in text.stdout
    assert "What to do: " in text.stdout
    assert "docs/triage.md#data." in text.stdout
    (row,) = (json.loads(line) for line in shown.stdout.splitlines())
    assert [phase["stage"] for phase in row["phases"]] == ["environment", "ray", "data"]
    assert row["candidates"][0]["chosen"] is True


def test_a_run_folder_is_explained_with_the_seconds_of_its_events() -> None:
    (row,) = (json.loads(line) for line in triage("--explain", "--json", FOLDER).stdout.splitlines())
    assert row["verdict"] == "pass"
    seconds = [phase["seconds"] for phase in row["phases"] if phase["stage"] in ("ray", "train_step")]
    assert 0 < seconds[0] < seconds[1]


def test_a_folder_without_a_log_is_the_users_mistake(tmp_path: Path) -> None:
    done = triage("--explain", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == f"verl-e2e: {tmp_path}: no log in this folder; give a log file or a run folder"


def test_a_log_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "image.log").write_bytes(b"\x89PNG\r\n\x1a\n")
    done = triage(LOG, tmp_path / "missing.log", tmp_path / "image.log", LOG)
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 2
    missing, image = done.stderr.splitlines()
    assert missing == f"verl-e2e: {tmp_path}/missing.log: there is no such file. Check the path."
    assert "image.log: this is a binary file, not a console log." in image


def on_a_terminal(*arguments: object) -> str:
    """What the program prints with a pseudo terminal as its standard output."""
    leader, follower = pty.openpty()
    argv = [*verl_e2e(), "triage", *map(str, arguments)]
    done = subprocess.run(argv, stdout=follower, env={**os.environ}, check=False)
    os.close(follower)
    with os.fdopen(leader, "rb") as terminal:
        shown = os.read(terminal.fileno(), 1 << 16).decode()
    assert done.returncode == 0
    return shown.replace("\r\n", "\n")


def test_a_terminal_gets_text_and_a_pipe_gets_json_lines() -> None:
    text = triage("--text", LOG).stdout
    assert text.startswith(f"{LOG}: blocked in data\n  the data set cannot be used")
    assert "  log:    line 1211: " in text
    assert on_a_terminal(LOG) == text
    (row,) = (json.loads(line) for line in triage(LOG).stdout.splitlines())
    assert json.loads(on_a_terminal("--json", LOG)) == row
    assert row["frame"]["function"] == "_read_files_and_tokenize"
