"""A run folder is read as plain files, and nothing else may lie in it."""

import os
from pathlib import Path

import pytest

from verl_e2e.adapters.files.folders import FolderFilesError, folder_files
from verl_e2e.core.pulls.forge import folder_digest


def test_every_file_counts_with_name_size_and_content(tmp_path: Path) -> None:
    (tmp_path / "related/base").mkdir(parents=True)
    (tmp_path / "related/base/.hidden").write_bytes(b"abc")
    (tmp_path / "job.json").write_bytes(b"{}")
    found = sorted(folder_files(tmp_path), key=lambda file: file.path)
    assert [(file.path, file.size) for file in found] == [("job.json", 2), ("related/base/.hidden", 3)]
    before = folder_digest(found)
    (tmp_path / "job.json").write_bytes(b"[]")
    assert folder_digest(folder_files(tmp_path)) != before


@pytest.mark.parametrize("kind", ["file link", "folder link", "broken link", "pipe"])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "secret").write_text("s")
    match kind:
        case "file link":
            (folder / "x").symlink_to(tmp_path / "secret")
        case "folder link":
            (folder / "x").symlink_to(tmp_path)
        case "broken link":
            (folder / "x").symlink_to(tmp_path / "gone")
        case _:
            os.mkfifo(folder / "x")
    with pytest.raises(FolderFilesError, match="'x' is"):
        list(folder_files(folder))


def test_a_folder_that_is_missing_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(FolderFilesError, match="cannot be read: No such file"):
        list(folder_files(tmp_path / "none"))
