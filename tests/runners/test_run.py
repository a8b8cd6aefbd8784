"""A whole run on this machine: real git, the real wrapper's idioms, a real Ray for the import proof.

The GPU and the trainer are stand-ins: the devices are a value, and the trainer prints the log of a real run
under its own process number after importing the Bridge under test.
"""

import errno
import json
import lzma
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.core.level_runs import resuming, saving, trained
from tests.fakes.patience import HANG_S
from tests.fakes.places import FIXTURES
from tests.runners.whole_runs import job_with, run_whole
from tests.runners.world import STAND_IN_RAY, World
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.judge.case import Case, started_phases
from verl_e2e.core.judge.criteria.basic import steps_completed
from verl_e2e.core.judge.criteria.resume import resumed
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.jobs import Job, Network, Repository, SiteIsolation
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.needs import SiteNeeds
from verl_e2e.core.model.outcome import Result, of_preflight
from verl_e2e.core.model.record import Check, EndReason
from verl_e2e.core.triage.triage import triage
from verl_e2e_runner.folder.recorder import FolderInUseError
from verl_e2e_runner.place import take_place
from verl_e2e_runner.samplers import Bound, Devices

pytestmark = pytest.mark.host

RECORDED = FIXTURES / "logs" / "level0-pass.log.xz"

TRAINER = """
import os, re, sys
import megatron.bridge
sys.stdout.reconfigure(encoding="utf-8", newline="")
for line in open(os.environ["STAND_IN_LOG"], encoding="utf-8", newline=""):
    sys.stdout.write(re.sub(r"\\(WorkerDict pid=\\d+\\)", f"(WorkerDict pid={os.getpid()})", line))
"""
HANGING = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("Error executing job with overrides: ['a=1']", flush=True)
print("Traceback (most recent call last):\\n  File \\"main_ppo.py\\", line 1, in run\\nKeyError: 'lost'", flush=True)
time.sleep(600)
"""


def _job(world: World, tmp_path: Path, trainer: str, **changes: Any) -> Job:
    return job_with(world, tmp_path, trainer, ray=STAND_IN_RAY, **changes)


def _events(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def test_a_run_without_a_gpu_leaves_a_folder_that_says_so(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    out = tmp_path / "out"
    progress = run_whole(world.job(), out, environ, devices=lambda: Devices(problem="no driver"))
    verdict = judge(read_record(out), None)
    assert verdict.result is Result.BLOCKED
    # Where Hydra is not installed its absence is found first; every finding is a follow-up all the same.
    assert any("no driver" in followup for followup in verdict.followups)
    assert "no driver" in progress
    assert _events(out)[-2]["data"]["reason"] == EndReason.NOT_STARTED
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "the run's own folders are gone"


@pytest.mark.bwrap
def test_a_host_without_the_stated_memory_is_no_fault_of_the_change(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    site = world.site(isolation=SiteIsolation(network=Network.NONE), needs=SiteNeeds(memory_gib=14))
    place = partial(take_place, memory=lambda: (Bound(126.0, 9.0),))
    environ["VERL_E2E_HOST_FOLDER"] = str(tmp_path / "host")
    out = tmp_path / "out"
    run_whole(world.job(site=site), out, environ, place=place)
    verdict = judge(read_record(out), None)
    assert (verdict.result, of_preflight(Check.HOST_MEMORY) in verdict.causes) == (Result.BLOCKED, True)
    assert any("9.0 of 126.0 GiB are available" in followup for followup in verdict.followups)
    assert _events(out)[-2]["data"]["reason"] == EndReason.NOT_STARTED


def test_a_commit_that_is_in_no_repository_blocks_the_run_and_is_no_fault_of_the_runner(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    bridge = tmp_path / "bridge"
    shutil.copytree(world.bridge, bridge)
    shutil.rmtree(bridge / ".git" / "modules")
    run_whole(world.job(bridge=Repository(path=str(bridge), commit=world.bridge_commit)), tmp_path / "out", environ)
    verdict = judge(read_record(tmp_path / "out"), None)
    assert verdict.result is Result.BLOCKED
    assert _events(tmp_path / "out")[-2]["data"]["reason"] == EndReason.NOT_STARTED
    assert any("git submodule update --init" in followup for followup in verdict.followups)


@pytest.mark.parametrize("error", [RuntimeError("of our own"), OSError(errno.ENOSPC, "No space left on device")])
def test_an_error_of_the_runner_is_raised_and_recorded_as_the_end(
    world: World, tmp_path: Path, environ: dict[str, str], error: Exception
) -> None:
    def devices() -> Devices:
        raise error

    with pytest.raises(type(error)):
        run_whole(world.job(), tmp_path / "out", environ, devices=devices)
    ended, left = _events(tmp_path / "out")[-2:]
    assert (ended["data"]["reason"], left["kind"]) == (EndReason.RUNNER_FAULT, "left_running")
    assert str(error) in ended["data"]["note"]
    verdict = judge(read_record(tmp_path / "out"), None)
    assert (verdict.result, "runner itself failed" in verdict.sentence) == (Result.BLOCKED, True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "the run's own folders are gone"


@pytest.mark.parametrize("out", [".", "../x/out"])
def test_the_run_folder_may_be_named_by_any_path(
    world: World, tmp_path: Path, environ: dict[str, str], out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    run_whole(world.job(), Path(out), environ, devices=lambda: Devices(problem="no driver"))
    assert (tmp_path / "x" / out / "environment.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["x"], "the run's own folders are gone"


def test_a_folder_that_holds_a_run_is_refused(world: World, tmp_path: Path, environ: dict[str, str]) -> None:
    run_whole(world.job(), tmp_path / "out", environ, devices=lambda: Devices(problem="no driver"))
    before = (tmp_path / "out/events.jsonl").read_bytes()
    with pytest.raises(FolderInUseError, match="already holds a run"):
        run_whole(world.job(), tmp_path / "out", environ)
    assert (tmp_path / "out/events.jsonl").read_bytes() == before


@pytest.mark.ray
def test_a_run_to_the_end_leaves_every_file(world: World, tmp_path: Path, environ: dict[str, str]) -> None:
    log = tmp_path / "recorded.log"
    log.write_bytes(lzma.decompress(RECORDED.read_bytes()))
    job = _job(world, tmp_path, TRAINER, process={"STAND_IN_LOG": str(log)}, bridge_tests=("tests/unit/test_good.py",))
    out = tmp_path / "out"
    run_whole(job, out, {**environ, "GITHUB_TOKEN": "ghp_" + "a" * 36})
    ended = next(event["data"] for event in _events(out) if event["kind"] == "ended")
    assert (ended["reason"], ended["exit_code"]) == ("exited", 0)
    *_, memory = (event["data"] for event in _events(out) if event["kind"] == "memory")
    assert memory["readings"] > 0
    assert 0 <= memory["peak"]["held_mib"] < memory["peak"]["available_mib"]
    imported = [json.loads(line) for line in (out / "imports.jsonl").read_text().splitlines()]
    assert {row["file"] for row in imported if row["module"] == "megatron.bridge"} == {
        "$WORK/bridge/src/megatron/bridge/__init__.py"
    }
    assert [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()] == [1]
    assert json.loads((out / "config.json").read_text())["configs"][0]["values"]["trainer"]["save_freq"] == -1
    assert 'failures="0"' in (out / "junit.xml").read_text()
    assert "ghp_" not in "".join(path.read_text(errors="replace") for path in out.iterdir())


@pytest.mark.ray
def test_a_recorded_log_under_another_job_is_no_pass(world: World, tmp_path: Path, environ: dict[str, str]) -> None:
    """The stand-in's configuration is that of the recording, not of this job: never a Pass."""
    log = tmp_path / "recorded.log"
    raw = lzma.decompress(RECORDED.read_bytes())
    log.write_bytes(raw)
    out = tmp_path / "out"
    run_whole(_job(world, tmp_path, TRAINER, process={"STAND_IN_LOG": str(log)}), out, environ)
    verdict = judge(read_record(out), scan([raw]))
    assert verdict.result is Result.BLOCKED


@pytest.mark.ray
def test_a_run_that_hangs_after_a_fatal_error_is_ended_with_all_its_processes(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    # Of this test alone: other tests that run now have programs that sleep too.
    sleep = f"sleep(600.{os.getpid()})"
    job = _job(world, tmp_path, HANGING.replace("sleep(600)", sleep), site=world.site(hang_grace_s=1.0))
    began = time.monotonic()
    run_whole(job, tmp_path / "out", environ)
    assert time.monotonic() - began < HANG_S / 2, "the trainer itself sleeps for longer"
    ended = next(event["data"] for event in _events(tmp_path / "out") if event["kind"] == "ended")
    assert ended["reason"] == EndReason.FATAL_ERROR_HANG
    now = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in now if sleep in " ".join(command)]


SAVING = """
import os, pathlib, re, sys
import megatron.bridge
sys.stdout.reconfigure(encoding="utf-8", newline="")
step = int(os.environ["TOTAL_TRAIN_STEPS"])
for line in open(os.environ[f"STAND_IN_LOG_{step}"], encoding="utf-8", newline=""):
    sys.stdout.write(re.sub(r"\\(WorkerDict pid=\\d+\\)", f"(WorkerDict pid={os.getpid()})", line))
folder = pathlib.Path("checkpoints/checks")
assert (os.environ["RESUME_MODE"] == "auto") == (folder / "latest_checkpointed_iteration.txt").exists() == (step == 2)
for role in ("actor", "critic"):
    for name in ("model/dist_ckpt/__0_0.distcp", "optimizer/dist_ckpt/__0_0.distcp", "ckpt_contents.json"):
        path = folder / f"global_step_{step}" / role / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"state of step {step}")
(folder / "latest_checkpointed_iteration.txt").write_text(str(step))
"""


@pytest.mark.ray
def test_both_phases_of_a_save_and_a_resume_are_recorded(world: World, tmp_path: Path, environ: dict[str, str]) -> None:
    """The runner records who wrote which line and which files lay there when; the judge takes them for a resume."""
    texts = {1: trained(1, after=saving(1)), 2: trained(2, before=resuming(1), after=saving(2))}
    process = {}
    for step, text in texts.items():
        path = tmp_path / f"{step}.log"
        path.write_bytes(text.encode())
        process[f"STAND_IN_LOG_{step}"] = str(path)
    wrapper = {**world.job().wrapper, "SAVE_FREQ": "1", "RESUME_MODE": "disable"}
    shape = {"id": "1-resume", "level": Level.SAVE_RESUME, "variant": "resume", "steps": 2}
    out = tmp_path / "out"
    run_whole(_job(world, tmp_path, SAVING, process=process, wrapper=wrapper, **shape), out, environ)
    record, facts = read_record(out), scan(open_log(out / "log.txt.zst"))
    assert record.job is not None
    case = Case(record.job, record, facts, triage(facts))
    assert [(phase.name, phase.first_line) for phase in started_phases(case)] == [
        ("save", 1),
        ("resume", _first_line_of_the_second_phase(out)),
    ]
    message = [event["data"] for event in _events(out) if event["kind"] == "step"]
    assert message == [{"step": 1}, {"step": 2}], "no step of the first phase is reported again in the second"
    assert record.checkpoints is not None
    assert [(listing.after, len(listing.files)) for listing in record.checkpoints.listings] == [
        ("", 0),
        ("save", 7),
        ("resume", 13),
    ]
    item = resumed(case)
    assert item.state is State.MET, item.summary
    assert steps_completed(case).state is State.MET


def _first_line_of_the_second_phase(out: Path) -> int:
    lines = b"".join(open_log(out / "log.txt.zst")).split(b"\n")
    starts = [index for index, line in enumerate(lines, start=1) if line.startswith(b"+ export PYTHONPATH=")]
    return starts[1]
