"""What processes hold and what the host has left: real processes, and the kernel's files of other hosts."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from verl_e2e_runner.process.memory import held_gib, read_bounds

MIB = 1 / 1024
Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Starts a program and waits until it has printed a line."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        output = started[-1].stdout
        assert output is not None
        assert output.readline()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def family(process: subprocess.Popen[bytes]) -> list[int]:
    return [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]


_TAKE = "import sys; held = bytearray(b'x') * (96 << 20); print('up', flush=True); sys.stdin.read()"
_FORK = f"import os; {_TAKE.replace('print', 'os.fork(); print')}"
_SHARE = """
import mmap, os, sys
shared = mmap.mmap(-1, 96 << 20)
shared.write(b"x" * (96 << 20))
if os.fork() == 0:
    sum(shared[::4096])
    print("up", flush=True)
sys.stdin.read()
"""


def test_private_memory_is_that_of_each_process(launch: Launch) -> None:
    processes = [launch(sys.executable, "-c", _TAKE) for _ in range(2)]
    one, both = held_gib([processes[0].pid]), held_gib(process.pid for process in processes)
    assert 96 * MIB < one < 160 * MIB
    assert 192 * MIB < both < 320 * MIB
    processes[0].kill()
    processes[0].wait()
    assert held_gib([processes[0].pid]) == 0


def test_pages_of_a_forked_child_are_divided_where_it_matters(launch: Launch) -> None:
    pids = family(launch(sys.executable, "-c", _FORK))
    assert len(pids) == 2
    assert held_gib(pids) > 192 * MIB
    assert 96 * MIB < held_gib(pids, exact=True) < 160 * MIB


def test_shared_memory_counts_once(launch: Launch) -> None:
    pids = family(launch(sys.executable, "-c", _SHARE))
    assert len(pids) == 2
    assert 96 * MIB < held_gib(pids) < 180 * MIB


_CAGE = (
    *("bwrap", "--unshare-pid", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
    *("--tmpfs", "/dev/shm", "--tmpfs", "/tmp"),
    *("sh", "-c", "head -c 64M /dev/zero > /dev/shm/a; head -c 32M /dev/zero > /tmp/b; sleep 300 & echo up; wait"),
)


@pytest.mark.bwrap
def test_files_in_the_memory_of_a_cage_count_once(launch: Launch) -> None:
    pids = family(launch(*_CAGE))
    assert len(pids) == 4
    assert 96 * MIB <= held_gib(pids) < 120 * MIB


_STAT = "anon 5\n{prefix}inactive_file 1073741824\n{prefix}active_file 1073741824\n"
_TREE = {
    "v2": {
        "proc/self/cgroup": "0::/user.slice/run.scope\n",
        "sys/fs/cgroup/user.slice/memory.max": "max\n",
        "sys/fs/cgroup/user.slice/memory.current": "9\n",
        "sys/fs/cgroup/user.slice/run.scope/memory.max": "{limit}\n",
        "sys/fs/cgroup/user.slice/run.scope/memory.current": "{used}\n",
        "sys/fs/cgroup/user.slice/run.scope/memory.stat": _STAT.format(prefix=""),
    },
    "v2 above": {
        "proc/self/cgroup": "0::/run.scope\n",
        "sys/fs/cgroup/run.scope/memory.max": "max\n",
        "sys/fs/cgroup/memory.max": "{limit}\n",
        "sys/fs/cgroup/memory.current": "{used}\n",
        "sys/fs/cgroup/memory.stat": _STAT.format(prefix=""),
    },
    "v2 of a container, by the path of the host": {
        "proc/self/cgroup": "0::/../../docker/abc\n",
        "sys/fs/cgroup/memory.max": "{limit}\n",
        "sys/fs/cgroup/memory.current": "{used}\n",
        "sys/fs/cgroup/memory.stat": _STAT.format(prefix=""),
    },
    "v1 of a container, by the path of the host": {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "{limit}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "{used}\n",
        "sys/fs/cgroup/memory/memory.stat": _STAT.format(prefix="total_"),
    },
}


def tree(root: Path, name: str, limit: int, used: int) -> Path:
    for path, text in _TREE[name].items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(limit=limit, used=used))
    return root


GIB = 1 << 30


@pytest.mark.parametrize("name", _TREE)
def test_the_limit_of_a_control_group_is_a_bound(tmp_path: Path, name: str) -> None:
    """Of its 1000 MiB, 300 are used and not given back: the 2 GiB of cache are."""
    host, group = read_bounds(tree(tmp_path, name, 1000 << 20, 2 * GIB + (300 << 20)))
    assert (host.group, host.total_gib) == (0, psutil.virtual_memory().total / GIB)
    assert 0 < host.available_gib <= host.total_gib
    assert (group.total_gib, group.available_gib) == (1000 * MIB, 700 * MIB)
    limited = next(path for path, text in _TREE[name].items() if text == "{limit}\n")
    assert group.group == os.stat((tmp_path / limited).parent).st_ino


@pytest.mark.parametrize("name", _TREE)
def test_a_limit_beyond_the_memory_of_the_host_is_none(tmp_path: Path, name: str) -> None:
    assert len(read_bounds(tree(tmp_path, name, 1 << 62, 1))) == 1


def test_a_host_without_control_groups_is_bounded_by_its_memory(tmp_path: Path) -> None:
    assert [bound.group for bound in read_bounds(tmp_path)] == [0]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/gone\n")
    assert [bound.group for bound in read_bounds(tmp_path)] == [0]
