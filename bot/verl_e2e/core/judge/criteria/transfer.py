"""Two criteria on weights that are moved: imported from a checkpoint's files, sent to the rollout.

Which tensors that arrived make up a parameter of the rollout engine, by vLLM's names.

What was imported is what the checkpoint's files hold.

A wrong import gives trainer and rollout the same wrong model, so they agree. But what is exported before any training
is, under Hugging Face's names, what the import made of the files, and is compared with the files themselves by bits.

The rollout holds what the trainer exported: name by name as it arrived, and by sums as the engine loaded it.

Trainer and rollout number their syncs alike, so an export is compared with what arrived in the sync of its number: the
base weights are sent once and the adapters in every sync, or all weights in every sync. The engine fuses projections
and shares weights between tensor ranks, so what it loaded is compared by sums, where its names say what was fused.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_e2e.core.compare.steps import (
    FoundDifference,
    TensorDifference,
    adds_up,
    converts,
    count,
    difference,
    difference_but_rounding,
    is_constant,
    same,
)
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.health import wants_adapter
from verl_e2e.core.judge.criteria.snapshots import (
    ROLLOUT,
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
    uneven_notes,
)
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Snapshot, Tensor
from verl_e2e.core.model.outcome import Stage

# A projection of the engine, and those of Hugging Face's format that it computes at once, in this order.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
# A module with an adapter is exported under the name of the layer that the adapter wraps.
_STYLES = ("", ".base_layer")
_ADAPTER = re.compile(r"^(?P<module>.+)\.lora_(?P<part>[ab])(?:\[(?P<index>\d{1,2})\])?$")


def is_adapter(name: str) -> bool:
    """Whether the engine's name is that of a registered adapter."""
    return _ADAPTER.match(name) is not None


def sources(name: str, arrived: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The names under which the parts of an engine's parameter arrived; empty where that is not known."""
    adapter = _ADAPTER.match(name)
    if adapter:
        index = int(adapter["index"]) if adapter["index"] else None
        return _of_adapter(adapter["module"], adapter["part"].upper(), index, arrived)
    module, _, last = name.replace(".base_layer.", ".").rpartition(".")
    path, _, projection = module.rpartition(".")
    fused = tuple(f"{path}.{part}" for part in _FUSED.get(projection, ()))
    candidates = [tuple(f"{part}{style}.{last}" for part in parts) for parts in (fused, (module,)) for style in _STYLES]
    return next((parts for parts in candidates if parts and all(part in arrived for part in parts)), ())


def _of_adapter(module: str, part: str, index: int | None, arrived: Mapping[str, Tensor]) -> tuple[str, ...]:
    """An adapter of a fused projection has one entry for each part; any other has no index."""
    path, _, projection = module.rpartition(".")
    parts = _FUSED.get(projection, ())
    if (index is None) == bool(parts) or (index is not None and index >= len(parts)):
        return ()
    adapted = module if index is None else f"{path}.{parts[index]}"
    ending = f".{adapted}.lora_{part}.weight"
    return next(((source,) for source in arrived if f".{source}".endswith(ending)), ())


_IMPORT_STAGE = Stage.HF_IMPORT
_ACTOR = "actor"
_MERGED = "actor_rollout_ref.model.lora.merge"
_NOT_IMPORTED = "actor_rollout_ref.actor.megatron.use_dist_checkpointing"
_LONGEST = 200


@dataclass(slots=True)
class _SeenImports:
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
    reason = _not_comparable(case)
    if reason:
        return finding(State.WAIVED, reason, _IMPORT_STAGE)
    seen = _SeenImports()
    compared: list[Snapshot] = []
    for phase in phases(case):
        files, exports = _files(case, phase), tuple(_first_exports(case, phase))
        if files is not None and exports:
            compared += (files, *exports)
            faults = _import_faults(files, exports, seen)
            if faults:
                return _broken(case, phase, faults, seen)
    notes = (*seen.notes(), *left_out_note(compared))
    missing = next(_import_gaps(case), None)
    if missing:
        stage, text = missing
        return finding(State.MISSING, text, stage, notes)
    if not seen.compared:
        return finding(State.WAIVED, _nothing_compared(case, compared), _IMPORT_STAGE, notes)
    text = f"{len(seen.compared)} tensors were imported and exported again as the checkpoint's files hold them"
    return finding(State.MET, text, _IMPORT_STAGE, notes)


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


def _import_faults(files: Snapshot, exports: Sequence[Snapshot], seen: _SeenImports) -> tuple[TensorFault, ...]:
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


def _compared(name: str, held: Mapping[str, Tensor], exported: Tensor, seen: _SeenImports) -> FoundDifference | None:
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
    if kind and kind.kind is TensorDifference.ROUNDED and len(tensor.shape) == 1:
        seen.rounded.add(name)
        return None
    seen.compared.add(name)
    return kind


def _broken(case: Case, phase: str, faults: Sequence[TensorFault], seen: _SeenImports) -> Finding:
    """A parameter of the model that holds what the files hold, or what was exported, tells which way was wrong."""
    imported = snapshots(case, Point.WEIGHTS_IMPORTED, model=_ACTOR, phase=phase)
    held = frozenset(tensor.bits for item in imported for tensor in item.tensors if not is_constant(tensor))
    export_is_wrong = any(fault.expected is not None and fault.expected.bits in held for fault in faults)
    import_is_wrong = any(fault.found is not None and fault.found.bits in held for fault in faults)
    stage, which = _IMPORT_STAGE, "the import or the export is wrong"
    if export_is_wrong and not import_is_wrong:
        stage, which = Stage.EXPORT_WEIGHT_SYNC, "the model held what they hold, so the export is wrong"
    elif import_is_wrong and not export_is_wrong:
        which = "the model held what was exported, so the import is wrong"
    text = f"the first export of the {phase} phase is not what the checkpoint's files hold ({which})"
    return broken(stage, text, faults, seen.notes())


def _import_gaps(case: Case) -> Iterator[tuple[Stage, str]]:
    """Where a rank left no export, or no file was looked at."""
    for phase in phases(case):
        missing = gap(case, _ACTOR, phase, Point.EXPORTED)
        if missing:
            yield Stage.EXPORT_WEIGHT_SYNC, missing
        if not _left(case, phase, Point.CHECKPOINT_FILE, Point.WEIGHTS_IMPORTED):
            yield (
                _IMPORT_STAGE,
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


_ROLLOUT_STAGE = Stage.EXPORT_WEIGHT_SYNC
_ENGINE = "actor_rollout_ref.rollout.name"
# The engine that has hooks.
_LOOKED_INTO = "vllm"
_SCALES = ("actor_rollout_ref.model.lora.alpha", "actor_rollout_ref.model.lora.rank")
# How many syncs back a stale copy is looked for.
_EARLIER = 4
# The same values in another order or shape: an engine may transpose what it loads.
_ENGINES_OWN = frozenset(
    {TensorDifference.ORDER, TensorDifference.SHAPE, TensorDifference.DTYPE, TensorDifference.ROUNDED}
)


@dataclass(slots=True)
class _SeenSyncs:
    """What was compared, and what could not be."""

    arrived: int = 0
    loaded: int = 0
    notes: list[str] = field(default_factory=list)


def rollout_weights(case: Case) -> Finding:
    """Whether what arrived at the rollout is what was exported, and what it loaded is what arrived."""
    engine = case.config_value(_ENGINE)
    if engine != _LOOKED_INTO:
        text = f"the rollout engine {str(engine)[:40]} has no hooks: what arrived there was not compared"
        return finding(State.WAIVED, text, _ROLLOUT_STAGE)
    seen = _SeenSyncs()
    for phase in phases(case):
        fault = next(_faults_of_phase(case, phase, seen), None)
        if fault:
            text, faults = fault
            return broken(_ROLLOUT_STAGE, f"{text} in the {phase} phase", faults, seen.notes)
    missing = next(_rollout_gaps(case), "")
    if missing or not seen.arrived:
        text = missing or "no export has the number of a sync that arrived"
        return finding(State.MISSING, text, _ROLLOUT_STAGE, seen.notes)
    if seen.loaded:
        for phase in phases(case):
            seen.notes += uneven_notes(case, ROLLOUT, phase, Point.RECEIVED, Point.ROLLOUT_LOADED)
    taken = snapshots(case, Point.EXPORTED, Point.RECEIVED)
    if not seen.loaded:
        seen.notes.append("What the rollout engine made of the weights that arrived was not compared")
    text = f"{seen.arrived} tensors arrived as they were exported, {seen.loaded} were loaded as they arrived"
    return finding(State.MET, text, _ROLLOUT_STAGE, [*seen.notes, *left_out_note(taken)])


def _rollout_gaps(case: Case) -> Iterator[str]:
    for phase in phases(case):
        yield from filter(None, [gap(case, "actor", phase, Point.EXPORTED)])
        if not snapshots(case, Point.RECEIVED, model=ROLLOUT, phase=phase):
            yield f"no fingerprint '{Point.RECEIVED}' of the rollout in the {phase} phase{hook_problems(case)}"


Faults = tuple[str, Sequence[TensorFault]]


def _faults_of_phase(case: Case, phase: str, seen: _SeenSyncs) -> Iterator[Faults]:
    exported: dict[int, list[Snapshot]] = {}
    for snapshot in snapshots(case, Point.EXPORTED, model="actor", phase=phase):
        exported.setdefault(snapshot.number, []).append(snapshot)
    received = snapshots(case, Point.RECEIVED, model=ROLLOUT, phase=phase)
    for snapshot in received:
        faults = tuple(_faults_of_sync(snapshot, exported, seen))
        if faults:
            yield f"what arrived at the rollout in sync {snapshot.number + 1} is not what was exported", faults
    arrivals = _Arrivals(received)
    for group in _replicas(snapshots(case, Point.ROLLOUT_LOADED, model=ROLLOUT, phase=phase)):
        faults = tuple(_faults_of_load(case, group, arrivals.until(group[0]), seen))
        if faults:
            yield f"what the rollout loaded in sync {group[0].number + 1} is not what arrived", faults


def _faults_of_sync(
    received: Snapshot, exported: Mapping[int, Sequence[Snapshot]], seen: _SeenSyncs
) -> Iterator[TensorFault]:
    """What arrived against the export of the same number, from any rank: each rank exports whole tensors."""
    exports = exported.get(received.number, ())
    if not exports or any(_differ_in_kind(item, received) for item in exports):
        seen.notes.append("A sync that arrived at the rollout has no export of its number: it was not compared")
        return
    held, sent = tensors(received), [tensors(item) for item in exports]
    whole = not any(item.left_out or item.problem for item in (received, *exports))
    for name in dict.fromkeys(name for rank in sent for name in rank):
        candidates = [rank[name] for rank in sent if name in rank]
        if name not in held:
            if whole:
                yield TensorFault(name, "it was exported and did not arrive", candidates[0])
            continue
        seen.arrived += 1
        alike = any(same(tensor, held[name]) for tensor in candidates)
        kind = None if alike else difference(candidates[0], held[name], earlier=_earlier(name, received, exported))
        if kind:
            yield TensorFault.differs(candidates[0], held[name], kind)
    if whole:
        extra = (tensor for name, tensor in held.items() if not any(name in rank for rank in sent))
        yield from (TensorFault(tensor.name, "it arrived and was not exported", None, tensor) for tensor in extra)


def _earlier(name: str, received: Snapshot, exported: Mapping[int, Sequence[Snapshot]]) -> Iterator[Tensor]:
    """The tensor of that name in the exports right before, of which it may be a copy."""
    for number in range(received.number - 1, max(received.number - 1 - _EARLIER, -1), -1):
        for snapshot in exported.get(number, ()):
            yield from (tensor for tensor in snapshot.tensors if tensor.name == name)


def _differ_in_kind(exported: Snapshot, received: Snapshot) -> bool:
    """Whether one is a sync of adapters alone and the other is not."""
    kinds = (exported.adapter_only, received.adapter_only)
    return None not in kinds and kinds[0] != kinds[1]


def _replicas(loaded: Sequence[Snapshot]) -> Iterator[list[Snapshot]]:
    """The snapshots of all tensor ranks of each replica, sync by sync; without those that a rank is missing from."""
    groups: dict[tuple[int, int], dict[int, Snapshot]] = {}
    for snapshot in loaded:
        groups.setdefault((snapshot.number, snapshot.ranks.data), {})[snapshot.ranks.tensor] = snapshot
    for group in groups.values():
        first = next(iter(group.values()))
        if len(group) == first.ranks.tensor_size:
            yield list(group.values())


def _faults_of_load(
    case: Case, group: Sequence[Snapshot], arrived: Mapping[str, Tensor], seen: _SeenSyncs
) -> Iterator[TensorFault]:
    """What the engine's model holds against all that had arrived in its process by then."""
    whole = not any(item.left_out or item.problem for item in group)
    unknown = []
    found: set[str] = set()
    for name in dict.fromkeys(name for item in group for name in tensors(item)):
        parts = [held[name] for item in group if name in (held := tensors(item))]
        held_of = tuple(sources(name, arrived))
        wanted = [arrived[source] for source in held_of]
        found.update(held_of)
        if not wanted or len(parts) < len(group) or not _is_comparable(parts, wanted):
            unknown.append(name)
            continue
        seen.loaded += 1
        fault = _adapter_fault(case, parts[0], wanted[0]) if is_adapter(name) else _fault(parts, wanted)
        if fault:
            yield fault
    if unknown and whole:
        seen.notes.append(f"Not compared of what the rollout engine loaded: {names(unknown)}")
    absent = [name for name in arrived if name not in found]
    if absent and whole:
        seen.notes.append(f"Arrived at the rollout and not seen in the engine's model: {names(absent)}")


class _Arrivals:
    """What arrived in each process, added up from sync to sync."""

    def __init__(self, received: Sequence[Snapshot]) -> None:
        self._waiting: dict[int, deque[Snapshot]] = {}
        self._held: dict[int, dict[str, Tensor]] = {}
        for snapshot in received:
            self._waiting.setdefault(snapshot.pid, deque()).append(snapshot)

    def until(self, loaded: Snapshot) -> Mapping[str, Tensor]:
        """By name the last tensor that arrived in the process, in this sync or an earlier one."""
        waiting = self._waiting.get(loaded.pid, deque())
        held = self._held.setdefault(loaded.pid, {})
        while waiting and waiting[0].number <= loaded.number:
            held.update(tensors(waiting.popleft()))
        return held


def _is_comparable(parts: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Whether the parts are of the same type, and as many elements as the whole or as many times that."""
    types = {tensor.dtype for tensor in (*parts, *wanted)}
    held, sent = sum(map(count, parts)), sum(map(count, wanted))
    return len(types) == 1 and sent > 0 and held % sent == 0 and held // sent in (1, len(parts))


def _fault(parts: Sequence[Tensor], wanted: Sequence[Tensor]) -> TensorFault | None:
    """A parameter of which tensor ranks hold parts or copies: its sums, over all ranks, are those of what arrived."""
    times = sum(map(count, parts)) // sum(map(count, wanted))
    if adds_up(parts, wanted, times=times):
        return None
    kind = difference(wanted[0], parts[0]) if len(parts) == len(wanted) == 1 else None
    zero = all(tensor.square == 0 for tensor in parts)
    what = str(kind) if kind else "all zero" if zero else "its sums are not those of what arrived"
    return TensorFault(parts[0].name, what, wanted[0], parts[0])


def _adapter_fault(case: Case, held: Tensor, wanted: Tensor) -> TensorFault | None:
    """A registered adapter, which the engine may have multiplied with alpha / rank and transposed."""
    kind = difference(wanted, held)
    if kind is None or kind.kind in _ENGINES_OWN:
        return None
    alpha, rank = (case.config_value(key) for key in _SCALES)
    if (
        kind.kind is TensorDifference.SCALE
        and isinstance(alpha, int | float)
        and isinstance(rank, int | float)
        and rank
    ):
        scaled = held.square - (alpha / rank) ** 2 * wanted.square
        if abs(scaled) <= held.square * 2.0**-6:
            return None
    return TensorFault.differs(wanted, held, kind)
