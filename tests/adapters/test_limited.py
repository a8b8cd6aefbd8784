"""Child processes with limits: whatever the work does, the parent gets a value or a typed failure in time."""

import enum
import gc
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import psutil
import pytest

from tests.adapters.limited_work import Evil
from tests.fakes.patience import HANG_S
from verl_e2e.adapters.limited import LimitedProcesses, StepError, StepRefusedError, WorkLimits
from verl_e2e.adapters.limited.limits import dumps, loads
from verl_e2e.core.model.change import Change
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.model.jobs import Network
from verl_e2e.core.model.outcome import Stage
from verl_e2e.ports import ForgeError

LIMITS = WorkLimits(memory_bytes=512 << 20, cpu_s=2, wall_s=20.0)


def refuse(_: object) -> object:
    raise AssertionError("nothing is asked")


@pytest.fixture
def processes() -> LimitedProcesses:
    return LimitedProcesses("tests.adapters.limited_work:work", at_once=2)


def run(processes: LimitedProcesses, name: str, argument: object = None, limits: WorkLimits = LIMITS) -> object:
    return processes.run(name, argument, limits, refuse)


def test_a_frozen_value_comes_back_as_it_was(processes: LimitedProcesses) -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert run(processes, "value", name) == Change("a" * 40, name, None, ())


def test_a_day_on_which_a_declared_defect_ends_is_read() -> None:
    assert loads(dumps((date(2027, 2, 28),))) == (date(2027, 2, 28),)


def test_an_enum_comes_back_on_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Python 3.11.0 to 3.11.3 do it, Debian 12's among them.
    monkeypatch.setattr(enum.Enum, "__reduce_ex__", lambda member, _: (getattr, (type(member), member.name)))
    assert loads(dumps([Stage.RAY, Network.NONE])) == [Stage.RAY, Network.NONE]


def test_no_secret_of_the_service_is_in_the_child(processes: LimitedProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", "hunter2")
    found = run(processes, "environment")
    assert isinstance(found, dict)
    assert set(found) <= {"PATH", "LC_ALL", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "LC_CTYPE"}


def test_memory_is_limited(processes: LimitedProcesses) -> None:
    with pytest.raises(LimitError, match=r"memory that it needs exceeds 512 MiB"):
        run(processes, "memory")


def test_a_source_that_takes_memory_beyond_measure_is_a_limit_and_no_crash(processes: LimitedProcesses) -> None:
    with pytest.raises(LimitError):
        run(processes, "parse", "import " + "a." * 100_000 + "a")
    assert isinstance(run(processes, "value", "x"), Change)


def test_processor_time_is_limited(processes: LimitedProcesses) -> None:
    with pytest.raises(LimitError, match="processor time that it takes exceeds 2 s"):
        run(processes, "spin")


def test_time_is_limited(processes: LimitedProcesses) -> None:
    started = time.monotonic()
    with pytest.raises(LimitError, match=r"the time that it takes exceeds 0\.5 s"):
        run(processes, "sleep", limits=WorkLimits(wall_s=0.5))
    assert time.monotonic() - started < HANG_S


def test_a_large_answer_is_a_limit(processes: LimitedProcesses) -> None:
    with pytest.raises(LimitError, match="its answer exceeds 16 MiB"):
        run(processes, "large")


def test_an_answer_that_would_run_code_is_refused(processes: LimitedProcesses) -> None:
    with pytest.raises(StepError, match="not a value that a child may send"):
        run(processes, "evil")
    # Nor would the parent believe a child that left out its own look at the answer.
    with pytest.raises(pickle.UnpicklingError):
        loads(dumps(("value", Evil())))
    assert not os.path.exists("/tmp/never")


def test_errors_say_whose_they_are(processes: LimitedProcesses) -> None:
    with pytest.raises(StepRefusedError, match="name another"):
        run(processes, "mistake")
    with pytest.raises(StepError, match="RuntimeError: a fault of ours") as fault:
        run(processes, "fault")
    assert "limited_work.py" in fault.value.where
    with pytest.raises(StepError, match="ended with 7"):
        run(processes, "die")


def test_the_child_asks_the_parent(processes: LimitedProcesses) -> None:
    assert processes.run("ask", [1, 2], LIMITS, lambda item: item) == [1, 2]


def test_what_the_parent_could_not_answer_is_its_own_error(processes: LimitedProcesses) -> None:
    error = ForgeError("down", passing=True, wait_s=7.0)

    def fail(_: object) -> object:
        raise error

    with pytest.raises(ForgeError) as raised:
        processes.run("ask", [1], LIMITS, fail)
    assert raised.value is error
    assert processes.run("ask in vain", None, LIMITS, fail) == "went on"


def test_nothing_that_the_work_started_is_left(processes: LimitedProcesses) -> None:
    group = run(processes, "leave")
    ends = time.monotonic() + HANG_S
    # Killed as its parent is, but the kernel takes its time with the second of them.
    while left := [process for process in psutil.process_iter() if _is_alive(process) and _group(process) == group]:
        assert time.monotonic() < ends, left


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _group(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return 0


def test_each_piece_of_work_has_a_process_of_its_own(processes: LimitedProcesses) -> None:
    assert len({run(processes, "pid") for _ in range(3)}) == 3


def test_one_that_hangs_holds_up_no_other(processes: LimitedProcesses) -> None:
    with ThreadPoolExecutor(4) as pool:
        hung = pool.submit(run, processes, "sleep", None, WorkLimits(wall_s=10.0))
        done = [pool.submit(run, processes, "value", str(number)) for number in range(3)]
        assert [text.result(timeout=HANG_S) for text in done]
        assert not hung.done()
        with pytest.raises(LimitError):
            hung.result()


def test_children_that_wait_end_with_the_object_that_started_them() -> None:
    before = psutil.Process().children()
    made = LimitedProcesses("tests.adapters.limited_work:work", at_once=1)
    run(made, "pid")
    (waiting,) = (child for child in psutil.Process().children() if child not in before)
    del made
    gc.collect()
    assert not waiting.is_running()
