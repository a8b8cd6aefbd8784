"""What a hostile change gains: the suspect's test program in a real cage, as root and as an ordinary user."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.patience import HANG_S
from verl_e2e.core.model.jobs import Network, SiteIsolation
from verl_e2e_runner.process.cage import Cage, Tools, names_below, read_below
from verl_e2e_runner.process.processes import HostClock, hand_path_over, run_program, start

pytestmark = [pytest.mark.bwrap, pytest.mark.host]

SUSPECT = Path(__file__).resolve().parents[1] / "fixtures/hostile/suspect.py"
CANARY = "canary-of-the-recorder-0f1e2d"
PYTHON = "/usr/bin/python3"
# What the suspect does for our eyes and may do: it gains nothing by it.
HARMLESS = {"survivor", "leave_traps", "workflow_commands"}


@dataclass(frozen=True)
class Scene:
    """A cage, a run folder, a runner's files and sockets, and the recorder's process: this one, or a child of it."""

    cage: Cage
    folder: Path
    out: Path
    runner_temp: Path
    port: int
    holder: int

    def targets(self, **more: Any) -> dict[str, Any]:
        return {
            "recorder": self.holder,
            "canary": [CANARY[:9], CANARY[9:]],
            "stranger": "600.0625",
            "out": str(self.out),
            "files": [str(path) for path in sorted(self.runner_temp.iterdir()) if path.is_file()],
            "socket": str(self.runner_temp / "docker.sock"),
            "port": self.port,
            "shared": [str(self.folder / "shm"), "/dev/shm/verl-e2e-of-the-host"],
            "inputs": [str(self.folder / "model"), str(self.folder / "bridge"), "/etc/passwd", "/usr/planted"],
            "private": ["/root/.ssh", "/root/.bashrc", str(self.folder / "private"), "/run", "/home", "/var/lib"],
            "outbox": str(self.cage.outbox),
            "survivor": str(self.cage.outbox / "alive"),
            **more,
        }


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    yield from make_scene(tmp_path)


def make_scene(folder: Path, network: Network = Network.HOST) -> Iterator[Scene]:
    for name in ("out", "runner", "model", "bridge", "private", "work"):
        (folder / name).mkdir()
    (folder / "out/events.jsonl").write_text("{}\n")
    for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY"):
        (folder / "runner" / name).write_text("before\n")
        (folder / "runner" / name).chmod(0o666)
    (folder / "model/config.json").write_text("{}")
    Path("/dev/shm/verl-e2e-of-the-host").write_text("x")
    cage = caged(folder, network)
    # What a runner's process holds; our own environment shows in /proc as it was at our start.
    sleep = subprocess.Popen(("sleep", "600.0625"), env={"TOKEN": CANARY})
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as docker, sleep as holder:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        docker.bind(str(folder / "runner/docker.sock"))
        docker.listen(8)
        (folder / "runner/docker.sock").chmod(0o666)
        yield Scene(cage, folder, folder / "out", folder / "runner", listener.getsockname()[1], holder.pid)
        holder.kill()
    Path("/dev/shm/verl-e2e-of-the-host").unlink()


def caged(folder: Path, network: Network = Network.HOST, reads: tuple[Path, ...] = (), **site: Any) -> Cage:
    tools = Tools(*(shutil.which(name) or "" for name in ("bwrap", "setpriv", "prlimit")))
    settings = SiteIsolation(network=network, shm_gib=0.02, tmp_gib=0.02, **site)
    hidden = (folder / "out", folder / "work")
    reads = (folder / "model", folder / "bridge", SUSPECT, *reads)
    cage = Cage(tools, folder / "work/suspect", settings, os.getuid(), reads, hidden)
    cage.outbox.mkdir(parents=True)
    hand_path_over(cage.outbox, cage)
    cage.scratch.chmod(0o755)
    return cage


def attack(scene: Scene, **targets: Any) -> dict[str, dict[str, Any]]:
    """Everything that the suspect tried, by the name of the attack."""
    env = {"PATH": "/usr/bin:/bin", "SUSPECT_TARGETS": json.dumps(scene.targets(**targets))}
    done = run_program((PYTHON, str(SUSPECT)), env=env, cwd=scene.cage.outbox, timeout_s=60, cage=scene.cage)
    assert done.code == 0, done.stderr
    rows = [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("SUSPECT ")]
    return {row["attack"]: row for row in rows}


def test_nothing_that_a_hostile_change_tries_gains_it_anything(scene: Scene) -> None:
    before = {path: path.read_bytes() for path in scene.folder.rglob("*") if path.is_file()}
    tried = attack(scene)
    assert len(tried) >= 25
    gained = {name: row["gained"] for name, row in tried.items() if row["gained"] and name not in HARMLESS}
    # By default the site's network is the host's: a listener on it can be reached, and the documents say so.
    assert gained == {"network": "connected"}
    kept = {path: path.read_bytes() for path in before}
    assert kept == before
    assert sorted(path.name for path in scene.out.iterdir()) == ["events.jsonl"]


def test_the_same_program_outside_a_cage_gains_what_the_cage_keeps_from_it(scene: Scene) -> None:
    only = ["environments", "other_processes", "write_run_folder", "read_run_folder"]
    only += ["runner_files", "docker_socket", "shared_memory"]
    if os.getuid() == 0:
        only += ["recorder_memory", "recorder_root", "privileges"]
    env = {"PATH": "/usr/bin:/bin", "SUSPECT_TARGETS": json.dumps(scene.targets(only=only))}
    done = run_program((PYTHON, str(SUSPECT)), env=env, cwd=scene.cage.outbox, timeout_s=60)
    rows = [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("SUSPECT ")]
    assert {row["attack"] for row in rows if row["gained"]} == set(only)


def test_inputs_are_read_through_links_into_and_out_of_the_system_folders(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/config.json").write_text("read me")
    (tmp_path / "link").symlink_to("data")
    cage = caged(tmp_path, reads=(Path("/usr/bin/awk"), Path("/usr/lib/os-release"), tmp_path / "link"))
    done = run_program(
        ("cat", str(tmp_path / "link/config.json")), env={}, cwd=cage.outbox, timeout_s=HANG_S, cage=cage
    )
    assert (done.code, done.stdout) == (0, "read me"), done.stderr


@pytest.fixture
def closed_network(tmp_path: Path) -> Iterator[Scene]:
    yield from make_scene(tmp_path, Network.NONE)


def test_without_a_network_the_host_cannot_be_reached_and_the_loopback_device_works(closed_network: Scene) -> None:
    tried = attack(closed_network)
    assert {name: row["gained"] for name, row in tried.items() if row["gained"] and name not in HARMLESS} == {}
    own = (
        "import socket; s = socket.create_server((socket.gethostname(), 0)); socket.create_connection(s.getsockname())"
    )
    cage = closed_network.cage
    assert run_program((PYTHON, "-c", own), env={}, cwd=cage.outbox, timeout_s=HANG_S, cage=cage).code == 0


def test_what_is_the_recorders_stays_out_of_sight_below_a_folder_that_may_be_read(tmp_path: Path) -> None:
    for name in ("data/out", "data/work", "model", "bridge"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/out/events.jsonl").write_text("hidden")
    (tmp_path / "data/key").write_text("hidden")
    (tmp_path / "data/rows").write_text("shown")
    cage = caged(tmp_path, reads=(tmp_path / "data",))
    cage = replace(cage, hidden=(tmp_path / "data/out", tmp_path / "data/key"))
    words = ("sh", "-c", 'cd "$1"; cat rows key; ls out', "sh", str(tmp_path / "data"))
    done = run_program(words, env={}, cwd=cage.outbox, timeout_s=HANG_S, cage=cage)
    assert (done.stdout, done.code) == ("shown", 0), done.stderr


def test_a_survivor_that_hides_from_every_search_is_dead_when_the_program_has_ended(scene: Scene) -> None:
    attack(scene)
    alive = scene.cage.outbox / "alive"
    assert alive.exists(), "the survivor must have lived"
    before = alive.read_text()
    time.sleep(0.5)
    assert alive.read_text() == before


def test_a_run_that_will_not_end_is_ended_with_everything_in_its_cage(scene: Scene) -> None:
    env = {"PATH": "/usr/bin:/bin", "SUSPECT_TARGETS": json.dumps(scene.targets(stay_s=600))}
    process = start((PYTHON, str(SUSPECT)), env=env, cwd=scene.cage.outbox, nonce="n", cage=scene.cage)
    alive = scene.cage.outbox / "alive"
    _until(alive.exists)
    assert process.poll() is None
    assert process.end(grace_s=0.5, clock=HostClock()) == ()
    process.close()
    before = alive.read_text()
    time.sleep(0.5)
    assert alive.read_text() == before


def test_nothing_outlives_a_recorder_that_is_killed(scene: Scene) -> None:
    """Its own process is a child here: what dies with it is what bubblewrap ends."""
    env = {"PATH": "/usr/bin:/bin", "SUSPECT_TARGETS": json.dumps(scene.targets(stay_s=600))}
    message = os.open(scene.folder / "answer", os.O_CREAT | os.O_WRONLY)
    command = scene.cage.command((PYTHON, str(SUSPECT)), env=env, cwd=scene.cage.outbox, info=message)
    code = f"import subprocess, sys; subprocess.run({command!r}, pass_fds=({message},), stdout=subprocess.DEVNULL)"
    recorder = subprocess.Popen((sys.executable, "-c", code), pass_fds=(message,))
    os.close(message)
    alive = scene.cage.outbox / "alive"
    _until(alive.exists)
    recorder.kill()
    recorder.wait()
    time.sleep(0.3)
    before = alive.read_text()
    time.sleep(0.5)
    assert alive.read_text() == before


def test_the_code_has_a_moment_for_its_last_words_before_it_is_killed(scene: Scene) -> None:
    script = "trap 'echo last words; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    process = start(
        ("bash", "-c", script), env={"PATH": "/usr/bin:/bin"}, cwd=scene.cage.outbox, nonce="n", cage=scene.cage
    )
    assert os.read(process.output, 100) == b"ready\n"
    assert process.end(grace_s=5, clock=HostClock()) == ()
    assert (os.read(process.output, 100).splitlines()[-1:], process.poll()) == ([b"last words"], 3)
    process.close()


def test_output_can_be_opened_by_name_as_scripts_do(scene: Scene) -> None:
    done = run_program(
        ("bash", "-c", "echo said > /dev/stderr"),
        env={"PATH": "/usr/bin:/bin"},
        cwd=scene.cage.outbox,
        timeout_s=20,
        cage=scene.cage,
    )
    assert (done.code, done.stderr) == (0, "said\n")


def test_memory_disks_and_processes_have_a_limit(tmp_path: Path) -> None:
    for name in ("out", "model", "bridge"):
        (tmp_path / name).mkdir()
    cage = caged(tmp_path, processes=64)
    script = "head -c 100M /dev/zero > /dev/shm/x; head -c 100M /dev/zero > /tmp/x; du -m /dev/shm/x /tmp/x | cut -f1"
    filled = run_program(
        ("bash", "-c", script), env={"PATH": "/usr/bin:/bin"}, cwd=cage.outbox, timeout_s=20, cage=cage
    )
    assert [int(size) <= 21 for size in filled.stdout.split()] == [True, True], filled
    assert "No space left on device" in filled.stderr
    bomb = "for i in $(seq 200); do sleep 30 & done; echo started"
    forked = run_program(("bash", "-c", bomb), env={"PATH": "/usr/bin:/bin"}, cwd=cage.outbox, timeout_s=60, cage=cage)
    assert "Resource temporarily unavailable" in forked.stderr


def test_the_environment_of_a_root_tool_is_not_the_codes_to_choose(scene: Scene) -> None:
    """A loader's variable is set only when no privilege is left: before that it would reach setpriv as root."""
    command = scene.cage.command(("true",), env={"LD_PRELOAD": "/evil.so"}, cwd=scene.cage.outbox, info=3)
    place = command.index("LD_PRELOAD=/evil.so")
    assert command[command.index("/usr/bin/env") : place] == ("/usr/bin/env", "-i")
    assert "--setenv" not in command
    if os.getuid() == 0:
        assert command.index(scene.cage.tools.setpriv) < place


def test_what_the_code_leaves_in_its_folder_is_read_as_plain_files_or_not_at_all(scene: Scene) -> None:
    attack(scene)
    outbox = scene.cage.outbox
    (outbox / "answers.jsonl").write_text("x" * 100)
    assert "link.jsonl" not in names_below(outbox)
    assert [read_below(outbox, name, limit=10) for name in ("link.jsonl", "fifo.jsonl", "up", "gone")] == [None] * 4
    assert read_below(outbox, "up/etc/passwd", limit=10) is None
    assert read_below(outbox, "../../out/events.jsonl", limit=10) is None
    assert read_below(outbox, "answers.jsonl", limit=10) == b"x" * 10


def test_a_folder_that_the_code_may_not_leave_holds_no_setuid_program_of_another_user(scene: Scene) -> None:
    attack(scene)
    left = (scene.cage.outbox / "setuid").lstat()
    assert left.st_uid == scene.cage.uid


def test_an_ordinary_user_keeps_his_secrets_too() -> None:
    """The same scene with a recorder that is not root: a user namespace takes the place of another user."""
    if os.getuid() != 0:
        return  # every other test of this file ran so already
    tests = Path(__file__).resolve()
    shown = (
        test_nothing_that_a_hostile_change_tries_gains_it_anything,
        test_a_survivor_that_hides_from_every_search_is_dead_when_the_program_has_ended,
        test_what_the_code_leaves_in_its_folder_is_read_as_plain_files_or_not_at_all,
    )
    user = ("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups")
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, 1000, 1000)
        options = (
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            str(tests.parents[2] / "pyproject.toml"),
            f"--basetemp={home}/t",
        )
        words = (*user, sys.executable, "-m", "pytest", *options, *(f"{tests}::{test.__name__}" for test in shown))
        env = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            words, env=env, cwd=tests.parents[2], capture_output=True, text=True, check=False, timeout=HANG_S
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def _until(found: Any) -> None:
    deadline = time.monotonic() + HANG_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)
