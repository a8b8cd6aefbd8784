"""What should train does, as far as fingerprints can tell."""

from typing import Any

import pytest

from tests.core.builders import judged, make_case, make_job, make_record
from tests.core.fingerprints import (
    LORA_A,
    LORA_B,
    NORM,
    Taken,
    absent,
    healthy,
    model,
    tensor,
    weights,
    zeroed,
)
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.criteria.weights import trained_weights
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Ranks, Snapshot, Tensor, TensorKind
from verl_e2e.core.model.outcome import Result, Stage

BUILT, STEP = Point.MODEL_BUILT, Point.OPTIMIZER_STEP
RUN = healthy()
BEFORE = {held.name: held for role in ("actor",) for held in model(role=role)}


def found(taken: Taken, **job: Any) -> CriterionFinding:
    return trained_weights(make_case(make_record(job=make_job(**job), fingerprints=taken.document())))


def as_built(held: Tensor) -> Tensor:
    """The parameter as the model was built with it."""
    return BEFORE[held.name]


def untrained(taken: Taken, name: str, *, place: str = "[0:8]", **where: Any) -> Taken:
    """The run in which a parameter of the actor stayed, and so did its optimizer state."""
    for state in ("exp_avg", "exp_avg_sq"):
        taken = taken.with_tensor(f"{name}/{state}{place}", zeroed, STEP, model="actor", **where)
    main = tensor(f"{name}/main{place}", weights(8, "main"), kind=TensorKind.OPTIMIZER, dtype="float32")
    taken = taken.with_tensor(main.name, lambda _: main, STEP, model="actor", **where)
    return taken.with_tensor(name, as_built, STEP, model="actor", **where)


def without_optimizer(taken: Taken) -> Taken:
    def bare(item: Snapshot) -> Snapshot:
        kept = tuple(held for held in item.tensors if held.kind is TensorKind.PARAMETER)
        return item.model_copy(update={"tensors": kept})

    return Taken(tuple(map(bare, taken.snapshots)))


def with_parameter(taken: Taken, held: Tensor) -> Taken:
    """The run with one more parameter of the actor that stays as it is, with moments of zero."""
    moment = tensor(f"{held.name}/exp_avg", (0.0,) * 8, kind=TensorKind.OPTIMIZER, dtype="float32")

    def added(item: Snapshot) -> Snapshot:
        if item.model != "actor" or item.point not in (BUILT, STEP):
            return item
        more = (held, moment) if item.point is STEP else (held,)
        return item.model_copy(update={"tensors": (*item.tensors, *more)})

    return Taken(tuple(map(added, taken.snapshots)))


def test_parameters_that_train_are_met() -> None:
    item = found(RUN)
    assert (item.evidence.state, item.stage, item.notes) == (State.MET, Stage.TRAIN_STEP, ())
    assert item.evidence.summary == "4 parameters of actor and critic trained in 4 optimizer steps"


@pytest.mark.parametrize("name", [LORA_A, LORA_B])
def test_an_adapter_without_a_gradient_is_a_fail_that_nothing_else_sees(name: str) -> None:
    verdict = judged(fingerprints=untrained(RUN, name).document())
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.TRAIN_STEP)
    assert verdict.decided_by == Criterion.TRAINED_WEIGHTS
    assert verdict.cause == (
        f"parameters of the actor did not train in 2 optimizer step(s) of the train phase: {name}: "
        "its moments are zero, so it got no gradient, and it did not move"
    )
    assert [item.criterion for item in verdict.evidence if item.state is State.BROKEN] == [Criterion.TRAINED_WEIGHTS]


def test_after_one_step_the_first_half_of_an_adapter_may_rest() -> None:
    item = found(untrained(healthy(steps=1), LORA_A))
    assert item.evidence.state is State.MET
    assert item.notes == (f"1 parameters of the actor were not seen to train in 1 step(s): {LORA_A}",)
    assert found(untrained(healthy(steps=1), LORA_B)).evidence.state is State.BROKEN


def test_after_one_step_all_of_an_adapter_that_began_at_random_has_moved() -> None:
    random = tensor(LORA_B, weights(72, "random"), (18, 4), requires_grad=True)
    amplified = healthy(steps=1).with_tensor(LORA_B, lambda _: random, BUILT, model="actor")
    assert found(untrained(amplified, LORA_A)).evidence.state is State.BROKEN


def test_a_step_that_half_precision_does_not_show_is_a_step() -> None:
    item = found(RUN.with_tensor(LORA_A, as_built, STEP, model="actor"))
    assert (item.evidence.state, item.notes) == (State.MET, ())
    main_alone = RUN.with_tensor(LORA_A, as_built, STEP, model="actor")
    for state in ("exp_avg", "exp_avg_sq"):
        main_alone = main_alone.with_tensor(f"{LORA_A}/{state}[0:8]", zeroed, STEP, model="actor")
    assert found(main_alone).evidence.state is State.MET


@pytest.mark.parametrize("factor", [0.99999, 0.9999999999])
def test_weight_decay_is_no_training(factor: float) -> None:
    """As a detached adapter was on a GPU: moments of zero, and a main copy that decay makes smaller."""
    taken = untrained(RUN, LORA_A)
    main = f"{LORA_A}/main[0:8]"
    last = weights(8, "main")
    decayed = tensor(main, [value * factor for value in last], kind=TensorKind.OPTIMIZER, dtype="float32")
    taken = taken.with_tensor(main, lambda _: decayed, STEP, model="actor", number=1)
    item = found(taken).evidence
    assert item.state is State.BROKEN
    assert f"{LORA_A}: its moments are zero, so it got no gradient, and weight decay alone moved it" in item.summary
    grown = tensor(main, [value * 2 for value in last], kind=TensorKind.OPTIMIZER, dtype="float32")
    assert found(taken.with_tensor(main, lambda _: grown, STEP, model="actor", number=1)).evidence.state is State.MET


def test_a_step_from_zero_shows_in_any_precision() -> None:
    item = found(RUN.with_tensor(LORA_B, as_built, STEP, model="actor")).evidence
    assert item.state is State.BROKEN
    assert f"{LORA_B}: it got a gradient, and yet it is still zero" in item.summary


def test_a_learning_rate_of_zero_moves_nothing_and_is_no_fault() -> None:
    still = RUN
    for name in (LORA_A, LORA_B):
        still = still.with_tensor(name, as_built, STEP, model="actor")
    assert found(still).evidence.state is State.MET


def test_without_optimizer_state_only_zeros_are_sure() -> None:
    bare = without_optimizer(RUN)
    assert found(bare).evidence.state is State.MET
    unsure = found(bare.with_tensor(LORA_A, as_built, STEP, model="actor"))
    assert unsure.evidence.state is State.MET
    assert unsure.notes == (f"1 parameters of the actor were not seen to train in 2 step(s): {LORA_A}",)
    item = found(bare.with_tensor(LORA_B, as_built, STEP, model="actor")).evidence
    assert f"{LORA_B}: it is still zero" in item.summary
    frozen = bare
    for name in (LORA_A, LORA_B):
        frozen = frozen.with_tensor(name, as_built, STEP, model="actor")
    assert found(frozen).evidence.state is State.MET


def test_a_shard_on_another_rank_shows_the_gradient() -> None:
    places = tuple(Ranks(rank=rank, data=rank, data_size=2) for rank in range(2))
    two = untrained(healthy(places), LORA_A, rank=0)
    assert found(two, gpu_count=2).evidence.state is State.MET
    both = untrained(two, LORA_A, place="[8:16]", rank=1)
    assert found(both, gpu_count=2).evidence.state is State.BROKEN


def test_an_expert_is_held_by_the_ranks_of_its_own_group() -> None:
    places = tuple(Ranks(rank=rank, expert=rank, expert_size=2, data=rank, data_size=2) for rank in range(2))
    name = "decoder.layers.0.mlp.experts.linear_fc1.adapter.linear_in.weight"
    rests = with_parameter(healthy(places), tensor(name, weights(4, name), requires_grad=True, expert=True))
    item = found(rests, gpu_count=2)
    assert item.evidence.state is State.MET
    assert item.notes == (f"1 parameters of the actor were not seen to train in 2 step(s): {name}",)


@pytest.mark.parametrize(
    "name",
    ["decoder.layers.1.mlp.router.weight", "mtp.layers.0.eh_proj.weight", "vision_model.decoder.layers.0.fc.weight"],
)
def test_what_may_go_without_a_gradient_is_named_and_no_fault(name: str) -> None:
    item = found(with_parameter(RUN, tensor(name, weights(4, name), requires_grad=True)))
    assert item.evidence.state is State.MET
    assert name in item.notes[0]


def test_of_other_parameters_all_of_a_kind_must_rest() -> None:
    first, second = (
        tensor(f"decoder.layers.{index}.mlp.linear_fc1.weight", weights(4, str(index)), requires_grad=True)
        for index in range(2)
    )
    both = with_parameter(with_parameter(RUN, first), second)
    assert found(both).evidence.state is State.BROKEN
    moved = tensor(first.name, weights(4, "moved"), requires_grad=True)
    one = found(both.with_tensor(first.name, lambda _: moved, STEP, model="actor"))
    assert one.evidence.state is State.MET
    assert second.name in one.notes[0]


def test_parameters_that_are_gathered_later_show_by_the_optimizer() -> None:
    late = RUN
    for name in (LORA_A, LORA_B):
        late = late.with_tensor(name, absent, STEP)
    assert found(late).evidence.state is State.MET


def test_parameters_that_are_gathered_later_show_before_the_next_export() -> None:
    late = without_optimizer(RUN)
    for name in BEFORE:
        late = late.with_tensor(name, absent, STEP)
    item = found(late)
    assert item.evidence.state is State.MET
    assert item.evidence.summary.startswith("2 parameters of actor and critic trained")
    assert item.notes == (f"2 parameters of the critic were not seen to train in 2 step(s): {LORA_A}, {LORA_B}",)


def test_a_run_in_which_nothing_trains_shows_nothing() -> None:
    frozen = RUN
    for name in (LORA_A, LORA_B):
        frozen = frozen.with_tensor(name, lambda held: held.model_copy(update={"requires_grad": False}), BUILT)
    item = found(frozen).evidence
    assert (item.state, item.summary) == (State.MISSING, "no fingerprint shows a parameter that trains")
    assert NORM in BEFORE


@pytest.mark.parametrize("model_name", ["actor", "critic"])
@pytest.mark.parametrize("point", [BUILT, STEP])
def test_a_hook_that_never_fired_is_a_gap(point: Point, model_name: str) -> None:
    item = found(RUN.without(point, model=model_name)).evidence
    expected = f"no fingerprint '{point}' of the {model_name} in the train phase"
    assert (item.state, item.summary) == (State.MISSING, expected)


def test_steps_are_counted_by_the_last_one_whatever_was_loaded_after_it() -> None:
    last = RUN.snapshots[-1].t_s
    loaded = tuple(
        item.model_copy(update={"point": Point.CHECKPOINT_LOADED, "number": 0, "t_s": last + 1})
        for item in RUN.snapshots
        if item.point is BUILT
    )
    item = found(Taken((*RUN.snapshots, *loaded))).evidence
    assert item.summary == "4 parameters of actor and critic trained in 4 optimizer steps"


def test_a_process_whose_start_is_not_known_says_nothing() -> None:
    places = tuple(Ranks(rank=rank, data=rank, data_size=2) for rank in range(2))
    first = healthy(places).snapshots
    moved = tuple(item.model_copy(update={"pid": 1}) if item.point is STEP else item for item in first)
    item = found(Taken(moved), gpu_count=2).evidence
    assert (item.state, item.summary) == (State.MISSING, "no fingerprint shows a parameter that trains")
