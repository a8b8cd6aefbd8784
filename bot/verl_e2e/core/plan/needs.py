"""What wants ask of one job together: the settings, their limits and the model, and whether two of them fit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.wants import SIZES, Axis, FieldValue, ModelWant, Value, Want

# So many steps make a run one about learning.
_STEPS_OF_LEARNING = 20
_PARALLEL = SIZES - {Axis.STEPS, Axis.SYNCS}
_ANY_MODEL = ModelWant()


@dataclass(frozen=True, slots=True)
class Needs:
    """Settings of one job. A size is a least value, any other axis the value itself; what is not named is open."""

    axes: Mapping[Axis, Value] = field(default_factory=dict)
    # Sizes that must not be larger.
    limits: Mapping[Axis, int] = field(default_factory=dict)
    model: ModelWant = _ANY_MODEL

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal needs, whatever the order in which they were stated."""
        model = self.model
        fields = tuple(sorted((name, repr(value)) for name, value in model.fields.items()))
        axes = tuple(sorted((axis.value, repr(value)) for axis, value in self.axes.items()))
        return axes, tuple(sorted(self.limits.items())), model.family, fields, tuple(sorted(model.features))


def needs_of(want: Want) -> Needs:
    """What one want asks for."""
    return Needs(want.axes, want.limits, want.model)


def joined(first: Needs, second: Needs) -> Needs | None:
    """The needs of both, None where they exclude each other."""
    axes = _joined_axes(first.axes, second.axes)
    model = _joined_models(first.model, second.model)
    if axes is None or model is None:
        return None
    limits = dict(first.limits)
    for axis, most in second.limits.items():
        limits[axis] = min(most, limits.get(axis, most))
    if any(_number(axes.get(axis, 1)) > most for axis, most in limits.items()):
        return None
    return Needs(axes, limits, model)


def holds(settings: Mapping[Axis, Value], needs: Needs) -> bool:
    """Whether a job with all these settings gives what is asked for, apart from its model; a size left out is 1."""
    for axis, value in needs.axes.items():
        if axis in SIZES and _number(settings.get(axis, 1)) < _number(value):
            return False
        if axis not in SIZES and (axis not in settings or settings[axis] != value):
            return False
    return all(_number(settings.get(axis, 1)) <= most for axis, most in needs.limits.items())


def within(smaller: Needs, larger: Needs) -> bool:
    """Whether each job that gives what the larger needs ask for gives what the smaller ones ask for, too."""
    both = joined(larger, smaller)
    return both is not None and both.key == larger.key


def level_of(needs: Needs) -> Level:
    """The level of a job that is there for these needs alone."""
    axes = needs.axes
    if axes.get(Axis.RESUME) is True:
        return Level.SAVE_RESUME
    if axes.get(Axis.FSDP) is True:
        return Level.MEGATRON_FSDP
    if any(_number(axes.get(axis, 1)) > 1 for axis in _PARALLEL):
        return Level.PARALLELISM
    if _number(axes.get(Axis.STEPS, 1)) >= _STEPS_OF_LEARNING:
        return Level.LEARNING_SIGNAL
    # Fields alone make another model, which nothing in a run shows; a family and a feature leave traces.
    content = axes.get(Axis.CONTENT, "text") != "text"
    return Level.FEATURE if needs.model.family or needs.model.features or content else Level.SMOKE


def _joined_axes(first: Mapping[Axis, Value], second: Mapping[Axis, Value]) -> dict[Axis, Value] | None:
    axes = dict(first)
    for axis, value in second.items():
        if axis not in axes:
            axes[axis] = value
        elif axis in SIZES:
            axes[axis] = max(_number(axes[axis]), _number(value))
        elif axes[axis] != value or type(axes[axis]) is not type(value):
            return None
    return axes


def _joined_models(first: ModelWant, second: ModelWant) -> ModelWant | None:
    if first.family and second.family and first.family != second.family:
        return None
    fields: dict[str, FieldValue] = dict(first.fields)
    for name, value in second.fields.items():
        if name in fields and (fields[name] != value or type(fields[name]) is not type(value)):
            return None
        fields[name] = value
    return ModelWant(first.family or second.family, fields, first.features | second.features)


def _number(value: Value) -> int:
    """A size as a number; what is not one counts as 1."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
