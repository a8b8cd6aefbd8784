"""Work inside other work: a save exports weights, and a resume loads them. The outer one is the stage."""

import re

from verl_e2e.core.model.facts import LoggedError
from verl_e2e.core.model.stages import Stage

# What syncs the rollout's weights; an export that none of these called, while a checkpoint was saved, is of the save.
_SYNC = re.compile(
    r":(?:a?sync_?)?update_weights\w*$|:rollout_mode$|:wake_up$|checkpoint_engine/|sharding_manager/|:sync_\w*weights\w*$",
    re.MULTILINE,
)
# What builds a model: an import that one of these called is not a resume.
_BUILD = re.compile(r":init_model$|:_build_\w+$|:__init__$|:initialize$", re.MULTILINE)
_INNER = {
    Stage.CHECKPOINT_SAVE: (frozenset({Stage.EXPORT_WEIGHT_SYNC, Stage.HF_IMPORT}), _SYNC),
    Stage.CHECKPOINT_LOAD: (frozenset({Stage.HF_IMPORT, Stage.PEFT, Stage.OPTIMIZER}), _BUILD),
}


def outer_stage(stage: Stage, error: LoggedError) -> Stage:
    """The stage of an error that happened in `stage`, seen from what the run was doing around it."""
    inner, other = _INNER.get(error.stage, (frozenset(), _SYNC))
    return stage if stage not in inner or other.search("\n".join(error.calls)) else error.stage
