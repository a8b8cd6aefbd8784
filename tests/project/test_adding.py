"""A new criterion is one row in one file: added to a copy of the packages, it is judged, shown and decides."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fakes.places import FIXTURES, ROOT

TABLE = Path("verl_e2e/core/judge/criteria/table.py")
NAME = '    RUN_RECORD = "run_record"\n'
ROW = """    Row(
        Criterion.QUIET,
        lambda case: Evidence(State.BROKEN, f"the log has {case.facts.line_count} lines", case.log, 1, "line 1"),
        stage=Stage.RAY,
        broken=Broken.AFTER_ERRORS,
        fix="Print less.",
    ),
"""


def judged(packages: Path, folder: Path) -> dict[str, object]:
    shutil.copytree(FIXTURES / "runs" / "level0-isolated", folder)
    command = [sys.executable, "-m", "verl_e2e", "judge", str(folder), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (job,) = json.loads(answer.stdout)["jobs"]
    return dict(job)


def test_a_criterion_is_added_by_one_row_in_one_file(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    shutil.copytree(ROOT / "bot" / "verl_e2e", packages / "verl_e2e")
    shutil.copytree(ROOT / "runners" / "verl_e2e_runner", packages / "verl_e2e_runner")
    assert judged(packages, tmp_path / "before")["result"] == "Pass"
    text = (packages / TABLE).read_text()
    begin, end = text.split("CRITERIA: tuple[Row, ...] = (\n")
    added = f"{begin}CRITERIA: tuple[Row, ...] = (\n{ROW}{end}".replace(NAME, f'{NAME}    QUIET = "quiet"\n')
    (packages / TABLE).write_text(added)
    job = judged(packages, tmp_path / "after")
    assert (job["result"], job["stage"], job["decided_by"]) == ("Fail", "ray", "quiet")
    assert str(job["cause"]).startswith("the log has ")
    followups, evidence = job["followups"], job["evidence"]
    assert isinstance(followups, list)
    assert "Print less." in followups
    assert isinstance(evidence, list)
    assert [item["state"] for item in evidence if item["criterion"] == "quiet"] == ["broken"]
