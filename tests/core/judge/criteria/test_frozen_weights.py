"""Frozen weights stay what they were, and an export writes into nothing."""

from typing import Any

import pytest

from tests.core.builders import judged, make_case, make_record
from tests.core.fingerprints import BASE, LORA_B, NORM, Taken, absent, healthy, moved, other, scaled, tensor
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.criteria.weights import frozen_weights
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Ranks
from verl_e2e.core.model.outcome import Result, Stage

RUN = healthy()


def found(taken: Taken) -> CriterionFinding:
    return frozen_weights(make_case(make_record(fingerprints=taken.document())))


def test_weights_that_stay_are_met() -> None:
    item = found(RUN).evidence
    assert item.state is State.MET
    assert item.summary == "2 frozen parameters of a rank never changed, and none changed in 3 exports"


@pytest.mark.parametrize("change", [scaled(2.0), moved, other])
@pytest.mark.parametrize(
    ("point", "stage"),
    [(Point.OPTIMIZER_STEP, Stage.TRAIN_STEP), (Point.AFTER_EXPORT, Stage.EXPORT_WEIGHT_SYNC)],
)
def test_a_frozen_weight_that_changes_is_a_fail_that_nothing_else_sees(point: Point, stage: Stage, change: Any) -> None:
    spoiled = RUN.with_tensor(BASE, change, point, model="actor", number=1)
    verdict = judged(fingerprints=spoiled.document())
    assert (verdict.result, verdict.stage, verdict.decided_by) == (Result.FAIL, stage, Criterion.FROZEN_WEIGHTS)
    assert BASE in verdict.cause
    assert [item.criterion for item in verdict.evidence if item.state is State.BROKEN] == [Criterion.FROZEN_WEIGHTS]


def test_an_export_that_writes_into_a_live_adapter_is_found() -> None:
    item = found(RUN.with_tensor(LORA_B, other, Point.AFTER_EXPORT, number=2))
    assert (item.evidence.state, item.stage) == (State.BROKEN, Stage.EXPORT_WEIGHT_SYNC)
    assert item.evidence.summary == (
        f"parameters of the actor changed by 'after export' 3 of the train phase on rank 0: {LORA_B}: other values"
    )


def test_a_change_between_two_points_is_found_at_the_second() -> None:
    spoiled = RUN.with_tensor(NORM, other, Point.BEFORE_EXPORT, number=2).with_tensor(
        NORM, other, Point.AFTER_EXPORT, number=2
    )
    item = found(spoiled)
    assert (item.evidence.state, item.stage) == (State.BROKEN, Stage.TRAIN_STEP)
    assert "frozen parameters of the actor changed by 'before export' 3" in item.evidence.summary


def test_of_several_that_changed_the_first_of_the_model_is_named() -> None:
    names = [f"decoder.layers.{number}.norm.weight" for number in range(20)]
    frozen = tuple(tensor(name, (1.0, 2.0), requires_grad=False) for name in names)
    spoiled = Taken(tuple(item.model_copy(update={"tensors": (*item.tensors, *frozen)}) for item in RUN.snapshots))
    for name in names:
        spoiled = spoiled.with_tensor(name, other, Point.OPTIMIZER_STEP, model="actor", number=1)
    assert f"on rank 0: {names[0]} (and 19 more)" in found(spoiled).evidence.summary


def test_a_tensor_that_is_not_in_both_is_not_compared() -> None:
    assert found(RUN.with_tensor(BASE, absent, Point.OPTIMIZER_STEP)).evidence.state is State.MET


def test_full_training_has_nothing_frozen() -> None:
    trains = RUN
    for name in (BASE, NORM):
        trains = trains.with_tensor(
            name,
            lambda held: held.model_copy(update={"requires_grad": True}),
            Point.MODEL_BUILT,
            Point.OPTIMIZER_STEP,
            Point.BEFORE_EXPORT,
            Point.AFTER_EXPORT,
        )
    assert found(trains).evidence.summary == "no parameter is frozen, and none changed in 3 exports"


@pytest.mark.parametrize("point", [Point.MODEL_BUILT, Point.OPTIMIZER_STEP, Point.BEFORE_EXPORT, Point.AFTER_EXPORT])
def test_a_hook_that_never_fired_is_a_gap(point: Point) -> None:
    item = found(RUN.without(point, model="actor")).evidence
    expected = f"no fingerprint '{point}' of the actor in the train phase"
    assert (item.state, item.summary) == (State.MISSING, expected)


@pytest.mark.parametrize(
    ("point", "number", "text"),
    [
        (Point.AFTER_EXPORT, 2, "'after export' 3 of the actor on rank 1 in the train phase"),
        (Point.BEFORE_EXPORT, 0, "'before export' 1 of the actor on rank 1 in the train phase"),
        (Point.OPTIMIZER_STEP, 1, "'optimizer step' 2 of the actor on rank 1 in the train phase"),
    ],
)
def test_a_point_that_one_rank_did_not_record_is_named(point: Point, number: int, text: str) -> None:
    two = healthy((Ranks(data_size=2), Ranks(rank=1, data=1, data_size=2)))
    assert found(two).notes == ()
    item = found(two.without(point, model="actor", number=number, rank=1))
    assert item.evidence.state is State.MET
    assert item.notes == (f"There is no fingerprint {text}: nothing was compared there",)


def test_several_points_that_are_not_there_are_counted() -> None:
    item = found(RUN.without(Point.AFTER_EXPORT, number=0).without(Point.AFTER_EXPORT, number=1))
    assert item.notes == (
        "There is no fingerprint 'after export' 1 of the actor on rank 0 in the train phase (and 1 more): "
        "nothing was compared there",
    )


def test_a_frozen_weight_that_was_made_trainable_and_changed_is_found() -> None:
    unfrozen = RUN.with_tensor(
        BASE,
        lambda held: other(held).model_copy(update={"requires_grad": True}),
        Point.OPTIMIZER_STEP,
        model="actor",
        number=1,
    )
    assert found(unfrozen).evidence.state is State.BROKEN


def test_a_critic_exports_nothing_and_needs_no_export() -> None:
    assert found(RUN.without(Point.OPTIMIZER_STEP, model="critic")).evidence.state is State.MISSING


def test_an_empty_record_is_a_gap() -> None:
    assert found(Taken(())).evidence.state is State.MISSING
