"""The pull request's one comment: what stands first, what is folded, and what hostile text cannot do."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from bot.core.ledger import Override, Run, RunState, run_key
from bot.core.levels import Level
from bot.core.outcome import Result
from bot.core.pull_card import MARKER, MAX_CARD, EarlierHead, JobRow, PullCard, Standing, render, row_of, standing_of

HEAD = "a" * 40
NOW = datetime(2026, 11, 20, tzinfo=UTC)
RECORDED = Path(__file__).resolve().parents[2] / "bot" / "demo" / "recording" / "verdict.json"


def _run(**changes: object) -> Run:
    base: dict[str, object] = {
        "key": run_key("o/r", HEAD, "d" * 64, 1),
        "repository": "o/r",
        "number": 7,
        "head_sha": HEAD,
        "job_id": "0-lora-ddp",
        "job_digest": "d" * 64,
        "created": NOW,
        "updated": NOW,
    }
    return Run.model_validate({**base, **changes})


def _finished(**changes: object) -> Run:
    verdict = json.loads(RECORDED.read_text())
    done = {"state": RunState.FINISHED, "result": Result.PASS, "sentence": verdict["sentence"]}
    return _run(**{**done, "verdict": RECORDED.read_text(), "gpu_minutes": 6.7, **changes})


def test_the_verdict_stands_first_and_the_evidence_is_folded() -> None:
    row = row_of(_finished(url="https://example.invalid/runs/1"), planned=5)
    text = render(PullCard(HEAD, Standing.PASS, "level 0 passed", (row,)))
    lines = text.splitlines()
    assert lines[0] == MARKER
    assert lines[1] == "### ✅ verl-e2e: Pass - level 0 passed"
    assert "GPU minutes: 6.7 used, about 5 planned" in text
    assert "| 0-lora-ddp | ✅ Pass | yes |" in text
    assert "[log](https://example.invalid/runs/1)" in text
    assert text.index("Limitations") > text.index("| 0-lora-ddp")
    assert "<summary>Evidence</summary>" in text
    assert "Local Bridge import in verl" in text


@pytest.mark.parametrize(
    ("changes", "standing"),
    [
        ({}, Standing.WAITING),
        ({"state": RunState.SUBMITTED}, Standing.RUNNING),
        ({"state": RunState.CANCELLING}, Standing.RUNNING),
        ({"state": RunState.CANCELLED}, Standing.CANCELLED),
        ({"state": RunState.LOST}, Standing.BLOCKED),
        ({"state": RunState.REFUSED}, Standing.BLOCKED),
        ({"state": RunState.FINISHED, "result": Result.FAIL}, Standing.FAIL),
        ({"state": RunState.FINISHED, "result": Result.BLOCKED}, Standing.BLOCKED),
        ({"state": RunState.FINISHED, "result": Result.PASS}, Standing.PASS),
        ({"state": RunState.FINISHED}, Standing.BLOCKED),
    ],
)
def test_a_run_stands_where_its_state_and_result_put_it(changes: dict[str, object], standing: Standing) -> None:
    assert standing_of(_run(**changes)) is standing


def test_a_carried_verdict_names_its_origin() -> None:
    row = row_of(_finished(carried_from="b" * 40))
    assert row.detail.startswith("carried forward from bbbbbbbbbbbb: ")


def test_overrides_notices_and_history_are_shown() -> None:
    override = Override(
        repository="o/r", number=7, head_sha=HEAD, level=Level.SAVE_RESUME, reason="runner down", actor="ann",
        source="comment:1:1", at=NOW,
    )  # fmt: skip
    card = PullCard(
        HEAD,
        Standing.OVERRIDDEN,
        "level 1 overridden",
        notices=("waits for approval",),
        overrides=(override,),
        history=(EarlierHead("c" * 40, Standing.FAIL, "failed at peft"),),
    )
    text = render(card)
    assert "> waits for approval" in text
    assert "Level 1 overridden by ann on `aaaaaaaaaaaa`: runner down" in text
    assert "Earlier heads (1)" in text
    assert "`cccccccccccc` ❌ Fail: failed at peft" in text


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://x/)[evil](https://y", "https://x/ y", "https://x/" + "a" * 600]
)
def test_a_strange_link_is_left_out(url: str) -> None:
    assert "[log]" not in render(PullCard(HEAD, Standing.PASS, "s", (row_of(_finished(url=url)),)))


def test_a_verdict_that_is_no_document_is_no_card_s_end() -> None:
    for text in ("{", "[]", '{"deliverables": 3, "limitations": "x", "key_lines": [1], "repositories": {}}'):
        render(PullCard(HEAD, Standing.PASS, "s", (row_of(_finished(verdict=text)),)))


TAG = re.compile(r"<(/?\w+)")
HOSTILE = st.text(max_size=300) | st.sampled_from(["@everyone", MARKER, "</details>", "```\n# x", "| a |", "<script>"])


@settings(max_examples=60, deadline=None)
@given(st.lists(HOSTILE, max_size=40), st.integers(1, 400))
def test_whatever_a_run_says_the_card_stays_whole(texts: list[str], times: int) -> None:
    verdict = {
        "deliverables": [{"name": text, "outcome": text, "detail": text} for text in texts] * times,
        "limitations": [f"{text}{count}" for count in range(times) for text in texts],
        "key_lines": [{"file": text, "line": 1, "excerpt": text} for text in texts] * times,
    }
    rows = tuple(JobRow(text, Standing.FAIL, required=True, detail=text, verdict=verdict) for text in texts[:5])
    text = render(PullCard(HEAD, Standing.FAIL, "".join(texts), rows, notices=tuple(texts)))
    assert len(text) <= MAX_CARD
    assert text.count(MARKER) == 1
    assert text.startswith(MARKER)
    assert "@everyone" not in text
    tags = [
        tag for token in MarkdownIt().parse(text) if token.type == "html_block" for tag in TAG.findall(token.content)
    ]
    assert set(tags) <= {"details", "/details", "summary", "/summary"}
    assert tags.count("details") == tags.count("/details")
