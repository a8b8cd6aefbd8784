"""Logs as strangers print them: ends from outside, other backends, other makers' codes, retries, tails."""

import json

import pytest

from tests.core.logs import lines
from tests.core.triage.tables import check, judged
from tests.core.triage.wild_cases import BEGIN, wild_cases
from tests.fakes.places import FIXTURES
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage.explain import explain_log, explain_text
from verl_e2e.core.triage.silent import UNREADABLE, is_as_wanted, read_value
from verl_e2e.core.triage.table import RULES
from verl_e2e.core.triage.triage import TriageVerdict, triage, triage_of_run

WILD = FIXTURES / "triage-wild"
GIVEN = json.loads((WILD / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", GIVEN)
def test_the_given_logs_are_right(name: str) -> None:
    answer = triage(scan([(WILD / name).read_bytes()]))
    assert answer.verdict in GIVEN[name]["verdict"]
    assert answer.stage in GIVEN[name]["stage"]


def test_each_class_reaches_the_figure_and_nothing_wrong_is_a_pass() -> None:
    check(judged(wild_cases()))


@pytest.mark.parametrize("name", GIVEN)
def test_explanation_and_verdict_have_one_word(name: str) -> None:
    explained = explain_log(scan([(WILD / name).read_bytes()]))
    decided = explain_text(name, explained).split("Decided by ")[1].split("\n")[0]
    assert explained.answer.verdict.capitalize() in decided
    others = {word for word in ("Pass", "Fail", "Blocked") if word.lower() != explained.answer.verdict}
    assert not any(word in decided for word in others)


# Rows that only lines, frames or class names of Bridge can match.
OF_BRIDGE = frozenset({"import-between-trees", "hf-config", "bridge-provider", "weights-unmapped"})


def test_no_row_names_bridge_that_another_backend_can_reach() -> None:
    named = {rule.id for rule in RULES if "Bridge" in f"{rule.cause} {rule.fix}"}
    assert named <= OF_BRIDGE


CAUGHT = (
    "(AgentLoopWorker pid=3) ERROR:2026-01-01 10:00:00,000:Traceback (most recent call last):",
    '(AgentLoopWorker pid=3)   File "/w/env.py", line 4, in act',
    "(AgentLoopWorker pid=3) ValueError: no action",
)


def test_an_end_that_the_recorder_states_outranks_what_was_caught() -> None:
    facts = scan(lines(*BEGIN, *CAUGHT))
    assert triage_of_run(facts).verdict is TriageVerdict.FAIL
    stopped = triage_of_run(facts, stopped=True)
    assert (stopped.verdict, stopped.stage) == (TriageVerdict.BLOCKED, Stage.TRAIN_STEP)
    assert "no action" not in stopped.cause


FRAME = 'File "/b/src/megatron/bridge/peft/lora.py", line 189, in transform'
SHAPES = {
    "no indentation": ("Traceback (most recent call last):", FRAME, "raise ValueError(name)", "ValueError: no layer"),
    "no header": (FRAME, "raise ValueError(name)", "ValueError: no layer"),
    "list": (
        f"['Traceback (most recent call last):\\n', '  {FRAME}\\n    raise ValueError(name)\\n', 'ValueError: no "
        f"layer\\n']",
    ),
    "string": (
        f"Traceback (most recent call last):\\n  {FRAME}\\n    raise ValueError(name)\\nValueError: no layer\\n",
    ),
    "JSON": (
        '{"error": "Traceback (most recent call last):\\n  '
        + FRAME.replace('"', '\\"')
        + '\\n    raise ValueError(name)\\nValueError: no layer"}',
    ),
}


@pytest.mark.parametrize("prefix", ["", "(WorkerDict pid=2) ", "[rank0]: "])
@pytest.mark.parametrize("name", SHAPES)
def test_a_traceback_is_read_however_it_was_pasted_or_printed(name: str, prefix: str) -> None:
    answer = triage(scan(lines(*(prefix + row for row in SHAPES[name]))))
    assert (answer.verdict, answer.stage) == (TriageVerdict.FAIL, Stage.PEFT)
    assert answer.frame is not None
    assert (answer.frame.line, answer.frame.source) == (189, "raise ValueError(name)")


@pytest.mark.parametrize("function", ["broadcast_obj_from_pp_rank", "broadcast_from_pp_rank", "megatron_to_hf"])
def test_what_only_an_export_calls_is_no_import(function: str) -> None:
    path = "/b/src/megatron/bridge/models/conversion/param_mapping.py"
    rows = ("Traceback (most recent call last):", f'  File "{path}", line 479, in {function}', "ValueError: no rank")
    assert triage(scan(lines(*rows))).stage is Stage.EXPORT_WEIGHT_SYNC


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a b'", "a b"),
        ('"it\'s"', "it's"),
        ("[a,[b,c],{d: e}]", ["a", ["b", "c"], {"d": "e"}]),
        ("[]", []),
        ("${x}", UNREADABLE),
        ("[a", UNREADABLE),
        ("[" * 99, UNREADABLE),
        ("{[a]: 1}", UNREADABLE),
        ("{{a: 1}}", UNREADABLE),
        ("[hdfs://host:80/a.parquet,b]", ["hdfs://host:80/a.parquet", "b"]),
        (r"['a\nb']", [r"a\nb"]),
    ],
)
def test_values_are_read_as_hydra_reads_them(text: str, value: object) -> None:
    assert read_value(text) == value


def test_a_truth_value_is_no_number() -> None:
    found: object = True
    assert not is_as_wanted(found, "1")
    assert is_as_wanted(float("nan"), "nan")
    assert not is_as_wanted(None, "0")
