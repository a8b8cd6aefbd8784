"""Whether two failures are the same: what differs between two runs of one job says nothing, all else does."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import (
    bridge_error,
    cut_facts,
    ended,
    error,
    make_case,
    make_facts,
    make_record,
    step_line,
)
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.decide import decide
from verl_e2e.core.judge.related_runs import fingerprint_of, normal, same_failure
from verl_e2e.core.judge.verdict import judge_criteria
from verl_e2e.core.model.facts import Excerpt, LogFacts, LoggedError
from verl_e2e.core.model.outcome import Decision, Result, Stage
from verl_e2e.core.model.record import TestCase as Test
from verl_e2e.core.model.related import RelatedRun, Role

ONE = "size mismatch for decoder.layers.3.linear_qkv.weight: [512, 64] in /opt/kit/model/a.safetensors at 0x7f12ab"
SAME = "size mismatch for decoder.layers.11.linear_qkv.weight: [768, 32] in $WORK/model/a.safetensors at 0x55cc"
OTHER = "size mismatch for decoder.layers.3.linear_proj.weight: [512, 64] in /opt/kit/model/a.safetensors at 0x7f12ab"


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [
        (ONE, SAME, True),
        (ONE, OTHER, False),
        ("tree 067f987df03b8355 is gone", "tree 1fe0ee25d63bfa39 is gone", True),
        ("grad_norm is 0.0 at step 1", "grad_norm is nan at step 1", False),
        ("loss  is\n1e-05", "loss is 2.5", True),
        ("module facade has no defaced", "module facade has no accede", False),
    ],
)
def test_a_message_without_what_differs_from_run_to_run(text: str, other: str, same: bool) -> None:
    assert (normal(text) == normal(other)) is same


def _failing(found: LoggedError, **given: object) -> tuple[Case, Decision]:
    case = make_case(make_record(events=ended(exit_code=1)), cut_facts(Stage.PEFT, errors=(found,), **given))
    decision = decide(case, judge_criteria(case))
    assert decision.result is Result.FAIL
    return case, decision


def _as_base(case: Case, decision: Decision, **given: object) -> RelatedRun:
    fields = {
        "role": Role.MERGE_BASE,
        "job_id": "0-lora-ddp",
        "job_digest": "a" * 64,
        "bridge_commit": "b" * 40,
        "folder": "related/merge_base",
        "result": decision.result,
        "stage": decision.stage,
        "fingerprint": fingerprint_of(case, decision),
    }
    return RelatedRun.model_validate(fields | given)


VARIED: tuple[tuple[str, dict[str, object], bool], ...] = (
    ("another line and process", {"at": Excerpt(999, "x"), "pid": 4}, True),
    ("another number in the message", {"message": "planted in layer 7"}, True),
    ("another message", {"message": "planted in the export"}, False),
    ("another kind", {"kind": "TypeError"}, False),
    ("raised elsewhere", {"calls": ("verl/trainer/main_ppo.py:run", "megatron/bridge/peft/lora.py:merge")}, False),
    (
        "raised below the same place",
        {"calls": (*bridge_error().calls, "/usr/lib/python3/site-packages/torch/nn/functional.py:linear")},
        False,
    ),
)


@pytest.mark.parametrize(("changes", "same"), [row[1:] for row in VARIED], ids=[row[0] for row in VARIED])
def test_the_same_exception_again(changes: dict[str, object], same: bool) -> None:
    planted = replace(bridge_error(), message="planted in layer 3")
    case, decision = _failing(planted)
    again = replace(planted, **changes)  # type: ignore[arg-type]
    base = _as_base(*_failing(again))
    assert same_failure(fingerprint_of(case, decision), decision.stage, base) is same


def test_another_stage_or_a_base_that_passes_is_not_the_same() -> None:
    case, decision = _failing(bridge_error())
    marks = fingerprint_of(case, decision)
    assert same_failure(marks, decision.stage, _as_base(case, decision))
    assert not same_failure(marks, decision.stage, _as_base(case, decision, stage=Stage.OPTIMIZER))
    assert not same_failure(marks, decision.stage, _as_base(case, decision, result=Result.PASS))
    assert same_failure(marks, decision.stage, _as_base(case, decision, result=Result.BLOCKED))
    assert not same_failure((), decision.stage, _as_base(case, decision, fingerprint=()))


def _tests(*failed: str) -> tuple[Case, Decision]:
    names = ("tests.a", "tests.b", "tests.c")
    tests = tuple(Test(name=name, outcome="failed" if name in failed else "passed") for name in names)
    case = make_case(make_record(tests=tests))
    return case, decide(case, judge_criteria(case))


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (("tests.a",), ("tests.a",), True),
        (("tests.a",), ("tests.a", "tests.b"), True),
        (("tests.a", "tests.c"), ("tests.a",), False),
        (("tests.a",), ("tests.b",), False),
    ],
)
def test_failed_bridge_tests_are_the_same_when_each_of_ours_fails_there(
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
    same: bool,
) -> None:
    case, decision = _tests(*ours)
    assert same_failure(fingerprint_of(case, decision), decision.stage, _as_base(*_tests(*theirs))) is same


def _lost(*texts: str) -> tuple[Case, Decision]:
    lost = tuple(Excerpt(1180 + line, f"WARNING: Can't find {text}") for line, text in enumerate(texts))
    case = make_case(facts=make_facts(lost_weights=lost))
    return case, decide(case, judge_criteria(case))


def test_lost_weights_are_the_same_by_name() -> None:
    case, decision = _lost("layers.0.gate")
    marks = fingerprint_of(case, decision)
    assert same_failure(marks, decision.stage, _as_base(*_lost("layers.4.up", "layers.3.gate")))
    assert not same_failure(marks, decision.stage, _as_base(*_lost("layers.0.up")))


def test_a_metric_is_the_same_failure_by_its_name_and_kind_of_value() -> None:
    def frozen(**values: Any) -> tuple[Case, Decision]:
        case = make_case(facts=make_facts(steps=(step_line(**values),)))
        return case, decide(case, judge_criteria(case))

    case, decision = frozen(actor_grad_norm=0.0)
    marks = fingerprint_of(case, decision)
    assert same_failure(marks, decision.stage, _as_base(*frozen(actor_grad_norm=0.0)))
    assert not same_failure(marks, decision.stage, _as_base(*frozen(critic_grad_norm=0.0)))


def test_only_a_fail_has_marks() -> None:
    case = make_case()
    assert fingerprint_of(case, decide(case, judge_criteria(case))) == ()
    outside = error("OSError", "No space left on device", stage=Stage.TRAIN_STEP)
    case = make_case(make_record(events=ended(exit_code=1)), cut_facts(Stage.TRAIN_STEP, errors=(outside,)))
    assert fingerprint_of(case, decide(case, judge_criteria(case))) == ()
    assert fingerprint_of(make_case(facts=LogFacts(0)), Decision(Result.FAIL, Stage.PEFT, "x")) == ()
