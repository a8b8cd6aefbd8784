"""Kept baselines: what is not whole, or is refused, is not there."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_e2e.adapters.files.folders import BaselineCache


def _yes(_: Path) -> bool:
    return True


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "related" / "uninterrupted").mkdir(parents=True)
    for name in ("job.json", "log.txt.zst", "related/uninterrupted/job.json"):
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture
def kept(tmp_path: Path, run: Path) -> BaselineCache:
    cache = BaselineCache(tmp_path / "work")
    assert cache.keep("d" * 64, run)
    return cache


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_kept_run_comes_back_whole(kept: BaselineCache, run: Path, tmp_path: Path) -> None:
    assert kept.fetch("d" * 64, tmp_path / "new" / "merge_base", _yes)
    assert _files(tmp_path / "new" / "merge_base") == _files(run)


def test_nothing_is_kept_under_another_key(kept: BaselineCache, tmp_path: Path) -> None:
    assert not kept.fetch("e" * 64, tmp_path / "new", _yes)
    assert not (tmp_path / "new").exists()


def test_a_kept_run_is_looked_at_before_it_is_copied(kept: BaselineCache, run: Path, tmp_path: Path) -> None:
    seen: list[dict[str, bytes]] = []

    def refuse(folder: Path) -> bool:
        seen.append(_files(folder))
        return False

    assert not kept.fetch("d" * 64, tmp_path / "new", refuse)
    assert seen == [_files(run)]
    assert not (tmp_path / "new").exists()


def _cut(folder: Path) -> None:
    (folder / "run" / "log.txt.zst").write_bytes(b"log")


def _add(folder: Path) -> None:
    (folder / "run" / "more.json").write_text("{}")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a file that is cut": _cut,
    "a file that is gone": lambda folder: (folder / "run" / "job.json").unlink(),
    "a nested file that is gone": lambda folder: (folder / "run/related/uninterrupted/job.json").unlink(),
    "a file too many": _add,
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "a manifest that is cut": lambda folder: (folder / "manifest.json").write_text('{"job.json": "'),
    "a manifest of another form": lambda folder: (folder / "manifest.json").write_text("[1, 2]"),
    "no run": lambda folder: shutil.rmtree(folder / "run"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_is_not_there_and_is_kept_again(
    kept: BaselineCache, run: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    damage(tmp_path / "work" / "baselines" / ("d" * 64))
    assert not kept.fetch("d" * 64, tmp_path / "new", _yes)
    assert kept.keep("d" * 64, run)
    assert kept.fetch("d" * 64, tmp_path / "new", _yes)


def test_without_a_work_folder_nothing_is_kept(run: Path, tmp_path: Path) -> None:
    cache = BaselineCache(None)
    assert not cache.keep("d" * 64, run)
    assert not cache.fetch("d" * 64, tmp_path / "new", _yes)


def test_a_disk_that_takes_no_copy_is_no_error(run: Path, tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file where the folder should be")
    cache = BaselineCache(tmp_path / "work")
    assert not cache.keep("d" * 64, run)
    assert not cache.fetch("d" * 64, tmp_path / "new", _yes)


def test_nothing_half_done_is_left(kept: BaselineCache, tmp_path: Path) -> None:
    assert not kept.keep("e" * 64, tmp_path / "nowhere")
    assert [path.name for path in (tmp_path / "work" / "baselines").iterdir()] == ["d" * 64]
