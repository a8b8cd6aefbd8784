"""Four criteria on state that is moved: imported from files, exported, sent to the rollout, saved and loaded again.

Each `Invariant` stands below its claims, with the facts that they rest on.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

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
from verl_e2e.core.consumer.consumer import ConfigKey
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.judge.case import Case, trained_models, wants_adapter
from verl_e2e.core.judge.criteria.invariants import (
    ROLLOUT_MODEL,
    Claim,
    Ending,
    Invariant,
    Snapshots,
    TensorFault,
    by_number,
    by_process,
    each,
    is_whole,
    names,
    tensors,
)
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Snapshot, Tensor, TensorKind
from verl_e2e.core.model.outcome import Stage

_ACTOR = "actor"
_LONGEST = 200
# What is not shown to be equal.
_OTHER_SHAPE = "Not compared with the checkpoint's files, which have another shape"
_OTHER_TYPE = "Not compared with the checkpoint's files, which have another type"
_BUT_ROUNDING = "Equal to the checkpoint's files but for rounding"
_NOT_EXPORTED = "In the checkpoint's files and not exported"
_NOT_IN_FILES = "Exported and not in the checkpoint's files"


def _imported_claims(taken: Snapshots) -> Iterator[Claim | Ending]:
    case = taken.case
    if wants_adapter(case) and case.config(ConfigKey.ADAPTER_MERGE) is True:
        text = "the adapter is merged into what is exported: it was not compared with the checkpoint's files"
        yield Ending(State.WAIVED, text)
    if case.config(ConfigKey.DIST_CHECKPOINT) is True:
        text = "the weights came from a checkpoint of Megatron's: they were not compared with the checkpoint's files"
        yield Ending(State.WAIVED, text)
    # The names in the files of what was compared, and of what is not shown to be equal.
    equal: set[str] = set()
    noted: dict[str, set[str]] = {
        text: set() for text in (_OTHER_SHAPE, _OTHER_TYPE, _BUT_ROUNDING, _NOT_EXPORTED, _NOT_IN_FILES)
    }
    looked_at: list[Snapshot] = []
    for phase in taken.phases:
        files = taken.at(Point.CHECKPOINT_FILE, model=_ACTOR, phase=phase)[:1]
        # The first export of each rank, where it is of base weights and nothing was trained or loaded before it.
        points = (Point.EXPORTED, Point.OPTIMIZER_STEP, Point.CHECKPOINT_LOADED)
        firsts = [process[0] for process in by_process(taken.at(*points, model=_ACTOR, phase=phase)).values()]
        exports = [first for first in firsts if first.point is Point.EXPORTED and not first.adapter_only]
        if files and exports:
            looked_at += (*files, *exports)
            faults = _import_faults(taken, files[0], exports, equal, noted)
            stage, which = _wrong_way(taken, phase, faults)
            taken.notes = [
                f"{text}: {len(found)} tensors ({names(sorted(found))})" for text, found in noted.items() if found
            ]
            text = f"the first export of the {phase} phase is not what the checkpoint's files hold ({which})"
            yield Claim(text, faults, stage)
    taken.note_left_out(looked_at)
    # The fingerprints of files that say only why nothing could be read count.
    files_of = {phase: taken.left(phase, Point.CHECKPOINT_FILE) for phase in taken.phases}
    for phase, left in files_of.items():
        missing = taken.gap(_ACTOR, phase, Point.EXPORTED)
        if missing:
            yield Ending(State.MISSING, missing, Stage.EXPORT_WEIGHT_SYNC)
        if not left and not taken.left(phase, Point.WEIGHTS_IMPORTED):
            yield Ending(State.MISSING, taken.absent(Point.CHECKPOINT_FILE, _ACTOR, phase))
    if equal:
        text = f"{len(equal)} tensors were imported and exported again as the checkpoint's files hold them"
        yield Ending(State.MET, text)
    files = tuple(item for left in files_of.values() for item in left)
    problem = next((item.problem for item in files if item.problem and not item.tensors), "")
    text = "no base weights were exported before the training: they were not compared with the checkpoint's files"
    if looked_at:
        text = "no exported tensor could be compared with one of the checkpoint's files"
    elif not files:
        text = "the folder does not say what the checkpoint's files hold: what was imported was not compared with them"
    elif problem:
        text = f"what was imported was not compared with the checkpoint's files: {problem[:_LONGEST]}"
    yield Ending(State.WAIVED, text)


# What was imported is what the checkpoint's files hold. A wrong import gives trainer and rollout the same wrong model,
# so they agree. But what is exported before any training is, under Hugging Face's names, what the import made of the
# files, and is compared with the files themselves by bits.
imported_weights = Invariant(Stage.HF_IMPORT, _imported_claims)


def _import_faults(
    taken: Snapshots, files: Snapshot, exports: Sequence[Snapshot], equal: set[str], noted: dict[str, set[str]]
) -> tuple[TensorFault, ...]:
    """The tensors that any rank exported otherwise than the files hold them, each once."""
    held = taken.held(files)
    exported: set[str] = set()
    faulty: dict[str, TensorFault] = {}

    def differs(name: str, wanted: Sequence[Tensor], found: Sequence[Tensor]) -> FoundDifference | None:
        expected, tensor, name = wanted[0], found[0], _without_layer(name)
        alike = expected.dtype == tensor.dtype
        if expected.shape != tensor.shape:
            noted[_OTHER_SHAPE].add(name)
            return None
        if not alike and not converts(expected, tensor):
            noted[_OTHER_TYPE].add(name)
            return None
        kind = difference(expected, tensor) if alike else difference_but_rounding(expected, tensor)
        # Some families have norms around one in their files and around zero in Megatron.
        if kind and kind.kind is TensorDifference.ROUNDED and len(expected.shape) == 1:
            noted[_BUT_ROUNDING].add(name)
            return None
        equal.add(name)
        return kind

    for export in exports:
        sent = taken.held(export)
        exported |= set(map(_without_layer, sent))
        expected = {name: held[_without_layer(name)] for name in sent if _without_layer(name) in held}
        for fault in taken.faults(each(expected), each(sent), differs):
            faulty.setdefault(_without_layer(fault.name), fault)
    if is_whole(files, *exports):
        noted[_NOT_EXPORTED] |= held.keys() - exported
        noted[_NOT_IN_FILES] |= exported - held.keys()
    return tuple(faulty.values())


def _without_layer(name: str) -> str:
    """The name in the files: a layer with an adapter is exported under the name of the layer that the adapter wraps."""
    return name.replace(".base_layer.", ".")


def _wrong_way(taken: Snapshots, phase: str, faults: Sequence[TensorFault]) -> tuple[Stage, str]:
    """A parameter of the model that holds what the files hold, or what was exported, tells which way was wrong."""
    imported = taken.at(Point.WEIGHTS_IMPORTED, model=_ACTOR, phase=phase)
    held = frozenset(tensor.bits for item in imported for tensor in item.tensors if not is_constant(tensor))
    export_is_wrong = any(fault.expected is not None and fault.expected.bits in held for fault in faults)
    import_is_wrong = any(fault.found is not None and fault.found.bits in held for fault in faults)
    if export_is_wrong and not import_is_wrong:
        return Stage.EXPORT_WEIGHT_SYNC, "the model held what they hold, so the export is wrong"
    if import_is_wrong and not export_is_wrong:
        return Stage.HF_IMPORT, "the model held what was exported, so the import is wrong"
    return Stage.HF_IMPORT, "the import or the export is wrong"


_STALE = str(FoundDifference(TensorDifference.STALE))
_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_HELD_FIRST, _HELD_SECOND = ".linear_in.weight", ".linear_out.weight"
# Both sides add up the same squares in double precision, in another order.
_SUM_TOLERANCE = 2.0**-30
_IN_PARTS = "Exported adapters were not compared with the trainer's where ranks hold parts of them"


def exports_adapters(case: Case) -> bool:
    """Whether adapters were exported by themselves."""
    return any(snapshot.adapter_only for snapshot in Snapshots(case).at(Point.EXPORTED, model=_ACTOR))


def _exported_claims(taken: Snapshots) -> Iterator[Claim | Ending]:
    compared = 0
    for phase in taken.phases:
        missing = taken.gap(_ACTOR, phase, Point.BEFORE_EXPORT)
        if missing:
            yield Ending(State.MISSING, missing)
        every = [item for item in taken.at(Point.EXPORTED, model=_ACTOR, phase=phase) if item.adapter_only]
        held_before = by_number(taken.at(Point.BEFORE_EXPORT, model=_ACTOR, phase=phase))
        # One rank's export is enough.
        for number, exports in sorted(by_number(every).items()):
            exported, held = exports[0], held_before.get(number, [])
            if not held:
                continue
            if not _is_complete(taken, exported, held):
                taken.notes.append(_IN_PARTS)
                continue
            earlier = [taken.held(item) for item in every if item.number < number]
            faults = _export_faults(taken, taken.held(exported), held, earlier)
            text = f"export {number + 1} of the {phase} phase is not what the trainer held"
            yield Claim(text, faults, Stage.EXPORT_WEIGHT_SYNC)
            compared += len(exported.tensors)
    if compared:
        yield Ending(State.MET, f"{compared} exported tensors of adapters are what the trainer held")
    text = taken.notes[0] if taken.notes else "no adapter was exported by itself"
    taken.notes.clear()
    yield Ending(State.WAIVED, text)


# What an export of adapters yields is what the trainer held right before it. The trainer's names and Hugging Face's
# differ: one first matrix of a fused projection goes out once for each of its parts, and the second one is cut into
# them. So first matrices are compared as a set, and second ones by the sum of their squares, which no cut and no order
# changes. It holds where each rank has whole adapters: without tensor parallelism, not in shards, and not for experts,
# whose shared adapters go out once for each expert.
exported_adapters = Invariant(Stage.EXPORT_WEIGHT_SYNC, _exported_claims)


def _is_complete(taken: Snapshots, exported: Snapshot, held: Sequence[Snapshot]) -> bool:
    """Whether every rank holds whole adapters, each of which goes out once, and all were read."""
    ranks = [snapshot.ranks for snapshot in held]
    parts = any(rank.tensor_size > 1 or rank.expert_size > 1 or rank.expert_tensor_size > 1 for rank in ranks)
    # Other data-parallel ranks hold the rest of an adapter under Megatron-FSDP until the first step.
    cut = any(
        tensor.expert or (tensor.sharded and snapshot.ranks.data_size > 1)
        for snapshot in held
        for tensor in _adapters(taken, snapshot, _HELD_FIRST, _HELD_SECOND)
    )
    stages = {rank.pipeline for rank in ranks}
    return (
        not parts and not cut and is_whole(exported, *held) and len(stages) == max(rank.pipeline_size for rank in ranks)
    )


def _adapters(taken: Snapshots, snapshot: Snapshot, *endings: str) -> list[Tensor]:
    return [tensor for name, tensor in taken.held(snapshot).items() if "adapter" in name and name.endswith(endings)]


def _export_faults(
    taken: Snapshots, sent: Mapping[str, Tensor], held: Sequence[Snapshot], earlier: Sequence[Mapping[str, Tensor]]
) -> Iterator[TensorFault]:
    firsts = [tensor for snapshot in held for tensor in _adapters(taken, snapshot, _HELD_FIRST)]
    went_out = {name: tensor for name, tensor in sent.items() if name.endswith(_FIRST)}
    known, out = ({tensor.bits for tensor in found} for found in (firsts, went_out.values()))
    for name, tensor in went_out.items():
        if tensor.bits not in known:
            stale = any(name in state and state[name].bits == tensor.bits for state in earlier)
            what = _STALE if stale else "no adapter of the trainer has these values"
            yield TensorFault(name, what, None, tensor)
    lost = (tensor for tensor in firsts if tensor.bits not in out)
    yield from (TensorFault(tensor.name, "the trainer holds it and it was not exported", tensor) for tensor in lost)
    ours = {
        (snapshot.ranks.pipeline, index): tensor.square
        for snapshot in held
        for index, tensor in enumerate(_adapters(taken, snapshot, _HELD_SECOND))
    }
    seconds = {name: tensor for name, tensor in sent.items() if name.endswith(_SECOND)}
    expected, found = sum(ours.values()), sum(tensor.square for tensor in seconds.values())
    if seconds and abs(found - expected) > _SUM_TOLERANCE * max(found, expected):
        scale = f"a scale by {(found / expected) ** 0.5:.4g}" if expected else "not zero, as the trainer's are"
        stale = all(
            any(name in state and difference(state[name], tensor) is None for state in earlier)
            for name, tensor in seconds.items()
        )
        name, first = next(iter(seconds.items()))
        yield TensorFault(name, _STALE if stale else f"{scale}, over all of them", None, first)


# The engine that has hooks.
_LOOKED_INTO = "vllm"
# How many syncs back a stale copy is looked for.
_EARLIER = 4
# The same values in another order or shape: an engine may transpose what it loads.
_ENGINES_OWN = frozenset(
    {TensorDifference.ORDER, TensorDifference.SHAPE, TensorDifference.DTYPE, TensorDifference.ROUNDED}
)
# A projection of the engine, and those of Hugging Face's format that it computes at once, in this order.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# A module with an adapter is exported under the name of the layer that the adapter wraps.
_STYLES = ("", ".base_layer")
_ADAPTER = re.compile(r"^(?P<module>.+)\.lora_(?P<part>[ab])(?:\[(?P<index>\d{1,2})\])?$")


def _rollout_claims(taken: Snapshots) -> Iterator[Claim | Ending]:
    engine = taken.case.config(ConfigKey.ROLLOUT_ENGINE)
    if engine != _LOOKED_INTO:
        text = f"the rollout engine {str(engine)[:40]} has no hooks: what arrived there was not compared"
        yield Ending(State.WAIVED, text)
    arrived = loaded = 0
    for phase in taken.phases:
        received = taken.at(Point.RECEIVED, model=ROLLOUT_MODEL, phase=phase)
        exported = by_number(taken.at(Point.EXPORTED, model=_ACTOR, phase=phase))
        for snapshot in received:
            text = f"what arrived at the rollout in sync {snapshot.number + 1} is not what was exported"
            before, faults = taken.count, _sync_faults(taken, snapshot, exported)
            yield Claim(f"{text} in the {phase} phase", faults, Stage.EXPORT_WEIGHT_SYNC)
            arrived += taken.count - before
        # By process what is still to arrive, and by name the last tensor that did, in this sync or an earlier one.
        waiting: dict[int, deque[Snapshot]] = defaultdict(deque)
        held: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for snapshot in received:
            waiting[snapshot.pid].append(snapshot)
        for group in _loads(taken.at(Point.ROLLOUT_LOADED, model=ROLLOUT_MODEL, phase=phase)):
            text = f"what the rollout loaded in sync {group[0].number + 1} is not what arrived"
            queue, there = waiting[group[0].pid], held[group[0].pid]
            while queue and queue[0].number <= group[0].number:
                there.update(taken.held(queue.popleft()))
            before, faults = taken.count, _load_faults(taken, group, there)
            yield Claim(f"{text} in the {phase} phase", faults, Stage.EXPORT_WEIGHT_SYNC)
            loaded += taken.count - before
    for phase in taken.phases:
        missing = taken.gap(_ACTOR, phase, Point.EXPORTED)
        if not missing and not taken.at(Point.RECEIVED, model=ROLLOUT_MODEL, phase=phase):
            missing = taken.absent(Point.RECEIVED, ROLLOUT_MODEL, phase)
        if missing:
            yield Ending(State.MISSING, missing)
    if not arrived:
        yield Ending(State.MISSING, "no export has the number of a sync that arrived")
    for phase in taken.phases if loaded else ():
        taken.note_uneven(ROLLOUT_MODEL, phase, Point.RECEIVED, Point.ROLLOUT_LOADED)
    if not loaded:
        taken.notes.append("What the rollout engine made of the weights that arrived was not compared")
    taken.note_left_out(taken.at(Point.EXPORTED, Point.RECEIVED))
    yield Ending(State.MET, f"{arrived} tensors arrived as they were exported, {loaded} were loaded as they arrived")


# The rollout holds what the trainer exported: name by name as it arrived, and by sums as the engine loaded it. Trainer
# and rollout number their syncs alike, so an export is compared with what arrived in the sync of its number: the base
# weights are sent once and the adapters in every sync, or all weights in every sync. The engine fuses projections and
# shares weights between tensor ranks, so what it loaded is compared by sums, where its names say what was fused.
rollout_weights = Invariant(Stage.EXPORT_WEIGHT_SYNC, _rollout_claims)


def _sync_faults(
    taken: Snapshots, received: Snapshot, exported: Mapping[int, Sequence[Snapshot]]
) -> Iterator[TensorFault]:
    """What arrived against the export of the same number, from any rank: each rank exports whole tensors."""
    exports = exported.get(received.number, ())
    kinds = [{item.adapter_only, received.adapter_only} for item in exports]
    if not exports or {True, False} in kinds:
        taken.notes.append("A sync that arrived at the rollout has no export of its number: it was not compared")
        return
    sent: dict[str, list[Tensor]] = {}
    for item in exports:
        for name, tensor in taken.held(item).items():
            sent.setdefault(name, []).append(tensor)
    # Of which what arrived may be a copy, the latest first.
    numbers = range(received.number - 1, received.number - 1 - _EARLIER, -1)
    earlier = [taken.held(item) for number in numbers for item in exported.get(number, ())]

    def differs(name: str, wanted: Sequence[Tensor], found: Sequence[Tensor]) -> FoundDifference | None:
        if any(same(tensor, found[0]) for tensor in wanted):
            return None
        return difference(wanted[0], found[0], earlier=[state[name] for state in earlier if name in state])

    whole = is_whole(received, *exports)
    absent = "it was exported and did not arrive" if whole else ""
    extra = "it arrived and was not exported" if whole else ""
    yield from taken.faults(sent, each(taken.held(received)), differs, absent=absent, extra=extra)


def _loads(loaded: Sequence[Snapshot]) -> Iterator[list[Snapshot]]:
    """The snapshots of all tensor ranks of each replica, sync by sync; without those that a rank is missing from."""
    groups: dict[tuple[int, int], dict[int, Snapshot]] = {}
    for snapshot in loaded:
        groups.setdefault((snapshot.number, snapshot.ranks.data), {})[snapshot.ranks.tensor] = snapshot
    for group in map(list, map(dict.values, groups.values())):
        if len(group) == group[0].ranks.tensor_size:
            yield group


def _load_faults(taken: Snapshots, group: Sequence[Snapshot], arrived: Mapping[str, Tensor]) -> Iterator[TensorFault]:
    """What the engine's model holds against all that had arrived in its process by then."""
    wanted: dict[str, list[Tensor]] = {}
    held: dict[str, list[Tensor]] = {}
    unknown: list[str] = []
    seen: set[str] = set()
    for name in dict.fromkeys(name for item in group for name in taken.held(item)):
        parts = [taken.held(item)[name] for item in group if name in taken.held(item)]
        parts_of = sources(name, arrived)
        seen.update(parts_of)
        whole = [arrived[source] for source in parts_of]
        # Of the same type, and as many elements as the whole or as many times that.
        types = {tensor.dtype for tensor in (*parts, *whole)}
        here, sent = sum(map(count, parts)), sum(map(count, whole))
        fits = len(types) == 1 and sent > 0 and here in (sent, sent * len(parts))
        if whole and len(parts) == len(group) and fits:
            wanted[name], held[name] = whole, parts
        else:
            unknown.append(name)

    def differs(name: str, whole: Sequence[Tensor], parts: Sequence[Tensor]) -> FoundDifference | str | None:
        if _ADAPTER.match(name):
            return _adapter_difference(taken.case, whole[0], parts[0])
        # Tensor ranks hold parts or copies.
        if adds_up(parts, whole, times=sum(map(count, parts)) // sum(map(count, whole))):
            return None
        kind = difference(whole[0], parts[0]) if len(parts) == len(whole) == 1 else None
        zero = all(tensor.square == 0 for tensor in parts)
        return str(kind) if kind else "all zero" if zero else "its sums are not those of what arrived"

    yield from taken.faults(wanted, held, differs)
    if unknown and is_whole(*group):
        taken.notes.append(f"Not compared of what the rollout engine loaded: {names(unknown)}")
    absent = [name for name in arrived if name not in seen]
    if absent and is_whole(*group):
        taken.notes.append(f"Arrived at the rollout and not seen in the engine's model: {names(absent)}")


def _adapter_difference(case: Case, wanted: Tensor, held: Tensor) -> FoundDifference | None:
    """A registered adapter, which the engine may have multiplied with alpha / rank and transposed."""
    kind = difference(wanted, held)
    if kind is None or kind.kind in _ENGINES_OWN:
        return None
    alpha, rank = (case.config(key) for key in (ConfigKey.ADAPTER_ALPHA, ConfigKey.ADAPTER_RANK))
    if (
        not (isinstance(alpha, int | float) and isinstance(rank, int | float))
        or kind.kind is not TensorDifference.SCALE
    ):
        return kind
    scaled = rank and abs(held.square - (alpha / rank) ** 2 * wanted.square) <= held.square * 2.0**-6
    return None if scaled else kind


def sources(name: str, arrived: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The names under which the parts of an engine's parameter arrived; empty where that is not known."""
    adapter = _ADAPTER.match(name)
    if adapter:
        # An adapter of a fused projection has one entry for each part; any other has no index.
        path, _, projection = adapter["module"].rpartition(".")
        parts = _FUSED.get(projection, ())
        index = int(adapter["index"] or 0)
        if bool(adapter["index"]) != bool(parts) or (parts and index >= len(parts)):
            return ()
        adapted = f"{path}.{parts[index]}" if parts else adapter["module"]
        ending = f".{adapted}.lora_{adapter['part'].upper()}.weight"
        return next(((source,) for source in arrived if f".{source}".endswith(ending)), ())
    module, _, last = name.replace(".base_layer.", ".").rpartition(".")
    path, _, projection = module.rpartition(".")
    fused = tuple(f"{path}.{part}" for part in _FUSED.get(projection, ()))
    candidates = [tuple(f"{part}{style}.{last}" for part in parts) for parts in (fused, (module,)) for style in _STYLES]
    return next((parts for parts in candidates if parts and all(part in arrived for part in parts)), ())


def _resumed_claims(taken: Snapshots) -> Iterator[Claim | Ending]:
    planned, models = consumer_of(taken.case.job).phases(taken.case.job), trained_models(taken.case)
    if len(planned) < 2:
        yield Ending(State.MISSING, "the job saves nothing, so nothing is resumed")
    save, resume = planned[0], planned[-1]
    looked_at: list[Snapshot] = []
    number = 0
    for model in models:
        every = taken.at(Point.CHECKPOINT_SAVED, model=model, phase=save.name)
        named = [snapshot for snapshot in every if snapshot.step == save.last_step]
        # The last one of each rank; of any step where none names one.
        saved = {item.ranks.rank: item for item in named or every if item.step in (save.last_step, None)}
        loaded, built = (
            {item.ranks.rank: item for item in reversed(taken.at(point, model=model, phase=resume.name))}
            for point in (Point.CHECKPOINT_LOADED, Point.MODEL_BUILT)
        )
        # By parameter what a card says of one that is known to stay as it was.
        declared = {
            parameter: (
                f"Known defect {entry.name}: {parameter} of the {model} has after the load what it had before: "
                f"{entry.reason}{f' ({entry.upstream})' if entry.upstream else ''}"
            )
            for entry in taken.case.job.not_restored
            if entry.model == model
            for parameter in entry.parameters
        }
        found = tuple(_state_faults(taken, saved, loaded, built))
        known = [fault for fault in found if fault.stale and fault.name in declared]
        taken.notes += (declared[fault.name] for fault in known)
        text = f"what the {resume.name} phase loaded of the {model} is not what the {save.name} phase saved"
        yield Claim(text, [fault for fault in found if fault not in known], Stage.CHECKPOINT_LOAD)
        missing = taken.gap(model, save.name, Point.CHECKPOINT_SAVED) or taken.gap(
            model, resume.name, Point.CHECKPOINT_LOADED
        )
        if not missing and not any(tensors(snapshot, TensorKind.OPTIMIZER) for snapshot in saved.values()):
            missing = f"the fingerprints of the {model}'s checkpoint hold no state of the optimizer"
        if missing:
            yield Ending(State.MISSING, missing)
        looked_at += (*saved.values(), *loaded.values())
        number += sum(len(_state(snapshot)) for snapshot in loaded.values()) - len(known)
    taken.note_left_out(looked_at)
    taken.note_not_whole()
    text = f"{number} tensors of {' and '.join(models)}, optimizer state included, are as they were saved"
    yield Ending(State.MET, text)


# Level 1: what the second phase loaded is what the first one had saved, tensor by tensor, moments included.
#
# The state is taken on each rank after the save and after the load. On the same rank the bits must be equal; where
# ranks hold other parts of tensors than before, the sums over all ranks must be. A parameter that has after the load
# what it had before was not restored; where the policy declares that the pinned commits never do, it is a limitation.
resumed_state = Invariant(Stage.CHECKPOINT_LOAD, _resumed_claims)

# By rank.
OfRanks = Mapping[int, Snapshot]


def _state(snapshot: Snapshot) -> dict[str, Tensor]:
    return tensors(snapshot, TensorKind.PARAMETER, TensorKind.OPTIMIZER)


def _state_faults(taken: Snapshots, saved: OfRanks, loaded: OfRanks, built: OfRanks) -> Iterator[TensorFault]:
    common = [rank for rank in saved if rank in loaded]
    other_parts = any(_parts_of(loaded[rank]) - _parts_of(saved[rank]) for rank in common)
    # The tensors of which some rank holds a part, where these are others than before.
    cut = {
        _whole(name)
        for state in (saved, loaded)
        for snapshot in state.values()
        for name in _parts_of(snapshot)
        if other_parts and set(saved) == set(loaded)
    }
    for rank in common:
        yield from _faults_of_rank(taken, saved[rank], loaded[rank], built.get(rank), cut)

    def differs(_: str, parts: Sequence[Tensor], others: Sequence[Tensor]) -> str | None:
        if adds_up(others, parts):
            return None
        zero = all(tensor.square == 0 for tensor in others) and any(tensor.square for tensor in parts)
        return "all zero" if zero else "its parts on all ranks do not add up to what was saved"

    before, after = _added_up(saved, cut), _added_up(loaded, cut)
    absent = "not there on any rank after the load" if is_whole(*loaded.values()) else ""
    yield from taken.faults(before, after, differs, absent=absent)


def _faults_of_rank(
    taken: Snapshots, saved: Snapshot, loaded: Snapshot, built: Snapshot | None, cut: set[str]
) -> Iterator[TensorFault]:
    after, start = _state(loaded), taken.held(built) if built is not None else {}
    before = taken.held(saved)
    # Parameters that the rank holds whole at one of the two points and in parts at the other.
    other_form = {name for name in before if name in after and after[name].sharded != before[name].sharded}
    wanted = {name: tensor for name, tensor in _state(saved).items() if _whole(name) not in cut or name in other_form}

    def differs(name: str, expected: Sequence[Tensor], found: Sequence[Tensor]) -> FoundDifference | None:
        if name in other_form:
            return taken.difference(name, saved, loaded)
        # A count of steps may be a number before and a tensor after, of another type.
        if count(expected[0]) == 1 and adds_up(found, expected):
            return None
        return difference(expected[0], found[0], earlier=[start[name]] if name in start else [])

    absent = f"not there on rank {loaded.ranks.rank} after the load" if is_whole(loaded) else ""
    yield from taken.faults(each(wanted), each(after), differs, absent=absent)


def _parts_of(snapshot: Snapshot) -> set[str]:
    """The parts of tensors that a rank holds; a name without a range stands for a whole tensor."""
    return {tensor.name for tensor in snapshot.tensors if "[" in tensor.name}


def _whole(name: str) -> str:
    """The name of the tensor that a part is of."""
    return name.partition("[")[0]


def _added_up(state: OfRanks, cut: set[str]) -> dict[str, list[Tensor]]:
    """The parts of all ranks of those tensors that are cut."""
    parts: dict[str, list[Tensor]] = {}
    for snapshot in state.values():
        for tensor in _state(snapshot).values():
            if _whole(tensor.name) in cut:
                parts.setdefault(_whole(tensor.name), []).append(tensor)
    return parts


_ABSENT = re.compile(r"Can't find (\S{1,200}) in hf_keys$")
# A language model's output layer under the names that Hugging Face gives it.
_OUTPUT_OF_FILES = re.compile(r"(?:^|\.)(?:lm_head|output|output_layer|embed_out)\.weight$")
_EMBEDDING = re.compile(r"(?:^|\.)embedding\.word_embeddings\.weight$")
_OUTPUT = re.compile(r"(?:^|\.)output_layer\.weight$")


def without_needless_warnings(case: Case) -> Case:
    """The case with the warnings set apart that name only an output layer which the recorded weights replace.

    The checkpoint of a model with tied embeddings holds no output layer. verl gives a critic a head of its own in that
    place, one row that no checkpoint holds, and no longer ties it, so Bridge looks for the output layer, warns
    (`build_conversion_tasks` in `model_bridge.py`) and leaves the head as it was made. The words of the warning excuse
    nothing: an untied model whose checkpoint is incomplete gets the same ones. The recorded weights tell them apart.
    """
    lost = case.facts.lost_weights
    taken = Snapshots(case)
    needless = tuple(
        line
        for line in lost
        if (found := _ABSENT.search(line.text))
        and _OUTPUT_OF_FILES.search(found[1])
        and all(_is_replaced(taken, phase, found[1]) for phase in taken.phases)
    )
    if not needless:
        return case
    facts = replace(case.facts, lost_weights=tuple(line for line in lost if line not in needless))
    return replace(case, facts=facts, needless_warnings=needless)


def _is_replaced(taken: Snapshots, phase: str, name: str) -> bool:
    """Whether no model takes the output layer of that name from the checkpoint in the phase."""
    files = taken.at(Point.CHECKPOINT_FILE, phase=phase)
    if not files or not is_whole(*files) or any(tensor.name == name for item in files for tensor in item.tensors):
        return False
    models = trained_models(taken.case)
    imported = {model: taken.at(Point.WEIGHTS_IMPORTED, model=model, phase=phase) for model in models}
    every = set(range(taken.case.job.gpu_count))
    if any({item.ranks.rank for item in found if is_whole(item)} != every for found in imported.values()):
        return False
    heads = [tensor for _, tensor in _named(imported.get("critic", ()), _OUTPUT)]
    outputs = _named(imported[_ACTOR], _OUTPUT)
    first = [item for item in imported[_ACTOR] if item.ranks.pipeline == 0]
    embeddings = dict(_named(first, _EMBEDDING))
    # A single stage has no output layer of its own where it holds the embedding.
    tied = bool(embeddings) and all(
        rank in embeddings and same(embeddings[rank], tensor) and not is_constant(tensor) for rank, tensor in outputs
    )
    return bool(heads or outputs) and tied and all(head.shape[:1] == (1,) for head in heads)


def _named(found: Sequence[Snapshot], name: re.Pattern[str]) -> list[tuple[int, Tensor]]:
    """The parameters of that name, each with its tensor rank."""
    return [
        (snapshot.ranks.tensor, tensor)
        for snapshot in found
        for tensor in tensors(snapshot).values()
        if name.search(tensor.name)
    ]
