"""What the runner writes down of the checkpoints of a run."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_e2e.core.model.record import CHECKPOINTS_FILE, Checkpoints
from verl_e2e.core.text.redact import redactor
from verl_e2e_runner.folder.recorder import HASHED_BYTES, MAX_FILES, CheckpointLister, Recorder, listing


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    names = redactor(paths=[(str(tmp_path / "secret"), "$HOME")])
    with Recorder(tmp_path / "run", redactor=names, monotonic=lambda: 5.0) as opened:
        yield opened


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert listing(tmp_path / "none", "save").model_dump() == {
        "after": "save",
        "files": (),
        "trackers": {},
        "cut": False,
    }


def test_every_file_is_there_with_its_size_and_small_ones_with_their_digest(tmp_path: Path) -> None:
    large = write(tmp_path / "a/global_step_1/actor/model.distcp", b"x" * (HASHED_BYTES + 1))
    small = write(tmp_path / "a/global_step_1/data.pt", b"state")
    write(tmp_path / "a/latest_checkpointed_iteration.txt", b"1\n")
    found = listing(tmp_path, "save")
    assert {file.path: (file.size, file.sha256) for file in found.files if "global" in file.path} == {
        "a/global_step_1/actor/model.distcp": (HASHED_BYTES + 1, ""),
        "a/global_step_1/data.pt": (5, hashlib.sha256(b"state").hexdigest()),
    }
    assert {file.modified_ns for file in found.files} >= {large.stat().st_mtime_ns, small.stat().st_mtime_ns}
    assert found.trackers == {"a/latest_checkpointed_iteration.txt": "1"}


def test_links_and_pipes_are_no_files_of_a_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/secret", b"s")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/link").symlink_to(tmp_path / "elsewhere/secret")
    (tmp_path / "checkpoints/folder").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "checkpoints/pipe")
    assert listing(tmp_path / "checkpoints", "save").files == ()


def test_more_files_than_are_listed_are_owned_up_to(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number}").touch()
    found = listing(tmp_path, "save")
    assert (len(found.files), found.cut) == (MAX_FILES, True)


def test_a_tracker_of_any_length_is_read_to_a_limit(tmp_path: Path) -> None:
    write(tmp_path / "latest_checkpointed_iteration.txt", b"7" * 1000)
    assert listing(tmp_path, "").trackers == {"latest_checkpointed_iteration.txt": "7" * 64}


def test_the_document_grows_phase_by_phase_and_is_redacted(recorder: Recorder, tmp_path: Path) -> None:
    folder = tmp_path / "secret" / "checkpoints"
    lister = CheckpointLister(recorder, tmp_path, str(folder))
    lister.list_after("")
    write(folder / "global_step_1/data.pt", b"state")
    lister.list_after("save")
    text = (recorder.folder / CHECKPOINTS_FILE).read_text()
    document = Checkpoints.model_validate_json(text)
    assert document.folder == "$HOME/checkpoints"
    assert [(listing.after, len(listing.files)) for listing in document.listings] == [("", 0), ("save", 1)]
    assert str(tmp_path) not in text
    assert json.loads(text)["schema"] == 1
