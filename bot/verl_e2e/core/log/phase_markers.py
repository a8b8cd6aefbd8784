"""The phase machine: which stage a run is in, from the milestones that it prints.

A run goes through its set-up in no strict order (critic before actor, workers side by side, models before the
rollout engine), then syncs weights and trains steps, then ends. So a milestone of the set-up moves the machine freely
until the first weight sync; after that only the driver can begin a new run with one, for a worker that starts
late prints the milestones of the set-up again. What streams print after the end moves nothing.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from verl_e2e.core.log.lines import Line
from verl_e2e.core.model.facts import StageMark
from verl_e2e.core.model.stages import Stage

FIRST = frozenset({Stage.ENVIRONMENT, Stage.RAY})
SET_UP = frozenset(stage for stage in Stage if stage.order <= Stage.OPTIMIZER.order)
STEPPING = frozenset({Stage.TRAIN_STEP, Stage.CHECKPOINT_SAVE, Stage.LEARNING_SIGNAL})


class Move(Enum):
    """What a milestone does: the run goes on to its stage, stays where it is, or a new run begins."""

    ON = auto()
    STAY = auto()
    NEW_RUN = auto()


def move(stood: Stage | None, to: Stage, *, driver: bool) -> Move:
    """What a milestone of stage `to` does to a run that stands in `stood`; `driver` when no worker printed it."""
    if stood is Stage.SHUTDOWN:
        return Move.NEW_RUN if to in FIRST else Move.STAY
    if to in SET_UP and (stood in STEPPING or stood in (Stage.EXPORT_WEIGHT_SYNC, Stage.CHECKPOINT_LOAD)):
        return Move.NEW_RUN if driver and to in FIRST else Move.STAY
    # A weight sync inside a step is part of the step.
    return Move.STAY if stood is Stage.TRAIN_STEP and to is Stage.EXPORT_WEIGHT_SYNC else Move.ON


@dataclass(slots=True)
class PhaseMachine:
    """The present stage of a run, and the first line of each of its stages in the order of entry."""

    stood: Stage | None = None
    timeline: dict[Stage, StageMark] = field(default_factory=dict)

    def enter(self, stage: Stage, line: Line) -> None:
        """Take a milestone of this run; `move` says before whether it begins another one."""
        if move(self.stood, stage, driver=line.driver) is not Move.STAY:
            self.stood = stage
        if stage not in self.timeline:
            self.timeline[stage] = StageMark(stage, line.excerpt())
