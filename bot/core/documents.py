"""The judgement as JSON: deterministic text, the same bytes for the same values on any machine."""

import json
from dataclasses import asdict

from bot.core.evidence import Evidence
from bot.core.triage import Triage
from bot.core.verdict import Verdict

_DERIVED = ("evidence",)


def verdict_json(verdict: Verdict) -> str:
    """The text of `verdict.json`; the evidence stands in `evidence.json`."""
    fields = {name: value for name, value in asdict(verdict).items() if name not in _DERIVED}
    return _text({"schema": 1, **fields})


def evidence_json(evidence: tuple[Evidence, ...]) -> str:
    """The text of `evidence.json`: every criterion with its state, file, line and excerpt."""
    return _text({"schema": 1, "evidence": [asdict(item) for item in evidence]})


def triage_line(file: str, answer: Triage) -> str:
    """One JSON line for one triaged log."""
    row = {
        "file": file,
        "verdict": answer.verdict,
        "stage": answer.stage,
        "cause": answer.cause,
        "line": answer.line,
        "excerpt": answer.excerpt,
        "residual_noise": [noise.name for noise in answer.residual_noise],
    }
    return json.dumps(row, ensure_ascii=False)


def _text(document: object) -> str:
    return json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False) + "\n"
