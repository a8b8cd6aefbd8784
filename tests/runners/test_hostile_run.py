"""Whole runs of a hostile Bridge head, and hosts that cannot keep it apart."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.runners.whole_runs import NO_TOOLS, job_with, log_of, run_whole
from tests.runners.world import World
from verl_e2e.adapters.files.run_folder import public_keys, read_record, read_seal
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.model.jobs import Isolation, Job
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import EndReason
from verl_e2e_runner.place import find_isolation, isolation_finding

pytestmark = [pytest.mark.host]

SUSPECT = (Path(__file__).resolve().parents[1] / "fixtures/hostile/suspect.py").read_text()
TRAINER = "import megatron.bridge\nprint('trained')\n"
# Code of the head that leaves something in every folder that it may write, as start-up files of Python are.
PLANTER = """
import os, sys
from pathlib import Path

def plant():
    packages = Path.home() / f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "usercustomize.py").write_text("print('PLANTED usercustomize', flush=True)")
    for folder, names, _ in os.walk("/"):
        names[:] = [name for name in names if (folder, name) not in (("/", "proc"), ("/", "sys"), ("/", "dev"))]
        if os.access(folder, os.W_OK):
            Path(folder, "planted.pth").write_text("import os; print('PLANTED pth', flush=True)")
"""
FINDER = """
import os
found = [folder for folder, _, files in os.walk("/") if "planted.pth" in files and not folder.startswith("/proc/")]
print("FOUND", found, flush=True)
"""
HARMLESS = {"survivor", "leave_traps", "workflow_commands", "network"}


def _hostile(world: World, tmp_path: Path, out: Path) -> Job:
    # The recorder sees to it that a job that names its folders gets none of them.
    targets = {"recorder": os.getpid(), "canary": ["canary-of", "-the-recorder"], "out": str(out), "outbox": "."}
    source = f"{SUSPECT}\nattack()\nimport megatron.core\n"
    process = {**targets, "survivor": "/tmp/alive", "inputs": [str(tmp_path / "bridge"), "/usr"]}
    return job_with(
        world,
        tmp_path,
        TRAINER,
        {"src/megatron/bridge/__init__.py": source},
        process={"SUSPECT_TARGETS": json.dumps(process)},
        isolation=Isolation.REQUIRED,
    )


@pytest.mark.bwrap
@pytest.mark.ray
def test_nothing_that_tests_or_the_import_proof_leave_is_there_when_the_wrapper_runs(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    head = {
        "src/megatron/bridge/__init__.py": "import megatron.core\nfrom megatron.bridge.planter import plant\nplant()\n",
        "src/megatron/bridge/planter.py": PLANTER,
        "tests/unit/test_good.py": f"{PLANTER}\ndef test_good():\n    plant()\n",
    }
    job = job_with(world, tmp_path, f"{FINDER}\n{TRAINER}", head, isolation=Isolation.REQUIRED)
    run_whole(job, tmp_path / "out", environ)
    log = log_of(tmp_path / "out")
    assert "trained" in log
    assert "FOUND []" in log
    assert "PLANTED" not in log
    assert b'name="test_good"' in (tmp_path / "out/junit.xml").read_bytes()


@pytest.mark.bwrap
@pytest.mark.ray
def test_a_hostile_head_changes_nothing_in_the_record_of_its_own_run(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    out = tmp_path / "out"
    run_whole(_hostile(world, tmp_path, out), out, {**environ, "HF_TOKEN": "canary-of-the-recorder"})
    record = read_record(out)
    assert record.environment is not None
    assert record.environment.isolation is not None
    assert record.environment.isolation.mode != "none"
    assert "imports.jsonl" in record.environment.suspects_word
    rows = [json.loads(line[8:]) for line in log_of(out).splitlines() if line.startswith("SUSPECT ")]
    assert len(rows) >= 25
    assert {row["attack"] for row in rows if row["gained"]} <= HARMLESS
    assert json.loads((out / "events.jsonl").read_text().splitlines()[-1])["data"] == {"processes": []}
    time.sleep(1)
    seal = read_seal(out, keys=public_keys(Path(f"{environ['VERL_E2E_RECORDER_KEY']}.pub")))
    assert (seal.state, seal.problem) == ("signed", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bridge", "out", "verl"]


def test_a_job_that_requires_isolation_is_blocked_before_anything_of_it_has_run(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    job = _hostile(world, tmp_path, tmp_path / "out")
    run_whole(job, tmp_path / "out", environ, isolation=lambda *_: NO_TOOLS)
    events = [json.loads(line) for line in (tmp_path / "out/events.jsonl").read_text().splitlines()]
    assert events[-2]["data"]["reason"] == EndReason.NOT_STARTED
    assert {event["data"]["name"] for event in events if event["kind"] == "phase"} == {"repositories"}
    verdict = judge(read_record(tmp_path / "out"), None)
    assert verdict.result is Result.BLOCKED
    assert "cannot be kept apart" in verdict.sentence
    assert any("Install bubblewrap" in followup for followup in verdict.followups)


def test_a_run_without_isolation_says_so_on_its_card(world: World) -> None:
    finding = isolation_finding(world.job(), NO_TOOLS)
    assert (finding.ok, finding.blocking) == (False, False)
    assert "could have been written by the code itself" in finding.summary


def test_a_host_without_the_tool_is_found_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_e2e_runner.place._UTILITIES", "/nowhere")
    assert find_isolation(world.job(), {"PATH": "/nowhere"}).problem == NO_TOOLS.problem


def test_no_cage_holds_a_job_of_several_nodes(world: World) -> None:
    job = world.job(gpu_count=8, site=world.site(gpus_per_node=4))
    host = find_isolation(job, {})
    assert "runs code on 2 nodes, and a cage holds only one" in host.problem
    required = isolation_finding(job.model_copy(update={"isolation": Isolation.REQUIRED}), host)
    assert (required.ok, required.blocking) == (False, True)


@pytest.mark.bwrap
def test_a_tool_that_does_not_work_is_found_out(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho Creating new namespace failed >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("verl_e2e_runner.place._UTILITIES", f"{tmp_path}:/usr/bin:/bin:/usr/sbin:/sbin")
    assert "Creating new namespace failed" in find_isolation(world.job(), {}).problem
