"""A job that a change needs, before it has a name and a model: its settings, and the level that they make it one of."""

from dataclasses import dataclass

from verl_e2e.core.model.conflicts import Conflict
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import DEFAULTS
from verl_e2e.core.model.space import Point
from verl_e2e.core.model.space_exclusions import merges_experts
from verl_e2e.core.model.wants import SIZES, Axis, Value, Want

_PARALLEL = SIZES - {Axis.STEPS, Axis.SYNCS}


@dataclass(frozen=True, slots=True)
class Draft:
    """The settings of one job."""

    point: Point

    def joined(self, want: Want) -> "Draft | str":
        """The draft that gives what the want asks for as well, or why there is none, a clause."""
        found = self.point.joined(want)
        return found.reason if isinstance(found, Conflict) else Draft(found)

    def holds(self, want: Want) -> bool:
        """Whether a run with these settings, open ones at their defaults, gives what is wanted but the model."""
        return all(
            self.point.size(axis) >= _number(value) if axis in SIZES else self.point[axis] == value
            for axis, value in want.axes.items()
        )

    @property
    def differing(self) -> dict[Axis, Value]:
        """The settings that differ from those of level 0, without what every job on a model with experts has."""
        settings, merged = self.point.settings, merges_experts(self.point.settings, self.point.model.features)
        differing = {axis: value for axis, value in settings.items() if value != DEFAULTS[axis]}
        return {axis: value for axis, value in differing.items() if not (merged and axis is Axis.ADAPTER_MERGE)}

    @property
    def level(self) -> Level | None:
        """The level of a job that is there for these settings alone; None where no level has such a job."""
        found = next((level for level, meant in self._meanings() if meant), Level.SMOKE)
        return found if found in self.point.levels else None

    def _meanings(self) -> tuple[tuple[Level, bool], ...]:
        """What makes a job one of a level, the strongest first; fields of a model alone leave no trace in a run."""
        point, model = self.point, self.point.model
        return (
            (Level.SAVE_RESUME, point[Axis.RESUME] is True),
            (Level.MEGATRON_FSDP, point[Axis.FSDP] is True),
            (Level.PARALLELISM, any(point.size(axis) > 1 for axis in _PARALLEL)),
            (Level.LEARNING_SIGNAL, Level.LEARNING_SIGNAL in point.levels),
            (Level.FEATURE, bool(model.family or model.features)),
        )


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 1
