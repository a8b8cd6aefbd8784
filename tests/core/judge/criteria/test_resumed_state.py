"""Level 1: what was loaded is what was saved, on each rank and tensor by tensor."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import make_case, make_record
from tests.core.fingerprints import LORA_A, ONE, Taken, absent, healthy, moved, other, scaled, tensor, zeroed
from tests.core.level_runs import resume_run
from verl_e2e.core.judge.criteria.resume import resumed_state
from verl_e2e.core.judge.criteria.snapshots import Finding
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Kind, Point, Ranks
from verl_e2e.core.model.jobs import NotRestored
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.stages import Stage

LOADED, SAVED = Point.CHECKPOINT_LOADED, Point.CHECKPOINT_SAVED
MOMENT = f"{LORA_A}/exp_avg[0:8]"
TWO = tuple(Ranks(rank=rank, data=rank, data_size=2) for rank in range(2))
RUN = healthy(phases=("save", "resume"), steps=1)
RUN_ON_TWO = healthy(TWO, ("save", "resume"), steps=1)


def found(taken: Taken) -> Finding:
    return resumed_state(resume_run(fingerprints=taken.document()).case())


def test_a_state_that_came_back_is_met() -> None:
    item = found(RUN)
    assert (item.evidence.state, item.stage, item.notes) == (State.MET, Stage.CHECKPOINT_LOAD, ())
    assert item.evidence.summary == ("20 tensors of actor and critic, optimizer state included, are as they were saved")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (zeroed, "all zero"),
        (absent, "not there on rank 0 after the load"),
        (scaled(2.0), "a scale by 2"),
        (moved, "a permutation or transposition: the same values in another order"),
        (other, "other values"),
    ],
)
@pytest.mark.parametrize("name", [LORA_A, MOMENT, f"{LORA_A}/main[0:8]"])
def test_a_tensor_that_came_back_otherwise_is_named(name: str, change: Any, what: str) -> None:
    item = found(RUN.with_tensor(name, change, LOADED, model="actor")).evidence
    assert item.state is State.BROKEN
    assert item.summary == (
        f"what the resume phase loaded of the actor is not what the save phase saved: {name}: {what}"
    )
    assert item.excerpt.startswith(f"{name}: {what}\n  expected: ")


def test_a_lost_moment_is_a_fail_that_nothing_else_sees() -> None:
    spoiled = RUN.with_tensor(MOMENT, zeroed, LOADED, model="critic")
    verdict = resume_run(fingerprints=spoiled.document()).verdict()
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.CHECKPOINT_LOAD)
    assert verdict.decided_by == Criterion.RESUMED_STATE
    broken = [item.criterion for item in verdict.evidence if item.state is State.BROKEN]
    assert broken == [Criterion.RESUMED_STATE]


def test_several_faults_are_counted_and_the_first_ones_shown() -> None:
    spoiled = RUN.with_tensor(MOMENT, zeroed, LOADED, model="actor").with_tensor(LORA_A, other, LOADED, model="actor")
    item = found(spoiled).evidence
    assert f"{LORA_A} (and 1 more): other values" in item.summary
    assert item.excerpt.count("expected:") == 2


@pytest.mark.parametrize("point", [LOADED, SAVED])
@pytest.mark.parametrize("model", ["actor", "critic"])
def test_a_hook_that_never_fired_is_a_gap(point: Point, model: str) -> None:
    item = found(RUN.without(point, model=model)).evidence
    phase = "save" if point is SAVED else "resume"
    expected = f"no fingerprint '{point}' of the {model} in the {phase} phase"
    assert (item.state, item.summary) == (State.MISSING, expected)


def test_a_checkpoint_without_optimizer_state_is_a_gap() -> None:
    def bare(taken: Taken) -> Taken:
        rows = (
            row.model_copy(update={"tensors": tuple(item for item in row.tensors if item.kind is not Kind.OPTIMIZER)})
            for row in taken.snapshots
        )
        return Taken(tuple(rows))

    item = found(bare(RUN)).evidence
    assert item.state is State.MISSING
    assert item.summary == "the fingerprints of the actor's checkpoint hold no state of the optimizer"


def test_the_snapshot_of_another_step_is_not_the_one_that_was_saved() -> None:
    assert found(RUN.with_snapshots({"step": 7}, SAVED)).evidence.state is State.MISSING
    assert found(RUN.with_snapshots({"step": None}, SAVED)).evidence.state is State.MET


def test_a_count_of_steps_may_come_back_as_another_type() -> None:
    def with_step(taken: Taken, point: Point, value: float, dtype: str) -> Taken:
        step = tensor("optimizer0.group0/step", (value,), (), kind=Kind.OPTIMIZER, dtype=dtype)
        rows = (
            row.model_copy(update={"tensors": (*row.tensors, step)}) if row.point is point else row
            for row in taken.snapshots
        )
        return Taken(tuple(rows))

    saved = with_step(RUN, SAVED, 1.0, "float64")
    assert found(with_step(saved, LOADED, 1.0, "int64")).evidence.state is State.MET
    item = found(with_step(saved, LOADED, 0.0, "float64")).evidence
    assert "optimizer0.group0/step: all zero" in item.summary
    assert "optimizer0.group0/step: not there on rank 0" in found(saved).evidence.summary


def test_a_sample_of_a_large_model_is_named() -> None:
    partial = RUN.with_snapshots({"left_out": 9}, LOADED, SAVED).with_tensor(MOMENT, absent, LOADED)
    item = found(partial)
    assert item.evidence.state is State.MET
    assert item.notes == tuple(
        f"Fingerprints are of a sample: 9 tensors of the {model} on each rank were not compared"
        for model in ("actor", "critic")
    )


def _swapped(taken: Taken) -> Taken:
    """The loaded state with the parts of the two ranks swapped."""
    parts = {(row.model, row.ranks.rank): row.tensors for row in taken.snapshots if row.point is LOADED}
    rows = (
        row.model_copy(update={"tensors": parts[row.model, 1 - row.ranks.rank]}) if row.point is LOADED else row
        for row in taken.snapshots
    )
    return Taken(tuple(rows))


def test_another_sharding_is_compared_by_sums() -> None:
    swapped = _swapped(RUN_ON_TWO)
    assert found(swapped).evidence.state is State.MET
    lost = swapped.with_tensor(MOMENT, zeroed, LOADED, model="actor", rank=1)
    text = f"{LORA_A}/exp_avg: its parts on all ranks do not add up to what was saved"
    assert text in found(lost).evidence.summary


def test_after_another_sharding_whole_tensors_are_compared_on_each_rank() -> None:
    exchanged = _swapped(RUN_ON_TWO.with_tensor(LORA_A, scaled(2.0), SAVED, model="actor", rank=0)).with_tensor(
        LORA_A, scaled(2.0), LOADED, model="actor", rank=1
    )
    assert f"{LORA_A} (and 1 more): a scale by 0.5" in found(exchanged).evidence.summary
    known = declared(_swapped(stale(RUN_ON_TWO)), HEAD)
    assert (known.evidence.state, len(known.notes)) == (State.MET, 1)


@pytest.mark.parametrize(("change", "what"), [(absent, "not there on any rank after the load"), (zeroed, "all zero")])
def test_a_moment_that_no_rank_has_after_another_sharding(change: Any, what: str) -> None:
    swapped = _swapped(RUN_ON_TWO)
    gone = swapped.with_tensor(MOMENT, change, LOADED, model="actor", rank=1).with_tensor(
        f"{LORA_A}/exp_avg[8:16]", change, LOADED, model="actor", rank=0
    )
    assert f"{LORA_A}/exp_avg: {what}" in found(gone).evidence.summary
    if change is absent:
        assert found(gone.with_snapshots({"left_out": 1}, LOADED)).evidence.state is State.MET


def test_a_job_that_never_saves_resumes_nothing() -> None:
    item = resumed_state(make_case(make_record(fingerprints=healthy(ONE).document()))).evidence
    assert (item.state, item.summary) == (State.MISSING, "the job saves nothing, so nothing is resumed")


HEAD = NotRestored(
    name="head", model="critic", parameters=(LORA_A,), reason="verl does not save it", upstream="https://example.org/1"
)


def stale(run: Taken = RUN, change: Any = None) -> Taken:
    """The run in which a parameter of the critic has after the load what it had before."""
    built = (item for item in run.snapshots if item.point is Point.MODEL_BUILT and item.model == "critic")
    before = next(held for item in built for held in item.tensors if held.name == LORA_A)
    return run.with_tensor(LORA_A, change or (lambda _: before), LOADED, model="critic")


def declared(taken: Taken, *entries: NotRestored) -> Finding:
    case = resume_run(fingerprints=taken.document()).case()
    return resumed_state(replace(case, job=case.job.model_copy(update={"not_restored": entries})))


def test_a_parameter_that_the_load_left_alone_is_named_as_such() -> None:
    item = found(stale()).evidence
    assert item.state is State.BROKEN
    assert item.summary.endswith(f"{LORA_A}: a stale copy: the values of an earlier point")


def test_a_parameter_that_is_known_not_to_be_restored_is_a_limitation() -> None:
    item = declared(stale(), HEAD)
    assert item.evidence.state is State.MET
    assert item.notes == (
        f"Known defect head: {LORA_A} of the critic has after the load what it had before: verl does not save it "
        "(https://example.org/1)",
    )


@pytest.mark.parametrize("change", [zeroed, absent, scaled(2.0), other])
def test_a_known_defect_excuses_no_other_difference(change: Any) -> None:
    item = declared(stale(change=change), HEAD)
    assert (item.evidence.state, item.notes) == (State.BROKEN, ())


def test_a_known_defect_excuses_no_other_tensor_and_no_other_model() -> None:
    both = stale().with_tensor(MOMENT, zeroed, LOADED, model="critic")
    item = declared(both, HEAD)
    assert item.evidence.state is State.BROKEN
    assert item.evidence.summary.endswith(f"{MOMENT}: all zero")
    assert len(item.notes) == 1
    assert declared(stale(), HEAD.model_copy(update={"model": "actor"})).evidence.state is State.BROKEN


def test_a_known_defect_that_does_not_show_is_not_mentioned() -> None:
    assert declared(RUN, HEAD).notes == ()
