"""Level 1: what the second phase loaded is what the first one had saved, tensor by tensor, moments included.

The state is taken on each rank after the save and after the load. On the same rank the bits must be equal; where
ranks hold other parts of tensors than before, the sums over all ranks must be. A parameter that has after the load
what it had before was not restored; where the policy declares that the pinned commits never do, it is a limitation.
"""

from collections.abc import Iterator, Sequence

from verl_e2e.core.compare.tensors import adds_up, count, difference
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.forms import Forms
from verl_e2e.core.judge.criteria.health import trained_models
from verl_e2e.core.judge.criteria.snapshots import (
    Finding,
    TensorFault,
    broken,
    finding,
    gap,
    left_out_note,
    snapshots,
    tensors,
    waived,
)
from verl_e2e.core.judge.phases import planned_phases
from verl_e2e.core.model.evidence import Criterion, State
from verl_e2e.core.model.fingerprints import Kind, Point, Snapshot, Tensor
from verl_e2e.core.model.stages import Stage

_CRITERION, _STAGE = Criterion.RESUMED_STATE, Stage.CHECKPOINT_LOAD


def resumed_state(case: Case) -> Finding:
    """Whether each trained model has after the load what it had after the save."""
    if case.record.fingerprints is None:
        return waived(_CRITERION, _STAGE)
    planned = planned_phases(case.job)
    if len(planned) < 2:
        return finding(_CRITERION, State.MISSING, "the job saves nothing, so nothing is resumed", _STAGE)
    save, resume = planned[0], planned[1]
    compared, count, notes = [], 0, list[str]()
    forms = Forms(snapshots(case, Point.CHECKPOINT_SAVED, Point.CHECKPOINT_LOADED))
    for model in trained_models(case):
        saved = _of_step(snapshots(case, Point.CHECKPOINT_SAVED, model=model, phase=save.name), save.last_step)
        loaded = _first(snapshots(case, Point.CHECKPOINT_LOADED, model=model, phase=resume.name))
        before = _first(snapshots(case, Point.MODEL_BUILT, model=model, phase=resume.name))
        found = tuple(_faults(saved, loaded, before, forms)) if saved and loaded else ()
        declared = _declared(case, model)
        faults = tuple(fault for fault in found if not (fault.stale and fault.name in declared))
        notes += (declared[fault.name] for fault in found if fault not in faults)
        if faults:
            text = f"what the {resume.name} phase loaded of the {model} is not what the {save.name} phase saved"
            return broken(_CRITERION, _STAGE, text, faults, notes)
        missing = gap(case, model, save.name, Point.CHECKPOINT_SAVED) or gap(
            case, model, resume.name, Point.CHECKPOINT_LOADED
        )
        if missing or not _holds_moments(saved):
            text = missing or f"the fingerprints of the {model}'s checkpoint hold no state of the optimizer"
            return finding(_CRITERION, State.MISSING, text, _STAGE, notes)
        compared += [*saved.values(), *loaded.values()]
        count += sum(len(_state(snapshot)) for snapshot in loaded.values())
    count -= len(notes)
    text = f"{count} tensors of {' and '.join(trained_models(case))}, optimizer state included, are as they were saved"
    return finding(_CRITERION, State.MET, text, _STAGE, [*notes, *left_out_note(compared), *forms.notes()])


def _declared(case: Case, model: str) -> dict[str, str]:
    """By parameter what a card says of one that is known to stay as it was."""
    return {
        parameter: (
            f"Known defect {entry.name}: {parameter} of the {model} has after the load what it had before: "
            f"{entry.reason}{f' ({entry.upstream})' if entry.upstream else ''}"
        )
        for entry in case.job.not_restored
        if entry.model == model
        for parameter in entry.parameters
    }


def _state(snapshot: Snapshot) -> dict[str, Tensor]:
    return tensors(snapshot, Kind.PARAMETER, Kind.OPTIMIZER)


def _holds_moments(saved: dict[int, Snapshot]) -> bool:
    return any(tensor.kind is Kind.OPTIMIZER for snapshot in saved.values() for tensor in snapshot.tensors)


def _of_step(found: Sequence[Snapshot], step: int) -> dict[int, Snapshot]:
    """By rank the last snapshot of that step; of any step where none names one."""
    named = [snapshot for snapshot in found if snapshot.step == step]
    return {snapshot.ranks.rank: snapshot for snapshot in named or found if snapshot.step in (step, None)}


def _first(found: Sequence[Snapshot]) -> dict[int, Snapshot]:
    return {snapshot.ranks.rank: snapshot for snapshot in reversed(found)}


def _faults(
    saved: dict[int, Snapshot], loaded: dict[int, Snapshot], built: dict[int, Snapshot], forms: Forms
) -> Iterator[TensorFault]:
    common = [rank for rank in saved if rank in loaded]
    other_parts = any(_parts_of(loaded[rank]) - _parts_of(saved[rank]) for rank in common)
    cut = _cut(saved, loaded) if other_parts and set(saved) == set(loaded) else frozenset()
    for rank in common:
        before, after = _state(saved[rank]), _state(loaded[rank])
        start = tensors(built[rank]) if rank in built else {}
        for name, tensor in before.items():
            other = after.get(name)
            if other is not None and tensor.sharded != other.sharded:
                kind = forms.difference(name, saved[rank], loaded[rank])
                yield from [TensorFault.differs(tensor, other, kind)] if kind else ()
            elif _whole(name) not in cut:
                yield from _faults_of_tensor(tensor, other, start.get(name), loaded[rank])
    yield from _faults_of_sums(saved, loaded, cut)


def _faults_of_tensor(
    saved: Tensor, loaded: Tensor | None, built: Tensor | None, snapshot: Snapshot
) -> Iterator[TensorFault]:
    if loaded is None:
        if not snapshot.left_out and not snapshot.problem:
            yield TensorFault(saved.name, f"not there on rank {snapshot.ranks.rank} after the load", saved)
        return
    # A count of steps may be a number before and a tensor after, of another type.
    earlier = (built,) if built is not None else ()
    kind = None if count(saved) == 1 and adds_up([loaded], [saved]) else difference(saved, loaded, earlier=earlier)
    if kind:
        yield TensorFault.differs(saved, loaded, kind)


def _parts_of(snapshot: Snapshot) -> set[str]:
    """The parts of tensors that a rank holds; a name without a range stands for a whole tensor."""
    return {tensor.name for tensor in snapshot.tensors if "[" in tensor.name}


def _cut(*states: dict[int, Snapshot]) -> frozenset[str]:
    """The tensors of which some rank holds a part."""
    parts = (name for state in states for snapshot in state.values() for name in _parts_of(snapshot))
    return frozenset(map(_whole, parts))


def _whole(name: str) -> str:
    """The name of the tensor that a part is of."""
    return name.partition("[")[0]


def _faults_of_sums(
    saved: dict[int, Snapshot], loaded: dict[int, Snapshot], cut: frozenset[str]
) -> Iterator[TensorFault]:
    """Those of the tensors whose parts do not add up to the same over all ranks."""
    before, after = _parts(saved), _parts(loaded)
    partial = any(snapshot.left_out or snapshot.problem for snapshot in loaded.values())
    for name, parts in before.items():
        others = after.get(name, [])
        if name not in cut:
            continue
        if not others:
            if not partial:
                yield TensorFault(name, "not there on any rank after the load", parts[0])
        elif not adds_up(others, parts):
            what = "its parts on all ranks do not add up to what was saved"
            zero = all(tensor.square == 0 for tensor in others) and any(tensor.square for tensor in parts)
            yield TensorFault(name, "all zero" if zero else what, parts[0], others[0])


def _parts(found: dict[int, Snapshot]) -> dict[str, list[Tensor]]:
    parts: dict[str, list[Tensor]] = {}
    for snapshot in found.values():
        for tensor in _state(snapshot).values():
            parts.setdefault(_whole(tensor.name), []).append(tensor)
    return parts
