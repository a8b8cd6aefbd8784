"""The rollout holds what the trainer exported: name by name as it arrived, and by sums as the engine loaded it.

Trainer and rollout number their syncs alike, so an export is compared with what arrived in the sync of its number: the
base weights are sent once and the adapters in every sync, or all weights in every sync. The engine fuses projections
and shares weights between tensor ranks, so what it loaded is compared by sums, where its names say what was fused.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_e2e.core.compare.tensors import Difference, adds_up, count, difference, same
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.engine_names import is_adapter, sources
from verl_e2e.core.judge.criteria.snapshots import (
    ROLLOUT,
    Finding,
    TensorFault,
    broken,
    finding,
    gap,
    hook_problems,
    left_out_note,
    names,
    phases,
    snapshots,
    tensors,
    uneven_notes,
    waived,
)
from verl_e2e.core.model.evidence import Criterion, State
from verl_e2e.core.model.fingerprints import Point, Snapshot, Tensor
from verl_e2e.core.model.stages import Stage

_CRITERION, _STAGE = Criterion.ROLLOUT_WEIGHTS, Stage.EXPORT_WEIGHT_SYNC
_ENGINE = "actor_rollout_ref.rollout.name"
# The engine that has hooks.
_LOOKED_INTO = "vllm"
_SCALES = ("actor_rollout_ref.model.lora.alpha", "actor_rollout_ref.model.lora.rank")
# How many syncs back a stale copy is looked for.
_EARLIER = 4
# The same values in another order or shape: an engine may transpose what it loads.
_ENGINES_OWN = frozenset({Difference.ORDER, Difference.SHAPE, Difference.DTYPE, Difference.ROUNDED})


@dataclass(slots=True)
class _Seen:
    """What was compared, and what could not be."""

    arrived: int = 0
    loaded: int = 0
    notes: list[str] = field(default_factory=list)


def rollout_weights(case: Case) -> Finding:
    """Whether what arrived at the rollout is what was exported, and what it loaded is what arrived."""
    if case.record.fingerprints is None:
        return waived(_CRITERION, _STAGE)
    engine = case.config_value(_ENGINE)
    if engine != _LOOKED_INTO:
        text = f"the rollout engine {str(engine)[:40]} has no hooks: what arrived there was not compared"
        return finding(_CRITERION, State.WAIVED, text, _STAGE)
    seen = _Seen()
    for phase in phases(case):
        fault = next(_faults_of_phase(case, phase, seen), None)
        if fault:
            text, faults = fault
            return broken(_CRITERION, _STAGE, f"{text} in the {phase} phase", faults, seen.notes)
    missing = next(_gaps(case), "")
    if missing or not seen.arrived:
        text = missing or "no export has the number of a sync that arrived"
        return finding(_CRITERION, State.MISSING, text, _STAGE, seen.notes)
    if seen.loaded:
        for phase in phases(case):
            seen.notes += uneven_notes(case, ROLLOUT, phase, Point.RECEIVED, Point.ROLLOUT_LOADED)
    taken = snapshots(case, Point.EXPORTED, Point.RECEIVED)
    if not seen.loaded:
        seen.notes.append("What the rollout engine made of the weights that arrived was not compared")
    text = f"{seen.arrived} tensors arrived as they were exported, {seen.loaded} were loaded as they arrived"
    return finding(_CRITERION, State.MET, text, _STAGE, [*seen.notes, *left_out_note(taken)])


def _gaps(case: Case) -> Iterator[str]:
    for phase in phases(case):
        yield from filter(None, [gap(case, "actor", phase, Point.EXPORTED)])
        if not snapshots(case, Point.RECEIVED, model=ROLLOUT, phase=phase):
            yield f"no fingerprint '{Point.RECEIVED}' of the rollout in the {phase} phase{hook_problems(case)}"


Faults = tuple[str, Sequence[TensorFault]]


def _faults_of_phase(case: Case, phase: str, seen: _Seen) -> Iterator[Faults]:
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
    received: Snapshot, exported: Mapping[int, Sequence[Snapshot]], seen: _Seen
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
    case: Case, group: Sequence[Snapshot], arrived: Mapping[str, Tensor], seen: _Seen
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
    if kind.kind is Difference.SCALE and isinstance(alpha, int | float) and isinstance(rank, int | float) and rank:
        scaled = held.square - (alpha / rank) ** 2 * wanted.square
        if abs(scaled) <= held.square * 2.0**-6:
            return None
    return TensorFault.differs(wanted, held, kind)
