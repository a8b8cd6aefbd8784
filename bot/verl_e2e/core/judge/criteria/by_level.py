"""What levels 1 to 5 ask for beyond the basic criteria and the health evidence, each judged by one function."""

from collections.abc import Callable, Mapping

from verl_e2e.core.judge.case import Case, Judge
from verl_e2e.core.judge.criteria.features import feature_active, fsdp_active, parallel_sizes
from verl_e2e.core.judge.criteria.parity import parity, resumed_step
from verl_e2e.core.judge.criteria.resume import resume_stage, resumed
from verl_e2e.core.judge.criteria.signal import learning_signal
from verl_e2e.core.model.evidence import Criterion
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.stages import Stage
from verl_e2e.core.model.wants import SIZES, Axis

OF_LEVEL: Mapping[Level, tuple[Judge, ...]] = {
    Level.SAVE_RESUME: (resumed, resumed_step),
    Level.PARALLELISM: (parallel_sizes, parity),
    Level.MEGATRON_FSDP: (fsdp_active,),
    Level.FEATURE: (feature_active,),
    Level.LEARNING_SIGNAL: (learning_signal,),
}
_SIZES = SIZES - {Axis.STEPS, Axis.SYNCS}


def judges_of(job: Job) -> tuple[Judge, ...]:
    """The functions that judge what a job is there for: those of its level, and of a derived job's own settings."""
    of_level = OF_LEVEL.get(job.level, ())
    sizes = any(axis in _SIZES and value != 1 for axis, value in job.settings.items())
    of_settings = ((parallel_sizes, sizes), (fsdp_active, job.settings.get(Axis.FSDP) is True))
    return (*of_level, *(judge for judge, asked in of_settings if asked and judge not in of_level))


def _fsdp_stage(case: Case) -> Stage:  # noqa: ARG001
    """Whatever else the run shows: the wrapper was chosen while models were wrapped."""
    return Stage.FSDP_WRAP


# The stage at which a finished run is missing the item.
GAP_STAGE: Mapping[Criterion, Stage] = {
    Criterion.RESUMED: Stage.CHECKPOINT_LOAD,
    Criterion.PARALLEL_SIZES: Stage.BRIDGE_PROVIDER,
    Criterion.FSDP_ACTIVE: Stage.FSDP_WRAP,
    Criterion.FEATURE_ACTIVE: Stage.BRIDGE_PROVIDER,
}
LEVEL_STAGE: Mapping[Criterion, Callable[[Case], Stage | None]] = {
    Criterion.RESUMED: resume_stage,
    Criterion.FSDP_ACTIVE: _fsdp_stage,
}
"""The criteria that a run fails by when they are broken, each with the stage that it failed at (None: no Fail).

Sizes and features that are not those asked for make another run of it, which is Blocked.
"""
