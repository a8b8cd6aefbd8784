"""A run counts for a change only if it executed some of it, and says what it left out."""

import pytest

from tests.core.builders import (
    BRIDGE,
    bridge_error,
    cut_facts,
    ended,
    judged,
    make_facts,
    make_job,
    step_line,
)
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
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.execution import ChangedCode, Entered, Executed
from verl_e2e.core.model.jobs import Patch
from verl_e2e.core.model.outcome import Outcome, Result, Stage
from verl_e2e.core.model.record import EndReason, TestCase
from verl_e2e.core.model.related import RelatedRun, Role

BASE = "d" * 40
NEVER = "the run never entered the changed code: "
CONSTANT = AT_IMPORT.model_copy(update={"first_line": 3, "lines": (3,), "readers": (12,)})
AROUND = ran(TRANSFORM, lines={LORA: {41: (IN_TRAINER,), **dict.fromkeys(TRANSFORM.lines, ())}})
IMPORTED = ran(lines={MAPPING: {3: (IN_TRAINER,)}})
ON_BASE = RelatedRun(
    role=Role.MERGE_BASE,
    job_id="0-lora-ddp",
    job_digest="f" * 64,
    bridge_commit=BASE,
    folder="related/merge_base",
    result=Result.PASS,
)


def of(changed: ChangedCode, executed: Executed | None, **given: object) -> Verdict:
    return judged(
        given.pop("facts", None),  # type: ignore[arg-type]
        job=make_job(changed=changed, **given.pop("job", {})),  # type: ignore[arg-type]
        executed=executed,
        **given,
    )


def beside_base(changed: ChangedCode, executed: Executed, base: Executed | None) -> Verdict:
    return of(changed, executed, related=(ON_BASE,), base_executed=base)


def item_of(verdict: Verdict) -> Evidence:
    (item,) = (item for item in verdict.evidence if item.criterion == Criterion.CHANGE_EXECUTED)
    return item


def limitations(verdict: Verdict, start: str) -> list[str]:
    return [text for text in verdict.limitations if text.startswith(start)]


def test_a_job_that_is_for_no_change_is_not_asked() -> None:
    verdict = judged(executed=ran(TRANSFORM))
    assert Criterion.CHANGE_EXECUTED not in {item.criterion for item in verdict.evidence}
    assert (verdict.execution, verdict.result) == (None, Result.PASS)


def test_a_run_that_executed_all_of_the_change_passes_and_says_where() -> None:
    verdict = of(change(TRANSFORM, GATHER), ran(TRANSFORM, GATHER, by=(IN_TRAINER, IN_SECOND)))
    item = item_of(verdict)
    assert (verdict.result, item.state) == (Result.PASS, State.MET)
    assert item.summary.startswith(f"2 of 2 changed functions ran: {MAPPING}:10 gather, ")
    entered = "entered by trainer 0 (train), trainer 1 (train), first after 31.5 s"
    assert (item.file, item.excerpt) == ("executed.json", f"{MAPPING}:10 gather: {entered}")
    assert item in verdict.key_lines
    assert not limitations(verdict, "Changed")


@pytest.mark.parametrize(
    ("changed", "record", "what", "excerpt"),
    [
        (
            change(TRANSFORM),
            AROUND,
            f"{LORA}:40 LoRA.transform (entered, but none of its changed lines ran)",
            "none of its changed lines in 4 processes; 1 functions of the files ran",
        ),
        (
            change(CONSTANT),
            IMPORTED,
            f"{MAPPING}:3 code at import (it ran, but no function that reads what it binds did)",
            "no function that reads it in 4 processes; 0 functions of the files ran",
        ),
        (
            change(AT_IMPORT, TRANSFORM),
            IMPORTED,
            f"{LORA}:40 LoRA.transform",
            "in none of 4 processes; 0 functions of the files ran",
        ),
        (
            change(DROPOUT, GATHER),
            ran(TRANSFORM),
            f"{MAPPING}:10 gather, {LORA}:70 LoRA.drop (only with lora_dropout above 0)",
            "in none of 4 processes; 1 functions of the files ran",
        ),
        (
            change(TRANSFORM),
            ran(TRANSFORM, by=(IN_TEST,)),
            f"{LORA}:40 LoRA.transform",
            "in none of 4 processes; 1 functions of the files ran, 1 of the changed ones only by Bridge tests",
        ),
    ],
)
def test_a_run_that_entered_none_of_it_is_blocked_however_green_the_rest(
    changed: ChangedCode, record: Executed, what: str, excerpt: str
) -> None:
    verdict = of(changed, record)
    assert (verdict.result, verdict.stage, verdict.decided_by) == (
        Result.BLOCKED,
        Stage.TRAIN_STEP,
        Criterion.CHANGE_EXECUTED,
    )
    assert (verdict.never_entered, verdict.shows) == (True, ())
    assert verdict.sentence == (
        f"Level 0 blocked: {NEVER}{what}; the run was good otherwise; not evidence against the Bridge change"
    )
    assert verdict.key_lines[-1].excerpt.endswith(excerpt)
    assert "policy" in verdict.followups[0]
    run = next(row for row in verdict.deliverables if row.name == "verl Megatron backend run")
    assert run.outcome is Outcome.BLOCKED


@pytest.mark.parametrize(
    ("changed", "record"),
    [
        (change(CONSTANT), ran(lines={MAPPING: {3: (IN_TRAINER,), 12: (IN_SECOND,)}})),
        (change(AT_IMPORT), IMPORTED),
    ],
)
def test_code_at_import_is_enough_where_no_function_is_changed(changed: ChangedCode, record: Executed) -> None:
    assert of(changed, record).result is Result.PASS


def test_a_run_that_executed_a_part_passes_and_lists_what_it_did_not() -> None:
    record = ran(TRANSFORM, lines={LORA: {45: (IN_TEST,)}})
    verdict = of(change(TRANSFORM, DROPOUT, GATHER), record)
    assert verdict.result is Result.PASS
    functions, lines = limitations(verdict, "Changed")
    assert functions == (
        f"Changed functions that the run did not execute: {MAPPING}:10 gather, "
        f"{LORA}:70 LoRA.drop (only with lora_dropout above 0)."
    )
    assert lines == f"Changed lines that did not run: {LORA}:45."
    # Another job that entered them shows them.
    other = of(change(TRANSFORM, DROPOUT, GATHER), ran(DROPOUT, GATHER))
    assert set(verdict.left_open[verdict.limitations.index(functions)]) <= set(other.shows)


def test_of_more_than_are_listed_no_job_is_said_to_show_them() -> None:
    many = [DROPOUT.model_copy(update={"first_line": line, "last_line": line}) for line in range(100, 120)]
    verdict = of(change(TRANSFORM, *many), ran(TRANSFORM))
    (text,) = limitations(verdict, "Changed functions")
    assert text.endswith(" and 8 more.")
    assert verdict.left_open[verdict.limitations.index(text)] == ()


@pytest.mark.parametrize(
    ("given", "decided_by"),
    [
        ({"tests": (TestCase(name="a.test_b", outcome="failed"),)}, Criterion.BRIDGE_TESTS),
        ({"facts": make_facts(steps=(step_line(grad_norm=0.0),))}, Criterion.GRADIENTS),
        (
            {"facts": cut_facts(Stage.PEFT, errors=(bridge_error(),)), "events": ended(exit_code=1)},
            Criterion.NO_EXCEPTION,
        ),
        ({"events": ended(EndReason.STALLED, None)}, None),
        ({"job": {"require_bridge_checks": True}, "tests": None}, Criterion.BRIDGE_TESTS),
        ({"missing": ("config.json: not there",)}, None),
    ],
)
def test_a_run_that_did_not_pass_for_another_reason_keeps_that_reason(
    given: dict[str, object], decided_by: Criterion | None
) -> None:
    verdict = of(change(DROPOUT), ran(TRANSFORM), **given)
    assert (verdict.result is Result.PASS, verdict.decided_by) == (False, decided_by)
    assert NEVER not in verdict.cause
    assert not verdict.never_entered


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (of(change(TRANSFORM), None), "Execution not recorded: the folder holds no executed.json."),
        (
            of(change(TRANSFORM), Executed(problem="the run's Python is 3.11")),
            "Execution not recorded: the run's Python is 3.11.",
        ),
        (
            of(change(TRANSFORM, GATHER), ran(TRANSFORM, cut=("too much.",))),
            "Whether these changed functions ran is not known, the record is not whole: too much: "
            f"{MAPPING}:10 gather.",
        ),
        (
            of(change(REMOVED), ran(TRANSFORM)),
            "Whether the removed code ran is not known: the job was not run on the merge base.",
        ),
        (
            beside_base(change(REMOVED), ran(TRANSFORM), None),
            "Whether the removed code ran is not known: the folder holds no executed.json.",
        ),
        (
            beside_base(change(REMOVED, TRANSFORM), ran(TRANSFORM), ran(bridge_commit=BASE)),
            "Code that the change takes out and that did not run on the merge base either: "
            f"{LORA}:90 LoRA.old (before the change).",
        ),
        (
            of(change(unread={"setup.cfg": "not Python"}), ran(TRANSFORM)),
            "Which functions the change touches is not known: setup.cfg: not Python.",
        ),
        (
            of(change(left_out=9), ran(TRANSFORM)),
            "Which functions the change touches is not known: 9 functions are not listed.",
        ),
        (
            of(change(TRANSFORM, unread={"setup.cfg": "not Python"}), ran(TRANSFORM)),
            "Changed files whose functions are not known: setup.cfg: not Python.",
        ),
        (
            of(change(TRANSFORM, left_out=2), ran(TRANSFORM)),
            "2 more changed functions were not compared with what ran.",
        ),
    ],
)
def test_what_is_not_known_of_a_run_is_a_limitation(verdict: Verdict, text: str) -> None:
    assert text in verdict.limitations
    assert verdict.result is Result.PASS


def test_removed_code_that_the_merge_base_never_entered_blocks_too() -> None:
    base = ran(bridge_commit=BASE)
    for condition, shown in (("", ""), ("only for experts", ", only for experts")):
        removed = REMOVED.model_copy(update={"condition": condition})
        verdict = beside_base(change(removed), ran(TRANSFORM), base)
        assert verdict.cause == f"{NEVER}{LORA}:90 LoRA.old (before the change{shown})"
    verdict = beside_base(change(REMOVED, TRANSFORM), ran(), ran(REMOVED, bridge_commit=BASE))
    assert verdict.result is Result.PASS
    assert verdict.execution is not None
    assert [item.entered for item in verdict.execution.functions] == [Entered.NEVER, Entered.IN_VERL]


def test_what_bridge_tests_alone_executed_is_named() -> None:
    verdict = of(change(TRANSFORM), ran(TRANSFORM, by=(IN_TEST,)))
    text = f"Executed by Bridge tests alone, not in verl: {LORA}:40 LoRA.transform."
    assert limitations(verdict, "Executed by") == [text]


def test_a_change_that_no_run_has_to_execute_is_met_and_says_so() -> None:
    verdict = of(change(TRANSFORM.model_copy(update={"reached": False})), ran())
    assert (verdict.result, item_of(verdict).state) == (Result.PASS, State.MET)
    assert item_of(verdict).summary.startswith("nothing of the change has to be executed")


def test_a_patched_file_is_matched_by_name() -> None:
    patch = Patch(
        name="p", repository="bridge", file=LORA, substitutions=(), before="1" * 64, after="2" * 64, reason="needed"
    )
    moved = TRANSFORM.model_copy(update={"first_line": 140, "last_line": 150})
    assert of(change(TRANSFORM), ran(moved), job={"patches": (patch,)}).result is Result.PASS


def test_many_processes_are_counted_in_the_excerpt() -> None:
    ranks = tuple(ran(TRANSFORM).processes[IN_TRAINER].model_copy(update={"rank": rank}) for rank in range(8))
    item = item_of(of(change(TRANSFORM), ran(TRANSFORM, by=tuple(range(8)), processes=ranks)))
    assert "trainer 2 (train) and 5 more, first after" in item.excerpt


def test_the_verdict_carries_what_ran_and_is_read_back() -> None:
    verdict = of(change(TRANSFORM, DROPOUT), ran(TRANSFORM))
    text = verdict_json(verdict)
    again = read_verdict(text)
    assert again is not None
    assert again.execution == verdict.execution
    assert ('"schema": 2' in text, '"missed": "72"' in text, BRIDGE in text) == (True, True, True)
