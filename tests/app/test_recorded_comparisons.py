"""Our own GPU runs compared: a resume with its reference run, and two kinds of parallel sizes with one GPU."""

import json
import re
import shutil
from pathlib import Path

import pytest
from backports import zstd

from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files import folders as stored
from verl_e2e.adapters.files.folders import BaselineCache
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.app.check import FollowUpServices, follow_up
from verl_e2e.app.judge_folder import add_healthy, add_pair, card_of, described, judge_folders
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.related_runs import AS_ASKED, Allowed, MergeBase, related_run_of
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.record import ENVIRONMENT_FILE, EVENTS_FILE, JOB_FILE, LOG_FILE
from verl_e2e.core.model.related import RELATED_FILE, Bands, Related, RelatedRun, Role
from verl_e2e.core.report.run_card import render_text
from verl_e2e.ports import DispatchError

RUNS = FIXTURES / "runs"
NAMES = ("level1-resume", "level1-uninterrupted", "level2-dense", "level2-dp-gradients-unfinalized", "level5-signal")
RESUMED, UNINTERRUPTED_RUN, DENSE, DATA_PARALLEL, SIGNAL = (RUNS / name for name in NAMES)
FOLDERS = stored.run_folders()
SLOWER = FIXTURES / "cards" / "slower.txt"
METRIC = re.compile(rb"( - (?P<name>[\w/@.-]+):)(?P<value>[-+\w.]+)")


def twin_as(role: Role) -> RelatedRun:
    """The run of the same training on one GPU, never interrupted."""
    record = FOLDERS.record(UNINTERRUPTED_RUN)
    assert record.job is not None
    (verdict,) = judge_folders(FOLDERS, UNINTERRUPTED_RUN)
    return related_run_of(
        role, record.job, verdict, record, FOLDERS.facts(UNINTERRUPTED_RUN), folder="related/reference"
    )


def with_reference(run: Path, out: Path, role: Role) -> Path:
    """A copy of a run folder with its reference run."""
    folder = shutil.copytree(run, out / run.name)
    (folder / RELATED_FILE).write_text(Related(runs=(twin_as(role),)).model_dump_json())
    return folder


def with_metrics(folder: Path, step: int, factors: dict[str, float]) -> None:
    """Multiply metrics of one step where the log printed them."""

    def changed(found: re.Match[bytes]) -> bytes:
        factor = factors.get(found["name"].decode())
        return found[0] if factor is None else found[1] + str(float(found["value"]) * factor).encode()

    log = b"".join(open_log(folder / LOG_FILE))
    lines = log.split(b"\n")
    lines = [METRIC.sub(changed, line) if b"step:%d - " % step in line else line for line in lines]
    assert lines != log.split(b"\n")
    (folder / LOG_FILE).write_bytes(zstd.compress(b"\n".join(lines)))


def judged(folder: Path, criterion: Criterion) -> tuple[Verdict, Evidence]:
    (verdict,) = judge_folders(FOLDERS, folder)
    return verdict, next(item for item in verdict.evidence if item.criterion == criterion)


def test_a_real_resume_agrees_with_its_uninterrupted_run(tmp_path: Path) -> None:
    folder = with_reference(RESUMED, tmp_path, Role.UNINTERRUPTED)
    verdict, item = judged(folder, Criterion.RESUMED_STEP)
    assert (verdict.result, item.state) == (Result.PASS, State.MET), item.summary
    assert item.summary.endswith("as the step before the save does (stated defaults)")
    assert [report.comparison.same_samples for report in verdict.reports] == [(1,), ()]


@pytest.mark.parametrize(
    "factors",
    [
        # What the first step of this very run shows, before there was anything to load.
        {"actor/kl_loss": 0.00097089 / 0.01133291},
        {"actor/grad_norm": 1.5},
        {"critic/values/mean": 0.0},
    ],
)
def test_a_real_resume_that_lost_something_fails_the_load(tmp_path: Path, factors: dict[str, float]) -> None:
    folder = with_reference(RESUMED, tmp_path, Role.UNINTERRUPTED)
    with_metrics(folder, 2, factors)
    verdict, item = judged(folder, Criterion.RESUMED_STEP)
    assert (verdict.result, verdict.stage, item.state) == (Result.FAIL, Stage.CHECKPOINT_LOAD, State.BROKEN)
    assert next(iter(factors)) in item.summary


@pytest.mark.parametrize("run", [DENSE, DATA_PARALLEL], ids=lambda entry: entry.name)
def test_real_parallel_sizes_agree_with_one_gpu(tmp_path: Path, run: Path) -> None:
    verdict, item = judged(with_reference(run, tmp_path, Role.UNSHARDED), Criterion.PARITY)
    assert (verdict.result, item.state) == (Result.PASS, State.MET), item.summary


@pytest.mark.parametrize("run", [DENSE, DATA_PARALLEL], ids=lambda entry: entry.name)
def test_a_gradient_that_no_rank_averaged_fails_the_step(tmp_path: Path, run: Path) -> None:
    folder = with_reference(run, tmp_path, Role.UNSHARDED)
    for step in (1, 2):
        with_metrics(folder, step, {"actor/grad_norm": 1.9, "critic/grad_norm": 1.3})
    verdict, item = judged(folder, Criterion.PARITY)
    assert (verdict.result, verdict.stage, item.state) == (Result.FAIL, Stage.TRAIN_STEP, State.BROKEN)
    assert "actor/grad_norm x" in item.summary


def timed_run(out: Path, factor: float) -> Path:
    """The run of 20 steps, each of which takes so many times as long, on a host that it has to itself."""
    folder = shutil.copytree(SIGNAL, out / f"{factor}")
    for step in range(2, 21):
        with_metrics(folder, step, {"timing_s/step": factor, "perf/throughput": 1 / factor})
    peak = {"held_mib": 31_000, "available_mib": 90_000, "other_runs": 0}
    event = {"t_s": 400 + factor, "kind": "memory", "data": {"peak": peak, "readings": 71}}
    with (folder / EVENTS_FILE).open("a") as events:
        events.write(f"{json.dumps(event)}\n")
    return folder


def test_a_slow_down_of_a_real_run_is_on_its_card(tmp_path: Path) -> None:
    """The noise of four healthy runs is planted, and so is the slow-down; all else is recorded."""
    bands = add_healthy(FOLDERS, Bands(), tuple(timed_run(tmp_path, factor) for factor in (0.97, 0.99, 1.02, 1.04)))
    (took,) = described(bands)[1:]
    host = "  5-signal on 1 x NVIDIA H200, 16 processors, other runs beside it: 0: 4 runs"
    assert took.startswith(f"{host}; step 7.66 s, beyond the noise from +17 %, found in 9 of 10 from +22 %; ")
    slow = timed_run(tmp_path, 1.38)
    folders = stored.run_folders(bands)
    verdicts = judge_folders(folders, slow)
    assert render_text(card_of(folders, slow, verdicts)) == SLOWER.read_text()
    healthy = timed_run(tmp_path, 1.05)
    (verdict,) = judge_folders(folders, healthy)
    assert [item.state for item in verdict.evidence if item.criterion == Criterion.PERFORMANCE] == [State.MET]


class _Recordings:
    """A host on which every job ends as a recorded run; `reference` is that of the unsharded one, empty for none."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        self.jobs: list[str] = []

    def run(self, job: Job, out: Path) -> int:
        self.jobs.append(f"{job.id} on {job.bridge.commit[:4]}")
        if not self.reference:
            raise DispatchError("the host has no room")
        name = self.reference if job.gpu_count == 1 else "level2-dp2-unaveraged"
        shutil.copytree(RUNS / name, out, dirs_exist_ok=True)
        recorded = FOLDERS.record(out).job
        assert recorded is not None
        text = (out / EVENTS_FILE).read_text()
        (out / EVENTS_FILE).write_text(
            text.replace(json.loads(text.partition("\n")[0])["data"]["digest"], job.digest())
        )
        # A run on the merge base names that commit wherever it names one.
        for file in (JOB_FILE, EVENTS_FILE, ENVIRONMENT_FILE):
            text = (out / file).read_text()
            (out / file).write_text(text.replace(recorded.bridge.commit, job.bridge.commit))
        return 0


def followed(
    folder: Path, reference: str = "level2-unsharded", allowed: Allowed = AS_ASKED
) -> tuple[Verdict, list[str]]:
    """The verdict on a run folder after the runs that it asks for, and their jobs."""
    host, job = _Recordings(reference), FOLDERS.record(folder).job
    assert job is not None
    services = FollowUpServices(host, FOLDERS, BaselineCache(folder.parent / "work"))
    return follow_up(job, folder, allowed, services, lambda _: None), host.jobs


def test_a_healthy_parity_job_passes_once_it_was_compared(tmp_path: Path) -> None:
    folder = shutil.copytree(RUNS / "level2-dp2", tmp_path / "run")
    (alone,) = judge_folders(FOLDERS, folder)
    assert (alone.result, alone.stage) == (Result.BLOCKED, Stage.TRAIN_STEP)
    verdict, jobs = followed(folder)
    assert (verdict.result, jobs) == (Result.PASS, ["0-unsharded on e538"])
    (item,) = (item for item in verdict.evidence if item.criterion == Criterion.PARITY)
    assert item.state is State.MET
    # The judgement of the folder alone is the same.
    assert judge_folders(FOLDERS, folder)[0].result is Result.PASS


def test_gradients_that_no_rank_averaged_fail_against_the_merge_base_too(tmp_path: Path) -> None:
    folder = shutil.copytree(RUNS / "level2-dp2-unaveraged", tmp_path / "run")
    verdict, jobs = followed(folder)
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.TRAIN_STEP)
    assert jobs == ["0-unsharded on e538"]
    assert "actor/grad_norm" in verdict.cause
    again = shutil.copytree(RUNS / "level2-dp2-unaveraged", tmp_path / "again")
    verdict, jobs = followed(again, allowed=Allowed(merge_base=MergeBase("d" * 40)))
    # The unsharded run of the same training on this host was kept.
    assert jobs == ["2-dp2-plant on dddd", "0-unsharded on dddd"]
    assert (verdict.result, verdict.blame) == (
        Result.BLOCKED,
        "the merge base dddddddddddd failed the same way",
    )


@pytest.mark.parametrize("has_mbridge", [True, False])
def test_a_known_good_run_is_shown_and_decides_nothing(tmp_path: Path, has_mbridge: bool) -> None:
    folder = shutil.copytree(RUNS / "level2-dp2", tmp_path / "run")
    if not has_mbridge:
        text = (folder / "environment.json").read_text().replace('"mbridge": ', '"another": ')
        (folder / "environment.json").write_text(text)
    job = FOLDERS.record(folder).job
    assert job is not None
    beside = job.model_copy(update={"site": job.site.model_copy(update={"known_good": True})})
    # On two GPUs it gives another run, which differs by more than any tolerance.
    host = _Recordings("level2-unsharded")
    services = FollowUpServices(host, FOLDERS, None)
    verdict = follow_up(beside, folder, AS_ASKED, services, lambda _: None)
    assert verdict.result is Result.PASS
    ran = ["0-unsharded on e538", "0-known-good on e538"]
    assert host.jobs == (ran if has_mbridge else ran[:1])
    titles = [report.title for report in verdict.reports]
    (row,) = (row for row in verdict.related if row.startswith("known-good run through mbridge"))
    if has_mbridge:
        assert titles[1].endswith("the known-good run through mbridge")
        assert verdict.reports[1].comparison.beyond
        assert "in related/known_good" in row
    else:
        assert len(titles) == 1
        assert row.endswith("not made, this host does not have the package mbridge")


@pytest.mark.parametrize("reference", ["", "level0-dataset-missing", "level0-lora-exception"])
def test_without_a_good_reference_run_a_parity_job_is_blocked(tmp_path: Path, reference: str) -> None:
    folder = shutil.copytree(RUNS / "level2-dp2", tmp_path / "run")
    verdict, jobs = followed(folder, reference)
    assert (verdict.result, verdict.own_result, verdict.decided_by) == (
        Result.BLOCKED,
        Result.BLOCKED,
        Criterion.PARITY,
    )
    assert jobs == ["0-unsharded on e538"]
    assert "unsharded reference run" in verdict.cause


def test_the_packaged_bands_hold_what_the_real_runs_measured() -> None:
    found = add_healthy(FOLDERS, FOLDERS.bands, (RESUMED, UNINTERRUPTED_RUN, DENSE))
    found = add_pair(FOLDERS, found, RESUMED, UNINTERRUPTED_RUN)
    assert found == FOLDERS.bands
    assert any("3 healthy run(s), 1 pair(s); 2 more make a band" in item for item in described(found))
