"""Packages of other people take the place of ours in no process that we start."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from verl_e2e.adapters.dispatch import COMMAND

INSTALLED = Path(sys.executable).with_name("verl-e2e")
JOB = ROOT / "bot" / "verl_e2e" / "demo" / "recording" / "job.json"

# A parent whose `sys.path` begins with the stray packages starts a child with limits, as the service does.
LIMITED = """
import sys
from verl_e2e.adapters.limited.processes import _Child
sys.path.insert(0, {stray!r})
child = _Child("verl_e2e.adapters.demo_repository:build_demo_repository")
print(child._receive(60, 1024)[0].value)
child.end()
"""


@pytest.fixture
def stray(tmp_path: Path) -> Path:
    """A folder with packages of our names, old and new, whose import ends the process."""
    for name in ("bot", "runners", "verl_e2e", "verl_e2e_runner"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the stray package was imported')\n")
    return tmp_path


def _call(*command: str | Path, cwd: Path, **environment: str) -> str:
    words = [str(word) for word in command]
    variables = {"PATH": os.environ["PATH"], "HOME": str(cwd)} | environment
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("old_names", [True, False])
@pytest.mark.parametrize("command", [(INSTALLED,), COMMAND], ids=["installed command", "what a service starts"])
def test_the_command_imports_our_packages(stray: Path, command: tuple[str | Path, ...], *, old_names: bool) -> None:
    """A package `bot` of someone never matters; of two installations on PYTHONPATH a service starts its own."""
    if old_names or command[0] == INSTALLED:
        shutil.rmtree(stray / "verl_e2e")
        shutil.rmtree(stray / "verl_e2e_runner")
    run = ("run", "--job", JOB, "--out", stray / "out", "--dry-run")
    for environment in ({}, {"PYTHONPATH": str(stray)}):
        assert "version" in _call(*command, "--version", cwd=stray, **environment)
        # `run` imports the runner.
        assert "run_ppo_trainer_megatron.sh" in _call(*command, *run, cwd=stray, **environment)


def test_a_child_with_limits_imports_our_packages(stray: Path) -> None:
    program = LIMITED.format(stray=str(stray))
    assert _call(sys.executable, "-P", "-c", program, cwd=stray) == "ready\n"


def test_our_packages_are_found_in_a_folder_that_is_not_installed(stray: Path, tmp_path: Path) -> None:
    """An unpacked wheel, and PYTHONPATH names only the stray packages."""
    copy = tmp_path / "unpacked"
    for source in (ROOT / "bot" / "verl_e2e", ROOT / "runners" / "verl_e2e_runner"):
        shutil.copytree(source, copy / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "verl_e2e" / "__init__.py").write_text('__version__ = "0.0.copy"\n')
    shown = _call(
        sys.executable, "-P", copy / "verl_e2e" / "__main__.py", "--version", cwd=stray, PYTHONPATH=str(stray)
    )
    assert "0.0.copy" in shown
