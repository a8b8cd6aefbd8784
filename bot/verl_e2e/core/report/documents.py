"""The judgement as JSON: deterministic text, the same bytes for the same values on any machine."""

import json
from dataclasses import asdict

from verl_e2e.core.model.evidence import Evidence
from verl_e2e.core.model.outcome import Verdict
from verl_e2e.core.report.run_card import (
    Card,
    checkpoint_of,
    coverage_of,
    followups_of,
    limitations_of,
    result_of,
    sentence_of,
)
from verl_e2e.core.triage.answer import Triage
from verl_e2e.core.triage.explain import Explained, explain_json
from verl_e2e.core.triage.triage import triage_json


def verdict_json(verdict: Verdict) -> str:
    """The text of `verdict.json`; the evidence stands in `evidence.json`, comparisons in `parity.json`."""
    return _text({"schema": 1, **_verdict(verdict)})


def evidence_json(evidence: tuple[Evidence, ...]) -> str:
    """The text of `evidence.json`: every criterion with its state, file, line and excerpt."""
    return _text({"schema": 1, "evidence": [asdict(item) for item in evidence]})


def card_json(card: Card) -> str:
    """The whole card as one document: per job all of `verdict.json` and its evidence."""
    document = {
        "schema": 1,
        "result": result_of(card),
        "sentence": sentence_of(card),
        "coverage": coverage_of(card),
        "checkpoint": checkpoint_of(card),
        "jobs": [
            {**_verdict(verdict), "evidence": [asdict(item) for item in verdict.evidence]} for verdict in card.verdicts
        ],
        "not_run": [asdict(job) for job in card.not_run],
        "remarks": list(card.remarks),
        "contract": list(card.contract),
        "limitations": list(limitations_of(card)),
        "followups": list(followups_of(card)),
        "plan": card.plan,
    }
    return _text(document)


def triage_line(file: str, answer: Triage) -> str:
    """One JSON line for one triaged log."""
    return _encodable(json.dumps(triage_json(file, answer), ensure_ascii=False))


def explained_line(file: str, told: Explained) -> str:
    """One JSON line for one triaged log with how the answer came about."""
    return _encodable(json.dumps(explain_json(file, told), ensure_ascii=False))


def _verdict(verdict: Verdict) -> dict[str, object]:
    fields = asdict(verdict)
    del fields["evidence"], fields["reports"], fields["figure"]
    return fields


def _text(document: object) -> str:
    return _encodable(json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False)) + "\n"


def _encodable(text: str) -> str:
    """Half a surrogate pair, as a hostile file name or log may hold one, has no UTF-8."""
    return text.encode("utf-8", "replace").decode()
