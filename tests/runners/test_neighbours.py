"""What a bad neighbour on the same host can do to a run: nothing, as long as both are kept apart.

Both are real programs in real cages. The neighbour takes the victim's port and its abstract socket, writes over the
names that it uses in /tmp and /dev/shm, fills both, removes every shared memory segment, ends every process that it can
name, and starts processes until its user may have no more. What is not kept apart shows that the test can see it.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from verl_e2e.core.model.jobs import Network, SiteIsolation
from verl_e2e_runner.process.cage import Cage, Tools
from verl_e2e_runner.process.processes import Confined, hand_path_over, launch

pytestmark = pytest.mark.bwrap

PYTHON = "/usr/bin/python3"
_PROCESSES = 64

COMMON = """
import ctypes, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
NAMES = ("/tmp/rl-colocate-zmq-0.sock", "/dev/shm/psm_verl", "/dev/shm/sem.mp-verl")
KEY = 0x7665726C

def listen(address, family=socket.AF_INET):
    held = socket.socket(family)
    held.bind(address)
    held.listen()
    return held

def say(*words):
    print(*words, flush=True)
"""
VICTIM = (
    COMMON
    + """
held = [listen(("127.0.0.1", PORT)), listen("\\0verl-e2e-PORT", socket.AF_UNIX)]
for name in NAMES:
    open(name, "w").write("the victim's")
segment = libc.shmget(KEY, 4096, 0o1600)
child = os.fork()
if not child:
    time.sleep(600)
say("ready")
sys.stdin.readline()
hit = []
try:
    for address, family in ((("127.0.0.1", PORT), socket.AF_INET), ("\\0verl-e2e-PORT", socket.AF_UNIX)):
        socket.socket(family).connect(address)
except OSError:
    hit.append("ports")
try:
    if any(open(name).read() != "the victim's" for name in NAMES):
        hit.append("names")
    for folder in ("/tmp", "/dev/shm"):
        open(folder + "/more", "wb").write(bytes(1 << 20))
except OSError:
    hit.append("files")
if libc.shmget(KEY, 4096, 0) != segment:
    hit.append("segments")
if os.waitpid(child, os.WNOHANG) != (0, 0):
    hit.append("killed")
try:
    for _ in range(8):
        if not os.fork():
            os._exit(0)
except OSError:
    hit.append("processes")
say("hit:", *hit)
"""
)
NEIGHBOUR = (
    COMMON
    + """
taken = []
for address, family in ((("127.0.0.1", PORT), socket.AF_INET), ("\\0verl-e2e-PORT", socket.AF_UNIX)):
    try:
        taken.append(listen(address, family))
    except OSError:
        say("taken", address)
for name in os.listdir("/dev/shm"):
    os.unlink("/dev/shm/" + name)
for name in NAMES:
    open(name, "w").write("the neighbour's")
for folder in ("/tmp", "/dev/shm"):
    try:
        with open(folder + "/full", "wb") as file:
            while file.write(bytes(1 << 20)):
                pass
    except OSError:
        pass
for number in range(64):
    libc.shmctl(number, 0, None)
libc.shmctl(libc.shmget(KEY, 4096, 0), 0, None)
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid(), os.getppid()):
        try:
            os.kill(int(name), signal.SIGKILL)
        except OSError:
            pass
try:
    while os.fork():
        pass
    time.sleep(600)
except OSError:
    say("done")
    sys.stdin.readline()
"""
)


def cage(folder: Path, network: Network, user: int) -> Cage:
    tools = Tools(*(shutil.which(name) or "" for name in ("bwrap", "setpriv", "prlimit")))
    site = SiteIsolation(network=network, user=user, shm_gib=0.02, tmp_gib=0.02, processes=_PROCESSES)
    made = Cage(tools, folder / f"suspect-{len(list(folder.iterdir()))}", site, os.getuid())
    made.outbox.mkdir(parents=True)
    hand_path_over(made.outbox, made)
    made.scratch.chmod(0o755)
    return made


@contextmanager
def started(program: str, port: int, within: Cage) -> Iterator[subprocess.Popen[bytes]]:
    env = {"PATH": "/usr/bin:/bin"}
    code = program.replace("PORT", str(port))
    pipe = subprocess.PIPE
    confined: Confined = launch(
        (PYTHON, "-c", code), env=env, cwd=within.outbox, cage=within, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT
    )
    try:
        yield confined.process
    finally:
        confined.kill()
        confined.gone(10)
        confined.process.communicate()


def line(process: subprocess.Popen[bytes], start: str) -> str:
    """The first line of its output that begins so; what was there instead when none does."""
    assert process.stdout is not None
    seen = b""
    while text := process.stdout.readline():
        seen += text
        if text.startswith(start.encode()):
            return text.decode().strip()
    raise AssertionError(seen.decode())


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


# Only root gives runs users of their own; of two runs of one user, one uses up the processes of both.
_ONE_USER = [(1, "hit: processes")] if os.getuid() == 0 else []


@pytest.mark.parametrize(("users", "hit"), [(2, "hit:"), *_ONE_USER])
def test_a_neighbour_does_nothing_to_a_run(tmp_path: Path, users: int, hit: str) -> None:
    first_user = 100_000 + 2 * os.getpid()
    own, other = (cage(tmp_path, Network.NONE, first_user + number % users) for number in range(2))
    port = 20_000 + os.getpid() % 10_000
    with started(VICTIM, port, own) as victim:
        line(victim, "ready")
        with started(NEIGHBOUR, port, other) as neighbour:
            line(neighbour, "done")
            go_on(victim)
            assert line(victim, "hit:") == hit


def test_a_run_opens_the_port_that_a_neighbour_holds(tmp_path: Path) -> None:
    port = 20_000 + os.getpid() % 10_000
    own, other = (cage(tmp_path, Network.NONE, 100_000 + 2 * os.getpid() + number) for number in range(2))
    with started(NEIGHBOUR, port, other) as neighbour:
        line(neighbour, "done")
        with started(VICTIM, port, own) as victim:
            line(victim, "ready")
    with_network = [cage(tmp_path, Network.HOST, 100_000 + 2 * os.getpid() + number) for number in range(2)]
    with started(VICTIM, port, with_network[0]) as first:
        line(first, "ready")
        with started(VICTIM, port, with_network[1]) as second:
            assert "Address already in use" in line(second, "OSError")
