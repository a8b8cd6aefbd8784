"""Fingerprints of a run: files that its processes wrote, of which nothing is to be trusted, joined into one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE, Fingerprints, Point, Tensor
from verl_e2e.core.model.record import EVENTS_FILE
from verl_e2e.core.text.redact import redactor
from verl_e2e_runner.folder import process_records
from verl_e2e_runner.folder.process_records import FingerprintLines
from verl_e2e_runner.folder.recorder import Recorder

TENSOR = {
    "name": "decoder.weight",
    "kind": "parameter",
    "shape": [2, 3],
    "dtype": "bfloat16",
    "requires_grad": True,
    "sum": 1.5,
    "square": 2.25,
    "position": -0.5,
    "bits": "00000000000000ff",
}
SNAPSHOT = {
    "kind": "snapshot",
    "point": "optimizer step",
    "model": "actor",
    "pid": 7,
    "ranks": {"rank": 1, "data": 1, "data_size": 2},
    "number": 0,
    "t_s": 105.0,
    "cost_s": 0.25,
    "tensors": [TENSOR],
    "left_out": 0,
    "problem": "",
}
HOOK = {"kind": "hook", "pid": 7, "target": "m:C.f", "installed": True, "calls": 0, "problem": ""}


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    instants = iter([100.0] + [200.0] * 100)
    names = redactor(paths=[("/srv/bridge", "$BRIDGE")], secrets=[("0123456789abcdef", "TOKEN")])
    with Recorder(tmp_path / "run", redactor=names, monotonic=lambda: next(instants)) as opened:
        yield opened


@pytest.fixture
def lines(tmp_path: Path) -> FingerprintLines:
    (tmp_path / "fingerprints").mkdir()
    return FingerprintLines(tmp_path / "fingerprints")


@pytest.fixture
def folder(lines: FingerprintLines) -> Path:
    assert lines.folder is not None
    return lines.folder


def put(lines: FingerprintLines, *entries: dict[str, Any] | str, name: str = "7.jsonl") -> None:
    assert lines.folder
    with (lines.folder / name).open("a") as file:
        file.writelines((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in entries)


def joined(recorder: Recorder, lines: FingerprintLines) -> Fingerprints:
    lines.write(recorder)
    found = read_record(recorder.folder).fingerprints
    assert found is not None
    return found


def event(recorder: Recorder) -> dict[str, Any]:
    rows = [json.loads(line) for line in (recorder.folder / EVENTS_FILE).read_text().splitlines()]
    return next(row["data"] for row in rows if row["kind"] == "fingerprints")


def test_the_lines_of_all_processes_are_joined_in_the_order_of_time(
    recorder: Recorder, lines: FingerprintLines
) -> None:
    put(lines, HOOK, SNAPSHOT, HOOK | {"calls": 1})
    put(lines, SNAPSHOT | {"pid": 8, "t_s": 103.0}, name="8.jsonl")
    lines.take("train")
    found = joined(recorder, lines)
    assert [(snapshot.pid, snapshot.t_s, snapshot.phase) for snapshot in found.snapshots] == [
        (8, 3.0, "train"),
        (7, 5.0, "train"),
    ]
    assert found.snapshots[1].point is Point.OPTIMIZER_STEP
    assert found.snapshots[1].tensors == (Tensor.model_validate(TENSOR),)
    assert found.snapshots[1].ranks.data_size == 2
    assert [(hook.target, hook.calls, hook.phase) for hook in found.hooks] == [("m:C.f", 1, "train")]
    assert event(recorder) == {"snapshots": 2, "hooks": 1, "unreadable": 0, "left_out": 0}


def test_a_phase_has_the_lines_that_were_written_in_it(recorder: Recorder, lines: FingerprintLines) -> None:
    put(lines, SNAPSHOT | {"phase": "resume"}, HOOK)
    lines.take("save")
    put(lines, SNAPSHOT | {"t_s": 150.0}, HOOK | {"calls": 3})
    lines.take("resume")
    found = joined(recorder, lines)
    assert [snapshot.phase for snapshot in found.snapshots] == ["save", "resume"]
    assert [(hook.phase, hook.calls) for hook in found.hooks] == [("save", 0), ("resume", 3)]


def test_nan_and_infinity_come_through(recorder: Recorder, lines: FingerprintLines) -> None:
    put(lines, SNAPSHOT | {"tensors": [TENSOR | {"sum": "nan", "square": "inf", "position": "-inf"}]})
    lines.take("train")
    (tensor,) = joined(recorder, lines).snapshots[0].tensors
    assert (str(tensor.sum), str(tensor.square), str(tensor.position)) == ("nan", "inf", "-inf")


HOSTILE: dict[str, dict[str, Any] | str] = {
    "a line that was cut": json.dumps(SNAPSHOT)[:-20],
    "no JSON": "\0\0\0",
    "another document": {"kind": "verdict", "result": "Pass"},
    "an unknown key": SNAPSHOT | {"more": 1},
    "an instant that is not a number": SNAPSHOT | {"t_s": "nan"},
    "a cost without end": SNAPSHOT | {"cost_s": "inf"},
    "a name as long as a book": SNAPSHOT | {"tensors": [TENSOR | {"name": "x" * 301}]},
    "bits that are a text": SNAPSHOT | {"tensors": [TENSOR | {"bits": "../../etc/passwd"}]},
    "a shape of many dimensions": SNAPSHOT | {"tensors": [TENSOR | {"shape": [1] * 17}]},
    "too many tensors": SNAPSHOT | {"tensors": [TENSOR] * 20_001},
    "a hook that tells a story": HOOK | {"problem": "x" * 301},
    "a tower of brackets": "[" * 100_000,
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_a_line_that_the_instrumentation_does_not_write_is_counted(
    recorder: Recorder, lines: FingerprintLines, line: dict[str, Any] | str
) -> None:
    put(lines, SNAPSHOT, line, SNAPSHOT | {"number": 1})
    lines.take("train")
    assert [snapshot.number for snapshot in joined(recorder, lines).snapshots] == [0, 1]
    assert event(recorder)["unreadable"] == 1


def test_links_pipes_and_folders_are_not_read(
    recorder: Recorder, lines: FingerprintLines, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps(SNAPSHOT) + "\n")
    (folder / "1.jsonl").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "2.jsonl")
    (folder / "3.jsonl").mkdir()
    lines.take("train")
    assert joined(recorder, lines) == Fingerprints()


def test_a_folder_that_no_process_made_leaves_an_empty_file(recorder: Recorder, tmp_path: Path) -> None:
    lines = FingerprintLines(tmp_path / "nowhere")
    lines.take("train")
    assert joined(recorder, lines) == Fingerprints()


def test_a_run_that_takes_none_has_no_such_file(recorder: Recorder) -> None:
    lines = FingerprintLines(None)
    lines.take("train")
    lines.write(recorder)
    assert read_record(recorder.folder).fingerprints is None


def test_what_is_beyond_the_limits_is_counted(
    recorder: Recorder, lines: FingerprintLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_records, "MOST_FINGERPRINT_BYTES", 2 * len(json.dumps(SNAPSHOT)))
    monkeypatch.setattr(process_records, "_MOST_HOOKS", 1)
    put(lines, SNAPSHOT, SNAPSHOT, SNAPSHOT, HOOK, HOOK | {"target": "m:C.g"}, HOOK | {"calls": 2})
    lines.take("train")
    found = joined(recorder, lines)
    assert (len(found.snapshots), [hook.calls for hook in found.hooks]) == (2, [2])
    assert event(recorder)["left_out"] == 2


def test_texts_are_redacted(recorder: Recorder, lines: FingerprintLines) -> None:
    put(lines, SNAPSHOT | {"problem": "OSError: /srv/bridge/src/x.py"}, HOOK | {"problem": "/srv/bridge"})
    lines.take("train")
    assert joined(recorder, lines).snapshots[0].problem == "OSError: $BRIDGE/src/x.py"
    assert "/srv/bridge" not in (recorder.folder / FINGERPRINTS_FILE).read_text()


def test_a_secret_written_as_bits_does_not_reach_the_folder(recorder: Recorder, lines: FingerprintLines) -> None:
    put(lines, SNAPSHOT | {"tensors": [TENSOR, TENSOR | {"bits": "0123456789abcdef"}]})
    lines.take("train")
    first, second = joined(recorder, lines).snapshots[0].tensors
    assert (first.bits, second.bits) == ("00000000000000ff", "<redacted:TOKEN>")
