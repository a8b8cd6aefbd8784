"""The execution record of whole runs: Bridge tests and a wrapper whose processes have a Python of 3.12 or later."""

import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.runners.recorded import lines, names
from tests.runners.whole_runs import job_with, run_whole
from tests.runners.world import STAND_IN_RAY, World
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import ChangedCode, ChangedFunction, Executed, ProcessRole
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Manifest
from verl_e2e_runner.process.cage import wanted_records

pytestmark = [pytest.mark.host, pytest.mark.monitoring, pytest.mark.ray]

SOURCE = "src/megatron/bridge/__init__.py"
CODE = "def entered(value):\n    if value:\n        return 1\n    return 0\n\n\ndef tested():\n    return 2\n"
TEST = "import megatron.bridge\n\ndef test_good():\n    assert megatron.bridge.tested() == 2\n"
# It starts a Python of the other kind, waits until that has run the code, and hangs after an error.
TRAINER = """
import os, subprocess, time
code = "import megatron.bridge as b, time; b.entered(0); print('ran', flush=True); time.sleep(600)"
child = subprocess.Popen([os.environ["OTHER_PYTHON"], "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print("Error executing job with overrides: ['a=1']", flush=True)
print("Traceback (most recent call last):\\n  File \\"main_ppo.py\\", line 1, in run\\nKeyError: 'lost'", flush=True)
time.sleep(600)
"""


def _job(world: World, tmp_path: Path, python: str, **changes: Any) -> Job:
    """A job whose Bridge tests and whose trainer's child run in a Python that can be recorded."""
    head = {SOURCE: f"{CODE}\nimport megatron.core\n", "tests/unit/test_good.py": TEST}
    changed = ChangedFunction(path=SOURCE, symbol="entered", first_line=1, last_line=4, lines=(2, 3, 4))
    site = world.site(hang_grace_s=1.0, bridge_python=python, bridge_python_path=(sysconfig.get_path("purelib"),))
    values: dict[str, Any] = {
        "process": {"OTHER_PYTHON": python, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        "changed": ChangedCode(functions=(changed,)),
        "site": site,
    }
    return job_with(world, tmp_path, TRAINER, head, ray=STAND_IN_RAY, **{**values, **changes})


def _executed(job: Job, out: Path, environ: Mapping[str, str]) -> Executed:
    run_whole(job, out, environ)
    executed = read_record(out).executed
    assert executed is not None
    return executed


def test_a_run_that_was_ended_says_what_ran_until_then(
    world: World, tmp_path: Path, environ: dict[str, str], one_monitoring_python: str
) -> None:
    executed = _executed(_job(world, tmp_path, one_monitoring_python), tmp_path / "out", environ)
    assert (executed.problem, executed.cut) == ("", ())
    kinds = {(process.phase, process.role): index for index, process in enumerate(executed.processes)}
    tests, wrapper = kinds["bridge_tests", ProcessRole.BRIDGE_TEST], kinds["train", ProcessRole.OTHER]
    assert names(executed, SOURCE, process=tests) == {"tested"}
    assert names(executed, SOURCE, process=wrapper) == {"entered"}
    assert {2, 4} <= lines(executed, SOURCE)
    assert 3 not in lines(executed, SOURCE), "the branch that was not taken"
    assert {process.phase for process in executed.processes} == {"bridge_tests", "train"}
    assert executed.processes[tests].began_s < executed.processes[wrapper].began_s
    manifest = Manifest.model_validate_json((tmp_path / "out/manifest.json").read_bytes())
    assert [file.word for file in manifest.files if file.path == "executed.json"] == ["suspect"]


def test_bridge_tests_that_stop_the_run_leave_their_record(
    world: World, tmp_path: Path, environ: dict[str, str], one_monitoring_python: str
) -> None:
    job = _job(
        world, tmp_path, one_monitoring_python, bridge_tests=("tests/unit/test_good.py", "tests/unit/test_bad.py")
    )
    executed = _executed(job, tmp_path / "out", environ)
    assert {process.role for process in executed.processes} == {ProcessRole.BRIDGE_TEST}
    assert names(executed, SOURCE) == {"tested"}


def test_the_record_can_be_switched_off(
    world: World, tmp_path: Path, environ: dict[str, str], one_monitoring_python: str
) -> None:
    job = _job(world, tmp_path, one_monitoring_python, bridge_tests=("tests/unit/test_bad.py",))
    executed = _executed(job, tmp_path / "out", {**environ, "VERL_E2E_RECORD": "fingerprints"})
    assert (executed.processes, executed.problem) == ((), "the execution record was switched off")


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (None, {"executed", "fingerprints"}),
        ("", {"executed", "fingerprints"}),
        ("off", set()),
        ("executed", {"executed"}),
        (" fingerprints , executed", {"executed", "fingerprints"}),
    ],
)
def test_the_variable_names_the_records(value: str | None, parts: set[str]) -> None:
    assert wanted_records({} if value is None else {"VERL_E2E_RECORD": value}) == parts


@pytest.mark.parametrize("value", ["no", "executed,off", "executed,,"])
def test_a_value_that_names_no_record_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="is not one of executed, fingerprints"):
        wanted_records({"VERL_E2E_RECORD": value})
