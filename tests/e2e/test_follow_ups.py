"""Whole processes on a stand-in host: a job that fails is run again on the merge base and once more on the head.

Git, the wrapper's idioms, Hydra, runner, judge and card are the real ones. The GPU is a stand-in for the driver's
Python module, Ray one for the import proof, and the trainer prints the log of a real run, good or broken as the Bridge
it imported.
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from backports import zstd

from tests.fakes.command_server import verl_e2e
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.fakes.recorded import PASSES, RAISES, RUNS
from tests.runners.world import SCRIPT, STAND_IN_RAY, World, commit, make_world
from verl_e2e.core.consumer.verl import BASE_WRAPPER
from verl_e2e.core.model.jobs import Job, Repository
from verl_e2e.git.repository import UnknownRevisionError
from verl_e2e.wiring.check import job_follow_ups
from verl_e2e_runner.place import LOCK

pytestmark = pytest.mark.host

CONFIG = ROOT / "tests" / "fixtures" / "build" / "level0-config.json"

TRAINER = """
import os, pathlib, re, socket, sys
import megatron.bridge
folder = pathlib.Path(os.environ["STAND_IN"])
state = megatron.bridge.STATE
if state == "flaky":
    # Code under test keeps no file from one run to the next, so a server tells which run this is.
    with socket.create_connection(("127.0.0.1", int(os.environ["STAND_IN_PORT"]))) as connection:
        state = connection.recv(16).decode()
sys.stdout.reconfigure(encoding="utf-8", newline="")
for line in open(folder / state, encoding="utf-8", newline=""):
    sys.stdout.write(re.sub(r"\\(WorkerDict pid=\\d+\\)", f"(WorkerDict pid={os.getpid()})", line))
sys.exit(state != "good")
"""

# The part of the driver's module that the runner asks.
NVML = """
from types import SimpleNamespace
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlSystemGetDriverVersion(): return "stand-in"
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "stand-in"
def nvmlDeviceGetUUID(handle): return "GPU-0"
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(total=1 << 40, used=0)
def nvmlDeviceGetComputeRunningProcesses(handle): return []
def nvmlDeviceGetUtilizationRates(handle): return SimpleNamespace(gpu=0)
"""
# What the recorded runs gave to Ray.
RAY_CPUS = 16
LENGTHS = {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64"}


@dataclass(frozen=True)
class Place:
    """A host with a verl whose trainer is a stand-in, and a Bridge with a commit of each kind."""

    world: World
    root: Path
    verl: Repository
    bridge: Path
    commits: dict[str, str]

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """verl-e2e as a user types it, on a host with one GPU."""
        path = f"{self.root / 'nvml'}:{ROOT}"
        clean = {"PATH": os.environ["PATH"], "HOME": str(self.root), "PYTHONPATH": path}
        # The stand-in for verl has no engine whose weights could be read.
        clean["VERL_E2E_RECORD"] = "executed"
        _wait_for_the_host()
        command = [*verl_e2e(), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=clean, timeout=HANG_S, check=False)

    def site(self) -> Path:
        """A site profile of this host."""
        data = {"train_files": f"{self.world.root}/data/train.parquet", "prepare": "none"}
        document = {
            "name": "here",
            "python": sys.executable,
            "required_packages": ["pydantic"],
            "min_free_gib": 0,
            "ray_cpus": RAY_CPUS,
            "wrapper": LENGTHS,
            "process": {"STAND_IN": str(self.recordings)},
            "isolation": {"read": [str(self.recordings)]},
            "checkpoints": {"Qwen/Qwen2.5-0.5B": {"model_id": "org/tiny", "model_path": f"{self.world.root}/model"}},
            "data": {**data, "val_files": f"{self.world.root}/data/test.parquet"},
        }
        file = self.root / "site.yml"
        file.write_text(json.dumps(document))
        return file

    @property
    def recordings(self) -> Path:
        """The folder of the logs that the trainer prints; code under test may read it."""
        return self.root / "recordings"

    def job(self, state: str, **process: str) -> Path:
        """A Level 0 job on the Bridge commit of that state; `process` are more variables of the trainer."""
        job = self.world.job(
            verl=self.verl,
            bridge=Repository(path=str(self.bridge), commit=self.commits[state]),
            wrapper={**BASE_WRAPPER, **LENGTHS},
            process={"STAND_IN": str(self.recordings), **process},
            site=self.world.site(ray_cpus=RAY_CPUS, isolation={"read": [str(self.recordings)]}),
        )
        file = self.root / f"{state}.json"
        file.write_text(job.model_dump_json())
        return file


def _wait_for_the_host() -> None:
    """Until no other run holds the host: the lock is the machine's, and others may test here as well."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        with LOCK.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.5)
            else:
                return


@contextmanager
def broken_once() -> Iterator[int]:
    """The port of a server that says `broken` to the first run of a flaky head and `good` to all others."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_tell_states, args=(server,))
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _tell_states(server: socket.socket) -> None:
    state = b"broken"
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return  # the test is over
        with connection:
            connection.sendall(state)
        state = b"good"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    world = make_world(tmp_path / "world")
    verl, bridge = tmp_path / "verl", tmp_path / "bridge"
    shutil.copytree(world.verl, verl)
    shutil.copytree(world.bridge, bridge)
    reads = "".join(f"{name}=${{{name}:-512}}\n" for name in LENGTHS)
    script = (verl / SCRIPT).read_text().replace("settings=(", f"{reads}settings=(", 1)
    files = {
        SCRIPT: script,
        "verl/trainer/main_ppo.py": TRAINER,
        "verl/trainer/config/ppo_megatron_trainer.yaml": CONFIG.read_text(),
        "verl/utils/__init__.py": "",
        "ray.py": STAND_IN_RAY,
        "verl/utils/device.py": "def get_device_name():\n    return 'cuda'\n",
    }
    repository = Repository(path=str(verl), commit=commit(verl, files))
    source = "src/megatron/bridge/__init__.py"
    commits = {
        state: commit(bridge, {source: f"import megatron.core\nSTATE = {state!r}\n"})
        for state in ("good", "broken", "flaky")
    }
    commits["also broken"] = commit(bridge, {source: "import megatron.core\nSTATE = 'broken'\nCHANGED = True\n"})
    (tmp_path / "recordings").mkdir()
    for state, recorded in (("good", PASSES), ("broken", RAISES)):
        (tmp_path / "recordings" / state).write_bytes(
            zstd.decompress((RUNS / recorded.name / "log.txt.zst").read_bytes())
        )
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml" / "pynvml.py").write_text(NVML)
    return Place(world, tmp_path, repository, bridge, commits)


@pytest.mark.ray
def test_a_regression_is_found_by_a_check_and_its_baseline_is_kept(place: Place, tmp_path: Path) -> None:
    common = (
        *("check", "--repo", place.bridge, "--base", place.commits["good"], "--verl", place.verl.path),
        *("--level", 0, "--site", place.site(), "--work", tmp_path / "work"),
    )
    done = place.run(*common, "--head", place.commits["broken"], "--out", tmp_path / "out")
    base = place.commits["good"][:12]
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("Result: Fail - Level 0 failed at peft, caused by this change: ")
    assert f"; the merge base {base} passed, this head failed twice\n" in done.stdout
    assert f"- Related run: same job on the merge base (0-lora-ddp, Bridge {base}): Pass" in done.stdout
    order = [done.stderr.index(f"starting {what}") for what in ("on 1 GPU(s), about 7", "same job on", "retry on")]
    assert order == sorted(order)
    assert place.run("judge", tmp_path / "out").returncode == 1
    again = place.run(*common, "--head", place.commits["also broken"], "--out", tmp_path / "again", "--json")
    assert again.returncode == 1, again.stdout + again.stderr
    assert "same job on the merge base, Bridge" in again.stderr
    assert "is kept from an earlier run" in again.stderr
    (job,) = json.loads(again.stdout)["jobs"]
    assert "kept from an earlier run): Pass" in job["related"][0]


@pytest.mark.ray
def test_what_fails_on_the_baseline_too_is_blocked(place: Place, tmp_path: Path) -> None:
    job, base = place.job("also broken"), place.commits["broken"]
    done = place.run("run", "--job", job, "--out", tmp_path / "out", "--baseline", base)
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"; the merge base {base[:12]} failed the same way; " in done.stdout
    assert sorted(path.name for path in (tmp_path / "out/related").iterdir()) == ["merge_base", "merge_base.job.json"]
    assert json.loads((tmp_path / "out/verdict.json").read_text())["result"] == "Blocked"


@pytest.mark.ray
def test_what_a_retry_does_not_repeat_is_blocked_and_both_are_shown(place: Place, tmp_path: Path) -> None:
    with broken_once() as port:
        job = place.job("flaky", STAND_IN_PORT=str(port))
        done = place.run("run", "--job", job, "--out", tmp_path / "out", "--baseline", place.commits["good"])
    assert done.returncode == 4, done.stdout + done.stderr
    assert " passed, this head failed once and passed on a retry" in done.stdout
    assert "- Related run: same job on the merge base" in done.stdout
    assert "- Related run: retry on the head" in done.stdout


def test_a_dry_run_says_what_may_follow_and_starts_nothing(place: Place, tmp_path: Path) -> None:
    arguments = ("run", "--job", place.job("broken"), "--out", tmp_path / "out", "--dry-run")
    done = place.run(*arguments, "--baseline", place.commits["good"])
    assert done.returncode == 0
    assert "# 0-lora-ddp: may be followed by the same job on the merge base when it fails" in done.stdout
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0
    assert "may be followed" not in place.run(*arguments).stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (("--baseline", "nowhere"), "nowhere"),
        (("--baseline",), "requires an argument"),
    ],
)
def test_a_baseline_that_is_no_commit_is_told_before_anything_runs(
    place: Place, tmp_path: Path, extra: tuple[str, ...], text: str
) -> None:
    done = place.run("run", "--job", place.job("broken"), "--out", tmp_path / "out", *extra)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert text in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_machine_that_lacks_the_merge_base_runs_the_job_all_the_same(place: Place) -> None:
    job = Job.model_validate_json(Path(place.job("broken")).read_bytes())
    allowed = job_follow_ups(job, "e" * 40, lenient=True)
    assert allowed.merge_base is None
    assert allowed.why_no_base == "eeeeeeeeeeee is not in the repository of the job"
    with pytest.raises(UnknownRevisionError):
        job_follow_ups(job, "e" * 40)
