"""An export of adapters yields what the trainer holds at that moment."""

from collections.abc import Callable

import pytest

from tests.core.builders import judged, make_case, make_facts, make_record
from tests.core.fingerprints import HF, LORA_A, LORA_B, Taken, absent, exported, healthy, moved, scaled, zeroed
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.criteria.transfer import exported_adapters, exports_adapters
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Ranks, Tensor
from verl_e2e.core.model.outcome import Result, Stage

RUN = healthy()
FIRST = f"base_model.model.{HF}.k_proj.lora_A.weight"
SECOND = f"base_model.model.{HF}.k_proj.lora_B.weight"
LAST = max(snapshot.number for snapshot in RUN.snapshots if snapshot.point is Point.EXPORTED)


def found(taken: Taken) -> CriterionFinding:
    return exported_adapters(make_case(make_record(fingerprints=taken.document()), make_facts()))


def otherwise(change: Callable[[Tensor], Tensor | None], *names: str, number: int = LAST) -> Taken:
    """The run in which an export yields these tensors otherwise, and the rollout gets just that."""
    taken = RUN
    for name in names:
        taken = taken.with_tensor(name, change, Point.EXPORTED, Point.RECEIVED, number=number)
    return taken


def seconds() -> tuple[str, ...]:
    return tuple(tensor.name for tensor in exported(adapter_only=True) if tensor.name.endswith("lora_B.weight"))


def test_what_the_trainer_holds_is_met() -> None:
    item = found(RUN)
    assert (item.evidence.state, item.stage, item.notes) == (State.MET, Stage.EXPORT_WEIGHT_SYNC, ())
    assert "exported tensors of adapters are what the trainer held" in item.evidence.summary


@pytest.mark.parametrize(
    ("taken", "name", "what"),
    [
        (otherwise(moved, FIRST), FIRST, "no adapter of the trainer has these values"),
        (otherwise(scaled(2.0), *seconds()), SECOND.replace("k_proj", "q_proj"), "a scale by 2, over all of them"),
        (otherwise(zeroed, *seconds()), SECOND.replace("k_proj", "q_proj"), "a scale by 0, over all of them"),
    ],
)
def test_what_an_export_yields_otherwise_is_a_fail_that_nothing_else_sees(taken: Taken, name: str, what: str) -> None:
    verdict = judged(fingerprints=taken.document())
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.EXPORT_WEIGHT_SYNC)
    assert verdict.decided_by == Criterion.EXPORTED_ADAPTERS
    assert verdict.cause.startswith(f"export {LAST + 1} of the train phase is not what the trainer held: {name}")
    assert what in verdict.cause
    broken = [item.criterion for item in verdict.evidence if item.state is State.BROKEN]
    assert set(broken) <= {Criterion.EXPORTED_ADAPTERS, Criterion.ROLLOUT_WEIGHTS}


def test_an_export_that_repeats_the_one_before_is_stale() -> None:
    before = exported(adapter_only=True)
    taken = RUN.with_snapshots({"tensors": before}, Point.EXPORTED, Point.RECEIVED, number=LAST)
    verdict = judged(fingerprints=taken.document())
    assert verdict.decided_by == Criterion.EXPORTED_ADAPTERS
    assert "a stale copy" in verdict.cause


def test_an_adapter_that_is_not_exported_is_named() -> None:
    firsts = [tensor.name for tensor in exported(adapter_only=True) if tensor.name.endswith("lora_A.weight")]
    item = found(otherwise(absent, *firsts))
    assert item.evidence.state is State.BROKEN
    assert f"{LORA_A}: the trainer holds it and it was not exported" in item.evidence.summary


def test_second_matrices_that_start_at_zero_must_stay_so() -> None:
    item = found(otherwise(lambda held: held.model_copy(update={"square": 1.0}), SECOND, number=1))
    assert "not zero, as the trainer's are, over all of them" in item.evidence.summary


@pytest.mark.parametrize("place", ["tensor_size", "expert_size", "expert_tensor_size"])
def test_parts_of_adapters_are_not_compared(place: str) -> None:
    item = found(RUN.with_snapshots({"ranks": Ranks(**{place: 2})}, Point.BEFORE_EXPORT))
    assert item.evidence.state is State.WAIVED
    assert "where ranks hold parts of them" in item.evidence.summary


def test_adapters_of_experts_and_samples_are_not_compared() -> None:
    expert = RUN.with_tensor(LORA_B, lambda held: held.model_copy(update={"expert": True}), Point.BEFORE_EXPORT)
    assert found(expert).evidence.state is State.WAIVED
    assert found(RUN.with_snapshots({"left_out": 3}, Point.EXPORTED)).evidence.state is State.WAIVED


def test_a_stage_without_its_snapshot_is_not_compared() -> None:
    taken = RUN.with_snapshots({"ranks": Ranks(pipeline_size=2)}, Point.BEFORE_EXPORT)
    assert found(taken).evidence.state is State.WAIVED


def test_without_what_was_held_there_is_a_gap() -> None:
    assert found(RUN.without(Point.BEFORE_EXPORT)).evidence.state is State.MISSING


def test_it_is_asked_where_adapters_are_exported_by_themselves() -> None:
    whole = RUN.with_snapshots({"adapter_only": False}, Point.EXPORTED)
    assert exports_adapters(make_case(make_record(fingerprints=RUN.document())))
    assert not exports_adapters(make_case(make_record(fingerprints=whole.document())))
    assert found(whole).evidence.state is State.WAIVED
