"""Three criteria on a trainer's own weights: what trains moves, what is frozen stays, and copies are equal.

What should train does: each parameter with `requires_grad` got a gradient, and the adapters moved.

A weight in half precision may stay as it is although it trains, because the step is smaller than its type shows. On
the other hand weight decay scales a weight, or its main copy, that never gets a gradient. So a parameter counts as
trained when a moment of it is not zero, or when it or its main copy changed by more than a factor near one; where the
optimizer keeps no moments any change counts. It surely did not train when its moments are zero and no more than decay
changed it, or when it began as zero and stayed zero while others moved.

That is a fault for every adapter of a decoder layer once the optimizer made two steps: in the first one `lora_A` gets
no gradient, because `lora_B` is zero. For other parameters it is a fault when it holds for all of a kind. Experts
without tokens, routers that choose one expert, MTP layers and encoders of other media may go without a gradient: they
are named as limitations.

Frozen stays frozen, and an export only reads.

A parameter without `requires_grad` has the bits with which the model was built at every later point of its process.
Every parameter, adapters included, has after an export the bits that it had before.

What ranks hold in common is equal: after the model was built, after a checkpoint was loaded, after each step.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_e2e.core.compare.steps import FoundDifference, TensorDifference, difference, is_constant, same
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.basic import ACTOR
from verl_e2e.core.judge.criteria.health import trained_models
from verl_e2e.core.judge.criteria.snapshots import (
    Finding,
    Forms,
    TensorFault,
    broken,
    by_process,
    finding,
    gap,
    left_out_note,
    names,
    phases,
    place_of,
    snapshots,
    tensors,
    uneven_notes,
)
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Ranks, Snapshot, Tensor, TensorKind
from verl_e2e.core.model.outcome import Stage

_TRAIN_STAGE = Stage.TRAIN_STEP
_MOMENTS = frozenset({"exp_avg", "exp_avg_sq", "momentum_buffer"})
# Under the precision-aware optimizer the main copy is a part of its state.
_MAIN = frozenset({"main", "master_param"})
# The learning rate times the weight decay of all steps of a run stays far below a tenth.
_LEAST_DECAY = 0.9
_MAY_REST = re.compile(r"expert|router|mtp|vision|visual|audio|image")
_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class _Parameter:
    """What all ranks that hold parts or copies of one parameter say of it."""

    tensor: Tensor
    # Whether it was zero at the start.
    from_zero: bool
    # Whether its bits changed on any rank.
    moved: bool = False
    # Whether its main copy changed on any rank.
    main_moved: bool = False
    # Whether weight decay alone cannot have made such a change of it or of its main copy.
    stepped: bool = False
    # The moments that ranks hold of it.
    moments: list[Tensor] = field(default_factory=list)

    @property
    def has_gradient(self) -> bool:
        """Whether some moment is not zero."""
        return any(moment.square != 0 for moment in self.moments)

    @property
    def trained(self) -> bool:
        """Whether anything shows that it trains."""
        return self.has_gradient or self.stepped or (not self.moments and (self.moved or self.main_moved))


def trained_weights(case: Case) -> Finding:
    """Whether each parameter that should train did, in each phase."""
    notes: list[str] = []
    number, steps = 0, 0
    for phase in phases(case):
        for model in trained_models(case):
            missing = gap(case, model, phase, Point.MODEL_BUILT, Point.OPTIMIZER_STEP)
            if missing:
                return finding(State.MISSING, missing, _TRAIN_STAGE)
            parameters, made = _parameters(case, model, phase)
            others = any(item.moved for item in parameters.values())
            still = {name: item for name, item in parameters.items() if not _is_fine(item, others_moved=others)}
            faults = tuple(_faults(still, parameters, made, others_moved=others))
            if faults:
                text = f"parameters of the {model} did not train in {made} optimizer step(s) of the {phase} phase"
                return broken(_TRAIN_STAGE, text, faults)
            notes += _resting_notes(still, model, made)
            number, steps = number + len(parameters) - len(still), steps + made
    if not number:
        return finding(State.MISSING, "no fingerprint shows a parameter that trains", _TRAIN_STAGE, notes)
    notes += left_out_note(snapshots(case, Point.OPTIMIZER_STEP))
    text = f"{number} parameters of {' and '.join(trained_models(case))} trained in {steps} optimizer steps"
    return finding(State.MET, text, _TRAIN_STAGE, notes)


def _parameters(case: Case, model: str, phase: str) -> tuple[dict[str, _Parameter], int]:
    """By place and name what became of each parameter that trains, and how many steps the optimizer made."""
    points = (Point.MODEL_BUILT, Point.CHECKPOINT_LOADED, Point.BEFORE_EXPORT, Point.OPTIMIZER_STEP)
    found: dict[str, _Parameter] = {}
    steps = 0
    looked_at = snapshots(case, *points, model=model, phase=phase)
    forms = Forms(looked_at)
    for taken in by_process(looked_at).values():
        made = [item for item in taken if item.point is Point.OPTIMIZER_STEP]
        before = taken[: taken.index(made[0])] if made else []
        start = next((item for item in reversed(before) if item.point is not Point.BEFORE_EXPORT), None)
        if start is not None:
            steps = max(steps, made[-1].number + 1)
            _add(found, start, made, _after(taken, made[-1]), forms)
    return found, steps


def _after(taken: Sequence[Snapshot], last: Snapshot) -> Snapshot:
    """Where the parameters are after the last step: those that are gathered later are there before the next export."""
    later = (item for item in taken[taken.index(last) :] if item.point in (last.point, Point.BEFORE_EXPORT))
    return next((item for item in later if tensors(item)), last)


def _add(
    found: dict[str, _Parameter], start: Snapshot, made: Sequence[Snapshot], after: Snapshot, forms: Forms
) -> None:
    """What one rank says: the state before the first step, at each step, and the parameters after the last one."""
    held, states, earlier = tensors(after), _states(made[-1]), tensors(made[0], TensorKind.OPTIMIZER)
    for name, tensor in tensors(start).items():
        if not tensor.requires_grad:
            continue
        item = found.setdefault(f"{name} {place_of(start.ranks, tensor)}", _Parameter(tensor, from_zero=True))
        # Of shards, each must be zero.
        item.from_zero &= tensor.square == 0
        if name in held and forms.can_compare(name, start, after):
            change = forms.difference(name, start, after)
            item.moved |= change is not None
            item.stepped |= _beyond_decay(change)
        for key, state in states.get(name, ()):
            if key in _MOMENTS:
                item.moments.append(state)
            elif key in _MAIN and state.name in earlier:
                item.main_moved |= not same(earlier[state.name], state)
                item.stepped |= _beyond_decay(difference(earlier[state.name], state))


def _beyond_decay(change: FoundDifference | None) -> bool:
    """Whether one factor near one for all elements does not explain a change."""
    if change is None or change.kind is TensorDifference.ROUNDED:
        return False
    return change.kind is not TensorDifference.SCALE or not _LEAST_DECAY <= change.factor <= 1


def _states(snapshot: Snapshot) -> Mapping[str, list[tuple[str, Tensor]]]:
    """By parameter what the optimizer holds of it: `<parameter>/<state>`, with `[START:END]` for a part."""
    states: dict[str, list[tuple[str, Tensor]]] = {}
    for tensor in tensors(snapshot, TensorKind.OPTIMIZER).values():
        name, _, state = tensor.name.partition("/")
        states.setdefault(name, []).append((state.partition("[")[0], tensor))
    return states


def _is_fine(item: _Parameter, *, others_moved: bool) -> bool:
    """Whether it trained: from zero any step shows in its bits, unless the learning rate left all as they were."""
    stuck = item.from_zero and not item.moved and others_moved
    return item.trained and not stuck


def _faults(
    still: Mapping[str, _Parameter], parameters: Mapping[str, _Parameter], steps: int, *, others_moved: bool
) -> Iterator[TensorFault]:
    """Those of the parameters at rest that surely should have trained and surely did not."""
    kinds: dict[str, bool] = {}
    for name, item in parameters.items():
        kind = _NUMBER.sub("*", item.tensor.name)
        kinds[kind] = kinds.get(kind, True) and name in still
    zero = any(item.from_zero and _is_adapter(item) for item in parameters.values())
    for item in still.values():
        adapter = _is_adapter(item)
        late = steps > 1 or item.from_zero or not (adapter and zero)
        certain = late and ".layers." in f".{item.tensor.name}" and not _MAY_REST.search(item.tensor.name)
        if (
            certain
            and _is_sure(item, others_moved=others_moved)
            and (adapter or kinds[_NUMBER.sub("*", item.tensor.name)])
        ):
            yield TensorFault(item.tensor.name, _what(item), item.tensor, item.tensor)


def _is_adapter(item: _Parameter) -> bool:
    return ".adapter" in item.tensor.name


def _is_sure(item: _Parameter, *, others_moved: bool) -> bool:
    """Whether more than unchanged bits says that it did not train."""
    return bool(item.moments and not item.has_gradient) or (item.from_zero and others_moved)


def _what(item: _Parameter) -> str:
    if item.has_gradient:
        return "it got a gradient, and yet it is still zero"
    if not item.moments:
        return "it is still zero"
    moved = "weight decay alone moved it" if item.moved or item.main_moved else "it did not move"
    return f"its moments are zero, so it got no gradient, and {moved}"


def _resting_notes(still: Mapping[str, _Parameter], model: str, steps: int) -> Iterator[str]:
    resting = list(dict.fromkeys(item.tensor.name for item in still.values()))
    if resting:
        listed = names(resting)
        yield f"{len(resting)} parameters of the {model} were not seen to train in {steps} step(s): {listed}"


# Where a frozen parameter is looked at, and the stage that a change found there belongs to.
_FROZEN_STAGES = {
    Point.MODEL_BUILT: Stage.BRIDGE_PROVIDER,
    Point.CHECKPOINT_LOADED: Stage.CHECKPOINT_LOAD,
    Point.BEFORE_EXPORT: Stage.TRAIN_STEP,
    Point.AFTER_EXPORT: Stage.EXPORT_WEIGHT_SYNC,
    Point.OPTIMIZER_STEP: Stage.TRAIN_STEP,
    Point.CHECKPOINT_SAVED: Stage.CHECKPOINT_SAVE,
}


def frozen_weights(case: Case) -> Finding:
    """Whether no frozen parameter changed, and no export changed any."""
    stage = Stage.TRAIN_STEP
    looked_at = snapshots(case, *_FROZEN_STAGES)
    processes, forms = by_process(looked_at), Forms(looked_at)
    for (phase, model, _), taken in processes.items():
        found = next(_changed_by_export(taken, forms), None) or next(_changed_frozen(taken, forms), None)
        if found:
            at, text, faults = found
            summary = f"{text} of the {model} changed by '{at.point}' {at.number + 1} of the {phase} phase"
            return broken(_FROZEN_STAGES[at.point], f"{summary} on rank {at.ranks.rank}", faults)
    missing = _frozen_gap(case)
    if missing:
        return finding(State.MISSING, missing, stage)
    frozen = max((len(_frozen(taken[0])) for taken in processes.values()), default=0)
    exports = sum(item.point is Point.AFTER_EXPORT for taken in processes.values() for item in taken)
    held = f"{frozen} frozen parameters of a rank never changed" if frozen else "no parameter is frozen"
    text = f"{held}, and none changed in {exports} exports"
    left_out = left_out_note(item for taken in processes.values() for item in taken)
    return finding(State.MET, text, stage, [*_uneven(case), *left_out, *forms.notes()])


def _uneven(case: Case) -> Iterator[str]:
    for phase in phases(case):
        for model in trained_models(case):
            yield from uneven_notes(case, model, phase, Point.BEFORE_EXPORT, Point.AFTER_EXPORT)
            yield from uneven_notes(case, model, phase, Point.OPTIMIZER_STEP)


def _frozen_gap(case: Case) -> str:
    for phase in phases(case):
        for model in trained_models(case):
            points = (Point.BEFORE_EXPORT, Point.AFTER_EXPORT) if model == "actor" else ()
            missing = gap(case, model, phase, Point.MODEL_BUILT, Point.OPTIMIZER_STEP, *points)
            if missing:
                return missing
    return ""


Change = tuple[Snapshot, str, Sequence[TensorFault]]


def _changed_by_export(taken: Sequence[Snapshot], forms: Forms) -> Iterator[Change]:
    """Exports after which a parameter differs from what it was right before them."""
    before = {snapshot.number: snapshot for snapshot in taken if snapshot.point is Point.BEFORE_EXPORT}
    for snapshot in taken:
        if snapshot.point is Point.AFTER_EXPORT and snapshot.number in before:
            first = before[snapshot.number]
            faults = tuple(_differences(dict.fromkeys(forms.held(first), first), snapshot, forms))
            if faults:
                yield snapshot, "parameters", faults


def _changed_frozen(taken: Sequence[Snapshot], forms: Forms) -> Iterator[Change]:
    """Points at which a frozen parameter is not what the model was built with."""
    built = next((snapshot for snapshot in taken if snapshot.point is Point.MODEL_BUILT), None)
    if built is None:
        return
    first = dict.fromkeys(_frozen(built), built)
    for snapshot in taken:
        faults = tuple(_differences(first, snapshot, forms))
        if faults:
            yield snapshot, "frozen parameters", faults
        # From where a parameter is whole on, its bits can be compared.
        held = forms.held(snapshot)
        whole = (name for name in first if name in held and not held[name].sharded)
        first |= {name: snapshot for name in whole if forms.held(first[name])[name].sharded}


def _frozen(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(name for name, tensor in tensors(snapshot).items() if tensor.requires_grad is False)


def _differences(before: Mapping[str, Snapshot], after: Snapshot, forms: Forms) -> Iterator[TensorFault]:
    """What differs, with the snapshot that each parameter is compared with."""
    held = forms.held(after)
    for name in before:
        kind = forms.difference(name, before[name], after) if name in held else None
        if kind:
            yield TensorFault.differs(forms.held(before[name])[name], held[name], kind)


_COPY_STAGES = {
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
    if case.job.gpu_count == 1:
        return finding(State.MET, "one rank: nothing is held twice", Stage.TRAIN_STEP)
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
            return broken(_COPY_STAGES[point], text, faults)
    count = sum(comparison.count for comparison in comparisons.values())
    notes = [note for comparison in comparisons.values() for note in comparison.notes]
    missing = _copies_gap(case, groups)
    if missing:
        return finding(State.MISSING, missing, Stage.TRAIN_STEP, notes)
    notes += [*left_out_note(snapshot for group in groups.values() for snapshot in group), *_copies_notes(case, groups)]
    text = f"{count} comparisons of copies on {case.job.gpu_count} ranks at {len(groups)} points, all equal"
    text = text if count else f"no parameter that was read lies on more than one of {case.job.gpu_count} ranks"
    return finding(State.MET, text, Stage.TRAIN_STEP, notes)


def _groups(case: Case) -> dict[tuple[str, str, Point, int], list[Snapshot]]:
    """The snapshots that all ranks of a model take at one point, in the order of time."""
    groups: dict[tuple[str, str, Point, int], list[Snapshot]] = {}
    for snapshot in snapshots(case, *_COPY_STAGES):
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
        first_built = self._built.get(first.ranks.rank, {}).get(tensor.name)
        last_built = self._built.get(last.ranks.rank, {}).get(copy.name)
        return (
            first_built is not None
            and last_built is not None
            and same(first_built, last_built)
            and not is_constant(first_built)
        )


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


def _copies_gap(case: Case, groups: dict[tuple[str, str, Point, int], list[Snapshot]]) -> str:
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


def _copies_notes(case: Case, groups: dict[tuple[str, str, Point, int], list[Snapshot]]) -> Iterable[str]:
    held = [tensor for group in groups.values() for snapshot in group for tensor in tensors(snapshot).values()]
    sharded = len({tensor.name for tensor in held if tensor.sharded})
    if sharded:
        yield f"{sharded} parameters are shared out over data-parallel ranks, which hold parts of them and no copies"
    partial = sum(len(group) != case.job.gpu_count for group in groups.values())
    if partial:
        yield f"At {partial} of {len(groups)} points not every rank left a fingerprint"
