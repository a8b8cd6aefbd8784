"""The synthetic model of a job: the family's recipe, and the fields that are wanted of it; `build` gives it sizes."""

from collections.abc import Mapping
from types import MappingProxyType

from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.settings import FieldValue
from verl_e2e.core.model.synthetic import Recipe, Synthetic

NO_FIELDS: Mapping[str, FieldValue] = MappingProxyType({})
_PREFIX = "synthetic/"
# What it takes on a GPU is less than this, whatever the family.
WEIGHTS_GIB = 0.6


def synthetic_checkpoint(recipe: Recipe, family: str, wanted: Mapping[str, FieldValue] = NO_FIELDS) -> Checkpoint:
    """The checkpoint of a family's recipe, its sizes still open; `wanted` are fields that a condition asks for."""
    made = Synthetic(**dict(recipe), family=family, wanted=dict(wanted))
    return Checkpoint(model_id=synthetic_id(family), random_weights=True, synthetic=made)


def synthetic_id(family: str) -> str:
    """The name of a family's synthetic checkpoint."""
    return f"{_PREFIX}{family}"
