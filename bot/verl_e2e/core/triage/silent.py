"""Faults that raise nothing: an adapter without parameters, weights that were dropped, metrics that show a fault.

What a fault is comes from here and from `verl_e2e.core.triage.hollow`; whose it is says its row in the table.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from verl_e2e.core.log.metrics import not_finite
from verl_e2e.core.log.resolved_config import lora_rank
from verl_e2e.core.model.facts import Excerpt, LogFacts
from verl_e2e.core.model.stages import Stage
from verl_e2e.core.triage import hollow
from verl_e2e.core.triage.asked import Contradiction, contradiction, other_checkout
from verl_e2e.core.triage.hollow import AGREEMENT, Found
from verl_e2e.core.triage.rules import Rule, Silent

# A band needs five healthy measurements of a workload; our healthy runs gave 0.99924 to 0.99996.
AGREEMENT_FAIL_BELOW = 0.995
# What Bridge prints while it writes a checkpoint, in contrast to a parameter that has no mapping.
_EXPORT = re.compile(r"not written|were yielded but not saved|from generator not found|Missing \d+ tensors for keys")

# The lines of `build_conversion_tasks`, with what each means for the weight that it names.
_LOSSES = {
    r"No mapping found for (?:megatron_param|global_name): (\S{1,120})": "Bridge has no mapping for",
    r"Can't find (\S{1,120}) in hf_keys": "the checkpoint does not hold what Bridge maps to",
}


@dataclass(frozen=True, slots=True)
class SilentFault:
    """The rule of the fault, where it happened, the line that shows it, and the cause in words."""

    rule: Rule
    stage: Stage
    at: Excerpt
    cause: str


# Read from one step each: what is not finite there is not finite in the steps after it, under other names too.
_OF_A_STEP = frozenset({Silent.METRICS_NOT_FINITE, Silent.AGREEMENT_UNKNOWN})


def silent_fault(facts: LogFacts, rules: Sequence[Rule]) -> SilentFault | None:
    """The first fault of the table that the facts show; of those read from one step, that of the earliest step."""
    found = (fault for rule in rules if (fault := _found(rule, facts)) is not None)
    first = next(found, None)
    if first is None or first.rule.fact not in _OF_A_STEP:
        return first
    others = (fault for fault in found if fault.rule.fact in _OF_A_STEP)
    return min((first, *others), key=lambda fault: fault.at.line)


def _found(rule: Rule, facts: LogFacts) -> SilentFault | None:
    found = _FINDERS[rule.fact](facts) if rule.fact is not None else None
    if found is None:
        return None
    stage, at, cause = found
    return SilentFault(rule, rule.stage or stage, at, cause or rule.cause)


def _adapter_empty(facts: LogFacts) -> Found:
    empty = next((report for report in facts.adapters if report.adapter == 0), None)
    asked = facts.lora_at is not None or any(lora_rank(config) > 0 for config in facts.configs)
    return None if empty is None or not asked else (Stage.PEFT, Excerpt(empty.line, "Adapter parameters: 0"), "")


def _unmapped(facts: LogFacts) -> Found:
    at = next((line for line in facts.lost_weights if not _EXPORT.search(line.text)), None)
    return None if at is None else (_import_or_export(facts, at), at, lost_weights_text(facts.lost_weights))


def lost_weights_text(lost: Sequence[Excerpt]) -> str:
    """What Bridge says that it lost, by the first line about it."""
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    for pattern, text in _LOSSES.items():
        found = re.search(pattern, lost[0].text)
        if found:
            return f"{text} {found[1]}{more}"
    return f"{len(lost)} warning(s) of lost weights"


def _not_exported(facts: LogFacts) -> Found:
    at = next((line for line in facts.lost_weights if _EXPORT.search(line.text)), None)
    return None if at is None else (_import_or_export(facts, at), at, "")


def _import_or_export(facts: LogFacts, at: Excerpt) -> Stage:
    synced = next((mark for mark in facts.stages if mark.stage is Stage.EXPORT_WEIGHT_SYNC), None)
    saved = any(event.at.line < at.line for event in facts.checkpoints)
    return Stage.EXPORT_WEIGHT_SYNC if saved or (synced is not None and synced.at.line < at.line) else Stage.HF_IMPORT


def _asked(found: Contradiction | None) -> Found:
    return None if found is None else (found.stage, found.at, found.cause)


def _refused(facts: LogFacts) -> Found:
    at = next(iter(facts.refused_weights), None)
    return None if at is None else (Stage.EXPORT_WEIGHT_SYNC, at, "")


def _metrics(facts: LogFacts) -> Found:
    """A watched metric that is not finite, in any step or validation."""
    for step in hollow.every_step(facts):
        for name in not_finite(step.values):
            return Stage.LEARNING_SIGNAL, hollow.shown(step, name), f"{name} is not finite"
    return None


def _agreement(facts: LogFacts) -> Found:
    for step in hollow.trained(facts):
        value = step.values.get(AGREEMENT)
        if value is not None and not value >= AGREEMENT_FAIL_BELOW:
            cause = f"trainer and rollout do not hold the same weights: {value:.5f}"
            return Stage.EXPORT_WEIGHT_SYNC, hollow.shown(step, AGREEMENT), cause
    return None


def _completed(find: Callable[[LogFacts], Found]) -> Callable[[LogFacts], Found]:
    """The same check for runs that came to their end: of others nothing follows from what is not there."""
    return lambda facts: None if facts.completed_at is None else find(facts)


_FINDERS: Mapping[Silent, Callable[[LogFacts], Found]] = {
    Silent.OTHER_CHECKOUT: lambda facts: _asked(other_checkout(facts)),
    Silent.NOT_AS_ASKED: lambda facts: _asked(contradiction(facts)),
    Silent.ADAPTER_EMPTY: _adapter_empty,
    Silent.WEIGHTS_UNMAPPED: _unmapped,
    Silent.EXPORT_INCOMPLETE: _not_exported,
    Silent.WEIGHTS_REFUSED: _refused,
    Silent.AGREEMENT_UNKNOWN: hollow.agreement_unknown,
    Silent.METRICS_NOT_FINITE: _metrics,
    Silent.ROLLOUT_DISAGREES: _agreement,
    Silent.ROLLOUT_FROM_FILE: _completed(hollow.rollout_from_file),
    Silent.NO_SAMPLES: _completed(hollow.no_samples),
    Silent.ACTOR_NOT_UPDATED: _completed(hollow.not_updated),
    Silent.ADVANTAGE_ZERO: _completed(hollow.no_advantage),
    Silent.GRADIENT_ZERO: _completed(hollow.no_gradient),
    Silent.RATE_ZERO: _completed(hollow.no_rate),
    Silent.REWARD_CONSTANT: _completed(hollow.constant_reward),
}
