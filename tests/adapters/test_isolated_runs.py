"""Runs on one GPU host: with isolation, without it, and with a head that swaps its run folder for a forged Pass."""

import json
from pathlib import Path

import pytest

from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.jobs import Network
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.record import Record

RUNS = Path(__file__).resolve().parents[1] / "fixtures/runs"
# All four were recorded by one recorder.
KEY = json.loads((RUNS / "level0-isolated/manifest.sig.json").read_text())["key"]
HOSTILE, FORGED = RUNS / "level0-isolated-hostile", RUNS / "level0-not-isolated-forged"


def _judged(folder: Path, keys: frozenset[str] | None) -> tuple[Record, Verdict]:
    folders = run_folders(keys=keys)
    record = folders.record(folder)
    return record, judge(record, folders.facts(folder))


@pytest.mark.parametrize(
    ("name", "network"), (("level0-isolated", Network.HOST), ("level0-isolated-no-network", Network.NONE))
)
def test_level_0_passes_in_isolation(name: str, network: Network) -> None:
    record, verdict = _judged(RUNS / name, frozenset({KEY}))
    assert verdict.result is Result.PASS
    assert record.environment is not None
    assert record.environment.isolation is not None
    assert (record.environment.isolation.mode, record.environment.isolation.network) == ("other_user", network)
    assert record.seal is not None
    assert (record.seal.state, record.seal.key) == ("signed", KEY)


def test_in_isolation_a_head_that_forges_a_pass_fails_by_its_own_fault() -> None:
    record, verdict = _judged(HOSTILE, frozenset({KEY}))
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.PEFT)
    assert record.seal is not None
    assert record.seal.state == "signed"


def test_without_isolation_the_same_head_had_its_forged_pass_and_a_known_recorder_refuses_it() -> None:
    """Nothing in the folder shows the forgery: the missing signature of the recorder does."""
    assert _judged(FORGED, None)[1].result is Result.PASS
    verdict = _judged(FORGED, frozenset({KEY}))[1]
    assert verdict.result is Result.BLOCKED
    assert "the record is not the recorder's" in verdict.sentence
