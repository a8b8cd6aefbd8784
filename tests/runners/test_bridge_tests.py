"""The focused Bridge tests, run for real in a private tree of the fixture's Bridge, also started early."""

import json
import os
import shutil
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runners.world import SUBMODULE, World
from verl_e2e.core.judge.junit import read_junit
from verl_e2e.core.model.jobs import DeselectedTest
from verl_e2e.core.model.record import JUNIT_FILE
from verl_e2e_runner.bridge_tests import BridgeTests, read_session, run_bridge_tests, take_bridge_tests
from verl_e2e_runner.place import open_cage
from verl_e2e_runner.process.cage import Tools
from verl_e2e_runner.trees import Trees, prepare_trees

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
    # The plugins of the environment of these tests take longer to import than all the rest.
    variables = {**base, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run_bridge_tests(job, trees, variables, out, timeout_s=timeout_s)


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


def test_a_listed_test_that_does_not_exist_is_a_note(
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
    assert outcomes(tmp_path) == {"test_good": "passed", "tests.unit.test_needs_a_package": "skipped"}
    assert "package a_package_of_the_image is missing: tests/unit/test_needs_a_package.py" in result.findings[0].summary


def test_a_module_of_the_checkout_that_is_missing_is_a_failure(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    result = ran(world, shared_trees, base, tmp_path, BROKEN)
    assert result.outcome == "failed"
    assert outcomes(tmp_path) == {"tests.unit.test_broken": "failure"}


def test_none_listed_and_none_existing_are_skipped(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    assert "the job lists none" in ran(world, shared_trees, base, tmp_path).findings[-1].summary
    result = ran(world, shared_trees, base, tmp_path, "tests/gone.py")
    assert (result.outcome, result.command) == ("skipped", ())


HANG = """
import time

def test_before(): pass

def test_hang(): time.sleep(60)

def test_after(): pass
"""


def test_a_test_that_hangs_ends_at_the_limit_and_what_had_finished_is_kept(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    (trees.bridge / BAD).write_text(HANG)
    result = ran(world, trees, base, tmp_path, GOOD, BAD, timeout_s=3)
    assert result.outcome == "passed"
    assert 3 <= result.seconds < 20
    assert outcomes(tmp_path) == {
        "test_good": "passed",
        "test_before": "passed",
        "test_hang": "skipped",
        "test_after": "skipped",
    }
    (text,) = (finding.summary for finding in result.findings if not finding.ok)
    assert text.startswith("Bridge tests without a result, for pytest ended with no end within 3 s, before it was done")
    assert f"{BAD}::test_hang, {BAD}::test_after" in text
    kept = read_junit((tmp_path / JUNIT_FILE).read_bytes())
    assert [case.outcome for case in kept.tests] == ["passed", "passed", "unfinished", "unfinished"]
    assert kept.commit == world.bridge_commit


def test_a_test_that_hangs_first_leaves_no_result(world: World, base: dict[str, str], tmp_path: Path) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    (trees.bridge / BAD).write_text("import time\n\ndef test_hang():\n    time.sleep(60)\n")
    result = ran(world, trees, base, tmp_path, BAD, timeout_s=2)
    assert result.outcome == "skipped"
    assert "no end within 2 s" in result.findings[-1].summary


def test_a_failure_before_a_hang_is_a_failure(world: World, base: dict[str, str], tmp_path: Path) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    (trees.bridge / GOOD).write_text("import time\n\ndef test_hang():\n    time.sleep(60)\n")
    result = ran(world, trees, base, tmp_path, BAD, GOOD, timeout_s=3)
    assert (result.outcome, outcomes(tmp_path)["test_bad"]) == ("failed", "failure")


@pytest.mark.parametrize(("number", "outcome"), [("SIGSEGV", "failed"), ("SIGKILL", "passed")])
def test_a_test_that_ends_the_interpreter_failed_unless_it_was_ended_from_outside(
    number: str, outcome: str, world: World, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    text = f"import os, signal\n\ndef test_dies():\n    os.kill(os.getpid(), signal.{number})\n"
    (trees.bridge / BAD).write_text(text)
    result = ran(world, trees, base, tmp_path, GOOD, BAD)
    assert (result.outcome, outcomes(tmp_path)["test_good"]) == (outcome, "passed")
    assert outcomes(tmp_path)["test_dies"] == ("failure" if outcome == "failed" else "skipped")


def test_a_node_that_its_file_does_not_hold_is_absent_and_the_rest_runs(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    gone = f"{BAD}::TestGone::test_x"
    result = ran(world, shared_trees, base, tmp_path, GOOD, gone)
    assert (result.outcome, result.absent, outcomes(tmp_path)) == ("passed", (gone,), {"test_good": "passed"})
    assert any(finding.summary.startswith(f"{gone} does not exist at") for finding in result.findings)


KINDS = """
import pytest

@pytest.mark.xfail(reason="known")
def test_expected(): assert 0

@pytest.mark.xfail(strict=True)
def test_unexpected(): pass

@pytest.mark.skip(reason="not today")
def test_left(): pass

@pytest.fixture
def broken(): raise OSError("no set-up")

def test_set_up(broken): pass

@pytest.fixture
def late():
    yield
    raise OSError("no tear-down")

def test_tear_down(late): pass

@pytest.mark.parametrize("text", ["a<b>&\\x00", "::"])
def test_odd(text): assert text == ""
"""


def test_every_kind_of_outcome(world: World, base: dict[str, str], tmp_path: Path) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    (trees.bridge / BAD).write_text(KINDS)
    assert ran(world, trees, base, tmp_path, BAD).outcome == "failed"
    found = {case.name.rpartition(".test_")[2]: case for case in read_junit((tmp_path / JUNIT_FILE).read_bytes()).tests}
    assert {name: case.outcome for name, case in found.items() if "odd" not in name} == {
        "expected": "skipped",
        "unexpected": "failed",
        "left": "skipped",
        "set_up": "failed",
        "tear_down": "failed",
    }
    assert [case.outcome for name, case in found.items() if "odd" in name] == ["failed", "failed"]
    assert found["expected"].message == "expected to fail: known"
    assert "no tear-down" in found["tear_down"].message


def test_a_place_of_their_own_has_its_own_python_path_and_no_gpu(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "only_here.py").write_text("")
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    (trees.bridge / BAD).write_text(
        "import os\nimport only_here, megatron.bridge\n\ndef test_place():\n"
        "    assert os.environ['CUDA_VISIBLE_DEVICES'] == ''\n    assert 'nowhere' not in os.environ['PYTHONPATH']\n"
    )
    site = world.site(python="/no/python", bridge_python=sys.executable, bridge_python_path=(str(extra),))
    job = world.job(bridge_tests=(BAD,), site=site)
    given = {**base, "PYTHONPATH": "/nowhere", "CUDA_VISIBLE_DEVICES": "0"}
    assert run_bridge_tests(job, trees, given, tmp_path).outcome == "passed"


def test_what_the_site_leaves_out_stays_out_beside_a_missing_package(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    site = world.site(deselected_tests=(DeselectedTest(test=f"{BAD}::test_bad", reason="not on this host"),))
    job = world.job(bridge_tests=(GOOD, BAD, NEEDS_PACKAGE), site=site)
    path = os.pathsep.join((str(trees.bridge / "src"), str(trees.bridge / SUBMODULE)))
    result = run_bridge_tests(job, trees, {**base, "PYTHONPATH": path}, tmp_path)
    assert result.outcome == "passed"
    assert outcomes(tmp_path) == {"test_good": "passed", "tests.unit.test_needs_a_package": "skipped"}


JUNIT = "<testsuite>{commit}<testcase classname='tests.unit.test_good' name='test_good'>{inside}</testcase></testsuite>"


@pytest.mark.parametrize(
    ("inside", "tests", "outcome", "blocks"),
    [
        ("", (GOOD,), "passed", False),
        ("<failure message='no'/>", (GOOD,), "failed", False),
        ("<skipped message='no GPU'/>", (GOOD,), "skipped", True),
        ("", (GOOD, BAD), "passed", True),
    ],
)
def test_results_from_elsewhere_stand_in_for_a_run(
    inside: str, tests: tuple[str, ...], outcome: str, blocks: bool, world: World, tmp_path: Path
) -> None:
    stated = f"<properties><property name='bridge_commit' value='{world.bridge_commit}'/></properties>"
    raw = JUNIT.format(commit=stated, inside=inside).encode()
    job = world.job(bridge_tests=tests, require_bridge_checks=True)
    result = take_bridge_tests(job, raw, tmp_path)
    assert (result.outcome, result.command) == (outcome, ())
    assert any(finding.blocking and not finding.ok for finding in result.findings) is blocks
    assert (tmp_path / JUNIT_FILE).exists() is (outcome != "skipped")


def test_what_its_environment_lacks_keeps_a_test_from_saying_anything(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    gpu = "def test_gpu():\n    raise RuntimeError('No CUDA GPUs are available')\n"
    (trees.bridge / BAD).write_text(f"{gpu}\ndef test_package():\n    import nowhere\n")
    quoting = "def test_good():\n    text = 'RuntimeError: No CUDA GPUs are available'\n    raise ValueError(1)\n"
    (trees.bridge / GOOD).write_text(quoting)
    assert ran(world, trees, base, tmp_path, GOOD).outcome == "failed"
    (trees.bridge / GOOD).write_text("def test_good():\n    pass\n")
    result = ran(world, trees, base, tmp_path, GOOD, BAD)
    assert result.outcome == "passed"
    assert outcomes(tmp_path) == {"test_good": "passed", "test_gpu": "skipped", "test_package": "skipped"}
    assert [finding.summary.partition(":")[0] for finding in result.findings if not finding.ok] == [
        "Bridge tests without a result, for its environment does not have the GPUs that it asks for",
        "Bridge tests without a result, for its environment does not have package nowhere",
    ]


@pytest.mark.bwrap
@pytest.mark.host
def test_in_a_cage_what_tests_write_beside_themselves_lands_in_a_folder_of_the_run(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    job = world.job(bridge_tests=(BAD,))
    trees = prepare_trees(job, tmp_path / "own" / "trees", base=base)
    (trees.bridge / BAD).write_text(
        "import os\nfrom pathlib import Path\n\ndef test_place():\n"
        f"    assert Path('{BAD}').read_text().startswith('import os')\n"
        "    os.makedirs('msc:/left')\n    Path('left.txt').write_text('here')\n"
    )
    tools = Tools(*(shutil.which(name) or "" for name in ("bwrap", "setpriv", "prlimit")))
    out = tmp_path / "out"
    out.mkdir()
    trees = replace(trees, cage=open_cage(job, trees, tools, tmp_path / "own", out, base))
    path = os.pathsep.join((str(trees.bridge / "src"), str(trees.bridge / SUBMODULE)))
    result = run_bridge_tests(job, trees, {**base, "PYTHONPATH": path}, out)
    assert result.outcome == "passed", (out / JUNIT_FILE).read_text()
    assert not (trees.bridge / "left.txt").exists()


def test_a_patch_of_a_module_that_a_missing_package_keeps_from_importing_is_no_failure(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    package = trees.bridge / "src/megatron/bridge"
    (package / "needs_it.py").write_text("import nowhere_to_be_found\n")
    (package / "broken.py").write_text("import megatron.bridge.nowhere\n")
    (trees.bridge / BAD).write_text(
        "from unittest.mock import patch\n\n"
        "def test_missing():\n    with patch('megatron.bridge.needs_it.f'): pass\n\n"
        "def test_broken():\n    with patch('megatron.bridge.broken.f'): pass\n"
    )
    ran(world, trees, base, tmp_path, BAD)
    assert outcomes(tmp_path) == {"test_missing": "skipped", "test_broken": "failure"}


REPORT = {"kind": "report", "node": "t.py::t", "when": "call", "outcome": "passed", "text": "", "error": ""}


@pytest.mark.parametrize(
    "forged",
    [
        "[]",
        "no json",
        "[" * 100_000,
        '{"kind": "collected", "nodes": [{}]}',
        '{"kind": "start", "node": {}}',
        '{"kind": "other"}',
        json.dumps({**REPORT, "seconds": "long"}),
        json.dumps({**REPORT, "seconds": float("nan")}),
        json.dumps({**REPORT, "seconds": 1, "text": 5}),
    ],
)
def test_a_line_that_the_plugin_does_not_write_is_none(forged: str, tmp_path: Path) -> None:
    """And a failure counts, whatever bytes its text holds."""
    failed = json.dumps({**REPORT, "seconds": 1, "outcome": "failed", "text": "no file caf\udce9"})
    (tmp_path / "tests.jsonl").write_text(f"{forged}\n{failed}\n{json.dumps({**REPORT, 'seconds': 1})}\n{failed[:40]}")
    (case,) = read_session(tmp_path / "tests.jsonl").outcomes(reason="cut")
    assert (case.outcome, case.seconds, case.text) == ("failed", 2, "no file caf?")
