"""The pass criteria that every level asks for, each judged by one function of the record and the log's facts.

Every function returns `Evidence` with a state: met, broken, missing (never a pass) or waived (named among the
limitations). Criteria 1 to 3 have modules of their own.
"""

from dataclasses import replace

from verl_e2e.core.judge.case import Case, Judge
from verl_e2e.core.judge.criteria.bridge_tests import bridge_tests
from verl_e2e.core.judge.criteria.config import resolved_config
from verl_e2e.core.judge.criteria.imports import local_import
from verl_e2e.core.judge.phases import Phase, planned_phases, started_phases
from verl_e2e.core.model.events import END
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.facts import Progress, StepMetrics
from verl_e2e.core.model.record import EVENTS_FILE
from verl_e2e.core.triage.triage import TriageVerdict


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
    ends = case.ends()
    if not ends:
        return Evidence(Criterion.EXIT_ZERO, State.MISSING, "no end of the process is recorded", EVENTS_FILE)
    for ended in (*case.phases(END), *ends):
        if not ended.exited_zero:
            note = f": {ended.note}" if ended.note else ""
            summary = (
                f"the process ended by {ended.end_reason or 'an unknown cause'}, exit code {ended.exit_code}{note}"
            )
            return Evidence(Criterion.EXIT_ZERO, State.BROKEN, summary, EVENTS_FILE)
    return Evidence(Criterion.EXIT_ZERO, State.MET, "the process exited 0", EVENTS_FILE)


BASIC: tuple[Judge, ...] = (bridge_tests, local_import, resolved_config, steps_completed, no_exception, exit_zero)
