"""What, where, whose and what now: the rows of a failure, on recorded verdicts and on made ones."""

import json
from dataclasses import replace

import pytest

from tests.fakes.places import FIXTURES
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict, verdict_json
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.execution import ChangeExecution, Entered, FunctionRun, Side
from verl_e2e.core.model.facts import Frame
from verl_e2e.core.model.outcome import Recurrence, Result, Stage
from verl_e2e.core.report.verdict_rows import _OUTSIDE, _PREFLIGHT, failure_rows, failure_title

RECORDED = read_verdict((FIXTURES / "runs" / "level0-lora-exception" / "verdict.json").read_text())
assert RECORDED is not None
FRAME = Frame("$WORK/bridge/src/megatron/bridge/peft/lora.py", 189, "transform", 'raise ValueError("no size")')
BASE = replace(
    RECORDED,
    cause="LoRA could not be applied",
    stage=Stage.PEFT,
    decided_by="no_exception",
    frame=FRAME,
    execution=None,
    followups=("Check the target modules.", "Run it again."),
    recurrence=None,
    blame="the merge base was not run",
)


LORA = "src/megatron/bridge/peft/lora.py"


def function(
    symbol: str, first: int, *, path: str = "src/megatron/bridge/peft/lora.py", ran: tuple[int, ...] = ()
) -> FunctionRun:
    return FunctionRun(path, symbol, first, Entered.IN_VERL, ran=ran)


def rows(**given: object) -> dict[str, str]:
    found = failure_rows(replace(BASE, **given))  # type: ignore[arg-type]
    return {row.split("**")[1].rstrip(":"): row.partition("** ")[2] for row in found}


def test_a_failure_is_told_in_four_rows() -> None:
    assert rows() == {
        "What": "LoRA could not be applied",
        "Where": 'Failed at `src/megatron/bridge/peft/lora.py:189` in `transform`: `raise ValueError("no size")`.',
        "Whose": "Not known: the merge base was not run.",
        "Now": "You: check the target modules.",
    }


PASSES_THERE = {"recurrence": Recurrence.REGRESSION, "blame": "the merge base 1 passed"}
BASE_TOO = {"recurrence": Recurrence.PRE_EXISTING, "blame": "the merge base 1 failed the same way"}
ENTERED_NOTHING = {"result": Result.BLOCKED, "blame": "", "decided_by": "change_executed"}


@pytest.mark.parametrize(
    ("given", "whose", "title"),
    (
        (PASSES_THERE, "This change: the merge base 1 passed", "failed, caused by this change"),
        (BASE_TOO, "Not this change: the merge base 1 failed the", "fails without this change too"),
        (
            {"result": Result.BLOCKED, "blame": ""},
            "Not known: nothing in this run shows it, and the merge base was not run.",
            "has no result, not known whether this change caused it",
        ),
        (ENTERED_NOTHING, "Nobody's: the run was good otherwise.", "ran none of the changed lines"),
    ),
)
def test_whose_a_failure_is_and_how_that_is_known(given: dict[str, object], whose: str, title: str) -> None:
    assert rows(**given)["Whose"].startswith(whose)
    assert rows(**given)["Whose"].endswith(".")
    assert failure_title("0-lora-ddp", replace(BASE, **given)) == f"0-lora-ddp {title}"  # type: ignore[arg-type]


def test_what_a_change_does_not_cause_is_no_work_for_its_author() -> None:
    data = {"result": Result.BLOCKED, "blame": "", "causes": ("preflight:data",), "key_lines": (), "frame": None}
    at = Evidence(State.MISSING, "no file", "environment.json")
    found = rows(**data | {"followups": ("Give its path. Found: no file",), "key_lines": (at,)})
    assert found["Now"] == "1. You: tell the owner of the host: give its path."
    assert found["Where"] == "On the host, in no line of code."
    found = rows(**data | {"causes": ("preflight:import_driver",)})
    assert found["Where"] == "In the check before the run."
    assert rows(frame=replace(FRAME, function="", source=""))["Where"] == f"Failed at `{LORA}:189`."


@pytest.mark.parametrize(
    ("fields", "now"),
    [
        ({"recurrence": Recurrence.REGRESSION}, "You: push."),
        (
            {"recurrence": Recurrence.REGRESSION, "frame": None},
            "You: push. What usually helps: check the target modules.",
        ),
        ({}, "You: push."),
        ({"followups": ()}, "Push."),
        ({"recurrence": Recurrence.NOT_REPRODUCED, "result": Result.BLOCKED}, "You: push."),
        ({"result": Result.BLOCKED}, "1. You: push. 2. If it fails again: check the target modules."),
        (
            {"result": Result.BLOCKED, "blame": "", "causes": ("preflight:data",), "frame": None},
            "1. You: tell the owner of the host: check the target modules. 2. After that: push.",
        ),
    ],
)
def test_who_does_what_stands_in_its_order(fields: dict[str, object], now: str) -> None:
    verdict = replace(BASE, **fields)  # type: ignore[arg-type]
    assert [row for row in failure_rows(verdict, "push.") if "Now" in row] == [f"- **Now:** {now}"]


def test_a_pass_has_no_rows() -> None:
    assert failure_rows(replace(BASE, result=Result.PASS)) == ()


ELSEWHERE = (function("f", 3, path="src/megatron/bridge/peft/utils.py"),)
GONE = replace(function("LoRA.gone", 180), side=Side.MERGE_BASE)
SOURCE = '`raise ValueError("no size")`.'


@pytest.mark.parametrize(
    ("functions", "end"),
    (
        (
            (function("LoRA.transform", 160, ran=(185, 186)), function("LoRA.other", 20)),
            f" Your change: `{LORA}:185-186` in `LoRA.transform`, run by this job.",
        ),
        ((function("LoRA.other", 20, ran=(21,)),), f" Your change: `{LORA}:21` in `LoRA.other`, run by this job."),
        (ELSEWHERE, " Your change: `src/megatron/bridge/peft/utils.py:3` in `f`, run by this job."),
        ((*ELSEWHERE, *ELSEWHERE), ":3` in `f`, run by this job; 1 more function changed."),
        ((*ELSEWHERE, GONE), " Your change removes code of `LoRA.gone` there."),
        ((GONE,), " Your change removes code of `LoRA.gone` there."),
        ((), SOURCE),
    ),
)
def test_what_the_change_edits_stands_beside_the_frame(functions: tuple[FunctionRun, ...], end: str) -> None:
    assert rows(execution=ChangeExecution(functions))["Where"].endswith(end)


@pytest.mark.parametrize(
    ("call", "lines", "end"),
    (
        ("bridge/src/megatron/bridge/peft/lora.py:transform", (185,), "`LoRA.transform`, on the way to it."),
        ("bridge/src/megatron/bridge/peft/lora.py:other", (185,), "`LoRA.transform`, run by this job."),
        ("", (185, 189), '`raise ValueError("no size")`. Your change: the same line.'),
    ),
)
def test_what_the_edited_code_has_to_do_with_the_failure(call: str, lines: tuple[int, ...], end: str) -> None:
    execution = ChangeExecution((function("LoRA.transform", 160, ran=lines),))
    assert rows(execution=execution, calls=(call,))["Where"].endswith(end)


def test_without_a_frame_it_is_where_the_evidence_was_read_and_what_of_the_change_ran() -> None:
    at = Evidence(State.BROKEN, "they differ", "fingerprints.jsonl", criterion="replicas")
    said = replace(at, file="log.txt.zst", line=7, excerpt="corr:0.4", criterion="no_exception")
    lost = {"frame": None, "evidence": (at,), "decided_by": "replicas", "key_lines": ()}
    assert rows(**lost)["Where"] == "Line not known: no error was raised."
    logged = lost | {"evidence": (said,), "decided_by": "no_exception"}
    assert rows(**logged)["Where"] == "Line not known: the log names none."
    changed = {"execution": ChangeExecution((function("LoRA.transform", 160, ran=(185,)),))}
    ran = rows(**lost, **changed)["Where"]
    assert ran.endswith(f" no error was raised. Your change: `{LORA}:185` in `LoRA.transform`, run by this job.")
    never = ChangeExecution((replace(changed["execution"].functions[0], entered=Entered.NEVER),))
    assert rows(**ENTERED_NOTHING, execution=never, frame=None)["Where"].endswith(
        "`LoRA.transform`, not run by this job."
    )
    nowhere = {"frame": None, "evidence": (), "key_lines": (), "decided_by": None}
    # Where nothing decided, an error may have been raised and not been the reason.
    for causes in ((), ("end:time_limit",), ("preflight:data", "end:stalled")):
        assert rows(**nowhere, causes=causes)["Where"] == "Line not known."
    tested = Evidence(State.BROKEN, "one failed", "junit.xml", criterion="bridge_tests")
    found = rows(**lost | {"evidence": (tested,), "decided_by": "bridge_tests"}, execution=by_tests())
    assert found["Where"].startswith("Line not known: a test of Bridge failed. Your change: ")
    assert found["Where"].endswith("run by Bridge tests alone.")
    missing = replace(at, state=State.MISSING)
    assert "different" not in rows(**lost | {"evidence": (missing,)})["What"]


def by_tests() -> ChangeExecution:
    return ChangeExecution((replace(function("LoRA.transform", 160), entered=Entered.BY_TESTS, missed=(171,)),))


@pytest.mark.parametrize(
    ("changed", "calls", "end"),
    [
        # What is on the way by its name alone and never ran is not on the way.
        (replace(function("LoRA.transform", 170), entered=Entered.AROUND, missed=(171,)), True, "not run by this job."),
        # Ranges are of what ran, and are not joined over what the change leaves alone.
        (
            function("LoRA.merge", 100, ran=(161, 162, 250)),
            False,
            f"`{LORA}:161-162,250` in `LoRA.merge`, run by this job.",
        ),
        (function("LoRA.transform", 100, ran=(189,)), True, "Your change: the same line."),
        (replace(function("LoRA.transform", 189), entered=Entered.NEVER, missed=(189,)), True, "not run by this job."),
    ],
)
def test_what_a_change_has_to_do_with_a_failure_is_what_the_record_shows(
    changed: FunctionRun, end: str, *, calls: bool
) -> None:
    given = {"calls": ("megatron/bridge/peft/lora.py:transform",) if calls else ()}
    assert rows(**given, execution=ChangeExecution((changed,)))["Where"].endswith(end)


def test_the_nearest_change_is_that_of_a_line_and_not_of_a_first_line() -> None:
    other = replace(function("LoRA.other", 195), entered=Entered.NEVER, missed=(196,))
    both = ChangeExecution((other, function("LoRA.transform", 100, ran=(189,))))
    assert rows(execution=both)["Where"].endswith("Your change: the same line.")


def test_a_fault_of_tensors_is_told_in_plain_words_and_by_the_first_of_them() -> None:
    at = Evidence(
        State.BROKEN, "", "fingerprints.jsonl", excerpt="a.weight: all zero\n  found: 0", criterion="replicas"
    )
    found = rows(frame=None, evidence=(at,), decided_by="replicas")["What"]
    assert found == "GPUs that must hold the same weights hold different ones: a.weight: all zero"
    lost = rows(frame=None, evidence=(), key_lines=(), decided_by=None, stage=Stage.RAY)["What"]
    assert lost == "While Ray started: LoRA could not be applied"


def test_an_error_in_verl_names_the_last_call_of_bridge() -> None:
    frame = Frame("$WORK/verl/verl/workers/rollout.py", 7, "send", "copy_(")
    last = "bridge/src/megatron/bridge/models/conversion/model_bridge.py:stream"
    calls = ("verl/workers/engine.py:step", last, "x:send")
    assert rows(frame=frame, calls=calls)["Where"] == (
        f"Failed at `verl/workers/rollout.py:7` in `send`: `copy_(`. The last of Bridge before it: `{last}`."
    )


@pytest.mark.parametrize("cause", sorted(_OUTSIDE))
def test_what_lies_outside_of_the_code_is_not_the_changes(cause: str) -> None:
    blocked = {"result": Result.BLOCKED, "blame": "", "causes": (cause,), "frame": None}
    whose = rows(**blocked)["Whose"]
    assert whose.startswith("Not this change: the fault is in the host,")
    assert whose.endswith("before any changed code ran.") == (cause in _PREFLIGHT)
    assert "host" not in rows(**blocked | {"causes": (cause, "preflight:repositories")})["Whose"]
    assert "host" not in rows(**blocked | PASSES_THERE)["Whose"]
    # An error that the code under test raised is not the host's alone.
    assert "host" not in rows(**blocked | {"frame": FRAME})["Whose"]


def test_rows_stay_short_whatever_a_log_says() -> None:
    word = "<script>@everyone `|` " * 200
    found = failure_rows(
        replace(BASE, cause=word, blame=word, followups=(word,), frame=Frame(word, 1, word, word), evidence=())
    )
    assert all(len(row) < 1_500 and "\n" not in row for row in found)
    assert "<script>" not in "".join(found).replace("`<script>", "")


def test_the_frame_and_the_blame_are_in_the_document() -> None:
    assert json.loads(verdict_json(BASE))["frame"]["line"] == 189
    again = read_verdict(verdict_json(BASE))
    assert isinstance(again, Verdict)
    assert failure_rows(again) == failure_rows(BASE)
