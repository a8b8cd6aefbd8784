"""What follows a judged run: real recorded folders, laid into place by a stand-in and judged by the real judge."""

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.fakes.recorded import (
    MATCHES_NOTHING,
    NO_GRADIENT,
    NO_PACKAGE,
    PASSES,
    RAISES,
    TEST_FAILS,
    Recorded,
    RecordedRuns,
    recorded_job,
)
from verl_e2e.adapters.files import folders as stored
from verl_e2e.adapters.files.folders import BaselineCache
from verl_e2e.adapters.files.run_folder import find_jobs, read_record
from verl_e2e.app.check import FollowUpServices, follow_up
from verl_e2e.app.judge_folder import judge_folders
from verl_e2e.core.judge.related_runs import AS_ASKED, Allowed, MergeBase, without_base
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.related import Role
from verl_e2e.ports import DispatchError

HEAD, BASE = "b" * 40, "d" * 40
FOLDERS = stored.run_folders()
JOB = recorded_job().model_copy(update={"bridge": recorded_job().bridge.model_copy(update={"commit": HEAD})})
ALLOWED = Allowed(merge_base=MergeBase(BASE, JOB.megatron_lm, JOB.patches))


@dataclass
class Host:
    """One machine: where runs go, what they will show, and what was said meanwhile."""

    out: Path
    runs: RecordedRuns
    work: Path | None = None
    said: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.out / "jobs" / JOB.id

    def check(self, allowed: Allowed = ALLOWED) -> Verdict:
        """Run the job and what follows it."""
        self.runs.run(JOB, self.folder)
        services = FollowUpServices(self.runs, FOLDERS, BaselineCache(self.work))
        return follow_up(JOB, self.folder, allowed, services, self.said.append)

    @property
    def places(self) -> list[str]:
        """Where the runs after the first one were laid, below the run folder."""
        return [out.relative_to(self.folder).as_posix() for _, out in self.runs.ran[1:]]


def host(
    tmp_path: Path,
    head: tuple[Recorded | BaseException, ...],
    base: tuple[Recorded | BaseException, ...],
    name: str = "",
) -> Host:
    return Host(tmp_path / (name or "out"), RecordedRuns({HEAD: head, BASE: base}), tmp_path / "work")


BOTH = ["related/merge_base", "related/retry"]
ONE = ["related/merge_base"]
Runs = tuple[Recorded, ...]
WAYS: tuple[tuple[str, Runs, Runs, Result, list[str], str], ...] = (
    ("a pass is followed by nothing", (PASSES,), (PASSES,), Result.PASS, [], "verl finished one training step"),
    ("a block is followed by nothing", (NO_PACKAGE,), (PASSES,), Result.BLOCKED, [], "modelopt cannot be found"),
    ("regression", (RAISES,), (PASSES,), Result.FAIL, BOTH, "the merge base dddddddddddd passed, "),
    (
        "fails on base too",
        (RAISES,),
        (RAISES,),
        Result.BLOCKED,
        ONE,
        " failed the same way",
    ),
    (
        "not reproduced",
        (RAISES, PASSES),
        (PASSES,),
        Result.BLOCKED,
        BOTH,
        "this head failed once and passed on a retry",
    ),
    (
        "fails otherwise on the base",
        (RAISES,),
        (MATCHES_NOTHING,),
        Result.BLOCKED,
        ONE,
        " failed in another way",
    ),
    ("the base gets beyond", (RAISES,), (NO_GRADIENT,), Result.FAIL, BOTH, "got beyond peft (Fail at train_step"),
    (
        "the base is stopped",
        (RAISES,),
        (NO_PACKAGE,),
        Result.FAIL,
        ONE,
        "the merge base dddddddddddd showed nothing (Blocked at",
    ),
    ("a silent fault", (MATCHES_NOTHING,), (MATCHES_NOTHING,), Result.BLOCKED, ONE, " failed the same way"),
    (
        "a test fails on the head only",
        (TEST_FAILS,),
        (PASSES,),
        Result.FAIL,
        BOTH,
        " passed, this head failed twice",
    ),
    (
        "a test fails on both",
        (TEST_FAILS,),
        (TEST_FAILS,),
        Result.BLOCKED,
        ONE,
        " failed the same way",
    ),
    (
        "the retry fails in another way",
        (RAISES, MATCHES_NOTHING),
        (PASSES,),
        Result.FAIL,
        BOTH,
        "failed twice, on the retry in another way (Fail at peft",
    ),
    (
        "the retry is stopped by its host",
        (RAISES, NO_PACKAGE),
        (PASSES,),
        Result.FAIL,
        BOTH,
        "this head failed once, and a retry showed nothing (Blocked at environment",
    ),
)


@pytest.mark.parametrize(
    ("head", "base", "result", "places", "text"), [way[1:] for way in WAYS], ids=[w[0] for w in WAYS]
)
def test_what_follows_a_run_and_what_it_makes_of_the_verdict(
    tmp_path: Path,
    head: tuple[Recorded, ...],
    base: tuple[Recorded, ...],
    result: Result,
    places: list[str],
    text: str,
) -> None:
    here = host(tmp_path, head, base)
    verdict = here.check()
    assert (verdict.result, here.places) == (result, places)
    assert text in verdict.sentence
    assert len(here.said) == 2 * len(places)
    assert judge_folders(FOLDERS, here.folder) == (verdict,), "the folder alone tells the same"
    assert (here.folder / "card.txt").read_text().startswith(f"Result: {result} - {verdict.sentence[:40]}")
    assert json.loads((here.folder / "verdict.json").read_text())["result"] == result


def test_the_baseline_is_the_same_job_on_the_other_commit_and_the_retry_the_very_same(tmp_path: Path) -> None:
    here = host(tmp_path, (RAISES,), (PASSES,))
    here.check()
    first, base, retry = (job for job, _ in here.runs.ran)
    assert retry == first == JOB
    assert base.model_copy(update={"bridge": JOB.bridge, "performance": JOB.performance}) == JOB
    assert base.bridge.commit == BASE


def test_related_runs_are_written_with_all_that_a_comparison_needs(tmp_path: Path) -> None:
    here = host(tmp_path, (RAISES,), (PASSES,))
    here.check()
    base, retry = read_record(here.folder).related
    assert (base.role, base.result, base.stage, base.folder) == (Role.MERGE_BASE, Result.PASS, None, ONE[0])
    assert [step.step for step in base.steps] == [1]
    assert base.steps[0].values["actor/grad_norm"] > 0
    assert (retry.role, retry.result, retry.bridge_commit) == (Role.RETRY, Result.FAIL, HEAD)
    assert "LoRA cannot wrap" in retry.excerpt
    assert retry.job_digest == JOB.digest() != base.job_digest
    assert (here.folder / base.folder / "card.txt").read_text().startswith("Result: Pass")


def test_related_folders_are_no_jobs_of_the_check(tmp_path: Path) -> None:
    here = host(tmp_path, (RAISES,), (PASSES,))
    verdict = here.check()
    assert find_jobs(here.out) == (here.folder,)
    assert find_jobs(here.folder) == (here.folder,)
    assert judge_folders(FOLDERS, here.out) == (verdict,)


def test_each_run_is_announced_with_its_cost_before_it_starts(tmp_path: Path) -> None:
    here = host(tmp_path, (RAISES,), (PASSES,))
    here.check()
    assert here.said[0] == (
        "0-lora-ddp: starting same job on the merge base (0-lora-ddp on Bridge dddddddddddd, 1 GPU(s), "
        "about 7 GPU minutes)"
    )
    assert here.said[1] == "0-lora-ddp: same job on the merge base ended as Pass"
    assert here.said[2].startswith("0-lora-ddp: starting retry on the head")
    assert here.said[3].startswith("0-lora-ddp: retry on the head ended as Fail at peft: LoRA could not")


def test_without_a_baseline_the_card_says_why(tmp_path: Path) -> None:
    here = host(tmp_path, (RAISES,), ())
    verdict = here.check(without_base(AS_ASKED, "--no-baseline was given"))
    assert (verdict.result, here.places) == (Result.FAIL, [])
    assert verdict.sentence.endswith("the merge base was not run (--no-baseline was given)")
    assert judge_folders(FOLDERS, here.folder) == (verdict,)


def test_a_head_that_is_its_own_merge_base_is_not_run_twice(tmp_path: Path) -> None:
    here = host(tmp_path, (RAISES,), ())
    verdict = here.check(replace(ALLOWED, merge_base=MergeBase(HEAD)))
    assert here.places == []
    assert verdict.sentence.endswith("the merge base was not run (the merge base is the commit under test itself)")


@pytest.mark.parametrize(
    ("head", "base", "role", "ending"),
    [
        ((RAISES,), (KeyboardInterrupt(),), Role.MERGE_BASE, "the merge base was not run (interrupted)"),
        ((RAISES, KeyboardInterrupt()), (PASSES,), Role.RETRY, "failed once, not retried (interrupted)"),
    ],
)
def test_an_interruption_keeps_what_is_there(
    tmp_path: Path, head: tuple[Recorded, ...], base: tuple[Recorded, ...], role: Role, ending: str
) -> None:
    here = host(tmp_path, head, base)
    with pytest.raises(KeyboardInterrupt):
        here.check()
    assert read_record(here.folder).related_not_run == {role: "interrupted"}
    (verdict,) = judge_folders(FOLDERS, here.folder)
    assert verdict.result is Result.FAIL
    assert verdict.sentence.endswith(ending)


@pytest.mark.parametrize(
    ("head", "base", "text"),
    [
        ((RAISES,), (DispatchError("no slot"),), "the merge base was not run (its run could not begin)"),
        ((RAISES, DispatchError("no slot")), (PASSES,), "failed once, not retried (its run could not begin)"),
    ],
)
def test_a_run_that_cannot_begin_costs_neither_the_verdict_nor_the_check(
    tmp_path: Path, head: tuple[Recorded, ...], base: tuple[Recorded, ...], text: str
) -> None:
    here = host(tmp_path, head, base)
    verdict = here.check()
    assert verdict.result is Result.FAIL
    assert verdict.sentence.endswith(text)
    assert "0-lora-ddp: no slot" in here.said
    assert judge_folders(FOLDERS, here.folder) == (verdict,)


def test_a_conclusive_baseline_is_run_once_for_all_changes_that_start_from_it(tmp_path: Path) -> None:
    host(tmp_path, (RAISES,), (PASSES,), "first").check()
    manifest = _kept(tmp_path).parent / "manifest.json"
    made = manifest.stat().st_mtime_ns
    second = host(tmp_path, (RAISES,), (AssertionError("the baseline was run again"),), "second")
    verdict = second.check()
    assert manifest.stat().st_mtime_ns == made, "what is kept already is not written again"
    assert second.places == ["related/retry"]
    assert "is kept from an earlier run" in second.said[0]
    assert read_record(second.folder).related[0].cached
    assert "kept from an earlier run): Pass, in related/merge_base" in (second.folder / "card.txt").read_text()
    assert ", caused by this change" in verdict.sentence
    assert (second.folder / "related/merge_base/log.txt.zst").is_file()


def test_a_failed_baseline_is_conclusive_too(tmp_path: Path) -> None:
    host(tmp_path, (RAISES,), (RAISES,), "first").check()
    second = host(tmp_path, (RAISES,), (AssertionError(),), "second")
    assert second.check().result is Result.BLOCKED
    assert second.places == []


def test_a_baseline_that_proves_nothing_is_not_kept(tmp_path: Path) -> None:
    host(tmp_path, (RAISES,), (NO_PACKAGE,), "first").check()
    second = host(tmp_path, (RAISES,), (PASSES,), "second")
    assert ", caused by this change" in second.check().sentence
    assert second.places == BOTH


def _kept(tmp_path: Path) -> Path:
    (entry,) = (tmp_path / "work" / "baselines").iterdir()
    return entry / "run"


def _packages(tmp_path: Path) -> None:
    """The host had another vLLM when the baseline was kept, and it was kept whole."""
    folder = _kept(tmp_path)
    document = json.loads((folder / "environment.json").read_text())
    document["packages"]["vllm"] = "0.0.1"
    (folder / "environment.json").write_text(json.dumps(document))
    _keep_again(tmp_path)


def _another_job(tmp_path: Path) -> None:
    folder = _kept(tmp_path)
    text = (folder / "events.jsonl").read_text()
    digest = json.loads(text.splitlines()[0])["data"]["digest"]
    (folder / "events.jsonl").write_text(text.replace(digest, "0" * 64))
    _keep_again(tmp_path)


def _no_longer_conclusive(tmp_path: Path) -> None:
    (_kept(tmp_path) / "imports.jsonl").write_text("")
    _keep_again(tmp_path)


def _damaged(tmp_path: Path) -> None:
    log = _kept(tmp_path) / "log.txt.zst"
    log.write_bytes(log.read_bytes()[:-40])


def _keep_again(tmp_path: Path) -> None:
    folder, copy = _kept(tmp_path), tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert BaselineCache(tmp_path / "work").keep(folder.parent.name, copy)


@pytest.mark.parametrize("spoil", [_packages, _another_job, _no_longer_conclusive, _damaged])
def test_a_kept_baseline_that_no_longer_stands_is_run_anew_and_replaced(tmp_path: Path, spoil: object) -> None:
    host(tmp_path, (RAISES,), (PASSES,), "first").check()
    spoil(tmp_path)  # type: ignore[operator]
    second = host(tmp_path, (RAISES,), (PASSES,), "second")
    second.check()
    assert second.places == BOTH
    third = host(tmp_path, (RAISES,), (AssertionError("the baseline was run again"),), "third")
    third.check()
    assert third.places == ["related/retry"]


def test_a_baseline_of_changed_files_is_not_kept(tmp_path: Path) -> None:
    here = host(tmp_path, (RAISES,), (PASSES,))
    lay = here.runs.run

    def dirty(job: object, out: Path) -> int:
        lay(job, out)  # type: ignore[arg-type]
        document = json.loads((out / "environment.json").read_text())
        document["repositories"][0]["dirty"] = ["verl/trainer/main_ppo.py"]
        (out / "environment.json").write_text(json.dumps(document))
        return 0

    here.runs.run = dirty  # type: ignore[method-assign]
    here.check()
    assert not (tmp_path / "work").exists()


def test_without_a_work_folder_nothing_is_kept(tmp_path: Path) -> None:
    here = replace(host(tmp_path, (RAISES,), (PASSES,)), work=None)
    here.check()
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_a_related_file_that_is_damaged_is_missing_evidence_and_the_fail_stays(tmp_path: Path) -> None:
    here = host(tmp_path, (RAISES,), (RAISES,))
    assert here.check().result is Result.BLOCKED
    (here.folder / "related.json").write_text('{"schema": 1, "runs": [{')
    (verdict,) = judge_folders(FOLDERS, here.folder)
    assert verdict.result is Result.FAIL
    assert any("related.json" in row for row in verdict.limitations)
