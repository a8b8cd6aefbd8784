"""Two whole runs at the same time on one host, each in its cage: the GPUs and the trainer are stand-ins."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.runners.world import VERL, World, commit
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.model.jobs import Job, Network, Repository, SiteIsolation
from verl_e2e.core.model.record import Check

pytestmark = [pytest.mark.bwrap, pytest.mark.host, pytest.mark.ray, pytest.mark.slow]

# It holds the port that some of Bridge's tests insist on, and a name that verl gives its sockets.
TRAINER = """
import os, socket, time
import megatron.bridge
held = socket.socket()
held.bind(("127.0.0.1", 29500))
held.listen()
open("/tmp/rl-colocate-zmq-0.sock", "x").write("mine")
time.sleep(3)
print("SEEN", os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"], os.getuid(), flush=True)
"""
RUNNER = """
import io, os, sys
from pathlib import Path
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Gpu
from verl_e2e_runner.run import run_job
from verl_e2e_runner.samplers import Device, Devices
gpus = [Gpu(index=index, name="G", memory_total_mib=9, memory_used_mib=0) for index in (0, 1)]
two = Devices(tuple(Device(gpu, f"GPU-{gpu.index}") for gpu in gpus))
job = Job.model_validate_json(sys.stdin.read())
run_job(job, Path(sys.argv[1]), environ=dict(os.environ), work=None, stream=io.StringIO(), devices=lambda: two)
"""


def _job(world: World, tmp_path: Path) -> Job:
    device = {"verl/utils/device.py": "def get_device_name():\n    return 'cuda'\n", "verl/utils/__init__.py": ""}
    verl = tmp_path / "verl"
    sha = commit(verl, {**VERL, **device, "verl/trainer/main_ppo.py": TRAINER})
    site = world.site(isolation=SiteIsolation(network=Network.NONE, shm_gib=0.5, tmp_gib=0.5))
    return world.job(verl=Repository(path=str(verl), commit=sha), site=site)


def test_two_runs_have_gpus_ports_names_and_users_of_their_own(world: World, tmp_path: Path) -> None:
    job = _job(world, tmp_path).model_dump_json().encode()
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "VERL_E2E_RECORDER_KEY": str(tmp_path / "key/recorder.key"),
        "VERL_E2E_HOST_FOLDER": str(tmp_path / "host"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    outs = [tmp_path / "first", tmp_path / "second"]
    runners = [
        # A service that keeps its files for itself starts its runs with its umask.
        subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(out)], stdin=subprocess.PIPE, env=environ, cwd=ROOT, umask=0o077
        )
        for out in outs
    ]
    for runner in runners:
        assert runner.stdin is not None
        runner.stdin.write(job)
        runner.stdin.close()
    assert [runner.wait(HANG_S) for runner in runners] == [0, 0]
    seen = []
    for out in outs:
        record = read_record(out)
        assert record.environment is not None
        found = {finding.check: finding for finding in record.environment.findings}
        assert found[Check.OTHER_RUNS].ok, found[Check.OTHER_RUNS].summary
        log = b"".join(open_log(out / "log.txt.zst")).decode()
        assert "SEEN" in log, json.dumps([str(finding) for finding in found.values() if not finding.ok]) + log[-2000:]
        seen.append(next(line.split()[1:] for line in log.splitlines() if line.startswith("SEEN")))
        assert record.environment.process["CUDA_VISIBLE_DEVICES"] == seen[-1][0]
    # Both had the GPU that is free first if one had ended before the other began.
    assert {gpus for gpus, _, _ in seen} == {"0", "1"}
    assert {order for _, order, _ in seen} == {"PCI_BUS_ID"}
    users = {int(user) for _, _, user in seen}
    assert len(users) == (2 if os.getuid() == 0 else 1)
