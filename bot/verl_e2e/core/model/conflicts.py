"""Why one job cannot have two settings, and values of the same name joined where they agree."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from verl_e2e.core.model.space_rules import Refused
from verl_e2e.core.model.wants import Axis, FieldValue, ModelWant

_Value = TypeVar("_Value", bound=FieldValue)


class Clash(StrEnum):
    """Why a want does not fit a point."""

    # No job can have the value.
    INVALID = "invalid"
    # The point has another value on the axis.
    DIFFERENT = "different"
    # A rule excludes them in one job.
    EXCLUDED = "excluded"
    # What one of them is for would not show under the other.
    MASKED = "masked"
    # The models differ.
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why one job cannot have all the settings."""

    # What kind of conflict it is.
    clash: Clash
    # The axes that it is about; none where the models differ.
    axes: tuple[Axis, ...]
    # Why, a clause for people.
    reason: str
    # For a rule that excludes them: what kind of obstacle it states.
    refused: Refused | None = None
    # For a rule or a mask: the code that it comes from.
    source: str = ""


def joined_values(first: Mapping[str, _Value], second: Mapping[str, _Value]) -> dict[str, _Value] | str:
    """Both, or a clause about the first name on which they differ; True and 1 differ."""
    both = dict(first)
    for name, value in second.items():
        mine = both.setdefault(name, value)
        if type(mine) is not type(value) or mine != value:
            return f"{name} cannot be {mine!r} and {value!r}"
    return both


def joined_models(first: ModelWant, second: ModelWant) -> ModelWant | Conflict:
    """The model that is what both want, or why there is none."""
    if first.family and second.family and first.family != second.family:
        return Conflict(Clash.MODEL, (), f"a model of {first.family} cannot be one of {second.family}")
    fields = joined_values(first.fields, second.fields)
    if isinstance(fields, str):
        return Conflict(Clash.MODEL, (), f"the model's {fields}")
    return ModelWant(first.family or second.family, fields, first.features | second.features)
