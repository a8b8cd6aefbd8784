"""`verdict.json`: what is written is read again, and documents of earlier versions are."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.judged import RUNS, judged
from verl_e2e.core.judge.verdict_document import read_verdict, verdict_json
from verl_e2e.core.model.outcome import Result

RECORDED = [path for path in sorted(RUNS.glob("*/verdict.json")) if json.loads(path.read_text())["schema"] == 1]
RENAMED = {"alone": "own_result", "signature": "fingerprint"}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_a_recorded_document_of_schema_1_is_read_whole(path: Path) -> None:
    old = json.loads(path.read_text())
    verdict = read_verdict(path.read_text())
    assert verdict is not None
    new = json.loads(verdict_json(verdict))
    assert {RENAMED.get(key, key): value for key, value in old.items()}.items() <= (new | {"schema": 1}).items()


def test_an_old_failure_keeps_what_identifies_it() -> None:
    failed = [old for path in RECORDED if (old := json.loads(path.read_text())).get("signature")]
    assert failed
    for old in failed:
        verdict = read_verdict(json.dumps(old))
        assert verdict is not None
        assert (verdict.own_result, list(verdict.fingerprint)) == (Result(old["alone"]), old["signature"])


@pytest.mark.parametrize("name", ["level0-lora-exception", "level1-resume", "level5-rising-cut-at-11"])
def test_what_is_written_is_read_again(name: str) -> None:
    text = verdict_json(judged(name))
    again = read_verdict(text)
    assert again is not None
    assert json.loads(text)["schema"] == 2
    assert verdict_json(again) == text


@given(st.text() | st.sampled_from(["", "[]", "null", "{}", '{"result": "Pass"}', "[" * 100_000]))
def test_anything_else_is_no_verdict(text: str) -> None:
    assert read_verdict(text) is None
