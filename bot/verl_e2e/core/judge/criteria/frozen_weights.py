"""Frozen stays frozen, and an export only reads.

A parameter without `requires_grad` has the bits with which the model was built at every later point of its process.
Every parameter, adapters included, has after an export the bits that it had before.
"""

from collections.abc import Iterator, Mapping, Sequence

from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.forms import Forms
from verl_e2e.core.judge.criteria.health import trained_models
from verl_e2e.core.judge.criteria.snapshots import (
    Finding,
    TensorFault,
    broken,
    by_process,
    finding,
    gap,
    left_out_note,
    phases,
    snapshots,
    tensors,
    uneven_notes,
    waived,
)
from verl_e2e.core.model.evidence import Criterion, State
from verl_e2e.core.model.fingerprints import Point, Snapshot
from verl_e2e.core.model.stages import Stage

_CRITERION = Criterion.FROZEN_WEIGHTS
# Where a frozen parameter is looked at, and the stage that a change found there belongs to.
_STAGES = {
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
    if case.record.fingerprints is None:
        return waived(_CRITERION, stage)
    looked_at = snapshots(case, *_STAGES)
    processes, forms = by_process(looked_at), Forms(looked_at)
    for (phase, model, _), taken in processes.items():
        found = next(_changed_by_export(taken, forms), None) or next(_changed_frozen(taken, forms), None)
        if found:
            at, text, faults = found
            summary = f"{text} of the {model} changed by '{at.point}' {at.number + 1} of the {phase} phase"
            return broken(_CRITERION, _STAGES[at.point], f"{summary} on rank {at.ranks.rank}", faults)
    missing = _gap(case)
    if missing:
        return finding(_CRITERION, State.MISSING, missing, stage)
    frozen = max((len(_frozen(taken[0])) for taken in processes.values()), default=0)
    exports = sum(item.point is Point.AFTER_EXPORT for taken in processes.values() for item in taken)
    held = f"{frozen} frozen parameters of a rank never changed" if frozen else "no parameter is frozen"
    text = f"{held}, and none changed in {exports} exports"
    left_out = left_out_note(item for taken in processes.values() for item in taken)
    return finding(_CRITERION, State.MET, text, stage, [*_uneven(case), *left_out, *forms.notes()])


def _uneven(case: Case) -> Iterator[str]:
    for phase in phases(case):
        for model in trained_models(case):
            yield from uneven_notes(case, model, phase, Point.BEFORE_EXPORT, Point.AFTER_EXPORT)
            yield from uneven_notes(case, model, phase, Point.OPTIMIZER_STEP)


def _gap(case: Case) -> str:
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


def _frozen(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(name for name, tensor in tensors(snapshot).items() if tensor.requires_grad is False)


def _differences(before: Mapping[str, Snapshot], after: Snapshot, forms: Forms) -> Iterator[TensorFault]:
    """What differs, with the snapshot that each parameter is compared with."""
    held = forms.held(after)
    for name in before:
        kind = forms.difference(name, before[name], after) if name in held else None
        if kind:
            yield TensorFault.differs(forms.held(before[name])[name], held[name], kind)
