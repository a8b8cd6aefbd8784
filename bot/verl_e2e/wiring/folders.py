"""Run folders, logs and job files on this machine's disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from verl_e2e.adapters.files import run_folder as disk
from verl_e2e.adapters.files.logs import LogBounds, LogError, LogStream, bounded, open_log
from verl_e2e.adapters.files.sealing import read_seal
from verl_e2e.adapters.prefilter import fastest_prefilter
from verl_e2e.app.learning_signal import Source, source_of
from verl_e2e.config.bands import bands_text, packaged_bands, read_bands
from verl_e2e.config.problems import ConfigError
from verl_e2e.core.compare.bands import merged, only_of
from verl_e2e.core.judge.junit import COMMIT_PROPERTY, JunitError, read_junit, stating_commit
from verl_e2e.core.log.scan import literal_bytes, scan
from verl_e2e.core.model.bands import BANDS_FILE, Bands
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import VERDICT_FILE, CheckNotes, Record
from verl_e2e.core.model.related import RELATED_FILE
from verl_e2e.core.model.stages import Stage
from verl_e2e.core.signal.figure import PLOTS_FOLDER, SignalFigure
from verl_e2e.ports import UnreadableLogError

_PLOTTING = "matplotlib"


@dataclass(frozen=True, slots=True)
class _Folders:
    """Run folders on this machine's disk, judged by a folder's own bands where it has some, else by these.

    With `keep` true the bands that a folder was judged by are written beside its verdict.
    """

    bands: Bands
    keep: bool
    # The recorders whose signature counts; None: a seal must be whole, whoever signed it, and may be missing.
    keys: frozenset[str] | None = None
    # Seals a folder once more after runs were put beside its own; only the recorder can.
    reseal: Callable[[Path], None] | None = None

    def find(self, folder: Path) -> tuple[Path, ...]:
        return disk.find_jobs(folder)

    def record(self, folder: Path) -> Record:
        record = disk.read_record(folder)
        record = record.model_copy(update={"seal": read_seal(folder, keys=self.keys)})
        own = folder / BANDS_FILE
        try:
            bands = read_bands(own) if own.is_file() and not self.keep else self.bands
        except ConfigError as error:
            missing = (*record.missing, f"{BANDS_FILE}: {error.problems[0].what}")
            return record.model_copy(update={"missing": missing, "bands": self.bands})
        return record.model_copy(update={"bands": bands})

    def facts(self, folder: Path) -> LogFacts | None:
        log = disk.find_log(folder)
        try:
            # Whoever made the folder decided how long its log is.
            return None if log is None else _facts_of(bounded(log, LogBounds()))
        except LogError as error:
            raise UnreadableLogError(f"{log.name if log else folder}: {error.problem}") from None

    def planned(self, folder: Path) -> Mapping[str, Level]:
        return disk.planned_jobs(folder)

    def notes(self, folder: Path) -> CheckNotes:
        return disk.check_notes(folder)

    def write(self, folder: Path, files: Mapping[str, str]) -> None:
        disk.write_files(folder, {**files, **self._bands_of(folder, files)})
        if self.reseal is not None and RELATED_FILE in files:
            self.reseal(folder)

    def draw(self, folder: Path, figure: SignalFigure) -> None:
        if find_spec(_PLOTTING):
            draw_plots(figure, folder / PLOTS_FOLDER)

    def _bands_of(self, folder: Path, files: Mapping[str, str]) -> dict[str, str]:
        """The bands to keep beside a verdict, so that it is the same wherever the folder is judged again."""
        job = disk.read_record(folder).job if self.keep and VERDICT_FILE in files else None
        if job is None:
            return {}
        return {BANDS_FILE: only_of(self.bands, job).model_dump_json(indent=2) + "\n"}


def run_folders(
    bands: Bands | Path | None = None,
    *,
    keys: frozenset[str] | None = None,
    reseal: Callable[[Path], None] | None = None,
) -> _Folders:
    """Run folders on this machine's disk; measurements of one's own count beside the packaged ones.

    With `keys`, public keys of recorders, a folder that none of them signed is evidence of nothing. `reseal` is called
    with a folder after runs were put beside its own, for those who make such runs.
    """
    if bands is None:
        return _Folders(packaged_bands(), keep=False, keys=keys, reseal=reseal)
    own = read_bands(bands) if isinstance(bands, Path) else bands
    return _Folders(merged(packaged_bands(), own), keep=True, keys=keys, reseal=reseal)


def keep_bands(bands: Bands, file: Path) -> None:
    """Write a bands file, whole or not at all."""
    disk.write_files(file.parent, {file.name: bands_text(bands)})


def own_bands(file: Path) -> Bands:
    """The bands file that a user keeps, empty when it is not there yet."""
    return read_bands(file) if file.exists() else Bands()


def draw_plots(figure: SignalFigure, folder: Path) -> tuple[Path, ...]:
    """Draw curves into a folder; UserError where the plotting library is not installed."""
    if not find_spec(_PLOTTING):
        raise UserError(f"plots need {_PLOTTING}, which is not installed; python -m pip install 'matplotlib>=3.8,<4'")
    # Only here: it takes longer to load than everything else together, and is not everywhere.
    from verl_e2e.adapters.plots import draw  # noqa: PLC0415

    return draw(figure, folder)


def signal_source(path: Path) -> Source:
    """The metrics of a run folder or of a bare log."""
    return Source(path, log_facts(str(path))) if path.is_file() else source_of(run_folders(), path)


def log_facts(name: str) -> LogFacts:
    """The facts of a log on disk, or of standard input for `-`."""
    return _facts_of(open_log(name))


def _facts_of(log: LogStream) -> LogFacts:
    facts = scan(log, fastest_prefilter(literal_bytes()))
    return replace(facts, truncated=True) if log.truncated else facts


def log_with_times(name: str) -> tuple[LogFacts, Mapping[Stage, float]]:
    """The facts of a log or of a run folder's log, and when its run entered each stage, where the folder says so.

    Raises UserError for a folder without a log.
    """
    path = Path(name)
    log = disk.find_log(path) if path.is_dir() else path
    if log is None:
        raise UserError(f"{name}: no log in this folder; give a log file or a run folder")
    return log_facts(name if name == "-" else str(log)), disk.stage_times(log.parent)


def read_job(path: Path) -> Job:
    """A job file, validated; raises UserError with file, key and value."""
    try:
        return Job.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a job file as `verl-e2e check` writes it") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        shown = repr(first["input"])[:80]
        raise UserError(f"{path}: {key}: {first['msg']}, got {shown}; fix the file and run again") from None


def read_junit_file(path: Path, job: Job, commit: str | None) -> bytes:
    """A JUnit file from another environment, stating the job's Bridge commit; raises UserError for any other.

    `commit` is what the caller says of a file that does not say it itself.
    """
    wanted = job.bridge.commit
    try:
        raw = path.read_bytes()
        stated = read_junit(raw).commit or (commit or "").lower()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a readable JUnit file") from None
    except JunitError as error:
        raise UserError(f"{path}: not readable as JUnit ({error}); bring the whole file as pytest wrote it") from None
    if not stated:
        raise UserError(f"{path}: no property {COMMIT_PROPERTY}; name the commit of the tests with --junit-commit SHA")
    if stated != wanted:
        message = f"{COMMIT_PROPERTY}: {stated}, and the job tests {wanted}"
        raise UserError(f"{path}: {message}; run the tests on the job's commit")
    return stating_commit(raw, wanted)
