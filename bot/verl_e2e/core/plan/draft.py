"""A job that wants ask for, before it has a name and a model: its settings, and what they must not be."""

import re
from dataclasses import dataclass

from verl_e2e.core.model.conflicts import Conflict
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import DEFAULTS
from verl_e2e.core.model.space import Point
from verl_e2e.core.model.space_exclusions import merges_experts
from verl_e2e.core.model.wants import SIZES, Axis, Value, Want
from verl_e2e.core.reach.conditions.table import DEFAULT_OVERRIDES

_PARALLEL = SIZES - {Axis.STEPS, Axis.SYNCS}
# The parts of verl's configuration that a condition in the code under test may set: no path and no command is there.
_OPEN_KEYS = re.compile(
    r"actor_rollout_ref\.(model\.lora|actor\.(optim|megatron(\.override_(transformer|ddp)_config|\.override_mcore_model_config\.moe_config)?))\.\w{1,80}",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Draft:
    """The settings of one job."""

    point: Point

    def joined(self, want: Want) -> "Draft | str":
        """The draft that gives what the want asks for as well, or why there is none, a clause."""
        closed = next((key for key in want.overrides if not _OPEN_KEYS.fullmatch(key)), None)
        if closed is not None:
            return f"{closed[:80]!r} is not a setting of the model, its adapter or its optimizer"
        found = self.point.joined(want)
        return found.reason if isinstance(found, Conflict) else Draft(found)

    def holds(self, want: Want) -> bool:
        """Whether a run with these settings, open ones at their defaults, gives what is wanted but the model."""
        for axis, value in want.axes.items():
            if self.point.size(axis) < _number(value) if axis in SIZES else self.point[axis] != value:
                return False
        sizes = {axis: self.point.size(axis) for axis in want.limits} | {Axis.DATA: self.point.data_size}
        below = all(sizes[axis] <= most for axis, most in want.limits.items())
        overrides = {**dict(DEFAULT_OVERRIDES), **self.point.overrides}
        return below and want.overrides.items() <= overrides.items()

    @property
    def overrides(self) -> dict[str, Value]:
        """The settings that no axis has, without those that say what a run has anyway."""
        return dict(self.point.overrides.items() - DEFAULT_OVERRIDES)

    @property
    def differing(self) -> dict[Axis, Value]:
        """The settings that differ from those of level 0, without what every job on a model with experts has."""
        settings, merged = self.point.settings, merges_experts(self.point.settings, self.point.model.features)
        differing = {axis: value for axis, value in settings.items() if value != DEFAULTS[axis]}
        return {axis: value for axis, value in differing.items() if not (merged and axis is Axis.ADAPTER_MERGE)}

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for drafts that are the same job on the same model."""
        model = self.point.model
        stated = {axis: value for axis, value in self.point.settings.items() if axis not in SIZES or value != 1}
        parts = (stated, self.point.limits, self.point.overrides, model.fields)
        texts = (tuple(sorted((str(name), repr(value)) for name, value in part.items())) for part in parts)
        return (*texts, model.family, tuple(sorted(model.features)))

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


def alone(want: Want) -> Draft | str:
    """A draft for one want, or why there is none."""
    return Draft(Point.default()).joined(want)


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 1
