"""`verl-e2e flaky` on the database of a service: what a pull request's attempts left there, and what is not there."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.core.pulls.test_retry import HANG, MARK, ended, passed
from tests.fakes.command_server import verl_e2e
from tests.fakes.patience import HANG_S
from verl_e2e.adapters.store import SqlLedger, open_store
from verl_e2e.cli import cli


def flaky(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Not in this process: the command keeps the files and the memory of its process for its user.
    command = [*verl_e2e(), "flaky", "octo/bridge", *arguments]
    environ = {"PATH": os.environ["PATH"], "VERL_E2E_DATA": str(data)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=HANG_S)


def test_the_causes_of_a_repository_are_listed_from_the_database(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/verl-e2e.sqlite3")
    for run in (ended(HANG), passed(), ended("log:network", repository="octo/other"), passed(repository="octo/other")):
        SqlLedger(store).put_run(run)
    store.close()
    assert flaky(tmp_path).stdout.startswith(f"{HANG} fingerprint {MARK}\n")
    (row,) = json.loads(flaky(tmp_path, "--json").stdout)["causes"]
    assert (row["cause"], row["runs"], row["heads_that_passed"]) == (HANG, 1, 1)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    result = flaky(tmp_path)
    assert result.returncode == 2
    assert "set VERL_E2E_DATA or DATABASE_URL" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_database_without_runs_has_no_such_cause(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    open_store(f"sqlite:///{tmp_path}/verl-e2e.sqlite3").close()
    result = flaky(tmp_path, *arguments)
    assert result.returncode == 0
    assert ("no cause came and went" in result.stdout) == (not arguments)


def test_policy_check_names_an_entry_of_the_quarantine_that_has_expired(tmp_path: Path) -> None:
    file = tmp_path / "verl-e2e.yml"
    entry = "{cause: 'log:network', until: 2026-01-01, reason: a switch, link: 'https://example.com/1'}"
    lines = ["schema: 1", "verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}", "image: {name: v, tag: latest}"]
    lines += ["checkpoint: {model_id: tiny/dense}", "rules: []", f"quarantine: [{entry}]"]
    file.write_text("\n".join(lines))
    result = CliRunner().invoke(cli, ["policy", "check", str(file)])
    assert result.exit_code == 0
    assert "quarantine of log:network until 2026-01-01 has expired and no longer counts; remove it" in result.output
