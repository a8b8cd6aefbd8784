"""What a model must be for the sizes of a point: layers for the stages, heads for the tensor ranks, experts to share.

Sources are named as `repository: symbol`, Megatron-LM at 2a75ac12.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from verl_e2e.core.model.document import DescribedDocument
from verl_e2e.core.model.space import Point
from verl_e2e.core.model.wants import Axis

_Count = Annotated[int, Field(strict=True, ge=1)]


class ModelShape(DescribedDocument):
    """The counts of a model that parallel sizes divide."""

    layers: _Count
    """Transformer layers."""
    heads: _Count
    """Query heads of an attention layer."""
    kv_heads: _Count
    """Key and value heads of an attention layer; as many as `heads` without groups."""
    experts: Annotated[int, Field(strict=True, ge=0)] = 0
    """Routed experts of a layer; 0 for a dense model."""
    biases: bool = False
    """Whether the linear layers have a bias."""


def misfits(point: Point, shape: ModelShape) -> tuple[str, ...]:
    """Why a model of this shape cannot run with the sizes of a point, a clause each."""
    return tuple(_misfits(point, shape))


def _misfits(point: Point, shape: ModelShape) -> Iterator[str]:
    tensor, expert = point.size(Axis.TENSOR), point.size(Axis.EXPERT)
    stages = point.size(Axis.PIPELINE) * point.size(Axis.VIRTUAL_PIPELINE)
    # Megatron-LM: TransformerConfig.__post_init__, for all of these but the number of experts.
    if shape.layers % stages:
        yield f"{shape.layers} layers cannot be divided into {stages} pipeline chunks"
    if shape.heads % tensor:
        yield f"{shape.heads} heads cannot be divided among {tensor} tensor ranks"
    if shape.kv_heads % tensor and tensor % shape.kv_heads:
        yield f"{shape.kv_heads} key-value heads neither divide {tensor} tensor ranks nor are divided by them"
    if not shape.experts:
        if expert > 1 or point.size(Axis.EXPERT_TENSOR) > 1:
            yield "a dense model has no experts to divide"
        return
    # Megatron-LM: moe_layer.BaseMoELayer.__init__.
    if shape.experts % expert:
        yield f"{shape.experts} experts cannot be divided among {expert} expert ranks"
    if shape.biases and point.size(Axis.EXPERT_TENSOR) > 1:
        yield "experts with biases cannot be divided among expert tensor ranks"
