"""In-memory run folders, a scripted dispatcher and a change source over plain values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_e2e.core.model.change import Change
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import CHECK_FILE, CheckNotes, Record
from verl_e2e.core.model.related import RELATED_FILE, Related
from verl_e2e.core.signal.report import SignalFigure
from verl_e2e.ports import RehearsalFolder


@dataclass
class FakeFolders:
    """Run folders in memory: what a run left, and what was written into it afterwards."""

    records: dict[Path, Record] = field(default_factory=dict)
    logs: dict[Path, LogFacts] = field(default_factory=dict)
    files: dict[Path, dict[str, str]] = field(default_factory=dict)
    plans: dict[Path, dict[str, Level]] = field(default_factory=dict)
    figures: dict[Path, SignalFigure] = field(default_factory=dict)
    rehearsals: dict[Path, RehearsalFolder] = field(default_factory=dict)

    def find(self, folder: Path) -> tuple[Path, ...]:
        below = sorted(path for path in self.records if path.parent == folder / "jobs")
        return tuple(below) if below else ((folder,) if folder in self.records else ())

    def record(self, folder: Path) -> Record:
        text = self.files.get(folder, {}).get(RELATED_FILE)
        related = Related.model_validate_json(text) if text else Related()
        return self.records[folder].model_copy(update={"related": related.runs, "related_not_run": related.not_run})

    def rehearsal(self, folder: Path) -> RehearsalFolder:
        return self.rehearsals[folder]

    def facts(self, folder: Path) -> LogFacts | None:
        return self.logs.get(folder)

    def lines(self, folder: Path) -> Iterator[str]:
        """A fake log has facts and no lines."""
        yield from ()

    def planned(self, folder: Path) -> Mapping[str, Level]:
        return self.plans.get(folder, {})

    def notes(self, folder: Path) -> CheckNotes:
        text = self.files.get(folder, {}).get(CHECK_FILE)
        return CheckNotes.model_validate_json(text) if text else CheckNotes()

    def write(self, folder: Path, files: Mapping[str, str]) -> None:
        self.files.setdefault(folder, {}).update(files)

    def draw(self, folder: Path, figure: SignalFigure) -> None:
        self.figures[folder] = figure


@dataclass
class ScriptedDispatcher:
    """Leaves a prepared record for each job, with the job that was really asked for; remembers the jobs."""

    folders: FakeFolders
    record: Record
    facts: LogFacts | None
    jobs: list[Job] = field(default_factory=list)

    def run(self, job: Job, out: Path) -> int:
        self.jobs.append(job)
        self.folders.records[out] = self.record.model_copy(update={"job": job})
        if self.facts is not None:
            self.folders.logs[out] = self.facts
        return 0


@dataclass(frozen=True)
class FakeChanges:
    """One change for every pair of commits, and files by (revision, path)."""

    paths: Change
    blobs: Mapping[tuple[str, str], bytes] = field(default_factory=dict)

    def change(self, base: str, head: str) -> Change:
        return replace(self.paths, base=base, head=head)

    def read_blob(self, revision: str, path: str) -> bytes | None:
        return self.blobs.get((revision, path))
