"""The recorder's seal: made by the runner, read by those who judge; every change of a folder afterwards is seen."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.places import ROOT
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.adapters.files.run_folder import public_keys, read_seal
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from verl_e2e.core.pulls.job_order import RECORDER_KEY_VARIABLE
from verl_e2e_runner.folder.recorder import (
    key_file,
    public_half,
    recorder_key,
    seal,
    seal_again,
    usable_key,
)

RECORDING = ROOT / "bot/verl_e2e/demo/recording"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "keys/recorder.key"


@pytest.fixture
def folder(tmp_path: Path, key: Path) -> Path:
    """A copy of a recorded Pass, sealed as a recorder would."""
    copy = tmp_path / "run"
    shutil.copytree(RECORDING, copy)
    seal(copy, _manifest(), recorder_key(key))
    return copy


def _manifest() -> Manifest:
    at = "2026-11-22T12:00:00.000+00:00"
    return Manifest(
        job="0-lora-ddp", job_digest="0" * 64, began=at, ended=at, seconds=1.0, isolation="other_user", files=()
    )


def _keys(key: Path) -> frozenset[str]:
    return public_keys(key.with_name("recorder.key.pub"))


def test_a_sealed_folder_is_judged_as_before(folder: Path, key: Path) -> None:
    folders = run_folders(keys=_keys(key))
    record = folders.record(folder)
    assert record.seal is not None
    assert (record.seal.state, record.seal.key) == ("signed", public_half(recorder_key(key)))
    assert judge(record, folders.facts(folder)).result is Result.PASS


def test_the_list_says_whose_word_each_file_is(folder: Path) -> None:
    manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    words = {entry.path: entry.word for entry in manifest.files}
    assert {name for name, word in words.items() if word == "recorder"} == {
        "environment.json",
        "events.jsonl",
        "job.json",
    }
    assert words["log.txt.zst"] == words["imports.jsonl"] == words["junit.xml"] == "suspect"


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte of the log": lambda folder: _append(folder / "log.txt.zst"),
    "one event": lambda folder: (folder / "events.jsonl").write_text(
        (folder / "events.jsonl").read_text().replace('"exit_code": 0', '"exit_code": 1')
    ),
    "same size": lambda folder: (folder / "job.json").write_bytes((folder / "job.json").read_bytes()[::-1]),
    "a file added": lambda folder: (folder / "checkpoints.json").write_text("{}"),
    "related runs added": lambda folder: (folder / "related.json").write_text("{}"),
    "a file removed": lambda folder: (folder / "imports.jsonl").unlink(),
    "a link in its place": lambda folder: _link(folder / "junit.xml"),
    "the list changed": lambda folder: (folder / MANIFEST_FILE).write_text(
        (folder / MANIFEST_FILE).read_text().replace("other_user", "none")
    ),
    "the list removed": lambda folder: (folder / MANIFEST_FILE).unlink(),
    "the list not JSON": lambda folder: (folder / MANIFEST_FILE).write_text("{"),
    "the signature not JSON": lambda folder: (folder / SIGNATURE_FILE).write_text("{"),
    "sealed again without a key": lambda folder: _sealed_by_another(folder, None),
    "sealed again with a key of one's own": lambda folder: _sealed_by_another(folder, folder.parent / "mine/key"),
}


def _append(log: Path) -> None:
    """A frame that every reader of Zstandard skips."""
    log.write_bytes(log.read_bytes() + b"\x50\x2a\x4d\x18\0\0\0\0")


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".away"))
    path.symlink_to(path.with_suffix(".away").name)


def _sealed_by_another(folder: Path, key: Path | None) -> None:
    (folder / "events.jsonl").write_text((folder / "events.jsonl").read_text() + "\n")
    seal(folder, _manifest(), recorder_key(key) if key else None)


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_that_was_changed_after_the_end_is_evidence_of_nothing(folder: Path, key: Path, change: str) -> None:
    CHANGES[change](folder)
    folders = run_folders(keys=_keys(key))
    record = folders.record(folder)
    assert record.seal is not None
    assert record.seal.state == "broken"
    verdict = judge(record, folders.facts(folder))
    assert verdict.result is Result.BLOCKED
    if record.job is not None:
        assert "the record is not the recorder's" in verdict.sentence


def test_without_known_recorders_a_seal_must_be_whole_and_may_be_missing(folder: Path) -> None:
    assert read_seal(RECORDING).state == "none"
    assert read_seal(folder).state == "whole"
    (folder / "metrics.jsonl").write_text("")
    assert read_seal(folder).problem == "metrics.jsonl was changed"


def test_a_folder_without_a_seal_is_refused_where_recorders_are_known(key: Path) -> None:
    recorder_key(key)
    assert read_seal(RECORDING, keys=_keys(key)).state == "broken"
    assert read_seal(RECORDING, keys=frozenset()).state == "broken"


def test_the_judgement_may_be_made_again(folder: Path, key: Path) -> None:
    for name in ("verdict.json", "card.md", "card.txt", "evidence.json", "bands.json"):
        (folder / name).write_text("made again")
    (folder / "plots").mkdir()
    (folder / "plots/signal-light.svg").write_text("drawn")
    assert read_seal(folder, keys=_keys(key)).state == "signed"


def test_runs_put_beside_a_run_by_its_recorder_are_sealed_with_it(folder: Path, key: Path) -> None:
    (folder / "related.json").write_text("{}")
    (folder / "related/baseline").mkdir(parents=True)
    (folder / "related/baseline/events.jsonl").write_text("{}\n")
    seal_again(folder, recorder_key(key))
    assert read_seal(folder, keys=_keys(key)).state == "signed"
    (folder / "related/baseline/events.jsonl").write_text("forged\n")
    assert read_seal(folder, keys=_keys(key)).state == "broken"


def test_nothing_is_sealed_again_that_was_never_sealed(tmp_path: Path, key: Path) -> None:
    seal_again(tmp_path, recorder_key(key))
    assert not (tmp_path / MANIFEST_FILE).exists()


def test_the_key_is_made_once_and_for_its_owner_alone(key: Path) -> None:
    first = public_half(recorder_key(key))
    assert public_half(recorder_key(key)) == first
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert _keys(key) == {first}


@pytest.mark.parametrize("spoil", ("mode", "content"))
def test_a_key_that_others_can_read_signs_nothing(key: Path, spoil: str) -> None:
    recorder_key(key)
    if spoil == "mode":
        key.chmod(0o640)
    else:
        key.write_bytes(b"short")
    text: list[str] = []
    assert usable_key({"VERL_E2E_RECORDER_KEY": str(key)}, text.append) is None
    assert "not signed" in text[0]


def test_where_the_key_lies() -> None:
    assert key_file({"HOME": "/h"}) == Path("/h/.local/state/verl-e2e/recorder.key")
    assert key_file({"HOME": "/h", "XDG_STATE_HOME": "/s"}) == Path("/s/verl-e2e/recorder.key")
    assert key_file({"VERL_E2E_RECORDER_KEY": "/k"}) == Path("/k")


def test_runs_that_begin_at_once_make_one_key_between_them(tmp_path: Path) -> None:
    for number in range(20):
        environ, notes = {RECORDER_KEY_VARIABLE: str(tmp_path / str(number) / "recorder.key")}, list[str]()
        with ThreadPoolExecutor(8) as pool:
            made = [pool.submit(usable_key, environ, notes.append) for _ in range(8)]
        keys = {public_half(key) for future in made if (key := future.result())}
        assert (len(keys), notes) == (1, [])
        assert sorted(path.name for path in (tmp_path / str(number)).iterdir()) == ["recorder.key", "recorder.key.pub"]
