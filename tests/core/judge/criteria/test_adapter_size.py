"""The adapters have the rank, the size and the places that were asked for."""

from typing import Any

import pytest

from tests.core.builders import config_with, judged, make_case, make_facts, make_job, make_record
from tests.core.fingerprints import BASE, QKV, RANK, WIDTH, Taken, adapters, healthy, tensor, weights
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.criteria.weights import adapter_size
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Adapter, Point, Ranks
from verl_e2e.core.model.outcome import Result, Stage

BUILT = Point.MODEL_BUILT
RUN = healthy()
EXPERT = "decoder.layers.0.mlp.experts.linear_fc1"


def found(taken: Taken, config: dict[str, Any] | None = None, **job: Any) -> CriterionFinding:
    facts = make_facts(configs=(config_with(config),))
    return adapter_size(make_case(make_record(job=make_job(**job), fingerprints=taken.document()), facts))


def built(taken: Taken = RUN, **changes: Any) -> Taken:
    """The run with these adapters of the actor."""
    if adapters(**changes) == adapters():
        return taken
    return taken.with_snapshots({"adapters": adapters(**changes)}, BUILT, model="actor")


def module(**changes: Any) -> tuple[Adapter, ...]:
    return (adapters().modules[0].model_copy(update=changes),)


def test_adapters_as_asked_for_are_met() -> None:
    item = found(RUN)
    assert (item.evidence.state, item.stage, item.notes) == (State.MET, Stage.PEFT, ())
    assert item.evidence.summary == "2 adapters of actor and critic have the rank and the size that were asked for"


@pytest.mark.parametrize("size", [2, 4])
def test_tensor_ranks_share_an_adapter(size: int) -> None:
    places = tuple(Ranks(rank=rank, tensor=rank, tensor_size=size) for rank in range(size))
    assert found(healthy(places), gpu_count=size).evidence.state is State.MET


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rank": 8}, "(all) (and 1 more): rank 8 was built, 4 was asked for"),
        ({"modules": ()}, "(none): no module has an adapter, rank 4 was asked for"),
        ({"modules": module(rank=2)}, f"{QKV}: it has rank 2, 4 was asked for"),
        ({"modules": module(parameters=95)}, f"{QKV}: 95 parameters on a rank, by rank 4 x (6 in + 18 out)"),
        ({"modules": module(features_out=12)}, f"{QKV}: 96 parameters on a rank, by rank 4 x (6 in + 12 out)"),
    ],
)
def test_an_adapter_that_was_not_asked_for_is_a_fail_that_nothing_else_sees(changes: dict[str, Any], what: str) -> None:
    verdict = judged(fingerprints=built(**changes).document())
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.PEFT)
    assert verdict.decided_by == Criterion.ADAPTER_SIZE
    assert verdict.cause == f"the adapters of the actor are not those that were asked for in the train phase: {what}"
    assert [item.criterion for item in verdict.evidence if item.state is State.BROKEN] == [Criterion.ADAPTER_SIZE]


def test_under_fsdp_the_size_on_a_rank_is_not_judged() -> None:
    parts = built(modules=module(parameters=50)).with_tensor(
        BASE, lambda held: held.model_copy(update={"sharded": True}), BUILT, model="actor"
    )
    assert found(parts).evidence.state is State.MET


def test_dora_adds_a_magnitude_for_each_output() -> None:
    size = RANK * (WIDTH + 3 * WIDTH)
    for added, state in ((3 * WIDTH, State.MET), (0, State.BROKEN)):
        made = built(type="DoRA", modules=module(parameters=size + added))
        assert found(made).evidence.state is state


@pytest.mark.parametrize(
    ("name", "rank", "parameters", "state"),
    [
        (EXPERT, RANK, 3 * 96, State.MET),
        (EXPERT, RANK // 2, 96, State.MET),
        (EXPERT, RANK, 0, State.BROKEN),
        (EXPERT, 2 * RANK, 96, State.BROKEN),
        ("decoder.layers.0.mlp.shared_experts.linear_fc1", RANK // 2, 48, State.BROKEN),
    ],
)
def test_experts_have_sizes_of_their_own(name: str, rank: int, parameters: int, state: State) -> None:
    made = built(targets=("linear_fc1",), modules=module(name=name, rank=rank, parameters=parameters))
    assert found(made).evidence.state is state


@pytest.mark.parametrize(
    ("target", "name", "matches"),
    [
        ("linear_qkv", QKV, True),
        ("*.layers.0.*.linear_qkv", QKV, True),
        ("*.layers.1.*.linear_qkv", QKV, False),
        ("*.layers.1.*.linear_qkv", f"chunk1.{QKV}", False),
        ("linear_qkv", f"chunk1.{QKV}", True),
        ("linear_q", f"{QKV}.adapter_q", True),
        ("*.layers.0.*.linear_v", f"{QKV}.adapter_v", True),
        ("linear_fc1_gate", "decoder.layers.0.mlp.linear_fc1.adapter_gate", True),
        ("linear_fc1_up", QKV, False),
        ("linear_[q]kv", QKV, False),
        ("linear_kv", QKV, False),
    ],
)
def test_a_target_that_matches_nothing_is_named(target: str, name: str, matches: bool) -> None:
    item = found(built(targets=(target,), modules=module(name=name)))
    assert item.evidence.state is State.MET
    assert item.notes == (() if matches else (f"The actor has no module for the adapter's target {target}",))


def test_a_target_may_match_on_another_pipeline_stage() -> None:
    places = tuple(Ranks(rank=rank, pipeline=rank, pipeline_size=2) for rank in range(2))
    taken = healthy(places)
    other = adapters(targets=("linear_qkv", "linear_proj"), modules=module(name="decoder.layers.0.linear_proj"))
    both = taken.with_snapshots({"adapters": adapters(targets=other.targets)}, BUILT, rank=0).with_snapshots(
        {"adapters": other}, BUILT, rank=1
    )
    item = found(both, gpu_count=2)
    assert item.notes == ()


def test_a_module_that_a_target_matches_and_that_has_no_adapter_is_a_fault() -> None:
    bare = tensor("decoder.layers.1.self_attention.linear_qkv.weight", weights(4), requires_grad=False)
    rows = tuple(
        item.model_copy(update={"tensors": (*item.tensors, bare)}) if item.point is BUILT else item
        for item in RUN.snapshots
    )
    item = found(Taken(rows)).evidence
    assert item.state is State.BROKEN
    name = bare.name.removesuffix(".weight")
    assert f"{name}: it has no adapter, although the target linear_qkv matches it" in item.summary
    plain = Taken(rows).with_tensor(BASE, lambda held: held.model_copy(update={"name": "w"}), BUILT)
    assert found(plain).evidence.state is State.MET


def test_without_adapters_there_is_nothing_to_measure() -> None:
    ranks = {"actor_rollout_ref.model.lora.rank": 0, "critic.model.lora.rank": 0}
    item = found(RUN.with_snapshots({"adapters": None}, BUILT), ranks).evidence
    assert (item.state, item.summary) == (State.MET, "no adapter was asked for")


def test_a_list_that_is_not_there_is_a_gap() -> None:
    item = found(RUN.with_snapshots({"adapters": None}, BUILT, model="critic")).evidence
    expected = "not every rank lists the adapters of the critic in the train phase"
    assert (item.state, item.summary) == (State.MISSING, expected)
    item = found(RUN.without(BUILT, model="actor")).evidence
    assert item.summary == "no fingerprint 'model built' of the actor in the train phase"
