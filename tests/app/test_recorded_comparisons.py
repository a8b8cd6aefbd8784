"""Our own GPU runs compared: a resume with its reference run, and two kinds of parallel sizes with one GPU."""

import re
import shutil
from pathlib import Path

import pytest
from backports import zstd

from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files import folders as stored
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.app.judge_folder import add_healthy, add_pair, described, judge_folders
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.related_runs import related_run_of
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.record import LOG_FILE
from verl_e2e.core.model.related import RELATED_FILE, Related, RelatedRun, Role

RUNS = FIXTURES / "runs"
NAMES = ("level1-resume", "level1-uninterrupted", "level2-dense", "level2-dp-gradients-unfinalized")
RESUMED, UNINTERRUPTED_RUN, DENSE, DATA_PARALLEL = (RUNS / name for name in NAMES)
FOLDERS = stored.run_folders()
METRIC = re.compile(rb"( - (?P<name>[\w/@.-]+):)(?P<value>[-+\w.]+)")


def twin_as(role: Role) -> RelatedRun:
    """The run of the same training on one GPU, never interrupted."""
    job = FOLDERS.record(UNINTERRUPTED_RUN).job
    assert job is not None
    (verdict,) = judge_folders(FOLDERS, UNINTERRUPTED_RUN)
    return related_run_of(role, job, verdict, FOLDERS.facts(UNINTERRUPTED_RUN), folder="related/reference")


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


def test_the_packaged_bands_hold_what_the_real_runs_measured() -> None:
    found = add_healthy(FOLDERS, FOLDERS.bands, (RESUMED, UNINTERRUPTED_RUN, DENSE))
    found = add_pair(FOLDERS, found, RESUMED, UNINTERRUPTED_RUN)
    assert found == FOLDERS.bands
    assert any("3 healthy run(s), 1 pair(s); 2 more make a band" in item for item in described(found))
