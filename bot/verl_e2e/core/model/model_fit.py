"""What a model must be for the sizes of a point: layers for the stages, heads for the tensor ranks, experts to share.

Sources are named as `repository: symbol`, Megatron-LM at 2a75ac12.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from verl_e2e.core.model.space import Point
from verl_e2e.core.model.wants import Axis


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The counts of a model that parallel sizes divide."""

    # Transformer layers.
    layers: int
    # Query heads of an attention layer.
    heads: int
    # Key and value heads of an attention layer; as many as `heads` without groups.
    kv_heads: int
    # Routed experts of a layer; 0 for a dense model.
    experts: int = 0
    # Whether the linear layers have a bias.
    biases: bool = False


def least_shape(point: Point) -> ModelShape:
    """The smallest counts that the sizes of a point divide; two heads for each key-value head, so that groups show."""
    kv_heads = max(2, point.size(Axis.TENSOR))
    sized = point.size(Axis.EXPERT) > 1 or point.size(Axis.EXPERT_TENSOR) > 1
    experts = max(2, 2 * point.size(Axis.EXPERT)) if sized or "moe" in point.model.features else 0
    stages = point.size(Axis.PIPELINE) * point.size(Axis.VIRTUAL_PIPELINE)
    return ModelShape(max(2, stages), 2 * kv_heads, kv_heads, experts)


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
