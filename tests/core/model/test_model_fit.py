"""Which models the sizes of a point fit."""

import pytest

from verl_e2e.core.model.settings import Axis, Value
from verl_e2e.core.model.space import JobPoint, ModelShape, misfits

SMALL = ModelShape(layers=2, heads=4, kv_heads=2)
EXPERTS = ModelShape(layers=2, heads=4, kv_heads=2, experts=4, biases=True)


@pytest.mark.parametrize(
    ("axes", "shape", "words"),
    (
        ({}, SMALL, ()),
        ({Axis.TENSOR: 4}, SMALL, ()),
        ({Axis.TENSOR: 8}, SMALL, ("4 heads cannot be divided among 8 tensor ranks",)),
        (
            {Axis.TENSOR: 2},
            ModelShape(layers=2, heads=6, kv_heads=3),
            ("3 key-value heads neither divide 2 tensor ranks nor are divided",),
        ),
        ({Axis.PIPELINE: 4}, SMALL, ("2 layers cannot be divided into 4 pipeline chunks",)),
        ({Axis.VIRTUAL_PIPELINE: 2}, SMALL, ("2 layers cannot be divided into 4 pipeline chunks",)),
        ({Axis.EXPERT: 2}, SMALL, ("a dense model has no experts to divide",)),
        ({Axis.EXPERT_TENSOR: 2}, SMALL, ("a dense model has no experts to divide",)),
        ({Axis.EXPERT: 8}, EXPERTS, ("4 experts cannot be divided among 8 expert ranks",)),
        ({Axis.EXPERT: 4}, EXPERTS, ()),
        ({Axis.EXPERT_TENSOR: 2}, EXPERTS, ("experts with biases cannot be divided among expert tensor ranks",)),
    ),
)
def test_a_model_that_does_not_fit_is_told_why(
    axes: dict[Axis, Value], shape: ModelShape, words: tuple[str, ...]
) -> None:
    found = misfits(JobPoint.default().with_axes(axes), shape)
    assert len(found) == len(words)
    assert all(text.startswith(word) for text, word in zip(found, words, strict=True))
