"""`verl-e2e signal` as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.command_server import verl_e2e
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT

LOG = ROOT / "tests" / "fixtures" / "logs" / "level5-flat-cut-at-14-of-20.log.xz"
FOLDER = ROOT / "tests" / "fixtures" / "runs" / "level0-lora-exception"
# A module that is None cannot be found: a machine without the library.
WITHOUT_PLOTS = (
    "import sys; sys.modules['matplotlib'] = None; sys.argv[0] = 'verl-e2e'; from verl_e2e.cli import main; main()"
)


def _verl_e2e(*arguments: object, command: tuple[str, ...] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    words = [*(command or verl_e2e()), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, env=clean, timeout=HANG_S, check=False)


def test_a_bare_log_shows_its_curves_and_its_word() -> None:
    done = _verl_e2e("signal", LOG, "--cap-share", "1", "--baseline", LOG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("flat: critic/score/mean stayed at 0.04497 to 0.04738 over 14 steps")
    assert "the baseline did not learn either" in done.stdout
    assert "critic/score/mean  level with the baseline" in done.stdout


def test_a_shorter_baseline_is_compared_as_far_as_it_goes() -> None:
    runs = ROOT / "tests" / "fixtures" / "runs"
    done = _verl_e2e("signal", runs / "level5-signal", "--baseline", runs / "level5-learning-rate-zero")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("learning-signal passed: critic/score/mean rose from 4.965 to 7.069 over 20 steps")
    assert "critic/score/mean  level with the baseline over 14 of 20 steps" in done.stdout
    assert "KL to the reference drifts above the baseline" in done.stdout


def test_the_document_says_the_same() -> None:
    done = _verl_e2e("signal", LOG, "--json")
    document = json.loads(done.stdout)
    assert (document["outcome"], document["failed"]) == ("flat", False)
    assert document["weak"] == ["100% of the responses end at the length cap, at most 50% may"]
    assert len(document["curves"]["reward"]["values"]) == 14


def test_a_run_that_never_trained_is_not_enough() -> None:
    done = _verl_e2e("signal", FOLDER)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "not enough steps: no step prints critic/score/mean or critic/rewards/mean\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("signal", "nowhere"), "nowhere: not a folder"),
        (("signal", LOG, "--baseline", FOLDER), "its log shows no training step; give a run that trained"),
        (("signal", ROOT / "tests"), "no run in this folder"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[object, ...], text: str) -> None:
    done = _verl_e2e(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_plots_without_the_library_are_the_users_mistake(tmp_path: Path) -> None:
    done = _verl_e2e("signal", LOG, "--plots", tmp_path / "plots", command=(sys.executable, "-c", WITHOUT_PLOTS))
    assert (done.returncode, done.stdout) == (2, "")
    assert "plots need matplotlib, which is not installed; python -m pip install 'matplotlib>=3.8,<4'" in done.stderr


@pytest.mark.plots
def test_plots_are_drawn_where_they_are_asked_for(tmp_path: Path) -> None:
    done = _verl_e2e("signal", LOG, "--json", "--plots", tmp_path / "plots")
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    made = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert made == ["signal-dark.png", "signal-dark.svg", "signal-light.png", "signal-light.svg"]
    assert done.stderr.count("signal-") == 4
