"""A job as a point in the space of settings: a value on each axis and a model, joined with what a change wants."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from verl_e2e.core.model.conflicts import Clash, Conflict, joined_models
from verl_e2e.core.model.costs import COSTS, Cost, CostBasis
from verl_e2e.core.model.settings import (
    DEFAULTS,
    OWN_ROUTING,
    Setting,
    invalid_value,
    setting_of,
)
from verl_e2e.core.model.space_exclusions import exclusion_of
from verl_e2e.core.model.space_masks import mask_of
from verl_e2e.core.model.space_rules import completed
from verl_e2e.core.model.variant import PROBE_LEARNING_RATE, SHARE_OF_DIGITS, WITHOUT_CRITIC, Level, Variant
from verl_e2e.core.model.wants import SIZES, Axis, ModelWant, Value, Want

_PARALLEL = (
    *(Axis.TENSOR, Axis.PIPELINE, Axis.VIRTUAL_PIPELINE, Axis.CONTEXT),
    *(Axis.EXPERT, Axis.EXPERT_TENSOR, Axis.DATA),
)

# What every job of a level sets; a job of level 4 differs by its model.
_OF_LEVEL: Mapping[Level, Mapping[Axis, Value]] = {
    Level.SAVE_RESUME: {Axis.RESUME: True},
    Level.MEGATRON_FSDP: {Axis.FSDP: True},
    Level.LEARNING_SIGNAL: {Axis.STEPS: 20},
}


@dataclass(frozen=True, slots=True)
class Point:
    """The settings of one job and the model that it needs. Build one by `default` or `of`, and join wants to it."""

    # The values that are set; every other axis is open and has its value of `DEFAULTS`.
    settings: Mapping[Axis, Value] = field(default_factory=dict)
    # What the model has to be.
    model: ModelWant = field(default_factory=ModelWant)
    # The axes that are set only because another setting needs them.
    implied: frozenset[Axis] = frozenset()

    @classmethod
    def default(cls) -> "Point":
        """The point of level 0: nothing set."""
        return cls(MappingProxyType({}))

    @classmethod
    def of_level(cls, level: Level) -> "Point":
        """What every job of a level has, with what it needs."""
        return cls.default().with_axes(_OF_LEVEL.get(level, {}))

    def with_axes(self, axes: Mapping[Axis, Value]) -> "Point":
        """This point with these values in place of its own, and with what they need. It is not checked: see `joined`.

        Raises ValueError for a value that no job can have.
        """
        for axis, value in axes.items():
            if problem := invalid_value(axis, value):
                raise ValueError(problem)
        asked = {**self.asked, **axes}
        settings, features = completed(asked, self.model.features)
        return replace(
            self,
            settings=MappingProxyType(_ordered(settings)),
            model=replace(self.model, features=features),
            implied=frozenset(settings.keys() - asked.keys()),
        )

    @property
    def asked(self) -> dict[Axis, Value]:
        """The settings without those that only another setting needs."""
        return {axis: value for axis, value in self.settings.items() if axis not in self.implied}

    def with_model(self, model: ModelWant) -> "Point":
        """This point with another model, and with the features that its settings need."""
        return replace(self, model=model).with_axes({})

    def __getitem__(self, axis: Axis) -> Value:
        return self.settings.get(axis, DEFAULTS[axis])

    def size(self, axis: Axis) -> int:
        """The value of a size."""
        value = self[axis]
        return value if isinstance(value, int) else 1

    def joined(self, want: Want) -> "Point | Conflict":
        """The point that has both: sizes by the larger one, all else must agree or be open, and nothing is masked."""
        if mask := mask_of(self.settings, completed(want.axes, want.model.features)[0]):
            return Conflict(Clash.MASKED, (mask.hiding.axis,), f"{mask.hiding}: {mask.reason}", source=mask.source)
        settings = self.asked
        for axis, value in want.axes.items():
            if problem := invalid_value(axis, value):
                return Conflict(Clash.INVALID, (axis,), problem)
            mine = settings.get(axis, value)
            if axis in SIZES and isinstance(mine, int) and isinstance(value, int):
                settings[axis] = max(mine, value)
            elif mine != value:
                return Conflict(Clash.DIFFERENT, (axis,), f"{axis} is {mine!r} and {value!r} is wanted")
            else:
                settings[axis] = value
        model = joined_models(self.model, want.model)
        if isinstance(model, Conflict):
            return model
        point = Point(settings, model).with_axes({})
        return point.conflict or point

    @property
    def conflict(self) -> Conflict | None:
        """Why no job can be this point, or None."""
        rule = exclusion_of(self.settings, self.model.features)
        if rule is None:
            return None
        axes = tuple(trait.axis for trait in rule.traits)
        shown = " with ".join(map(str, rule.traits))
        return Conflict(Clash.EXCLUDED, axes, f"{shown}: {rule.reason}", rule.kind, rule.source)

    @property
    def data_size(self) -> int:
        """The data-parallel ranks: as many as are wanted, and as the experts' own sizes need.

        Megatron-LM (parallel_state.initialize_model_parallel) gives experts the same ranks, divided by their own
        tensor, expert and data size. All of these sizes are powers of two, so the smaller product divides the larger.
        """
        dense = self.size(Axis.TENSOR) * self.size(Axis.CONTEXT)
        experts = self.size(Axis.EXPERT) * self.size(Axis.EXPERT_TENSOR)
        data = 1
        while data < self.size(Axis.DATA) or dense * data < experts:
            data *= 2
        return data

    @property
    def gpu_count(self) -> int:
        """Tensor x pipeline x context x data size; the experts' own sizes are within it."""
        sizes = (self.size(axis) for axis in (Axis.TENSOR, Axis.PIPELINE, Axis.CONTEXT))
        return math.prod(sizes) * self.data_size

    @property
    def cost(self) -> Cost:
        """What it takes on its own GPUs with a small model, estimated from the nearest measured job."""
        resume = self[Axis.RESUME] is True
        nearest = COSTS["1-resume" if resume else "0-lora-ddp" if self.gpu_count == 1 else "2-dense"]
        return replace(nearest, basis=CostBasis.ESTIMATE)

    @property
    def gpu_minutes(self) -> int:
        """GPUs times minutes, as `cost`, rounded up."""
        return self.cost.gpu_minutes(self.gpu_count)

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels whose criteria a job of this point can meet, ascending."""
        if self[Axis.RESUME]:
            return (Level.SAVE_RESUME,)
        found = [Level.FEATURE]
        if self[Axis.FSDP]:
            found.append(Level.MEGATRON_FSDP)
        elif self[Axis.ADAPTER] != "none":
            found.append(Level.SMOKE)
        if any(self.size(axis) > 1 for axis in _PARALLEL):
            found.append(Level.PARALLELISM)
        if self.size(Axis.STEPS) >= self.of_level(Level.LEARNING_SIGNAL).size(Axis.STEPS):
            found.append(Level.LEARNING_SIGNAL)
        return tuple(sorted(found))

    def variant(self, level: Level, name: str, *, feature: str = "") -> Variant:
        """The job of a level with these settings, under a name of lower-case letters, digits and dashes.

        Raises ValueError where the point has a conflict or no job of that level can have it.
        """
        if self.conflict:
            raise ValueError(f"{name}: {self.conflict.reason}")
        if level not in self.levels:
            raise ValueError(f"{name}: no job of level {int(level)} has the settings {_shown(self.settings)}")
        parts = [setting_of(axis, value) for axis, value in self.settings.items()]
        parts.append(OWN_ROUTING if Axis.EXPERT in self.settings else Setting())
        parts.append(_purpose(level, self.size(Axis.STEPS)))
        return Variant(
            level,
            name,
            self.gpu_count,
            {variable: text for part in parts for variable, text in part.wrapper.items()},
            tuple(dict.fromkeys(override for part in parts for override in part.overrides)),
            steps=self.size(Axis.STEPS),
            feature=feature,
        )


def _purpose(level: Level, steps: int) -> Setting:
    """What a level sets so that its own evidence can show."""
    if level is Level.FEATURE:
        return Setting(WITHOUT_CRITIC, SHARE_OF_DIGITS)
    if level is not Level.LEARNING_SIGNAL:
        return Setting()
    tested = {"SAVE_FREQ": "-1", "VAL_BEFORE_TRAIN": "True", "TEST_FREQ": "10"}
    return Setting({"TOTAL_TRAIN_STEPS": str(steps), **tested}, PROBE_LEARNING_RATE)


def _ordered(settings: Mapping[Axis, Value]) -> dict[Axis, Value]:
    return {axis: settings[axis] for axis in Axis if axis in settings}


def _shown(settings: Mapping[Axis, Value]) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in settings.items()) or "of level 0"
