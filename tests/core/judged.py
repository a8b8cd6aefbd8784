"""Recorded run folders, judged: the text of their `verdict.json`."""

from functools import cache
from pathlib import Path

from verl_e2e.app.judge_folder import judge_run
from verl_e2e.core.model.outcome import Verdict
from verl_e2e.core.report.documents import verdict_json
from verl_e2e.wiring.folders import run_folders

RUNS = Path(__file__).resolve().parents[1] / "fixtures" / "runs"


@cache
def judged(name: str) -> Verdict:
    """The verdict of a recorded run by the name of its folder."""
    return judge_run(run_folders(), RUNS / name)[0]


@cache
def judged_text(name: str) -> str:
    """The same as the bot keeps it with a run."""
    return verdict_json(judged(name))
