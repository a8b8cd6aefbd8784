"""The pass criteria that every level asks for, each judged by one function of the record and the log's facts.

Every function returns `Evidence` with a state: met, broken, missing (never a pass) or waived (named among the
limitations). Criteria 2 and 3 have modules of their own.
"""

from bot.core.case import Case, Judge
from bot.core.config_proof import resolved_config
from bot.core.evidence import Criterion, Evidence, State
from bot.core.facts import LoggedError, StepMetrics
from bot.core.import_proof import local_import
from bot.core.junit import covers
from bot.core.record import EVENTS_FILE, JUNIT_FILE, EndReason, TestCase
from bot.core.stages import Stage
from bot.core.triage import TriageVerdict

# Code whose exceptions no run may survive in silence.
_UNDER_TEST = ("megatron/bridge/", "megatron/core/")


def bridge_tests(case: Case) -> Evidence:
    """Criterion 1: the focused Bridge tests passed on this head; waived when no result is there or demanded."""
    tests = case.record.tests or ()
    failed = [test for test in tests if test.outcome == "failed"]
    if failed:
        summary = f"{len(failed)} of {len(tests)} focused Bridge tests failed, first {failed[0].name}"
        return Evidence(Criterion.BRIDGE_TESTS, State.BROKEN, summary, JUNIT_FILE, 0, failed[0].message or summary)
    gap = _tests_gap(case, tests)
    if gap:
        state = State.MISSING if case.job.require_bridge_checks else State.WAIVED
        return Evidence(Criterion.BRIDGE_TESTS, state, f"Bridge checks not run: {gap}", JUNIT_FILE)
    skipped = sum(test.outcome == "skipped" for test in tests)
    summary = f"{len(tests) - skipped} focused Bridge tests passed{f', {skipped} skipped' if skipped else ''}"
    return Evidence(Criterion.BRIDGE_TESTS, State.MET, summary, JUNIT_FILE)


def _tests_gap(case: Case, tests: tuple[TestCase, ...]) -> str:
    """Why the results are none, or not those of the listed tests; empty when they are."""
    if case.record.tests is None:
        return f"no {JUNIT_FILE} in the folder" if case.job.bridge_tests else "the job lists none"
    if not any(test.outcome == "passed" for test in tests):
        return f"none of the {len(tests)} tests in {JUNIT_FILE} ran to its end"
    left_out = {one.test for one in case.job.site.deselected_tests}
    asked = [listed for listed in case.job.bridge_tests if listed not in left_out]
    unseen = [listed for listed in asked if not any(covers(listed, test) for test in tests)]
    return f"no result of {', '.join(unseen)}" if unseen else ""


def steps_completed(case: Case) -> Evidence:
    """Criterion 4: the progress bar reached the requested steps, and the metrics of that very step are there."""
    progress, wanted = case.facts.progress, case.job.steps
    if progress is None:
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, "no training progress in the log", case.log)
    at = (case.log, progress.at.line, progress.at.text)
    if progress.total != wanted or progress.done != wanted or progress.percent != 100 or not case.facts.completed_at:
        summary = f"{progress.done} of {progress.total} steps done, {wanted} requested"
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
    """Criterion 5: no unexplained exception anywhere in the run, and none at all in the code under test."""
    answer = case.triage
    if answer.verdict is not TriageVerdict.PASS:
        state = State.BROKEN if answer.excerpt else State.MISSING
        return Evidence(Criterion.NO_EXCEPTION, state, answer.cause, case.log, answer.line, answer.excerpt)
    survived = survived_error(case)
    if survived:
        summary = f"{survived.kind or 'an error'} in the code under test was logged before the steps completed"
        return Evidence(Criterion.NO_EXCEPTION, State.MISSING, summary, case.log, survived.at.line, survived.at.text)
    noise = ", ".join(dict.fromkeys(noise.name for noise in answer.residual_noise))
    summary = f"no unexplained exception; residual noise: {noise}" if noise else "no exception"
    return Evidence(Criterion.NO_EXCEPTION, State.MET, summary, case.log)


def survived_error(case: Case) -> LoggedError | None:
    """The first error through Bridge or Megatron, from provider setup on, that the run went on after."""
    for error in case.facts.errors:
        inside = error.stage.order >= Stage.BRIDGE_PROVIDER.order and not error.after_completion and not error.soft
        if inside and any(part in frame for frame in error.frames for part in _UNDER_TEST):
            return error
    return None


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
