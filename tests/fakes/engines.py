"""What runs jobs, for the contract of back ends: each engine makes its back end and can break in its own ways."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar
from uuid import uuid4

import psutil
import pytest
import requests

from tests.fakes.clocks import StoryClock
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.fakes.ray_cluster import SLOT, RayCluster
from tests.fakes.slurm_cluster import SlurmCluster
from tests.runners.world import World
from verl_e2e.adapters.dispatch import COMMAND
from verl_e2e.adapters.dispatch.local_backend import LocalBackend
from verl_e2e.adapters.dispatch.order_folder import ORDER_VARIABLE
from verl_e2e.adapters.dispatch.ray_backend import RayBackend, RaySettings
from verl_e2e.adapters.dispatch.slurm_backend import SlurmBackend, SlurmCommands, SlurmSettings
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE
from verl_e2e.core.pulls.ledger import Run, run_key
from verl_e2e.ports import Backend, BackendError


class Engine(Protocol):
    """One engine, with the faults that it can have."""

    root: Path
    clock: StoryClock
    remembers: bool
    """Whether it knows its jobs after a crash of its own."""

    def make(self) -> Backend:
        """A new back end, as after a restart of the service."""
        ...

    def lose_reply(self, run: Run) -> None:
        """Submit a run, and end before the answer is seen."""
        ...

    def restart(self) -> None:
        """End the engine's own programs, and start them again."""
        ...

    def crash(self) -> None:
        """Kill the engine's own programs, and start them again."""
        ...

    def kill(self, run: Run) -> None:
        """End a run at once, as the engine does when a limit is passed."""
        ...

    def lose_node(self, run: Run) -> None:
        """Take away the machine of a run."""
        ...

    def clear(self) -> None:
        """End what still runs."""
        ...


AnyEngine = TypeVar("AnyEngine", bound=Engine)


@contextmanager
def ready(engine: AnyEngine) -> Iterator[AnyEngine]:
    """An engine with an empty folder of orders; at the end nothing runs."""
    engine.root.mkdir()
    yield engine
    engine.clear()


def order(job: Job, *, attempt: int = 1, at: datetime | None = None) -> Run:
    """A run of a job, with a key that no other test has: an engine remembers jobs for longer than one test.

    Its time is the true one unless `at` is given, for an engine has a clock of its own.
    """
    at = at or datetime.now(UTC)
    key = run_key(f"o/{uuid4()}", job.bridge.commit, job.digest(), attempt)
    return Run(
        key=key,
        repository="o/r",
        number=1,
        head_sha=job.bridge.commit,
        job_id=job.id,
        job_digest=job.digest(),
        attempt=attempt,
        created=at,
        updated=at,
        nonce="ab" * 16,
        job=job,
    )


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


def unending(world: World, folder: Path) -> Job:
    """A job whose interpreter never answers: the runner waits for it in preflight until it is ended."""
    python = folder / "python-that-never-answers"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    return world.job(site=world.site(python=str(python)))


def own_host(root: Path) -> tuple[str, ...]:
    """How `verl-e2e` is called, on a host of these orders alone: runs of other tests are not in its way."""
    return ("env", f"VERL_E2E_HOST_FOLDER={root.parent / 'host'}", *COMMAND)


def runners_of(run: Run) -> list[int]:
    """The runners of an order: the Pythons that name its job file, less the copies between fork and exec."""
    named = [item.info for item in psutil.process_iter(["pid", "ppid", "cmdline"]) if item.info["cmdline"]]
    pythons = (item for item in named if item["cmdline"][0] == sys.executable)
    ours = {item["pid"]: item["ppid"] for item in pythons if f"{run.key}/job.json" in " ".join(item["cmdline"])}
    return [pid for pid, parent in ours.items() if parent not in ours]


class LocalEngine:
    """This machine, without any engine."""

    remembers = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = StoryClock()

    def make(self) -> Backend:
        """A new back end, as after a restart of the service."""
        return self.with_changes()

    def with_changes(self, **changes: Any) -> LocalBackend:
        """The same, with other words for the back end."""
        token = {TOKEN_VARIABLE: str(self.root.parent / "token")}
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.root.parent), **token}
        usual = {"environ": environ, "clock": self.clock, "open_log": open_log, "command": own_host(self.root)}
        return LocalBackend(self.root, **{**usual, **changes})

    @contextmanager
    def submitting_elsewhere(self, run: Run) -> Iterator[IO[bytes]]:
        """Submit in another process, which is killed at the end; it says `ready` before and `submitted` after."""
        script = (
            "import sys, threading; from pathlib import Path; from tests.fakes.engines import LocalEngine, Run; "
            "backend, run = LocalEngine(Path(sys.argv[1])).make(), Run.model_validate_json(sys.stdin.read()); "
            "print('ready', flush=True); backend.submit(run); print('submitted', flush=True); threading.Event().wait()"
        )
        words = [sys.executable, "-c", script, str(self.root)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdin.write(run.model_dump_json().encode())
            other.stdin.close()
            yield other.stdout
            other.kill()

    def lose_reply(self, run: Run) -> None:
        """Submit in another process, and kill that process."""
        with self.submitting_elsewhere(run) as printed:
            assert printed.read(16) == b"ready\nsubmitted\n"

    def restart(self) -> None:
        """Nothing but the service itself, of which `make` gives a new one."""

    def crash(self) -> None:
        """Nothing but the service itself, of which `make` gives a new one."""

    def kill(self, run: Run) -> None:
        """As the kernel does when memory is used up."""
        for pid in runners_of(run):
            os.kill(pid, signal.SIGKILL)

    def lose_node(self, run: Run) -> None:
        """As a restart of the machine: all processes of the run end."""
        _end_all({run.key})

    def clear(self) -> None:
        """End what still runs."""
        _end_all({path.parent.name for path in self.root.glob("*/job.json")})


def _end_all(keys: set[str]) -> None:
    """Kill every process of the runs with these keys."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(ORDER_VARIABLE) in keys:
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture
def engine(cluster: SlurmCluster, tmp_path: Path) -> Iterator["SlurmEngine"]:
    """A Slurm engine on the `cluster` of the file that takes this fixture, with orders of its own."""
    with ready(SlurmEngine(tmp_path / "orders", cluster)) as made:
        yield made


class SlurmEngine:
    """A real cluster; one job has a node alone, so that a second one waits."""

    remembers = True

    def __init__(self, root: Path, cluster: SlurmCluster) -> None:
        self.root = root
        self.clock = StoryClock()
        self.cluster = cluster

    def make(self, **changes: str) -> Backend:
        """A new back end, as after a restart of the service."""
        settings = SlurmSettings(
            folder=self.root,
            command=own_host(self.root),
            options=("--exclusive",),
            token_file=str(self.root.parent / "token"),
        )
        commands = SlurmCommands(environ={**self.cluster.environ, "HOME": str(self.root.parent), **changes})
        return SlurmBackend(settings, commands, clock=self.clock, open_log=open_log)

    def lose_reply(self, run: Run) -> None:
        """Have an `sbatch` that submits, prints nothing and fails, and a controller that no longer answers."""
        folder = self.root.parent / "deaf"
        folder.mkdir()
        environ = self.cluster.environ
        again = f"PATH={shlex.quote(environ['PATH'])}"
        answers = f'[ ! -e {shlex.quote(str(folder / "taken"))} ] && {again} exec squeue "$@"'
        scripts = {"sbatch": f'{again} sbatch "$@" >/dev/null; touch {folder / "taken"}; exit 1', "squeue": answers}
        for name, text in scripts.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)
        with pytest.raises(BackendError) as lost:
            self.make(PATH=f"{folder}:{environ['PATH']}").submit(run)
        assert lost.value.uncertain

    def restart(self) -> None:
        """End the controller, and start it again.

        A controller that is killed may take a job that just began for one that waits, and start it again: its script
        then ends by itself, for the order is claimed, and the run is lost.
        """
        self.cluster.stop("slurmctld")
        self.cluster.start("slurmctld")

    def crash(self) -> None:
        """Kill the controller, before it wrote down what it was asked last."""
        self.cluster.stop("slurmctld", signal.SIGKILL)
        self.cluster.start("slurmctld")

    def kill(self, run: Run) -> None:
        """As the kernel does when memory is used up."""
        for pid in runners_of(run):
            os.kill(pid, signal.SIGKILL)

    def lose_node(self, run: Run) -> None:
        """Have the controller take the node for lost."""
        self.cluster.ask("scontrol", "update", f"NodeName={self.cluster.node}", "State=DOWN", "Reason=lost")

    def clear(self) -> None:
        """End what still runs, and have the node back."""
        self.cluster.empty()
        self.cluster.bring_up()


class RayEngine:
    """A real cluster of two nodes; one job has the node with GPUs alone, so that a second one waits."""

    remembers = False

    def __init__(self, root: Path, cluster: RayCluster) -> None:
        self.root = root
        self.clock = StoryClock()
        self.cluster = cluster

    def make(self, address: str = "", command: tuple[str, ...] = ()) -> Backend:
        """A new back end, as after a restart of the service."""
        from verl_e2e.adapters.dispatch.ray_client import RayClient

        token = str(self.root.parent / "token")
        called = command or own_host(self.root)
        settings = RaySettings(folder=self.root, command=called, resources={SLOT: 1.0}, token_file=token)
        client = RayClient(address or self.cluster.address, self.cluster.headers)
        return RayBackend(settings, client, clock=self.clock, open_log=open_log)

    def lose_reply(self, run: Run) -> None:
        """Submit through a proxy that hands the order on, ends the connection, and hands on nothing more."""
        with _deaf_proxy(self.cluster) as address, pytest.raises(BackendError) as lost:
            self.make(address=address).submit(run)
        assert lost.value.uncertain

    def restart(self) -> None:
        """As a crash: a head keeps nothing."""
        self.crash()

    def crash(self) -> None:
        """Kill the head; the other node ends without it, and what runs there too. Start both again."""
        self.cluster.restart_head()

    def kill(self, run: Run) -> None:
        """As the kernel does when memory is used up."""
        for pid in runners_of(run):
            os.kill(pid, signal.SIGKILL)

    def lose_node(self, run: Run) -> None:
        """Take the power from the node, and from what runs on it."""
        self.cluster.kill("gpus")
        self.kill(run)

    def clear(self) -> None:
        """End what still runs, and have the node back."""
        self.cluster.bring_up()
        for path in self.root.glob("*/job.json"):
            self.cluster.stop(f"verl-e2e-{path.parent.name}")


@contextmanager
def _deaf_proxy(cluster: RayCluster) -> Iterator[str]:
    taken = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if taken.is_set():
                return
            answer = requests.get(cluster.address + self.path, headers=cluster.headers, timeout=HANG_S)
            self.send_response(answer.status_code)
            self.end_headers()
            self.wfile.write(answer.content)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {**cluster.headers, "Content-Type": "application/json"}
            requests.post(cluster.address + self.path, body, headers=headers, timeout=HANG_S).raise_for_status()
            taken.set()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
