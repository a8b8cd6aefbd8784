"""The rollout gets what was exported, and loads what it got."""

from typing import Any

import pytest

from tests.core.builders import config_with, judged, make_case, make_facts, make_job, make_record
from tests.core.fingerprints import (
    FUSED,
    HF,
    HF_NORM,
    WIDTH,
    WORKER,
    Taken,
    absent,
    healthy,
    moved,
    other,
    scaled,
    tensor,
    weights,
    zeroed,
)
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.criteria.transfer import rollout_weights, sources
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Ranks, Tensor
from verl_e2e.core.model.outcome import Result, Stage

EXPORTED, RECEIVED, LOADED = Point.EXPORTED, Point.RECEIVED, Point.ROLLOUT_LOADED
RUN = healthy()
Q = f"{HF}.q_proj.weight"
LORA = f"base_model.model.{HF}.v_proj.lora_B.weight"
ENGINE_LORA = f"{HF}.qkv_proj.lora_b[2]"


def found(taken: Taken, config: dict[str, Any] | None = None) -> CriterionFinding:
    facts = make_facts(configs=(config_with(config),))
    return rollout_weights(make_case(make_record(fingerprints=taken.document()), facts))


def test_weights_that_arrive_and_are_loaded_are_met() -> None:
    item = found(RUN)
    assert (item.evidence.state, item.stage, item.notes) == (State.MET, Stage.EXPORT_WEIGHT_SYNC, ())
    assert item.evidence.summary == "16 tensors arrived as they were exported, 18 were loaded as they arrived"


def test_what_arrived_and_is_not_seen_in_the_engine_is_named() -> None:
    text = f"Arrived at the rollout and not seen in the engine's model: {LORA}"
    assert found(RUN.with_tensor(ENGINE_LORA, absent, LOADED, number=2)).notes == (text,)


def test_a_sync_of_which_nothing_was_loaded_is_named() -> None:
    (note,) = found(RUN.without(LOADED, number=1)).notes
    assert note.startswith("There is no fingerprint 'rollout loaded' 2 of the rollout on rank 0 in the train phase: ")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (scaled(2.0), "a scale by 2"),
        (moved, "a permutation or transposition: the same values in another order"),
        (zeroed, "all zero"),
        (absent, "it was exported and did not arrive"),
    ],
)
@pytest.mark.parametrize(("name", "number"), [(Q, 0), (LORA, 2)])
def test_what_arrives_otherwise_is_a_fail_that_nothing_else_sees(
    name: str, number: int, change: Any, what: str
) -> None:
    verdict = judged(fingerprints=RUN.with_tensor(name, change, RECEIVED, number=number).document())
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.EXPORT_WEIGHT_SYNC)
    assert verdict.decided_by == Criterion.ROLLOUT_WEIGHTS
    assert f"in sync {number + 1} is not what was exported in the train phase: {name}: {what}" in verdict.cause
    assert [item.criterion for item in verdict.evidence if item.state is State.BROKEN] == [Criterion.ROLLOUT_WEIGHTS]


def test_a_sync_of_the_step_before_is_stale() -> None:
    (old,) = (item for item in RUN.snapshots if item.point is RECEIVED and item.number == 1)
    stale = RUN.with_snapshots({"tensors": old.tensors}, RECEIVED, number=2)
    assert "a stale copy: the values of an earlier point" in found(stale).evidence.summary


def test_what_was_never_exported_is_named() -> None:
    spoiled = RUN.with_tensor(Q, absent, EXPORTED, number=0)
    assert f"{Q}: it arrived and was not exported" in found(spoiled).evidence.summary
    partial = spoiled.with_snapshots({"left_out": 1}, EXPORTED)
    item = found(partial)
    assert item.evidence.state is State.MET
    assert "Fingerprints are of a sample: 1 tensors of the actor on each rank were not compared" in item.notes


def test_a_name_that_one_rank_alone_exports_may_be_the_one_that_arrived() -> None:
    two = healthy(tuple(Ranks(rank=rank, data=rank, data_size=2) for rank in range(2)))
    record = make_record(
        job=make_job(gpu_count=2), fingerprints=two.with_tensor(Q, other, EXPORTED, rank=0, number=0).document()
    )
    assert rollout_weights(make_case(record)).evidence.state is State.MET


def test_a_sync_without_its_export_is_not_compared() -> None:
    item = found(RUN.without(EXPORTED, number=2))
    assert item.evidence.state is State.MET
    note = "A sync that arrived at the rollout has no export of its number: it was not compared"
    assert note in item.notes
    shifted = RUN.with_snapshots({"adapter_only": False}, EXPORTED, number=2)
    assert note in found(shifted).notes


@pytest.mark.parametrize(
    ("change", "what"),
    [(other, "its sums are not those of what arrived"), (zeroed, "all zero"), (scaled(0.5), "its sums are not those")],
)
def test_a_fused_projection_is_loaded_by_its_sums(change: Any, what: str) -> None:
    verdict = judged(fingerprints=RUN.with_tensor(FUSED, change, LOADED, number=0).document())
    assert verdict.decided_by == Criterion.ROLLOUT_WEIGHTS
    assert f"what the rollout loaded in sync 1 is not what arrived in the train phase: {FUSED}: {what}" in verdict.cause


def test_a_plain_parameter_names_how_it_differs() -> None:
    item = found(RUN.with_tensor(HF_NORM, scaled(3.0), LOADED, number=0)).evidence
    assert f"{HF_NORM}: a scale by 3" in item.summary


def test_base_weights_stay_loaded_while_adapters_are_synced() -> None:
    item = found(RUN.with_tensor(HF_NORM, zeroed, LOADED, number=2)).evidence
    assert "in sync 3 is not what arrived" in item.summary


SCALE = {"actor_rollout_ref.model.lora.alpha": 8, "actor_rollout_ref.model.lora.rank": 4}


@pytest.mark.parametrize(
    ("change", "config", "state"),
    [
        (scaled(2.0), SCALE, State.MET),
        (scaled(2.0), {}, State.BROKEN),
        (scaled(3.0), SCALE, State.BROKEN),
        (scaled(3.0), {"actor_rollout_ref.model.lora.alpha": None}, State.BROKEN),
        (moved, {}, State.MET),
        (zeroed, {}, State.BROKEN),
    ],
)
def test_the_engine_may_scale_and_turn_an_adapter(change: Any, config: dict[str, Any], state: State) -> None:
    assert found(RUN.with_tensor(ENGINE_LORA, change, LOADED, number=2), config).evidence.state is state


def _halves(held: Tensor, rank: int) -> Tensor:
    """One half of a fused projection, or the whole of anything else."""
    if held.name != FUSED:
        return held
    joined = tuple(value for part in ("q_proj", "k_proj", "v_proj") for value in weights(WIDTH * WIDTH, f"hf {part}"))
    middle = len(joined) // 2
    return tensor(FUSED, joined[middle * rank : middle * (rank + 1)], (3 * WIDTH // 2, WIDTH))


def _tensor_parallel() -> Taken:
    """The run with two tensor ranks of the rollout."""
    rows = []
    for item in RUN.snapshots:
        if item.model != "rollout":
            rows.append(item)
            continue
        for rank in range(2):
            held = tuple(_halves(row, rank) if item.point is LOADED else row for row in item.tensors)
            ranks = Ranks(tensor=rank, tensor_size=2)
            rows.append(item.model_copy(update={"ranks": ranks, "pid": WORKER + rank, "tensors": held}))
    return Taken(tuple(rows))


def test_parts_and_copies_of_tensor_ranks_add_up() -> None:
    two = _tensor_parallel()
    item = found(two)
    assert (item.evidence.state, item.notes) == (State.MET, ())
    spoiled = found(two.with_tensor(FUSED, scaled(2.0), LOADED, number=0, tensor=1)).evidence
    assert f"{FUSED}: its sums are not those of what arrived" in spoiled.summary
    copied = found(two.with_tensor(HF_NORM, zeroed, LOADED, number=0, tensor=1)).evidence
    assert f"{HF_NORM}: its sums are not those of what arrived" in copied.summary
    alone = two.without(LOADED, tensor=1)
    assert "What the rollout engine made of the weights that arrived was not compared" in found(alone).notes


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.model_copy(update={"dtype": "float8_e4m3fn"}),
        lambda held: held.model_copy(update={"shape": (5, 5)}),
        lambda held: held.model_copy(update={"name": "model.other_norm.weight"}),
    ],
)
def test_what_the_engine_made_its_own_is_named(change: Any) -> None:
    item = found(RUN.with_tensor(HF_NORM, change, LOADED))
    assert item.evidence.state is State.MET
    assert item.notes[0].startswith("Not compared of what the rollout engine loaded: ")


def test_an_engine_without_hooks_is_a_limitation() -> None:
    item = found(RUN.without(RECEIVED, LOADED), {"actor_rollout_ref.rollout.name": "sglang"}).evidence
    expected = "the rollout engine sglang has no hooks: what arrived there was not compared"
    assert (item.state, item.summary) == (State.WAIVED, expected)


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (EXPORTED, "no fingerprint 'exported' of the actor in the train phase"),
        (RECEIVED, "no fingerprint 'received' of the rollout in the train phase"),
    ],
)
def test_a_hook_that_never_fired_is_a_gap(point: Point, text: str) -> None:
    item = found(RUN.without(point)).evidence
    assert (item.state, item.summary) == (State.MISSING, text)


def test_numbers_that_never_meet_are_a_gap() -> None:
    item = found(RUN.with_snapshots({"number": 9}, RECEIVED)).evidence
    assert (item.state, item.summary) == (State.MISSING, "no export has the number of a sync that arrived")


def test_an_engine_that_does_not_let_us_look_is_a_limitation() -> None:
    item = found(RUN.without(LOADED))
    assert item.evidence.state is State.MET
    assert item.notes == ("What the rollout engine made of the weights that arrived was not compared",)


ARRIVED = {
    name: tensor(name, (1.0,))
    for name in (
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.gate_proj.base_layer.weight",
        "model.layers.1.mlp.up_proj.base_layer.weight",
        "model.norm.weight",
        "model.layers.0.mlp.down_proj.base_layer.weight",
        "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight",
    )
}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "model.layers.0.mlp.gate_up_proj.weight",
            ("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ),
        (
            "model.layers.1.mlp.gate_up_proj.base_layer.weight",
            ("model.layers.1.mlp.gate_proj.base_layer.weight", "model.layers.1.mlp.up_proj.base_layer.weight"),
        ),
        ("model.layers.0.mlp.gate_up_proj.bias", ()),
        ("model.norm.weight", ("model.norm.weight",)),
        ("model.layers.0.mlp.down_proj.base_layer.weight", ("model.layers.0.mlp.down_proj.base_layer.weight",)),
        ("model.layers.0.mlp.down_proj.weight", ("model.layers.0.mlp.down_proj.base_layer.weight",)),
        (
            "model.layers.0.mlp.down_proj.lora_a",
            ("base_model.model.model.layers.0.mlp.down_proj.lora_A.weight",),
        ),
        ("model.layers.0.mlp.down_proj.lora_a[0]", ()),
        ("model.layers.0.mlp.gate_up_proj.lora_a", ()),
        ("model.layers.0.mlp.gate_up_proj.lora_a[7]", ()),
        ("lm_head.weight", ()),
    ],
)
def test_the_engines_names_say_what_was_fused(name: str, parts: tuple[str, ...]) -> None:
    assert sources(name, ARRIVED) == parts
