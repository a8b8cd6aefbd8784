"""Bridge tests that were started early are waited for, or ended with everything that they started."""

import sys
import time
from pathlib import Path
from threading import Event

import pytest

from tests.fakes.patience import HANG_S
from verl_e2e_runner.bridge_tests import BridgeTests, early_tests
from verl_e2e_runner.process.confined import run

PASSED = BridgeTests("passed", (), 0.1, ())


def test_a_result_is_there_when_it_is_asked_for() -> None:
    with early_tests() as early:
        assert early.result() is None
        early.begin(lambda _: PASSED)
        assert early.result() is PASSED


def test_tests_that_no_one_needs_any_more_are_ended(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"import time; open({str(begun)!r}, 'x'); time.sleep(600)"

    def work(stop: Event) -> BridgeTests:
        finished = run((sys.executable, "-c", code), env={}, cwd=tmp_path, timeout_s=HANG_S, stop=stop)
        assert finished.timed_out
        return PASSED

    began = time.monotonic()
    with early_tests() as early:
        early.begin(work)
        while not begun.exists() and time.monotonic() - began < HANG_S:
            time.sleep(0.01)
    assert begun.exists()
    assert early.result() is PASSED
    assert time.monotonic() - began < HANG_S


def test_an_error_of_our_own_is_raised_where_the_result_is_asked_for() -> None:
    def fail(_: Event) -> BridgeTests:
        raise OSError("of our own")

    with early_tests() as early:
        early.begin(fail)
        with pytest.raises(OSError, match="of our own"):
            early.result()
