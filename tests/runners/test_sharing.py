"""Runs that are kept apart share a host and its GPUs; a run that is not has the host to itself."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.core.builders import make_job
from tests.fakes.patience import HANG_S
from verl_e2e.adapters.dispatch.local_backend import HOST_VARIABLE
from verl_e2e.core.model.jobs import MOST_RUNS_ON_A_HOST, Job, Network, SiteIsolation, SiteProfile
from verl_e2e.core.model.needs import SiteNeeds
from verl_e2e.core.model.record import Gpu
from verl_e2e_runner import place as places
from verl_e2e_runner.place import FOLDER_VARIABLE, HostPlace, open_lock, rehearsal_number, take_place
from verl_e2e_runner.samplers import Device, Devices

SHARING = SiteIsolation(network=Network.NONE)


@pytest.fixture(autouse=True)
def _no_trainer_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of the tests may be at work for someone else; each test that means a trainer names its own."""
    monkeypatch.setattr(places, "_ENTRY_POINTS", {f"verl.trainer.of_test_{os.getpid()}"})


def gpus(count: int, used_mib: Mapping[int, int] | None = None) -> Devices:
    used = used_mib or {}
    return Devices(
        tuple(
            Device(Gpu(index=at, name="G", memory_total_mib=1000, memory_used_mib=used.get(at, 0)), f"GPU-{at}")
            for at in range(count)
        )
    )


def job(gpu_count: int = 1, share: float = 1.0, isolation: SiteIsolation = SHARING) -> Job:
    site = SiteProfile(name="shared", isolation=isolation, needs=SiteNeeds(gpu_share=share))
    return make_job(gpu_count=gpu_count, site=site)


def place(
    tmp_path: Path, job: Job, devices: Devices, *, problem: str = "", **environ: str
) -> AbstractContextManager[HostPlace]:
    environ = {FOLDER_VARIABLE: str(tmp_path / "host"), **environ}
    return take_place(job, problem, environ, lambda: devices)


def test_runs_that_are_kept_apart_have_gpus_and_users_of_their_own(tmp_path: Path) -> None:
    host = gpus(4)
    with place(tmp_path, job(2), host) as first, place(tmp_path, job(1), host) as second:
        assert first.finding.ok
        assert second.finding.ok
        assert (first.gpus, second.gpus) == ((0, 1), (2,))
        assert (first.number, second.number) == (0, 1)
        assert (first.others(), second.others()) == (1, 1)
        with place(tmp_path, job(2), host) as third:
            assert not third.finding.ok
            assert "needs 2 GPUs, and 1 of 4 are free" in third.finding.summary
            assert f"process {os.getpid()}" in third.finding.summary
    with place(tmp_path, job(4), host) as later:
        assert later.gpus == (0, 1, 2, 3)
        assert later.others() == 0


def test_parts_of_gpus_fill_one_before_the_next(tmp_path: Path) -> None:
    host = gpus(2)
    quarter = job(1, 0.25)
    with (
        place(tmp_path, quarter, host) as first,
        place(tmp_path, quarter, host) as second,
        place(tmp_path, job(1), host) as whole,
        place(tmp_path, job(1, 0.5), host) as half,
        place(tmp_path, quarter, host) as beyond,
    ):
        assert [first.gpus, second.gpus, whole.gpus, half.gpus] == [(0,), (0,), (1,), (0,)]
        assert not beyond.finding.ok
        assert "a share of 0.25 of each" in beyond.finding.summary


def test_only_visible_gpus_are_given_and_those_that_others_use_last(tmp_path: Path) -> None:
    with place(tmp_path, job(1), gpus(4, {2: 900}), CUDA_VISIBLE_DEVICES="2,3") as found:
        assert found.gpus == (3,)
    with place(tmp_path, job(1), Devices(problem="no driver")) as none:
        assert none.finding.ok
        assert none.gpus is None


@pytest.mark.parametrize(
    ("isolation", "problem", "reason"),
    [
        (SiteIsolation(), "", "host's network"),
        (SHARING, "bubblewrap (bwrap) is not installed", "bubblewrap (bwrap) is not installed"),
    ],
)
def test_a_run_that_is_not_kept_apart_has_the_host_to_itself(
    tmp_path: Path, isolation: SiteIsolation, problem: str, reason: str
) -> None:
    host, alone = gpus(4), job(1, isolation=isolation)
    with place(tmp_path, job(), host) as sharing, place(tmp_path, alone, host, problem=problem) as refused:
        assert sharing.finding.ok
        assert (refused.finding.ok, refused.finding.blocking) == (False, True)
        assert reason in refused.finding.summary
        assert f"process {os.getpid()}" in refused.finding.summary
        assert "isolation.network" in refused.finding.fix
    with place(tmp_path, alone, host, problem=problem) as first:
        assert first.finding.ok
        assert first.gpus is None
        for other in (job(), alone):
            with place(tmp_path, other, host, problem=problem if other is alone else "") as second:
                assert not second.finding.ok
                assert f"process {os.getpid()}" in second.finding.summary
    with place(tmp_path, job(), host) as later:
        assert later.finding.ok


def test_a_cluster_of_the_host_is_not_shared(tmp_path: Path) -> None:
    site = SiteProfile(name="cluster", isolation=SHARING, ray_address="head:6379")
    with place(tmp_path, make_job(site=site), gpus(1)) as first, place(tmp_path, job(), gpus(1)) as second:
        assert first.finding.ok
        assert not second.finding.ok


_HOLDER = """
import sys
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Gpu
from verl_e2e_runner.samplers import Device, Devices
from verl_e2e_runner.place import take_place
job = Job.model_validate_json(sys.argv[1])
host = Devices((Device(Gpu(index=0, name="G", memory_total_mib=1000, memory_used_mib=0), "GPU-0"),))
with take_place(job, "", {"VERL_E2E_HOST_FOLDER": sys.argv[2]}, lambda: host) as found:
    print(found.gpus, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("isolation", [SHARING, SiteIsolation()])
def test_a_killed_holder_keeps_nobody_out(tmp_path: Path, isolation: SiteIsolation) -> None:
    words = [job(isolation=isolation).model_dump_json(), str(tmp_path / "host")]
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline()
    with place(tmp_path, job(), gpus(1)) as during:
        assert not during.finding.ok
        assert f"process {holder.pid}" in during.finding.summary
    holder.kill()
    holder.communicate()
    with place(tmp_path, job(), gpus(1)) as after:
        assert after.gpus == (0,)


def test_a_trainer_that_others_started_blocks(tmp_path: Path) -> None:
    (word,) = places._ENTRY_POINTS
    trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "-m", word])
    try:
        deadline = time.monotonic() + HANG_S
        found = ""
        while not found and time.monotonic() < deadline:
            with place(tmp_path, job(isolation=SiteIsolation()), gpus(1)) as taken:
                found = "" if taken.finding.ok else taken.finding.summary
        assert f"verl training, process {trainer.pid}" in found
        with place(tmp_path, job(), gpus(1)) as apart:
            assert apart.finding.ok
    finally:
        trainer.kill()
        trainer.wait()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_a_lock_that_cannot_be_had_is_no_reason_to_stop(tmp_path: Path, make: object) -> None:
    (tmp_path / "host").mkdir()
    lock = tmp_path / "host" / "alone.lock"
    make(lock)  # type: ignore[operator]
    with place(tmp_path, job(isolation=SiteIsolation()), gpus(1)) as found:
        assert found.finding.ok
    assert not (tmp_path / "host" / "elsewhere").exists()


def test_a_lock_keeps_runs_of_other_users_out_though_the_service_makes_files_private(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        descriptor = open_lock(tmp_path / "verl-e2e.lock")
    finally:
        os.umask(before)
    assert descriptor is not None
    os.close(descriptor)
    # A run that cannot open the file goes on without the lock.
    assert (tmp_path / "verl-e2e.lock").stat().st_mode & 0o777 == 0o644


def test_without_a_folder_for_locks_a_run_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LOCK", tmp_path / "lock")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "host").symlink_to(tmp_path / "elsewhere")
    with place(tmp_path, job(), gpus(1)) as found:
        assert found.finding.ok
        assert "cannot hold its locks" in found.finding.summary
        with place(tmp_path, job(), gpus(1)) as second:
            assert not second.finding.ok
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_service_hands_down_the_variable_that_the_runner_reads() -> None:
    assert HOST_VARIABLE == FOLDER_VARIABLE


def test_a_named_folder_is_a_host_of_its_own(tmp_path: Path) -> None:
    """Containers that share GPUs share the folder, whatever their /tmp: a run that must be alone is alone there."""
    alone = job(isolation=SiteIsolation())
    with place(tmp_path, alone, gpus(1)) as first, place(tmp_path / "other", alone, gpus(1)) as elsewhere:
        assert first.finding.ok
        assert elsewhere.finding.ok
        with place(tmp_path, alone, gpus(1)) as second:
            assert not second.finding.ok


def test_a_rehearsal_has_a_number_that_no_run_and_no_other_rehearsal_has(tmp_path: Path) -> None:
    environ = {FOLDER_VARIABLE: str(tmp_path)}
    with rehearsal_number(environ) as first, rehearsal_number(environ) as second:
        assert first != second
        assert min(first, second) >= MOST_RUNS_ON_A_HOST
    with rehearsal_number(environ) as again:
        assert again == first
