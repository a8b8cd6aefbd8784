"""What several jobs executed of one change: joined function by function, and held against the policy."""

from collections.abc import Mapping

import pytest

from tests.core.builders import BRIDGE
from tests.core.executions import (
    DROPOUT,
    GATHER,
    IN_TEST,
    IN_TRAINER,
    LORA,
    MAPPING,
    REMOVED,
    TRANSFORM,
    change,
    ran,
)
from verl_e2e.core.judge.execution import (
    BASE_NOT_RUN,
    VERDICT_NOT_KEPT,
    JoinedExecution,
    Recorded,
    Shortfall,
    accepted,
    execution_of,
    in_tests_alone,
    join,
    shortfall,
    unknown_execution,
)
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.changed_code import ChangedFunction
from verl_e2e.core.model.executed import Executed
from verl_e2e.core.model.execution import ChangeExecution

BASE = "d" * 40
BLOCK, ALLOW = ExecutionRules(), ExecutionRules(unexecuted=Demand.ALLOW, unrecorded=Demand.ALLOW)
OLD = Executed(problem="the run's Python is 3.11")


def of(*planned: ChangedFunction, record: Executed | None = None, base: Executed | None = None) -> ChangeExecution:
    of_base = Recorded(base, BASE) if base else Recorded(None, why_none=BASE_NOT_RUN)
    return execution_of(change(*planned), Recorded(record or ran(), BRIDGE), of_base)


def test_a_function_ran_where_any_job_entered_it() -> None:
    joined = join(
        {
            "0-lora-ddp": of(TRANSFORM, DROPOUT, record=ran(TRANSFORM, lines={LORA: {44: (), 45: ()}})),
            "4-moe": of(TRANSFORM, GATHER, record=ran(TRANSFORM, GATHER, lines={LORA: {45: (), 50: ()}})),
        }
    )
    gather, transform, dropout = joined.functions
    assert (gather.jobs, gather.planned, gather.missed) == (("4-moe",), ("4-moe",), ())
    assert (transform.jobs, transform.ran, transform.missed) == (("0-lora-ddp", "4-moe"), (44, 50), (45,))
    assert transform.process == "trainer 0 (train)"
    assert (dropout.jobs, dropout.never, dropout.missed, dropout.process) == ((), True, (72,), "")
    assert joined.jobs == ("4-moe", "0-lora-ddp")


def test_nothing_joined_is_nothing() -> None:
    assert join({}) == JoinedExecution()
    assert shortfall(join({}), BLOCK) == Shortfall()


def test_a_bridge_test_is_enough_to_know_that_a_function_runs() -> None:
    joined = join({"0": of(DROPOUT, record=ran(DROPOUT, by=(IN_TEST,))), "1": of(DROPOUT)})
    (function,) = joined.functions
    assert (function.by_tests, function.jobs, function.never, function.unknown) == (True, (), False, False)


IN_TESTS = of(DROPOUT, record=ran(DROPOUT, by=(IN_TEST,)))
IN_VERL = of(TRANSFORM, record=ran(TRANSFORM))
OF_BOTH = of(DROPOUT, TRANSFORM, record=ran(DROPOUT, by=(IN_TEST,)))


@pytest.mark.parametrize(
    ("executions", "said"),
    (
        ({}, ""),
        ({"0": of(DROPOUT)}, ""),
        ({"0": of(DROPOUT, record=OLD)}, ""),
        ({"0": of(DROPOUT, record=ran(DROPOUT))}, ""),
        ({"0": IN_TESTS}, "the change was executed by Bridge tests alone, by no verl run"),
        ({"0": IN_TESTS, "1": of(DROPOUT)}, "the change was executed by Bridge tests alone, by no verl run"),
        ({"0": IN_TESTS, "1": of(DROPOUT, record=ran(DROPOUT))}, ""),
        # What never ran is said elsewhere.
        ({"0": OF_BOTH}, "the change was executed by Bridge tests alone, by no verl run"),
        (
            {"0": IN_TESTS, "1": of(TRANSFORM, record=ran(TRANSFORM))},
            "1 of 2 changed functions ran in Bridge tests alone",
        ),
        ({"0": of(REMOVED, record=ran())}, ""),
    ),
)
def test_what_bridge_tests_alone_executed_is_said(executions: Mapping[str, ChangeExecution], said: str) -> None:
    assert in_tests_alone(join(executions)) == said


def test_what_no_record_tells_of_is_not_known() -> None:
    joined = join({"0": of(TRANSFORM, record=OLD)})
    assert (joined.functions[0].unknown, joined.functions[0].never) == (True, False)
    assert joined.not_recorded == {"0": "the run's Python is 3.11"}
    # One record that tells is enough.
    assert join({"0": of(TRANSFORM, record=OLD), "1": of(TRANSFORM)}).functions[0].never


def test_one_run_on_the_merge_base_tells_of_the_removed_code() -> None:
    without, with_base = of(REMOVED), of(REMOVED, base=ran(REMOVED, bridge_commit=BASE))
    assert join({"0": without}).base_not_recorded == BASE_NOT_RUN
    joined = join({"0": without, "5": with_base, "1": of(TRANSFORM)})
    assert joined.base_not_recorded == ""
    assert joined.functions[-1].jobs == ("5",)


def test_what_could_not_be_compared_is_kept() -> None:
    first = execution_of(change(unread={"a": "b"}, left_out=3), Recorded(ran()), Recorded(None))
    second = execution_of(change(unread={"a": "b", "c": "d"}, left_out=2), Recorded(ran()), Recorded(None))
    joined = join({"0": first, "1": second})
    assert (joined.unread, joined.left_out, joined.cut_off) == (("a: b", "c: d"), 3, {"0": 3, "1": 2})


def test_of_a_verdict_that_is_gone_nothing_is_known() -> None:
    found = unknown_execution(change(TRANSFORM))
    assert found.not_recorded == VERDICT_NOT_KEPT
    assert join({"0": found}).functions[0].unknown


ENTERED = of(DROPOUT, GATHER, TRANSFORM, record=ran(DROPOUT, GATHER))
OWN = of(DROPOUT, GATHER)
LEFT = ExecutionRules(uncoverable=Demand.ALLOW)
OF_KIMI = GATHER.model_copy(update={"uncoverable": "kimi"})
BY_TEST = of(DROPOUT, record=ran(DROPOUT, by=(IN_TEST,)))
MANY = of(DROPOUT)
CUT = execution_of(change(DROPOUT, left_out=1), Recorded(ran(), BRIDGE), Recorded(None))


@pytest.mark.parametrize(
    ("own", "passed", "rules", "reason"),
    [
        (OWN, {}, BLOCK, ""),
        (OWN, {"4-moe": ENTERED}, BLOCK, "what it missed ran in 4-moe"),
        (OWN, {"4-moe": of(DROPOUT, record=ran(DROPOUT))}, BLOCK, ""),
        (OWN, {"4-moe": of(DROPOUT, record=ran(DROPOUT)), "2-dense": of(GATHER, record=ran(GATHER))}, BLOCK,
         "what it missed ran in 2-dense, 4-moe"),
        (BY_TEST, {}, BLOCK, "what it missed ran by Bridge tests alone"),
        (MANY, {"1-resume": BY_TEST}, BLOCK, "what it missed ran by Bridge tests alone"),
        (OWN, {"1-resume": BY_TEST, "2-dense": of(GATHER, record=ran(GATHER))}, BLOCK,
         "what it missed ran in 2-dense and by Bridge tests alone"),
        (OWN, {"4-moe": of(DROPOUT, GATHER, record=OLD)}, BLOCK, ""),
        (CUT, {"4-moe": ENTERED}, BLOCK, ""),
        (ChangeExecution(), {"4-moe": ENTERED}, BLOCK, ""),
        (OWN, {}, ALLOW, "the policy allows that (gate.unexecuted)"),
        (OWN, {}, ExecutionRules(unrecorded=Demand.ALLOW), ""),
        (of(OF_KIMI), {}, LEFT, "no host can run kimi (gate.uncoverable)"),
        (of(OF_KIMI), {}, BLOCK, ""),
        (of(OF_KIMI, DROPOUT), {}, LEFT, ""),
        (of(OF_KIMI, DROPOUT), {"4-moe": of(DROPOUT, record=ran(DROPOUT))}, LEFT,
         "what it missed ran in 4-moe; no host can run kimi (gate.uncoverable)"),
        (of(OF_KIMI), {"4-moe": of(OF_KIMI, record=ran(GATHER))}, LEFT, "what it missed ran in 4-moe"),
        (of(DROPOUT, record=OLD), {}, BLOCK, "what it missed is not known"),
    ],
)  # fmt: skip
def test_what_makes_up_for_a_job_that_never_entered_its_part(
    own: ChangeExecution, passed: Mapping[str, ChangeExecution], rules: ExecutionRules, reason: str
) -> None:
    in_order = {job: passed[job] for job in sorted(passed)}
    found = accepted(own, in_order, rules)
    assert found == reason or sorted(found) == sorted(reason), found


NEVER = f"1 changed function that verl reaches never ran: {LORA}:70 LoRA.drop (only with lora_dropout above 0)"
UNKNOWN = "whether 1 changed function ran is not known (0: the run's Python is 3.11)"
KIMI = f"1 changed function belongs to kimi, which no host can run: {MAPPING}:10 gather"
PARTLY = {"0": of(TRANSFORM, DROPOUT, record=ran(TRANSFORM))}
NOT_KNOWN = {"0": of(TRANSFORM, record=OLD)}


@pytest.mark.parametrize(
    ("executions", "rules", "excused", "closing", "allowed"),
    [
        ({"0": of(TRANSFORM, record=ran(TRANSFORM))}, BLOCK, (), "", ""),
        (PARTLY, BLOCK, (), NEVER, ""),
        (PARTLY, ALLOW, (), "", NEVER),
        (PARTLY, BLOCK, ("0",), "", ""),
        (PARTLY, BLOCK, ("1",), NEVER, ""),
        ({**PARTLY, "4": of(DROPOUT, record=ran(DROPOUT))}, BLOCK, (), "", ""),
        ({**PARTLY, "4": BY_TEST}, BLOCK, (), "", ""),
        (NOT_KNOWN, BLOCK, (), UNKNOWN, ""),
        (NOT_KNOWN, ALLOW, (), "", UNKNOWN),
        (NOT_KNOWN, ExecutionRules(unrecorded=Demand.ALLOW), (), "", UNKNOWN),
        ({"0": of(TRANSFORM, GATHER)}, BLOCK, (),
         f"2 changed functions that verl reaches never ran: {MAPPING}:10 gather, {LORA}:40 LoRA.transform", ""),
        ({"0": of(TRANSFORM, GATHER, record=OLD)}, BLOCK, (),
         "whether 2 changed functions ran is not known (0: the run's Python is 3.11)", ""),
        ({"0": CUT}, BLOCK, ("0",), "", ""),
        ({"0": of(OF_KIMI)}, BLOCK, (), KIMI, ""),
        ({"0": of(OF_KIMI)}, LEFT, (), "", KIMI),
        ({"0": of(OF_KIMI, record=OLD)}, LEFT, (), "", KIMI),
        ({"0": of(OF_KIMI, record=ran(GATHER))}, LEFT, (), "", ""),
        ({**PARTLY, "1": of(OF_KIMI)}, LEFT, (), NEVER, KIMI),
        ({"0": of(OF_KIMI, OF_KIMI.model_copy(update={"first_line": 30}))}, BLOCK, (),
         f"2 changed functions belong to kimi, which no host can run: {MAPPING}:10 gather, {MAPPING}:30 gather", ""),
        ({"0": CUT}, ExecutionRules(unexecuted=Demand.ALLOW), (),
         "whether 1 changed function ran is not known", NEVER),
        ({"0": of(REMOVED, TRANSFORM, record=ran(TRANSFORM))}, BLOCK, (), "", ""),
        ({"0": of(REMOVED, TRANSFORM, record=ran(TRANSFORM), base=ran(bridge_commit=BASE))}, BLOCK, (), "", ""),
        ({**PARTLY, "1": of(GATHER, record=OLD)}, BLOCK, (),
         f"{NEVER}; whether 1 changed function ran is not known (1: the run's Python is 3.11)", ""),
    ],
)  # fmt: skip
def test_what_the_policy_makes_of_what_no_job_executed(
    executions: Mapping[str, ChangeExecution],
    rules: ExecutionRules,
    excused: tuple[str, ...],
    closing: str,
    allowed: str,
) -> None:
    assert shortfall(join(executions), rules, excused) == Shortfall(closing, allowed)


def test_a_function_is_known_by_all_that_names_it() -> None:
    moved = DROPOUT.model_copy(update={"first_line": 71})
    joined = join({"0": of(DROPOUT), "1": of(moved, record=ran(moved, by=(IN_TRAINER,)))})
    assert [item.jobs for item in joined.functions] == [(), ("1",)]
