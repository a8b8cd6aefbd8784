"""The criteria on fingerprints together: which levels ask for them, what is said of gaps and of what was left out."""

from typing import Any

import pytest

from tests.core.builders import ended, judged, make_case, make_environment, make_facts, make_record
from tests.core.fingerprints import BASE, LORA_A, Taken, healthy, other, tensor
from tests.core.level_runs import resume_run
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.invariants import NOT_RECORDED, Invariant
from verl_e2e.core.judge.criteria.table import CRITERIA, Criterion, criteria_of, state_limitations
from verl_e2e.core.judge.verdict import judge_criteria
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.record import Event

RUN = healthy()
STATE = frozenset(row.criterion for row in CRITERIA if isinstance(row.judge, Invariant))
SENTENCE = f"{NOT_RECORDED[:1].upper()}{NOT_RECORDED[1:]}."


def test_every_level_asks_for_them_and_level_1_for_the_resumed_state_too() -> None:
    asked, on_level_1 = (
        {row.criterion for row in criteria_of(case)} & STATE for case in (make_case(), resume_run().case())
    )
    assert asked == STATE - {Criterion.RESUMED_STATE, Criterion.EXPORTED_ADAPTERS}
    assert on_level_1 == STATE - {Criterion.EXPORTED_ADAPTERS}
    assert resume_run().case().job.level is Level.SAVE_RESUME


def test_without_fingerprints_each_of_them_is_waived() -> None:
    found = [row.find(resume_run().case()).evidence for row in CRITERIA if isinstance(row.judge, Invariant)]
    assert {(item.state, item.summary) for item in found} == {(State.WAIVED, NOT_RECORDED)}
    assert {item.criterion for item in found} == STATE


def test_a_healthy_run_meets_them_and_passes() -> None:
    verdict = judged(fingerprints=RUN.document())
    assert (verdict.result, verdict.cause) == (Result.PASS, "")
    assert SENTENCE not in verdict.limitations
    assert {item.state for item in verdict.evidence if item.criterion in STATE} == {State.MET}


def test_an_older_folder_is_judged_as_before_with_one_limitation() -> None:
    verdict = judged()
    assert verdict.result is Result.PASS
    assert verdict.limitations.count(SENTENCE) == 1


@pytest.mark.parametrize(
    ("point", "stage"),
    [(Point.MODEL_BUILT, Stage.PEFT), (Point.OPTIMIZER_STEP, Stage.TRAIN_STEP)],
)
def test_a_hook_that_never_fired_keeps_a_run_from_passing(point: Point, stage: Stage) -> None:
    verdict = judged(fingerprints=RUN.without(point).document())
    assert (verdict.result, verdict.stage) == (Result.BLOCKED, stage)
    assert f"no fingerprint '{point}' of the actor in the train phase" in verdict.cause


def test_a_fault_is_no_fail_without_proof_of_what_ran() -> None:
    spoiled = RUN.with_tensor(BASE, other, Point.OPTIMIZER_STEP).document()
    verdict = judged(fingerprints=spoiled, environment=make_environment(repositories=()))
    assert verdict.result is Result.BLOCKED


def test_a_fault_in_the_log_decides_before_fingerprints() -> None:
    spoiled = RUN.with_tensor(BASE, other, Point.OPTIMIZER_STEP).document()
    facts = make_facts(adapters=(make_facts().adapters[0].__class__(1191, 7470, 17_940_992, 0),))
    assert judged(facts, fingerprints=spoiled).decided_by == Criterion.ADAPTER


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"unreadable": 3}, "3 fingerprint line(s) could not be read"),
        ({}, "1 parameters of the actor were not seen to train in 1 step(s): " + LORA_A),
    ],
)
def test_what_was_not_compared_is_a_limitation(document: dict[str, Any], text: str) -> None:
    bare = tuple(
        item.model_copy(update={"tensors": tuple(held for held in item.tensors if "/" not in held.name)})
        for item in healthy(steps=1).snapshots
    )
    rests = Taken(bare).with_tensor(
        LORA_A,
        lambda _: next(held for held in bare[0].tensors if held.name == LORA_A),
        Point.OPTIMIZER_STEP,
        model="actor",
    )
    case = make_case(make_record(fingerprints=rests.document(**document)))
    assert text in limitations(case)
    assert {item.evidence.state for item in judge_criteria(case) if item.evidence.criterion in STATE} == {State.MET}


def limitations(case: Case) -> tuple[str, ...]:
    return tuple(state_limitations(case, judge_criteria(case)))


def test_lines_that_the_runner_did_not_keep_are_limitations() -> None:
    counted = Event(t_s=243.5, kind="fingerprints", data={"snapshots": 9, "hooks": 1, "unreadable": 2, "left_out": 4})
    odd = Event(t_s=243.5, kind="fingerprints", data={"unreadable": "many"})
    first, *rest = ended()
    record = make_record(events=(first, counted, odd, *rest), fingerprints=RUN.document(unreadable=1))
    assert limitations(make_case(record)) == (
        "3 fingerprint line(s) could not be read",
        "4 fingerprint line(s) were not kept because there were too many",
    )


def test_hostile_names_make_no_endless_list_of_limitations() -> None:
    made = (
        RUN.snapshots[0].model_copy(
            update={
                "point": Point.ROLLOUT_LOADED,
                "model": "rollout",
                "number": 100 + index,
                "tensors": (tensor(f"strange.{index}", (1.0,)),),
            }
        )
        for index in range(30)
    )
    case = make_case(make_record(fingerprints=Taken((*RUN.snapshots, *made)).document()))
    found = limitations(case)
    assert len(found) == 10
    assert found[0] == "Not compared of what the rollout engine loaded: strange.0"


def test_an_empty_record_has_no_limitation_of_its_own() -> None:
    assert limitations(make_case(make_record(fingerprints=Taken(()).document()))) == ()
