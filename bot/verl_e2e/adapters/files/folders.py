"""Run folders on this machine's disk, and the bands that they are judged by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from verl_e2e.adapters.files import run_folder as disk
from verl_e2e.adapters.files.log_facts import facts_of
from verl_e2e.adapters.files.logs import LogBounds, LogError, bounded
from verl_e2e.adapters.files.rehearsal_folder import read_rehearsal
from verl_e2e.adapters.files.sealing import read_seal
from verl_e2e.config.bands import bands_text, packaged_bands, read_bands
from verl_e2e.config.maps import maps_content, read_maps
from verl_e2e.config.problems import ConfigError
from verl_e2e.core.compare.bands import merged, only_of
from verl_e2e.core.model.bands import BANDS_FILE, Bands
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution_maps import NO_MAPS, ExecutionMaps
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import VERDICT_FILE, CheckNotes, Record
from verl_e2e.core.model.related import RELATED_FILE
from verl_e2e.core.signal.figure import PLOTS_FOLDER, SignalFigure
from verl_e2e.ports import RehearsalFolder, UnreadableLogError

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
        """The run folders that `folder` is or holds."""
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
        """What the folder of a rehearsal holds."""
        return read_rehearsal(folder)

    def facts(self, folder: Path) -> LogFacts | None:
        """The facts of its log, None without one; UnreadableLogError."""
        log = disk.find_log(folder)
        try:
            # The maker of the folder decided how long its log is.
            return None if log is None else facts_of(bounded(log, LogBounds()))
        except LogError as error:
            raise UnreadableLogError(f"{log.name if log else folder}: {error.problem}") from None

    def planned(self, folder: Path) -> Mapping[str, Level]:
        """The jobs of its plan, by id."""
        return disk.planned_jobs(folder)

    def notes(self, folder: Path) -> CheckNotes:
        """What its check noted."""
        return disk.check_notes(folder)

    def write(self, folder: Path, files: Mapping[str, str]) -> None:
        """Write files of text, and the bands of a verdict."""
        disk.write_files(folder, {**files, **self._bands_of(folder, files)})
        if self.reseal is not None and RELATED_FILE in files:
            self.reseal(folder)

    def draw(self, folder: Path, figure: SignalFigure) -> None:
        """Draw curves, where the plotting library is installed."""
        if find_spec(_PLOTTING):
            draw_plots(figure, folder / PLOTS_FOLDER)

    def _bands_of(self, folder: Path, files: Mapping[str, str]) -> dict[str, str]:
        """The bands to keep with a verdict, so that it is the same wherever the folder is judged again."""
        job = disk.read_record(folder).job if self.keep and VERDICT_FILE in files else None
        if job is None:
            return {}
        return {BANDS_FILE: only_of(self.bands, job).model_dump_json(indent=2) + "\n"}


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
    return DiskFolders(merged(packaged_bands(), own), keep=True, keys=keys, reseal=reseal)


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
