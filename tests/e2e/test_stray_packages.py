"""Someone else's package `bot` or `runners` takes the place of ours in no process that we start."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.patience import HANG_S
from verl_e2e.adapters.dispatch import COMMAND

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(sys.executable).with_name("verl-e2e")
JOB = ROOT / "bot" / "demo" / "recording" / "job.json"

# A parent whose `sys.path` begins with the stray packages starts a child with limits, as the service does.
LIMITED = """
import sys
import verl_e2e_command
sys.path.insert(0, {stray!r})
verl_e2e_command.prefer_own_packages()
from verl_e2e.adapters.limited import LimitedProcesses, Limits
processes = LimitedProcesses("verl_e2e.adapters.demo_repository:build_demo_repository")
child = processes._take()
child._expect_ready()
print("ready")
processes.close()
child.end()
"""


@pytest.fixture
def stray(tmp_path: Path) -> Path:
    """A folder with packages of our names whose import ends the process."""
    for name in ("bot", "runners"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the stray package was imported')\n")
    return tmp_path


def _call(*command: str | Path, cwd: Path, **environment: str) -> str:
    words = [str(word) for word in command]
    variables = {"PATH": os.environ["PATH"], "HOME": str(cwd)} | environment
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [(INSTALLED,), COMMAND], ids=["installed command", "what a service starts"])
def test_the_command_imports_our_packages(stray: Path, command: tuple[str | Path, ...]) -> None:
    run = ("run", "--job", JOB, "--out", stray / "out", "--dry-run")
    for environment in ({}, {"PYTHONPATH": str(stray)}):
        assert "version" in _call(*command, "--version", cwd=stray, **environment)
        # `run` imports `runners`.
        assert "run_ppo_trainer_megatron.sh" in _call(*command, *run, cwd=stray, **environment)


def test_a_child_with_limits_imports_our_packages(stray: Path) -> None:
    program = LIMITED.format(stray=str(stray))
    assert _call(sys.executable, "-P", "-c", program, cwd=stray) == "ready\n"


def test_our_packages_are_found_in_a_folder_that_is_not_installed(stray: Path, tmp_path: Path) -> None:
    """An unpacked wheel, and PYTHONPATH names only the stray packages."""
    copy = tmp_path / "unpacked"
    copy.mkdir()
    shutil.copy(ROOT / "verl_e2e_command.py", copy)
    for name in ("bot", "runners"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import bot, runners; print(bot.__file__, runners.__file__)"
    program = f"import verl_e2e_command as entry; entry.prefer_own_packages(); {code}"
    shown = _call(sys.executable, "-P", "-c", program, cwd=stray, PYTHONPATH=f"{stray}:{copy}")
    assert shown.split() == [str(copy / name / "__init__.py") for name in ("bot", "runners")]
