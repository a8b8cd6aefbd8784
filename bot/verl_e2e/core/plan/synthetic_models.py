"""The synthetic model of a job: the family's recipe, the fields that are wanted of it, sizes that fit the job's own.

Only what a family must have is in its recipe. Sizes follow from the parallel sizes: every rank gets at least two
heads of keys and values and two query heads for each, so that a wrong split of either shows.
"""

from collections.abc import Mapping
from types import MappingProxyType

from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.settings import FieldValue
from verl_e2e.core.model.synthetic import ModelSizes, Recipe, Synthetic

NO_FIELDS: Mapping[str, FieldValue] = MappingProxyType({})
_PREFIX = "synthetic/"
# What it takes on a GPU is less than this, whatever the family.
WEIGHTS_GIB = 0.6
# Of a wider head the residual stream holds half: the projections are not square.
_WIDEST = 128
_LEAST_EXPERTS = 8
_VOCABULARY = 2048


def synthetic_checkpoint(recipe: Recipe, family: str, wanted: Mapping[str, FieldValue] = NO_FIELDS) -> Checkpoint:
    """The checkpoint of a family's recipe, its sizes still open; `wanted` are fields that a condition asks for."""
    made = Synthetic(**dict(recipe), family=family, wanted=dict(wanted))
    return Checkpoint(model_id=synthetic_id(family), random_weights=True, synthetic=made)


def synthetic_id(family: str) -> str:
    """The name of a family's synthetic checkpoint."""
    return f"{_PREFIX}{family}"


def sized(checkpoint: Checkpoint, wrapper: Mapping[str, str]) -> Checkpoint:
    """The checkpoint with the sizes of its synthetic model, by the job's variables; any other as it is."""
    recipe = checkpoint.synthetic
    if recipe is None or recipe.sizes is not None:
        return checkpoint
    fitted = recipe.model_copy(
        update={"sizes": sizes_for(wrapper, least_layers=recipe.least_layers, head_size=recipe.head_size)}
    )
    return checkpoint.model_copy(update={"synthetic": fitted})


def sizes_for(wrapper: Mapping[str, str], *, least_layers: int = 4, head_size: int = 64) -> ModelSizes:
    """The smallest sizes that divide by the job's parallel sizes, by the variables of verl's wrapper."""
    # The rollout splits the same heads; two of each rank's stay where nothing is split, too.
    tensor = max(2, _size(wrapper, "COMMON_TP"), _size(wrapper, "INFER_TP"))
    stages = _size(wrapper, "COMMON_PP") * _size(wrapper, "COMMON_VPP")
    kv_heads, heads = 2 * tensor, 4 * tensor
    hidden = heads * min(head_size, _WIDEST)
    return ModelSizes(
        layers=_multiple(stages, least_layers),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn=2 * hidden,
        expert_ffn=64 * kv_heads,
        experts=_multiple(_size(wrapper, "COMMON_EP"), _LEAST_EXPERTS),
        experts_per_token=2,
        positions=4096,
        vocabulary=_multiple(tensor * 128, _VOCABULARY),
        window=128,
    )


def _size(wrapper: Mapping[str, str], name: str) -> int:
    """A parallel size; what is absent or `null` is one."""
    value = wrapper.get(name, "")
    return int(value) if value.isdecimal() and int(value) else 1


def _multiple(of: int, least: int) -> int:
    """The smallest multiple that is not below `least`."""
    return -(-least // of) * of
