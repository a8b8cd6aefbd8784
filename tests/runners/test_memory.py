"""What processes hold and what the host has left: real processes, and the kernel's files of other hosts."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from tests.core.builders import make_job
from verl_e2e.core.model.jobs import Job, Network, SiteIsolation, SiteProfile
from verl_e2e.core.model.needs import SiteNeeds
from verl_e2e.core.model.record import Check
from verl_e2e_runner.place import FOLDER_VARIABLE, HostPlace, take_place
from verl_e2e_runner.samplers import Bound, Devices, held_gib, read_bounds

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
    assert (host.of_group, host.total_gib) == (False, psutil.virtual_memory().total / GIB)
    assert 0 < host.available_gib <= host.total_gib
    assert (group.total_gib, group.available_gib, group.of_group) == (1000 * MIB, 700 * MIB, True)


@pytest.mark.parametrize("name", _TREE)
def test_a_limit_beyond_the_memory_of_the_host_is_none(tmp_path: Path, name: str) -> None:
    assert len(read_bounds(tree(tmp_path, name, 1 << 62, 1))) == 1


def test_a_host_without_control_groups_is_bounded_by_its_memory(tmp_path: Path) -> None:
    assert [bound.of_group for bound in read_bounds(tmp_path)] == [False]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/gone\n")
    assert [bound.of_group for bound in read_bounds(tmp_path)] == [False]


HOST = Bound(126.0, 60.0)


@pytest.mark.parametrize(
    ("total", "available", "short"),
    [
        (126.0, 3.9, False),
        (126.0, 3.7, True),
        (251.0, 7.6, False),
        (251.0, 7.5, True),
        (16.0, 2.0, False),
        (16.0, 1.9, True),
        (1.0, 1.0, True),
    ],
)
def test_a_host_is_short_below_two_gib_or_three_percent(total: float, available: float, short: bool) -> None:
    assert Bound(total, available).short is short


@pytest.mark.parametrize(
    ("bound", "need", "enough"),
    [
        (Bound(126.0, 14.0), 14.0, True),
        (Bound(126.0, 13.9), 14.0, False),
        # The limit that an engine gives the run is its need, and the runner holds some of it.
        (Bound(14.0, 13.8, of_group=True), 14.0, True),
        (Bound(14.0, 12.5, of_group=True), 14.0, False),
    ],
)
def test_a_run_may_begin_where_its_need_is_free(bound: Bound, need: float, enough: bool) -> None:
    assert (bound.missing_gib(need) <= 0) is enough


FULL = Bound(126.0, 1.0)
SHARING, ALONE = SiteIsolation(network=Network.NONE), SiteIsolation()


def job(need_gib: float | None, isolation: SiteIsolation = SHARING) -> Job:
    return make_job(site=SiteProfile(name="shared", isolation=isolation, needs=SiteNeeds(memory_gib=need_gib)))


def place(tmp_path: Path, job: Job, *bounds: Bound) -> AbstractContextManager[HostPlace]:
    return take_place(job, "", {FOLDER_VARIABLE: str(tmp_path / "host")}, Devices, memory=lambda: bounds)


@pytest.mark.parametrize("isolation", [SHARING, ALONE])
def test_a_run_is_blocked_where_its_need_is_not_free(tmp_path: Path, isolation: SiteIsolation) -> None:
    with place(tmp_path, job(60, isolation), HOST) as enough:
        assert enough.memory is not None
        assert enough.memory.ok
    with place(tmp_path, job(61, isolation), HOST) as found:
        assert found.memory is not None
        assert found.findings == (found.finding, found.memory)
        assert (found.memory.check, found.memory.ok, found.memory.blocking) == (Check.HOST_MEMORY, False, True)
        assert found.memory.summary == "the job needs 61 GiB of host memory: 60.0 of 126.0 GiB are available"
        assert "needs.memory_gib" in found.memory.fix


def test_where_a_control_group_leaves_less_it_is_named(tmp_path: Path) -> None:
    with place(tmp_path, job(24), HOST, Bound(32.0, 20.0, of_group=True)) as found:
        assert found.memory is not None
        assert not found.memory.ok
        assert "20.0 of 32.0 GiB below the limit of its control group are available" in found.memory.summary


def test_a_site_that_states_no_need_is_not_asked_and_neither_is_a_run_without_a_place(tmp_path: Path) -> None:
    with place(tmp_path, job(None), FULL) as found:
        assert (found.memory, found.findings) == (None, (found.finding,))
    with place(tmp_path, job(14, ALONE), HOST), place(tmp_path, job(14), HOST) as refused:
        assert (refused.finding.ok, refused.memory) == (False, None)


def test_the_real_memory_of_this_host_is_read_where_none_is_given(tmp_path: Path) -> None:
    found: list[bool] = []
    for need in (0.001, 1e6):
        with take_place(job(need), "", {FOLDER_VARIABLE: str(tmp_path / "host")}, Devices) as taken:
            assert taken.memory is not None
            found.append(taken.memory.ok)
    assert found == [True, False]
