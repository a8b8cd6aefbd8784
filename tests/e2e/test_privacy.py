"""What holds secrets keeps them: files, environment and memory of the service are its own."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_serve import SECRET, key, settings
from tests.fakes.patience import HANG_S
from tests.fakes.service_process import SERVE, serving

__all__ = ["key", "settings"]

# As someone who is not root: root reads everything.
PEEK = """
import ctypes, os, subprocess, sys
from verl_e2e.cli.serve import be_private
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    # A change of user shuts a process as well; here it is the call alone that must do it.
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
if sys.argv[1] == "private":
    be_private()
path = {"PATH": os.environ["PATH"]}
shown = subprocess.run(["cat", f"/proc/{os.getpid()}/environ"], capture_output=True, text=True, env=path)
print(shown.stdout.count("hunter2"), shown.stderr)
"""


@pytest.mark.parametrize(("how", "message"), [("open", "1"), ("private", "0 cat: ")])
def test_no_other_process_of_the_user_reads_the_environment_that_we_were_started_with(how: str, message: str) -> None:
    environ = {"PATH": os.environ["PATH"], "WEBHOOK": "hunter2"}
    done = subprocess.run(
        [sys.executable, "-c", PEEK, how],
        env=environ,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert message in done.stdout, done.stderr


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_the_service_makes_files_for_its_user_alone(settings: dict[str, str], tmp_path: Path) -> None:
    with serving(settings, tmp_path / "log"):
        data = tmp_path / "data"
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        found = modes(data)
        assert "verl-e2e.sqlite3" in found
        assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


def test_secrets_may_come_from_files_and_are_in_no_environment(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    environ = {name: value for name, value in settings.items() if name != "GITHUB_WEBHOOK_SECRET"}
    with serving(environ | {"GITHUB_WEBHOOK_SECRET_FILE": str(tmp_path / "secret")}, tmp_path / "log", SERVE) as (
        process,
        _,
    ):
        assert SECRET.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
