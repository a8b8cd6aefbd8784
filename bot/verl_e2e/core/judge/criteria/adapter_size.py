"""The adapters are those that were asked for: on every target, of the rank asked for, of the size that follows.

An adapter of rank r on a module with `in` and `out` features has r x (in + out) parameters. Tensor-parallel ranks share
them evenly; grouped experts have one each; DoRA adds a magnitude for each output. Targets match as Bridge matches them:
a module's own name, or a pattern over its whole path; canonical names as `linear_q` mean a part of a fused module.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

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
    waived,
)
from verl_e2e.core.model.evidence import Criterion, State
from verl_e2e.core.model.fingerprints import Adapter, Adapters, Point, Snapshot
from verl_e2e.core.model.stages import Stage

_CRITERION, _STAGE = Criterion.ADAPTER_SIZE, Stage.PEFT
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
    if case.record.fingerprints is None:
        return waived(_CRITERION, _STAGE)
    models = [model for model in trained_models(case) if _asked_rank(case, model)]
    if not models:
        return finding(_CRITERION, State.MET, "no adapter was asked for", _STAGE)
    notes: list[str] = []
    count = 0
    for phase in phases(case):
        for model in models:
            built = [item for item in snapshots(case, Point.MODEL_BUILT, model=model, phase=phase) if item.adapters]
            missing = gap(case, model, phase, Point.MODEL_BUILT)
            if missing or len({item.ranks.rank for item in built}) < case.job.gpu_count:
                text = missing or f"not every rank lists the adapters of the {model} in the {phase} phase"
                return finding(_CRITERION, State.MISSING, text, _STAGE, notes)
            faults = (*_faults(built, _asked_rank(case, model)), *_bare_targets(built))
            if faults:
                text = f"the adapters of the {model} are not those that were asked for in the {phase} phase"
                return broken(_CRITERION, _STAGE, text, faults, notes)
            notes += _notes(built, model)
            count += sum(len(adapters.modules) for _, adapters in _listed(built))
    text = f"{count} adapters of {' and '.join(models)} have the rank and the size that were asked for"
    return finding(_CRITERION, State.MET, text, _STAGE, notes)


def _asked_rank(case: Case, model: str) -> int:
    """The rank in the printed configuration; 0 for no adapter."""
    rank = case.config_value(_RANK[model])
    return rank if isinstance(rank, int) and wants_adapter(case) else 0


def _listed(built: Sequence[Snapshot]) -> Iterator[tuple[Snapshot, Adapters]]:
    yield from ((snapshot, snapshot.adapters) for snapshot in built if snapshot.adapters is not None)


def _faults(built: Sequence[Snapshot], asked: int) -> Iterator[TensorFault]:
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


def _notes(built: Sequence[Snapshot], model: str) -> Iterator[str]:
    unmatched = _unmatched(built)
    if unmatched:
        yield f"The {model} has no module for the adapter's target {names(unmatched)}"
