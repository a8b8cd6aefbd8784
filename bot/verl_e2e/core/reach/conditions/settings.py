"""Settings that fulfil a part of a condition, and how the settings of several parts are joined."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verl_e2e.core.model.wants import SIZES, Axis, FieldValue, Value


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run must have switched on; the parts are those of `Want`."""

    axes: Mapping[Axis, Value] = field(default_factory=dict)
    limits: Mapping[Axis, int] = field(default_factory=dict)
    overrides: Mapping[str, Value] = field(default_factory=dict)
    # Fields of the Hugging Face configuration.
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    # Features of the model.
    features: frozenset[str] = frozenset()
    # The policy's family of the model, empty where any will do.
    family: str = ""
    # The rows of the table that gave them.
    rules: tuple[str, ...] = ()
    # Features that the model must not have; the default model has none, so they count for nothing by themselves.
    absent: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        """How many settings there are; none means that every run will do."""
        named = len(self.axes) + len(self.limits) + len(self.overrides) + len(self.fields) + len(self.features)
        return named + bool(self.family)


ANY_RUN = Settings()


def joined(first: Settings, second: Settings) -> Settings | None:
    """Settings that fulfil both, sizes by their maximum; None where no run has both."""
    axes = dict(first.axes)
    for axis, value in second.axes.items():
        before = axes.get(axis, value)
        if axis in SIZES and isinstance(before, int) and isinstance(value, int):
            axes[axis] = max(before, value)
        elif axis is Axis.ADAPTER and "lora" in (before, value) and "none" not in (before, value):
            # Code that asks for adapters asks for those of the default type, and takes any other.
            axes[axis] = value if before == "lora" else before
        elif before != value:
            return None
        else:
            axes[axis] = value
    limits = {
        axis: min(part.limits[axis] for part in (first, second) if axis in part.limits)
        for axis in (*first.limits, *second.limits)
    }
    if any(isinstance(size := axes.get(axis), int) and size > most for axis, most in limits.items()):
        return None
    if _disagree(first.overrides, second.overrides) or _disagree(first.fields, second.fields):
        return None
    if first.family and second.family and first.family != second.family:
        return None
    features, absent = first.features | second.features, first.absent | second.absent
    if features & absent:
        return None
    return Settings(
        axes,
        limits,
        {**first.overrides, **second.overrides},
        {**first.fields, **second.fields},
        features,
        first.family or second.family,
        tuple(dict.fromkeys((*first.rules, *second.rules))),
        absent,
    )


def _disagree(first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    return any(first[name] != second[name] for name in first.keys() & second.keys())


def all_joined(parts: Iterable[Settings]) -> Settings | None:
    """Settings that fulfil all parts, None where no run has them."""
    found: Settings | None = ANY_RUN
    for part in parts:
        found = joined(found, part) if found is not None else None
    return found
