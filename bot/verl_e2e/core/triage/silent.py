"""Faults that raise nothing: an adapter without parameters, weights that were dropped, metrics that show a fault.

Among them are runs that came to their end and prove nothing: no samples, no update, nothing to learn from. Their checks
read the metrics of the training steps; a metric that is not printed says nothing. A single odd step of many proves
nothing either way: what is asked for is that no step shows the thing. Whose a fault is says its row in the table.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from verl_e2e.core.log.literals import ROLLOUT_FROM_FILE
from verl_e2e.core.log.printed import lora_rank, not_finite
from verl_e2e.core.model.facts import Excerpt, LogFacts, StepMetrics
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage.asked import Contradiction, contradiction, other_checkout
from verl_e2e.core.triage.rules import Rule, Silent

Found = tuple[Stage, Excerpt, str] | None

AGREEMENT = "training/rollout_actor_probs_pearson_corr"
# A correlation of two equal vectors may exceed one by rounding, never by more.
ROUNDING = 1e-6
# From so many steps on a reward that never moves is not an accident; a random model may earn nothing at first.
CONSTANT_FROM = 3
# A warm-up begins at a learning rate of zero.
NO_RATE_FROM = 2
GRADIENTS = ("actor/grad_norm", "critic/grad_norm", "train/grad_norm")
_REWARDS = ("critic/score/mean", "critic/rewards/mean")
_RATES = ("actor/lr", "train/lr")
_ADVANTAGES = ("critic/advantages/max", "critic/advantages/min")
_GENERATED = ("timing_s/gen", "response_length/mean", "critic/score/mean")
# What only an update of the actor prints; the entropy comes from the log-probabilities before it.
_UPDATED = ("actor/pg_loss", "actor/loss", "actor/grad_norm", "actor/pg_clipfrac", "actor/ppo_kl", "actor/kl_loss")
# What a run shows that set out to train, in contrast to one that only generates.
_TRAINS = ("critic/grad_norm", "critic/vf_loss", "timing_s/update_critic", "timing_s/old_log_prob", "actor/entropy")
_TRAINERS = frozenset({Stage.PEFT, Stage.DDP_WRAP, Stage.FSDP_WRAP, Stage.OPTIMIZER})
# Where every step shows one of these, nothing that was generated reached the loss.
_NO_SAMPLES = (
    ("response_length/max", 0.0, "every response is empty"),
    ("response/aborted_ratio", 1.0, "every response was aborted"),
    ("perf/total_num_tokens", 0.0, "no tokens were trained on"),
    ("global_seqlen/max", 0.0, "no tokens were trained on"),
    ("rollout_corr/rollout_rs_masked_fraction", 1.0, "every token was rejected before the loss"),
    ("rollout_corr/rollout_rs_seq_masked_fraction", 1.0, "every sequence was rejected before the loss"),
)


def every_step(facts: LogFacts) -> tuple[StepMetrics, ...]:
    """The metric lines with the last one, which may lie beyond those that are kept."""
    last = facts.last_step
    if last is None or any(step.line == last.line for step in facts.steps[-1:]):
        return facts.steps
    return (*facts.steps, last)


def trained(facts: LogFacts) -> tuple[StepMetrics, ...]:
    """The metric lines of training steps; step 0 is the validation before training."""
    return tuple(step for step in every_step(facts) if step.step > 0)


def no_samples(facts: LogFacts) -> Found:
    """No response of any step reached the loss."""
    for metric, value, sentence in _NO_SAMPLES:
        steps = _with(facts, metric)
        if steps and all(step.values[metric] == value for step in steps):
            return Stage.TRAIN_STEP, shown(steps[0], metric), f"{sentence}, so no step shows anything"
    return None


def rollout_from_file(facts: LogFacts) -> Found:
    """The rollouts were read from a file, and the engine generated nothing."""
    sign = next((sign for sign in facts.signs if sign.name == ROLLOUT_FROM_FILE), None)
    return None if sign is None else (Stage.ROLLOUT_ENGINE, sign.at, "")


def not_updated(facts: LogFacts) -> Found:
    """Steps that generated responses and never updated the actor, as under a critic warm-up longer than the run."""
    steps = [step for step in trained(facts) if any(name in step.values for name in _GENERATED)]
    if not steps or any(name in step.values for step in steps for name in _UPDATED):
        return None
    built = any(mark.stage in _TRAINERS for mark in facts.stages)
    if not built and not any(name in step.values for step in steps for name in _TRAINS):
        return None
    metric = next(name for name in _GENERATED if name in steps[0].values)
    return Stage.TRAIN_STEP, shown(steps[0], metric), ""


def no_advantage(facts: LogFacts) -> Found:
    """Every advantage of every step is exactly zero: whatever was generated, the policy had nothing to learn."""
    steps = [step for step in trained(facts) if all(name in step.values for name in _ADVANTAGES)]
    if not steps or any(step.values[name] != 0 for step in steps for name in _ADVANTAGES):
        return None
    return Stage.LEARNING_SIGNAL, shown(steps[0], _ADVANTAGES[0]), ""


def constant_reward(facts: LogFacts) -> Found:
    """The mean reward is the very same number at every one of several steps."""
    for metric in _REWARDS:
        steps = _with(facts, metric)
        values = {step.values[metric] for step in steps}
        if len(steps) >= CONSTANT_FROM and len(values) == 1 and math.isfinite(steps[0].values[metric]):
            cause = f"{metric} is exactly {steps[0].values[metric]:g} at every one of {len(steps)} steps"
            return Stage.LEARNING_SIGNAL, shown(steps[-1], metric), cause
    return None


def no_rate(facts: LogFacts) -> Found:
    """The learning rate is zero at every one of several steps: the updates moved nothing."""
    for metric in _RATES:
        steps = _with(facts, metric)
        if len(steps) >= NO_RATE_FROM and all(step.values[metric] == 0 for step in steps):
            return Stage.LEARNING_SIGNAL, shown(steps[0], metric), ""
    return None


def no_gradient(facts: LogFacts) -> Found:
    """A gradient norm that is exactly zero at every step."""
    for metric in GRADIENTS:
        steps = _with(facts, metric)
        if steps and all(step.values[metric] == 0 for step in steps):
            return Stage.LEARNING_SIGNAL, shown(steps[0], metric), f"{metric} is exactly zero at every step"
    return None


def agreement_unknown(facts: LogFacts) -> Found:
    """The correlation of trainer and rollout is not a correlation: NaN, infinite, or beyond one."""
    for step in _with(facts, AGREEMENT):
        value = step.values[AGREEMENT]
        if not is_correlation(value):
            cause = f"the correlation of trainer and rollout is {value}, which is not a correlation"
            return Stage.EXPORT_WEIGHT_SYNC, shown(step, AGREEMENT), cause
    return None


def is_correlation(value: float) -> bool:
    """Whether a number can be a correlation; NaN cannot."""
    return abs(value) <= 1 + ROUNDING


def shown(step: StepMetrics, metric: str) -> Excerpt:
    """A metric of a step as evidence."""
    return Excerpt(step.line, f"step:{step.step} - {metric}:{step.values[metric]}")


def _with(facts: LogFacts, metric: str) -> Sequence[StepMetrics]:
    return [step for step in trained(facts) if metric in step.values]


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
    for step in every_step(facts):
        for name in not_finite(step.values):
            return Stage.LEARNING_SIGNAL, shown(step, name), f"{name} is not finite"
    return None


def _agreement(facts: LogFacts) -> Found:
    for step in trained(facts):
        value = step.values.get(AGREEMENT)
        if value is not None and not value >= AGREEMENT_FAIL_BELOW:
            cause = f"trainer and rollout do not hold the same weights: {value:.5f}"
            return Stage.EXPORT_WEIGHT_SYNC, shown(step, AGREEMENT), cause
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
    Silent.AGREEMENT_UNKNOWN: agreement_unknown,
    Silent.METRICS_NOT_FINITE: _metrics,
    Silent.ROLLOUT_DISAGREES: _agreement,
    Silent.ROLLOUT_FROM_FILE: _completed(rollout_from_file),
    Silent.NO_SAMPLES: _completed(no_samples),
    Silent.ACTOR_NOT_UPDATED: _completed(not_updated),
    Silent.ADVANTAGE_ZERO: _completed(no_advantage),
    Silent.GRADIENT_ZERO: _completed(no_gradient),
    Silent.RATE_ZERO: _completed(no_rate),
    Silent.REWARD_CONSTANT: _completed(constant_reward),
}
