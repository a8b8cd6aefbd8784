"""Copies of a parameter on several ranks are equal, by Megatron's layout."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import config_with, judged, make_case, make_facts, make_job, make_record, step_line
from tests.core.fingerprints import BASE, LORA_A, NORM, Taken, absent, healthy, hook, other, tensor, weights
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.criteria.weights import replicas
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Ranks, Snapshot, Tensor, TensorKind
from verl_e2e.core.model.outcome import Result, Stage

BUILT, STEP = Point.MODEL_BUILT, Point.OPTIMIZER_STEP
DATA = tuple(Ranks(rank=rank, data=rank, data_size=2) for rank in range(2))
TENSOR = tuple(Ranks(rank=rank, tensor=rank, tensor_size=2) for rank in range(2))
PIPELINE = tuple(Ranks(rank=rank, pipeline=rank, pipeline_size=2) for rank in range(2))
# Tensor 2 by data 2, with experts over two ranks each: rank 0 and 3 hold the same expert and tensor rank of experts.
GRID = tuple(
    Ranks(
        rank=rank, data=rank // 2, data_size=2, tensor=rank % 2, tensor_size=2,
        expert=rank % 2, expert_size=2, expert_data=rank // 2, expert_data_size=2,
    )
    for rank in range(4)
)  # fmt: skip
EXPERT = "decoder.layers.0.mlp.experts.linear_fc1.weight0"
SHARED = "decoder.layers.0.mlp.experts.linear_fc1.adapter.linear_in.weight"


def found(taken: Taken, **config: Any) -> CriterionFinding:
    ranks = 1 + max(item.ranks.rank for item in taken.snapshots)
    facts = make_facts(configs=(config_with({f"{VERL.policy}.{key}": value for key, value in config.items()}),))
    job = make_job(gpu_count=ranks)
    return replicas(make_case(make_record(job=job, fingerprints=taken.document()), facts))


def with_parameter(taken: Taken, made: Any) -> Taken:
    """The run with one more parameter on each rank, which `made` gives."""
    rows = (
        item.model_copy(update={"tensors": (*item.tensors, made(item))}) if item.point in (BUILT, STEP) else item
        for item in taken.snapshots
    )
    return Taken(tuple(rows))


def test_stages_of_a_pipeline_hold_no_copies() -> None:
    item = found(healthy(PIPELINE)).evidence
    assert (item.state, item.summary) == (State.MET, "no parameter that was read lies on more than one of 2 ranks")


@pytest.mark.parametrize("places", [DATA, TENSOR, GRID])
def test_equal_copies_are_met(places: tuple[Ranks, ...]) -> None:
    item = found(healthy(places))
    assert (item.evidence.state, item.notes) == (State.MET, ())
    assert f"copies on {len(places)} ranks at 6 points, all equal" in item.evidence.summary


@given(st.integers(0, 2**32), st.sampled_from([DATA, TENSOR, GRID]))
def test_the_order_of_the_ranks_lines_does_not_matter(seed: int, places: tuple[Ranks, ...]) -> None:
    taken = healthy(places)
    assert found(taken.shuffled(seed)).evidence == found(taken).evidence
    spoiled = taken.with_tensor(NORM, other, STEP, rank=1, number=1)
    assert found(spoiled.shuffled(seed)).evidence.state is State.BROKEN


@pytest.mark.parametrize(("point", "stage"), [(BUILT, Stage.DDP_WRAP), (STEP, Stage.TRAIN_STEP)])
def test_a_copy_on_a_data_parallel_rank_that_differs(point: Point, stage: Stage) -> None:
    item = found(healthy(DATA).with_tensor(LORA_A, other, point, rank=1, model="critic"))
    assert (item.evidence.state, item.stage) == (State.BROKEN, stage)
    assert item.evidence.summary == (
        f"copies of a parameter of the critic differ at '{point}' 1 of the train phase: {LORA_A}: "
        "rank 1 holds other values, compared with rank 0"
    )


def test_a_drifting_copy_is_a_fail_that_nothing_else_sees() -> None:
    spoiled = healthy(DATA).with_tensor(LORA_A, other, STEP, rank=1, number=1, model="actor")
    verdict = judged(job=make_job(gpu_count=2), fingerprints=spoiled.document())
    assert (verdict.result, verdict.stage, verdict.decided_by) == (Result.FAIL, Stage.TRAIN_STEP, Criterion.REPLICAS)
    assert [item.criterion for item in verdict.evidence if item.state is State.BROKEN] == [Criterion.REPLICAS]


@pytest.mark.parametrize(
    ("model", "number", "agreement", "by"),
    [
        # The first optimizer step moves the copies apart, and the second step samples from them.
        ("actor", 0, (0.999, 0.93), Criterion.REPLICAS),
        (None, 0, (0.999, 0.93), Criterion.ROLLOUT_AGREEMENT),
        # Copies that drift only after the step that disagrees, or that nothing samples from, explain nothing.
        ("actor", 1, (0.999, 0.93), Criterion.ROLLOUT_AGREEMENT),
        ("actor", 0, (0.93, 0.93), Criterion.ROLLOUT_AGREEMENT),
        ("critic", 0, (0.999, 0.93), Criterion.ROLLOUT_AGREEMENT),
    ],
)
def test_a_copy_that_differs_is_named_before_the_agreement_that_it_spoils(
    model: str | None, number: int, agreement: tuple[float, float], by: Criterion
) -> None:
    taken = healthy(DATA)
    taken = taken.with_tensor(LORA_A, other, STEP, rank=1, number=number, model=model) if model else taken
    steps = (step_line(at, 1333 + at, pearson_corr=value) for at, value in enumerate(agreement, start=1))
    verdict = judged(make_facts(steps=tuple(steps)), job=make_job(gpu_count=2, steps=2), fingerprints=taken.document())
    assert (verdict.result, verdict.decided_by) == (Result.FAIL, by)
    assert Criterion.ROLLOUT_AGREEMENT in [item.criterion for item in verdict.evidence if item.state is State.BROKEN]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_parameter_that_one_rank_does_not_hold(rank: int) -> None:
    spoiled = healthy(DATA).with_tensor(LORA_A, absent, BUILT, rank=rank, model="actor")
    text = f"{LORA_A}: rank {rank} does not hold it, rank {1 - rank} does"
    assert text in found(spoiled).evidence.summary
    partial = spoiled.with_snapshots({"left_out": 1}, BUILT, model="actor")
    assert found(partial).evidence.state is State.MET


def test_parts_of_tensor_ranks_are_no_copies() -> None:
    assert found(healthy(TENSOR).with_tensor(BASE, other, BUILT, rank=1)).evidence.state is State.MET


def test_a_norm_is_a_copy_on_tensor_ranks() -> None:
    item = found(healthy(TENSOR).with_tensor(NORM, other, BUILT, rank=1, model="actor")).evidence
    assert item.state is State.BROKEN
    assert f"{NORM}: rank 1 holds other values, compared with rank 0" in item.summary


def _trains(held: Tensor) -> Tensor:
    return other(held).model_copy(update={"requires_grad": True})


@pytest.mark.parametrize(("sequence", "state"), [(True, State.BROKEN), (False, State.MET)])
def test_a_trained_copy_on_tensor_ranks_is_sure_under_sequence_parallelism(sequence: bool, state: State) -> None:
    trained = healthy(TENSOR).with_tensor(
        NORM, lambda held: held.model_copy(update={"requires_grad": True}), BUILT, STEP
    )
    item = found(trained.with_tensor(NORM, _trains, STEP, rank=1), sequence_parallel=sequence)
    assert item.evidence.state is state
    if state is State.MET:
        assert f"Copies on tensor ranks drift apart without sequence parallelism: {NORM}" in item.notes


TRAINED = healthy(TENSOR).with_tensor(NORM, lambda held: held.model_copy(update={"requires_grad": True}), BUILT, STEP)


def test_skyrl_has_no_key_for_it_and_divides_sequences_over_all_tensor_ranks() -> None:
    taken = TRAINED.with_tensor(NORM, _trains, STEP, rank=1)
    job = make_job(gpu_count=2, consumer="skyrl")
    item = replicas(make_case(make_record(job=job, fingerprints=taken.document()), make_facts())).evidence
    assert item.state is State.BROKEN
    assert f"{NORM}: rank 1 holds other values" in item.summary


@pytest.mark.parametrize(
    ("name", "state"),
    [(f"{NORM}/exp_avg[0:4]", State.BROKEN), (f"{NORM}/main", State.BROKEN), (f"{BASE}/exp_avg[0:4]", State.MET)],
)
def test_what_the_optimizer_holds_of_a_copy_is_a_copy_too(name: str, state: State) -> None:
    def made(item: Snapshot, differs: bool) -> Tensor:
        held = tensor(name, (1, 2, 3, 4)).model_copy(update={"kind": TensorKind.OPTIMIZER})
        return other(held) if differs and item.ranks.rank == 1 else held

    equal = with_parameter(TRAINED, partial(made, differs=False))
    assert found(equal, sequence_parallel=True).evidence.state is State.MET
    apart = with_parameter(TRAINED, partial(made, differs=True))
    item = found(apart, sequence_parallel=True).evidence
    assert item.state is state
    assert (name in item.summary) is (state is State.BROKEN)


def test_without_sequence_parallelism_a_load_gives_each_tensor_rank_its_own_moments() -> None:
    def made(item: Snapshot) -> Tensor:
        held = tensor(f"{NORM}/exp_avg", (1, 2, 3, 4)).model_copy(update={"kind": TensorKind.OPTIMIZER})
        return other(held) if item.ranks.rank == 1 else held

    rows = (
        item.model_copy(update={"point": Point.CHECKPOINT_LOADED, "tensors": (*item.tensors, made(item))})
        for item in TRAINED.snapshots
        if item.point is STEP
    )
    taken = Taken((*TRAINED.snapshots, *rows))
    broken = {
        divided: found(taken, sequence_parallel=divided).evidence.state is State.BROKEN for divided in (True, False)
    }
    assert broken == {True: True, False: False}


def test_an_unknown_parameter_counts_as_a_copy_when_it_was_one() -> None:
    name = "decoder.layers.0.mixer.gate"
    same = with_parameter(healthy(TENSOR), lambda _: tensor(name, weights(6, "gate")))
    assert found(same.with_tensor(name, other, STEP, rank=1)).evidence.state is State.BROKEN
    parts = with_parameter(healthy(TENSOR), lambda item: tensor(name, weights(6, f"gate {item.ranks.tensor}")))
    item = found(parts)
    assert item.evidence.state is State.MET
    assert f"Not known to be copies, and different on tensor ranks of the actor: {name}" in item.notes
    constant = with_parameter(healthy(TENSOR), lambda _: tensor(name, (1.0,) * 6))
    assert found(constant.with_tensor(name, other, STEP, rank=1)).evidence.state is State.MET


def _expert(name: str, shape: tuple[int, ...], *, shared: bool) -> Any:
    """An expert's parameter: one for each expert rank, or one for all of them."""

    def made(item: Any) -> Tensor:
        seed = f"{name} {'' if shared else item.ranks.expert} {item.point} {item.number}"
        return tensor(name, weights(12, seed), shape, expert=True)

    return made


def test_an_expert_is_a_copy_on_expert_data_ranks_only() -> None:
    taken = with_parameter(healthy(GRID), _expert(EXPERT, (12,), shared=False))
    assert found(taken).evidence.state is State.MET
    item = found(taken.with_tensor(EXPERT, other, STEP, rank=3, number=0)).evidence
    assert f"{EXPERT}: rank 3 holds other values, compared with rank 1" in item.summary


def test_an_adapter_that_experts_share_is_a_copy_on_expert_ranks() -> None:
    taken = with_parameter(healthy(GRID), _expert(SHARED, (3, 4), shared=True))
    assert found(taken).evidence.state is State.MET
    parted = with_parameter(healthy(GRID), _expert(SHARED, (3, 4), shared=False))
    item = found(parted).evidence
    assert f"{SHARED} (and 1 more): rank 1 holds other values, compared with rank 0" in item.summary


def test_after_a_step_shared_adapters_of_more_than_two_ranks_may_be_added_in_another_order() -> None:
    wide = tuple(at.model_copy(update={"expert_data_size": 4}) for at in GRID)
    taken = with_parameter(healthy(wide), _expert(SHARED, (3, 4), shared=True))
    drifted = taken.with_tensor(SHARED, other, STEP, expert=1)
    assert found(drifted).evidence.state is State.MET


EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"


def _tied(item: Any) -> Tensor:
    return tensor(OUTPUT if item.ranks.pipeline else EMBEDDING, weights(8, "embedding"))


def test_tied_embeddings_are_equal_on_the_first_and_the_last_stage() -> None:
    taken = with_parameter(healthy(PIPELINE), _tied)
    assert found(taken).evidence.state is State.MET
    item = found(taken.with_tensor(OUTPUT, other, STEP, rank=1, number=1, model="actor")).evidence
    assert f"{OUTPUT}" in item.summary or f"{EMBEDDING}" in item.summary
    assert item.state is State.BROKEN
    untied = taken.with_tensor(OUTPUT, other, BUILT, STEP, rank=1, model="actor")
    assert found(untied).evidence.state is State.MET


def test_embeddings_of_a_model_that_exports_its_output_layer_are_not_tied() -> None:
    taken = with_parameter(healthy(PIPELINE), _tied).with_tensor(OUTPUT, other, STEP, rank=1, model="actor")
    head = tensor("lm_head.weight", weights(8, "head"))
    rows = (
        item.model_copy(update={"tensors": (*item.tensors, head)}) if item.point is Point.EXPORTED else item
        for item in taken.snapshots
    )
    assert found(Taken(tuple(rows))).evidence.state is State.MET


def test_under_fsdp_data_parallel_ranks_hold_parts() -> None:
    def part(held: Tensor) -> Tensor:
        return held.model_copy(update={"sharded": True})

    parts = healthy(DATA).with_tensor(LORA_A, part, BUILT, STEP)
    item = found(parts.with_tensor(LORA_A, lambda held: part(other(held)), BUILT, STEP, rank=1))
    assert item.evidence.state is State.MET
    assert item.notes == (
        "1 parameters are shared out over data-parallel ranks, which hold parts of them and no copies",
    )


def test_parameters_that_are_gathered_later_are_not_compared_after_the_step() -> None:
    late = {"override_ddp_config": {"overlap_param_gather": True}}
    item = found(healthy(DATA).with_tensor(LORA_A, other, STEP, rank=1), **late)
    assert item.evidence.state is State.MET
    assert any("overlap_param_gather" in note for note in item.notes)


def test_one_rank_holds_nothing_twice() -> None:
    item = found(healthy()).evidence
    assert (item.state, item.summary) == (State.MET, "one rank: nothing is held twice")


@pytest.mark.parametrize("point", [BUILT, STEP])
def test_a_rank_without_a_snapshot_is_a_gap(point: Point) -> None:
    gone = healthy(DATA).without(point, rank=1, model="critic")
    assert found(gone).evidence.summary == f"no fingerprint '{point}' of the critic in the train phase of rank 1"
    late = healthy(DATA).without(STEP, rank=1, number=1)
    item = found(late)
    assert item.evidence.state is State.MET
    assert "At 2 of 6 points not every rank left a fingerprint" in item.notes


def test_a_gap_names_the_hook_that_is_not_there() -> None:
    gone = healthy(DATA).without(STEP)
    hooks = (hook("verl:MegatronEngine.optimizer_step", installed=False, problem="it is not there"), hook())
    record = make_record(job=make_job(gpu_count=2), fingerprints=gone.document(hooks=hooks))
    assert replicas(make_case(record)).evidence.summary == (
        "no fingerprint 'optimizer step' of the actor in the train phase "
        "(verl:MegatronEngine.optimizer_step: it is not there)"
    )


def test_a_record_that_says_why_it_is_empty() -> None:
    record = make_record(job=make_job(gpu_count=2), fingerprints=Taken(()).document(problem="no torch"))
    assert replicas(make_case(record)).evidence.summary.endswith("in the train phase (no torch)")


def test_groups_that_do_not_make_the_ranks_are_a_gap() -> None:
    item = found(healthy(tuple(Ranks(rank=rank) for rank in range(2)))).evidence
    assert item.state is State.MISSING
    assert item.summary.endswith("(data 1, tensor 1, pipeline 1) do not make 2 ranks")
