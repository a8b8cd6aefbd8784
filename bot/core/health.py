"""Health evidence: what a green run can hide, judged from the metrics and warnings that it prints anyway."""

import math
from collections.abc import Iterable, Mapping

from bot.core.criteria import Case, Judge, lookup
from bot.core.evidence import Criterion, Evidence, State
from bot.core.facts import LogFacts, StepMetrics
from bot.core.record import LOG_FILE

AGREEMENT_METRIC = "training/rollout_actor_probs_pearson_corr"
# Until five healthy measurements of a probe exist there is no band; our healthy runs gave 0.99957 to 0.99996.
AGREEMENT_FAIL_BELOW = 0.995
AGREEMENT_REMARK_BELOW = 0.999


def gradients(case: Case) -> Evidence:
    """Gradient norms of actor, and critic where one trains, finite and above zero at every step."""
    steps = case.facts.steps
    if not steps:
        return Evidence(Criterion.GRADIENTS, State.MISSING, "no step metrics", LOG_FILE)
    for metric in _gradient_metrics(case):
        for step in steps:
            value = step.values.get(metric)
            if value is None:
                summary = f"{metric} is absent at step {step.step}"
                return Evidence(Criterion.GRADIENTS, State.MISSING, summary, LOG_FILE, step.line)
            if not math.isfinite(value) or value <= 0:
                summary = f"{metric} is {value} at step {step.step}"
                excerpt = f"step:{step.step} {metric}:{value}"
                return Evidence(Criterion.GRADIENTS, State.BROKEN, summary, LOG_FILE, step.line, excerpt)
    last = steps[-1]
    figures = ", ".join(f"{metric} {last.values[metric]:.4g}" for metric in _gradient_metrics(case))
    summary = f"finite and above zero at every step; last {figures}"
    return Evidence(Criterion.GRADIENTS, State.MET, summary, LOG_FILE, last.line, figures)


def _gradient_metrics(case: Case) -> tuple[str, ...]:
    critic = config_value(case.facts, "algorithm.adv_estimator") == "gae"
    return ("actor/grad_norm", "critic/grad_norm") if critic else ("actor/grad_norm",)


def rollout_agreement(case: Case) -> Evidence:
    """Trainer and rollout agree: the one cheap proof that import, export and weight sync carry the same weights."""
    found = [(step.line, step.step, step.values[AGREEMENT_METRIC]) for step in _with(case.facts, AGREEMENT_METRIC)]
    if not found:
        return Evidence(
            Criterion.ROLLOUT_AGREEMENT, State.WAIVED, "trainer and rollout agreement not reported", LOG_FILE
        )
    line, step, worst = min(found, key=lambda row: -math.inf if math.isnan(row[2]) else row[2])
    excerpt = f"step:{step} {AGREEMENT_METRIC}:{worst}"
    if math.isnan(worst):
        summary = f"trainer and rollout correlation is not a number at step {step}"
        return Evidence(Criterion.ROLLOUT_AGREEMENT, State.MISSING, summary, LOG_FILE, line, excerpt)
    broken = worst < AGREEMENT_FAIL_BELOW
    summary = f"trainer and rollout probabilities correlate at {worst:.5f}" + (
        f", below {AGREEMENT_FAIL_BELOW}: they do not hold the same weights" if broken else ""
    )
    return Evidence(
        Criterion.ROLLOUT_AGREEMENT, State.BROKEN if broken else State.MET, summary, LOG_FILE, line, excerpt
    )


def agreement_remark(facts: LogFacts) -> str:
    """A limitation when the correlation is above failure yet below what healthy runs show; else empty."""
    worst = min((step.values[AGREEMENT_METRIC] for step in _with(facts, AGREEMENT_METRIC)), default=math.nan)
    if AGREEMENT_FAIL_BELOW <= worst < AGREEMENT_REMARK_BELOW:
        return f"Trainer and rollout agree at {worst:.5f} only (healthy runs: {AGREEMENT_REMARK_BELOW} and more)."
    return ""


def _with(facts: LogFacts, metric: str) -> Iterable[StepMetrics]:
    return (step for step in facts.steps if metric in step.values)


def adapter(case: Case) -> Evidence:
    """Under LoRA every model's adapter has parameters: an adapter that matched nothing raises nowhere."""
    if case.job.wrapper.get("LORA_RANK", "0") == "0":
        return Evidence(Criterion.ADAPTER, State.MET, "no adapter was asked for", "job.json")
    if not case.facts.adapters:
        return Evidence(Criterion.ADAPTER, State.MISSING, "no adapter report in the log", LOG_FILE)
    empty = next((report for report in case.facts.adapters if report.adapter == 0), None)
    if empty:
        excerpt = f"Adapter parameters: 0 of {empty.total:,}"
        summary = "LoRA matched no module: the adapter has 0 parameters"
        return Evidence(Criterion.ADAPTER, State.BROKEN, summary, LOG_FILE, empty.line, excerpt)
    first = case.facts.adapters[0]
    excerpt = f"Adapter parameters: {first.adapter:,} of {first.total:,}"
    return Evidence(Criterion.ADAPTER, State.MET, "the adapter has parameters", LOG_FILE, first.line, excerpt)


def weights_kept(case: Case) -> Evidence:
    """No warning of Bridge that tensors were lost on HF import or export."""
    if case.facts.lost_weights:
        first = case.facts.lost_weights[0]
        summary = f"{len(case.facts.lost_weights)} warnings of lost weights"
        return Evidence(Criterion.WEIGHTS_KEPT, State.BROKEN, summary, LOG_FILE, first.line, first.text)
    return Evidence(Criterion.WEIGHTS_KEPT, State.MET, "no warning of lost weights", LOG_FILE)


def config_value(facts: LogFacts, dotted: str) -> object:
    """A value of the resolved configuration, None when there is none."""
    for config in facts.configs:
        if config.values is not None:
            found: object = lookup(config.values, dotted)
            return found if isinstance(found, bool | int | float | str | Mapping | list) else None
    return None


HEALTH: tuple[Judge, ...] = (adapter, weights_kept, gradients, rollout_agreement)
