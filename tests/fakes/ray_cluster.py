"""A real Ray cluster on this machine: a head without GPUs, and a node with GPUs that exist by number alone."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import requests

from tests.fakes.patience import HANG_S

GPUS = 8
# A job takes all of it, so that a second one waits.
SLOT = "slot"
# A node that is gone is missed after seconds, not after half a minute.
_IMPATIENT = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
_LIVE = ('"status": "PENDING"', '"status": "RUNNING"')


@dataclass(slots=True)
class RayCluster:
    """The processes of one cluster."""

    folder: Path
    """Where everything of it lies, a short path: Ray makes sockets below it."""
    port: int
    """The port of the head."""
    dashboard_port: int
    """The port of the dashboard."""
    token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    """What everyone who asks it must show."""
    started: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    """The two nodes that run, by their names."""

    @property
    def address(self) -> str:
        """The address of its dashboard."""
        return f"http://127.0.0.1:{self.dashboard_port}"

    @property
    def headers(self) -> dict[str, str]:
        """What shows the token."""
        return {"Authorization": f"Bearer {self.token}"}

    def start(self, node: str) -> None:
        """Start one of its nodes."""
        ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
        ray += [
            "--num-cpus=64",
            "--memory=1000000000000",
            "--object-store-memory=80000000",
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        if node == "head":
            words = ["--head", f"--port={self.port}", f"--dashboard-port={self.dashboard_port}", "--num-gpus=0"]
            words += [
                "--dashboard-host=127.0.0.1",
                f"--temp-dir={self.folder}",
                f"--ray-client-server-port={_free_port()}",
                "--no-monitor",
            ]
        else:
            words = [f"--address=127.0.0.1:{self.port}", f"--num-gpus={GPUS}", f"--resources={json.dumps({SLOT: 1})}"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, **_IMPATIENT}
        with (self.folder / f"{node}.out").open("ab") as out:
            self.started[node] = subprocess.Popen(
                [
                    *ray,
                    *words,
                    "--node-ip-address=127.0.0.1",
                    "--dashboard-agent-listen-port=0",
                    "--include-log-monitor=false",
                ],
                env=environ,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self, node: str) -> None:
        """End a node as when its machine loses power."""
        process = self.started.pop(node)
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()

    def bring_up(self) -> None:
        """Start what does not run."""
        for node in ("head", "gpus"):
            if node not in self.started:
                self.start(node)
                # A node looks for its head for less time than one may need to come up on a busy machine.
                self.wait_until_ready()

    def stop(self, job: str) -> None:
        """Stop a job, and wait for its end."""
        url = f"{self.address}/api/jobs/{job}"
        requests.post(f"{url}/stop", headers=self.headers, timeout=HANG_S)
        deadline = time.monotonic() + HANG_S
        while any(state in requests.get(url, headers=self.headers, timeout=HANG_S).text for state in _LIVE):
            assert time.monotonic() < deadline, f"{job} does not end"
            time.sleep(0.2)

    def restart_head(self) -> None:
        """Take the power from the head, wait until the other node gives up, and start both."""
        self.kill("head")
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.started["gpus"].pid).wait()
        self.kill("gpus")
        self.bring_up()

    def wait_until_ready(self) -> None:
        """Wait until both nodes can take jobs."""
        deadline = time.monotonic() + HANG_S
        while not self._ready():
            ended = [name for name, process in self.started.items() if process.poll() is not None]
            outputs = "".join((self.folder / f"{name}.out").read_text(errors="replace")[-3000:] for name in ended)
            assert not ended, f"{ended} ended: {outputs}"
            assert time.monotonic() < deadline, "the cluster does not come up"
            time.sleep(0.2)

    def _ready(self) -> bool:
        with suppress(requests.RequestException, ValueError, KeyError):
            answer = requests.get(f"{self.address}/nodes?view=summary", headers=self.headers, timeout=HANG_S).json()
            nodes = answer["data"]["summary"]
            return [node["raylet"]["state"] for node in nodes].count("ALIVE") == len(self.started)
        return False


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """A cluster that runs meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix="ve-ray-", dir="/tmp"))
    cluster = RayCluster(folder, _free_port(), _free_port())
    try:
        cluster.bring_up()
        yield cluster
    finally:
        for node in tuple(cluster.started):
            cluster.kill(node)
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
    return port
