"""Four criteria on a trainer's own weights: adapters have their size, what trains moves, the rest stays, copies agree.

Each `Invariant` stands below its claims, with the facts of Megatron and Bridge that they rest on.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from verl_e2e.core.compare.steps import FoundDifference, TensorDifference, difference, is_constant, same
from verl_e2e.core.consumer.consumer import ConfigKey
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.judge.case import trained_models, wants_adapter
from verl_e2e.core.judge.criteria.invariants import (
    Claim,
    Ending,
    Invariant,
    Snapshots,
    TensorFault,
    by_process,
    each,
    is_whole,
    names,
    place_of_copies,
    tensors,
)
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Adapters, Point, Ranks, Snapshot, Tensor, TensorKind
from verl_e2e.core.model.outcome import Stage

_RANK = {"actor": ConfigKey.ADAPTER_RANK, "critic": ConfigKey.CRITIC_ADAPTER_RANK}
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

Built = Sequence[tuple[Snapshot, Adapters]]


def _size_claims(taken: Snapshots) -> Iterator[Claim | Ending]:
    case = taken.case
    asked = {model: case.config(_RANK[model]) for model in trained_models(case)}
    ranks = {model: rank for model, rank in asked.items() if isinstance(rank, int) and rank and wants_adapter(case)}
    if not ranks:
        yield Ending(State.MET, "no adapter was asked for")
    count = 0
    for phase in taken.phases:
        for model, rank in ranks.items():
            found = taken.at(Point.MODEL_BUILT, model=model, phase=phase)
            built = [(item, item.adapters) for item in found if item.adapters is not None]
            missing = taken.gap(model, phase, Point.MODEL_BUILT)
            if missing or len({item.ranks.rank for item, _ in built}) < case.job.gpu_count:
                text = f"not every rank lists the adapters of the {model} in the {phase} phase"
                yield Ending(State.MISSING, missing or text)
            text = f"the adapters of the {model} are not those that were asked for in the {phase} phase"
            yield Claim(text, tuple(_adapter_faults(built, rank)), Stage.PEFT)
            paths = {_path(module.name) for _, adapters in built for module in adapters.modules}
            targets = dict.fromkeys(target for _, adapters in built for target in adapters.targets[:_MOST_TARGETS])
            unmatched = [target for target in targets if not any(_matches(path, target) for path in paths)]
            if unmatched:
                taken.notes.append(f"The {model} has no module for the adapter's target {names(unmatched)}")
            count += sum(len(adapters.modules) for _, adapters in built)
    text = f"{count} adapters of {' and '.join(ranks)} have the rank and the size that were asked for"
    yield Ending(State.MET, text)


# An adapter of rank r on a module with `in` and `out` features has r x (in + out) parameters. Tensor-parallel ranks
# share them evenly; grouped experts have one each; DoRA adds a magnitude for each output. Targets match as Bridge
# matches them: a module's own name, or a pattern over its whole path; canonical names as `linear_q` mean a part of a
# fused module.
adapter_size = Invariant(Stage.PEFT, _size_claims)


def _adapter_faults(built: Built, asked: int) -> Iterator[TensorFault]:
    """Ranks and sizes that are not what they should be, then modules that a target matches and that have no adapter."""
    if not any(adapters.modules for _, adapters in built):
        yield TensorFault("(none)", f"no module has an adapter, rank {asked} was asked for")
    for snapshot, adapters in built:
        if adapters.rank != asked:
            yield TensorFault("(all)", f"rank {adapters.rank} was built, {asked} was asked for")
        sharded = any(tensor.sharded for tensor in snapshot.tensors)
        for module in adapters.modules:
            path = _path(module.name)
            expert = _EXPERT.search(path) is not None and ".shared_experts." not in path
            # The rank of experts may be divided by the number of experts of a token.
            if module.rank != adapters.rank and not (expert and 0 < module.rank < adapters.rank):
                yield TensorFault(module.name, f"it has rank {module.rank}, {adapters.rank} was asked for")
                continue
            whole = module.rank * (module.features_in + module.features_out)
            shares = snapshot.ranks.tensor_size
            extra = {module.features_out, module.features_out // shares} if "dora" in adapters.type.lower() else {0}
            fits = any(module.parameters - added in (whole, whole // shares) for added in extra)
            # Experts whose adapters share one side have sizes of their own, and Megatron-FSDP shards each tensor.
            if not (whole > 0 and module.parameters > 0 if expert or sharded else fits):
                formula = f"rank {module.rank} x ({module.features_in} in + {module.features_out} out)"
                yield TensorFault(module.name, f"{module.parameters} parameters on a rank, by {formula}")
    for snapshot, adapters in built:
        weights = (_WEIGHT.sub("", tensor.name) for tensor in snapshot.tensors if _WEIGHT.search(tensor.name))
        held = {_path(name) for name in weights if ".adapter" not in name}
        # Where no other shows how a wrapped module is named, nothing tells which are bare.
        for name in sorted(held) if any(name.endswith(_WRAPPED) for name in held) else ():
            target = next((target for target in adapters.targets[:_MOST_TARGETS] if _matches(name, target)), "")
            if target:
                yield TensorFault(name, f"it has no adapter, although the target {target[:80]} matches it")


def _path(name: str) -> str:
    return _BESIDE_PATH.sub("", name)


def _matches(path: str, target: str) -> bool:
    """Whether Bridge gives a module an adapter for that target."""
    part = next((part for part in _FUSED if target.endswith(part)), "")
    pattern = target.replace(part, _FUSED[part]) if part else target
    return path.rpartition(".")[2] == pattern or fnmatchcase(path, pattern.replace("[", "[[]").replace("?", "[?]"))


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
    # Whether it was zero at the start; of shards, each must be.
    from_zero: bool = True
    # Whether its bits changed on any rank, and its main copy's.
    moved: bool = False
    main_moved: bool = False
    # Whether weight decay alone cannot have made such a change of it or of its main copy.
    stepped: bool = False
    moments: list[Tensor] = field(default_factory=list)

    @property
    def has_gradient(self) -> bool:
        """Whether some moment is not zero."""
        return any(moment.square != 0 for moment in self.moments)

    @property
    def trained(self) -> bool:
        """Whether anything shows that it trains."""
        return self.has_gradient or self.stepped or (not self.moments and (self.moved or self.main_moved))

    @property
    def is_adapter(self) -> bool:
        """Whether it belongs to an adapter."""
        return ".adapter" in self.tensor.name

    @property
    def kind(self) -> str:
        """Its name in any layer."""
        return _NUMBER.sub("*", self.tensor.name)


def _trained_claims(taken: Snapshots) -> Iterator[Claim | Ending]:
    number = steps = 0
    for phase, model in taken.trained:
        missing = taken.gap(model, phase, Point.MODEL_BUILT, Point.OPTIMIZER_STEP)
        if missing:
            yield Ending(State.MISSING, missing)
        parameters, made = _parameters(taken, model, phase)
        others = any(item.moved for item in parameters.values())
        # From zero any step shows in its bits, unless the learning rate left all as they were.
        stuck = {name for name, item in parameters.items() if item.from_zero and not item.moved and others}
        still = {name: item for name, item in parameters.items() if not item.trained or name in stuck}
        text = f"parameters of the {model} did not train in {made} optimizer step(s) of the {phase} phase"
        yield Claim(text, _untrained(still, parameters, made, others_moved=others), Stage.TRAIN_STEP)
        resting = list(dict.fromkeys(item.tensor.name for item in still.values()))
        if resting:
            of = f"{len(resting)} parameters of the {model}"
            taken.notes.append(f"{of} were not seen to train in {made} step(s): {names(resting)}")
        number, steps = number + len(parameters) - len(still), steps + made
    if not number:
        yield Ending(State.MISSING, "no fingerprint shows a parameter that trains")
    taken.note_left_out(taken.at(Point.OPTIMIZER_STEP))
    models = " and ".join(trained_models(taken.case))
    yield Ending(State.MET, f"{number} parameters of {models} trained in {steps} optimizer steps")


# Each parameter with `requires_grad` got a gradient, and the adapters moved.
#
# A weight in half precision may stay as it is although it trains, because the step is smaller than its type shows. On
# the other hand weight decay scales a weight, or its main copy, that never gets a gradient. So a parameter counts as
# trained when a moment of it is not zero, or when it or its main copy changed by more than a factor near one; where the
# optimizer keeps no moments any change counts. It surely did not train when its moments are zero and no more than decay
# changed it, or when it began as zero and stayed zero while others moved.
#
# That is a fault for every adapter of a decoder layer once the optimizer made two steps: in the first one `lora_A` gets
# no gradient, because `lora_B` is zero. For other parameters it is a fault when it holds for all of a kind. Experts
# without tokens, routers that choose one expert, MTP layers and encoders of other media may go without a gradient: they
# are named as limitations.
trained_weights = Invariant(Stage.TRAIN_STEP, _trained_claims)


def _parameters(taken: Snapshots, model: str, phase: str) -> tuple[dict[str, _Parameter], int]:
    """By place and name what became of each parameter that trains, and how many steps the optimizer made."""
    points = (Point.MODEL_BUILT, Point.CHECKPOINT_LOADED, Point.BEFORE_EXPORT, Point.OPTIMIZER_STEP)
    found: dict[str, _Parameter] = {}
    steps = 0
    for process in by_process(taken.at(*points, model=model, phase=phase)).values():
        made = [item for item in process if item.point is Point.OPTIMIZER_STEP]
        before = process[: process.index(made[0])] if made else []
        start = next((item for item in reversed(before) if item.point is not Point.BEFORE_EXPORT), None)
        if start is None:
            continue
        steps = max(steps, made[-1].number + 1)
        later = process[process.index(made[-1]) :]
        # Parameters that are gathered after the last step are there before the next export.
        ends = (item for item in later if item.point in (Point.OPTIMIZER_STEP, Point.BEFORE_EXPORT))
        after = next((item for item in ends if taken.held(item)), made[-1])
        held, earlier = taken.held(after), tensors(made[0], TensorKind.OPTIMIZER)
        # The optimizer's state is called `<parameter>/<state>`, with `[START:END]` for a part.
        states: dict[str, list[Tensor]] = {}
        for state in tensors(made[-1], TensorKind.OPTIMIZER).values():
            states.setdefault(state.name.partition("/")[0], []).append(state)
        for name, tensor in taken.held(start).items():
            if not tensor.requires_grad:
                continue
            item = found.setdefault(f"{name} {place_of_copies(start.ranks, tensor)}", _Parameter(tensor))
            item.from_zero &= tensor.square == 0
            if name in held and taken.can_compare(name, start, after):
                change = taken.difference(name, start, after)
                item.moved |= change is not None
                item.stepped |= _beyond_decay(change)
            for state in states.get(name, ()):
                key = state.name.partition("/")[2].partition("[")[0]
                if key in _MOMENTS:
                    item.moments.append(state)
                elif key in _MAIN and state.name in earlier:
                    item.main_moved |= not same(earlier[state.name], state)
                    item.stepped |= _beyond_decay(difference(earlier[state.name], state))
    return found, steps


def _beyond_decay(change: FoundDifference | None) -> bool:
    """Whether one factor near one for all elements does not explain a change."""
    if change is None or change.kind is TensorDifference.ROUNDED:
        return False
    return change.kind is not TensorDifference.SCALE or not _LEAST_DECAY <= change.factor <= 1


def _untrained(
    still: Mapping[str, _Parameter], parameters: Mapping[str, _Parameter], steps: int, *, others_moved: bool
) -> Iterator[TensorFault]:
    """Those of the parameters at rest that surely should have trained and surely did not."""
    some_trained = {item.kind for name, item in parameters.items() if name not in still}
    zero = any(item.from_zero and item.is_adapter for item in parameters.values())
    for item in still.values():
        name = item.tensor.name
        late = steps > 1 or item.from_zero or not (item.is_adapter and zero)
        should = late and ".layers." in f".{name}" and not _MAY_REST.search(name)
        no_gradient = bool(item.moments) and not item.has_gradient
        sure = no_gradient or (item.from_zero and others_moved)
        if should and sure and (item.is_adapter or item.kind not in some_trained):
            moved = "weight decay alone moved it" if item.moved or item.main_moved else "it did not move"
            what = f"its moments are zero, so it got no gradient, and {moved}" if no_gradient else "it is still zero"
            what = "it got a gradient, and yet it is still zero" if item.has_gradient else what
            yield TensorFault(name, what, item.tensor, item.tensor)


# Where a frozen parameter is looked at, and the stage that a change found there belongs to.
_FROZEN_STAGES = {
    Point.MODEL_BUILT: Stage.BRIDGE_PROVIDER,
    Point.CHECKPOINT_LOADED: Stage.CHECKPOINT_LOAD,
    Point.BEFORE_EXPORT: Stage.TRAIN_STEP,
    Point.AFTER_EXPORT: Stage.EXPORT_WEIGHT_SYNC,
    Point.OPTIMIZER_STEP: Stage.TRAIN_STEP,
    Point.CHECKPOINT_SAVED: Stage.CHECKPOINT_SAVE,
}


def _frozen_claims(taken: Snapshots) -> Iterator[Claim | Ending]:
    processes = by_process(taken.at(*_FROZEN_STAGES))
    for (phase, model, _), process in processes.items():
        for what, before, at in _unchanged(taken, process):
            where = f"'{at.point}' {at.number + 1} of the {phase} phase on rank {at.ranks.rank}"
            text = f"{what} of the {model} changed by {where}"
            yield Claim(text, _changes(taken, before, at), _FROZEN_STAGES[at.point])
    for phase, model in taken.trained:
        exports = (Point.BEFORE_EXPORT, Point.AFTER_EXPORT) if model == "actor" else ()
        missing = taken.gap(model, phase, Point.MODEL_BUILT, Point.OPTIMIZER_STEP, *exports)
        if missing:
            yield Ending(State.MISSING, missing)
    for phase, model in taken.trained:
        taken.note_uneven(model, phase, Point.BEFORE_EXPORT, Point.AFTER_EXPORT)
        taken.note_uneven(model, phase, Point.OPTIMIZER_STEP)
    taken.note_left_out(taken.at(*_FROZEN_STAGES))
    taken.note_not_whole()
    frozen = max((len(_frozen(taken, process[0])) for process in processes.values()), default=0)
    held = f"{frozen} frozen parameters of a rank never changed" if frozen else "no parameter is frozen"
    yield Ending(State.MET, f"{held}, and none changed in {len(taken.at(Point.AFTER_EXPORT))} exports")


# A parameter without `requires_grad` has the bits with which the model was built at every later point of its process.
# Every parameter, adapters included, has after an export the bits that it had before: an export only reads.
frozen_weights = Invariant(Stage.TRAIN_STEP, _frozen_claims)


def _unchanged(taken: Snapshots, process: Sequence[Snapshot]) -> Iterator[tuple[str, Mapping[str, Snapshot], Snapshot]]:
    """What must be as it was in the snapshot named for each parameter, and the snapshot to compare."""
    before = {snapshot.number: snapshot for snapshot in process if snapshot.point is Point.BEFORE_EXPORT}
    for snapshot in process:
        earlier = before.get(snapshot.number)
        if snapshot.point is Point.AFTER_EXPORT and earlier is not None:
            yield "parameters", dict.fromkeys(taken.held(earlier), earlier), snapshot
    built = next((snapshot for snapshot in process if snapshot.point is Point.MODEL_BUILT), None)
    first = {} if built is None else dict.fromkeys(_frozen(taken, built), built)
    for snapshot in process if first else ():
        yield "frozen parameters", dict(first), snapshot
        # From where a parameter is whole on, its bits can be compared.
        held = taken.held(snapshot)
        whole = [name for name in first if name in held and not held[name].sharded]
        first |= {name: snapshot for name in whole if taken.held(first[name])[name].sharded}


def _changes(taken: Snapshots, before: Mapping[str, Snapshot], at: Snapshot) -> Iterator[TensorFault]:
    expected = {name: taken.held(snapshot)[name] for name, snapshot in before.items()}
    return taken.faults(each(expected), each(taken.held(at)), lambda name, *_: taken.difference(name, before[name], at))


def _frozen(taken: Snapshots, snapshot: Snapshot) -> list[str]:
    return [name for name, tensor in taken.held(snapshot).items() if tensor.requires_grad is False]


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
_GATHERED_LATER = "Parameters are gathered after the step (overlap_param_gather): no copy was compared there"

RankPlace = Callable[[Ranks], tuple[int, ...]]
Group = Sequence[Snapshot]
RankPair = tuple[Snapshot, Snapshot]
# By rank the parameters with which the model was built.
AsBuilt = Mapping[int, Mapping[str, Tensor]]


def _copies_claims(taken: Snapshots) -> Iterator[Claim | Ending]:
    gpus = taken.case.job.gpu_count
    if gpus == 1:
        yield Ending(State.MET, "one rank: nothing is held twice")
    phases = consumer_of(taken.case.job).phases(taken.case.job)
    first_steps = {phase.name: phase.first_step for phase in phases}
    groups: dict[tuple[str, str, Point, int], list[Snapshot]] = {}
    for snapshot in taken.at(*_COPY_STAGES):
        groups.setdefault((snapshot.phase, snapshot.model, snapshot.point, snapshot.number), []).append(snapshot)
    exports = [snapshot for snapshot in taken.at(Point.EXPORTED) if not snapshot.adapter_only]
    # A whole export without an output layer of its own.
    tied = bool(exports) and not any(
        snapshot.left_out or any(_HF_OUTPUT.search(tensor.name) for tensor in snapshot.tensors) for snapshot in exports
    )
    built: dict[tuple[str, str], dict[int, Mapping[str, Tensor]]] = {}
    for snapshot in taken.at(Point.MODEL_BUILT):
        built.setdefault((snapshot.phase, snapshot.model), {})[snapshot.ranks.rank] = taken.held(snapshot)
    for (phase, model, point, number), group in groups.items():
        text = f"copies of a parameter of the {model} differ at '{point}' {number + 1} of the {phase} phase"
        samples = model == "actor"
        faults = _copy_faults(taken, group, built.get((phase, model), {}), tied=tied and samples)
        # What an optimizer step leaves is sampled from in the next step.
        spoils = first_steps[phase] + (number + 1 if point is Point.OPTIMIZER_STEP else 0)
        yield Claim(text, faults, _COPY_STAGES[point], spoils if samples else None)
    for phase, model in taken.trained:
        missing = taken.gap(model, phase, Point.MODEL_BUILT, Point.OPTIMIZER_STEP)
        if missing:
            yield Ending(State.MISSING, missing)
    for (phase, model, _, _), group in groups.items():
        at = group[0].ranks
        if at.data_size * at.tensor_size * at.pipeline_size != gpus:
            sizes = f"data {at.data_size}, tensor {at.tensor_size}, pipeline {at.pipeline_size}"
            text = f"the groups of the {model} in the {phase} phase ({sizes}) do not make {gpus} ranks"
            yield Ending(State.MISSING, text)
    every = [snapshot for group in groups.values() for snapshot in group]
    taken.note_left_out(every)
    sharded = len({tensor.name for snapshot in every for tensor in taken.held(snapshot).values() if tensor.sharded})
    if sharded:
        taken.notes.append(
            f"{sharded} parameters are shared out over data-parallel ranks, which hold parts of them and no copies"
        )
    partial = sum(len(group) != gpus for group in groups.values())
    if partial:
        taken.notes.append(f"At {partial} of {len(groups)} points not every rank left a fingerprint")
    text = f"{taken.count} comparisons of copies on {gpus} ranks at {len(groups)} points, all equal"
    yield Ending(
        State.MET, text if taken.count else f"no parameter that was read lies on more than one of {gpus} ranks"
    )


# What ranks hold in common is equal: after the model was built, after a checkpoint was loaded, after each step.
#
# By Megatron's layout, on ranks of one pipeline stage:
# - a parameter that does not belong to an expert lies on every data- and context-parallel rank of a tensor rank
#   (Megatron-FSDP shards it there instead, so that nothing is compared);
# - an expert's, which has `allreduce` off, on every expert-data-parallel rank of an expert and expert tensor rank; an
#   adapter that the experts of a layer share, on every expert rank as well;
# - one without a tensor-parallel dimension on every tensor rank: norms and routers, which sequence parallelism copies
#   too. Some layers do not say that they split a parameter, so such a copy counts as one if it is a norm or a router,
#   or if it was equal and not constant when the model was built. What the optimizer holds of it is a copy as well;
# - tied embeddings on the first and on the last pipeline stage: the export has no output layer, and they were equal
#   when the model was built.
replicas = Invariant(Stage.TRAIN_STEP, _copies_claims)


def _copy_faults(taken: Snapshots, group: Group, built: AsBuilt, *, tied: bool) -> Iterator[TensorFault]:
    """The copies that differ at one point."""
    case, point = taken.case, group[0].point
    step = point is Point.OPTIMIZER_STEP
    if step and case.config(ConfigKey.GATHERS_LATER) is True:
        taken.notes.append(_GATHERED_LATER)
        return
    for pair in _pairs(group, lambda at: (at.tensor, at.pipeline)):
        yield from _data_copies(taken, pair, lambda tensor: not tensor.expert)
    for pair in _pairs(group, lambda at: (at.expert_tensor, at.expert, at.pipeline)):
        yield from _data_copies(taken, pair, lambda tensor: tensor.expert)
    if not step or group[0].ranks.expert_data_size <= _SURE_OF_SUMS:
        # An adapter that all experts of a layer share has no dimension of experts.
        def is_shared(tensor: Tensor) -> bool:
            return tensor.expert and len(tensor.shape) == 2 and _SHARED_ADAPTER.search(tensor.name) is not None

        for pair in _pairs(group, lambda at: (at.expert_tensor, at.pipeline, at.expert_data)):
            yield from _data_copies(taken, pair, is_shared)
    # Without sequence parallelism the gradients of copies are not reduced over tensor ranks, and they drift apart.
    said = case.config(ConfigKey.SEQUENCE_PARALLEL)
    divided = consumer_of(case.job).divides_sequences if said is None else said is True
    yield from _tensor_copies(taken, group, built, step=step, divided=divided)
    if tied:
        yield from _embeddings(taken, group, built)


def _pairs(group: Group, place: RankPlace) -> Iterator[RankPair]:
    """Each snapshot with the first one of those at the same place."""
    firsts: dict[tuple[int, ...], Snapshot] = {}
    for snapshot in sorted(group, key=lambda item: item.ranks.rank):
        first = firsts.setdefault(place(snapshot.ranks), snapshot)
        if first.ranks.rank != snapshot.ranks.rank:
            yield first, snapshot


def _compared(
    taken: Snapshots, pair: RankPair, wanted: Mapping[str, Tensor], held: Mapping[str, Tensor], *, whole: bool = False
) -> Iterator[TensorFault]:
    """Copies on two ranks: where both are `whole`, neither holds what the other does not."""
    first, other = (snapshot.ranks.rank for snapshot in pair)

    def differs(_: str, expected: Sequence[Tensor], found: Sequence[Tensor]) -> str | None:
        kind = difference(expected[0], found[0])
        return f"rank {other} holds {kind}, compared with rank {first}" if kind else None

    absent = f"rank {other} does not hold it, rank {first} does" if whole else ""
    extra = f"rank {first} does not hold it, rank {other} does" if whole else ""
    yield from taken.faults(each(wanted), each(held), differs, absent=absent, extra=extra)


def _data_copies(taken: Snapshots, pair: RankPair, belongs: Callable[[Tensor], bool]) -> Iterator[TensorFault]:
    first, other = map(taken.held, pair)
    wanted = {name: tensor for name, tensor in first.items() if belongs(tensor) and not tensor.sharded}
    held = {name: tensor for name, tensor in other.items() if name in wanted or (name not in first and belongs(tensor))}
    yield from _compared(taken, pair, wanted, held, whole=is_whole(*pair))


def _tensor_copies(
    taken: Snapshots, group: Group, built: AsBuilt, *, step: bool, divided: bool
) -> Iterator[TensorFault]:
    """Copies on tensor ranks; a drift after a step is certain only where these divide sequences."""
    unknown: list[str] = []
    drifted: list[str] = []
    for pair in _pairs(group, lambda at: (at.pipeline, at.data)):
        first, held = map(taken.held, pair)
        wanted = {}
        for name, tensor in first.items():
            if name not in held or tensor.expert or tensor.sharded or tensor.tensor_parallel_dim is not None:
                continue
            if not (_COPIED.search(name) or _were_copies(built, pair, name, name)):
                unknown += [] if same(tensor, held[name]) else [name]
            elif tensor.requires_grad and step and not divided:
                drifted += [] if same(tensor, held[name]) else [name]
            else:
                wanted[name] = tensor
        # The optimizer holds them finer than a rounded weight: of the same part of a copy, if the ranks hold parts.
        states, held_states = (tensors(snapshot, TensorKind.OPTIMIZER) if divided else {} for snapshot in pair)
        of_copies = [name for name in states if name.partition("/")[0] in wanted and name in held_states]
        wanted |= {name: states[name] for name in of_copies}
        yield from _compared(taken, pair, wanted, {**held, **held_states})
    if unknown:
        of = f"different on tensor ranks of the {group[0].model}"
        taken.notes.append(f"Not known to be copies, and {of}: {names(unknown)}")
    if drifted:
        taken.notes.append(f"Copies on tensor ranks drift apart without sequence parallelism: {names(drifted)}")


def _were_copies(built: AsBuilt, pair: RankPair, name: str, other: str) -> bool:
    """Whether two ranks held the same under these names when the model was built, of more than one value."""
    one, two = (built.get(item.ranks.rank, {}).get(key) for item, key in zip(pair, (name, other), strict=True))
    return one is not None and two is not None and same(one, two) and not is_constant(one)


def _embeddings(taken: Snapshots, group: Group, built: AsBuilt) -> Iterator[TensorFault]:
    """Tied embeddings: the first stage's are the output layer of the last."""
    last = max(snapshot.ranks.pipeline for snapshot in group)
    output = {snapshot.ranks.tensor: snapshot for snapshot in group if snapshot.ranks.pipeline == last}
    for snapshot in group if last else ():
        other = output.get(snapshot.ranks.tensor)
        if snapshot.ranks.pipeline != 0 or other is None:
            continue
        tensor, copy = _ending(snapshot, _EMBEDDING), _ending(other, _OUTPUT)
        pair = (snapshot, other)
        if tensor is not None and copy is not None and _were_copies(built, pair, tensor.name, copy.name):
            yield from _compared(taken, pair, {tensor.name: tensor}, {tensor.name: copy})


def _ending(snapshot: Snapshot, name: str) -> Tensor | None:
    return next((tensor for tensor in snapshot.tensors if f".{tensor.name}".endswith(f".{name}")), None)
