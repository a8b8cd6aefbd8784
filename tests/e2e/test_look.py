"""The verbs that show a run folder, called on recorded runs as a person calls them."""

import os
import pty
import select
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.fakes.command_server import verl_e2e
from tests.fakes.patience import HANG_S
from tests.fakes.places import FIXTURES
from tests.fakes.recorded import RUNS
from verl_e2e.cli import cli

FAILED, PASSED = RUNS / "level0-lora-exception", RUNS / "level5-signal"


def call(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")} | environment
    command = [*verl_e2e(), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=HANG_S, check=False)


def on_terminal(*arguments: object, **environment: str) -> str:
    """What a command prints where standard output is a terminal."""
    ours, theirs = pty.openpty()
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "TERM": "xterm"} | environment
    command = [sys.executable, "-m", "verl_e2e", *map(str, arguments)]
    shown: list[bytes] = []

    def read() -> None:
        # Reading fails when the last process that has the terminal has ended.
        try:
            while piece := os.read(ours, 65_536):
                shown.append(piece)
        except OSError:
            return

    reader = threading.Thread(target=read)
    reader.start()
    subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, env=variables, timeout=HANG_S, check=False)
    os.close(theirs)
    reader.join(HANG_S)
    os.close(ours)
    return b"".join(shown).decode().replace("\r\n", "\n")


def test_the_first_error_is_marked_among_its_lines_with_an_address_for_the_fix() -> None:
    done = call("logs", FAILED, "--first-error")
    assert done.returncode == 0, done.stderr
    (marked,) = [line for line in done.stdout.splitlines() if line.startswith(">")]
    assert marked.split(maxsplit=2)[1] == "1299"
    assert marked.endswith("decoder.layers.0.self_attention.linear_proj: the input size is unknown")
    assert "peft/lora.py:189 transform" in done.stdout
    assert "https://github.com/verl-project/verl-e2e/blob/main/docs/triage.md#adapter-path" in done.stdout


def test_a_log_is_printed_whole_and_of_one_without_an_error_the_last_lines() -> None:
    whole = call("logs", PASSED)
    assert whole.returncode == 0
    last = call("logs", PASSED, "--first-error").stdout.splitlines()
    assert last[:20] == whole.stdout.splitlines()[-20:]


def test_a_run_that_has_ended_is_shown_from_its_start_to_its_end() -> None:
    done = call("watch", PASSED)
    assert done.returncode == 0
    rows = done.stdout.splitlines()
    assert "5-signal started" in rows[0]
    assert [row for row in rows if row.endswith("  step 16")]
    assert rows[-2].endswith("ended: exited, exit code 0")


def test_a_run_that_grows_is_followed_until_it_has_ended(tmp_path: Path) -> None:
    lines = (FAILED / "events.jsonl").read_bytes().splitlines(keepends=True)
    events = tmp_path / "events.jsonl"
    # The last piece ends in the middle of a line, as a recorder's may.
    cut = len(lines[5]) // 2
    events.write_bytes(b"".join(lines[:5]) + lines[5][:cut])
    watching = subprocess.Popen([*verl_e2e(), "watch", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert "0-lora-ddp started" in watching.stdout.readline()
    assert watching.poll() is None
    with events.open("ab") as more:
        more.write(lines[5][cut:] + b"".join(lines[6:]))
    rest, _ = watching.communicate(timeout=HANG_S)
    assert watching.returncode == 0
    assert "ended: exited, exit code 1" in rest


def test_a_run_whose_runner_died_long_ago_is_said_to_be_silent_at_once(tmp_path: Path) -> None:
    lines = (FAILED / "events.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines[:5]))
    log = tmp_path / "log.txt"
    log.touch()
    long_ago = time.time() - 7_200
    os.utime(tmp_path / "events.jsonl", (long_ago, long_ago))
    # A log that grew a minute ago is a later sign of life.
    os.utime(log, (time.time() - 60, time.time() - 60))
    watching = subprocess.Popen([*verl_e2e(), "watch", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    assert watching.stderr is not None
    assert not select.select([watching.stderr], [], [], 3)[0]
    os.utime(log, (long_ago, long_ago))
    told = watching.stderr.readline()
    watching.terminate()
    watching.communicate(timeout=HANG_S)
    assert told.startswith("nothing was recorded for 7,2")
    assert told.endswith(" s: its runner may have been killed\n")


def test_the_report_is_opened_in_the_browser_and_its_path_is_printed(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("<title>Fail</title>")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    done = call("open", tmp_path, BROWSER=f"{browser} %s")
    assert (done.returncode, done.stdout) == (0, f"{report}\n")
    assert (tmp_path / "opened").read_text() == f"{report.as_uri()}\n"


def test_without_a_browser_the_path_is_enough(tmp_path: Path) -> None:
    (tmp_path / "report.html").touch()
    done = call("open", tmp_path, PATH=str(tmp_path), BROWSER="")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/report.html\n")
    assert "no browser was found" in done.stderr


def test_the_folder_of_a_check_with_one_run_stands_for_that_run(tmp_path: Path) -> None:
    shutil.copytree(FAILED, tmp_path / "out" / "jobs" / "0-lora-ddp")
    assert call("logs", tmp_path / "out").stdout == call("logs", FAILED).stdout
    assert call("watch", tmp_path / "out").returncode == 0
    shutil.copytree(PASSED, tmp_path / "out" / "jobs" / "5-signal")
    done = call("logs", tmp_path / "out")
    assert (done.returncode, "it holds 2 runs; name one of them" in done.stderr) == (2, True)
    assert done.stderr.strip().endswith(str(tmp_path / "out/jobs/0-lora-ddp"))


def test_two_run_folders_are_told_apart_by_what_differs_and_by_nothing_else(tmp_path: Path) -> None:
    for name in ("one", "other"):
        shutil.copytree(FAILED, tmp_path / name)
    job = tmp_path / "other" / "job.json"
    job.write_text(job.read_text().replace('"steps": 1', '"steps": 3'))
    done = call("diff", tmp_path / "one", tmp_path / "other")
    assert (done.returncode, "job.steps: 1 -> 3" in done.stdout.splitlines()) == (0, True)
    assert [row for row in done.stdout.splitlines() if not row.startswith(("job.steps: ", "verdict."))] == []
    assert call("diff", FAILED, FAILED).stdout.startswith("They differ in nothing that is compared")
    assert (call("diff", FAILED, tmp_path).returncode, call("diff", FAILED).returncode) == (2, 2)


def test_a_run_folder_a_check_and_a_card_give_the_commands_that_repeat_them(tmp_path: Path) -> None:
    for name in ("0-lora-ddp", "5-signal"):
        shutil.copytree(FAILED if name == "0-lora-ddp" else PASSED, tmp_path / "jobs" / name)
    of_run, of_check = call("reproduce", FAILED), call("reproduce", tmp_path)
    assert (of_run.returncode, of_check.returncode) == (0, 0)
    assert of_run.stdout.count("verl-e2e run --job job.json --out repeated") == 1
    assert of_check.stdout.count("verl-e2e run --job job.json --out repeated") == 2
    assert "tests/special_e2e/run_ppo_trainer_megatron.sh" in of_run.stdout
    of_card = call("reproduce", FIXTURES / "cards/fail.txt")
    assert (of_card.returncode, "run_ppo_trainer_megatron.sh" in of_card.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("logs", "nowhere"), "nowhere: no log in it; give a run folder"),
        (("logs", "."), ".: no log in it"),
        (("watch", "."), "events.jsonl: not there; give a run folder"),
        (("open", "."), "report.html: not there; give a run folder, into which `verl-e2e judge DIR` writes"),
        (("open", "card.md"), "card.md: not a report; give a run folder"),
        (("reproduce", "."), "no job.json in it"),
        (("reproduce", "card.md"), "card.md: no command in it"),
    ],
)
def test_a_wrong_place_is_one_sentence_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, str], said: str
) -> None:
    (tmp_path / "card.md").write_text("nothing")
    monkeypatch.chdir(tmp_path)
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_result_has_a_colour_on_a_terminal_alone() -> None:
    red = "\x1b[31m\x1b[1mFail\x1b[0m"
    assert on_terminal("card", FAILED).startswith(f"Result: {red} - ")
    assert on_terminal("--no-color", "card", FAILED).startswith("Result: Fail - ")
    assert on_terminal("card", FAILED, NO_COLOR="1").startswith("Result: Fail - ")
    assert call("card", FAILED).stdout.startswith("Result: Fail - ")


@pytest.mark.host
def test_quiet_prints_no_progress_and_every_mistake(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    shutil.copy(FAILED / "job.json", job)
    loud = call("run", "--job", job, "--out", tmp_path / "loud")
    quiet = call("--quiet", "run", "--job", job, "--out", tmp_path / "quiet")
    assert loud.returncode == quiet.returncode == 4
    assert "preflight" in loud.stderr
    assert (quiet.stderr, bool(quiet.stdout)) == ("", True)
    after = call("run", "--job", job, "--quiet", "--out", tmp_path / "after")
    assert (after.returncode, after.stderr) == (4, "")
    assert "nowhere" in call("judge", "nowhere", "--quiet").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_the_verbs(shell: str) -> None:
    script = call(_VERL_E2E_COMPLETE=f"{shell}_source")
    assert (script.returncode, "verl-e2e" in script.stdout) == (0, True)


def test_each_verb_shows_an_example() -> None:
    groups = [command for command in cli.commands.values() if hasattr(command, "commands")]
    verbs = [*cli.commands.values(), *(verb for group in groups for verb in group.commands.values())]
    silent = [verb.name for verb in verbs if verb not in groups and "Example: verl-e2e" not in (verb.help or "")]
    assert silent == []
