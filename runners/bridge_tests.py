"""The focused Bridge tests, in the run's environment and from the tree under test, before any GPU hour."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bot.core.jobs import Job
from bot.core.record import JUNIT_FILE, Check, Finding
from runners.findings import blocked, good, remark
from runners.gate import Finished, run
from runners.harness.verl import wrapper_map
from runners.worktrees import Trees

_PASSED, _FAILED, _INTERRUPTED, _USAGE, _NOTHING = 0, 1, 2, 4, 5

_COLLECTION_ERROR = re.compile(r"^ERROR (?P<test>\S+?)(?: - (?P<error>.*))?$", re.MULTILINE)
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<module>[^']+)'")

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class BridgeTests:
    """How the tests went: the exact command (empty: none was run), seconds, and the findings for the record.

    `absent` are listed tests that do not exist at the commit.
    """

    outcome: Outcome
    command: tuple[str, ...]
    seconds: float
    findings: tuple[Finding, ...]
    absent: tuple[str, ...] = ()


def run_bridge_tests(
    job: Job, trees: Trees, environment: Mapping[str, str], out: Path, *, timeout_s: float = 300
) -> BridgeTests:
    """Run the job's Bridge tests that exist at the commit; `out/junit.xml` is written when they could run.

    A failed test blocks nothing here: the judge reads the JUnit file and lets no failed test pass. Tests that
    could not run are skipped with the reason, which blocks only where the job requires the Bridge checks.
    """
    (out / JUNIT_FILE).unlink(missing_ok=True)
    existing, absent = _sorted(job, trees)
    remarks = [remark(Check.BRIDGE_TESTS, f"{test} does not exist at {job.bridge.commit[:12]}") for test in absent]
    if not existing:
        reason = "none of the listed tests exists at this commit" if absent else "the job lists none"
        return replace(_skipped(job, reason, (), 0.0, remarks), absent=tuple(absent))
    finished, left_out = _run(job, trees, existing, _without_wrapper(job, trees, environment), out, timeout_s)
    remarks += [
        remark(Check.BRIDGE_TESTS, f"{test} cannot be collected here: package {module} is missing", f"install {module}")
        for test, module in left_out.items()
    ]
    return replace(_outcome(job, finished, out, remarks), absent=tuple(absent))


def bridge_tests_command(job: Job, tests: Sequence[str], out: Path) -> tuple[str, ...]:
    """The exact command for `tests` without those that the site leaves out, to be run in the Bridge tree."""
    junit = f"--junitxml={out.resolve() / JUNIT_FILE}"
    left_out = (f"--deselect={one.test}" for one in job.site.deselected_tests)
    return (job.site.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", junit, *left_out, *tests)


def bridge_tests_text(job: Job, trees: Trees, environment: Mapping[str, str], out: Path) -> str:
    """The tests as a shell script that can be pasted; a listed test that the commit lacks is left out by a real run."""
    variables = _without_wrapper(job, trees, environment)
    path = f"PYTHONPATH={variables['PYTHONPATH']}"
    words = ("env", path, *bridge_tests_command(job, job.bridge_tests, out))
    lines = ["# focused Bridge tests", "(", f"mkdir -p {shlex.quote(str(out))}"]
    lines += [f"cd {shlex.quote(str(trees.bridge))} &&", " \\\n  ".join(map(shlex.quote, words)), ")"]
    return "\n".join(lines) + "\n"


def _sorted(job: Job, trees: Trees) -> tuple[list[str], list[str]]:
    existing: list[str] = []
    absent: list[str] = []
    for test in dict.fromkeys(job.bridge_tests):
        path = (trees.bridge / test.partition("::")[0]).resolve()
        there = path.exists() and path.is_relative_to(trees.bridge)
        (existing if there else absent).append(test)
    return existing, absent


def _run(
    job: Job, trees: Trees, tests: list[str], environment: Mapping[str, str], out: Path, timeout_s: float
) -> tuple[Finished, dict[str, str]]:
    """Run the tests; those that a missing package keeps from being collected are left out of a second run."""
    command = bridge_tests_command(job, tests, out)
    finished = run(command, env=environment, cwd=trees.bridge, timeout_s=timeout_s)
    left_out = _uncollectable(finished)
    rest = [test for test in tests if test.partition("::")[0] not in left_out]
    if left_out and rest and rest != tests:
        command = bridge_tests_command(job, rest, out)
        again = run(command, env=environment, cwd=trees.bridge, timeout_s=timeout_s - finished.seconds)
        return again, left_out
    return finished, left_out


def _uncollectable(finished: Finished) -> dict[str, str]:
    """Test files that pytest could not import, with the missing package; the trees' own modules do not count."""
    found = {}
    for error in _COLLECTION_ERROR.finditer(finished.stdout):
        module = _MISSING_MODULE.search(error["error"] or "") or _missing_below(error["test"], finished.stdout)
        if module is not None and module["module"].partition(".")[0] not in ("megatron", "verl", "tests"):
            found[error["test"]] = module["module"]
    return found


def _missing_below(test: str, stdout: str) -> re.Match[str] | None:
    _, _, section = stdout.partition(f"ERROR collecting {test}")
    return _MISSING_MODULE.search(section)


def _outcome(job: Job, finished: Finished, out: Path, remarks: list[Finding]) -> BridgeTests:
    last = next((line for line in reversed(finished.stdout.splitlines()) if line.strip()), "").strip("= ")
    junit = out / JUNIT_FILE
    if finished.code == _PASSED:
        finding = good(Check.BRIDGE_TESTS, f"Bridge tests: {last}")
        return BridgeTests("passed", finished.argv, finished.seconds, (*remarks, finding))
    if finished.code == _FAILED or (finished.code == _INTERRUPTED and not _uncollectable(finished)):
        finding = remark(Check.BRIDGE_TESTS, f"Bridge tests failed: {last}", f"see {JUNIT_FILE}")
        return BridgeTests("failed", finished.argv, finished.seconds, (*remarks, finding))
    junit.unlink(missing_ok=True)
    return _skipped(job, _why_not(finished), finished.argv, finished.seconds, remarks)


def _why_not(finished: Finished) -> str:
    if finished.timed_out:
        return f"no end within {finished.seconds:.0f} s"
    missing = _MISSING_MODULE.search(finished.stdout + finished.stderr)
    if missing is not None:
        return f"package {missing['module']} is missing in the run's Python"
    if "No module named pytest" in finished.stderr:
        return "pytest is missing in the run's Python"
    if finished.code == _NOTHING:
        return "pytest found no test in them"
    return f"pytest ended with {finished.ending}: {finished.last_error}"


def _skipped(job: Job, reason: str, command: tuple[str, ...], seconds: float, remarks: list[Finding]) -> BridgeTests:
    summary = f"Bridge checks not run: {reason}"
    mend = "install what is missing, or bring a JUnit file of the same commit from a CPU environment"
    build = blocked if job.require_bridge_checks else remark
    return BridgeTests("skipped", command, seconds, (*remarks, build(Check.BRIDGE_TESTS, summary, mend)))


def _without_wrapper(job: Job, trees: Trees, environment: Mapping[str, str]) -> dict[str, str]:
    """The run's environment without what is meant for the wrapper, and without the probe's record."""
    names = {*wrapper_map(job, trees), "VERL_E2E_IMPORTS"}
    return {name: value for name, value in environment.items() if name not in names}
