"""The pass criteria that every level asks for, each judged by one function of the record and the log's facts.

Every function returns `Evidence` with a state: met, broken, missing (never a pass) or waived (named among the
limitations). Criteria 2 and 3 have modules of their own.
"""

from bot.core.case import Case, Judge
from bot.core.config_proof import resolved_config
from bot.core.evidence import Criterion, Evidence, State
from bot.core.facts import StepMetrics
from bot.core.import_proof import local_import
from bot.core.junit import covers
from bot.core.record import EVENTS_FILE, JUNIT_FILE, Check, EndReason, TestCase
from bot.core.triage import TriageVerdict

_NOT_RUN = "Bridge checks not run: "


def bridge_tests(case: Case) -> Evidence:
    """Criterion 1: the focused Bridge tests passed on this head; waived when no result is there or demanded."""
    tests = case.record.tests or ()
    failed = [test for test in tests if test.outcome == "failed"]
    if failed:
        summary = f"{len(failed)} of {len(tests)} focused Bridge tests failed, first {failed[0].name}"
        return Evidence(Criterion.BRIDGE_TESTS, State.BROKEN, summary, JUNIT_FILE, 0, failed[0].message or summary)
    passed = sum(test.outcome == "passed" for test in tests)
    gap = _unseen(case, tests) if passed else f"{_NOT_RUN}{_why_not_run(case)}"
    if gap:
        state = State.MISSING if case.job.require_bridge_checks else State.WAIVED
        return Evidence(Criterion.BRIDGE_TESTS, state, gap, JUNIT_FILE)
    skipped = f", {len(tests) - passed} skipped" if len(tests) > passed else ""
    return Evidence(Criterion.BRIDGE_TESTS, State.MET, f"{passed} focused Bridge tests passed{skipped}", JUNIT_FILE)


def _why_not_run(case: Case) -> str:
    """The runner's own reason, else what the folder shows."""
    findings = case.record.environment.findings if case.record.environment else ()
    said = [one.summary for one in findings if one.check is Check.BRIDGE_TESTS and not one.ok]
    reasons = [summary.removeprefix(_NOT_RUN) for summary in said if summary.startswith(_NOT_RUN)]
    if reasons or said:
        return (reasons or said)[0]
    if case.record.tests is None and case.ended_by(EndReason.NOT_STARTED):
        return "the run was stopped before them"
    if case.record.tests is not None:
        return f"none of the {len(case.record.tests)} tests in {JUNIT_FILE} ran to its end"
    return f"no {JUNIT_FILE} in the folder" if case.job.bridge_tests else "the job lists none"


def _unseen(case: Case, tests: tuple[TestCase, ...]) -> str:
    """The listed tests without a result; empty when all have one."""
    environment = case.record.environment
    left_out = {
        *(one.test for one in case.job.site.deselected_tests),
        *(environment.absent_tests if environment else ()),
    }
    asked = [listed for listed in case.job.bridge_tests if listed not in left_out]
    unseen = [listed for listed in asked if not any(covers(listed, test) for test in tests)]
    return f"Bridge checks incomplete: no result of {', '.join(unseen)}" if unseen else ""


def steps_completed(case: Case) -> Evidence:
    """Criterion 4: the progress bar reached the requested steps, and the metrics of that very step are there."""
    progress, wanted = case.facts.progress, case.job.steps
    if progress is None:
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, "no training progress in the log", case.log)
    at = (case.log, progress.at.line, progress.at.text)
    if progress.total != wanted or progress.done != wanted or progress.percent != 100 or not case.facts.completed_at:
        summary = f"the bar stands at {progress.percent}%, {progress.done}/{progress.total}, with {wanted} requested"
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, summary, *at)
    steps = case.train_steps()
    stray = next((step for step in steps if step.step > wanted or global_step(step) != step.step), None)
    if stray:
        summary = f"step {stray.step} on line {stray.line} says global step {global_step(stray):g}, {wanted} requested"
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, summary, case.log, stray.line)
    last = next((step for step in reversed(steps) if step.step == wanted), None)
    if last is None:
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, f"no metrics of global step {wanted}", *at)
    summary = f"Training Progress: 100% at {wanted}/{wanted}, metrics of global step {wanted} on line {last.line}"
    return Evidence(Criterion.STEPS_COMPLETED, State.MET, summary, *at)


def global_step(step: StepMetrics) -> float:
    """The global step that a metric line says it belongs to, its own number when it says nothing."""
    return step.values.get("training/global_step", float(step.step))


def no_exception(case: Case) -> Evidence:
    """Criterion 5: no unexplained exception anywhere in the run; what only its shutdown printed is named."""
    answer = case.triage
    if answer.verdict is not TriageVerdict.PASS:
        state = State.BROKEN if answer.excerpt else State.MISSING
        return Evidence(Criterion.NO_EXCEPTION, state, answer.cause, case.log, answer.line, answer.excerpt)
    noise = ", ".join(dict.fromkeys(noise.name for noise in answer.residual_noise))
    summary = f"no unexplained exception; residual noise: {noise}" if noise else "no exception"
    return Evidence(Criterion.NO_EXCEPTION, State.MET, summary, case.log)


def exit_zero(case: Case) -> Evidence:
    """Criterion 6: every process of the wrapper exited 0 by itself."""
    ends = case.events("ended")
    if not ends:
        return Evidence(Criterion.EXIT_ZERO, State.MISSING, "no end of the process is recorded", EVENTS_FILE)
    for ended in ends:
        reason, code = ended.data.get("reason"), ended.data.get("exit_code")
        if reason != EndReason.EXITED or type(code) is not int or code != 0:
            note = ended.data.get("note")
            summary = f"the process ended by {reason}, exit code {code}{f': {note}' if note else ''}"
            return Evidence(Criterion.EXIT_ZERO, State.BROKEN, summary, EVENTS_FILE)
    return Evidence(Criterion.EXIT_ZERO, State.MET, "the process exited 0", EVENTS_FILE)


BASIC: tuple[Judge, ...] = (bridge_tests, local_import, resolved_config, steps_completed, no_exception, exit_zero)
