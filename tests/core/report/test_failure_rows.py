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
from verl_e2e.core.report.verdict_rows import _OF_THE_HOST, failure_rows

RECORDED = read_verdict((FIXTURES / "runs" / "level0-lora-exception" / "verdict.json").read_text())
assert RECORDED is not None
FRAME = Frame("$WORK/bridge/src/megatron/bridge/peft/lora.py", 189, "transform", 'raise ValueError("no size")')
BASE = replace(
    RECORDED,
    cause="LoRA could not be applied",
    stage=Stage.PEFT,
    frame=FRAME,
    execution=None,
    followups=("Check the target modules.", "Run it again."),
    recurrence=None,
    blame="merge base not run: no follow-up was asked for",
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
        "What": "LoRA could not be applied (in peft)",
        "Where": '`src/megatron/bridge/peft/lora.py:189` in `transform`: `raise ValueError("no size")`',
        "Whose": "not decided between this change and its base; merge base not run: no follow-up was asked for",
        "Now": "Check the target modules.",
    }


@pytest.mark.parametrize(
    ("given", "whose"),
    (
        ({"recurrence": Recurrence.REGRESSION, "blame": "regression: it passes"}, "this change; regression: it passes"),
        ({"recurrence": Recurrence.PRE_EXISTING, "blame": ""}, "not this change, it was there before"),
        ({"recurrence": Recurrence.NOT_REPRODUCED, "blame": ""}, "not shown, it passed when it ran again"),
        (
            {"result": Result.BLOCKED, "undecided": True, "blame": ""},
            "not decided between this change and its base",
        ),
        (
            {"result": Result.BLOCKED, "blame": ""},
            "not shown to be this change: a Blocked is no evidence against it",
        ),
    ),
)
def test_whose_a_failure_is(given: dict[str, object], whose: str) -> None:
    assert rows(**given)["Whose"] == whose


def test_a_pass_has_no_rows() -> None:
    assert failure_rows(replace(BASE, result=Result.PASS)) == ()


@pytest.mark.parametrize(
    ("functions", "beside"),
    (
        (
            (function("LoRA.transform", 160, ran=(185, 186)), function("LoRA.other", 20)),
            "`LoRA.transform` at lines 185, 186",
        ),
        ((function("LoRA.other", 20, ran=(21,)),), "`LoRA.other` at line 21"),
    ),
)
def test_what_the_change_does_in_that_file_is_beside_it(functions: tuple[FunctionRun, ...], beside: str) -> None:
    where = rows(execution=ChangeExecution(functions))["Where"]
    assert where.endswith(f"; this change touches {beside}")


ELSEWHERE = (function("f", 3, path="src/megatron/bridge/peft/utils.py"),)
GONE = replace(function("LoRA.gone", 180), side=Side.MERGE_BASE)
SOURCE = '`raise ValueError("no size")`'


@pytest.mark.parametrize(
    ("execution", "end"),
    (
        (ChangeExecution(ELSEWHERE), "; nothing of the change that this job must run is in that file"),
        (ChangeExecution((*ELSEWHERE, GONE)), "; this change removes code of `LoRA.gone`"),
        (ChangeExecution((GONE,)), "; this change removes code of `LoRA.gone`"),
        (ChangeExecution(ELSEWHERE, unread=(f"{LORA}: it is too large",)), SOURCE),
        (ChangeExecution(ELSEWHERE, left_out=1), SOURCE),
        (ChangeExecution(), SOURCE),
    ),
)
def test_a_file_is_cleared_of_the_change_only_as_far_as_is_known(execution: ChangeExecution, end: str) -> None:
    assert rows(execution=execution)["Where"].endswith(end)


def test_without_a_frame_it_is_where_the_evidence_was_read_and_what_of_the_change_ran() -> None:
    at = Evidence(State.BROKEN, "they differ", "fingerprints.jsonl", criterion="replicas")
    said = replace(at, file="log.txt.zst", line=7, excerpt="corr:0.4")
    lost = {"frame": None, "evidence": (at,), "decided_by": "replicas", "key_lines": ()}
    unknown = "no line of code is known, it shows in"
    assert rows(**lost)["Where"] == f"{unknown} `fingerprints.jsonl`"
    assert rows(**lost | {"evidence": (said,)})["Where"] == f"{unknown} `log.txt.zst:7`: `corr:0.4`"
    ran = rows(**lost, execution=ChangeExecution((function("LoRA.transform", 160, ran=(185,)),)))["Where"]
    assert ran == f"this change ran in `{LORA}:LoRA.transform`; {unknown} `fingerprints.jsonl`"
    nowhere = {"frame": None, "evidence": (), "key_lines": (), "decided_by": None}
    assert rows(**nowhere, causes=("preflight:data",))["Where"] == f"{unknown} preflight"
    for causes in ((), ("end:time_limit",), ("preflight:data", "end:stalled")):
        assert rows(**nowhere, causes=causes)["Where"] == "no line of code is known"


def test_an_error_in_verl_names_the_last_call_of_bridge() -> None:
    frame = Frame("$WORK/verl/verl/workers/rollout.py", 7, "send", "copy_(")
    last = "bridge/src/megatron/bridge/models/conversion/model_bridge.py:stream"
    calls = ("verl/workers/engine.py:step", last, "x:send")
    assert rows(frame=frame, calls=calls)["Where"] == (
        f"`verl/workers/rollout.py:7` in `send`: `copy_(`; the last of Bridge before it: `{last}`"
    )


@pytest.mark.parametrize("cause", sorted(_OF_THE_HOST))
def test_what_preflight_finds_of_the_host_is_the_hosts(cause: str) -> None:
    blocked = {"result": Result.BLOCKED, "blame": "", "causes": (cause,)}
    assert rows(**blocked)["Whose"] == "the host or its settings: it was found before this job ran code of the change"
    assert "host" not in rows(**blocked | {"causes": (cause, "preflight:repositories")})["Whose"]
    assert "host" not in rows(**blocked | {"undecided": True})["Whose"]


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
