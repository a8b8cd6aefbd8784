"""`fingerprints.jsonl`: what the weights and the optimizer's state of each rank were at defined points of a run.

Our instrumentation takes them at public methods of verl and Bridge, and counts at Megatron-LM's schedules. One line is
a `Snapshot`, a `HookState` or `ModelInputs`.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, FailFast, Field

from verl_e2e.core.model.document import Document

FINGERPRINTS_FILE = "fingerprints.jsonl"
# Far beyond what the instrumentation writes: its own limits are lower.
MOST_TENSORS, MOST_SNAPSHOTS = 20_000, 20_000
MOST_INPUTS = 64


class Point(StrEnum):
    """Where a snapshot is taken."""

    # The model is wrapped and has its weights: what the training starts from.
    MODEL_BUILT = "model built"
    # What the files of the checkpoint hold that was imported, under Hugging Face's names; the first rank reads them.
    CHECKPOINT_FILE = "checkpoint file"
    # The weights of the checkpoint were imported from Hugging Face's format.
    WEIGHTS_IMPORTED = "weights imported"
    # The state of a checkpoint of verl was loaded.
    CHECKPOINT_LOADED = "checkpoint loaded"
    OPTIMIZER_STEP = "optimizer step"
    # Before and after the weights were exported for the rollout.
    BEFORE_EXPORT = "before export"
    AFTER_EXPORT = "after export"
    # What the export yielded, under Hugging Face's names.
    EXPORTED = "exported"
    # What arrived at the rollout engine, under the names that it arrived with.
    RECEIVED = "received"
    # What the rollout engine's model holds after it loaded that, under the engine's names.
    ROLLOUT_LOADED = "rollout loaded"
    # The state that was just written as a checkpoint.
    CHECKPOINT_SAVED = "checkpoint saved"


class TensorKind(StrEnum):
    """What a tensor is."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    # A tensor of the optimizer's state, as `exp_avg` of a parameter.
    OPTIMIZER = "optimizer"


class Tensor(Document):
    """The fingerprint of one tensor, or of this rank's shard of it.

    `sum` and `square` do not depend on the order of the elements, `position` does; `bits` is equal only for equal
    bits in equal order. So equal sums with another `position` are a permutation or a transposition, sums that all
    differ by one factor are a scale, and `bits` that stay where they should change are a stale copy.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    # Its name: Megatron's, Hugging Face's or the engine's, as the point says; a moment is `<parameter>/<state>`.
    name: str
    kind: TensorKind = TensorKind.PARAMETER
    # The shape of what was read, this rank's shard.
    shape: tuple[int, ...]
    # Its element type, as `bfloat16`.
    dtype: str
    # Whether it trains; None where that means nothing.
    requires_grad: bool | None = None
    # The dimension in which tensor-parallel ranks hold parts of it, None where they hold copies.
    tensor_parallel_dim: int | None = None
    # Whether it belongs to an expert: then ranks of the expert group hold others, not copies.
    expert: bool = False
    # Whether data-parallel ranks hold parts of it, as with Megatron-FSDP.
    sharded: bool = False
    # The sum of its elements in double precision; "nan" and the infinities are written as text.
    sum: float
    # The sum of their squares.
    square: float
    # The sum of the elements, each times a fixed weight of its place.
    position: float
    # Sixteen hexadecimal digits of a hash over its bits and their places.
    bits: str


class Ranks(Document):
    """Where a rank lies in each group, and how large the groups are; 0 of 1 where there is no such group."""

    # The rank among all trainers.
    rank: int = 0
    # Data-parallel, context parallelism included, tensor-, pipeline-, context-, expert- and expert-tensor-parallel.
    data: int = 0
    tensor: int = 0
    pipeline: int = 0
    context: int = 0
    expert: int = 0
    expert_tensor: int = 0
    # Data-parallel ranks of the expert parameters.
    expert_data: int = 0
    # The size of each group.
    data_size: int = 1
    tensor_size: int = 1
    pipeline_size: int = 1
    context_size: int = 1
    expert_size: int = 1
    expert_tensor_size: int = 1
    expert_data_size: int = 1


class Adapter(Document):
    """One adapter module that the model holds, with what was asked for."""

    # The name of the module that it is attached to.
    name: str
    # Its input and output features, all ranks together.
    features_in: int
    features_out: int
    rank: int
    # Its parameters on this rank.
    parameters: int


class Adapters(Document):
    """The adapters of a model, as built, with the request that they were built by."""

    # The kind of the adapter, as `LoRA`.
    type: str = ""
    # The rank that was asked for.
    rank: int = 0
    # The target modules that were asked for.
    targets: tuple[str, ...] = ()
    # The adapters that are there.
    modules: Annotated[tuple[Adapter, ...], FailFast(), Field(max_length=MOST_TENSORS)] = ()


class _OfModel(Document):
    # The phase of the run: the name of a start of the wrapper.
    phase: str = ""
    # Which model: `actor`, `ref`, `critic`, or `rollout`.
    model: str
    pid: int
    # Where the rank lies.
    ranks: Ranks = Ranks()
    # How many times this had been passed before in this process for this model: a point, or a step of the optimizer.
    number: int = 0
    # When, in seconds since the folder was opened.
    t_s: float


class Snapshot(_OfModel):
    """All tensors of one model on one rank at one point."""

    kind: Literal["snapshot"] = "snapshot"
    # Where it was taken.
    point: Point
    # The global step that a checkpoint was saved or loaded for, None where there is none.
    step: int | None = None
    # How long taking it took.
    cost_s: float = 0.0
    tensors: Annotated[tuple[Tensor, ...], FailFast(), Field(max_length=MOST_TENSORS)] = ()
    # How many tensors were not read because the model is large.
    left_out: int = 0
    # The adapters; only where the model was built.
    adapters: Adapters | None = None
    # Whether the export was of adapters alone; only for points of an export.
    adapter_only: bool | None = None
    # Why something could not be read, empty where all was.
    problem: str = ""


class HookState(Document):
    """What became of one hook in one process; the last line about it counts."""

    kind: Literal["hook"] = "hook"
    # The phase of the run.
    phase: str = ""
    pid: int
    # The method that it wraps, as `module:Class.method`.
    target: str
    # Whether the method was there and is wrapped.
    installed: bool
    # How often it was called.
    calls: int = 0
    # Why it is not installed, or what its last snapshot failed by.
    problem: str = ""


class GivenInput(Document):
    """One argument of a model's forward that is neither text nor its position."""

    # Its name, as `pixel_values`.
    name: str
    # The shape that it had first.
    shape: tuple[int, ...] = ()
    # How often it was a tensor that is not empty, and how often while gradients were recorded.
    calls: int = 0
    training_calls: int = 0


class Tower(Document):
    """A part of a model for images or sound."""

    # Its name in the model, as `vision_model`, and its class.
    name: str
    type: str = ""
    # How often it ran, and how often while gradients were recorded.
    calls: int = 0
    training_calls: int = 0


class ScheduleUse(Document):
    """How one of Megatron-LM's schedules went over a model."""

    # The name of its function, as `forward_backward_no_pipelining`.
    name: str
    # Whether these passes trained, or went forward alone.
    training: bool
    # How many there were.
    calls: int
    # The fewest and the most micro-batches of one of them.
    least: int
    most: int


class ModelInputs(_OfModel):
    """What a trainer's model was given besides text and how it was run, from its start to a step of its optimizer."""

    kind: Literal["inputs"] = "inputs"
    # What it was given.
    inputs: Annotated[tuple[GivenInput, ...], FailFast(), Field(max_length=MOST_INPUTS)] = ()
    # Its towers on this rank, those that never ran too.
    towers: Annotated[tuple[Tower, ...], FailFast(), Field(max_length=MOST_INPUTS)] = ()
    # The schedules that ran.
    schedules: Annotated[tuple[ScheduleUse, ...], FailFast(), Field(max_length=MOST_INPUTS)] = ()


class Fingerprints(Document):
    """`fingerprints.jsonl`, parsed."""

    # The snapshots, in the order of time.
    snapshots: Annotated[tuple[Snapshot, ...], FailFast(), Field(max_length=MOST_SNAPSHOTS)] = ()
    # The last state of each hook of each process.
    hooks: tuple[HookState, ...] = ()
    # What models were given besides text and how they were run, in the order of time.
    inputs: tuple[ModelInputs, ...] = ()
    # Why nothing was recorded, empty where something was.
    problem: str = ""
    # Lines that could not be read.
    unreadable: int = 0

    model_config = ConfigDict(extra="forbid", frozen=True)
