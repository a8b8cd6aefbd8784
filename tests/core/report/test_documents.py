"""The judgement as JSON: whole, and the same bytes each time."""

import json
from dataclasses import asdict

from tests.core.builders import bridge_error, cut_facts, ended, judged, make_facts
from verl_e2e.core.judge.verdict_document import verdict_json
from verl_e2e.core.model.facts import Excerpt, Noise
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.report.run_card import Card, NotRun, card_json, evidence_json, triage_line
from verl_e2e.core.triage.triage import triage, triage_json

FAILED = judged(cut_facts(Stage.PEFT, errors=(bridge_error(),)), events=ended(exit_code=1))
NOT_RUN = NotRun("2-dense", "Level 2: Parallelism stress (dense)", "it needs 0-lora-ddp, which did not pass")


def test_a_verdict_is_written_without_its_evidence() -> None:
    document = json.loads(verdict_json(FAILED))
    assert document["schema"] == 2
    assert (document["result"], document["stage"], document["job_id"]) == ("Fail", "peft", "0-lora-ddp")
    assert "evidence" not in document
    assert [row["outcome"] for row in document["deliverables"]] == ["Pass", "Pass", "Fail", "Not requested", "Pass"]
    assert json.loads(verdict_json(judged()))["stage"] is None


def test_evidence_is_written_with_state_and_place() -> None:
    document = json.loads(evidence_json(FAILED.evidence))
    row = next(row for row in document["evidence"] if row["criterion"] == "no_exception")
    assert (row["state"], row["file"], row["line"]) == ("broken", "log.txt.zst", 1250)
    assert row["excerpt"] == "ValueError: planted in LoRA"


def test_a_card_is_one_document_of_everything() -> None:
    card = Card((FAILED,), (NOT_RUN,), ("A recording.",), "the plan")
    document = json.loads(card_json(card))
    assert set(document) == {
        "schema",
        "result",
        "sentence",
        "coverage",
        "checkpoint",
        "jobs",
        "not_run",
        "notes",
        "limitations",
        "followups",
        "plan",
        "contract",
        "execution",
    }
    assert (document["result"], document["sentence"]) == ("Fail", FAILED.sentence)
    job = document["jobs"][0]
    assert job.pop("evidence") == json.loads(evidence_json(FAILED.evidence))["evidence"]
    assert {"schema": 2, **job} == json.loads(verdict_json(FAILED))
    assert document["not_run"] == [asdict(NOT_RUN)]
    assert document["notes"] == ["A recording."]
    assert document["limitations"][0] == "A recording."


def test_the_same_values_give_the_same_bytes() -> None:
    again = judged(cut_facts(Stage.PEFT, errors=(bridge_error(),)), events=ended(exit_code=1))
    assert verdict_json(again) == verdict_json(FAILED)
    assert card_json(Card((again,))) == card_json(Card((FAILED,)))
    assert card_json(Card(())).endswith("}\n")


def test_a_triaged_log_is_one_line_that_can_be_encoded() -> None:
    noise = (Noise("signal-stack", Excerpt(1337, "Stack"), 2),)
    line = triage_line("odd\ud800\nname.log", triage(make_facts(noise=noise)))
    assert "\n" not in line
    document = json.loads(line.encode())
    assert document.keys() == triage_json("", triage(make_facts())).keys()
    assert (document["verdict"], document["line"]) == ("pass", 1336)
    assert document["residual_noise"] == [{"name": "signal-stack", "line": 1337, "count": 2}]
