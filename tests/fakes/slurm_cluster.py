"""A real Slurm cluster on this machine: munged, slurmctld and a slurmd for each node, in a folder of their own.

`python -m tests.fakes.slurm_cluster` tries to start one and to run a job in it: it says why where that fails.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.patience import HANG_S

# Slurm wants a device for each GPU, and any will do.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_TRIAL_S = 60.0
# How long a daemon may take to end.
_END_S = 20.0
NOTHING: Mapping[str, Sequence[str]] = {}
_CONFIGURATION = """\
ClusterName=verl-e2e
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
ReturnToService=2
KillWait=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
{more}
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


@dataclass(slots=True)
class SlurmCluster:
    """The daemons of one cluster."""

    folder: Path
    """Where everything of it lies."""
    nodes: tuple[str, ...] = ("n1",)
    """The names of its nodes, all of them this machine."""
    more: str = ""
    """More lines of its configuration; by default its controller forgets jobs 300 s after their end."""
    before: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """More daemons that run before slurmctld, by their names, with the words that start each."""
    started: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    """The daemons that run, by their names; a slurmd has the name of its node."""
    ports: tuple[int, ...] = ()
    """The controller's port, then one for each node."""

    @property
    def environ(self) -> dict[str, str]:
        """What Slurm's commands need."""
        return {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def node(self) -> str:
        """The name of its first node."""
        return self.nodes[0]

    def configure(self) -> None:
        """Write the files of the daemons."""
        for name in ("state", "munge"):
            (self.folder / name).mkdir(mode=0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.ports = tuple(free_port() for _ in range(1 + len(self.nodes)))
        self.write_configuration()
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in DEVICES))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")

    def write_configuration(self) -> None:
        """Write the file that all programs of Slurm read."""
        host = socket.gethostname().partition(".")[0]
        shape = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} Gres=gpu:{len(DEVICES)} State=UNKNOWN"
        nodes = [f"NodeName={node} Port={port} {shape}" for node, port in zip(self.nodes, self.ports[1:], strict=True)]
        text = _CONFIGURATION.format(
            host=host,
            user=getpass.getuser(),
            folder=self.folder,
            controller_port=self.ports[0],
            more=self.more or "MinJobAge=300",
            nodes="\n".join(nodes),
        )
        (self.folder / "slurm.conf").write_text(text)

    def start(self, daemon: str) -> None:
        """Start one of the daemons in the foreground."""
        words: Sequence[str] = [daemon, "-D"] if daemon not in self.nodes else ["slurmd", "-D", "-N", daemon]
        words = self.before.get(daemon, words)
        if daemon == "munged":
            munge = self.folder / "munge"
            files = (("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("seed-file", "seed"))
            words = ["munged", "--foreground", "--force", *(f"--{name}={munge / word}" for name, word in files)]
        with (self.folder / f"{daemon}.out").open("ab") as out:
            self.started[daemon] = subprocess.Popen(
                words, env=self.environ, stdout=out, stderr=out, start_new_session=True
            )

    def stop(self, daemon: str, number: int = signal.SIGTERM) -> None:
        """End one of the daemons as systemd does, or by another signal."""
        process = self.started.pop(daemon)
        process.send_signal(number)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def shut_down(self) -> None:
        """End all daemons, and what they left: a step whose controller is gone tries for ever to tell it its end."""
        first = [name for name in self.nodes if name in self.started]
        # Without munged the others wait for a long time.
        last = [name for name in ("slurmctld", *reversed(tuple(self.before)), "munged") if name in self.started]
        for daemon in (*first, *last):
            self.stop(daemon)
        ours = os.fsencode(f"SLURM_CONF={self.environ['SLURM_CONF']}")
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if ours in file.read_bytes().split(b"\0"):
                    os.kill(int(file.parent.name), signal.SIGKILL)

    def ask(self, *words: str) -> str:
        """What one of Slurm's commands prints."""
        answer = subprocess.run(words, env=self.environ, capture_output=True, text=True, check=False)
        return answer.stdout

    def wait_until(self, *words: str, shows: str, limit_s: float = HANG_S) -> None:
        """Wait until a command prints a text, or nothing where the text is empty."""
        deadline = time.monotonic() + limit_s
        while (shows not in (printed := self.ask(*words))) if shows else (printed := self.ask(*words)):
            ended = [name for name, process in self.started.items() if process.poll() is not None]
            outputs = "".join((self.folder / f"{name}.out").read_text(errors="replace")[-2000:] for name in ended)
            assert not ended, f"{ended} ended: {outputs}"
            assert time.monotonic() < deadline, f"{words} still prints {printed!r}"
            time.sleep(0.1)

    def bring_up(self, limit_s: float = HANG_S) -> None:
        """Have all nodes ready for jobs."""
        for node in self.nodes:
            if node not in self.started:
                self.start(node)
            # A node without a fault refuses this, and is ready without it.
            self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
            self.wait_until("sinfo", "--noheader", f"--nodes={node}", "--format=%T", shows="idle", limit_s=limit_s)
            # A node that the controller remembers is idle before it has said what it has.
            asked = f"sbatch --test-only --nodelist={node} --gres=gpu:1 --wrap=true 2>&1 && echo taken"
            self.wait_until("bash", "-c", asked, shows="taken", limit_s=limit_s)

    def empty(self) -> None:
        """End every job."""
        self.ask("scancel", "--me")
        self.ask("scancel", "--me", "--signal=KILL", "--full")
        self.wait_until("squeue", "--noheader", shows="")


@contextmanager
def slurm_cluster(
    folder: Path,
    nodes: tuple[str, ...] = ("n1",),
    *,
    more: str = "",
    before: Mapping[str, Sequence[str]] = NOTHING,
    limit_s: float = HANG_S,
) -> Iterator[SlurmCluster]:
    """A cluster that runs meanwhile."""
    cluster = SlurmCluster(folder, nodes, more, before)
    cluster.configure()
    try:
        for daemon in ("munged", *before):
            cluster.start(daemon)
        if before:
            # Without an answer of the accounting the controller ends at its first start.
            cluster.wait_until("sacctmgr", "--noheader", "show", "qos", shows="normal", limit_s=limit_s)
        for daemon in ("slurmctld", *nodes):
            cluster.start(daemon)
        cluster.wait_until("scontrol", "ping", shows="is UP", limit_s=limit_s)
        cluster.bring_up(limit_s)
        yield cluster
    finally:
        cluster.shut_down()


def free_port() -> int:
    """A port of this machine that no one listens on."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
    return port


def why_not() -> str:
    """Why no cluster can run on this machine, found out by starting one; empty where one can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install slurm-wlm munge)"
    with tempfile.TemporaryDirectory(prefix="verl-e2e-slurm-") as folder:
        try:
            with slurm_cluster(Path(folder), limit_s=_TRIAL_S) as cluster:
                words = ("srun", "--immediate=30", "--time=1", "echo", "it runs")
                answer = subprocess.run(
                    words, env=cluster.environ, capture_output=True, text=True, check=False, timeout=_TRIAL_S
                )
                return "" if answer.stdout == "it runs\n" else f"srun runs nothing here: {answer.stderr[-300:]}"
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            return f"its daemons do not start here: {' '.join(str(error).split())[:400]}"


if __name__ == "__main__":
    sys.exit(why_not() or 0)
