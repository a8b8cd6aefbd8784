"""Criterion 1: the focused Bridge tests passed on the very commit that the run is about."""

from collections.abc import Iterable

from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.junit import COMMIT_PROPERTY, UNFINISHED, covers
from verl_e2e.core.model.events import END, TESTS_PHASE, PhaseEvent, read_data
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.jobs import Job, WhyChosen
from verl_e2e.core.model.record import JUNIT_FILE, EndReason, Record, TestCase

_SHOWN_FAILED = 3


def bridge_tests(case: Case) -> Evidence:
    """Broken by any failed test; waived where no result is there or required; tests of another commit do not count."""
    refused = foreign_tests(case.record)
    tests = () if refused else case.record.tests or ()
    failed = [test for test in tests if test.outcome == "failed"]
    if failed:
        excerpt = failed[0].message or _failure(failed, tests)
        return Evidence(Criterion.BRIDGE_TESTS, State.BROKEN, _failure(failed, tests), JUNIT_FILE, 0, excerpt)
    passed = sum(test.outcome == "passed" for test in tests)
    gap = _incomplete(case, tests) if passed else _not_run(case, refused)
    if gap:
        state = State.MISSING if case.job.require_bridge_checks else State.WAIVED
        return Evidence(Criterion.BRIDGE_TESTS, state, gap, JUNIT_FILE)
    return Evidence(Criterion.BRIDGE_TESTS, State.MET, _success(passed, tests), JUNIT_FILE)


def foreign_tests(record: Record) -> str:
    """Why the JUnit file says nothing about the job's commit; empty when it does, or without a file.

    A file that states no commit counts only in a folder whose runner ran the tests itself.
    """
    if record.tests is None or record.job is None:
        return ""
    stated, wanted = record.tests_commit, record.job.bridge.commit
    if stated:
        return "" if stated == wanted else f"{JUNIT_FILE} is of {stated[:12]}, and the run of {wanted[:12]}"
    if _ran_here(record):
        return ""
    return f"{JUNIT_FILE} does not state its commit (property {COMMIT_PROPERTY})"


def _ran_here(record: Record) -> bool:
    phases = (read_data(event, PhaseEvent) for event in record.events if event.kind == "phase")
    ended = (phase for phase in phases if phase is not None and (phase.name, phase.state) == (TESTS_PHASE, END))
    return any(phase.outcome in ("passed", "failed") for phase in ended)


def _failure(failed: list[TestCase], tests: tuple[TestCase, ...]) -> str:
    names = ", ".join(test.name for test in failed[:_SHOWN_FAILED])
    more = f" and {len(failed) - _SHOWN_FAILED} more" if len(failed) > _SHOWN_FAILED else ""
    return f"{len(failed)} of {len(tests)} focused Bridge tests failed, first {names}{more}"


def _success(passed: int, tests: tuple[TestCase, ...]) -> str:
    skipped = sum(test.outcome == "skipped" for test in tests)
    rest = sum(test.outcome == UNFINISHED for test in tests)
    message = f", {skipped} skipped" if skipped else ""
    return f"{passed} focused Bridge tests passed{message}{f', {rest} without a result' if rest else ''}"


def _not_run(case: Case, refused: str) -> str:
    """Why a result is missing: it is of another commit, or the runner's own reason, else what the folder shows."""
    environment = case.record.environment
    message = refused or (environment.tests_not_run if environment else "")
    return f"Bridge checks not run: {message or _why_not_run(case)}"


def _why_not_run(case: Case) -> str:
    """What the folder shows, where the runner gave no reason."""
    if case.record.tests is None and case.ended_by(EndReason.NOT_STARTED):
        return "the run was stopped before them"
    if case.record.tests is not None:
        return f"none of the {len(case.record.tests)} tests in {JUNIT_FILE} ran to its end"
    return f"no {JUNIT_FILE} in the folder" if case.job.bridge_tests else "the job lists none"


def _incomplete(case: Case, tests: tuple[TestCase, ...]) -> str:
    absent = case.record.environment.absent_tests if case.record.environment else ()
    unseen = without_result(case.job, tests, absent)
    return f"Bridge checks incomplete: no result of {', '.join(unseen)}" if unseen else ""


def without_result(job: Job, tests: tuple[TestCase, ...], absent: tuple[str, ...]) -> tuple[str, ...]:
    """The tests that a pass needs and that have no result; `absent` do not exist at the commit.

    A pass needs those that the policy lists and those that the change touched. Of what else was chosen a missing
    result is a limitation, and so is a test that the change touched and that the environment cannot collect.
    """
    left_out = {*(item.test for item in job.site.deselected_tests), *absent}
    why = {item.test: item.why for item in job.chosen_tests}
    asked = [(listed, why.get(listed, WhyChosen.POLICY)) for listed in job.bridge_tests if listed not in left_out]
    return tuple(listed for listed, kind in asked if _lacks_result(listed, kind, tests))


def _lacks_result(listed: str, why: WhyChosen, every: tuple[TestCase, ...]) -> bool:
    tests = [test for test in every if covers(listed, test)]
    match why:
        case WhyChosen.POLICY:
            return _cut_off(listed, tests) or all(test.outcome in ("skipped", UNFINISHED) for test in tests)
        case WhyChosen.CHANGED:
            return _cut_off(listed, tests) or not tests
        case WhyChosen.CONVERSION | WhyChosen.IMPORTS:
            return False


def _cut_off(listed: str, tests: Iterable[TestCase]) -> bool:
    """Whether a test was there and never ended; a file that could not be collected bears its own name alone."""
    file = listed.partition("::")[0].removesuffix(".py").rpartition("/")[2]
    return any(test.outcome == UNFINISHED and test.name.rpartition(".")[2] != file for test in tests)
