"""`verdict.json`: what is written is read again, and so is each recorded one."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.judged import RUNS, judged
from verl_e2e.core.judge.verdict_document import read_verdict, verdict_json

RECORDED = sorted(RUNS.glob("*/verdict.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_a_recorded_document_is_read_whole(path: Path) -> None:
    old = json.loads(path.read_text())
    verdict = read_verdict(path.read_text())
    assert verdict is not None
    new = json.loads(verdict_json(verdict))
    # Of the execution of a change a document may say less than today.
    assert {key: value for key, value in old.items() if key != "execution"}.items() <= new.items()


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
