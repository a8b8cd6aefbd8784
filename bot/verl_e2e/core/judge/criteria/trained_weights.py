"""What should train does: each parameter with `requires_grad` got a gradient, and the adapters moved.

A weight in half precision may stay as it is although it trains, because the step is smaller than its type shows. On
the other hand weight decay scales a weight, or its main copy, that never gets a gradient. So a parameter counts as
trained when a moment of it is not zero, or when it or its main copy changed by more than a factor near one; where the
optimizer keeps no moments any change counts. It surely did not train when its moments are zero and no more than decay
changed it, or when it began as zero and stayed zero while others moved.

That is a fault for every adapter of a decoder layer once the optimizer made two steps: in the first one `lora_A` gets
no gradient, because `lora_B` is zero. For other parameters it is a fault when it holds for all of a kind. Experts
without tokens, routers that choose one expert, MTP layers and encoders of other media may go without a gradient: they
are named as limitations.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_e2e.core.compare.tensors import Difference, Found, difference, same
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.forms import Forms, place_of
from verl_e2e.core.judge.criteria.health import trained_models
from verl_e2e.core.judge.criteria.snapshots import (
    Finding,
    TensorFault,
    broken,
    by_process,
    finding,
    gap,
    left_out_note,
    names,
    phases,
    snapshots,
    tensors,
    waived,
)
from verl_e2e.core.model.evidence import Criterion, State
from verl_e2e.core.model.fingerprints import Kind, Point, Snapshot, Tensor
from verl_e2e.core.model.stages import Stage

_CRITERION, _STAGE = Criterion.TRAINED_WEIGHTS, Stage.TRAIN_STEP
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
    # Whether it was zero at the start.
    from_zero: bool
    # Whether its bits changed on any rank.
    moved: bool = False
    # Whether its main copy changed on any rank.
    main_moved: bool = False
    # Whether weight decay alone cannot have made such a change of it or of its main copy.
    stepped: bool = False
    # The moments that ranks hold of it.
    moments: list[Tensor] = field(default_factory=list)

    @property
    def has_gradient(self) -> bool:
        """Whether some moment is not zero."""
        return any(moment.square != 0 for moment in self.moments)

    @property
    def trained(self) -> bool:
        """Whether anything shows that it trains."""
        return self.has_gradient or self.stepped or (not self.moments and (self.moved or self.main_moved))


def trained_weights(case: Case) -> Finding:
    """Whether each parameter that should train did, in each phase."""
    if case.record.fingerprints is None:
        return waived(_CRITERION, _STAGE)
    notes: list[str] = []
    number, steps = 0, 0
    for phase in phases(case):
        for model in trained_models(case):
            missing = gap(case, model, phase, Point.MODEL_BUILT, Point.OPTIMIZER_STEP)
            if missing:
                return finding(_CRITERION, State.MISSING, missing, _STAGE)
            parameters, made = _parameters(case, model, phase)
            others = any(item.moved for item in parameters.values())
            still = {name: item for name, item in parameters.items() if not _is_fine(item, others_moved=others)}
            faults = tuple(_faults(still, parameters, made, others_moved=others))
            if faults:
                text = f"parameters of the {model} did not train in {made} optimizer step(s) of the {phase} phase"
                return broken(_CRITERION, _STAGE, text, faults)
            notes += _notes(still, model, made)
            number, steps = number + len(parameters) - len(still), steps + made
    if not number:
        return finding(_CRITERION, State.MISSING, "no fingerprint shows a parameter that trains", _STAGE, notes)
    notes += left_out_note(snapshots(case, Point.OPTIMIZER_STEP))
    text = f"{number} parameters of {' and '.join(trained_models(case))} trained in {steps} optimizer steps"
    return finding(_CRITERION, State.MET, text, _STAGE, notes)


def _parameters(case: Case, model: str, phase: str) -> tuple[dict[str, _Parameter], int]:
    """By place and name what became of each parameter that trains, and how many steps the optimizer made."""
    points = (Point.MODEL_BUILT, Point.CHECKPOINT_LOADED, Point.BEFORE_EXPORT, Point.OPTIMIZER_STEP)
    found: dict[str, _Parameter] = {}
    steps = 0
    looked_at = snapshots(case, *points, model=model, phase=phase)
    forms = Forms(looked_at)
    for taken in by_process(looked_at).values():
        made = [item for item in taken if item.point is Point.OPTIMIZER_STEP]
        before = taken[: taken.index(made[0])] if made else []
        start = next((item for item in reversed(before) if item.point is not Point.BEFORE_EXPORT), None)
        if start is not None:
            steps = max(steps, made[-1].number + 1)
            _add(found, start, made, _after(taken, made[-1]), forms)
    return found, steps


def _after(taken: Sequence[Snapshot], last: Snapshot) -> Snapshot:
    """Where the parameters are after the last step: those that are gathered later are there before the next export."""
    later = (item for item in taken[taken.index(last) :] if item.point in (last.point, Point.BEFORE_EXPORT))
    return next((item for item in later if tensors(item)), last)


def _add(
    found: dict[str, _Parameter], start: Snapshot, made: Sequence[Snapshot], after: Snapshot, forms: Forms
) -> None:
    """What one rank says: the state before the first step, at each step, and the parameters after the last one."""
    held, states, earlier = tensors(after), _states(made[-1]), tensors(made[0], Kind.OPTIMIZER)
    for name, tensor in tensors(start).items():
        if not tensor.requires_grad:
            continue
        item = found.setdefault(f"{name} {place_of(start.ranks, tensor)}", _Parameter(tensor, from_zero=True))
        # Of shards, each must be zero.
        item.from_zero &= tensor.square == 0
        if name in held and forms.can_compare(name, start, after):
            change = forms.difference(name, start, after)
            item.moved |= change is not None
            item.stepped |= _beyond_decay(change)
        for key, state in states.get(name, ()):
            if key in _MOMENTS:
                item.moments.append(state)
            elif key in _MAIN and state.name in earlier:
                item.main_moved |= not same(earlier[state.name], state)
                item.stepped |= _beyond_decay(difference(earlier[state.name], state))


def _beyond_decay(change: Found | None) -> bool:
    """Whether one factor near one for all elements does not explain a change."""
    if change is None or change.kind is Difference.ROUNDED:
        return False
    return change.kind is not Difference.SCALE or not _LEAST_DECAY <= change.factor <= 1


def _states(snapshot: Snapshot) -> Mapping[str, list[tuple[str, Tensor]]]:
    """By parameter what the optimizer holds of it: `<parameter>/<state>`, with `[START:END]` for a part."""
    states: dict[str, list[tuple[str, Tensor]]] = {}
    for tensor in tensors(snapshot, Kind.OPTIMIZER).values():
        name, _, state = tensor.name.partition("/")
        states.setdefault(name, []).append((state.partition("[")[0], tensor))
    return states


def _is_fine(item: _Parameter, *, others_moved: bool) -> bool:
    """Whether it trained: from zero any step shows in its bits, unless the learning rate left all as they were."""
    stuck = item.from_zero and not item.moved and others_moved
    return item.trained and not stuck


def _faults(
    still: Mapping[str, _Parameter], parameters: Mapping[str, _Parameter], steps: int, *, others_moved: bool
) -> Iterator[TensorFault]:
    """Those of the parameters at rest that surely should have trained and surely did not."""
    kinds: dict[str, bool] = {}
    for name, item in parameters.items():
        kind = _NUMBER.sub("*", item.tensor.name)
        kinds[kind] = kinds.get(kind, True) and name in still
    zero = any(item.from_zero and _is_adapter(item) for item in parameters.values())
    for item in still.values():
        adapter = _is_adapter(item)
        late = steps > 1 or item.from_zero or not (adapter and zero)
        certain = late and ".layers." in f".{item.tensor.name}" and not _MAY_REST.search(item.tensor.name)
        if (
            certain
            and _is_sure(item, others_moved=others_moved)
            and (adapter or kinds[_NUMBER.sub("*", item.tensor.name)])
        ):
            yield TensorFault(item.tensor.name, _what(item), item.tensor, item.tensor)


def _is_adapter(item: _Parameter) -> bool:
    return ".adapter" in item.tensor.name


def _is_sure(item: _Parameter, *, others_moved: bool) -> bool:
    """Whether more than unchanged bits says that it did not train."""
    return bool(item.moments and not item.has_gradient) or (item.from_zero and others_moved)


def _what(item: _Parameter) -> str:
    if item.has_gradient:
        return "it got a gradient, and yet it is still zero"
    if not item.moments:
        return "it is still zero"
    moved = "weight decay alone moved it" if item.moved or item.main_moved else "it did not move"
    return f"its moments are zero, so it got no gradient, and {moved}"


def _notes(still: Mapping[str, _Parameter], model: str, steps: int) -> Iterator[str]:
    resting = list(dict.fromkeys(item.tensor.name for item in still.values()))
    if resting:
        listed = names(resting)
        yield f"{len(resting)} parameters of the {model} were not seen to train in {steps} step(s): {listed}"
