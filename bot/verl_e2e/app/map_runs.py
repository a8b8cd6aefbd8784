"""Take the execution records of whole runs into a maps file, and say what the maps hold."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from verl_e2e.app.judge_folder import judge_run
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.events import Started, read_data
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.execution_maps import ExecutionMap, ExecutionMaps, entered_files, merged_maps
from verl_e2e.core.model.record import Record
from verl_e2e.ports import RunFolders

# What a run must show for its record to say that it did not enter a function.
_WHOLE = (Criterion.LOCAL_IMPORT, Criterion.RESOLVED_CONFIG, Criterion.STEPS_COMPLETED, Criterion.EXIT_ZERO)


class NotMappableError(UserError):
    """A folder that gives no map, in one sentence. The user's mistake."""


def add_maps(folders: RunFolders, maps: ExecutionMaps, paths: Iterable[Path]) -> ExecutionMaps:
    """The maps with that of every run below the folders; a job that has one gets the new one."""
    made = [_map_of(folders, folder) for path in paths for folder in folders.find(path)]
    jobs = [found.job for found in made]
    twice = sorted({job for job in jobs if jobs.count(job) > 1})
    if twice:
        raise NotMappableError(f"{twice[0]} is in several of the folders; name one run of each job")
    return merged_maps(maps, ExecutionMaps(maps=tuple(made)))


def described_maps(maps: ExecutionMaps) -> tuple[str, ...]:
    """One sentence for each map."""
    rows = (
        f"{found.job}: {found.count(of_bridge=True)} functions of Bridge and {found.count(of_bridge=False)} of "
        f"Megatron-LM, on {found.model}, Bridge {found.bridge[:12]}, verl {found.verl[:12]}, {found.measured}"
        for found in maps.maps
    )
    return tuple(rows) or ("no job is measured yet: what a job enters is known by reading the sources alone",)


def _map_of(folders: RunFolders, folder: Path) -> ExecutionMap:
    """The map of one run folder, judged again: of a run that can say what it does not enter."""
    record = folders.record(folder)
    verdict, _ = judge_run(folders, folder)
    job, executed = record.job, record.executed
    if job is None or executed is None:
        raise NotMappableError(f"{folder}: it holds no record of what ran; run the job again with this version")
    problem = executed.problem or next(iter(executed.cut), "") or _gap(verdict)
    if problem:
        raise NotMappableError(f"{folder}: {problem}; a map takes only whole runs")
    files = entered_files(executed)
    if not files:
        raise NotMappableError(f"{folder}: no function of the trees under test ran; give a run that trained")
    return ExecutionMap(
        job=job.id,
        variant=f"{int(job.level)}-{job.variant}",
        settings=job.settings,
        model=job.checkpoint.model_id,
        bridge=job.bridge.commit,
        verl=job.verl.commit,
        megatron_lm=_megatron_lm(record),
        measured=_day(record, folder),
        files=files,
    )


def _gap(verdict: Verdict) -> str:
    """What keeps a run from being whole, empty where it is."""
    states = {item.criterion: item for item in verdict.evidence}
    return next((states[name].summary for name in _WHOLE if states[name].state is not State.MET), "")


def _megatron_lm(record: Record) -> str:
    states = record.environment.repositories if record.environment else ()
    return next((state.commit for state in states if state.name == "megatron_lm"), "")


def _day(record: Record, folder: Path) -> str:
    """The day on which the run began."""
    started = [read_data(event, Started) for event in record.events if event.kind == "started"]
    seconds = started[-1].unix_s if started and started[-1] is not None else None
    try:
        if seconds is not None:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        pass
    raise NotMappableError(f"{folder}: the start of the run has no date; give the folder of a run of this version")
