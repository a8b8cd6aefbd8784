"""What is left in the folder after the end."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_e2e.core.model.facts import LogFacts, ResolvedConfig, StepMetrics
from verl_e2e.core.model.record import (
    CONFIG_FILE,
    EVENTS_FILE,
    IMPORTS_FILE,
    METRICS_FILE,
    EndReason,
    Event,
    ImportLine,
)
from verl_e2e.core.text.redact import redactor
from verl_e2e_runner.folder.recorder import Recorder, collect_run, plain, record_end
from verl_e2e_runner.process.processes import Ended, Survivor

NAMES = redactor(paths=[("/srv/bridge", "$BRIDGE")])
ENDED = Ended(EndReason.EXITED, 0)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "run", redactor=NAMES, monotonic=lambda: 5.0) as opened:
        yield opened


def events(recorder: Recorder) -> list[tuple[str, dict[str, object]]]:
    lines = (recorder.folder / EVENTS_FILE).read_text().splitlines()
    return [(event.kind, event.data) for event in map(Event.model_validate_json, lines)]


def rows(recorder: Recorder, name: str) -> list[object]:
    return [json.loads(line) for line in (recorder.folder / name).read_text().splitlines()]


def test_the_probe_lines_move_into_the_folder(recorder: Recorder, tmp_path: Path) -> None:
    probe = tmp_path / "probe.jsonl"
    line = {"module": "megatron.bridge", "file": "/srv/bridge/src/x.py", "role": "run", "pid": 4, "process": "ray"}
    probe.write_text(json.dumps(line) + "\nhalf a li\n" + json.dumps(line | {"pid": 5}) + "\n{")
    collect_run(recorder, LogFacts(0), imports_file=probe, ended=ENDED)
    imports = [ImportLine.model_validate(row) for row in rows(recorder, IMPORTS_FILE)]
    assert [(entry.pid, entry.file) for entry in imports] == [(4, "$BRIDGE/src/x.py"), (5, "$BRIDGE/src/x.py")]
    assert not probe.exists()
    assert ("probe", {"lines": 2, "unreadable": 2}) in events(recorder)


def test_no_probe_file_is_no_imports_file(recorder: Recorder, tmp_path: Path) -> None:
    collect_run(recorder, LogFacts(0), imports_file=tmp_path / "none", ended=ENDED)
    assert not (recorder.folder / IMPORTS_FILE).exists()
    assert ("probe", {"lines": 0, "unreadable": 0}) in events(recorder)


def test_metrics_are_one_line_a_step_and_all_of_them_are_json(recorder: Recorder, tmp_path: Path) -> None:
    values = {"actor/loss": 0.5, "actor/grad_norm": float("nan"), "critic/vf": float("-inf")}
    facts = LogFacts(9, steps=(StepMetrics(1, 7, values), StepMetrics(2, 8, {"actor/loss": 0.25})))
    collect_run(recorder, facts, imports_file=tmp_path / "none", ended=ENDED)
    assert rows(recorder, METRICS_FILE) == [
        {"step": 1, "line": 7, "metrics": {"actor/loss": 0.5, "actor/grad_norm": "nan", "critic/vf": "-inf"}},
        {"step": 2, "line": 8, "metrics": {"actor/loss": 0.25}},
    ]


def test_every_printed_configuration_is_kept(recorder: Recorder, tmp_path: Path) -> None:
    configs = (
        ResolvedConfig(3, {"actor": {"path": "/srv/bridge/m", "lr": float("inf"), "tags": ("a", None)}}),
        ResolvedConfig(90, None, "cut after line 95"),
    )
    collect_run(recorder, LogFacts(99, configs=configs), imports_file=tmp_path / "none", ended=ENDED)
    assert json.loads((recorder.folder / CONFIG_FILE).read_text()) == {
        "schema": 1,
        "configs": [
            {"line": 3, "problem": "", "values": {"actor": {"path": "$BRIDGE/m", "lr": "inf", "tags": ["a", None]}}},
            {"line": 90, "problem": "cut after line 95", "values": None},
        ],
    }


def test_the_closing_events_say_how_it_ended(recorder: Recorder, tmp_path: Path) -> None:
    ended = Ended(EndReason.STALLED, None, "No progress for 600 s in stage ray.", (Survivor(7, "raylet", "raylet -x"),))
    collect_run(recorder, LogFacts(0), imports_file=tmp_path / "none", ended=ended)
    assert events(recorder)[1:] == [
        ("ended", {"reason": "stalled", "exit_code": None, "note": "No progress for 600 s in stage ray."}),
        ("left_running", {"processes": [{"pid": 7, "name": "raylet", "command": "raylet -x"}]}),
    ]


def test_a_run_that_never_started_ends_too(recorder: Recorder) -> None:
    record_end(recorder, Ended(EndReason.NOT_STARTED, None, "No such file: bash"))
    assert [kind for kind, _ in events(recorder)] == ["ended", "left_running"]


def test_values_that_json_lacks_become_text() -> None:
    assert plain({"a": {1}, 2: frozenset(), "x": complex(1, 2)}) == {"a": [1], "2": [], "x": "(1+2j)"}
