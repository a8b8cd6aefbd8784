"""What a green run can hide, judged from the metrics and warnings that it prints anyway.

Whether the run executed the change: of the functions that the job is planned for, which ones it entered.

None of them: the run shows nothing about the change, however green the rest. What only Bridge tests entered did not
run in verl. Without a record nothing is known, and that is a limitation; the policy says what the gate makes of it.
"""

import math
from dataclasses import dataclass

from verl_e2e.core.compare.bands import band_of
from verl_e2e.core.judge.case import Case, trained_models, wants_adapter
from verl_e2e.core.judge.criteria.basic import global_step
from verl_e2e.core.judge.execution import BASE_NOT_RUN, NO_RECORD, Recorded, execution_of, listed, not_recorded_text
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.execution import EXECUTED_FILE, ChangeExecution, Entered, FunctionRun, Side
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.record import JOB_FILE
from verl_e2e.core.model.related import Role
from verl_e2e.core.triage.silent import AGREEMENT, AGREEMENT_FAIL_BELOW, is_correlation, lost_weights_text

AGREEMENT_NOTE_BELOW = 0.999


def gradients(case: Case) -> Evidence:
    """Gradient norms of actor, and critic where one trains, finite and above zero at every requested step."""
    steps = case.train_steps()
    metrics = [f"{model}/grad_norm" for model in trained_models(case)]
    for step in steps:
        for metric in metrics:
            fault = _gradient_fault(step, metric)
            if fault is not None:
                shown = step.values.get(metric, "absent")
                summary = f"{metric} is {shown} at step {step.step}"
                excerpt = f"step:{step.step} {metric}:{shown}"
                return Evidence(fault, summary, case.log, step.line, excerpt)
    seen = {int(step.step) for step in steps}
    absent = next((step for step in range(1, case.job.steps + 1) if step not in seen), None)
    if absent is not None:
        return Evidence(State.MISSING, f"no gradient norms of step {absent}", case.log)
    last = steps[-1]
    figures = ", ".join(f"{metric} {last.values[metric]:.4g}" for metric in metrics)
    summary = f"finite and above zero at every step; last {figures}"
    excerpt = f"step:{last.step} global_step:{global_step(last):g} {figures}"
    return Evidence(State.MET, summary, case.log, last.line, excerpt)


def _gradient_fault(step: StepMetrics, metric: str) -> State | None:
    value = step.values.get(metric)
    if value is None:
        return State.MISSING
    return None if math.isfinite(value) and value > 0 else State.BROKEN


def rollout_agreement(case: Case) -> Evidence:
    """Trainer and rollout agree: the one cheap proof that import, export and weight sync carry the same weights."""
    step = _worst_agreement(case)
    if step is None:
        summary = "trainer and rollout agreement is not reported"
        return Evidence(State.WAIVED, summary, case.log)
    worst = step.values[AGREEMENT]
    excerpt = f"step:{step.step} {AGREEMENT}:{worst}"
    if not is_correlation(worst):
        summary = f"trainer and rollout correlation is {worst} at step {step.step}, which is not a correlation"
        return Evidence(State.MISSING, summary, case.log, step.line, excerpt)
    bound = _bound(case, step)
    summary = f"trainer and rollout probabilities correlate at {worst:.5f}"
    if worst < bound.fail_below:
        summary += f", below {bound.shown}"
        return Evidence(State.BROKEN, summary, case.log, step.line, excerpt)
    return Evidence(State.MET, summary, case.log, step.line, excerpt)


@dataclass(frozen=True, slots=True)
class _Bound:
    """The bounds of a correlation: below the first it is a fault, below the second a limitation."""

    fail_below: float
    note_below: float
    shown: str


_FIXED = _Bound(AGREEMENT_FAIL_BELOW, AGREEMENT_NOTE_BELOW, str(AGREEMENT_FAIL_BELOW))


def _bound(case: Case, step: StepMetrics) -> _Bound:
    """The healthy band of the probe at the first step, which is what it was measured at; else the fixed bounds."""
    band = band_of(case.record.bands, case.job) if step.step == 1 else None
    if band is None:
        return _FIXED
    return _Bound(band.bound, band.lowest, f"{band.bound:.5f}, the band of {band.count} healthy runs of this probe")


def _worst_agreement(case: Case) -> StepMetrics | None:
    """The step whose correlation is furthest below its bound; a value that is not a correlation is the worst."""
    return min(_reporting(case), key=lambda step: _margin(case, step), default=None)


def _margin(case: Case, step: StepMetrics) -> float:
    value = step.values[AGREEMENT]
    return value - _bound(case, step).fail_below if is_correlation(value) else -math.inf


def agreement_note(case: Case) -> str:
    """A limitation when the correlation is above failure yet below what healthy runs show; else empty."""
    if rollout_agreement(case).state is not State.MET:
        return ""
    found = [(step.values[AGREEMENT], _bound(case, step).note_below) for step in _reporting(case)]
    weak = min((pair for pair in found if pair[0] < pair[1]), default=None)
    if weak is None:
        return ""
    return f"Trainer and rollout agree at {weak[0]:.5f} only (healthy runs: {weak[1]:.6g} and more)."


def _reporting(case: Case) -> tuple[StepMetrics, ...]:
    """The training steps that report the correlation."""
    return tuple(step for step in case.train_steps() if AGREEMENT in step.values)


def adapter(case: Case) -> Evidence:
    """Under LoRA every model's adapter has parameters: an adapter that matched nothing raises nowhere."""
    reports = case.facts.adapters
    empty = next((report for report in reports if report.adapter <= 0), None)
    if empty:
        excerpt = f"Adapter parameters: {empty.adapter} of {empty.total:,}"
        summary = "LoRA matched no module: the adapter has 0 parameters"
        return Evidence(State.BROKEN, summary, case.log, empty.line, excerpt)
    if reports:
        first = reports[0]
        excerpt = f"Adapter parameters: {first.adapter:,} of {first.total:,}"
        return Evidence(State.MET, "the adapter has parameters", case.log, first.line, excerpt)
    if wants_adapter(case):
        return Evidence(State.MISSING, "no adapter report in the log", case.log)
    return Evidence(State.MET, "no adapter was asked for", JOB_FILE)


def weights_kept(case: Case) -> Evidence:
    """No warning of Bridge that tensors were lost on HF import or export."""
    if case.facts.lost_weights:
        first = case.facts.lost_weights[0]
        summary = lost_weights_text(case.facts.lost_weights)
        return Evidence(State.BROKEN, summary, case.log, first.line, first.text)
    if case.needless_warnings:
        first = case.needless_warnings[0]
        summary = (
            "no weight was lost: the one that Bridge did not find is the output layer, which tied embeddings stand for"
        )
        return Evidence(State.MET, summary, case.log, first.line, first.text)
    return Evidence(State.MET, "no warning of lost weights", case.log)


def execution(case: Case) -> ChangeExecution | None:
    """What the run executed of the change; None for a job that is for no change."""
    if not case.job.changed:
        return None
    patched = frozenset(patch.file for patch in case.job.patches if patch.repository == "bridge")
    head = Recorded(case.record.executed, case.job.bridge.commit, patched=patched)
    bases = case.related(Role.MERGE_BASE)
    commit = bases[0].bridge_commit if bases else ""
    why_none = NO_RECORD if bases else BASE_NOT_RUN
    return execution_of(case.job.changed, head, Recorded(case.record.base_executed, commit, why_none, patched))


def change_executed(case: Case) -> Evidence:
    """The criterion: met by one function whose changed code ran, broken where the record shows that none did.

    Code at import runs in every process, so it is enough only where the change touches no function.
    """
    found = execution(case) or ChangeExecution()
    entered = found.entered
    if any(function.entered is Entered.IN_VERL for function in found.telling):
        summary = f"{len(entered)} of {len(found.functions)} changed functions ran: {listed(entered)}"
        return Evidence(State.MET, summary, EXECUTED_FILE, 0, _seen(entered[0]))
    if not found.functions:
        return _nothing_demanded(found)
    asked = found.of_side(Side.HEAD)
    why = found.not_recorded if asked else found.base_not_recorded
    if why:
        summary = not_recorded_text(why, base=not asked)
        return Evidence(State.WAIVED, summary, EXECUTED_FILE)
    summary = f"the run never entered the changed code: {listed(found.telling)}"
    return Evidence(State.BROKEN, summary, EXECUTED_FILE, 0, _unseen(case, found))


def _nothing_demanded(found: ChangeExecution) -> Evidence:
    """A change that asks for no execution, or of which no function is known."""
    if found.unread or found.left_out:
        first = found.unread[0] if found.unread else f"{found.left_out} functions are not listed"
        summary = f"which functions the change touches is not known: {first}"
        return Evidence(State.WAIVED, summary)
    summary = "nothing of the change has to be executed: verl reaches none of it, or no changed line does anything"
    return Evidence(State.MET, summary)


def _seen(function: FunctionRun) -> str:
    """Where and when the first of the entered functions ran."""
    more = function.process_count - len(function.processes)
    who = ", ".join(function.processes) + (f" and {more} more" if more else "")
    when = "" if function.first_s is None else f", first after {function.first_s:.1f} s"
    how = "" if function.symbol else ", at import"
    return f"{function.place} {function.name}: entered by {who}{when}{how}"


def _unseen(case: Case, found: ChangeExecution) -> str:
    """What the record holds instead."""
    executed = case.record.executed
    files = {function.path for function in found.functions}
    count = len(executed.processes) if executed else 0
    others = sum(len(file.functions) for file in executed.files if file.path in files) if executed else 0
    tests = sum(function.entered is Entered.BY_TESTS for function in found.functions)
    by_tests = f", {tests} of the changed ones only by Bridge tests" if tests else ""
    first = found.telling[0]
    around = "none of its changed lines" if first.symbol else "no function that reads it"
    where = f"{around} in {count} processes" if first.processes else f"in none of {count} processes"
    return f"{first.place} {first.name}: {where}; {others} functions of the files ran{by_tests}"
