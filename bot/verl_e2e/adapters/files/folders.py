"""Run folders on this machine's disk, and the bands that they are judged by."""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from verl_e2e.adapters.files import run_folder as disk
from verl_e2e.adapters.files.logs import LogBounds, LogError, bounded, facts_of, log_lines
from verl_e2e.adapters.files.run_folder import read_rehearsal, read_seal
from verl_e2e.config.maps import bands_text, maps_content, packaged_bands, read_bands, read_maps
from verl_e2e.config.validation import ConfigError
from verl_e2e.core.compare.bands import merged_bands, only_of
from verl_e2e.core.judge.junit import COMMIT_PROPERTY, JunitError, read_junit, stating_commit
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import NO_MAPS, ExecutionMaps
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job, RunOrder, read_order
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import VERDICT_FILE, CheckNotes, Record
from verl_e2e.core.model.related import BANDS_FILE, RELATED_FILE, Bands
from verl_e2e.core.pulls.forge import FolderFile
from verl_e2e.core.pulls.job_order import NONCE_FILE
from verl_e2e.core.signal.report import PLOTS_FOLDER, SignalFigure
from verl_e2e.ports import RehearsalFolder, UnreadableLogError

_MOST_FILES = 10_000


class FolderFilesError(UserError):
    """A run folder that has no digest; the text says why."""


def folder_files(folder: Path) -> Iterator[FolderFile]:
    """Every file below a folder; FolderFilesError for a link, a device, a pipe, or too many files."""

    def refuse(path: Path, what: str, fix: str = "a run folder holds plain files") -> FolderFilesError:
        return FolderFilesError(f"{path.relative_to(folder).as_posix()!a} is {what}; {fix}")

    def unreadable(error: OSError) -> None:
        raise FolderFilesError(f"the run folder cannot be read: {error.strerror or error}") from error

    count = 0
    for parent, folders, names in os.walk(folder, onerror=unreadable):
        if link := next((path for path in (Path(parent, name) for name in folders) if path.is_symlink()), None):
            raise refuse(link, "a link")
        for file in (Path(parent, name) for name in names):
            count += 1
            if count > _MOST_FILES:
                raise FolderFilesError(f"the run folder holds more than {_MOST_FILES:,} files")
            try:
                handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as error:
                what = "a link" if file.is_symlink() else f"not readable ({error.strerror})"
                raise refuse(file, what) from error
            with open(handle, "rb") as content:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise refuse(file, "not a regular file", "a run folder holds only regular files")
                digest = hashlib.file_digest(content, "sha256")
                yield FolderFile(file.relative_to(folder).as_posix(), content.tell(), digest.hexdigest())


def read_job(path: Path) -> RunOrder:
    """A job file, or that of a rehearsal, validated; raises UserError with file, key and value."""
    try:
        return read_order(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a job file as `verl-e2e check` writes it") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        shown = repr(first["input"])[:80]
        raise UserError(f"{path}: {key}: {first['msg']}, got {shown}; fix the file and run again") from None


def take_nonce(job_file: Path) -> str:
    """The nonce that lies next to a job's file, which is gone then; empty where there is none."""
    file = job_file.with_name(NONCE_FILE)
    try:
        nonce = file.read_text(encoding="ascii")[:64]
        file.unlink()
    except (OSError, ValueError):
        return ""
    return nonce


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


BASELINES_FOLDER = "baselines"
_MANIFEST = "manifest.json"
_RUN = "run"


class BaselineCache:
    """Baselines below `work`, or none at all without it."""

    def __init__(self, work: Path | None) -> None:
        self._root = None if work is None else work / BASELINES_FOLDER

    def fetch(self, key: str, into: Path, accept: Callable[[Path], bool]) -> bool:
        if self._root is None:
            return False
        place = self._root / key
        try:
            whole = bool(json.loads((place / _MANIFEST).read_bytes()) == _digests(place / _RUN))
        except (OSError, ValueError, RecursionError, FolderFilesError):
            return False
        if not whole or not accept(place / _RUN):
            return False
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(place / _RUN, into)
        return True

    def keep(self, key: str, folder: Path) -> bool:
        if self._root is None:
            return False
        place, made = self._root / key, self._root / f".{key}.{os.getpid()}"
        try:
            shutil.rmtree(made, ignore_errors=True)
            shutil.copytree(folder, made / _RUN)
            (made / _MANIFEST).write_text(json.dumps(_digests(made / _RUN), indent=1), encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            made.rename(place)
        except (OSError, FolderFilesError):
            shutil.rmtree(made, ignore_errors=True)
            return False
        return True


def _digests(folder: Path) -> dict[str, str]:
    return {file.path: file.sha256 for file in folder_files(folder)}


_PLOTTING = "matplotlib"


@dataclass(frozen=True, slots=True)
class DiskFolders:
    """`RunFolders` on this machine's disk, judged by a folder's own bands where it has some, else by these.

    With `keep` true the bands that a folder was judged by are written next to its verdict.
    """

    bands: Bands
    keep: bool
    # The recorders whose signature counts; None: a seal must be whole, no matter who signed it, and may be missing.
    keys: frozenset[str] | None = None
    # Seals a folder once more after other runs were added to it; only the recorder can.
    reseal: Callable[[Path], None] | None = None

    def find(self, folder: Path) -> tuple[Path, ...]:
        return disk.find_jobs(folder)

    def record(self, folder: Path) -> Record:
        """The documents of one run folder, its seal checked, and the bands that it is judged by."""
        record = disk.read_record(folder)
        record = record.model_copy(update={"seal": read_seal(folder, keys=self.keys)})
        own = folder / BANDS_FILE
        try:
            bands = read_bands(own) if own.is_file() and not self.keep else self.bands
        except ConfigError as error:
            missing = (*record.missing, f"{BANDS_FILE}: {error.problems[0].what}")
            return record.model_copy(update={"missing": missing, "bands": self.bands})
        return record.model_copy(update={"bands": bands})

    def rehearsal(self, folder: Path) -> RehearsalFolder:
        return read_rehearsal(folder)

    def facts(self, folder: Path) -> LogFacts | None:
        log = disk.find_log(folder)
        try:
            # The maker of the folder decided how long its log is.
            return None if log is None else facts_of(bounded(log, LogBounds()))
        except LogError as error:
            raise UnreadableLogError(f"{log.name if log else folder}: {error.problem}") from None

    def lines(self, folder: Path) -> Iterator[str]:
        def blocks() -> Iterator[bytes]:
            # What was read before a log breaks off is shown.
            with suppress(LogError):
                yield from bounded(log, LogBounds()) if log else ()

        log = disk.find_log(folder)
        return log_lines(blocks())

    def planned(self, folder: Path) -> Mapping[str, Level]:
        return disk.planned_jobs(folder)

    def notes(self, folder: Path) -> CheckNotes:
        return disk.check_notes(folder)

    def write(self, folder: Path, files: Mapping[str, str]) -> None:
        job = disk.read_record(folder).job if self.keep and VERDICT_FILE in files else None
        # Kept with a verdict, so that it is the same wherever the folder is judged again.
        bands = {} if job is None else {BANDS_FILE: only_of(self.bands, job).model_dump_json(indent=2) + "\n"}
        disk.write_files(folder, {**files, **bands})
        if self.reseal is not None and RELATED_FILE in files:
            self.reseal(folder)

    def draw(self, folder: Path, figure: SignalFigure) -> None:
        if find_spec(_PLOTTING):
            draw_plots(figure, folder / PLOTS_FOLDER)


def run_folders(
    bands: Bands | Path | None = None,
    *,
    keys: frozenset[str] | None = None,
    reseal: Callable[[Path], None] | None = None,
) -> DiskFolders:
    """Run folders on this machine's disk; the user's own measurements count in addition to the packaged ones.

    With `keys`, public keys of recorders, a folder that none of them signed is evidence of nothing. `reseal` is called
    with a folder after other runs were added to it, for those who make such runs.
    """
    if bands is None:
        return DiskFolders(packaged_bands(), keep=False, keys=keys, reseal=reseal)
    own = read_bands(bands) if isinstance(bands, Path) else bands
    return DiskFolders(merged_bands(packaged_bands(), own), keep=True, keys=keys, reseal=reseal)


def keep_bands(bands: Bands, file: Path) -> None:
    """Write a bands file, whole or not at all."""
    disk.write_files(file.parent, {file.name: bands_text(bands)})


def own_bands(file: Path) -> Bands:
    """The bands file that a user keeps, empty when it is not there yet."""
    return read_bands(file) if file.exists() else Bands()


def keep_maps(maps: ExecutionMaps, file: Path) -> None:
    """Write a maps file, whole or not at all."""
    disk.write_bytes(file.parent, {file.name: maps_content(maps, file.name)})


def own_maps(file: Path) -> ExecutionMaps:
    """The maps file that a user keeps, empty when it is not there yet."""
    return read_maps(file) if file.exists() else NO_MAPS


def draw_plots(figure: SignalFigure, folder: Path) -> tuple[Path, ...]:
    """Draw curves into a folder; UserError where the plotting library is not installed."""
    if not find_spec(_PLOTTING):
        raise UserError(f"plots need {_PLOTTING}, which is not installed; python -m pip install 'matplotlib>=3.8,<4'")
    # Only here: it takes longer to load than everything else together, and is not everywhere.
    from verl_e2e.adapters.files.plots import draw  # noqa: PLC0415

    return draw(figure, folder)
