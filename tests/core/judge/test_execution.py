"""Changed code matched with what was recorded: by function and line, by process, on both sides.

What several jobs executed of one change: joined function by function, and held against the policy.
"""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.core.builders import BRIDGE
from tests.core.executions import (
    AT_IMPORT,
    DRIVER,
    DROPOUT,
    GATHER,
    IN_DRIVER,
    IN_SECOND,
    IN_TEST,
    IN_TRAINER,
    LORA,
    MAPPING,
    PROCESSES,
    REMOVED,
    SECOND,
    TEST,
    TRAINER,
    TRANSFORM,
    change,
    ran,
)
from verl_e2e.core.judge.execution import (
    BASE_NOT_RUN,
    NO_RECORD,
    VERDICT_NOT_KEPT,
    JoinedExecution,
    Recorded,
    Shortfall,
    accepted,
    describe_process,
    in_tests_alone,
    join,
    match_execution,
    shortfall,
    unknown_execution,
)
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.execution import (
    MOST_JUDGED,
    ChangedCode,
    ChangedFunction,
    ChangeExecution,
    Entered,
    Excuse,
    ExcusedLines,
    Executed,
    ExecutedFunction,
    ExecutedProcess,
    FunctionRun,
    ProcessRole,
)

BASE_COMMIT = "d" * 40
NO_BASE = Recorded(None, why_none=BASE_NOT_RUN)


def found(changed: ChangedCode, record: Executed | None, base: Recorded = NO_BASE, **given: Any) -> ChangeExecution:
    head = Recorded(record, BRIDGE, **given)
    return match_execution(changed, head, base)


def only(changed: ChangedFunction, record: Executed | None, **given: Any) -> FunctionRun:
    (function,) = found(change(changed), record, **given).functions
    return function


def test_an_entered_function_says_which_lines_ran_in_which_processes_and_when() -> None:
    record = ran(TRANSFORM, by=(IN_TRAINER, IN_SECOND), lines={LORA: {45: (), 50: (IN_SECOND,)}})
    function = only(TRANSFORM, record)
    assert (function.entered, function.ran, function.missed) == (Entered.IN_VERL, (44, 50), (45,))
    assert function.processes == ("trainer 0 (train)", "trainer 1 (train)")
    assert (function.process_count, function.first_s) == (2, 31.5)


def test_a_function_that_no_process_entered_misses_all_its_lines() -> None:
    function = only(DROPOUT, ran(TRANSFORM))
    assert (function.entered, function.ran, function.missed) == (Entered.NEVER, (), (72,))
    assert function.condition == "only with lora_dropout above 0"


NO_CHANGED_LINE = {41: (IN_TRAINER,), **dict.fromkeys(TRANSFORM.lines, ())}
BROKEN_TRAINER = TRAINER.model_copy(update={"problem": "Python 3.11 has no sys.monitoring."})
BROKEN_HELPER = TRAINER.model_copy(update={"role": ProcessRole.OTHER, "rank": None, "problem": "killed"})
HELPER_OF_TESTS = TEST.model_copy(update={"role": ProcessRole.OTHER})
ONE_LINE = ChangedFunction(path=LORA, symbol="size", first_line=5, last_line=5, lines=(5,))
SIGNATURE = AT_IMPORT.model_copy(update={"lines": ()})
BY_ANOTHER_RANK = {LORA: dict.fromkeys(TRANSFORM.lines, (IN_SECOND,))}


@pytest.mark.parametrize(
    ("function", "record", "entered"),
    [
        # Of its file nothing ran.
        (GATHER, ran(TRANSFORM), Entered.NEVER),
        (AT_IMPORT, ran(TRANSFORM), Entered.NEVER),
        # The line of a one-line function runs when its module is imported.
        (ONE_LINE, ran(TRANSFORM, lines={LORA: {5: (IN_TRAINER,)}}), Entered.NEVER),
        # Another rank than those that are named may have run the line.
        (TRANSFORM, ran(TRANSFORM, by=(IN_TRAINER,), lines=BY_ANOTHER_RANK), Entered.IN_VERL),
        # A test ran the changed line, and verl another one.
        (TRANSFORM, ran(TRANSFORM, by=(IN_TRAINER, IN_TEST), lines={LORA: {**NO_CHANGED_LINE, 44: (IN_TEST,)}}),
         Entered.BY_TESTS),
        # A record that is not whole does not tell which branch was taken.
        (TRANSFORM, ran(TRANSFORM, lines={LORA: NO_CHANGED_LINE}, processes=(DRIVER, BROKEN_TRAINER, SECOND, TEST)),
         Entered.UNKNOWN),
        # The phase alone tells a process of Bridge tests.
        (TRANSFORM, ran(TRANSFORM, by=(IN_TEST,), processes=(*PROCESSES[:IN_TEST], HELPER_OF_TESTS)), Entered.BY_TESTS),
        # Without a demanded line to have been imported is enough.
        (SIGNATURE, ran(lines={MAPPING: {9: (IN_DRIVER,)}}), Entered.IN_VERL),
        (AT_IMPORT, ran(lines={MAPPING: {9: (IN_DRIVER,)}}), Entered.NEVER),
        # A helper whose record is cut off leaves nothing open.
        (TRANSFORM, ran(processes=(*PROCESSES, BROKEN_HELPER)), Entered.NEVER),
        # A record that states no commit counts.
        (TRANSFORM, ran(TRANSFORM, bridge_commit=""), Entered.IN_VERL),
    ],
)  # fmt: skip
def test_whether_a_function_was_entered(function: ChangedFunction, record: Executed, entered: Entered) -> None:
    assert only(function, record).entered is entered


def test_a_function_whose_changed_lines_no_process_ran_was_not_executed() -> None:
    around = only(TRANSFORM, ran(TRANSFORM, lines={LORA: NO_CHANGED_LINE}))
    assert (around.entered, around.ran, around.missed) == (Entered.AROUND, (), TRANSFORM.lines)
    assert around.processes == ("trainer 0 (train)",)


def test_an_entered_function_of_a_file_without_recorded_lines_is_not_known() -> None:
    record = ran(TRANSFORM)
    bare = record.model_copy(update={"files": tuple(file.model_copy(update={"lines": {}}) for file in record.files)})
    whole = found(change(TRANSFORM, DROPOUT), bare)
    assert [item.entered for item in whole.functions] == [Entered.UNKNOWN, Entered.NEVER]
    assert whole.not_recorded == f"it holds no line of {LORA}"
    # Where no line of it must run, to have entered it is enough.
    assert only(TRANSFORM.model_copy(update={"lines": ()}), bare).entered is Entered.IN_VERL


READ = AT_IMPORT.model_copy(update={"first_line": 3, "lines": (3,), "readers": (12, 13)})


@pytest.mark.parametrize(
    ("lines", "entered"),
    [
        ({3: (IN_DRIVER, IN_TRAINER)}, Entered.AROUND),
        ({3: (IN_DRIVER,), 13: (IN_TRAINER,)}, Entered.IN_VERL),
        ({3: (IN_DRIVER, IN_TEST), 13: (IN_TEST,)}, Entered.BY_TESTS),
        ({3: (IN_DRIVER,), 14: (IN_TRAINER,)}, Entered.AROUND),
        ({13: (IN_TRAINER,)}, Entered.NEVER),
    ],
)
def test_what_an_import_binds_was_executed_when_something_read_it(
    lines: dict[int, tuple[int, ...]], entered: Entered
) -> None:
    function = only(READ, ran(lines={MAPPING: lines}))
    assert (function.entered, function.missed) == (entered, () if entered is Entered.IN_VERL else (3,))


def test_bridge_tests_do_not_execute_anything_in_verl() -> None:
    function = only(TRANSFORM, ran(TRANSFORM, by=(IN_TEST,)))
    assert (function.entered, function.ran, function.missed) == (Entered.BY_TESTS, (), (44, 45, 50))
    assert (function.processes, function.process_count) == ((), 0)


def test_what_both_executed_ran_in_verl() -> None:
    assert only(TRANSFORM, ran(TRANSFORM, by=(IN_TEST, IN_DRIVER))).processes == ("driver (train)",)


def test_two_functions_of_one_name_differ_by_their_lines() -> None:
    setter = TRANSFORM.model_copy(update={"first_line": 62, "last_line": 66, "lines": (64,)})
    assert [item.entered for item in found(change(TRANSFORM, setter), ran(TRANSFORM)).functions] == [
        Entered.IN_VERL,
        Entered.NEVER,
    ]


def test_module_statements_count_when_a_line_ran_at_import() -> None:
    function = only(AT_IMPORT, ran(lines={MAPPING: {3: (IN_DRIVER, IN_TRAINER)}}))
    assert (function.entered, function.ran, function.missed) == (Entered.IN_VERL, (3,), (200,))
    assert (function.process_count, function.first_s) == (2, None)


def test_only_what_verl_reaches_and_what_does_something_is_demanded() -> None:
    unreached = TRANSFORM.model_copy(update={"reached": False})
    excused = TRANSFORM.model_copy(update={"lines": (), "excused": (ExcusedLines(excuse=Excuse.IDLE, lines=(44,)),)})
    assert found(change(unreached, excused), ran(TRANSFORM)).functions == ()


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (None, NO_RECORD),
        (Executed(problem="the interpreter is Python 3.11."), "the interpreter is Python 3.11"),
        (ran(bridge_commit="e" * 40), f"executed.json is of {'e' * 12}, and the run of {'a' * 12}"),
        (ran(processes=(TEST,)), "no process of a trainer was recorded"),
        (ran(processes=()), "no process of a trainer was recorded"),
        (
            ran(processes=(BROKEN_TRAINER,)),
            "the record of trainer 0 (train) is not whole: Python 3.11 has no sys.monitoring",
        ),
        (
            ran(GATHER, cut=("8,000 files more were left out.",)),
            "the record is not whole: 8,000 files more were left out",
        ),
        (Executed(problem="x" * 400), f"{'x' * 296} ..."),
    ],
)
def test_where_the_record_does_not_tell_nothing_is_known(record: Executed | None, why: str) -> None:
    assert found(change(TRANSFORM), record).not_recorded == why
    assert only(TRANSFORM, record).entered is Entered.UNKNOWN


def test_what_was_left_out_leaves_nothing_open_in_a_file_that_is_recorded() -> None:
    record = ran(TRANSFORM, cut=("8,000 files more were left out.",))
    whole = found(change(TRANSFORM, DROPOUT), record)
    assert [item.entered for item in whole.functions] == [Entered.IN_VERL, Entered.NEVER]
    assert whole.not_recorded == ""


def test_what_is_in_a_record_that_is_not_whole_still_ran() -> None:
    record = ran(TRANSFORM, by=(0,), processes=(TRAINER, BROKEN_TRAINER))
    assert [item.entered for item in found(change(TRANSFORM, DROPOUT), record).functions] == [
        Entered.IN_VERL,
        Entered.UNKNOWN,
    ]


def test_removed_code_is_matched_with_the_run_on_the_merge_base() -> None:
    base = Recorded(ran(REMOVED, bridge_commit=BASE_COMMIT), BASE_COMMIT)
    head = ran(TRANSFORM, REMOVED)
    assert [item.entered for item in found(change(REMOVED, TRANSFORM), head, base).functions] == [
        Entered.IN_VERL,
        Entered.IN_VERL,
    ]
    other = Recorded(ran(bridge_commit=BASE_COMMIT), BASE_COMMIT)
    assert only(REMOVED, head, base=other).entered is Entered.NEVER
    assert only(REMOVED, head).entered is Entered.UNKNOWN
    assert found(change(REMOVED), head).base_not_recorded == BASE_NOT_RUN


def test_what_the_change_replaces_is_looked_for_where_the_merge_base_was_recorded() -> None:
    replaced = REMOVED.model_copy(
        update={"symbol": "LoRA.transform", "first_line": 41, "last_line": 58, "lines": (46,)}
    )
    changed = change(TRANSFORM, REMOVED, earlier=(REMOVED, replaced))
    head, base = ran(TRANSFORM), ran(replaced, bridge_commit=BASE_COMMIT)
    looked_for = found(changed, head, Recorded(base, BASE_COMMIT)).functions
    assert [(item.name, item.entered) for item in looked_for] == [
        ("LoRA.transform", Entered.IN_VERL),
        ("LoRA.transform", Entered.IN_VERL),
        ("LoRA.old", Entered.NEVER),
    ]
    # Without such a run nothing is known of it, and the function on the head stands for it.
    assert [item.name for item in found(changed, head).functions] == ["LoRA.transform", "LoRA.old"]


def test_under_a_declared_patch_the_name_alone_tells() -> None:
    moved = TRANSFORM.model_copy(update={"first_line": 140, "last_line": 160, "lines": (144,)})
    assert only(TRANSFORM, ran(moved)).entered is Entered.NEVER
    function = only(TRANSFORM, ran(moved), patched=frozenset({LORA}))
    assert (function.entered, function.missed) == (Entered.IN_VERL, ())
    text = f"{LORA}: a declared patch changes it as well, so its lines were not compared"
    assert found(change(TRANSFORM), ran(moved), patched=frozenset({LORA})).unread == (text,)
    twice = ran(moved, moved.model_copy(update={"first_line": 170, "last_line": 180}))
    assert only(TRANSFORM, twice, patched=frozenset({LORA})).entered is Entered.NEVER


@pytest.mark.parametrize("first_s", [{99: 1.0}, {-1: 1.0}, {}])
def test_a_process_that_is_not_listed_executed_nothing(first_s: dict[int, float]) -> None:
    record = ran(TRANSFORM)
    entry = ExecutedFunction(symbol="LoRA.transform", line=40, first_s=first_s)
    file = record.files[0].model_copy(update={"functions": (entry,), "lines": {}})
    assert only(TRANSFORM, record.model_copy(update={"files": (file,)})).entered is Entered.NEVER
    lines = {MAPPING: {3: tuple(first_s)}}
    assert only(AT_IMPORT, ran(lines=lines)).entered is Entered.NEVER


@pytest.mark.parametrize("when", [math.nan, math.inf, -1.0])
def test_a_time_that_no_clock_shows_is_not_known(when: float) -> None:
    function = only(TRANSFORM, ran(TRANSFORM, at=when))
    assert (function.entered, function.first_s) == (Entered.IN_VERL, None)


def test_a_huge_change_is_cut_in_the_order_of_its_places() -> None:
    many = [TRANSFORM.model_copy(update={"first_line": line, "last_line": line + 1}) for line in range(1, 800)]
    whole = found(change(*reversed(many), left_out=7, unread={"b.cu": "not Python", "a.cu": "not Python"}), None)
    assert (len(whole.functions), whole.left_out) == (MOST_JUDGED, 7 + 799 - MOST_JUDGED)
    assert [function.first_line for function in whole.functions] == list(range(1, MOST_JUDGED + 1))
    assert whole.unread == ("a.cu: not Python", "b.cu: not Python")


def test_many_processes_are_counted_and_three_named() -> None:
    ranks = tuple(TRAINER.model_copy(update={"rank": rank}) for rank in range(5))
    function = only(TRANSFORM, ran(TRANSFORM, by=(4, 3, 2, 1, 0), processes=ranks))
    assert (function.process_count, function.processes) == (
        5,
        ("trainer 0 (train)", "trainer 1 (train)", "trainer 2 (train)"),
    )


def test_a_process_without_a_phase_is_named_too() -> None:
    process = ExecutedProcess(phase="", role=ProcessRole.OTHER, title="", pid=1, python="", began_s=0.0)
    assert describe_process(process) == "other (no phase)"


def test_a_record_is_whole_where_nothing_is_missing_from_it() -> None:
    broken = TRAINER.model_copy(update={"problem": "the disk is full"})
    assert ran().is_whole
    for given in ({"problem": "switched off"}, {"cut": ("2 files more",)}, {"processes": (TRAINER, broken)}):
        assert not ran().model_copy(update=given).is_whole


BASE = "d" * 40
BLOCK, ALLOW = ExecutionRules(), ExecutionRules(unexecuted=Demand.ALLOW, unrecorded=Demand.ALLOW)
OLD = Executed(problem="the run's Python is 3.11")


def of(*planned: ChangedFunction, record: Executed | None = None, base: Executed | None = None) -> ChangeExecution:
    of_base = Recorded(base, BASE) if base else Recorded(None, why_none=BASE_NOT_RUN)
    return match_execution(change(*planned), Recorded(record or ran(), BRIDGE), of_base)


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
    first = match_execution(change(unread={"a": "b"}, left_out=3), Recorded(ran()), Recorded(None))
    second = match_execution(change(unread={"a": "b", "c": "d"}, left_out=2), Recorded(ran()), Recorded(None))
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
CUT = match_execution(change(DROPOUT, left_out=1), Recorded(ran(), BRIDGE), Recorded(None))


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


NEVER = f"1 changed function in reach never ran: {LORA}:70 LoRA.drop (only with lora_dropout above 0)"
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
         f"2 changed functions in reach never ran: {MAPPING}:10 gather, {LORA}:40 LoRA.transform", ""),
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
