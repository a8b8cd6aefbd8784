"""Runs that share a host count on its memory only once, and what a run has not taken yet is kept for it."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.core.builders import make_job
from tests.fakes.patience import HANG_S
from verl_e2e.core.model.host_memory import Bound
from verl_e2e.core.model.jobs import Job, Network, SiteIsolation, SiteProfile
from verl_e2e.core.model.needs import SiteNeeds
from verl_e2e.core.model.record import Check, Gpu
from verl_e2e_runner.sharing import (
    FOLDER_VARIABLE,
    Device,
    Devices,
    Place,
    claim_memory,
    has_locked,
    open_lock,
    take_place,
)

SHARING = SiteIsolation(network=Network.NONE)


def job(need_gib: float | None, isolation: SiteIsolation = SHARING) -> Job:
    site = SiteProfile(name="shared", isolation=isolation, needs=SiteNeeds(memory_gib=need_gib, gpu_share=0.25))
    return make_job(site=site)


def place(tmp_path: Path, job: Job, *bounds: Bound, gpus: int = 1, problem: str = "") -> AbstractContextManager[Place]:
    devices = Devices(
        tuple(
            Device(Gpu(index=at, name="G", memory_total_mib=1000, memory_used_mib=0), f"GPU-{at}") for at in range(gpus)
        )
    )
    environ = {FOLDER_VARIABLE: str(tmp_path / "host")}
    return take_place(job, problem, environ, lambda: devices, memory=lambda: bounds)


def test_runs_count_on_the_same_memory_only_once(tmp_path: Path) -> None:
    """None of them holds anything yet, so the host has as much left each time; what others were promised counts."""
    host = Bound(126.0, 40.0)
    with place(tmp_path, job(14), host) as first, place(tmp_path, job(14), host) as second:
        assert first.memory is not None
        assert second.memory is not None
        assert (first.memory.ok, second.memory.ok) == (True, True)
        with place(tmp_path, job(14), host) as third:
            assert third.finding.ok
            assert third.memory is not None
            assert third.findings == (third.finding, third.memory)
            assert (third.memory.check, third.memory.ok, third.memory.blocking) == (Check.HOST_MEMORY, False, True)
            assert third.memory.summary == (
                "the job needs 14 GiB of host memory, and 12.0 GiB are free for it: 40.0 of 126.0 GiB are available, "
                "and other runs (2) may still take 28.0 of them"
            )
            assert "needs.memory_gib" in third.memory.fix
            # One that was refused keeps nothing from others.
            with place(tmp_path, job(12), host) as fourth:
                assert fourth.memory is not None
                assert fourth.memory.ok
    with place(tmp_path, job(40), host) as later:
        assert later.memory is not None
        assert later.memory.ok


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_site_that_states_no_need_asks_and_keeps_nothing(tmp_path: Path, gpus: int) -> None:
    host = Bound(126.0, 1.0)
    with place(tmp_path, job(None), host, gpus=gpus) as first:
        assert (first.memory, first.findings) == (None, (first.finding,))
        with place(tmp_path, job(1), host, gpus=gpus) as second:
            assert second.memory is not None
            assert second.memory.ok


def test_a_run_that_has_the_host_to_itself_is_asked_too(tmp_path: Path) -> None:
    alone = job(14, SiteIsolation())
    for left, ok in ((14.0, True), (13.9, False)):
        with place(tmp_path, alone, Bound(126.0, left)) as found:
            assert found.memory is not None
            assert (found.memory.ok, "may still take" in found.memory.summary) == (ok, False)


def test_a_run_that_has_no_place_is_not_asked_and_keeps_nothing(tmp_path: Path) -> None:
    host = Bound(126.0, 20.0)
    with place(tmp_path, job(14, SiteIsolation()), host), place(tmp_path, job(14), host) as refused:
        assert not refused.finding.ok
        assert refused.memory is None
    assert not list((tmp_path / "host").glob("memory.*.*"))


def test_the_limit_of_a_control_group_is_shared_by_the_runs_in_it(tmp_path: Path) -> None:
    host = Bound(251.0, 200.0)
    with place(tmp_path, job(14), host, Bound(20.0, 20.0, 7)):
        with place(tmp_path, job(14), host, Bound(20.0, 20.0, 8)) as elsewhere:
            assert elsewhere.memory is not None
            assert elsewhere.memory.ok
        with place(tmp_path, job(14), host, Bound(20.0, 20.0, 7)) as inside:
            assert inside.memory is not None
            assert not inside.memory.ok
            assert "20.0 of 20.0 GiB below the limit of its control group are available" in inside.memory.summary


_HOLDER = """
import subprocess, sys
from contextlib import ExitStack
from pathlib import Path
from verl_e2e.core.model.host_memory import Bound
from verl_e2e_runner.sharing import claim_memory
take = "import sys; held = bytearray(b'x') * (512 << 20); sys.stdin.read()"
with ExitStack() as held:
    found = claim_memory(held, Path(sys.argv[1]), 1.0, lambda: (Bound(8.0, 8.0),), write_s=0.05)
    program = subprocess.Popen([sys.executable, "-c", take], stdin=subprocess.PIPE)
    print(found.ok, flush=True)
    sys.stdin.read()
    program.communicate()
"""


def promised(folder: Path) -> float:
    """GiB that others may still take, as a run that begins now learns it."""
    with ExitStack() as held:
        found = claim_memory(held, folder, 7.9, lambda: (Bound(8.0, 8.0),))
        assert found is not None
        return 0.0 if found.ok else float(found.summary.rpartition("may still take ")[2].partition(" ")[0])


def test_what_a_run_takes_is_no_longer_kept_for_it_and_a_killed_one_keeps_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        deadline = time.monotonic() + HANG_S
        while not 0 < (left := promised(tmp_path)) <= 0.5:
            assert time.monotonic() < deadline, f"{left} GiB were kept for a run that holds half of its need"
            time.sleep(0.05)
    finally:
        holder.kill()
        holder.communicate()
    assert promised(tmp_path) == 0


@pytest.mark.parametrize("note", ["", "someone else", json.dumps({"need_gib": 1e300, "held_gib": "x"})])
def test_a_note_that_is_none_keeps_nothing(tmp_path: Path, note: str) -> None:
    file = tmp_path / "memory.4711.0"
    file.write_text(note)
    descriptor = open_lock(file)
    assert descriptor is not None
    assert has_locked(descriptor)
    assert promised(tmp_path) == 0


def test_no_one_begins_while_the_notes_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "memory.lock").symlink_to("elsewhere")
    with ExitStack() as held:
        found = claim_memory(held, tmp_path, 1.0, lambda: (Bound(8.0, 8.0),))
    assert found is not None
    assert (found.ok, found.blocking, "the lock cannot be had" in found.summary) == (False, True, True)


def test_the_real_memory_of_this_host_is_read_where_none_is_given(tmp_path: Path) -> None:
    environ = {FOLDER_VARIABLE: str(tmp_path / "host")}

    def none() -> Devices:
        return Devices()

    found: list[bool] = []
    needs: Sequence[float] = (0.001, 1e6)
    for need in needs:
        with take_place(job(need), "", environ, none) as taken:
            assert taken.memory is not None
            found.append(taken.memory.ok)
    assert found == [True, False]
