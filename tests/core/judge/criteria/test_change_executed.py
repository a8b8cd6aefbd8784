"""A run counts for a change only if it executed some of it, and says what it left out."""

import pytest

from tests.core.builders import BRIDGE, bridge_error, cut_facts, ended, judged, make_facts, make_job, step_line
from tests.core.executions import (
    AT_IMPORT,
    DROPOUT,
    GATHER,
    IN_SECOND,
    IN_TEST,
    IN_TRAINER,
    LORA,
    MAPPING,
    REMOVED,
    TRANSFORM,
    change,
    ran,
)
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict, verdict_json
from verl_e2e.core.model.changed_code import ChangedCode
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.executed import Executed
from verl_e2e.core.model.execution import Entered
from verl_e2e.core.model.jobs import Patch
from verl_e2e.core.model.outcome import Outcome, Result
from verl_e2e.core.model.record import EndReason, TestCase
from verl_e2e.core.model.related import RelatedRun, Role
from verl_e2e.core.model.stages import Stage

BASE = "d" * 40
NEVER = "the run never entered the changed code: "


def of(changed: ChangedCode, executed: Executed | None, **given: object) -> Verdict:
    return judged(
        given.pop("facts", None),  # type: ignore[arg-type]
        job=make_job(changed=changed, **given.pop("job", {})),  # type: ignore[arg-type]
        executed=executed,
        **given,
    )


def item_of(verdict: Verdict) -> Evidence | None:
    return next((item for item in verdict.evidence if item.criterion == Criterion.CHANGE_EXECUTED), None)


def limitations(verdict: Verdict, start: str) -> list[str]:
    return [text for text in verdict.limitations if text.startswith(start)]


def test_a_job_that_is_for_no_change_is_not_asked() -> None:
    verdict = judged(executed=ran(TRANSFORM))
    assert (item_of(verdict), verdict.execution, verdict.result) == (None, None, Result.PASS)


def test_a_run_that_executed_all_of_the_change_passes_and_says_where() -> None:
    verdict = of(change(TRANSFORM, GATHER), ran(TRANSFORM, GATHER, by=(IN_TRAINER, IN_SECOND)))
    item = item_of(verdict)
    assert (verdict.result, item is not None and item.state) == (Result.PASS, State.MET)
    assert item is not None
    assert item.summary.startswith(f"2 of 2 changed functions ran: {MAPPING}:10 gather, ")
    assert (item.file, item.excerpt) == (
        "executed.json",
        f"{MAPPING}:10 gather: entered by trainer 0 (train), trainer 1 (train), first after 31.5 s",
    )
    assert item in verdict.key_lines
    assert not limitations(verdict, "Changed")


def test_a_run_that_only_went_around_the_changed_lines_is_blocked() -> None:
    record = ran(TRANSFORM, lines={LORA: {41: (IN_TRAINER,), **dict.fromkeys(TRANSFORM.lines, ())}})
    verdict = of(change(TRANSFORM), record)
    assert (verdict.result, verdict.decided_by) == (Result.BLOCKED, Criterion.CHANGE_EXECUTED)
    assert verdict.cause == f"{NEVER}{LORA}:40 LoRA.transform (entered, but none of its changed lines ran)"


def test_a_constant_that_nothing_read_blocks_the_run() -> None:
    constant = AT_IMPORT.model_copy(update={"first_line": 3, "lines": (3,), "readers": (12,)})
    verdict = of(change(constant), ran(lines={MAPPING: {3: (IN_TRAINER,)}}))
    assert (verdict.result, verdict.decided_by) == (Result.BLOCKED, Criterion.CHANGE_EXECUTED)
    assert verdict.cause == f"{NEVER}{MAPPING}:3 code at import (it ran, but no function that reads what it binds did)"
    item = item_of(verdict)
    assert item is not None
    assert item.excerpt.startswith(f"{MAPPING}:3 code at import: no function that reads it in 4 processes; ")
    assert of(change(constant), ran(lines={MAPPING: {3: (IN_TRAINER,), 12: (IN_SECOND,)}})).result is Result.PASS


def test_code_at_import_is_not_enough_where_a_function_is_changed_too() -> None:
    verdict = of(change(AT_IMPORT, TRANSFORM), ran(lines={MAPPING: {3: (IN_TRAINER,)}}))
    assert verdict.result is Result.BLOCKED
    assert verdict.cause == f"{NEVER}{LORA}:40 LoRA.transform"
    assert of(change(AT_IMPORT), ran(lines={MAPPING: {3: (IN_TRAINER,)}})).result is Result.PASS


def test_a_run_that_executed_a_part_passes_and_lists_what_it_did_not() -> None:
    record = ran(TRANSFORM, lines={LORA: {45: (IN_TEST,)}})
    verdict = of(change(TRANSFORM, DROPOUT, GATHER), record)
    assert verdict.result is Result.PASS
    assert limitations(verdict, "Changed") == [
        f"Changed functions that the run did not execute: {MAPPING}:10 gather, "
        f"{LORA}:70 LoRA.drop (only with lora_dropout above 0).",
        f"Changed lines that did not run: {LORA}:45.",
    ]
    assert f"{LORA}:40 LoRA.transform" in verdict.shows


def test_another_job_that_entered_them_shows_them() -> None:
    verdict = of(change(TRANSFORM, DROPOUT), ran(TRANSFORM))
    other = of(change(TRANSFORM, DROPOUT), ran(DROPOUT))
    at = verdict.limitations.index(limitations(verdict, "Changed functions")[0])
    assert set(verdict.left_open[at]) <= set(other.shows)


def test_of_more_than_are_listed_no_job_is_said_to_show_them() -> None:
    many = [DROPOUT.model_copy(update={"first_line": line, "last_line": line}) for line in range(100, 120)]
    verdict = of(change(TRANSFORM, *many), ran(TRANSFORM))
    (text,) = limitations(verdict, "Changed functions")
    assert text.endswith(" and 8 more.")
    assert verdict.left_open[verdict.limitations.index(text)] == ()


def test_a_run_that_entered_none_of_it_is_blocked_however_green_the_rest() -> None:
    verdict = of(change(DROPOUT, GATHER), ran(TRANSFORM))
    assert (verdict.result, verdict.stage, verdict.decided_by) == (
        Result.BLOCKED,
        Stage.TRAIN_STEP,
        Criterion.CHANGE_EXECUTED,
    )
    assert verdict.never_entered
    places = f"{MAPPING}:10 gather, {LORA}:70 LoRA.drop (only with lora_dropout above 0)"
    assert verdict.cause == f"{NEVER}{places}"
    assert verdict.sentence == (
        f"Level 0 blocked: {NEVER}{places}; the run was good otherwise; not evidence against the Bridge change"
    )
    assert "policy" in verdict.followups[0]
    run = next(row for row in verdict.deliverables if row.name == "verl Megatron backend run")
    assert run.outcome is Outcome.BLOCKED
    assert verdict.key_lines[-1].excerpt.endswith("in none of 4 processes; 1 functions of the files ran")
    assert verdict.shows == ()


def test_what_bridge_tests_alone_executed_does_not_satisfy_the_criterion() -> None:
    verdict = of(change(TRANSFORM), ran(TRANSFORM, by=(IN_TEST,)))
    assert verdict.never_entered
    assert verdict.key_lines[-1].excerpt.endswith(", 1 of the changed ones only by Bridge tests")
    assert limitations(verdict, "Executed by") == [
        f"Executed by Bridge tests alone, not in verl: {LORA}:40 LoRA.transform."
    ]


@pytest.mark.parametrize(
    ("given", "decided_by"),
    [
        ({"tests": (TestCase(name="a.test_b", outcome="failed"),)}, Criterion.BRIDGE_TESTS),
        ({"facts": make_facts(steps=(step_line(grad_norm=0.0),))}, Criterion.GRADIENTS),
        ({"facts": cut_facts(Stage.PEFT, errors=(bridge_error(),)), "events": ended(exit_code=1)},
         Criterion.NO_EXCEPTION),
        ({"events": ended(EndReason.STALLED, None)}, None),
        ({"job": {"require_bridge_checks": True}, "tests": None}, Criterion.BRIDGE_TESTS),
        ({"missing": ("config.json: not there",)}, None),
    ],
)  # fmt: skip
def test_a_run_that_did_not_pass_for_another_reason_keeps_that_reason(
    given: dict[str, object], decided_by: Criterion | None
) -> None:
    verdict = of(change(DROPOUT), ran(TRANSFORM), **given)
    assert (verdict.result is Result.PASS, verdict.decided_by) == (False, decided_by)
    assert NEVER not in verdict.cause
    assert not verdict.never_entered


@pytest.mark.parametrize(
    ("executed", "why"),
    [
        (None, "the folder holds no executed.json"),
        (Executed(problem="the run's Python is 3.11"), "the run's Python is 3.11"),
    ],
)
def test_without_a_record_the_run_passes_with_that_limitation(executed: Executed | None, why: str) -> None:
    verdict = of(change(TRANSFORM), executed)
    item = item_of(verdict)
    assert (verdict.result, item is not None and item.state) == (Result.PASS, State.WAIVED)
    assert f"Execution not recorded: {why}." in verdict.limitations


def test_what_a_record_that_is_not_whole_does_not_hold_is_not_known() -> None:
    verdict = of(change(TRANSFORM, GATHER), ran(TRANSFORM, cut=("too much.",)))
    assert verdict.result is Result.PASS
    assert limitations(verdict, "Whether these") == [
        f"Whether these changed functions ran is not known, the record is not whole: too much: {MAPPING}:10 gather."
    ]


def on_merge_base() -> tuple[RelatedRun, ...]:
    run = RelatedRun(
        role=Role.MERGE_BASE,
        job_id="0-lora-ddp",
        job_digest="f" * 64,
        bridge_commit=BASE,
        folder="related/merge_base",
        result=Result.PASS,
    )
    return (run,)


def test_removed_code_is_a_limitation_where_the_merge_base_was_not_run() -> None:
    verdict = of(change(REMOVED), ran(TRANSFORM))
    text = "Whether the removed code ran is not known: the job was not run on the merge base."
    assert (verdict.result, limitations(verdict, "Whether the removed")) == (Result.PASS, [text])


def test_removed_code_that_the_merge_base_never_entered_blocks_too() -> None:
    base = ran(bridge_commit=BASE)
    verdict = of(change(REMOVED), ran(TRANSFORM), related=on_merge_base(), base_executed=base)
    assert verdict.cause == f"{NEVER}{LORA}:90 LoRA.old (before the change)"
    conditional = REMOVED.model_copy(update={"condition": "only for experts"})
    verdict = of(change(conditional), ran(TRANSFORM), related=on_merge_base(), base_executed=base)
    assert verdict.cause == f"{NEVER}{LORA}:90 LoRA.old (before the change, only for experts)"


def test_removed_code_that_ran_on_the_merge_base_was_executed() -> None:
    base = ran(REMOVED, bridge_commit=BASE)
    verdict = of(change(REMOVED, TRANSFORM), ran(), related=on_merge_base(), base_executed=base)
    assert verdict.result is Result.PASS
    assert verdict.execution is not None
    assert [item.entered for item in verdict.execution.functions] == [Entered.NEVER, Entered.IN_VERL]


def test_removed_code_that_did_not_run_there_is_a_limitation_of_a_run_that_executed_the_rest() -> None:
    base = ran(bridge_commit=BASE)
    verdict = of(change(REMOVED, TRANSFORM), ran(TRANSFORM), related=on_merge_base(), base_executed=base)
    start = "Code that the change takes out and that did not run on the merge base either"
    text = f"{start}: {LORA}:90 LoRA.old (before the change)."
    assert limitations(verdict, "Code that") == [text]


def test_a_merge_base_whose_folder_has_no_record_leaves_it_open() -> None:
    verdict = of(change(REMOVED), ran(TRANSFORM), related=on_merge_base())
    text = "Whether the removed code ran is not known: the folder holds no executed.json."
    assert limitations(verdict, "Whether the removed") == [text]


def test_files_without_known_functions_are_named() -> None:
    verdict = of(change(unread={"setup.cfg": "not Python"}), ran(TRANSFORM))
    assert limitations(verdict, "Which") == ["Which functions the change touches is not known: setup.cfg: not Python."]
    verdict = of(change(left_out=9), ran(TRANSFORM))
    assert limitations(verdict, "Which") == [
        "Which functions the change touches is not known: 9 functions are not listed."
    ]
    verdict = of(change(TRANSFORM, unread={"setup.cfg": "not Python"}, left_out=2), ran(TRANSFORM))
    assert limitations(verdict, "Changed files") == [
        "Changed files whose functions are not known: setup.cfg: not Python."
    ]
    assert limitations(verdict, "2 more") == ["2 more changed functions were not compared with what ran."]


def test_a_change_that_no_run_has_to_execute_is_met_and_says_so() -> None:
    verdict = of(change(TRANSFORM.model_copy(update={"reached": False})), ran())
    item = item_of(verdict)
    assert item is not None
    assert (verdict.result, item.state) == (Result.PASS, State.MET)
    assert item.summary.startswith("nothing of the change has to be executed")


def test_a_patched_file_is_matched_by_name() -> None:
    patch = Patch(
        name="p", repository="bridge", file=LORA, substitutions=(), before="1" * 64, after="2" * 64, reason="needed"
    )
    moved = TRANSFORM.model_copy(update={"first_line": 140, "last_line": 150})
    assert of(change(TRANSFORM), ran(moved), job={"patches": (patch,)}).result is Result.PASS


def test_many_processes_are_counted_in_the_excerpt() -> None:
    record = ran(TRANSFORM)
    ranks = tuple(record.processes[IN_TRAINER].model_copy(update={"rank": rank}) for rank in range(8))
    item = item_of(of(change(TRANSFORM), ran(TRANSFORM, by=tuple(range(8)), processes=ranks)))
    assert item is not None
    assert "trainer 2 (train) and 5 more, first after" in item.excerpt


def test_the_verdict_carries_what_ran_and_is_read_back() -> None:
    verdict = of(change(TRANSFORM, DROPOUT), ran(TRANSFORM))
    text = verdict_json(verdict)
    assert '"schema": 2' in text
    again = read_verdict(text)
    assert again is not None
    assert again.execution == verdict.execution
    assert '"missed": "72"' in text


def test_the_verdict_of_an_earlier_version_has_none() -> None:
    text = verdict_json(judged()).replace('"execution": null,', "")
    again = read_verdict(text)
    assert again is not None
    assert (again.execution, again.never_entered) == (None, False)
    assert BRIDGE in text
