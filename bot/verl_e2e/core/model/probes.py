"""One job for each value of each axis: what shows whether a commit of verl still takes every setting."""

from collections.abc import Iterator

from verl_e2e.core.model.settings import CHOICES, DEFAULTS, Setting, setting_of
from verl_e2e.core.model.space import Point
from verl_e2e.core.model.variant import Variant
from verl_e2e.core.model.wants import SIZES, Axis, Value

_OTHERS: dict[Axis, tuple[Value, ...]] = {
    Axis.ADAPTER_TARGETS: ("linear_qkv", "*.layers.0.*.linear_qkv"),
    Axis.ADAPTER_RANK: (8,),
    Axis.ADAPTER_ALPHA: (16,),
    Axis.ADAPTER_DROPOUT: (0.1,),
}


def setting_probes() -> tuple[Variant, ...]:
    """A job for each value that no rule excludes and that is a variable or an override; of a size two."""
    points = ((axis, value, Point.default().with_axes({axis: value})) for axis, value in _values())
    return tuple(
        point.variant(point.levels[0], _name(axis, value)) for axis, value, point in points if point.conflict is None
    )


def _values() -> Iterator[tuple[Axis, Value]]:
    for axis, default in DEFAULTS.items():
        values: tuple[Value, ...] = (2,) if axis in SIZES else _OTHERS.get(axis, CHOICES.get(axis, (not default,)))
        yield from ((axis, value) for value in values if setting_of(axis, value) != Setting())


def _name(axis: Axis, value: Value) -> str:
    words = "".join(character if character.isalnum() else " " for character in f"{axis} {value}".lower()).split()
    return "-".join(words)
