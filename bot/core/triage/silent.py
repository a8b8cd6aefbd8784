"""Faults that raise nothing: an adapter without parameters, weights that were dropped, metrics that show a fault."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bot.core.facts import Excerpt, LogFacts
from bot.core.metrics import not_finite
from bot.core.resolved_config import lora_rank
from bot.core.stages import Stage
from bot.core.triage.rules import Rule, Silent

FINITE_METRICS = ("actor/loss", "actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "critic/loss", "critic/grad_norm")
ACTOR_GRADIENT = "actor/grad_norm"
AGREEMENT = "training/rollout_actor_probs_pearson_corr"
# Until five healthy measurements of a probe exist there is no band; our healthy runs gave 0.99924 to 0.99996.
AGREEMENT_FAIL_BELOW = 0.995
# What Bridge prints while it writes a checkpoint, in contrast to a parameter that has no mapping.
_EXPORT = re.compile(r"not written|were yielded but not saved|from generator not found|Missing \d+ tensors for keys")


@dataclass(frozen=True, slots=True)
class SilentFault:
    """The rule of the fault, where it happened, the line that shows it, and the cause in words."""

    rule: Rule
    stage: Stage
    at: Excerpt
    cause: str


def silent_fault(facts: LogFacts, rules: Sequence[Rule]) -> SilentFault | None:
    """The first fault of the table that the facts show."""
    for rule in rules:
        found = _FINDERS[rule.fact](facts) if rule.fact is not None else None
        if found is not None:
            stage, at, cause = found
            return SilentFault(rule, rule.stage or stage, at, cause or rule.cause)
    return None


_Found = tuple[Stage, Excerpt, str] | None


def _adapter_empty(facts: LogFacts) -> _Found:
    empty = next((report for report in facts.adapters if report.adapter == 0), None)
    asked = facts.lora_at is not None or any(lora_rank(config) > 0 for config in facts.configs)
    return None if empty is None or not asked else (Stage.PEFT, Excerpt(empty.line, "Adapter parameters: 0"), "")


def _unmapped(facts: LogFacts) -> _Found:
    at = next((line for line in facts.lost_weights if not _EXPORT.search(line.text)), None)
    return None if at is None else (_import_or_export(facts, at), at, "")


def _not_exported(facts: LogFacts) -> _Found:
    at = next((line for line in facts.lost_weights if _EXPORT.search(line.text)), None)
    return None if at is None else (_import_or_export(facts, at), at, "")


def _import_or_export(facts: LogFacts, at: Excerpt) -> Stage:
    synced = next((mark for mark in facts.stages if mark.stage is Stage.EXPORT_WEIGHT_SYNC), None)
    saved = any(event.at.line < at.line for event in facts.checkpoints)
    return Stage.EXPORT_WEIGHT_SYNC if saved or (synced is not None and synced.at.line < at.line) else Stage.HF_IMPORT


def _metrics(facts: LogFacts) -> _Found:
    for step in facts.steps:
        for name in not_finite(step.values, FINITE_METRICS):
            at = Excerpt(step.line, f"step:{step.step} - {name}:{step.values[name]}")
            return Stage.LEARNING_SIGNAL, at, f"{name} is not finite"
    return None


def _gradient(facts: LogFacts) -> _Found:
    """A run that came to its end and never once had a gradient; one step without may be a step without advantage."""
    steps = [step for step in facts.steps if ACTOR_GRADIENT in step.values]
    if facts.completed_at is None or not steps or any(step.values[ACTOR_GRADIENT] != 0 for step in steps):
        return None
    first = steps[0]
    at = Excerpt(first.line, f"step:{first.step} - {ACTOR_GRADIENT}:{first.values[ACTOR_GRADIENT]}")
    return Stage.LEARNING_SIGNAL, at, ""


def _agreement(facts: LogFacts) -> _Found:
    for step in facts.steps:
        value = step.values.get(AGREEMENT)
        if value is not None and value < AGREEMENT_FAIL_BELOW:
            at = Excerpt(step.line, f"step:{step.step} - {AGREEMENT}:{value}")
            return Stage.EXPORT_WEIGHT_SYNC, at, f"trainer and rollout do not hold the same weights: {value:.5f}"
    return None


_FINDERS: Mapping[Silent, Callable[[LogFacts], _Found]] = {
    Silent.ADAPTER_EMPTY: _adapter_empty,
    Silent.WEIGHTS_UNMAPPED: _unmapped,
    Silent.EXPORT_INCOMPLETE: _not_exported,
    Silent.METRICS_NOT_FINITE: _metrics,
    Silent.GRADIENT_ZERO: _gradient,
    Silent.ROLLOUT_DISAGREES: _agreement,
}
