"""Run folders taken from where untrusted code could write: nothing outside, nothing beyond a cap, nothing half."""

import os
from pathlib import Path

import pytest

from verl_e2e.adapters.dispatch.order_folder import Caps, copy_folder
from verl_e2e.ports import BackendError

CAPS = Caps(total_bytes=100, files=3, depth=3)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "related" / "base").mkdir(parents=True)
    (folder / "job.json").write_text("{}")
    (folder / "related" / "base" / "log.txt").write_text("log")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_files_come_with_their_folders(source: Path, tmp_path: Path) -> None:
    assert copy_folder(source, tmp_path / "into", CAPS)
    assert names(tmp_path / "into") == ["job.json", "related/base/log.txt"]


def test_links_and_pipes_stay_behind(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    (source / "log.txt").symlink_to(tmp_path / "secret")
    (source / "home").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(source / "pipe")
    assert copy_folder(source, tmp_path / "into", CAPS)
    assert names(tmp_path / "into") == ["job.json", "related/base/log.txt"]


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"large": "x" * 96}, "more than 100 bytes"),
        ({"a/b/c/d": "deep"}, "deeper than allowed"),
        ({"n" * 250: "", "another": ""}, "more than 3 files"),
    ],
)
def test_nothing_is_taken_beyond_a_cap(source: Path, tmp_path: Path, added: dict[str, str], words: str) -> None:
    for name, text in added.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    with pytest.raises(BackendError, match=words):
        copy_folder(source, tmp_path / "into", CAPS)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_empty_folder_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    assert not copy_folder(tmp_path / "source", tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_what_was_taken_once_is_kept(source: Path, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "job.json").write_text("judged already")
    assert copy_folder(source, tmp_path / "into", CAPS)
    assert (tmp_path / "into" / "job.json").read_text() == "judged already"
