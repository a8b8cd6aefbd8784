"""What a hostile change gains: the suspect's test program in a real cage, as root and as an ordinary user."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bot.core.jobs import Isolation, Network, SiteIsolation
from runners.cage import Cage, Tools
from runners.clock import SystemClock
from runners.gate import run
from runners.isolation import hand_folder_over
from runners.processes import start
from runners.suspect_files import names_below, read_below

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

    def targets(self, **more: Any) -> dict[str, Any]:
        return {
            "recorder": os.getpid(),
            "canary": CANARY,
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
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from make_scene(tmp_path, monkeypatch)


def make_scene(folder: Path, monkeypatch: pytest.MonkeyPatch, network: Network = Network.HOST) -> Iterator[Scene]:
    monkeypatch.setenv("VERL_E2E_CANARY", CANARY)
    for name in ("out", "runner", "model", "bridge", "private", "work"):
        (folder / name).mkdir()
    (folder / "out/events.jsonl").write_text("{}\n")
    for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY"):
        (folder / "runner" / name).write_text("before\n")
        (folder / "runner" / name).chmod(0o666)
    (folder / "model/config.json").write_text("{}")
    Path("/dev/shm/verl-e2e-of-the-host").write_text("x")
    cage = caged(folder, network)
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as docker:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        docker.bind(str(folder / "runner/docker.sock"))
        docker.listen(8)
        (folder / "runner/docker.sock").chmod(0o666)
        yield Scene(cage, folder, folder / "out", folder / "runner", listener.getsockname()[1])
    Path("/dev/shm/verl-e2e-of-the-host").unlink()


def caged(folder: Path, network: Network = Network.HOST, reads: tuple[Path, ...] = (), **site: Any) -> Cage:
    tools = Tools(*(shutil.which(name) or "" for name in ("bwrap", "setpriv", "prlimit")))
    settings = SiteIsolation(network=network, shm_gib=0.02, tmp_gib=0.02, **site)
    hidden = (folder / "out", folder / "work")
    reads = (folder / "model", folder / "bridge", SUSPECT, *reads)
    cage = Cage(tools, folder / "work/suspect", settings, os.getuid(), reads, hidden)
    cage.outbox.mkdir(parents=True)
    hand_folder_over(cage.outbox, cage)
    cage.scratch.chmod(0o755)
    return cage


def attack(scene: Scene, **targets: Any) -> dict[str, dict[str, Any]]:
    """Everything that the suspect tried, by the name of the attack."""
    env = {"PATH": "/usr/bin:/bin", "SUSPECT_TARGETS": json.dumps(scene.targets(**targets))}
    done = run((PYTHON, str(SUSPECT)), env=env, cwd=scene.cage.outbox, timeout_s=60, cage=scene.cage)
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


def test_inputs_are_read_through_links_into_and_out_of_the_system_folders(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/config.json").write_text("read me")
    (tmp_path / "link").symlink_to("data")
    cage = caged(tmp_path, reads=(Path("/usr/bin/awk"), Path("/usr/lib/os-release"), tmp_path / "link"))
    done = run(("cat", str(tmp_path / "link/config.json")), env={}, cwd=cage.outbox, timeout_s=20, cage=cage)
    assert (done.code, done.stdout) == (0, "read me"), done.stderr
