"""The pass criteria that every level asks for, each judged by one function of the record and the log's facts.

Every function returns `Evidence` with a state: met, broken, missing (never a pass) or waived (named among the
limitations). Criteria 2 and 3 have modules of their own.
"""

from dataclasses import replace

from bot.core.case import Case, Judge
from bot.core.config_proof import resolved_config
from bot.core.evidence import Criterion, Evidence, State
from bot.core.facts import Progress, StepMetrics
from bot.core.import_proof import local_import
from bot.core.junit import covers
from bot.core.phases import END, Phase, is_phase, planned_phases, started_phases
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
    """Criterion 4: in each phase the bar reached the requested steps, and the metrics of that very step are there."""
    started = {phase.name: phase for phase in started_phases(case)}
    rows = []
    for planned in planned_phases(case.job):
        if planned.name not in started:
            summary = f"the {planned.name} phase, until step {planned.last_step}, never began"
            return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, summary, case.log)
        item = _phase_completed(case, started[planned.name], alone=len(planned_phases(case.job)) == 1)
        if item.state is not State.MET:
            return item
        rows.append(item)
    return replace(rows[-1], summary="; then ".join(row.summary for row in rows))


def _phase_completed(case: Case, phase: Phase, *, alone: bool) -> Evidence:
    where = "" if alone else f" in the {phase.name} phase"
    wanted = phase.planned.last_step
    progress = _last_bar(case, phase)
    if progress is None:
        summary = f"no training progress {'in the log' if alone else where.strip()}"
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, summary, case.log)
    at = (case.log, progress.at.line, progress.at.text)
    latest = progress is case.facts.progress
    reached = (progress.done, progress.total, progress.percent) == (wanted, wanted, 100)
    if not reached or (latest and not case.facts.completed_at):
        bar = f"the bar stands at {progress.percent}%, {progress.done}/{progress.total}{where}"
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, f"{bar}, with {wanted} requested", *at)
    steps = [step for step in case.train_steps() if alone or phase.wrote(step.line)]
    for step in steps:
        stray = _stray(step, phase)
        if stray:
            return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, f"{stray}{where}", case.log, step.line)
    last = next((step for step in reversed(steps) if step.step == wanted), None)
    if last is None:
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, f"no metrics of global step {wanted}{where}", *at)
    summary = f"Training Progress: 100% at {wanted}/{wanted}, metrics of global step {wanted} on line {last.line}"
    return Evidence(Criterion.STEPS_COMPLETED, State.MET, summary, *at)


def _last_bar(case: Case, phase: Phase) -> Progress | None:
    bars = [*case.facts.earlier, *([case.facts.progress] if case.facts.progress else [])]
    return next((bar for bar in reversed(bars) if phase.wrote(bar.at.line)), None)


def _stray(step: StepMetrics, phase: Phase) -> str:
    """What is wrong with a step that no such phase trains; empty for one that it does."""
    wanted, first = phase.planned.last_step, phase.planned.first_step
    if step.step > wanted or global_step(step) != step.step:
        return f"step {step.step} on line {step.line} says global step {global_step(step):g}, {wanted} requested"
    return f"step {step.step} on line {step.line} comes before the first step, {first}," if step.step < first else ""


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
    """Criterion 6: every process of the wrapper, one for each phase, exited 0 by itself."""
    ends = case.events("ended")
    if not ends:
        return Evidence(Criterion.EXIT_ZERO, State.MISSING, "no end of the process is recorded", EVENTS_FILE)
    phases = tuple(event for event in case.events("phase") if is_phase(event.data, END))
    for ended in (*phases, *ends):
        reason, code = ended.data.get("reason"), ended.data.get("exit_code")
        if reason != EndReason.EXITED or type(code) is not int or code != 0:
            note = ended.data.get("note")
            summary = f"the process ended by {reason}, exit code {code}{f': {note}' if note else ''}"
            return Evidence(Criterion.EXIT_ZERO, State.BROKEN, summary, EVENTS_FILE)
    return Evidence(Criterion.EXIT_ZERO, State.MET, "the process exited 0", EVENTS_FILE)


BASIC: tuple[Judge, ...] = (bridge_tests, local_import, resolved_config, steps_completed, no_exception, exit_zero)
