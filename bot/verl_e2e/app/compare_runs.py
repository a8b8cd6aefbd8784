"""Compare run folders on request, and take healthy ones into a bands file."""

from pathlib import Path

from verl_e2e.core.compare.bands import ENOUGH, band_from, tolerances_of, with_healthy, with_pair
from verl_e2e.core.compare.healthy_runs import HealthyRun, NotHealthyError, healthy_of, healthy_run, pair_of
from verl_e2e.core.compare.jobs import differences
from verl_e2e.core.compare.steps import Report, compare_steps
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.model.bands import Bands, Probe
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.jobs import Job
from verl_e2e.ports import RunFolders, UnreadableLogError


class NotComparableError(UserError):
    """A folder that cannot be compared, in one sentence. The user's mistake."""


def compare_folders(folders: RunFolders, run: Path, reference: Path) -> Report:
    """The steps of two run folders side by side; what else differs between their jobs is a note."""
    job, steps, bands = _trained(folders, run)
    other, other_steps, _ = _trained(folders, reference)
    found = compare_steps(steps, other_steps, tolerances_of(bands, job, other_steps))
    return Report(f"{job.id} ({run.name}) compared with {other.id} ({reference.name})", found, differences(job, other))


def _trained(folders: RunFolders, path: Path) -> tuple[Job, tuple[StepMetrics, ...], Bands | None]:
    folder = _one(folders, path)
    record = folders.record(folder)
    if record.job is None:
        raise NotComparableError(f"{folder}: {'; '.join(record.missing)}; give the folder of a run")
    try:
        facts = folders.facts(folder)
    except UnreadableLogError as error:
        raise NotComparableError(f"{folder}: {error}; give a folder with a whole log") from None
    steps = tuple(step for step in facts.steps if step.step > 0) if facts else ()
    if not steps:
        raise NotComparableError(f"{folder}: its log shows no training step; give a run that trained")
    return record.job, steps, record.bands


def _one(folders: RunFolders, path: Path) -> Path:
    found = folders.find(path)
    if len(found) != 1:
        raise NotComparableError(f"{path}: holds {len(found)} run folders; name one of them")
    return found[0]


def add_healthy(folders: RunFolders, bands: Bands, paths: tuple[Path, ...]) -> Bands:
    """The bands with every run below the folders; all must be judged Pass, or none is taken."""
    for path in paths:
        for folder in folders.find(path):
            run = _healthy(folders, folder)
            bands = with_healthy(bands, run.job, healthy_of(run))
    return bands


def add_pair(folders: RunFolders, bands: Bands, item: Path, other: Path) -> Bands:
    """The bands with two runs of the same training as a measure of noise."""
    first, second = (_healthy(folders, _one(folders, path)) for path in (item, other))
    return with_pair(bands, first.job, pair_of(first, second))


def _healthy(folders: RunFolders, folder: Path) -> HealthyRun:
    """The run, judged afresh."""
    record = folders.record(folder)
    try:
        facts = folders.facts(folder)
    except UnreadableLogError as error:
        raise NotHealthyError(f"{folder}: {error}; a band takes only whole runs") from None
    verdict = judge(record, facts)
    return healthy_run(str(folder), record, facts, verdict.result, verdict.cause)


def described(bands: Bands) -> tuple[str, ...]:
    """One sentence for each probe: how much was measured, and what follows from it."""
    rows = (_described(digest, probe) for digest, probe in sorted(bands.probes.items()))
    return tuple(rows) or ("nothing is measured yet: the fixed bounds and the stated tolerances hold",)


def _described(digest: str, probe: Probe) -> str:
    band = band_from(probe)
    text = f"correlation below {band.bound:.5f} fails" if band else f"{ENOUGH - len(probe.healthy)} more make a band"
    counts = f"{len(probe.healthy)} healthy run(s), {len(probe.pairs)} pair(s)"
    return f"{digest[:12]} ({probe.about}): {counts}; {text}"
