"""Health evidence: what a green run can hide, judged from the metrics and warnings that it prints anyway."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from verl_e2e.core.compare.bands import band_of
from verl_e2e.core.judge.case import Case, Judge
from verl_e2e.core.judge.criteria.config import LORA_RANK
from verl_e2e.core.judge.criteria.every_level import global_step
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.record import JOB_FILE
from verl_e2e.core.model.stages import Stage
from verl_e2e.core.triage.silent import AGREEMENT, AGREEMENT_FAIL_BELOW, is_correlation, lost_weights_text

AGREEMENT_NOTE_BELOW = 0.999
_GRADIENTS = ("actor/grad_norm", "critic/grad_norm")


def gradients(case: Case) -> Evidence:
    """Gradient norms of actor, and critic where one trains, finite and above zero at every requested step."""
    steps = case.train_steps()
    metrics = _trained(case, steps)
    for step in steps:
        for metric in metrics:
            fault = _gradient_fault(step, metric)
            if fault is not None:
                shown = step.values.get(metric, "absent")
                summary = f"{metric} is {shown} at step {step.step}"
                excerpt = f"step:{step.step} {metric}:{shown}"
                return Evidence(Criterion.GRADIENTS, fault, summary, case.log, step.line, excerpt)
    seen = {int(step.step) for step in steps}
    absent = next((step for step in range(1, case.job.steps + 1) if step not in seen), None)
    if absent is not None:
        return Evidence(Criterion.GRADIENTS, State.MISSING, f"no gradient norms of step {absent}", case.log)
    last = steps[-1]
    figures = ", ".join(f"{metric} {last.values[metric]:.4g}" for metric in metrics)
    summary = f"finite and above zero at every step; last {figures}"
    excerpt = f"step:{last.step} global_step:{global_step(last):g} {figures}"
    return Evidence(Criterion.GRADIENTS, State.MET, summary, case.log, last.line, excerpt)


def _trained(case: Case, steps: Iterable[StepMetrics]) -> tuple[str, ...]:
    """The actor always trains; the critic under GAE, or when it says that it did."""
    text = any(_GRADIENTS[1] in step.values for step in steps)
    return _GRADIENTS if text or case.config_value("algorithm.adv_estimator") == "gae" else _GRADIENTS[:1]


def trained_models(case: Case) -> tuple[str, ...]:
    """The models that train and are saved: the actor, and the critic where there is one."""
    return ("actor", "critic") if len(_trained(case, case.train_steps())) > 1 else ("actor",)


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
        return Evidence(Criterion.ROLLOUT_AGREEMENT, State.WAIVED, summary, case.log)
    worst = step.values[AGREEMENT]
    excerpt = f"step:{step.step} {AGREEMENT}:{worst}"
    if not is_correlation(worst):
        summary = f"trainer and rollout correlation is {worst} at step {step.step}, which is not a correlation"
        return Evidence(Criterion.ROLLOUT_AGREEMENT, State.MISSING, summary, case.log, step.line, excerpt)
    bound = _bound(case, step)
    summary = f"trainer and rollout probabilities correlate at {worst:.5f}"
    if worst < bound.fail_below:
        summary += f", below {bound.shown}"
        return Evidence(Criterion.ROLLOUT_AGREEMENT, State.BROKEN, summary, case.log, step.line, excerpt)
    return Evidence(Criterion.ROLLOUT_AGREEMENT, State.MET, summary, case.log, step.line, excerpt)


def disagreement(found: Evidence, state: Iterable[Evidence]) -> Evidence:
    """The evidence of `rollout_agreement` with what the fingerprints say of the weights, where the two disagree."""
    if found.state is not State.BROKEN:
        return found
    met = {item.criterion for item in state if item.state is State.MET}
    text = "they do not hold the same weights, or compute something else with them"
    if Criterion.ROLLOUT_WEIGHTS in met:
        text = "what was compared arrived as it was exported, so the export or what the two compute is wrong"
    if {Criterion.ROLLOUT_WEIGHTS, Criterion.IMPORTED_WEIGHTS} <= met:
        text = "the weights that were compared are the same in both, so the rest or what is computed with them differs"
    return replace(found, summary=f"{found.summary}: {text}")


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
        return Evidence(Criterion.ADAPTER, State.BROKEN, summary, case.log, empty.line, excerpt)
    if reports:
        first = reports[0]
        excerpt = f"Adapter parameters: {first.adapter:,} of {first.total:,}"
        return Evidence(Criterion.ADAPTER, State.MET, "the adapter has parameters", case.log, first.line, excerpt)
    if wants_adapter(case):
        return Evidence(Criterion.ADAPTER, State.MISSING, "no adapter report in the log", case.log)
    return Evidence(Criterion.ADAPTER, State.MET, "no adapter was asked for", JOB_FILE)


def wants_adapter(case: Case) -> bool:
    """Whether job, run or log asked for an adapter of rank above zero."""
    rank = case.config_value(LORA_RANK)
    asked = case.wrapper.get("LORA_RANK", "0") != "0"
    return asked or case.facts.lora_at is not None or rank not in (None, 0)


def weights_kept(case: Case) -> Evidence:
    """No warning of Bridge that tensors were lost on HF import or export."""
    if case.facts.lost_weights:
        first = case.facts.lost_weights[0]
        summary = lost_weights_text(case.facts.lost_weights)
        return Evidence(Criterion.WEIGHTS_KEPT, State.BROKEN, summary, case.log, first.line, first.text)
    if case.needless_warnings:
        first = case.needless_warnings[0]
        summary = (
            "no weight was lost: the one that Bridge did not find is the output layer, which tied embeddings stand for"
        )
        return Evidence(Criterion.WEIGHTS_KEPT, State.MET, summary, case.log, first.line, first.text)
    return Evidence(Criterion.WEIGHTS_KEPT, State.MET, "no warning of lost weights", case.log)


# The stage that a broken or missing health fact belongs to, and all criteria of health.
HEALTH_STAGE = {
    Criterion.ADAPTER: Stage.PEFT,
    Criterion.WEIGHTS_KEPT: Stage.HF_IMPORT,
    Criterion.ROLLOUT_AGREEMENT: Stage.EXPORT_WEIGHT_SYNC,
    Criterion.GRADIENTS: Stage.TRAIN_STEP,
}
HEALTH: tuple[Judge, ...] = (adapter, weights_kept, gradients, rollout_agreement)
