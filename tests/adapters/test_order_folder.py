"""An order on a shared disk, where code that no host keeps apart can put links and pipes in the place of our files."""

import os
from pathlib import Path

import pytest

from verl_e2e.adapters.dispatch.order_folder import RUNNER_LOG, OrderFolder
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.core.model.record import EVENTS_FILE, LOG_FILE

SECRET = "the private key of the service"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A folder of the service's own host, with a file of every name that is read from an order."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    for name in (RUNNER_LOG, LOG_FILE, EVENTS_FILE, "job"):
        (folder / name).write_text(SECRET)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> OrderFolder:
    made = OrderFolder.of(tmp_path / "orders", "a" * 64)
    made.run_folder.mkdir(parents=True)
    return made


def everything_read(folder: OrderFolder, into: Path) -> str:
    texts = [folder.read("claim/job"), folder.read(RUNNER_LOG), folder.lost(None).note, folder.where()]
    texts += [block.decode() for block in folder.log(open_log)]
    if folder.copy_run(into):
        texts += [path.read_text() for path in into.rglob("*") if path.is_file()]
    return "\n".join(texts)


def test_plain_files_are_read(folder: OrderFolder, tmp_path: Path) -> None:
    (folder.path / RUNNER_LOG).write_text("of the runner")
    assert "of the runner" in everything_read(folder, tmp_path / "into")
    (folder.run_folder / LOG_FILE).write_text("of the run")
    assert "".join(block.decode() for block in folder.log(open_log)) == "of the run"


def test_the_last_words_of_a_runner_hold_no_secret(folder: OrderFolder) -> None:
    (folder.path / RUNNER_LOG).write_text("fatal: cannot read https://bot:hunter2@git.example/verl\n")
    note = folder.lost(None).note
    assert ("cannot read https://" in note, "hunter2" in note) == (True, False)


def test_no_link_leads_to_a_file_of_the_service(folder: OrderFolder, secrets: Path, tmp_path: Path) -> None:
    for place in (folder.path / RUNNER_LOG, folder.run_folder / LOG_FILE, folder.run_folder / EVENTS_FILE):
        place.symlink_to(secrets / place.name)
    (folder.path / "claim").symlink_to(secrets)
    assert SECRET not in everything_read(folder, tmp_path / "into")


@pytest.mark.parametrize("swapped", ["run", "."])
def test_no_folder_of_the_order_is_a_link(folder: OrderFolder, secrets: Path, tmp_path: Path, swapped: str) -> None:
    place = folder.path / swapped
    place.rename(tmp_path / "before")
    place.symlink_to(secrets)
    (secrets / "run").mkdir()
    (secrets / "run" / LOG_FILE).write_text(SECRET)
    assert SECRET not in everything_read(folder, tmp_path / "into")


def test_a_pipe_stops_no_one(folder: OrderFolder, tmp_path: Path) -> None:
    (folder.path / "claim").mkdir()
    for name in ("claim/job", RUNNER_LOG, f"run/{LOG_FILE}", f"run/{EVENTS_FILE}"):
        os.mkfifo(folder.path / name)
    assert "the runner was killed" in everything_read(folder, tmp_path / "into")


def test_what_is_written_replaces_a_link_and_follows_none(folder: OrderFolder, secrets: Path) -> None:
    for name in ("cancel", f".cancel.{os.getpid()}"):
        (folder.path / name).symlink_to(secrets / "job")
    folder.write("cancel", "1")
    assert folder.read("cancel") == "1"
    assert (secrets / "job").read_text() == SECRET


def test_of_two_that_write_a_file_once_the_first_has_it(folder: OrderFolder) -> None:
    folder.write("claim", "cancelled", once=True)
    folder.write("claim", "begun", once=True)
    assert folder.read("claim") == "cancelled"
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []
