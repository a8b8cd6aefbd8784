"""What a verdict does not prove, derived from the job, the resolved configuration and the evidence."""

from collections.abc import Iterable

from bot.core.criteria import Case
from bot.core.evidence import Criterion, Evidence, State
from bot.core.health import agreement_remark, config_value
from bot.core.levels import Level

SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
ACTOR = "actor_rollout_ref.actor.megatron"


def of(case: Case, evidence: tuple[Evidence, ...]) -> tuple[str, ...]:
    """All limitations of a verdict, the missing Bridge checks first, each once."""
    rows = [*_bridge_checks(evidence), *_checkpoint(case), *_shape(case), *_host(case), *_remarks(case), *_noise(case)]
    return tuple(dict.fromkeys(row for row in rows if row))


def _bridge_checks(evidence: tuple[Evidence, ...]) -> Iterable[str]:
    for item in evidence:
        if item.criterion is Criterion.BRIDGE_TESTS and item.state is State.WAIVED:
            yield "Bridge checks not run."


def _checkpoint(case: Case) -> Iterable[str]:
    chosen = case.job.checkpoint
    if chosen.dummy_config or chosen.random_weights:
        yield "Random weights: construction and training mechanics only, no compatibility of pretrained weights."
    if not case.job.reward_model:
        yield "Reward model disabled: reward-model serving is not exercised."


def _shape(case: Case) -> Iterable[str]:
    if config_value(case.facts, "actor_rollout_ref.rollout.enforce_eager") is True:
        yield "enforce_eager is on: vLLM's CUDA graph capture is not exercised."
    sizes = [config_value(case.facts, f"{ACTOR}.{size}") for size in SIZES]
    if case.facts.configs and all(size == 1 for size in sizes):
        yield "All parallel sizes are 1: nothing is shown about tensor, pipeline, context or expert parallelism."
    if case.job.level is not Level.LEARNING_SIGNAL:
        yield f"{case.job.steps} training step(s): no learning signal is claimed."
    if case.job.level is not Level.SAVE_RESUME:
        yield "Save and resume are not exercised."


def _host(case: Case) -> Iterable[str]:
    yield from case.job.site.limitations
    for patch in case.job.patches:
        yield f"Declared patch {patch.name} in {patch.repository} ({patch.file}): {patch.reason}"
    environment = case.record.environment
    if environment and environment.hand_installed:
        yield f"Installed by hand: {', '.join(environment.hand_installed)}."


def _remarks(case: Case) -> Iterable[str]:
    environment = case.record.environment
    for finding in environment.findings if environment else ():
        if not finding.ok and not finding.blocking:
            yield finding.summary
    yield agreement_remark(case.facts)


def _noise(case: Case) -> Iterable[str]:
    for noise in case.triage.residual_noise:
        times = f", {noise.count} times" if noise.count > 1 else ""
        yield f"Residual log noise: {noise.name} (line {noise.at.line}{times})."
