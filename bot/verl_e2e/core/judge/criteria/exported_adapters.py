"""What an export of adapters yields is what the trainer held right before it.

The trainer's names and Hugging Face's differ: one first matrix of a fused projection goes out once for each of its
parts, and the second one is cut into them. So first matrices are compared as a set, and second ones by the sum of their
squares, which no cut and no order changes. It holds where each rank has whole adapters: without tensor parallelism,
not in shards, and not for experts, whose shared adapters go out once for each expert.
"""

from collections.abc import Iterable, Iterator, Sequence

from verl_e2e.core.compare.tensors import Difference, Found, difference
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.snapshots import (
    Finding,
    TensorFault,
    broken,
    finding,
    gap,
    phases,
    snapshots,
    tensors,
)
from verl_e2e.core.model.evidence import Criterion, State
from verl_e2e.core.model.fingerprints import Point, Snapshot, Tensor
from verl_e2e.core.model.stages import Stage

_CRITERION, _STAGE = Criterion.EXPORTED_ADAPTERS, Stage.EXPORT_WEIGHT_SYNC
_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_HELD_FIRST, _HELD_SECOND = ".linear_in.weight", ".linear_out.weight"
# Both sides add up the same squares in double precision, in another order.
_TOLERANCE = 2.0**-30


def exports_adapters(case: Case) -> bool:
    """Whether adapters were exported by themselves."""
    return any(snapshot.adapter_only for snapshot in snapshots(case, Point.EXPORTED, model="actor"))


def exported_adapters(case: Case) -> Finding:
    """Whether each export of adapters alone yields those that the trainer holds at that moment."""
    compared = 0
    notes: list[str] = []
    for phase in phases(case):
        missing = gap(case, "actor", phase, Point.BEFORE_EXPORT)
        if missing:
            return finding(_CRITERION, State.MISSING, missing, _STAGE)
        for number, exported, held in _exports(case, phase):
            if not _is_whole(exported, held):
                notes.append("Exported adapters were not compared with the trainer's where ranks hold parts of them")
                continue
            faults = tuple(_faults(exported, held, _earlier(case, phase, number)))
            if faults:
                text = f"export {number + 1} of the {phase} phase is not what the trainer held"
                return broken(_CRITERION, _STAGE, text, faults, notes)
            compared += len(exported.tensors)
    if not compared:
        return finding(_CRITERION, State.WAIVED, notes[0] if notes else "no adapter was exported by itself", _STAGE)
    text = f"{compared} exported tensors of adapters are what the trainer held"
    return finding(_CRITERION, State.MET, text, _STAGE, notes)


def _exports(case: Case, phase: str) -> Iterator[tuple[int, Snapshot, list[Snapshot]]]:
    """Each export of adapters alone, by its number, with what all ranks held before it; one rank's export is enough."""
    held: dict[int, list[Snapshot]] = {}
    for snapshot in snapshots(case, Point.BEFORE_EXPORT, model="actor", phase=phase):
        held.setdefault(snapshot.number, []).append(snapshot)
    seen: dict[int, Snapshot] = {}
    for snapshot in snapshots(case, Point.EXPORTED, model="actor", phase=phase):
        if snapshot.adapter_only and held.get(snapshot.number):
            seen.setdefault(snapshot.number, snapshot)
    return ((number, snapshot, held[number]) for number, snapshot in sorted(seen.items()))


def _is_whole(exported: Snapshot, held: Sequence[Snapshot]) -> bool:
    """Whether every rank holds whole adapters, each of which goes out once, and all were read."""
    ranks = [snapshot.ranks for snapshot in held]
    parts = any(rank.tensor_size > 1 or rank.expert_size > 1 or rank.expert_tensor_size > 1 for rank in ranks)
    read = not any(snapshot.left_out or snapshot.problem for snapshot in (exported, *held))
    stages = {rank.pipeline for rank in ranks}
    whole = not parts and not any(map(_holds_shards, held)) and not _of_experts(held)
    return read and whole and len(stages) == max(rank.pipeline_size for rank in ranks)


def _holds_shards(snapshot: Snapshot) -> bool:
    """Whether other data-parallel ranks hold the rest of an adapter, as under Megatron-FSDP until the first step."""
    adapters = _adapters(snapshot, _HELD_FIRST, _HELD_SECOND)
    return snapshot.ranks.data_size > 1 and any(tensor.sharded for tensor in adapters)


def _of_experts(held: Iterable[Snapshot]) -> bool:
    return any(tensor.expert for snapshot in held for tensor in _adapters(snapshot, _HELD_FIRST, _HELD_SECOND))


def _adapters(snapshot: Snapshot, *endings: str) -> list[Tensor]:
    return [tensor for name, tensor in tensors(snapshot).items() if "adapter" in name and name.endswith(endings)]


def _earlier(case: Case, phase: str, number: int) -> dict[str, list[Tensor]]:
    """By name what earlier exports yielded, of which this one may be a copy."""
    found: dict[str, list[Tensor]] = {}
    for snapshot in snapshots(case, Point.EXPORTED, model="actor", phase=phase):
        if snapshot.adapter_only and snapshot.number < number:
            for name, tensor in tensors(snapshot).items():
                found.setdefault(name, []).append(tensor)
    return found


def _faults(exported: Snapshot, held: Sequence[Snapshot], earlier: dict[str, list[Tensor]]) -> Iterator[TensorFault]:
    sent = tensors(exported)
    firsts = {tensor.bits for snapshot in held for tensor in _adapters(snapshot, _HELD_FIRST)}
    for name, tensor in sent.items():
        if name.endswith(_FIRST) and tensor.bits not in firsts:
            yield TensorFault(name, _what(tensor, earlier.get(name, [])), None, tensor)
    went_out = {tensor.bits for name, tensor in sent.items() if name.endswith(_FIRST)}
    for snapshot in held:
        lost = (tensor for tensor in _adapters(snapshot, _HELD_FIRST) if tensor.bits not in went_out)
        yield from (TensorFault(tensor.name, "the trainer holds it and it was not exported", tensor) for tensor in lost)
    yield from _second(sent, held, earlier)


def _what(tensor: Tensor, earlier: Sequence[Tensor]) -> str:
    stale = any(state.bits == tensor.bits for state in earlier)
    return str(Found(Difference.STALE)) if stale else "no adapter of the trainer has these values"


def _second(
    sent: dict[str, Tensor], held: Sequence[Snapshot], earlier: dict[str, list[Tensor]]
) -> Iterator[TensorFault]:
    """The second matrices, all together: the sum of their squares is that of the trainer's."""
    ours = {
        (snapshot.ranks.pipeline, index): tensor.square
        for snapshot in held
        for index, tensor in enumerate(_adapters(snapshot, _HELD_SECOND))
    }
    theirs = [(name, tensor) for name, tensor in sent.items() if name.endswith(_SECOND)]
    expected, found = sum(ours.values()), sum(tensor.square for _, tensor in theirs)
    if not theirs or abs(found - expected) <= _TOLERANCE * max(found, expected):
        return
    name, first = theirs[0]
    scale = f"a scale by {(found / expected) ** 0.5:.4g}" if expected else "not zero, as the trainer's are"
    stale = all(any(difference(state, tensor) is None for state in earlier.get(key, [])) for key, tensor in theirs)
    text = str(Found(Difference.STALE)) if stale else f"{scale}, over all of them"
    yield TensorFault(name, text, None, first)
