"""Parameters that ranks hold in parts until the first step and whole from then on, as Megatron-FSDP leaves them."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.builders import make_case, make_job, make_record
from tests.core.fingerprints import (
    BASE,
    LORA_A,
    LORA_B,
    NORM,
    RANK,
    WIDTH,
    Taken,
    healthy,
    moved,
    other,
    scaled,
    tensor,
    weights,
)
from tests.core.level_runs import resume_run
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.transfer import exported_adapters, resumed_state
from verl_e2e.core.judge.criteria.weights import frozen_weights, replicas, trained_weights
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Ranks, Snapshot, Tensor

TWO = tuple(Ranks(rank=rank, data=rank, data_size=2) for rank in range(2))
# Of each parameter the rows, their length, the seed of its values, and how many rows the first rank holds.
PARAMETERS = {
    BASE: (3 * WIDTH, WIDTH, "base {} 0 0", 3 * WIDTH),
    NORM: (WIDTH, 0, "norm {} 0", 4),
    LORA_A: (RANK, WIDTH, "A {} 0 0", 0),
    LORA_B: (3 * WIDTH, RANK, "B {} 0 0", 7),
}


def part(held: Tensor, at: Snapshot, steps: int) -> Tensor:
    """The rank's part of a parameter as it is after so many steps."""
    if held.name not in PARAMETERS:
        return held
    rows, length, seed, first = PARAMETERS[held.name]
    size = length or 1
    text = seed.format(at.model) + (f" after {steps}" if steps and held.requires_grad else "")
    values = (0.0,) * (rows * size) if held.name == LORA_B and not steps else weights(rows * size, text)
    own = values[: first * size] if at.ranks.data == 0 else values[first * size :]
    shape = (len(own) // size, length) if length else (len(own),)
    return tensor(held.name, own, shape, requires_grad=held.requires_grad, sharded=True)


def in_parts(taken: Taken, *moments: tuple[str, Point, int], steps: int = 0) -> Taken:
    """The run with parts at these moments."""

    def cut(snapshot: Snapshot) -> Snapshot:
        if (snapshot.phase, snapshot.point, snapshot.number) not in moments:
            return snapshot
        return snapshot.model_copy(update={"tensors": tuple(part(held, snapshot, steps) for held in snapshot.tensors)})

    return Taken(tuple(map(cut, taken.snapshots)))


def before_training(phase: str) -> tuple[tuple[str, Point, int], ...]:
    points = (Point.MODEL_BUILT, Point.BEFORE_EXPORT, Point.AFTER_EXPORT)
    return tuple((phase, point, number) for point in points for number in range(2) if number == 0 or "export" in point)


RUN = in_parts(healthy(TWO), *before_training("train"))
Criterion = Callable[[Case], CriterionFinding]


def found(criterion: Criterion, taken: Taken) -> CriterionFinding:
    return criterion(make_case(make_record(job=make_job(gpu_count=2), fingerprints=taken.document())))


@pytest.mark.parametrize("criterion", [frozen_weights, trained_weights, exported_adapters, replicas])
def test_parts_that_become_whole_have_not_changed(criterion: Criterion) -> None:
    item = found(criterion, RUN)
    assert item.evidence.state is State.MET, item.evidence.summary


def test_exports_are_compared_from_where_the_ranks_hold_whole_adapters() -> None:
    item = found(exported_adapters, RUN)
    assert item.evidence.summary == "6 exported tensors of adapters are what the trainer held"
    assert item.notes == ("Exported adapters were not compared with the trainer's where ranks hold parts of them",)


@pytest.mark.parametrize("name", [BASE, NORM])
@pytest.mark.parametrize("change", [scaled(2.0), other])
def test_a_frozen_weight_that_changes_while_it_becomes_whole_is_found(name: str, change: Any) -> None:
    item = found(frozen_weights, RUN.with_tensor(name, change, Point.OPTIMIZER_STEP, number=0))
    assert item.evidence.state is State.BROKEN
    assert f"'optimizer step' 1 of the train phase on rank 0: {name}" in item.evidence.summary


def test_bits_that_one_part_has_all_of_are_compared() -> None:
    """The sums of a permutation are equal; `moved` leaves them as they are."""
    spoiled = RUN.with_tensor(BASE, moved, Point.OPTIMIZER_STEP)
    item = found(frozen_weights, spoiled)
    assert item.evidence.state is State.BROKEN
    assert f"{BASE}: a permutation or transposition" in item.evidence.summary


def test_whole_weights_are_compared_by_their_bits_with_the_first_whole_ones() -> None:
    item = found(frozen_weights, RUN.with_tensor(NORM, moved, Point.OPTIMIZER_STEP, number=1))
    assert item.evidence.state is State.BROKEN
    assert f"'optimizer step' 2 of the train phase on rank 0: {NORM}: a permutation" in item.evidence.summary


def test_a_weight_that_is_whole_first_and_in_parts_later_is_compared_too() -> None:
    later = in_parts(healthy(TWO), ("train", Point.OPTIMIZER_STEP, 1), ("train", Point.OPTIMIZER_STEP, 0))
    assert found(frozen_weights, later).evidence.state is State.MET
    spoiled = later.with_tensor(BASE, scaled(2.0), Point.OPTIMIZER_STEP, number=1, rank=0)
    assert found(frozen_weights, spoiled).evidence.state is State.BROKEN


@pytest.mark.parametrize("criterion", [frozen_weights, trained_weights])
def test_parts_that_are_not_one_whole_are_not_compared(criterion: Criterion) -> None:
    """As where shards are copied over a second group of ranks: nothing is known, and no one is blamed."""
    early = (Point.MODEL_BUILT, Point.BEFORE_EXPORT, Point.AFTER_EXPORT)
    copied, whole = RUN, {"shape": (3 * WIDTH, WIDTH)}
    for number in (0, 1):
        points = early[number:]
        copied = copied.with_tensor(
            BASE, lambda held: held.model_copy(update=whole), *points, model="actor", rank=1, number=number
        )
    item = found(criterion, copied)
    assert item.evidence.state is State.MET, item.evidence.summary
    noted = [note for note in item.notes if "not one whole" in note]
    assert bool(noted) is (criterion is frozen_weights)
    if noted:
        assert noted == [
            "1 parameters that ranks hold whole at one point and in parts at another were not compared, because the "
            f"parts of all ranks are not one whole: {BASE}"
        ]


def test_an_adapter_that_stays_zero_as_others_move_is_found_in_parts_too() -> None:
    def zero(_: Tensor) -> Tensor:
        return tensor(LORA_B, (0.0,) * (3 * WIDTH * RANK), (3 * WIDTH, RANK), requires_grad=True)

    still = RUN.with_tensor(LORA_B, zero, Point.OPTIMIZER_STEP, model="actor")
    still = still.with_tensor(LORA_B, zero, Point.BEFORE_EXPORT, Point.AFTER_EXPORT, model="actor", number=2)
    item = found(trained_weights, still)
    assert item.evidence.state is State.BROKEN
    assert f"{LORA_B}: it got a gradient, and yet it is still zero" in item.evidence.summary


@pytest.mark.parametrize("spoiled", [False, True])
def test_what_is_saved_whole_and_loaded_in_parts_is_as_it_was_saved(spoiled: bool) -> None:
    taken = in_parts(healthy(TWO, ("save", "resume"), steps=1), ("resume", Point.CHECKPOINT_LOADED, 0), steps=1)
    if spoiled:
        taken = taken.with_tensor(LORA_A, scaled(0.5), Point.CHECKPOINT_LOADED, rank=1, model="actor")
    item = resumed_state(resume_run(fingerprints=taken.document()).case())
    assert item.evidence.state is (State.BROKEN if spoiled else State.MET), item.evidence.summary
    assert (LORA_A in item.evidence.summary) is spoiled
