"""The focused Bridge tests, before any GPU hour: in the run's environment, or in one of their own on CPUs.

They are run in one session, because importing Bridge takes longer than most of them; each result is kept as it comes,
by the plugin in `instrumentation`, so that a test that hangs costs the rest of the limit and nothing that had finished.
In a cage they run while the imports are proved: each is mostly one Python after another importing the stack.
"""

import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from verl_e2e.core.judge.criteria.basic import without_result
from verl_e2e.core.judge.junit import (
    CaseResult,
    Junit,
    junit_document,
    missing_from_environment,
    missing_package,
    read_junit,
    skip_reason,
)
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import JUNIT_FILE, Check, Finding
from verl_e2e_runner.launch.launcher import INSTRUMENTATION, environment_lines
from verl_e2e_runner.launch.launchers import launcher_of
from verl_e2e_runner.process.cage import IMPORTS_VARIABLE, PATH_VARIABLE, read_below
from verl_e2e_runner.process.processes import FinishedProgram, hand_path_over, run_program
from verl_e2e_runner.reporting import blocked, good, note
from verl_e2e_runner.trees import Trees

_MOST_BYTES = 16 << 20
_WORST_LAST: tuple[Literal["passed", "skipped", "failed"], ...] = ("passed", "skipped", "failed")


class _Event(BaseModel):
    """A line of the plugin `instrumentation/verl_e2e_tests.py`, whose kind tells which fields it has."""

    kind: Literal["collected", "start", "report", "uncollected"]
    nodes: tuple[str, ...] = ()
    node: str = ""
    when: str = ""
    outcome: str = ""
    # Why it has this outcome, and the error itself with its kind.
    text: str = ""
    error: str = ""
    seconds: float = Field(default=0.0, allow_inf_nan=False)


@dataclass(slots=True)
class Results:
    """The events of one session; `running` is the test that had started and not ended, empty when there is none."""

    collected: tuple[str, ...] = ()
    results: dict[str, CaseResult] = field(default_factory=dict)
    running: str = ""

    def take(self, event: _Event) -> None:
        """Take one event of the plugin.

        A test has a report for set-up, call and tear-down: the worst counts, and the test ends with its tear-down.
        """
        node, text = event.node, event.text
        if event.kind == "collected":
            self.collected = event.nodes
        elif event.kind == "start":
            self.running = node
        elif event.kind == "uncollected":
            # A missing package, or two files of one name, is not a result about the change.
            lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
            found = CaseResult(node, "failed", f"it cannot be collected: {lines[-1]}\n{text}")
            if module := missing_package(text):
                found = CaseResult(node, "unfinished", f"it cannot be collected here: package {module} is missing")
            elif "import file mismatch" in text:
                reason = "it cannot be collected together with another file of the same name"
                found = CaseResult(node, "unfinished", reason)
            self.results[node] = found
        else:
            if event.when == "teardown" and self.running == node:
                self.running = ""
            outcome = next((known for known in _WORST_LAST if known == event.outcome), None)
            missing = missing_from_environment(event.error) if outcome == "failed" else ""
            if missing:
                outcome, text = "skipped", skip_reason(missing)
            before = self.results.get(node, CaseResult(node, "unfinished"))
            seconds = event.seconds + before.seconds
            if outcome and (
                before.outcome == "unfinished" or _WORST_LAST.index(outcome) > _WORST_LAST.index(before.outcome)
            ):
                self.results[node] = CaseResult(node, outcome, text, seconds, missing)
            elif outcome:
                self.results[node] = replace(before, seconds=seconds)

    def outcomes(self, *, reason: str, killed_by: str = "") -> tuple[CaseResult, ...]:
        """Every result, and the tests that have none with the reason why.

        `killed_by` says what ended the interpreter in the middle of a test, which that test is blamed for.
        """
        found = dict(self.results)
        before = found.get(self.running)
        if self.running and (before is None or before.outcome != "failed"):
            found[self.running] = CaseResult(self.running, "unfinished", reason)
            if killed_by:
                found[self.running] = CaseResult(self.running, "failed", f"it ended the interpreter: {killed_by}")
        for node in self.collected:
            found.setdefault(node, CaseResult(node, "unfinished", reason))
        return tuple(found.values())


def read_session(file: Path) -> Results:
    """The session as far as the file goes; a last line that was cut is ignored."""
    session = Results()
    raw = read_below(file.parent, file.name, limit=_MOST_BYTES) or b""
    for line in raw.split(b"\n")[:-1]:
        # The code under test may write into this file: a line of another shape is none.
        with suppress(ValueError, RecursionError):
            # What an error says may hold bytes that are no text, as surrogates.
            text = json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace")
            session.take(_Event.model_validate_json(text))
    return session


TESTS_VARIABLE = "VERL_E2E_TESTS"
_PLUGIN = "verl_e2e_tests"
_EVENTS = "tests.jsonl"
_NOTHING = 5
_WENT_ON = "Bridge tests: not all passed; a run goes on only where none of them failed"
_SHOWN = 3
_FIX = "install what is missing, raise the limit of the policy, or bring a JUnit file of the same commit with --junit"

# A host that is short of memory, or a person, ends a process so; any other signal is the process's own fault.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

_NO_SUCH_TEST = re.compile(r"^ERROR: not found: (?P<node>\S+)", re.MULTILINE)

TestsOutcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class BridgeTests:
    """How the tests went: the exact command (empty: none was run), seconds, and the findings for the record.

    `absent` are listed tests that do not exist at the commit.
    """

    outcome: TestsOutcome
    command: tuple[str, ...]
    seconds: float
    findings: tuple[Finding, ...]
    absent: tuple[str, ...] = ()
    # Why none was run, empty where some were.
    not_run: str = ""


def run_bridge_tests(
    job: Job, trees: Trees, environment: Mapping[str, str], out: Path, *, timeout_s: float | None = None
) -> BridgeTests:
    """Run the job's Bridge tests that exist at the commit; `out/junit.xml` is written when any could run.

    A failed test blocks nothing here: the judge reads the JUnit file and lets no failed test pass. Tests that
    could not run are skipped with the reason, which blocks only where the job requires the Bridge checks.
    `timeout_s` bounds all of them together, the job's own limit by default.
    """
    (out / JUNIT_FILE).unlink(missing_ok=True)
    limit_s = timeout_s or job.bridge_tests_limit_s
    existing: list[str] = []
    absent: list[str] = []
    for test in dict.fromkeys(job.bridge_tests):
        path = (trees.bridge / test.partition("::")[0]).resolve()
        there = path.exists() and path.is_relative_to(trees.bridge)
        (existing if there else absent).append(test)
    if not existing:
        reason = "none of the listed tests exists at this commit" if absent else "the job lists none"
        return replace(_skipped(job, reason, (), 0.0, _absent(job, absent)), absent=tuple(absent))
    variables = _variables(job, trees, environment, out)
    finished, session = _run(job, trees, existing, variables, out, limit_s)
    # Node ids that pytest does not find in their files, after which it runs nothing.
    missing = _NO_SUCH_TEST.findall(finished.stdout + finished.stderr)
    unknown = [test for test in existing if "::" in test and any(node.endswith(test) for node in missing)]
    if unknown and len(unknown) < len(existing):
        absent += unknown
        rest = [test for test in existing if test not in unknown]
        finished, session = _run(job, trees, rest, variables, out, max(1.0, limit_s - finished.seconds))
    # A test that ended its own interpreter is blamed for it.
    own_fault = not finished.timed_out and finished.code < 0 and -finished.code not in _FROM_OUTSIDE
    results = session.outcomes(
        reason=f"pytest ended with {finished.ending}, before it was done",
        killed_by=finished.ending if own_fault else "",
    )
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.outcome == "unfinished" or result.missing:
            reasons.setdefault(result.text, []).append(result.node)
    findings = _absent(job, absent)
    for reason, nodes in reasons.items():
        more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
        summary = f"Bridge tests without a result, for {reason}: {', '.join(nodes[:_SHOWN])}{more}"
        findings.append(note(Check.BRIDGE_TESTS, summary))
    if not any(result.outcome in ("passed", "failed") for result in results):
        skipped = _skipped(job, _why_not(finished, results), finished.argv, finished.seconds, findings)
        return replace(skipped, absent=tuple(absent))
    raw = junit_document(results, job.bridge.commit)
    (out / JUNIT_FILE).write_bytes(raw)
    outcome, findings_of_tests = _summarized(job, read_junit(raw), tuple(absent), f"in {finished.seconds:.0f} s")
    return BridgeTests(outcome, finished.argv, finished.seconds, (*findings, *findings_of_tests), tuple(absent))


def take_bridge_tests(job: Job, raw: bytes, out: Path) -> BridgeTests:
    """The results of a JUnit file from elsewhere, which states the job's commit, in place of a run of the tests."""
    junit = read_junit(raw)
    if not any(test.outcome in ("passed", "failed") for test in junit.tests):
        return _skipped(job, "no test of the file that was brought ran", (), 0.0, [])
    (out / JUNIT_FILE).write_bytes(raw)
    outcome, findings_of_tests = _summarized(job, junit, (), "taken from a file of this commit")
    return BridgeTests(outcome, (), 0.0, findings_of_tests)


def bridge_tests_command(job: Job, tests: Sequence[str]) -> tuple[str, ...]:
    """The exact command for `tests` without those that the site leaves out, to be run in the Bridge tree."""
    python = job.site.bridge_python or job.site.python
    left_out = (f"--deselect={item.test}" for item in job.site.deselected_tests)
    options = ("-q", "-p", "no:cacheprovider", "-p", _PLUGIN, "--continue-on-collection-errors")
    return (python, "-m", "pytest", *options, *left_out, *tests)


def bridge_tests_text(
    job: Job, trees: Trees, environment: Mapping[str, str], out: Path, *, base: Mapping[str, str]
) -> str:
    """The tests as shell commands, for a shell whose environment is `base`.

    Where the job requires them they end with an error unless all pass; else what comes after them is run all the same.
    """
    variables = _variables(job, trees, environment, out)
    command = " \\\n  ".join(map(shlex.quote, bridge_tests_command(job, job.bridge_tests)))
    goes_on = "" if job.require_bridge_checks else f" || echo {shlex.quote(_WENT_ON)} >&2"
    lines = ["# focused Bridge tests", "(", f"mkdir -p {shlex.quote(str(out))}"]
    lines += environment_lines(variables, base)
    lines += [f"cd {shlex.quote(str(trees.bridge))} &&", f"{command}{goes_on}", ")"]
    return "\n".join(lines) + "\n"


def _absent(job: Job, absent: list[str]) -> list[Finding]:
    return [note(Check.BRIDGE_TESTS, f"{test} does not exist at {job.bridge.commit[:12]}") for test in absent]


def _run(
    job: Job, trees: Trees, tests: list[str], variables: Mapping[str, str], out: Path, limit_s: float
) -> tuple[FinishedProgram, Results]:
    events, cwd = _events_file(trees, out), trees.bridge
    if trees.cage:
        events, cwd = trees.cage.outside(events), trees.cage.scratch / "bridge-tests"
        # The tests may not write into the Bridge tree: a folder of links to it takes what they write.
        outside = trees.cage.outside(cwd)
        shutil.rmtree(outside, ignore_errors=True)
        outside.mkdir()
        for entry in trees.bridge.iterdir():
            if entry.name != ".git":
                (outside / entry.name).symlink_to(entry)
        hand_path_over(outside, trees.cage)
    events.unlink(missing_ok=True)
    command = bridge_tests_command(job, tests)
    finished = run_program(command, env=variables, cwd=cwd, timeout_s=limit_s, cage=trees.cage)
    return finished, read_session(events)


def _events_file(trees: Trees, out: Path) -> Path:
    return (trees.cage.outbox if trees.cage else out.resolve()) / _EVENTS


def _variables(job: Job, trees: Trees, environment: Mapping[str, str], out: Path) -> dict[str, str]:
    """The tests' environment: the run's without what is meant for the wrapper, or that of a place of their own."""
    gone = {*launcher_of(job).variables(job, trees, environment), IMPORTS_VARIABLE, PATH_VARIABLE}
    kept = {name: value for name, value in environment.items() if name not in gone}
    path = environment.get("PYTHONPATH", "")
    if job.site.bridge_python:
        own = (str(trees.bridge / "src"), str(trees.megatron_lm), *job.site.bridge_python_path)
        path = os.pathsep.join(own)
        kept["CUDA_VISIBLE_DEVICES"] = ""
    kept["PYTHONPATH"] = os.pathsep.join(part for part in (str(INSTRUMENTATION), path) if part)
    return {**kept, TESTS_VARIABLE: str(_events_file(trees, out))}


def _summarized(job: Job, junit: Junit, absent: tuple[str, ...], how: str) -> tuple[TestsOutcome, tuple[Finding, ...]]:
    """The outcome of tests of which some ran, with what the record says of it."""
    counts = {kind: sum(test.outcome == kind for test in junit.tests) for kind in ("passed", "failed", "skipped")}
    summary = f"{', '.join(f'{count} {kind}' for kind, count in counts.items() if count)}, {how}"
    if counts["failed"]:
        return "failed", (note(Check.BRIDGE_TESTS, f"Bridge tests failed: {summary}", f"see {JUNIT_FILE}"),)
    passed = good(Check.BRIDGE_TESTS, f"Bridge tests: {summary}")
    unseen = without_result(job, junit.tests, absent) if job.require_bridge_checks else ()
    if not unseen:
        return "passed", (passed,)
    return "passed", (
        blocked(Check.BRIDGE_TESTS, f"Bridge checks incomplete: no result of {', '.join(unseen)}", _FIX),
        passed,
    )


def _why_not(finished: FinishedProgram, results: Sequence[CaseResult]) -> str:
    if finished.timed_out:
        return f"no end within {finished.seconds:.0f} s"
    module = missing_package(finished.stdout + finished.stderr)
    if module:
        return f"package {module} is missing in the Python of the tests"
    if "No module named pytest" in finished.stderr:
        return "pytest is missing in the Python of the tests"
    if results:
        return next((result.text for result in results if result.outcome == "unfinished"), "all of them were skipped")
    if finished.code in (0, _NOTHING):
        return "pytest found no test in them"
    return f"pytest ended with {finished.ending}: {finished.last_error}"


def _skipped(job: Job, reason: str, command: tuple[str, ...], seconds: float, notes: list[Finding]) -> BridgeTests:
    summary = f"Bridge checks not run: {reason}"
    build = blocked if job.require_bridge_checks else note
    findings = (*notes, build(Check.BRIDGE_TESTS, summary, _FIX))
    return BridgeTests("skipped", command, seconds, findings, not_run=reason)
