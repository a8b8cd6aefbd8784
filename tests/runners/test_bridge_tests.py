"""The focused Bridge tests, run for real in a private tree of the fixture's Bridge."""

import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bot.core.jobs import DeselectedTest
from bot.core.record import JUNIT_FILE
from runners.bridge_tests import BridgeTests, run_bridge_tests
from runners.worktrees import Trees, prepare_trees
from tests.runners.world import SUBMODULE, World

GOOD, BAD = "tests/unit/test_good.py", "tests/unit/test_bad.py"
NEEDS_PACKAGE, BROKEN = "tests/unit/test_needs_a_package.py", "tests/unit/test_broken.py"


def outcomes(out: Path) -> dict[str, str]:
    cases = ET.parse(out / JUNIT_FILE).getroot().iter("testcase")
    return {case.get("name", ""): next((child.tag for child in case), "passed") for case in cases}


def ran(
    world: World,
    trees: Trees,
    base: dict[str, str],
    out: Path,
    *tests: str,
    required: bool = False,
    timeout_s: float = 60,
) -> BridgeTests:
    path = os.pathsep.join((str(trees.bridge / "src"), str(trees.bridge / SUBMODULE)))
    job = world.job(bridge_tests=tests, require_bridge_checks=required)
    return run_bridge_tests(job, trees, {**base, "PYTHONPATH": path}, out, timeout_s=timeout_s)


def test_passing_tests_leave_their_junit_and_nothing_in_the_tree(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    result = ran(world, trees, base, tmp_path, GOOD)
    assert (result.outcome, [finding.ok for finding in result.findings]) == ("passed", [True])
    assert outcomes(tmp_path) == {"test_good": "passed"}
    assert "1 passed" in result.findings[0].summary
    assert not list(trees.bridge.rglob(".pytest_cache"))


def test_a_failed_test_is_left_to_the_judge(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    result = ran(world, shared_trees, base, tmp_path, GOOD, BAD, required=True)
    assert result.outcome == "failed"
    assert outcomes(tmp_path) == {"test_good": "passed", "test_bad": "failure"}
    assert [(finding.ok, finding.blocking) for finding in result.findings] == [(False, False)]


def test_a_listed_test_that_does_not_exist_is_a_remark(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    gone = "tests/unit/test_gone.py::test_x"
    result = ran(world, shared_trees, base, tmp_path, GOOD, gone, "../../etc/passwd")
    assert result.outcome == "passed"
    assert [finding.summary.split()[0] for finding in result.findings if not finding.ok] == [gone, "../../etc/passwd"]
    assert not any(finding.blocking for finding in result.findings if not finding.ok)


@pytest.mark.parametrize("required", [False, True])
def test_tests_that_cannot_run_are_skipped_with_the_reason(
    required: bool, world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    result = ran(world, shared_trees, base, tmp_path, NEEDS_PACKAGE, required=required)
    assert result.outcome == "skipped"
    assert not (tmp_path / JUNIT_FILE).exists()
    last = result.findings[-1]
    assert (last.ok, last.blocking) == (False, required)
    assert "package a_package_of_the_image is missing" in last.summary


def test_what_a_missing_package_keeps_out_does_not_keep_out_the_rest(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    result = ran(world, shared_trees, base, tmp_path, NEEDS_PACKAGE, GOOD)
    assert result.outcome == "passed"
    assert outcomes(tmp_path) == {"test_good": "passed"}
    assert "test_needs_a_package.py cannot be collected" in result.findings[0].summary


def test_a_module_of_the_checkout_that_is_missing_is_a_failure(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    result = ran(world, shared_trees, base, tmp_path, BROKEN)
    assert result.outcome == "failed"
    assert "error" in outcomes(tmp_path).values()


def test_none_listed_and_none_existing_are_skipped(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    assert "the job lists none" in ran(world, shared_trees, base, tmp_path).findings[-1].summary
    result = ran(world, shared_trees, base, tmp_path, "tests/gone.py")
    assert (result.outcome, result.command) == ("skipped", ())


def test_a_test_that_hangs_ends_at_the_limit(world: World, base: dict[str, str], tmp_path: Path) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    (trees.bridge / BAD).write_text("import time\n\ndef test_hang():\n    time.sleep(60)\n")
    result = ran(world, trees, base, tmp_path, BAD, timeout_s=2)
    assert result.outcome == "skipped"
    assert "no end within 2 s" in result.findings[-1].summary


def test_what_the_site_leaves_out_stays_out_when_a_missing_package_asks_for_a_second_run(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    site = world.site(deselected_tests=(DeselectedTest(test=f"{BAD}::test_bad", reason="not on this host"),))
    job = world.job(bridge_tests=(GOOD, BAD, NEEDS_PACKAGE), site=site)
    path = os.pathsep.join((str(trees.bridge / "src"), str(trees.bridge / SUBMODULE)))
    result = run_bridge_tests(job, trees, {**base, "PYTHONPATH": path}, tmp_path)
    assert (result.outcome, outcomes(tmp_path)) == ("passed", {"test_good": "passed"})
