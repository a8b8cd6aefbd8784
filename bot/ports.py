"""What the rest of the program asks of the outside world: small protocols, named for what the caller needs."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from bot.core.change import Change
from bot.core.facts import LogFacts
from bot.core.jobs import Job
from bot.core.levels import Level
from bot.core.reach.summary import Summary
from bot.core.record import CheckNotes, Record
from bot.core.signal.figure import SignalFigure


class ChangeSource(Protocol):
    """Where a change is read from: a git directory, or a forge's interface."""

    def change(self, base: str, head: str) -> Change:
        """What the head changes since it left the base; either may be any revision that the source knows."""
        ...

    def read_blob(self, revision: str, path: str) -> bytes | None:
        """The file's content at a revision, None when it is not there."""
        ...


class SourceTrees(ChangeSource, Protocol):
    """A change source that also gives whole trees and many contents at once."""

    def tree(self, revision: str, under: str = "") -> Mapping[str, str]:
        """The files at a revision below a folder, each with the id of its content."""
        ...

    def read_objects(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        """Contents by id; None for what the source lacks."""
        ...


class SummaryStore(Protocol):
    """Summaries of source files, kept by the id of the content, so that no content is read twice."""

    def load(self, ids: Collection[str]) -> Mapping[str, Summary]:
        """The summaries that are known among the ids."""
        ...

    def save(self, summaries: Mapping[str, Summary]) -> None:
        """Keep more summaries."""
        ...


class DispatchError(Exception):
    """A job could not even begin and left no run folder; the text says why."""

    user_mistake = True


class Dispatcher(Protocol):
    """Where a job is run."""

    def run(self, job: Job, out: Path) -> int:
        """Run one job to its end, leave its run folder in `out`, and return the runner's exit code; DispatchError."""
        ...


class Baselines(Protocol):
    """Kept runs on a merge base, so that the changes that start from it share them."""

    def fetch(self, key: str, into: Path, accept: Callable[[Path], bool]) -> bool:
        """Copy the run folder kept under a key to the new folder `into`; false when there is none that is whole.

        `accept` looks at the kept folder before it is copied, and may refuse it.
        """
        ...

    def keep(self, key: str, folder: Path) -> bool:
        """Keep a run folder under a key; false when that was not possible."""
        ...


class UnreadableLogError(Exception):
    """A run folder's log is damaged; the text names the file and what is wrong with it."""


class RunFolders(Protocol):
    """Run folders: where a runner leaves what happened, and where the judgement is written."""

    def find(self, folder: Path) -> tuple[Path, ...]:
        """The run folders that `folder` is or holds, in name order."""
        ...

    def record(self, folder: Path) -> Record:
        """The documents of one run folder; what cannot be read is named in `missing`."""
        ...

    def facts(self, folder: Path) -> LogFacts | None:
        """The facts of the folder's log, None when there is none; UnreadableLogError when it is damaged."""
        ...

    def planned(self, folder: Path) -> Mapping[str, Level]:
        """The jobs of the folder's `plan.json`, by id; empty when it has none."""
        ...

    def notes(self, folder: Path) -> CheckNotes:
        """What the check that made the folder noted; empty for a folder that no check made."""
        ...

    def write(self, folder: Path, files: Mapping[str, str]) -> None:
        """Write files of text into the folder, each whole or not at all."""
        ...

    def draw(self, folder: Path, figure: SignalFigure) -> None:
        """Draw curves into the folder's `plots`, where a plotting library is installed; else nothing."""
        ...
