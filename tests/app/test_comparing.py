"""Comparing folders and keeping bands, on real folders through the real adapters."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.core.compare.test_bands import healthy
from tests.fakes.places import ROOT
from tests.runners.world import commit, git
from verl_e2e.adapters.demo_repository import build_demo_repository
from verl_e2e.adapters.files import folders
from verl_e2e.app.judge_folder import (
    NotComparableError,
    add_healthy,
    add_pair,
    card_of,
    compare_folders,
    described,
    judge_folders,
    write_judgement,
)
from verl_e2e.config.maps import bands_text, load_bands, packaged_bands, read_bands
from verl_e2e.config.policy import load_policy
from verl_e2e.config.validation import ConfigError
from verl_e2e.core.compare.bands import ENOUGH, NotHealthyError, band_of, only_of, with_healthy
from verl_e2e.core.compare.jobs import probe_digest
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import METRICS_FILE, PLAN_FILE
from verl_e2e.core.model.related import RELATED_FILE, Bands, Related, RelatedRun, RelatedStep, Role
from verl_e2e.core.report.comparison_text import render_report, render_report_markdown, report_json
from verl_e2e.core.report.run_card import render_text
from verl_e2e.wiring import check as checking

FIRST, SECOND = ROOT / "bot/verl_e2e/demo/recording", ROOT / "tests/fixtures/runs/level0-image-tree-first"
FAILED = ROOT / "tests/fixtures/runs/level0-lora-exception"
FOLDERS = folders.run_folders()


def test_two_real_runs_of_one_job_stand_side_by_side() -> None:
    report = compare_folders(FOLDERS, FIRST, SECOND)
    assert report.title == "0-lora-ddp (recording) compared with 0-lora-ddp (level0-image-tree-first)"
    text = render_report(report)
    assert ": within tolerance\nSteps compared: 1; of these with the same samples: none." in text
    assert "actor/grad_norm" in text
    assert render_report_markdown((report,)).count("\n|---|") == 2


def test_what_else_differs_between_the_jobs_is_reported(tmp_path: Path) -> None:
    other = shutil.copytree(SECOND, tmp_path / "other")
    job = json.loads((other / "job.json").read_text())
    job["wrapper"]["LORA_RANK"] = "8"
    (other / "job.json").write_text(json.dumps(job))
    report = compare_folders(FOLDERS, FIRST, other)
    assert "wrapper.LORA_RANK: 4 -> 8" in report.notes
    assert "wrapper.LORA_RANK: 4 -> 8" in json.loads(report_json((report,)))["reports"][0]["notes"]


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        (FAILED, "its log shows no training step"),
        (ROOT / "tests/fixtures/logs", "neither job.json nor events.jsonl is there"),
        (ROOT / "tests/fixtures/runs/absent", "not a folder"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_sentence(folder: Path, text: str) -> None:
    with pytest.raises(UserError, match=text):
        compare_folders(FOLDERS, folder, FIRST)


def test_a_folder_of_several_runs_must_be_narrowed(tmp_path: Path) -> None:
    for name in ("0-a", "0-b"):
        shutil.copytree(FIRST, tmp_path / "jobs" / name)
    with pytest.raises(NotComparableError, match="holds 2 run folders; name one of them"):
        compare_folders(FOLDERS, tmp_path, FIRST)


def test_healthy_runs_enter_a_file_that_reads_back_the_same(tmp_path: Path) -> None:
    file = tmp_path / "bands.yml"
    assert folders.own_bands(file) == Bands()
    found = add_healthy(FOLDERS, Bands(), (FIRST, SECOND, FIRST))
    folders.keep_bands(found, file)
    assert read_bands(file) == folders.own_bands(file) == found
    assert file.read_text() == bands_text(found)
    sentence, took = described(found)
    on = "0-lora-ddp on 1 x NVIDIA H200, processors unknown, other runs beside it: unknown"
    assert took == f"  {on}: 2 runs; 1 more tell the noise"
    assert "2 healthy run(s), 0 pair(s); 3 more make a band" in sentence


def test_a_run_that_did_not_pass_spoils_the_whole_order() -> None:
    with pytest.raises(NotHealthyError, match=r"judged Fail: .*a band takes only runs that passed"):
        add_healthy(FOLDERS, Bands(), (FIRST, FAILED))


def test_runs_from_other_places_are_one_training_and_make_a_pair() -> None:
    found = add_pair(FOLDERS, Bands(), FIRST, SECOND)
    (probe,) = found.probes.values()
    assert [step.step for step in probe.pairs[0].steps] == [1]
    assert probe.pairs[0].steps[0].first["actor/grad_norm"] == pytest.approx(0.19189, abs=1e-5)


def test_bands_of_ones_own_judge_and_stay_in_the_folder(tmp_path: Path) -> None:
    folder, job = shutil.copytree(FIRST, tmp_path / "run"), FOLDERS.record(FIRST).job
    assert job is not None
    bands = with_healthy(Bands(), job.model_copy(update={"reward_model": job.checkpoint}), healthy(0, 0.5))
    for number in range(ENOUGH):
        bands = with_healthy(bands, job, healthy(number, 1.0))
    own = folders.run_folders(bands)
    verdicts = judge_folders(own, folder)
    write_judgement(own, folder, verdicts)
    kept = folders.run_folders().record(folder).bands
    assert kept == only_of(own.bands, job)
    band = band_of(kept, job)
    assert band is not None
    assert band.count == ENOUGH + len(only_of(FOLDERS.bands, job).probes[probe_digest(job)].healthy)
    assert judge_folders(FOLDERS, folder) == verdicts


def test_bands_that_cannot_be_read_are_missing_evidence(tmp_path: Path) -> None:
    folder = shutil.copytree(FIRST, tmp_path / "run")
    (folder / "bands.json").write_text("schema: 2")
    (verdict,) = judge_folders(FOLDERS, folder)
    assert (verdict.result, "bands.json" in verdict.sentence) == (Result.BLOCKED, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema: 2\n", "schema"),
        ("schema: 1\nprobes: {abc: {}}\n", "abc"),
        (f"schema: 1\nprobes: {{{'a' * 64}: {{healthy: [{{run: x}}]}}}}\n", "run"),
        ("", "the file is empty"),
    ],
)
def test_a_bands_file_that_is_wrong_is_told_by_key(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_bands(text, "bands.yml")


def test_a_bands_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_bands(tmp_path / "none.yml")


def test_the_packaged_bands_are_written_as_the_command_writes_them() -> None:
    packaged = (ROOT / "bot/verl_e2e/policy/bands.yml").read_text()
    assert bands_text(packaged_bands()) == packaged


def test_a_reference_beside_a_run_leaves_its_comparison_in_the_folder(tmp_path: Path) -> None:
    folder = shutil.copytree(FIRST, tmp_path / "run")
    job = json.loads((folder / "job.json").read_text())
    rows = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    reference = RelatedRun(
        role=Role.UNSHARDED,
        job_id="0-dense-unsharded",
        job_digest="d" * 64,
        bridge_commit=job["bridge"]["commit"],
        folder="related/unsharded",
        result=Result.PASS,
        steps=tuple(RelatedStep(step=row["step"], values=row["metrics"]) for row in rows),
    )
    (folder / RELATED_FILE).write_text(Related(runs=(reference,)).model_dump_json())
    write_judgement(FOLDERS, folder, judge_folders(FOLDERS, folder))
    document = json.loads((folder / "parity.json").read_text())
    assert [(load["verdict"], load["same_samples"]) for load in document["reports"]] == [("within tolerance", [1])]
    assert (folder / "parity.md").read_text().startswith("### 0-lora-ddp compared with 0-dense-unsharded")


def policy_text(bands: str) -> str:
    """The packaged policy, with a bands file."""
    packaged = (ROOT / "bot/verl_e2e/policy/megatron-bridge.yml").read_text()
    return packaged.replace("\nfamily_jobs:", f"\nbands: {bands}\nfamily_jobs:", 1)


def order_for(repository: Path, base: str, policy: Path | None, out: Path) -> checking.LocalCheck:
    """A check of nothing, from the base to a commit of the same files."""
    head = git(repository, "commit-tree", "-p", base, "-m", "nothing", f"{base}^{{tree}}").strip()
    verl = out.parent / "verl"
    if not verl.exists():
        commit(verl, {"verl/models/mcore/bridge.py": "import megatron.bridge\n"})
    fields: dict[str, Any] = {"verl_ref": "HEAD", "megatron_lm": None, "site": "default", "values": (), "levels": ()}
    places: dict[str, Any] = {"bridge": repository, "verl": verl, "out": out, "work": out.parent / "work"}
    return checking.LocalCheck(**fields, **places, base=base, head=head, policy=policy)


def test_the_policys_bands_are_read_from_the_base_commit(tmp_path: Path) -> None:
    demo = build_demo_repository(tmp_path / "bridge")
    (demo.path / ".github").mkdir()
    (demo.path / ".github/verl-e2e.yml").write_text(policy_text(".github/bands.yml"))
    git(demo.path, "add", ".github")
    git(demo.path, "commit", "-qm", "policy")
    missing = git(demo.path, "rev-parse", "HEAD").strip()
    with pytest.raises(UserError, match=r"bands: .github/bands.yml is not in the base commit"):
        checking.check_here(order_for(demo.path, missing, None, tmp_path / "a"), {}, print, reseal=lambda _: None)
    (demo.path / ".github/bands.yml").write_text(bands_text(Bands()))
    git(demo.path, "add", ".github")
    git(demo.path, "commit", "-qm", "bands")
    found = checking.check_here(order_for(demo.path, "HEAD", None, tmp_path / "b"), {}, print, reseal=lambda _: None)
    assert found.verdicts == ()


def test_a_check_of_another_trainer_names_it_and_its_pin(tmp_path: Path) -> None:
    demo = build_demo_repository(tmp_path / "bridge")
    commit(tmp_path / "verl", {"skyrl/worker.py": "import megatron.bridge\n"})
    order = order_for(demo.path, demo.base, None, tmp_path / "out")
    order = replace(order, consumer="skyrl", system="darwin")
    said: list[str] = []
    nothing = render_text(checking.check_here(order, {}, said.append, reseal=lambda _: None))
    assert "Result: Pass - no SkyRL coverage is required by this change" in nothing
    order = replace(order, out=tmp_path / "asked", levels=(0,), head="HEAD")
    source = demo.path / "src/megatron/bridge/models/conversion/auto_bridge.py"
    source.write_text(source.read_text() + "    name = 1\n")
    git(demo.path, "commit", "-qam", "name")
    card = checking.check_here(order, {}, said.append, reseal=lambda _: None)
    text = render_text(card)
    for shown in (nothing, text, render_text(card_of(FOLDERS, order.out))):
        assert [line for line in shown.splitlines() if line.startswith(("- Local Bridge import", "- verl", "- SkyRL"))]
        assert "in verl" not in shown
        assert "verl Megatron backend run" not in shown
    assert "- SkyRL Megatron backend run: Skipped - not run: " in text
    assert "Reading what SkyRL uses of Megatron-Bridge ..." in said
    notes = json.loads((order.out / PLAN_FILE).read_text())["notes"]
    (reach,) = (note for note in notes if note.startswith("Reach starts from SkyRL "))
    assert reach.endswith(f", and not from {SKYRL.pin[:12]}, which is its pin (--verl-ref).")


def test_bands_beside_a_policy_file_are_read_from_disk(tmp_path: Path) -> None:
    demo = build_demo_repository(tmp_path / "bridge")
    policy = tmp_path / "policy.yml"
    policy.write_text(policy_text("none.yml"))
    with pytest.raises(ConfigError, match=r"none.yml: cannot be read"):
        checking.check_here(order_for(demo.path, demo.base, policy, tmp_path / "out"), {}, print, reseal=lambda _: None)


def test_a_bands_file_outside_the_repository_is_refused() -> None:
    with pytest.raises(ConfigError, match="leads out of the repository"):
        load_policy(policy_text("../bands.yml"), "policy.yml")
