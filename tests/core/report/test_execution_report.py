"""What ran of a change, on every card and check: one line, a row for each function, and the result of the whole."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import BRIDGE, make_job
from tests.core.executions import (
    AT_IMPORT,
    DROPOUT,
    GATHER,
    IN_TEST,
    LORA,
    MAPPING,
    REMOVED,
    TRANSFORM,
    change,
    ran,
    verdict_on,
)
from tests.core.pulls.entries import POLICY, target_state
from tests.core.pulls.test_executed_change import BOTH, OLD, PART, SMOKE, UNENTERED, WANTED, ended
from verl_e2e.core.judge.execution import BASE_NOT_RUN, Recorded, execution_line, execution_rows, join, match_execution
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.execution import ChangedFunction, ChangeExecution, Executed
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.report.checks import CheckText, gate_text, job_check_text
from verl_e2e.core.report.pull_card import render_pull_card
from verl_e2e.core.report.run_card import (
    Card,
    NotRun,
    card_json,
    followups_of,
    render_markdown,
    render_text,
    result_of,
    sentence_of,
)

BASE = "d" * 40
RULES = ExecutionRules()
ALLOWING = ExecutionRules(unexecuted=Demand.ALLOW, unrecorded=Demand.ALLOW)


def of(
    *planned: ChangedFunction, record: Executed | None = None, base: Executed | None = None, **given: Any
) -> ChangeExecution:
    of_base = Recorded(base, BASE) if base else Recorded(None, why_none=BASE_NOT_RUN)
    return match_execution(change(*planned, **given), Recorded(record or ran(), BRIDGE), of_base)


LINES = {LORA: {45: ()}}
PARTLY = of(TRANSFORM, DROPOUT, GATHER, record=ran(TRANSFORM, GATHER, lines=LINES))
UNREAD = of(
    AT_IMPORT.model_copy(update={"first_line": 3, "lines": (3,), "readers": (12,)}),
    record=ran(lines={MAPPING: {3: (1,)}}),
)
SIGNATURE = DROPOUT.model_copy(update={"lines": ()})


@pytest.mark.parametrize(
    ("executions", "line"),
    [
        ({}, ""),
        ({"0": PARTLY}, f"2 of 3 functions, 4 of 6 lines (0); never executed: {LORA}:45, {LORA}:72"),
        ({"0": PARTLY, "4": of(DROPOUT, record=ran(DROPOUT))},
         f"3 of 3 functions, 5 of 6 lines (0, 4); never executed: {LORA}:45"),
        ({"0": of(SIGNATURE)}, f"0 of 1 functions, 0 of 0 lines; never executed: {LORA}:70"),
        ({"0": of(TRANSFORM, record=ran(TRANSFORM))}, "1 of 1 functions, 3 of 3 lines (0)"),
        ({"0": of(DROPOUT, record=ran(DROPOUT, by=(IN_TEST,)))},
         f"0 of 1 functions, 0 of 1 lines; executed by Bridge tests alone: {LORA}:70"),
        ({"0": of(TRANSFORM, record=OLD)}, "not known (0: execution not recorded: the run's Python is 3.11)"),
        ({"0": of(TRANSFORM, record=ran(TRANSFORM)), "1": of(GATHER, record=OLD)},
         "1 of 2 functions, 3 of 5 lines (0); 1 not known (1: execution not recorded: the run's Python is 3.11)"),
        ({"0": of(REMOVED)}, "whether the removed code ran is not known: the job was not run on the merge base"),
        ({"5": of(REMOVED, base=ran(REMOVED, bridge_commit=BASE))},
         "of the code that the change takes out 1 of 1 functions ran on the merge base"),
        ({"0": of(unread={"a.cfg": "not Python"}, left_out=2)},
         "2 more functions not compared; functions not known in a.cfg: not Python"),
    ],
)  # fmt: skip
def test_the_line_on_all_jobs_together(executions: dict[str, ChangeExecution], line: str) -> None:
    assert execution_line(join(executions)) == line


def test_while_jobs_are_to_run_nothing_is_called_never() -> None:
    assert f"; not executed so far: {LORA}:45, {LORA}:72" in execution_line(join({"0": PARTLY}), done=False)


def test_each_function_has_a_row() -> None:
    head, base = ran(TRANSFORM, lines={MAPPING: {3: (0,)}, **LINES}), ran(bridge_commit=BASE)
    executions = {
        "0": of(TRANSFORM, DROPOUT, AT_IMPORT, REMOVED, record=head, base=base),
        "1": of(GATHER, record=ran(GATHER, by=(IN_TEST,))),
        "2": of(SIGNATURE.model_copy(update={"path": "a.py", "condition": ""}), record=OLD),
        "3": UNREAD,
    }
    assert execution_rows(join(executions)) == (
        "a.py:70 LoRA.drop: not known",
        f"{MAPPING}:3, 200 code at import: ran at import in 0, first in driver (train); lines not run: 200",
        f"{MAPPING}:3 code at import: it ran, but no function that reads what it binds did",
        f"{MAPPING}:10 gather: executed by Bridge tests alone",
        f"{LORA}:40 LoRA.transform: ran in 0, first in trainer 0 (train) after 31.5 s; lines not run: 45",
        f"{LORA}:70 LoRA.drop: never ran (only with lora_dropout above 0)",
        f"{LORA}:90 LoRA.old: on the merge base never ran",
    )


def test_where_only_a_later_job_entered_it_the_row_has_no_time_of_the_first() -> None:
    (row,) = execution_rows(join({"0": of(TRANSFORM), "1": of(TRANSFORM, record=ran(TRANSFORM))}))
    assert row == f"{LORA}:40 LoRA.transform: ran in 1, first in trainer 0 (train)"


FEATURE = make_job(Level.FEATURE, "feature", changed=change(DROPOUT, TRANSFORM))
MISSED = verdict_on(SMOKE, ran())
WHOLE = verdict_on(FEATURE, ran(DROPOUT, TRANSFORM))
PARTIAL = verdict_on(FEATURE, ran(TRANSFORM))
UNKNOWN = verdict_on(SMOKE, OLD)
NEVER = f"1 changed function in reach never ran: {LORA}:70 LoRA.drop (only with lora_dropout above 0)"
DENSE = NotRun("2-dense", "Level 2: Parallelism stress (dense)", "no GPU")
MADE_UP = "0-lora-ddp ran well and never entered its part of the change; what it missed ran in 4-feature"


@pytest.mark.parametrize(
    ("card", "result", "sentence"),
    [
        (Card((MISSED, WHOLE), execution=RULES), Result.PASS, MADE_UP),
        (Card((MISSED, WHOLE)), Result.BLOCKED, MISSED.sentence),
        (Card((MISSED, PARTIAL), execution=RULES), Result.BLOCKED, MISSED.sentence),
        (Card((MISSED, PARTIAL), execution=ALLOWING), Result.PASS, f"{NEVER}, which the policy allows"),
        (Card((PARTIAL,), execution=RULES), Result.BLOCKED, f"{NEVER}; not evidence against the Bridge change"),
        (Card((PARTIAL,), execution=ALLOWING), Result.PASS, f"; {NEVER}, which the policy allows"),
        (Card((PARTIAL,)), Result.PASS, PARTIAL.sentence),
        (Card((PARTIAL,), (DENSE,), execution=RULES), Result.BLOCKED, "did not run: no GPU"),
        (Card((UNKNOWN,), execution=RULES), Result.BLOCKED,
         "whether 1 changed function ran is not known (0-lora-ddp: the run's Python is 3.11)"),
        (Card((UNKNOWN,), execution=ALLOWING), Result.PASS, "is not known"),
        (Card((MISSED, replace(WHOLE, result=Result.FAIL)), execution=RULES), Result.FAIL, WHOLE.sentence),
        (Card((PARTIAL,), contract=("gone",), execution=RULES), Result.FAIL, "gone"),
        (Card((WHOLE,), execution=RULES), Result.PASS, WHOLE.sentence),
    ],
)  # fmt: skip
def test_the_result_of_a_whole_check(card: Card, result: Result, sentence: str) -> None:
    assert (result_of(card), sentence in sentence_of(card)) == (result, True), sentence_of(card)


def test_the_text_card_has_the_line_among_the_evidence_and_says_what_makes_up_for_a_job() -> None:
    text = render_text(Card((MISSED, WHOLE), execution=RULES))
    rows = text.splitlines()
    assert rows[rows.index("Evidence:") + 1] == "- Changed code executed: 2 of 2 functions, 4 of 4 lines (4-feature)"
    assert "- Job: 0-lora-ddp - Blocked, accepted: what it missed ran in 4-feature" in rows
    assert "Changed functions that the run did not enter" not in text


def test_a_whole_that_is_short_of_execution_says_what_to_do() -> None:
    text = "Ask someone with write access for a job that runs the changed lines"
    assert any(row.startswith(text) for row in followups_of(Card((PARTIAL,), execution=RULES)))
    assert not any(row.startswith(text) for row in followups_of(Card((PARTIAL,), execution=ALLOWING)))
    failed = replace(PARTIAL, result=Result.FAIL)
    assert not any(row.startswith(text) for row in followups_of(Card((failed,), execution=RULES)))


def test_the_markdown_card_has_the_line_at_its_head_and_the_functions_folded() -> None:
    # Brackets are escaped.
    text = render_markdown(Card((PARTIAL,), execution=RULES)).replace("\\", "")
    head, _, rest = text.partition("<details>")
    assert f"**Changed code executed:** 1 of 2 functions, 3 of 4 lines (4-feature); never executed: {LORA}:72" in head
    assert "<summary>Changed functions (2)</summary>" in rest
    assert f"{LORA}:70 LoRA.drop: never ran (only with lora_dropout above 0)" in rest


def test_the_json_card_carries_what_decided() -> None:
    document = json.loads(card_json(Card((MISSED, WHOLE), execution=RULES)))["execution"]
    assert document["accepted"] == {"0-lora-ddp": "what it missed ran in 4-feature"}
    assert document["closing"] == document["allowed"] == ""
    assert document["sentence"].startswith("2 of 2 functions")
    assert len(document["functions"]) == 2
    assert json.loads(card_json(Card((PARTIAL,), execution=RULES)))["execution"]["closing"] == NEVER


def shown(*runs: Run, **rules: Demand) -> tuple[str, CheckText, CheckText]:
    """The card of the pull request, the gate's check, and that of level 0."""
    policy = POLICY.model_copy(update={"gate": POLICY.gate.model_copy(update=rules)})
    known = target_state(*runs, wanted=WANTED, policy=policy)
    steps = decide_actions(known)
    return (
        render_pull_card(known, steps),
        gate_text(steps.standings, steps.gate),
        job_check_text(steps.standings[0]),
    )


def test_the_pull_request_shows_a_change_that_ran_in_part() -> None:
    card, gate, _ = shown(ended(SMOKE, OLD), PART)
    line = f"Changed code executed: 1 of 2 functions, 3 of 4 lines (4-feature); never executed: {LORA}:72"
    assert f"> {line}" in card.replace("\\", "")
    assert "Changed functions (2)" in card
    assert line in gate.summary.replace("\\", "")
    assert gate.title.startswith("1 changed function in reach never ran: ")
    assert "override 0" in gate.summary
    assert card.startswith("<!-- verl-e2e:card:v1 -->\n### ⛔ verl-e2e: Blocked - 1 changed function in reach")


def test_the_pull_request_shows_a_job_that_never_entered_the_change() -> None:
    card, gate, job = shown(UNENTERED, PART)
    assert "| 0-lora-ddp | 🚫 Not executed | yes |" in card
    assert "0-lora-ddp: unless another job of this plan runs the changed lines" in gate.summary
    assert job.title.startswith("Unexecuted: Level 0 blocked: the run never entered the changed code")


def test_the_pull_request_shows_what_makes_up_for_it() -> None:
    card, gate, job = shown(UNENTERED, BOTH)
    assert "| 0-lora-ddp | ☑️ Accepted | yes |" in card
    assert "what it missed ran in 4-feature" in card
    assert gate.title == "1 of 2 required jobs passed, 1 accepted that never entered the change"
    assert job.title.startswith("Accepted: the run was good and never entered its part of the change")


def test_while_level_4_runs_the_card_does_not_say_never() -> None:
    card, gate, _ = shown(UNENTERED)
    assert "not executed so far" in card
    assert "not executed so far" in gate.summary


def test_what_the_policy_allows_is_said_on_card_and_check() -> None:
    card, gate, _ = shown(ended(SMOKE, OLD), PART, unexecuted=Demand.ALLOW)
    for text in (card, gate.title):
        assert "1 changed function in reach never ran" in text
    assert "which the policy allows" in gate.summary


def test_a_change_that_asks_for_nothing_has_no_line() -> None:
    verdict: Verdict = verdict_on(make_job(), ran())
    assert "Changed code executed" not in render_text(Card((verdict,), execution=RULES))
