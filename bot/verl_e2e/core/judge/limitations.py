"""What a verdict does not prove, derived from the job, the resolved configuration and the evidence."""

from collections.abc import Iterable

from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.change_executed import execution
from verl_e2e.core.judge.criteria.config import ACTOR
from verl_e2e.core.judge.criteria.health import agreement_note
from verl_e2e.core.judge.criteria.signal import signal_limitations
from verl_e2e.core.judge.criteria.state import state_limitations
from verl_e2e.core.judge.execution_text import aspect_of, execution_limitations
from verl_e2e.core.judge.left_open import Aspect, Limitation
from verl_e2e.core.model.events import LeftRunning, read_data
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.levels import Level
from verl_e2e.core.triage.silent import constant_reward

SIZES = {
    "tensor_model_parallel_size": Aspect.TENSOR,
    "pipeline_model_parallel_size": Aspect.PIPELINE,
    "context_parallel_size": Aspect.CONTEXT,
    "expert_model_parallel_size": Aspect.EXPERT,
}
_EAGER = "actor_rollout_ref.rollout.enforce_eager"
_SHOWN_FILES = 20


def of(case: Case, evidence: tuple[Evidence, ...]) -> tuple[Limitation, ...]:
    """All limitations of a verdict, the missing Bridge checks first, each once."""
    plain = (*_host(case), *_notes(case), *_end(case), *_noise(case))
    rows = [
        *_waived(case, evidence),
        *execution_limitations(execution(case)),
        *(Limitation(text) for text in (*_tests(case), *_trees(case))),
        *_checkpoint(case),
        *_shape(case),
        *(Limitation(text) for text in plain if text),
    ]
    by_text = {row.text: row for row in reversed(rows)}
    return tuple(by_text[text] for text in dict.fromkeys(row.text for row in rows))


def shown_by(case: Case, evidence: tuple[Evidence, ...]) -> tuple[str, ...]:
    """What a job that passed shows, and another job may not show."""
    met = {item.criterion for item in evidence if item.state is State.MET}
    sizes = [] if case.job.level is not Level.PARALLELISM else [size for size in SIZES if _size(case, size) > 1]
    chosen = case.job.checkpoint
    found = (
        (Aspect.BRIDGE_TESTS, Criterion.BRIDGE_TESTS in met),
        (Aspect.PRETRAINED, not chosen.is_random),
        (Aspect.REWARD_MODEL, case.job.reward_model),
        (Aspect.CUDA_GRAPHS, case.config_value(_EAGER) is False),
        *((SIZES[size], True) for size in sizes),
        (Aspect.SAVE_RESUME, Criterion.RESUMED in met),
        (Aspect.LEARNING, Criterion.LEARNING_SIGNAL in met),
    )
    ran = execution(case)
    entered = map(aspect_of, ran.entered) if ran is not None else ()
    return (*(aspect for aspect, shown in found if shown), *entered)


def _size(case: Case, name: str) -> int:
    value = case.config_value(f"{ACTOR}.{name}")
    return value if isinstance(value, int) else 0


def _waived(case: Case, evidence: tuple[Evidence, ...]) -> Iterable[Limitation]:
    """The waived criteria; those on metrics only where a step was trained."""
    waived = [item for item in evidence if item.state is State.WAIVED]
    seen = [item for item in waived if item.criterion is Criterion.BRIDGE_TESTS or case.train_steps()]
    for item in sorted(seen, key=lambda item: item.criterion is not Criterion.BRIDGE_TESTS):
        tests = (Aspect.BRIDGE_TESTS,) if item.criterion is Criterion.BRIDGE_TESTS else ()
        yield Limitation(_sentence(f"{item.summary[:1].upper()}{item.summary[1:]}"), tests)


def _tests(case: Case) -> Iterable[str]:
    for item in case.job.site.deselected_tests:
        yield _sentence(f"Focused Bridge test {item.test} is left out on site {case.job.site.name}: {item.reason}")


def _trees(case: Case) -> Iterable[str]:
    environment = case.record.environment
    for state in environment.repositories if environment else ():
        if state.dirty:
            files = ", ".join(state.dirty[:_SHOWN_FILES])
            more = f" and {len(state.dirty) - _SHOWN_FILES} more" if len(state.dirty) > _SHOWN_FILES else ""
            yield f"{state.name} was tested with uncommitted changes: {files}{more}."


def _checkpoint(case: Case) -> Iterable[Limitation]:
    chosen = case.job.checkpoint
    if chosen.is_random:
        text = "Random weights: construction and training mechanics only, no compatibility of pretrained weights."
        yield Limitation(text, (Aspect.PRETRAINED,))
    if not case.job.reward_model:
        yield Limitation("Reward model disabled: reward-model serving is not exercised.", (Aspect.REWARD_MODEL,))


def _shape(case: Case) -> Iterable[Limitation]:
    if not case.facts.configs:
        return
    if case.config_value(_EAGER) is True:
        yield Limitation("enforce_eager is on: vLLM's CUDA graph capture is not exercised.", (Aspect.CUDA_GRAPHS,))
    if all(case.config_value(f"{ACTOR}.{size}") == 1 for size in SIZES):
        text = "All parallel sizes are 1: nothing is shown about tensor, pipeline, context or expert parallelism."
        yield Limitation(text, tuple(SIZES.values()))
    if case.config_value(f"{ACTOR}.expert_model_parallel_size") not in (None, 1):
        yield Limitation(
            "No line of a log names expert ranks, so the expert sizes are those of the run's own configuration."
        )
    if case.job.level is Level.MEGATRON_FSDP and case.job.gpu_count == 1:
        yield Limitation("Megatron-FSDP ran on one GPU: wrapped, but nothing was sharded.")
    if case.job.level is not Level.LEARNING_SIGNAL:
        steps = "One training step" if case.job.steps == 1 else f"{case.job.steps} training steps"
        yield Limitation(f"{steps}: no learning signal and no convergence is claimed.", (Aspect.LEARNING,))
    if case.job.level is not Level.SAVE_RESUME:
        yield Limitation("Save and resume are not exercised.", (Aspect.SAVE_RESUME,))


def _host(case: Case) -> Iterable[str]:
    yield from case.job.site.limitations
    for patch in case.job.patches:
        yield _sentence(f"Declared patch {patch.name} in {patch.repository} ({patch.file}): {patch.reason}")
    environment = case.record.environment
    if environment and environment.hand_installed:
        yield f"Installed by hand: {', '.join(environment.hand_installed)}."


def _notes(case: Case) -> Iterable[str]:
    environment = case.record.environment
    for finding in environment.findings if environment else ():
        if not finding.ok and not finding.blocking:
            yield _sentence(finding.summary)
    yield agreement_note(case)
    if case.job.level is not Level.LEARNING_SIGNAL and (constant := constant_reward(case.facts)):
        yield _sentence(f"The reward never moves: {constant[2]}")
    yield from map(_sentence, state_limitations(case))
    if case.job.level is Level.LEARNING_SIGNAL:
        yield from map(_sentence, signal_limitations(case))


def _end(case: Case) -> Iterable[str]:
    for event in case.events("left_running"):
        left = read_data(event, LeftRunning)
        count = 1 if left is None else len(left.processes)
        if count:
            yield f"{count} process(es) of the run could not be ended and may hold its GPUs."
    if case.started:
        yield from (f"Missing from the folder: {item}." for item in case.record.missing)


def _sentence(text: str) -> str:
    return f"{text.rstrip(' .')}."


def _noise(case: Case) -> Iterable[str]:
    for noise in case.triage.residual_noise:
        times = f", {noise.count} times" if noise.count > 1 else ""
        yield f"Residual log noise: {noise.name} (line {noise.at.line}{times})."
