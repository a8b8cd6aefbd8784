"""The execution record of a run: what the instrumentation is asked for, and `executed.json` from what it left."""

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from verl_e2e.core.model.changed_code import ChangedCode
from verl_e2e.core.model.executed import (
    MEGATRON_LM_FOLDER,
    MOST_FILES,
    MOST_FUNCTIONS_OF_FILE,
    MOST_LINES_OF_FILE,
    MOST_PROCESSES,
    Executed,
    ExecutedFile,
    ExecutedFunction,
    ExecutedProcess,
    ProcessRole,
)
from verl_e2e_runner.folder.process_records import MOST_BYTES, ProcessRecord, read_process
from verl_e2e_runner.folder.process_roles import role_of
from verl_e2e_runner.folder.recorder import Recorder
from verl_e2e_runner.folder.suspect_files import names_below, read_below
from verl_e2e_runner.process.cage import Cage
from verl_e2e_runner.process.confined import hand_folder_over
from verl_e2e_runner.trees.worktrees import Trees

BRIDGE_TESTS_PHASE = "bridge_tests"
# How the instrumentation names the file of a process that could not write an entry.
_LOST = ".lost"
# All processes together.
_MOST_BYTES = 256 << 20
# `judge` reads a document of at most 250,000 values. So of the processes of one phase and role each function names
# the first 16, or fewer where there would be too many values.
_MOST_VALUES = 200_000
_MOST_OF_A_KIND = (16, 4, 1)
_SWITCHED_OFF = "the execution record was switched off"
_NOTHING = "no process of the run imported a tree under test with the instrumentation loaded"


@dataclass(slots=True)
class ExecutionRecord:
    """Takes what the processes of each phase left, and joins it at the end; `begin_record` makes it."""

    # The folder that holds the processes' files, a folder of the run's own; None: nothing is recorded.
    folder: Path | None
    trees: Trees
    # The files that the change touches, relative to the Bridge checkout.
    changed: frozenset[str]
    _taken: set[Path] = field(default_factory=set)
    _bytes: int = 0
    _processes: list[ExecutedProcess] = field(default_factory=list)
    _functions: dict[str, dict[tuple[int, str], dict[int, float]]] = field(default_factory=dict)
    _lines: dict[str, dict[int, set[int]]] = field(default_factory=dict)
    _cut: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, phase: str, recorder: Recorder, cage: Cage | None = None) -> None:
        """Read what the processes of a phase left; call it when all of them have ended.

        `cage` is theirs, where that is not the wrapper's.
        """
        if self.folder is None:
            return
        folder = cage.outside(self.folder) if cage else self.folder
        for name in names_below(folder.parent, folder.name):
            if folder / name not in self._taken:
                self._taken.add(folder / name)
                self._take_file(folder, name, phase, recorder)

    def joined(self, bridge_commit: str) -> Executed:
        """All phases together."""
        if self.folder is None:
            return Executed(bridge_commit=bridge_commit, problem=_SWITCHED_OFF)
        files = self._files()
        problems = [process.problem for process in self._processes if process.problem]
        recorded = bool(files) or len(problems) < len(self._processes)
        return Executed(
            bridge_commit=bridge_commit,
            processes=tuple(self._processes),
            files=files,
            cut=tuple(f"{count:,} {what}" for what, count in sorted(self._cut.items())),
            problem="" if recorded else next(iter(problems), _NOTHING),
        )

    def _take_file(self, folder: Path, name: str, phase: str, recorder: Recorder) -> None:
        if len(self._processes) >= MOST_PROCESSES or self._bytes >= _MOST_BYTES:
            self._cut["processes left out"] += 1
            return
        raw = read_below(folder.parent, f"{folder.name}/{name}", limit=MOST_BYTES)
        record = None if raw is None else read_process(raw)
        self._bytes += len(raw or b"")
        if record is None:
            self._cut["files of processes that cannot be read"] += 1
            return
        if record.unreadable:
            self._cut["lines of processes that cannot be read"] += record.unreadable
        self._processes.append(_process(record, phase, recorder, lost=name.endswith(_LOST)))
        self._add(record, len(self._processes) - 1, recorder)

    def _add(self, record: ProcessRecord, index: int, recorder: Recorder) -> None:
        for (path, line, symbol), seconds in record.functions.items():
            name = self._relative(path)
            if name is None:
                self._cut["functions of files outside of the trees under test"] += 1
            else:
                times = self._functions.setdefault(name, {}).setdefault((line, symbol), {})
                times[index] = _within(recorder, seconds)
        for path in record.modules:
            name = self._relative(path)
            if name is None:
                self._cut["modules outside of the trees under test"] += 1
            else:
                self._functions.setdefault(name, {})
        for path, line in record.lines:
            name = self._relative(path)
            if name is None or name not in self.changed:
                self._cut["lines of files that the change does not touch"] += 1
            else:
                self._lines.setdefault(name, {}).setdefault(line, set()).add(index)

    def _relative(self, path: str) -> str | None:
        """A path relative to the Bridge checkout; None for one that is not in the trees under test."""
        if os.path.normpath(path) != path:
            return None
        for root, prefix in ((self.trees.megatron_lm, f"{MEGATRON_LM_FOLDER}/"), (self.trees.bridge, "")):
            if path.startswith(f"{root}/"):
                return prefix + path[len(f"{root}/") :]
        return None

    def _files(self) -> tuple[ExecutedFile, ...]:
        """As much of every file as the document has room for, files that the change touches first."""
        names = sorted({*self._functions, *self._lines}, key=lambda name: (name not in self.changed, name))
        files: list[ExecutedFile] = []
        for most in _MOST_OF_A_KIND:
            files = [self._file(name, most) for name in names[:MOST_FILES]]
            if sum(map(_values, files)) <= _MOST_VALUES:
                break
        sizes = accumulate(map(_values, files))
        kept = [file for file, size in zip(files, sizes, strict=True) if size <= _MOST_VALUES]
        if len(kept) < len(names):
            self._cut["files left out"] += len(names) - len(kept)
        if large := sum(self._is_large(file.path) for file in kept):
            self._cut["files of which functions or lines are left out"] += large
        return tuple(sorted(kept, key=lambda file: file.path))

    def _is_large(self, name: str) -> bool:
        functions, lines = self._functions.get(name, {}), self._lines.get(name, {})
        return len(functions) > MOST_FUNCTIONS_OF_FILE or len(lines) > MOST_LINES_OF_FILE

    def _file(self, name: str, most: int) -> ExecutedFile:
        functions = sorted(self._functions.get(name, {}).items())[:MOST_FUNCTIONS_OF_FILE]
        lines = sorted(self._lines.get(name, {}).items())[:MOST_LINES_OF_FILE]
        return ExecutedFile(
            path=name,
            functions=tuple(
                ExecutedFunction(
                    symbol=symbol, line=line, first_s={index: times[index] for index in self._some(times, most)}
                )
                for (line, symbol), times in functions
            ),
            lines={line: tuple(self._some(processes, most)) for line, processes in lines},
        )

    def _some(self, processes: Mapping[int, float] | set[int], most: int) -> list[int]:
        """Of the processes that ran something those that are named: a few of each phase and role."""
        kinds: defaultdict[tuple[str, ProcessRole], list[int]] = defaultdict(list)
        for index in sorted(processes):
            kinds[self._processes[index].phase, self._processes[index].role].append(index)
        return sorted(index for indices in kinds.values() for index in indices[:most])


def begin_record(changed: ChangedCode, trees: Trees, settings: Path | None, folder: Path) -> ExecutionRecord:
    """Make the folder for the processes' files, and write for the instrumentation what is to be recorded.

    `settings` is the file that the run's processes are given; None: nothing is recorded.
    """
    paths = frozenset((*(function.path for function in changed.functions), *changed.unread))
    if settings is None:
        return ExecutionRecord(None, trees, paths)
    folder.mkdir(parents=True, exist_ok=True)
    if trees.cage:
        hand_folder_over(folder, trees.cage)
    wanted = {
        "folder": str(folder),
        "roots": [str(trees.bridge / "src"), str(trees.megatron_lm)],
        "changed": sorted(str(_absolute(path, trees)) for path in paths),
    }
    settings.write_text(json.dumps(wanted))
    settings.chmod(0o644)
    return ExecutionRecord(folder, trees, paths)


def _absolute(path: str, trees: Trees) -> Path:
    below = path.removeprefix(f"{MEGATRON_LM_FOLDER}/")
    return trees.bridge / path if below == path else trees.megatron_lm / below


def _values(file: ExecutedFile) -> int:
    """How many values the document has for a file, brackets and commas counted, as those do who read it."""
    functions = sum(5 + len(function.first_s) for function in file.functions)
    return 8 + functions + sum(2 + len(processes) for processes in file.lines.values())


def _process(record: ProcessRecord, phase: str, recorder: Recorder, *, lost: bool) -> ExecutedProcess:
    role, title = role_of([title for title, _ in record.titles])
    ranks = [int(rank) for _, rank in record.titles if rank.isascii() and rank.isdecimal()]
    if phase == BRIDGE_TESTS_PHASE:
        role = ProcessRole.BRIDGE_TEST
    problem = record.problem
    if problem:
        problem = f"Python {record.python}: {problem}"
    elif record.full:
        problem = "it ran more than is recorded of one process"
    elif lost:
        problem = "some of it could not be written, as on a disk that is full"
    return ExecutedProcess(
        phase=phase,
        role=role,
        title=title,
        pid=record.pid,
        rank=ranks[-1] if ranks and role is ProcessRole.TRAINER else None,
        python=record.python,
        began_s=_within(recorder, record.began),
        problem=problem,
    )


def _within(recorder: Recorder, monotonic_s: float) -> float:
    """A time of the processes' clock in seconds since the folder was opened, within the time of the run."""
    return min(max(0.0, recorder.since_opened(monotonic_s)), recorder.elapsed())
