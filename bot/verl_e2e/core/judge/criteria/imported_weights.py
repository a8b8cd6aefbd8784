"""What was imported is what the checkpoint's files hold.

A wrong import gives trainer and rollout the same wrong model, so they agree. But what is exported before any training
is, under Hugging Face's names, what the import made of the files, and is compared with the files themselves by bits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_e2e.core.compare.tensors import (
    Difference,
    Found,
    converts,
    difference,
    difference_but_rounding,
    is_constant,
)
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.health import wants_adapter
from verl_e2e.core.judge.criteria.snapshots import (
    Finding,
    TensorFault,
    broken,
    by_process,
    finding,
    gap,
    hook_problems,
    left_out_note,
    names,
    phases,
    snapshots,
    tensors,
    waived,
)
from verl_e2e.core.model.evidence import Criterion, State
from verl_e2e.core.model.fingerprints import Point, Snapshot, Tensor
from verl_e2e.core.model.stages import Stage

_CRITERION, _STAGE = Criterion.IMPORTED_WEIGHTS, Stage.HF_IMPORT
_ACTOR = "actor"
_MERGED = "actor_rollout_ref.model.lora.merge"
_NOT_IMPORTED = "actor_rollout_ref.actor.megatron.use_dist_checkpointing"
_LONGEST = 200


@dataclass(slots=True)
class _Seen:
    """The names in the files of what was compared, and of what was not."""

    compared: set[str] = field(default_factory=set)
    # Not compared: another shape, a type whose rounding is not known.
    shapes: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    # Vectors that are equal but for rounding.
    rounded: set[str] = field(default_factory=set)
    # On one side alone.
    not_exported: set[str] = field(default_factory=set)
    not_in_files: set[str] = field(default_factory=set)

    def notes(self) -> Iterator[str]:
        """What was not shown to be equal, in sentences."""
        rows = (
            (self.shapes, "Not compared with the checkpoint's files, which have another shape"),
            (self.types, "Not compared with the checkpoint's files, which have another type"),
            (self.rounded, "Equal to the checkpoint's files but for rounding"),
            (self.not_exported, "In the checkpoint's files and not exported"),
            (self.not_in_files, "Exported and not in the checkpoint's files"),
        )
        for listed, text in rows:
            if listed:
                yield f"{text}: {len(listed)} tensors ({names(sorted(listed))})"


def imported_weights(case: Case) -> Finding:
    """Whether the base weights that were exported first are those of the checkpoint's files."""
    if case.record.fingerprints is None:
        return waived(_CRITERION, _STAGE)
    reason = _not_comparable(case)
    if reason:
        return finding(_CRITERION, State.WAIVED, reason, _STAGE)
    seen = _Seen()
    compared: list[Snapshot] = []
    for phase in phases(case):
        files, exports = _files(case, phase), tuple(_first_exports(case, phase))
        if files is not None and exports:
            compared += (files, *exports)
            faults = _faults(files, exports, seen)
            if faults:
                return _broken(case, phase, faults, seen)
    notes = (*seen.notes(), *left_out_note(compared))
    missing = next(_gaps(case), None)
    if missing:
        stage, text = missing
        return finding(_CRITERION, State.MISSING, text, stage, notes)
    if not seen.compared:
        return finding(_CRITERION, State.WAIVED, _nothing_compared(case, compared), _STAGE, notes)
    text = f"{len(seen.compared)} tensors were imported and exported again as the checkpoint's files hold them"
    return finding(_CRITERION, State.MET, text, _STAGE, notes)


def _not_comparable(case: Case) -> str:
    """Why the export of this configuration is not what the files hold, empty where it should be."""
    if wants_adapter(case) and case.config_value(_MERGED) is True:
        return "the adapter is merged into what is exported: it was not compared with the checkpoint's files"
    if case.config_value(_NOT_IMPORTED) is True:
        return "the weights came from a checkpoint of Megatron's: they were not compared with the checkpoint's files"
    return ""


def _files(case: Case, phase: str) -> Snapshot | None:
    return next(iter(snapshots(case, Point.CHECKPOINT_FILE, model=_ACTOR, phase=phase)), None)


def _first_exports(case: Case, phase: str) -> Iterator[Snapshot]:
    """The first export of each rank, where it is of base weights and nothing was trained or loaded before it."""
    points = (Point.EXPORTED, Point.OPTIMIZER_STEP, Point.CHECKPOINT_LOADED)
    for taken in by_process(snapshots(case, *points, model=_ACTOR, phase=phase)).values():
        if taken[0].point is Point.EXPORTED and not taken[0].adapter_only:
            yield taken[0]


def _faults(files: Snapshot, exports: Sequence[Snapshot], seen: _Seen) -> tuple[TensorFault, ...]:
    """The tensors that any rank exported otherwise than the files hold them."""
    held = tensors(files)
    faults: dict[str, TensorFault] = {}
    exported: set[str] = set()
    for export in exports:
        for tensor in tensors(export).values():
            name = _name_in_files(tensor.name)
            exported.add(name)
            kind = _compared(name, held, tensor, seen)
            if kind:
                faults.setdefault(name, TensorFault.differs(held[name], tensor, kind))
    if not any(item.left_out or item.problem for item in (files, *exports)):
        seen.not_exported |= held.keys() - exported
        seen.not_in_files |= exported - held.keys()
    return tuple(faults.values())


def _name_in_files(name: str) -> str:
    """A layer with an adapter is exported under the name of the layer that the adapter wraps."""
    return name.replace(".base_layer.", ".")


def _compared(name: str, held: Mapping[str, Tensor], exported: Tensor, seen: _Seen) -> Found | None:
    """How an exported tensor differs from that of the files, where the two can be compared."""
    tensor = held.get(name)
    if tensor is None:
        return None
    if tensor.shape != exported.shape:
        seen.shapes.add(name)
        return None
    if tensor.dtype != exported.dtype and not converts(tensor, exported):
        seen.types.add(name)
        return None
    alike = tensor.dtype == exported.dtype
    kind = difference(tensor, exported) if alike else difference_but_rounding(tensor, exported)
    # Some families have norms around one in their files and around zero in Megatron.
    if kind and kind.kind is Difference.ROUNDED and len(tensor.shape) == 1:
        seen.rounded.add(name)
        return None
    seen.compared.add(name)
    return kind


def _broken(case: Case, phase: str, faults: Sequence[TensorFault], seen: _Seen) -> Finding:
    """A parameter of the model that holds what the files hold, or what was exported, tells which way was wrong."""
    imported = snapshots(case, Point.WEIGHTS_IMPORTED, model=_ACTOR, phase=phase)
    held = frozenset(tensor.bits for item in imported for tensor in item.tensors if not is_constant(tensor))
    export_is_wrong = any(fault.expected is not None and fault.expected.bits in held for fault in faults)
    import_is_wrong = any(fault.found is not None and fault.found.bits in held for fault in faults)
    stage, which = _STAGE, "the import or the export is wrong"
    if export_is_wrong and not import_is_wrong:
        stage, which = Stage.EXPORT_WEIGHT_SYNC, "the model held what they hold, so the export is wrong"
    elif import_is_wrong and not export_is_wrong:
        which = "the model held what was exported, so the import is wrong"
    text = f"the first export of the {phase} phase is not what the checkpoint's files hold ({which})"
    return broken(_CRITERION, stage, text, faults, seen.notes())


def _gaps(case: Case) -> Iterator[tuple[Stage, str]]:
    """Where a rank left no export, or no file was looked at."""
    for phase in phases(case):
        missing = gap(case, _ACTOR, phase, Point.EXPORTED)
        if missing:
            yield Stage.EXPORT_WEIGHT_SYNC, missing
        if not _left(case, phase, Point.CHECKPOINT_FILE, Point.WEIGHTS_IMPORTED):
            yield (
                _STAGE,
                f"no fingerprint '{Point.CHECKPOINT_FILE}' of the actor in the {phase} phase{hook_problems(case)}",
            )


def _left(case: Case, phase: str, *points: Point) -> list[Snapshot]:
    """The actor's snapshots at these points, those that say only why nothing could be read included."""
    found = case.record.fingerprints
    return [
        item
        for item in (found.snapshots if found else ())
        if item.point in points and item.model == _ACTOR and item.phase == phase
    ]


def _nothing_compared(case: Case, compared: Sequence[Snapshot]) -> str:
    """Why no tensor was compared."""
    if compared:
        return "no exported tensor could be compared with one of the checkpoint's files"
    looked = [item for phase in phases(case) for item in _left(case, phase, Point.CHECKPOINT_FILE)]
    if not looked:
        return "the folder does not say what the checkpoint's files hold: what was imported was not compared with them"
    problem = next((item.problem for item in looked if item.problem and not item.tensors), "")
    if problem:
        return f"what was imported was not compared with the checkpoint's files: {problem[:_LONGEST]}"
    return "no base weights were exported before the training: they were not compared with the checkpoint's files"
