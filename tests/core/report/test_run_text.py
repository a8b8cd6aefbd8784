"""What a run folder says at a terminal: rows of events, lines around an error, the commands that repeat it."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.fakes.places import FIXTURES
from tests.fakes.recorded import RUNS, recorded_job
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Event
from verl_e2e.core.report.run_text import (
    commands_of_card,
    event_row,
    log_row,
    repeating_commands,
    rows_around,
)


@pytest.mark.parametrize(
    ("kind", "data", "row"),
    [
        ("started", {"job": "0-lora-ddp"}, "      1.5 s  0-lora-ddp started"),
        ("phase", {"name": "run", "state": "begin", "step": "train"}, "      1.5 s  run train"),
        ("phase", {"name": "run", "state": "end", "step": "train"}, ""),
        ("stage", {"stage": "ray"}, "      1.5 s    stage ray"),
        ("step", {"step": 3}, "      1.5 s    step 3"),
        ("finding", {"check": "gpus", "ok": True, "summary": "1 GPU"}, ""),
        ("finding", {"check": "gpus", "ok": False, "summary": "no GPU"}, "      1.5 s    gpus: no GPU"),
        ("fatal", {"excerpt": "ValueError: \x1b[2J"}, "      1.5 s    error: ValueError:  [2J"),
        ("ended", {"reason": "exited", "exit_code": 1}, "      1.5 s  ended: exited, exit code 1"),
        (
            "ended",
            {"reason": "gone", "exit_code": None},
            "      1.5 s  ended: for a reason that this version does not know",
        ),
        ("gpu", {"used": 3}, ""),
        ("step", {"step": "three"}, ""),
        ("a later version's", {}, ""),
    ],
)
def test_the_row_of_an_event(kind: str, data: dict[str, object], row: str) -> None:
    assert event_row(Event(t_s=1.5, kind=kind, data=data)) == row


def test_a_line_keeps_its_indentation_and_moves_no_cursor() -> None:
    assert log_row('    File \x1b[36m"a.py"\x1b[1A\x1b[2K\x07\u202e') == '    File "a.py"'


@pytest.mark.parametrize(
    ("number", "first", "last"),
    [
        (50, "      38  line 38", "      53  line 53"),
        (3, "       1  line 1", "       6  line 6"),
        (None, "line 81", "line 100"),
    ],
)
def test_which_lines_are_shown(number: int | None, first: str, last: str) -> None:
    rows = list(rows_around((f"line {at}" for at in range(1, 101)), number))
    assert (rows[0], rows[-1]) == (first, last)
    assert [row for row in rows if row.startswith(">")] == ([f">{number:7}  line {number}"] if number else [])


def test_the_commands_of_a_recorded_run_make_its_job_for_the_clones_of_the_reader(tmp_path: Path) -> None:
    job, file = recorded_job(), tmp_path / "run folder's" / "job.json"
    file.parent.mkdir()
    file.write_bytes((RUNS / "level0-lora-exception/job.json").read_bytes())
    rows = repeating_commands(job, str(file), "bash wrapper.sh")
    (edit,) = [row for row in rows if row.startswith("sed ")]
    subprocess.run(["bash", "-euc", edit], cwd=tmp_path, check=True)
    made = Job.model_validate_json((tmp_path / "job.json").read_bytes())
    assert made.bridge.path == str(tmp_path / "Megatron-Bridge")
    assert made.verl.path == str(tmp_path / "verl")
    assert made.megatron_lm is not None
    assert made.megatron_lm.path == str(tmp_path / "Megatron-Bridge/3rdparty/Megatron-LM")
    same = {"bridge", "verl", "megatron_lm"}
    assert made.model_dump(exclude=same) == job.model_dump(exclude=same)
    assert [row for row in rows if job.bridge.commit in row and row.startswith("git -C Megatron-Bridge fetch")]
    assert "verl-e2e run --job job.json --out repeated" in rows
    assert rows[-1] == "# bash wrapper.sh"


def test_a_job_whose_repositories_are_here_is_run_as_it_is() -> None:
    job = Job.model_validate_json(
        json.dumps(json.loads((RUNS / "level0-lora-exception/job.json").read_text()))
        .replace("$BRIDGE", "/clones/bridge").replace("$VERL", "/clones/verl").replace("$MEGATRON_LM", "/clones/core")
    )  # fmt: skip
    rows = repeating_commands(job, "/out/job.json", "")
    assert [row for row in rows if not row.startswith("#")] == ["verl-e2e run --job /out/job.json --out repeated"]


@pytest.mark.parametrize("name", ["fail.txt", "pass.txt"])
def test_a_card_gives_its_command(name: str) -> None:
    text = (FIXTURES / "cards" / name).read_text()
    (recorded,) = [line for line in text.splitlines() if line.startswith("- Command: ")]
    assert [row for row in commands_of_card(text) if not row.startswith("#")] == [recorded.removeprefix("- Command: ")]


CARD = """<details><summary>Reproduce</summary>

```text
verl-e2e check --repo Megatron-Bridge --out result
```
</details>
<details><summary>Command of 0-lora-ddp</summary>

````text
env A=1 bash wrapper.sh \\
  trainer.logger=console
````
</details>"""


def test_the_card_of_a_pull_request_gives_each_command_on_a_line() -> None:
    assert commands_of_card(CARD) == (
        "verl-e2e check --repo Megatron-Bridge --out result",
        "env A=1 bash wrapper.sh trainer.logger=console",
    )


def test_a_command_that_the_card_cut_is_no_command() -> None:
    rows = commands_of_card("- Command: bash '$WORK/verl/x.sh' a=1 ...\n- Command: unknown\n")
    assert all(row.startswith("#") for row in rows)
    assert any("cut" in row for row in rows)
    assert commands_of_card("- Command: a \x1b[2J\r\u202eb\n") == ("a  [2J b",)
    assert commands_of_card("nothing here") == ()
