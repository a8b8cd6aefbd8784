"""Judging real folders through the real adapters: one result on any machine, from what the folder holds."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.run_folders import write_run_folder
from tests.core.builders import FILES as MODULE_FILES
from tests.core.builders import ended, judged, make_job, make_record, passing_tests
from tests.core.executions import DROPOUT, change, ran
from tests.core.judged import RUNS
from tests.core.logs import recorded
from tests.core.pulls.entries import run as order
from verl_e2e.adapters.files import folders as stored
from verl_e2e.adapters.files.run_folder import FolderError
from verl_e2e.app.analysis import judge_ended
from verl_e2e.app.judge_folder import card_of, judge_folders, make_card, write_judgement
from verl_e2e.cli.command import exit_code
from verl_e2e.config import packaged_policy
from verl_e2e.core.judge.criteria.invariants import Invariant
from verl_e2e.core.judge.criteria.table import ROWS
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.execution import EXECUTED_FILE, ChangedCode, Executed
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import CheckNotes
from verl_e2e.core.report.run_card import NotRun, card_json, render_markdown, render_text, sentence_of

WRITTEN = ("evidence.json", "verdict.json", "card.txt", "card.md")
LOG = recorded("level0-pass")
FOLDERS = stored.run_folders()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The recorded Level 0 run with the documents that belong to it."""
    return write_run_folder(tmp_path / "out" / "jobs" / "0-lora-ddp", make_record(), LOG)


def judge_all(folder: Path) -> dict[str, bytes]:
    """Judge a folder and give back everything that came out of it."""
    verdicts = judge_folders(FOLDERS, folder)
    write_judgement(FOLDERS, folder, verdicts)
    card = make_card(verdicts)
    written = {name: (folder / name).read_bytes() for name in WRITTEN}
    rendered = (render_text(card), render_markdown(card), card_json(card))
    return written | {str(number): text.encode() for number, text in enumerate(rendered)}


def test_the_recorded_run_passes_with_evidence_on_the_lines_of_its_log(run: Path) -> None:
    (verdict,) = judge_folders(FOLDERS, run)
    assert verdict.result is Result.PASS, verdict.sentence
    of_fingerprints = {name for name, row in ROWS.items() if isinstance(row.judge, Invariant)}
    assert {item.state for item in verdict.evidence if item.criterion not in of_fingerprints} == {State.MET}
    assert {item.state for item in verdict.evidence if item.criterion in of_fingerprints} == {State.WAIVED}
    lines = LOG.decode().split("\n")
    places = {item.criterion: lines[item.line - 1] for item in verdict.evidence if item.line}
    assert {str(criterion) for criterion in places} == {
        "resolved_config",
        "steps_completed",
        "gradients",
        "rollout_agreement",
        "adapter",
    }
    assert "{'actor_rollout_ref'" in places[verdict.evidence[2].criterion]
    assert any("Training Progress: 100%" in line for line in places.values())
    assert sum("training/global_step:1 " in line for line in places.values()) == 2
    assert any("Adapter parameters:" in line for line in places.values())


ALTERED = (
    (rb"(Adapter parameters: +)106,496", rb"\g<1>0", Result.FAIL, "the adapter has 0 parameters"),
    (rb"(actor/grad_norm:)[\d.e-]+", rb"\g<1>0.0", Result.FAIL, "actor/grad_norm is 0.0 at step 1"),
    (rb"(critic/grad_norm:)[\d.e-]+", rb"\g<1>nan", Result.FAIL, "critic/grad_norm is"),
    (rb"(rollout_actor_probs_pearson_corr:)[\d.e-]+", rb"\g<1>0.4", Result.FAIL, "do not hold the same weights"),
    (rb"(rollout_actor_probs_pearson_corr:)[\d.e-]+", rb"\g<1>nan", Result.BLOCKED, "not a correlation"),
    (rb"'vanilla_mbridge': False", b"'vanilla_mbridge': True", Result.BLOCKED, "vanilla_mbridge is True"),
    (rb"training/global_step:1 ", b"training/global_step:7 ", Result.BLOCKED, "says global step 7, 1 requested"),
    (rb"step:1 - ", b"stop:1 - ", Result.BLOCKED, "completed without the metrics"),
    (rb"Training Progress: 100%", b"Training Progress:  50%", Result.BLOCKED, "the bar stands at 50%"),
    (rb"pid=7470\)", b"pid=7999)", Result.BLOCKED, "no import line of megatron.bridge from training worker 7999"),
)


@pytest.mark.parametrize(("pattern", "replacement", "result", "text"), ALTERED, ids=[row[3] for row in ALTERED])
def test_an_altered_log_changes_the_card(
    tmp_path: Path, pattern: bytes, replacement: bytes, result: Result, text: str
) -> None:
    log, count = re.subn(pattern, replacement, LOG)
    assert count
    folder = write_run_folder(tmp_path / "run", make_record(), log)
    (verdict,) = judge_folders(FOLDERS, folder)
    assert verdict.result is result
    assert text in verdict.cause
    assert text in (render_text(make_card((verdict,))))


def test_a_log_cut_anywhere_never_passes(tmp_path: Path) -> None:
    last = LOG.rindex(b"Training Progress: 100%")
    for number, end in enumerate(range(0, last, len(LOG) // 12)):
        folder = write_run_folder(tmp_path / str(number), make_record(), LOG[:end])
        assert judge_folders(FOLDERS, folder)[0].result is not Result.PASS


def test_a_forged_log_alone_is_blocked_and_names_each_missing_file(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(LOG)
    with pytest.raises(FolderError, match="no run in this folder"):
        card_of(FOLDERS, tmp_path)
    (tmp_path / "events.jsonl").write_text("")
    card = render_text(card_of(FOLDERS, tmp_path))
    assert card.startswith("Result: Blocked - evidence is missing: job.json: not there; ")
    for name in ("job.json", "environment.json", "imports.jsonl", "metrics.jsonl", "config.json"):
        assert f"{name}: not there" in card.splitlines()[0]
    assert "junit.xml" not in card


@pytest.mark.parametrize("name", ["job.json", "environment.json", "events.jsonl", "imports.jsonl", "log.txt.zst"])
def test_a_pass_does_not_survive_the_loss_of_a_file(run: Path, name: str) -> None:
    (run / name).unlink()
    (verdict,) = judge_folders(FOLDERS, run)
    assert verdict.result is Result.BLOCKED
    assert f"{name}: not there" in verdict.cause


def test_the_same_folder_gives_the_same_bytes_under_any_name_and_age(run: Path, tmp_path: Path) -> None:
    first = judge_all(run)
    copy = tmp_path / "elsewhere" / "another name"
    shutil.copytree(run, copy)
    for age, path in enumerate(sorted(copy.iterdir(), reverse=True)):
        os.utime(path, (1_000_000_000 + age, 1_000_000_000 + age))
    assert judge_all(copy) == first
    assert judge_all(run) == first, "what the judge wrote changes nothing"
    for name in WRITTEN:
        (run / name).unlink()
    assert judge_all(run) == first


def test_the_judgement_is_written_beside_each_log(run: Path) -> None:
    out = run.parent.parent
    failed = make_record(events=ended(exit_code=1))
    write_run_folder(out / "jobs" / "0-recompute", failed, LOG[: len(LOG) // 2])
    verdicts = judge_folders(FOLDERS, out)
    write_judgement(FOLDERS, out, verdicts)
    assert [verdict.result for verdict in verdicts] == [Result.PASS, Result.BLOCKED]
    for name, result in (("0-lora-ddp", "Pass"), ("0-recompute", "Blocked")):
        folder = out / "jobs" / name
        assert (folder / "card.txt").read_text().startswith(f"Result: {result} - ")
        assert json.loads((folder / "verdict.json").read_text())["result"] == result
        assert len(json.loads((folder / "evidence.json").read_text())["evidence"]) == 16


def test_one_card_shows_all_jobs_in_level_order_and_those_that_did_not_run(run: Path) -> None:
    (passed,) = judge_folders(FOLDERS, run)
    later = judged(tests=passing_tests())
    later = type(later)(**{name: getattr(later, name) for name in later.__slots__} | {"job_id": "2-dense"})
    card = make_card(
        (later, passed),
        (NotRun("5-signal", "Level 5: Learning signal (signal)", "not asked"),),
        CheckNotes(notes=("R.",)),
    )
    assert [verdict.job_id for verdict in card.verdicts] == ["0-lora-ddp", "2-dense"]
    text = render_text(card)
    assert [line for line in text.splitlines() if line.startswith("Deliverables")] == [
        "Deliverables (0-lora-ddp):",
        "Deliverables (2-dense):",
        "Deliverables (5-signal):",
    ]
    assert "- R." in text


def test_a_planned_job_without_a_folder_keeps_the_check_from_a_pass(run: Path) -> None:
    out = run.parent.parent
    (out / "plan.json").write_text('{"jobs": [{"id": "0-lora-ddp", "level": 0}, {"id": "1-resume", "level": 1}]}')
    text = render_text(card_of(FOLDERS, out))
    assert text.startswith("Result: Blocked - Level 1")
    assert "Deliverables (1-resume):" in text


def test_the_recording_names_the_module_that_was_imported(run: Path) -> None:
    (verdict,) = judge_folders(FOLDERS, run)
    assert MODULE_FILES["megatron.bridge"] in verdict.deliverables[1].detail


def write_job(folder: Path, changed: ChangedCode, executed: Executed, **given: Any) -> Path:
    """The recorded Level 0 run as that of a job of this change, with what it executed."""
    run = write_run_folder(folder, make_record(job=make_job(changed=changed, **given)), LOG)
    (run / EXECUTED_FILE).write_text(executed.model_dump_json())
    return run


@pytest.mark.parametrize(
    ("rules", "other", "code", "sentence"),
    [
        ({}, ran(DROPOUT), 0, "0-lora-ddp ran well and never entered its part of the change; what it missed ran in 0-"),
        ({}, ran(), 4, "the run never entered the changed code"),
        ({"unexecuted": "allow"}, ran(), 0, "never ran"),
        (None, ran(DROPOUT), 4, "the run never entered the changed code"),
    ],
)
def test_the_card_of_a_check_joins_what_its_jobs_executed(
    tmp_path: Path, rules: dict[str, str] | None, other: Executed, code: int, sentence: str
) -> None:
    changed = change(DROPOUT)
    write_job(tmp_path / "jobs" / "0-lora-ddp", changed, ran())
    write_job(tmp_path / "jobs" / "0-recompute", changed, other, id="0-other", variant="other")
    notes = {"schema": 1, **({} if rules is None else {"execution": rules})}
    (tmp_path / "check.json").write_text(json.dumps(notes))
    card = card_of(FOLDERS, tmp_path)
    assert (exit_code(card), sentence in sentence_of(card)) == (code, True), sentence_of(card)


def test_a_run_that_never_entered_the_change_is_kept_as_that(tmp_path: Path) -> None:
    executed = write_job(tmp_path / "run", change(DROPOUT), ran())
    job = make_job(changed=change(DROPOUT))
    judgement = judge_ended(order(job).model_copy(update={"job": job}), executed, FOLDERS)
    assert (judgement.result, judgement.never_entered) == (Result.BLOCKED, True)
    assert "the run never entered the changed code" in judgement.sentence


def test_a_declared_defect_of_a_resume_turns_a_recorded_fail_into_a_limitation(tmp_path: Path) -> None:
    """The recorded run of unchanged Bridge did not restore the critic's head, and nothing else was wrong."""
    folder = tmp_path / "1-resume"
    shutil.copytree(RUNS / "level1-head-not-restored", folder)
    (before,) = judge_folders(FOLDERS, folder)
    assert before.result is Result.FAIL
    job = json.loads((folder / "job.json").read_text())
    entries = [entry.model_dump(mode="json") for entry in packaged_policy().not_restored]
    (folder / "job.json").write_text(json.dumps({**job, "not_restored": entries}))
    (after,) = judge_folders(FOLDERS, folder)
    assert after.result is Result.PASS, after.sentence
    assert any("critic-value-head: output_layer.weight of the critic" in text for text in after.limitations)
