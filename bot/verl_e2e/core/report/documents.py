"""The judgement as JSON: deterministic text, the same bytes for the same values on any machine."""

import json
from dataclasses import asdict

from verl_e2e.core.judge.verdict_document import VERDICT_SCHEMA, json_text, verdict_fields
from verl_e2e.core.model.evidence import Evidence
from verl_e2e.core.report.execution_report import execution_line, execution_rows
from verl_e2e.core.report.run_card import (
    Card,
    accepted_in,
    checkpoint_of,
    coverage_of,
    followups_of,
    joined_execution,
    limitations_of,
    result_of,
    sentence_of,
    shortfall_of,
)
from verl_e2e.core.triage.answer import Triage
from verl_e2e.core.triage.explain import Explained, explain_json
from verl_e2e.core.triage.triage import triage_json


def evidence_json(evidence: tuple[Evidence, ...]) -> str:
    """The text of `evidence.json`: every criterion with its state, file, line and excerpt."""
    return json_text({"schema": 1, "evidence": [asdict(item) for item in evidence]})


def card_json(card: Card) -> str:
    """The whole card as one document: per job all of `verdict.json` and its evidence."""
    document = {
        "schema": VERDICT_SCHEMA,
        "result": result_of(card),
        "sentence": sentence_of(card),
        "coverage": coverage_of(card),
        "checkpoint": checkpoint_of(card),
        "jobs": [
            {**verdict_fields(verdict), "evidence": [asdict(item) for item in verdict.evidence]}
            for verdict in card.verdicts
        ],
        "not_run": [asdict(job) for job in card.not_run],
        "notes": list(card.notes),
        "contract": list(card.contract),
        "execution": {
            "sentence": execution_line(joined_execution(card)),
            "functions": list(execution_rows(joined_execution(card))),
            "closing": shortfall_of(card).closing,
            "allowed": shortfall_of(card).allowed,
            "accepted": {verdict.job_id: reason for verdict in card.verdicts if (reason := accepted_in(card, verdict))},
        },
        "limitations": list(limitations_of(card)),
        "followups": list(followups_of(card)),
        "plan": card.plan,
    }
    return json_text(document)


def triage_line(file: str, answer: Triage) -> str:
    """One JSON line for one triaged log."""
    return _line(triage_json(file, answer))


def explained_line(file: str, message: Explained) -> str:
    """One JSON line for one triaged log with how the answer came about."""
    return _line(explain_json(file, message))


def _line(document: dict[str, object]) -> str:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace").decode()
