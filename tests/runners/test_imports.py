"""The import proof in real processes: a driver, and a worker of a real private Ray."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes.patience import HANG_S
from tests.runners.world import World
from verl_e2e.core.model.outcome import Attribution, Stage
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.launch.launcher import python_path
from verl_e2e_runner.launch.verl import launches
from verl_e2e_runner.preflight.host import ask_interpreter
from verl_e2e_runner.preflight.imports import ImportProof, prove_imports
from verl_e2e_runner.process.cage import Session, ray_folder
from verl_e2e_runner.trees import Trees, prepare_trees

pytestmark = pytest.mark.ray
UNDECIDED = Attribution.UNDECIDED


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Session]:
    nonce = os.urandom(8).hex()
    folder = ray_folder(nonce)
    folder.mkdir(mode=0o700)
    yield Session(nonce, folder, tmp_path / "imports.jsonl")
    shutil.rmtree(folder)


def proof(
    world: World,
    trees: Trees,
    session: Session,
    base: dict[str, str],
    work: Path,
    *,
    worker_path: str | None = None,
    timeout_s: float = 60,
    **changes: Any,
) -> ImportProof:
    job = world.job(**changes)
    variables = launches(job, trees, session, base=base)[0].environment
    path = worker_path or python_path(job, trees)
    runtime_env = {"py_executable": None, "env_vars": {"PYTHONPATH": path, "VERL_E2E_IMPORTS": "/nowhere"}}
    made = prove_imports(job, trees, session, variables, runtime_env, work, timeout_s=timeout_s)
    left = [process for process in psutil.process_iter() if _is_of(process, session.nonce)]
    assert left == []
    return made


def _is_of(process: psutil.Process, nonce: str) -> bool:
    try:
        return process.environ().get("VERL_E2E_RUN", "").startswith(nonce) and process.status() != "zombie"
    except psutil.Error:
        return False


def by_check(made: ImportProof) -> dict[Check, Finding]:
    return {finding.check: finding for finding in made.findings}


def test_driver_and_worker_import_from_the_trees(
    world: World, shared_trees: Trees, private: Session, base: dict[str, str], tmp_path: Path
) -> None:
    made = proof(world, shared_trees, private, base, tmp_path)
    assert [finding.ok for finding in made.findings] == [True, True], made.findings
    rows = {(line.role, line.module): line for line in made.lines}
    assert len(rows) == 6
    for role in ("driver", "ray_worker"):
        for module, root in shared_trees.import_roots.items():
            assert Path(rows[role, module].file).is_relative_to(root)
    assert len({line.pid for line in made.lines}) == 2


def test_a_worker_that_gets_another_path_is_caught(
    world: World, shared_trees: Trees, private: Session, base: dict[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other/megatron/core"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    _, _, without_probe = python_path(world.job(), shared_trees).partition(os.pathsep)
    made = proof(world, shared_trees, private, base, tmp_path, worker_path=f"{tmp_path / 'other'}:{without_probe}")
    finding = by_check(made)[Check.IMPORT_WORKER]
    assert (finding.blocking, finding.ok, finding.stage) == (True, False, Stage.IMPORT)
    assert f"comes from {other / '__init__.py'} in a Ray worker" in finding.summary


def test_a_wrong_path_in_the_driver_ends_both_at_once(
    world: World, shared_trees: Trees, private: Session, base: dict[str, str], tmp_path: Path
) -> None:
    wrong = tmp_path / "site/megatron/bridge"
    wrong.mkdir(parents=True)
    (wrong / "__init__.py").write_text("")
    path = f"{tmp_path / 'site'}:{python_path(world.job(), shared_trees)}"
    made = proof(world, shared_trees, private, base, tmp_path, process={"PYTHONPATH": path})
    finding = by_check(made)[Check.IMPORT_DRIVER]
    assert (finding.blocking, finding.ok, finding.stage) == (True, False, Stage.IMPORT)
    assert str(wrong / "__init__.py") in finding.summary
    assert shared_trees.import_roots["megatron.bridge"] in finding.summary
    assert finding.fix


@pytest.mark.parametrize(
    ("line", "stage", "attribution", "words"),
    [
        ("import modelopt_of_the_image", Stage.ENVIRONMENT, UNDECIDED, "No module named 'modelopt_of_the_image'"),
        ("import megatron.core.gone", Stage.IMPORT, Attribution.TREES, "No module named 'megatron.core.gone'"),
        ("raise OSError('libx.so: undefined symbol: y')", Stage.ENVIRONMENT, UNDECIDED, "undefined symbol"),
        ("raise TypeError('bad code')", Stage.IMPORT, UNDECIDED, "TypeError: bad code"),
        (
            "try:\n    import flash_of_the_image\nexcept ImportError:\n    import megatron.core.fallback",
            Stage.ENVIRONMENT,
            UNDECIDED,
            "first error: ModuleNotFoundError: No module named 'flash_of_the_image'",
        ),
        ("import os; os._exit(7)", Stage.IMPORT, Attribution.HOST, "exit code 7"),
        ("import time; time.sleep(60)", Stage.IMPORT, Attribution.HOST, "no end within 4 s"),
    ],
)
def test_a_failed_import_names_its_root_and_whose_fault_it_is(
    line: str,
    stage: Stage,
    attribution: Attribution,
    words: str,
    world: World,
    private: Session,
    base: dict[str, str],
    tmp_path: Path,
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    (trees.bridge / "src/megatron/bridge/__init__.py").write_text(line + "\n")
    # Only the import that never ends needs a short limit; a busy machine must not give the others one.
    made = proof(world, trees, private, base, tmp_path, timeout_s=4 if "sleep" in line else HANG_S)
    finding = by_check(made)[Check.IMPORT_DRIVER]
    assert (finding.blocking, finding.ok, finding.stage) == (True, False, stage)
    assert finding.attribution is attribution
    assert words in finding.summary


def test_the_interpreter_is_asked_without_importing_anything(
    world: World, shared_trees: Trees, private: Session, base: dict[str, str]
) -> None:
    job = world.job()
    variables = launches(job, shared_trees, private, base=base)[0].environment
    interpreter, findings = ask_interpreter(job, shared_trees, variables)
    assert [finding.ok for finding in findings] == [True]
    assert {"ray", "hydra-core"} <= interpreter.versions.keys()
