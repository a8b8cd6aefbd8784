"""What ranks hold in common is equal: after the model was built, after a checkpoint was loaded, after each step.

By Megatron's layout, on ranks of one pipeline stage:

- a parameter that does not belong to an expert lies on every data- and context-parallel rank of a tensor rank
  (Megatron-FSDP shards it there instead, so that nothing is compared);
- an expert's, which has `allreduce` off, on every expert-data-parallel rank of an expert and expert tensor rank; an
  adapter that the experts of a layer share, on every expert rank as well;
- one without a tensor-parallel dimension on every tensor rank: norms and routers, which sequence parallelism copies
  too. Some layers do not say that they split a parameter, so such a copy counts as one if it is a norm or a router, or
  if it was equal and not constant when the model was built;
- tied embeddings on the first and on the last pipeline stage: the export has no output layer, and they were equal when
  the model was built.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from verl_e2e.core.compare.tensors import difference, is_constant, same
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.config import ACTOR
from verl_e2e.core.judge.criteria.health import trained_models
from verl_e2e.core.judge.criteria.snapshots import (
    Finding,
    TensorFault,
    broken,
    finding,
    gap,
    left_out_note,
    names,
    phases,
    snapshots,
    tensors,
    waived,
)
from verl_e2e.core.model.evidence import Criterion, State
from verl_e2e.core.model.fingerprints import Point, Ranks, Snapshot, Tensor
from verl_e2e.core.model.stages import Stage

_CRITERION = Criterion.REPLICAS
_STAGES = {
    Point.MODEL_BUILT: Stage.DDP_WRAP,
    Point.CHECKPOINT_LOADED: Stage.CHECKPOINT_LOAD,
    Point.OPTIMIZER_STEP: Stage.TRAIN_STEP,
}
# Parameters that Megatron never splits over tensor ranks.
_COPIED = re.compile(r"(?:^|[._])(?<!\bq_)(?<!\bk_)(?:layernorm|layer_norm)(?:[._]|$)|\.router\.weight$")
_SHARED_ADAPTER = re.compile(r"\.experts\.linear_fc[12]\.adapter\.linear_(?:in|out)\.weight$")
_EMBEDDING, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
_HF_OUTPUT = re.compile(r"lm_head|output|unembed|embed_out")
# Of more ranks than two, other groups may add their gradients in another order.
_SURE_OF_SUMS = 2

Place = Callable[[Ranks], tuple[int, ...]]
Group = Sequence[Snapshot]


def replicas(case: Case) -> Finding:
    """Whether all copies of a parameter are equal at each point."""
    if case.record.fingerprints is None:
        return waived(_CRITERION, Stage.TRAIN_STEP)
    if case.job.gpu_count == 1:
        return finding(_CRITERION, State.MET, "one rank: nothing is held twice", Stage.TRAIN_STEP)
    groups = _groups(case)
    built = {(phase, model): group for (phase, model, point, _), group in groups.items() if point is Point.MODEL_BUILT}
    tied = _exports_no_output(case)
    comparisons = {
        (phase, model): _Comparison(case, model, built.get((phase, model), []), tied=tied)
        for phase, model, _, _ in groups
    }
    for (phase, model, point, number), group in groups.items():
        faults = tuple(comparisons[phase, model].faults(group, point))
        if faults:
            text = f"copies of a parameter of the {model} differ at '{point}' {number + 1} of the {phase} phase"
            return broken(_CRITERION, _STAGES[point], text, faults)
    count = sum(comparison.count for comparison in comparisons.values())
    notes = [note for comparison in comparisons.values() for note in comparison.notes]
    missing = _gap(case, groups)
    if missing:
        return finding(_CRITERION, State.MISSING, missing, Stage.TRAIN_STEP, notes)
    notes += [*left_out_note(snapshot for group in groups.values() for snapshot in group), *_notes(case, groups)]
    text = f"{count} comparisons of copies on {case.job.gpu_count} ranks at {len(groups)} points, all equal"
    text = text if count else f"no parameter that was read lies on more than one of {case.job.gpu_count} ranks"
    return finding(_CRITERION, State.MET, text, Stage.TRAIN_STEP, notes)


def _groups(case: Case) -> dict[tuple[str, str, Point, int], list[Snapshot]]:
    """The snapshots that all ranks of a model take at one point, in the order of time."""
    groups: dict[tuple[str, str, Point, int], list[Snapshot]] = {}
    for snapshot in snapshots(case, *_STAGES):
        groups.setdefault((snapshot.phase, snapshot.model, snapshot.point, snapshot.number), []).append(snapshot)
    return groups


class _Comparison:
    """The comparisons of one model in one phase; counts them, and notes what is not certain."""

    def __init__(self, case: Case, model: str, built: Group, *, tied: bool) -> None:
        self.count = 0
        self.notes: list[str] = []
        self._model = model
        self._built = {snapshot.ranks.rank: tensors(snapshot) for snapshot in built}
        self._gathered_later = case.config_value(f"{ACTOR}.override_ddp_config.overlap_param_gather") is True
        self._sequence = case.config_value(f"{ACTOR}.sequence_parallel") is True
        self._tied = tied and model == "actor"

    def faults(self, group: Group, point: Point) -> Iterator[TensorFault]:
        """The copies that differ."""
        if point is Point.OPTIMIZER_STEP and self._gathered_later:
            self.notes.append(
                "Parameters are gathered after the step (overlap_param_gather): no copy was compared there"
            )
            return
        yield from self._copies(group, lambda at: (at.tensor, at.pipeline), lambda tensor: not tensor.expert)
        yield from self._copies(
            group, lambda at: (at.expert_tensor, at.expert, at.pipeline), lambda tensor: tensor.expert
        )
        if point is not Point.OPTIMIZER_STEP or group[0].ranks.expert_data_size <= _SURE_OF_SUMS:
            yield from self._copies(group, lambda at: (at.expert_tensor, at.pipeline, at.expert_data), _is_shared)
        yield from self._tensor_copies(group, point)
        if self._tied:
            yield from self._embeddings(group)

    def _copies(self, group: Group, place: Place, belongs: Callable[[Tensor], bool]) -> Iterator[TensorFault]:
        for first, other in _pairs(group, place):
            held, wanted = tensors(other), tensors(first)
            for name, tensor in wanted.items():
                if belongs(tensor) and not tensor.sharded:
                    yield from self._compare(tensor, held.get(name), first, other)
            if _is_whole(first) and _is_whole(other):
                extra = (tensor for name, tensor in held.items() if name not in wanted and belongs(tensor))
                yield from (TensorFault(tensor.name, _absent(first, other), None, tensor) for tensor in extra)

    def _compare(self, tensor: Tensor, copy: Tensor | None, first: Snapshot, other: Snapshot) -> Iterator[TensorFault]:
        if copy is None:
            if _is_whole(first) and _is_whole(other):
                yield TensorFault(tensor.name, _absent(other, first), tensor)
            return
        self.count += 1
        kind = difference(tensor, copy)
        if kind:
            what = f"rank {other.ranks.rank} holds {kind}, compared with rank {first.ranks.rank}"
            yield TensorFault(tensor.name, what, tensor, copy)

    def _tensor_copies(self, group: Group, point: Point) -> Iterator[TensorFault]:
        """Copies on tensor ranks; a drift after a step is certain only where gradients are reduced over them."""
        unknown, drifted = [], []
        for first, other in _pairs(group, lambda at: (at.pipeline, at.data)):
            held = tensors(other)
            for name, tensor in tensors(first).items():
                copy = held.get(name)
                if copy is None or tensor.expert or tensor.sharded or tensor.tensor_parallel_dim is not None:
                    continue
                if not (_COPIED.search(name) or self._was_copy(name, first, other)):
                    unknown += [name] if not same(tensor, copy) else []
                elif point is Point.OPTIMIZER_STEP and tensor.requires_grad and not self._sequence:
                    drifted += [name] if not same(tensor, copy) else []
                else:
                    yield from self._compare(tensor, copy, first, other)
        if unknown:
            listed = names(dict.fromkeys(unknown))
            self.notes.append(f"Not known to be copies, and different on tensor ranks of the {self._model}: {listed}")
        if drifted:
            listed = names(dict.fromkeys(drifted))
            self.notes.append(f"Copies on tensor ranks drift apart without sequence parallelism: {listed}")

    def _was_copy(self, name: str, first: Snapshot, other: Snapshot) -> bool:
        """Whether both ranks held the same when the model was built, of more than one value."""
        one, two = (self._built.get(snapshot.ranks.rank, {}).get(name) for snapshot in (first, other))
        return one is not None and two is not None and same(one, two) and not is_constant(one)

    def _embeddings(self, group: Group) -> Iterator[TensorFault]:
        """Tied embeddings: the first stage's are the output layer of the last."""
        last = max(snapshot.ranks.pipeline for snapshot in group)
        output = {snapshot.ranks.tensor: snapshot for snapshot in group if snapshot.ranks.pipeline == last}
        for snapshot in group:
            other = output.get(snapshot.ranks.tensor)
            if last == 0 or snapshot.ranks.pipeline != 0 or other is None:
                continue
            tensor, copy = _ending(snapshot, _EMBEDDING), _ending(other, _OUTPUT)
            if tensor is not None and copy is not None and self._were_tied(tensor, copy, snapshot, other):
                yield from self._compare(tensor, copy, snapshot, other)

    def _were_tied(self, tensor: Tensor, copy: Tensor, first: Snapshot, last: Snapshot) -> bool:
        one = self._built.get(first.ranks.rank, {}).get(tensor.name)
        two = self._built.get(last.ranks.rank, {}).get(copy.name)
        return one is not None and two is not None and same(one, two) and not is_constant(one)


def _pairs(group: Group, place: Place) -> Iterator[tuple[Snapshot, Snapshot]]:
    """Each snapshot with the first one of those at the same place."""
    firsts: dict[tuple[int, ...], Snapshot] = {}
    for snapshot in sorted(group, key=lambda item: item.ranks.rank):
        first = firsts.setdefault(place(snapshot.ranks), snapshot)
        if first.ranks.rank != snapshot.ranks.rank:
            yield first, snapshot


def _is_shared(tensor: Tensor) -> bool:
    """Whether all experts of a layer share the adapter: then it has no dimension of experts."""
    return tensor.expert and len(tensor.shape) == 2 and _SHARED_ADAPTER.search(tensor.name) is not None


def _is_whole(snapshot: Snapshot) -> bool:
    return not snapshot.left_out and not snapshot.problem


def _absent(where: Snapshot, there: Snapshot) -> str:
    return f"rank {where.ranks.rank} does not hold it, rank {there.ranks.rank} does"


def _ending(snapshot: Snapshot, name: str) -> Tensor | None:
    return next((tensor for tensor in snapshot.tensors if f".{tensor.name}".endswith(f".{name}")), None)


def _exports_no_output(case: Case) -> bool:
    """Whether a whole export has no output layer of its own: the embeddings are tied."""
    whole = [snapshot for snapshot in snapshots(case, Point.EXPORTED) if not snapshot.adapter_only]
    return bool(whole) and all(
        not snapshot.left_out and not any(_HF_OUTPUT.search(tensor.name) for tensor in snapshot.tensors)
        for snapshot in whole
    )


def _gap(case: Case, groups: dict[tuple[str, str, Point, int], list[Snapshot]]) -> str:
    """Where a rank left no snapshot, or says of its place what does not fit the number of ranks."""
    for phase in phases(case):
        for model in trained_models(case):
            missing = gap(case, model, phase, Point.MODEL_BUILT, Point.OPTIMIZER_STEP)
            if missing:
                return missing
    for (phase, model, _, _), group in groups.items():
        at = group[0].ranks
        if at.data_size * at.tensor_size * at.pipeline_size != case.job.gpu_count:
            sizes = f"data {at.data_size}, tensor {at.tensor_size}, pipeline {at.pipeline_size}"
            return f"the groups of the {model} in the {phase} phase ({sizes}) do not make {case.job.gpu_count} ranks"
    return ""


def _notes(case: Case, groups: dict[tuple[str, str, Point, int], list[Snapshot]]) -> Iterable[str]:
    held = [tensor for group in groups.values() for snapshot in group for tensor in tensors(snapshot).values()]
    sharded = len({tensor.name for tensor in held if tensor.sharded})
    if sharded:
        yield f"{sharded} parameters are shared out over data-parallel ranks, which hold parts of them and no copies"
    partial = sum(len(group) != case.job.gpu_count for group in groups.values())
    if partial:
        yield f"At {partial} of {len(groups)} points not every rank left a fingerprint"
