"""What levels 1 to 5 ask for beyond the basic criteria and the health evidence, each judged by one function."""

from collections.abc import Mapping

from bot.core import wording
from bot.core.case import Case, Judge
from bot.core.evidence import Criterion, Evidence, State
from bot.core.levels import Level
from bot.core.parity import parity, resumed_step
from bot.core.record import JOB_FILE
from bot.core.signal import learning_signal


def resumed(case: Case) -> Evidence:
    """Level 1: a checkpoint of the first phase was written, loaded by the second, which trained on from it."""
    return _not_judged(case, Criterion.RESUMED)


def parallel_sizes(case: Case) -> Evidence:
    """Level 2: the resolved parallel sizes are those of the variant, and some size is not trivial."""
    return _not_judged(case, Criterion.PARALLEL_SIZES)


def fsdp_active(case: Case) -> Evidence:
    """Level 3: the models were wrapped by Megatron-FSDP."""
    return _not_judged(case, Criterion.FSDP_ACTIVE)


def feature_active(case: Case) -> Evidence:
    """Level 4: a fact that a dense run lacks shows that the feature was active."""
    return _not_judged(case, Criterion.FEATURE_ACTIVE)


def _not_judged(case: Case, criterion: Criterion) -> Evidence:
    return Evidence(criterion, State.MISSING, wording.not_judged(case.job.level), JOB_FILE)


OF_LEVEL: Mapping[Level, tuple[Judge, ...]] = {
    Level.SAVE_RESUME: (resumed, resumed_step),
    Level.PARALLELISM: (parallel_sizes, parity),
    Level.MEGATRON_FSDP: (fsdp_active,),
    Level.FEATURE: (feature_active,),
    Level.LEARNING_SIGNAL: (learning_signal,),
}
