"""A new criterion, setting, command or triage rule is one row in one file: added to a copy, it does its work.

Of a setting each consumer has a row too.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.places import FIXTURES, ROOT

CRITERION = """    CriterionRow(
        Criterion.QUIET,
        lambda case: Evidence(evidence.State.BROKEN, f"the log has {case.facts.line_count} lines", case.log, 1, "x"),
        stage=Stage.RAY,
        broken=Broken.AFTER_ERRORS,
        fix="Print less.",
    ),
"""
SETTING = """    GATING = AxisRow(
        name="gating",
        takes=Takes.CHOICE,
        default="soft",
        choices=("soft", "hard"),
        short="gating",
    )
"""
IN_VERL = '    Axis.GATING: AxisSetting(keys=("actor_rollout_ref.model.gating",)),\n'
COMMAND = '    Verb("wave", Capability.ASK, "Say hello.", f"{PREFIX} wave"),\n'
RULE = """    TriageRule(
        id="tea-break",
        fault=Fault.OUTSIDE,
        message="the kettle boils",
        cause="someone makes tea",
        fix="Wait for the tea.",
        example="RuntimeError: the kettle boils",
        source="a kitchen",
    ),
"""

PLANNED = """
from verl_e2e.config import packaged_policy
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.plan import plan
from verl_e2e.core.plan.policy import StandIn
from verl_e2e.core.report.plan_text import render_plan_text

stand_in = StandIn(level=Level.PARALLELISM, settings={"tensor": 2, "gating": "hard"})
policy = packaged_policy().model_copy(update={"most_gpus": 2, "stand_ins": (stand_in,)})
change = Change("a" * 40, "b" * 40, "a" * 40, (ChangedPath("src/x.py", PathStatus.MODIFIED),))
made = plan(change, policy, [Level.PARALLELISM])
print(render_plan_text(made), *(job.variant.overrides for job in made.jobs))
"""
HELPED = """
from verl_e2e.core.pulls.commands import CommandLine, parse_commands
from verl_e2e.core.report.command_text import render_help

print(render_help(), parse_commands((CommandLine(1, "/verl-e2e wave"),)))
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A copy of our packages."""
    copy = tmp_path / "packages"
    shutil.copytree(ROOT / "bot" / "verl_e2e", copy / "verl_e2e")
    shutil.copytree(ROOT / "runners" / "verl_e2e_runner", copy / "verl_e2e_runner")
    return copy


def add(packages: Path, file: str, *rows: tuple[str, str]) -> None:
    """Put each row behind the line of the file."""
    path = packages / "verl_e2e" / "core" / file
    text = path.read_text()
    for line, row in rows:
        assert text.count(line) == 1
        text = text.replace(line, f"{line}{row}")
    path.write_text(text)


def python(packages: Path, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def judged(packages: Path, folder: Path) -> dict[str, object]:
    shutil.copytree(FIXTURES / "runs" / "level0-isolated", folder)
    (job,) = json.loads(python(packages, "-m", "verl_e2e", "judge", folder, "--json"))["jobs"]
    return dict(job)


def test_a_criterion_is_added_by_one_row_in_one_file(packages: Path, tmp_path: Path) -> None:
    assert judged(packages, tmp_path / "before")["result"] == "Pass"
    name = ('    RUN_RECORD = "run_record"\n', '    QUIET = "quiet"\n')
    add(packages, "judge/criteria/table.py", name, ("CRITERIA: tuple[CriterionRow, ...] = (\n", CRITERION))
    job = judged(packages, tmp_path / "after")
    assert (job["result"], job["stage"], job["decided_by"]) == ("Fail", "ray", "quiet")
    assert str(job["cause"]).startswith("the log has ")
    followups, evidence = job["followups"], job["evidence"]
    assert isinstance(followups, list)
    assert "Print less." in followups
    assert isinstance(evidence, list)
    assert [item["state"] for item in evidence if item["criterion"] == "quiet"] == ["broken"]


def test_a_setting_is_added_by_its_row_and_what_it_is_in_each_consumer(packages: Path) -> None:
    assert python(packages, "-c", PLANNED) == ""
    before = '        short_off="not-packed",\n    )\n'
    add(packages, "model/settings.py", (before, SETTING))
    add(packages, "consumer/verl.py", ("SETTINGS: Mapping[Axis, AxisSetting] = {\n", IN_VERL))
    text = python(packages, "-c", PLANNED)
    assert "job 2-tp2-gating-hard: 2 GPUs" in text
    assert "('actor_rollout_ref.model.gating=hard',)" in text


def test_a_command_is_added_by_one_row_in_one_file(packages: Path) -> None:
    assert "no such command" in python(packages, "-c", HELPED)
    add(packages, "pulls/commands.py", ("TABLE = (\n", COMMAND))
    text = python(packages, "-c", HELPED)
    assert "| `/verl-e2e wave` | Say hello. | ask |" in text
    assert "Command(line=1, verb='wave', arguments=(), options={})" in text


def test_a_triage_rule_is_added_by_one_row_in_one_file(packages: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text('Traceback (most recent call last):\n  File "x.py", line 1, in f\nRuntimeError: the kettle boils\n')
    command = ("-m", "verl_e2e", "triage", "--json", log)
    assert "that no rule explains" in json.loads(python(packages, *command))["cause"]
    add(packages, "triage/table.py", ("RULES: tuple[TriageRule, ...] = (\n", RULE))
    found = json.loads(python(packages, *command))
    assert found["cause"].startswith("someone makes tea")
