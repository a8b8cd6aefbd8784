"""Two criteria on adapters: as built, and as exported.

The adapters are those that were asked for: on every target, of the rank asked for, of the size that follows.

An adapter of rank r on a module with `in` and `out` features has r x (in + out) parameters. Tensor-parallel ranks share
them evenly; grouped experts have one each; DoRA adds a magnitude for each output. Targets match as Bridge matches them:
a module's own name, or a pattern over its whole path; canonical names as `linear_q` mean a part of a fused module.

What an export of adapters yields is what the trainer held right before it.

The trainer's names and Hugging Face's differ: one first matrix of a fused projection goes out once for each of its
parts, and the second one is cut into them. So first matrices are compared as a set, and second ones by the sum of their
squares, which no cut and no order changes. It holds where each rank has whole adapters: without tensor parallelism,
not in shards, and not for experts, whose shared adapters go out once for each expert.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from verl_e2e.core.compare.steps import FoundDifference, TensorDifference, difference
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.health import trained_models, wants_adapter
from verl_e2e.core.judge.criteria.snapshots import (
    Finding,
    TensorFault,
    broken,
    finding,
    gap,
    names,
    phases,
    snapshots,
    tensors,
)
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Adapter, Adapters, Point, Snapshot, Tensor
from verl_e2e.core.model.outcome import Stage

_SIZE_STAGE = Stage.PEFT
_RANK = {"actor": "actor_rollout_ref.model.lora.rank", "critic": "critic.model.lora.rank"}
_EXPERT = re.compile(r"mlp\..*experts.*\.linear_fc[12]$")
# The stage of a virtual pipeline in front, and the part of a fused module that canonical LoRA adapts.
_BESIDE_PATH = re.compile(r"^chunk\d{1,4}\.|\.adapter_[a-z]{1,8}$")
_WEIGHT = re.compile(r"\.weight\d{0,4}$")
_WRAPPED = ".to_wrap"
# Far more than anyone asks for; code under test writes the list.
_MOST_TARGETS = 32
# Canonical LoRA's names for the parts of a fused module.
_FUSED = {
    "linear_q": "linear_qkv",
    "linear_k": "linear_qkv",
    "linear_v": "linear_qkv",
    "linear_fc1_up": "linear_fc1",
    "linear_fc1_gate": "linear_fc1",
}


def adapter_size(case: Case) -> Finding:
    """Whether the adapters of each model have the size that follows from what was asked for."""
    models = [model for model in trained_models(case) if _asked_rank(case, model)]
    if not models:
        return finding(State.MET, "no adapter was asked for", _SIZE_STAGE)
    notes: list[str] = []
    count = 0
    for phase in phases(case):
        for model in models:
            built = [item for item in snapshots(case, Point.MODEL_BUILT, model=model, phase=phase) if item.adapters]
            missing = gap(case, model, phase, Point.MODEL_BUILT)
            if missing or len({item.ranks.rank for item in built}) < case.job.gpu_count:
                text = missing or f"not every rank lists the adapters of the {model} in the {phase} phase"
                return finding(State.MISSING, text, _SIZE_STAGE, notes)
            faults = (*_size_faults(built, _asked_rank(case, model)), *_bare_targets(built))
            if faults:
                text = f"the adapters of the {model} are not those that were asked for in the {phase} phase"
                return broken(_SIZE_STAGE, text, faults, notes)
            notes += _unmatched_notes(built, model)
            count += sum(len(adapters.modules) for _, adapters in _listed(built))
    text = f"{count} adapters of {' and '.join(models)} have the rank and the size that were asked for"
    return finding(State.MET, text, _SIZE_STAGE, notes)


def _asked_rank(case: Case, model: str) -> int:
    """The rank in the printed configuration; 0 for no adapter."""
    rank = case.config_value(_RANK[model])
    return rank if isinstance(rank, int) and wants_adapter(case) else 0


def _listed(built: Sequence[Snapshot]) -> Iterator[tuple[Snapshot, Adapters]]:
    yield from ((snapshot, snapshot.adapters) for snapshot in built if snapshot.adapters is not None)


def _size_faults(built: Sequence[Snapshot], asked: int) -> Iterator[TensorFault]:
    """Ranks and sizes that are not what they should be."""
    if not any(adapters.modules for _, adapters in _listed(built)):
        yield TensorFault("(none)", f"no module has an adapter, rank {asked} was asked for")
    for snapshot, adapters in _listed(built):
        if adapters.rank != asked:
            yield TensorFault("(all)", f"rank {adapters.rank} was built, {asked} was asked for")
        for module in adapters.modules:
            path = _path(module.name)
            expert = _EXPERT.search(path) is not None and ".shared_experts." not in path
            # The rank of experts may be divided by the number of experts of a token.
            if module.rank != adapters.rank and not (expert and 0 < module.rank < adapters.rank):
                yield TensorFault(module.name, f"it has rank {module.rank}, {adapters.rank} was asked for")
            elif not _fits(module, adapters, snapshot, expert=expert):
                formula = f"rank {module.rank} x ({module.features_in} in + {module.features_out} out)"
                yield TensorFault(module.name, f"{module.parameters} parameters on a rank, by {formula}")


def _fits(module: Adapter, adapters: Adapters, snapshot: Snapshot, *, expert: bool) -> bool:
    """Whether a rank holds the whole adapter, or its share; of grouped experts a whole number of them.

    Experts whose adapters share one side have sizes of their own, and Megatron-FSDP shards each tensor: there any size
    above 0 will do.
    """
    whole = module.rank * (module.features_in + module.features_out)
    shares = snapshot.ranks.expert_tensor_size if expert else snapshot.ranks.tensor_size
    if expert or any(tensor.sharded for tensor in snapshot.tensors):
        return whole > 0 and module.parameters > 0
    extra = {module.features_out, module.features_out // shares} if "dora" in adapters.type.lower() else {0}
    return any(module.parameters - added in (whole, whole // shares) for added in extra)


def _path(name: str) -> str:
    return _BESIDE_PATH.sub("", name)


def _pattern(target: str) -> str:
    """The target as Bridge matches it."""
    for part, fused in _FUSED.items():
        if target.endswith(part):
            return target.replace(part, fused)
    return target


def _matches(path: str, target: str) -> bool:
    pattern = _pattern(target)
    return path.rpartition(".")[2] == pattern or fnmatchcase(path, pattern.replace("[", "[[]").replace("?", "[?]"))


def _unmatched(built: Sequence[Snapshot]) -> tuple[str, ...]:
    """The targets that no module with an adapter matches, on any rank."""
    paths = {_path(module.name) for _, adapters in _listed(built) for module in adapters.modules}
    targets = dict.fromkeys(target for _, adapters in _listed(built) for target in adapters.targets[:_MOST_TARGETS])
    return tuple(target for target in targets if not any(_matches(path, target) for path in paths))


def _bare_targets(built: Sequence[Snapshot]) -> Iterator[TensorFault]:
    """Modules that a target matches and that have no adapter, where others show how a wrapped module is named."""
    for snapshot, adapters in _listed(built):
        weights = (_WEIGHT.sub("", tensor.name) for tensor in snapshot.tensors if _WEIGHT.search(tensor.name))
        held = {_path(name) for name in weights if ".adapter" not in name}
        if not any(name.endswith(_WRAPPED) for name in held):
            continue
        for name in sorted(held):
            target = next((target for target in adapters.targets[:_MOST_TARGETS] if _matches(name, target)), "")
            if target:
                yield TensorFault(name, f"it has no adapter, although the target {target[:80]} matches it")


def _unmatched_notes(built: Sequence[Snapshot], model: str) -> Iterator[str]:
    unmatched = _unmatched(built)
    if unmatched:
        yield f"The {model} has no module for the adapter's target {names(unmatched)}"


_EXPORT_STAGE = Stage.EXPORT_WEIGHT_SYNC
_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_HELD_FIRST, _HELD_SECOND = ".linear_in.weight", ".linear_out.weight"
# Both sides add up the same squares in double precision, in another order.
_SUM_TOLERANCE = 2.0**-30


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
            return finding(State.MISSING, missing, _EXPORT_STAGE)
        for number, exported, held in _exports(case, phase):
            if not _is_whole(exported, held):
                notes.append("Exported adapters were not compared with the trainer's where ranks hold parts of them")
                continue
            faults = tuple(_export_faults(exported, held, _earlier(case, phase, number)))
            if faults:
                text = f"export {number + 1} of the {phase} phase is not what the trainer held"
                return broken(_EXPORT_STAGE, text, faults, notes)
            compared += len(exported.tensors)
    if not compared:
        return finding(State.WAIVED, notes[0] if notes else "no adapter was exported by itself", _EXPORT_STAGE)
    text = f"{compared} exported tensors of adapters are what the trainer held"
    return finding(State.MET, text, _EXPORT_STAGE, notes)


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


def _export_faults(
    exported: Snapshot, held: Sequence[Snapshot], earlier: dict[str, list[Tensor]]
) -> Iterator[TensorFault]:
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
    return str(FoundDifference(TensorDifference.STALE)) if stale else "no adapter of the trainer has these values"


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
    if not theirs or abs(found - expected) <= _SUM_TOLERANCE * max(found, expected):
        return
    name, first = theirs[0]
    scale = f"a scale by {(found / expected) ** 0.5:.4g}" if expected else "not zero, as the trainer's are"
    stale = all(any(difference(state, tensor) is None for state in earlier.get(key, [])) for key, tensor in theirs)
    text = str(FoundDifference(TensorDifference.STALE)) if stale else f"{scale}, over all of them"
    yield TensorFault(name, text, None, first)
